"""What every app stands on: errors, ids, units, clock, base pages and base API. No word of the domain."""
