"""Composition root: settings, URLs, API router and the supervisor. Wires; decides nothing."""
