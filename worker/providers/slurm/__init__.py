"""Slurm through slurmrestd, versions v0.0.38 to v0.0.45."""

from worker.providers.slurm.accounts import SlurmAccounts
from worker.providers.slurm.hostlist import expand
from worker.providers.slurm.scheduler import SlurmScheduler
from worker.providers.slurm.tokens import expiry_of, mint_jwt

__all__ = ["SlurmAccounts", "SlurmScheduler", "expand", "expiry_of", "mint_jwt"]
