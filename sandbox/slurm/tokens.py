"""The tokens of the pretend Slurm; they are those of the real one."""

from sandbox.tokens import BadToken, mint, user_of

__all__ = ["BadToken", "mint", "user_of"]
