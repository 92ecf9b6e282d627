"""Pure tests: no database, no process."""
