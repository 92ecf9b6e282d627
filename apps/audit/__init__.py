"""Who asked for what (Entry, hash-chained) and what changed (Event)."""
