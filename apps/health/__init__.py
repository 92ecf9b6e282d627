"""GPU health: exporter readings, events, findings with evidence, and the catalogue of XID codes."""
