"""Holding, releasing and changing a job as slurmctld does it, and the settings that bound it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandbox.slurm.model import Job, Refused


@dataclass
class Settings:
    """How this cluster is configured. ``enforce_limits`` is Slurm's EnforcePartLimits=ALL."""

    max_time_min: int = 7 * 24 * 60
    default_time_min: int = 60
    enforce_limits: bool = True
    min_job_age_s: float = 300.0
    kill_wait_s: float = 5.0
    requeue_delay_s: float = 10.0
    operators: frozenset[str] = frozenset({"root", "slurm", "quarterdeck"})


@dataclass(frozen=True)
class Change:
    """What is asked for; None stays as it is."""

    hold: bool | None = None
    time_limit_min: int | None = None
    partition: str | None = None
    nice: int | None = None


def _number(value: Any) -> int | None:
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) else None
    return None if value is None else int(value)


def read_change(body: Any) -> Change:
    """The body of an update in either dialect. Raises ValueError or TypeError for one that is none."""
    found = body if isinstance(body, Mapping) else {}
    partition = found.get("partition")
    return Change(
        hold=found.get("hold"),
        time_limit_min=_number(found.get("time_limit")),
        partition=None if partition is None else str(partition),
        nice=_number(found.get("nice")),
    )


def apply_change(job: Job | None, user: str, change: Change, settings: Settings, partitions: Mapping[str, Any]) -> None:
    """Change the job, or nothing of it. Raises Refused as slurmctld does."""
    if job is None:
        raise Refused(2017)
    may_all = user in settings.operators
    if job.user != user and not may_all:
        raise Refused(2002)
    if job.ended:
        raise Refused(2084)
    limit = change.time_limit_min
    # Only operators give a running job more time, or any job more than the partition allows.
    most = settings.max_time_min if job.state == "PENDING" else min(job.time_limit_min, settings.max_time_min)
    if limit is not None and not may_all and limit > most:
        raise Refused(2002)
    if change.nice is not None and change.nice < 0 and not may_all:
        raise Refused(2002)
    if change.hold is False and job.held == "admin" and not may_all:
        raise Refused(2002)
    if change.partition is not None:
        if any(name not in partitions for name in change.partition.split(",")):
            raise Refused(2000)
        if change.partition != job.partition and job.state != "PENDING":
            raise Refused(2020)
        job.partition = change.partition
    if limit is not None:
        job.time_limit_min = limit
    if change.nice is not None:
        # Slurm forgets the hold of a job whose nice changes.
        job.nice, job.held = change.nice, ""
    if change.hold is not None:
        job.held = ("user" if job.user == user else "admin") if change.hold else ""
        if job.state == "PENDING":
            job.reason = "None" if not job.held else "JobHeldUser" if job.held == "user" else "JobHeldAdmin"
