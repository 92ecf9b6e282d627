"""Little commands on a pretend job's PATH; each is one file run by itself, with the standard library only."""
