"""A pretend cloud on loopback: AWS, Slurm and DCGM exporters with faults on demand. Imports nothing of the portal."""
