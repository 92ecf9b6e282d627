"""Heterogeneous jobs as slurmctld keeps them: one record a part, all started together, the script in the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sandbox.slurm.hostlists import compress
from sandbox.slurm.model import Job, Refused
from sandbox.world import Node


def bodies(body: Any) -> tuple[list[Any], bool]:
    """The bodies of a submit, one a part, and whether it is of a heterogeneous job."""
    jobs = body.get("jobs") if isinstance(body, Mapping) else None
    if not isinstance(jobs, list) or not jobs:
        return [body], False
    return [{**{k: v for k, v in body.items() if k != "jobs"}, "job": one} for one in jobs], True


def begin(parts: Sequence[Job]) -> None:
    """Make records parts of one job. Raises Refused for arrays."""
    for offset, part in enumerate(parts):
        if part.array_pending:
            raise Refused(2081)
        part.het_id, part.het_offset = parts[0].job_id, offset


def is_further(job: Job) -> bool:
    """Whether it is a part behind the first: it starts and ends with that one."""
    return bool(job.het_id) and job.het_id != job.job_id


def family(job: Job, jobs: Iterable[Job]) -> list[Job]:
    """All parts of its job in their order; itself alone where it is none."""
    if not job.het_id:
        return [job]
    return sorted((one for one in jobs if one.het_id == job.het_id), key=lambda one: one.het_offset)


def place(parts: Sequence[Job], free_for: Callable[[Job], list[Node]]) -> bool:
    """Give every part its nodes, or none of them any; the parts placed so far count as taken for the next."""
    waiting = [part for part in parts if part.state == "PENDING"]
    for part in waiting:
        found = free_for(part)
        if len(found) < part.node_count or part.held:
            for one in waiting:
                one.state, one.nodes = "PENDING", []
            return False
        part.state, part.nodes = "RUNNING", [node.name for node in found[: part.node_count]]
    return True


def environment(parts: Sequence[Job]) -> dict[str, str]:
    """What the script finds of the parts."""
    told = {"SLURM_HET_SIZE": str(len(parts))}
    for part in parts:
        told[f"SLURM_JOB_ID_HET_GROUP_{part.het_offset}"] = str(part.job_id)
        told[f"SLURM_JOB_NODELIST_HET_GROUP_{part.het_offset}"] = compress(part.nodes)
    return told


def follow(part: Job, leader: Job | None, now: float) -> bool:
    """A further part ends as the first does; True when it ended now."""
    if leader is not None and not leader.ended:
        return False
    part.state = leader.state if leader is not None else "CANCELLED"
    part.reason = leader.reason if leader is not None else "None"
    part.exit_status = leader.exit_status if leader is not None else 0
    part.ended_at = leader.ended_at if leader is not None else now
    return True
