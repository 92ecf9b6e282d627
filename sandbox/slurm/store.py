"""The pretend controller's memory on disk, so that jobs are still known after a restart."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path

from sandbox.slurm.model import Job

#: Jobs remembered beyond those that run or wait.
KEEP = 500


class Store:
    """One JSON file, replaced whole; a file that cannot be read is set aside, not trusted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> tuple[dict[int, Job], int]:
        """The jobs by id, and the next id."""
        try:
            told = json.loads(self._path.read_text())
            known = {field.name for field in fields(Job)}
            jobs = [Job(**{key: value for key, value in one.items() if key in known}) for one in told["jobs"]]
            return {job.job_id: job for job in jobs}, int(told["next_id"])
        except FileNotFoundError:
            return {}, 1
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._path.replace(self._path.with_suffix(".unreadable"))
            return {}, 1

    def save(self, jobs: dict[int, Job], next_id: int) -> dict[int, Job]:
        """Write all and return what is still remembered: the oldest ended jobs beyond KEEP are dropped."""
        ended = sorted(key for key, job in jobs.items() if job.ended and not job.completing)
        dropped = set(ended[: max(0, len(ended) - KEEP)])
        kept = {key: job for key, job in jobs.items() if key not in dropped}
        beside = self._path.with_suffix(".new")
        with beside.open("w") as stream:
            json.dump({"next_id": next_id, "jobs": [job.record() for job in kept.values()]}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(self._path)
        return kept
