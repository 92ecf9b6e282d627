"""A pretend Slurm that really runs scripts, as local process groups on pretend nodes."""

from sandbox.slurm.changes import Settings
from sandbox.slurm.server import SlurmServer

__all__ = ["Settings", "SlurmServer"]
