"""A real Slurm on this one machine, with pretend GPUs, for tests that must not trust a fake."""
