"""Job arrays as slurmctld keeps them: one record for all tasks that wait, one more for each that began."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from sandbox.slurm.model import Job, Refused

#: Slurm's default MaxArraySize: task numbers below it.
MAX_ARRAY_SIZE = 1001
_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


def read_tasks(text: str, most: int = MAX_ARRAY_SIZE) -> tuple[list[int], int]:
    """Task numbers and how many may run at once (0: any number). Raises Refused."""
    numbers, _percent, limit = text.strip("[]").partition("%")
    found: set[int] = set()
    for part in numbers.split(","):
        match = _PART.fullmatch(part)
        if match is None or (limit and not limit.isdigit()):
            raise Refused(2081)
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step < 1 or last >= most:
            raise Refused(2081)
        found |= set(range(first, last + 1, step))
    return sorted(found), int(limit or 0)


def written(tasks: Iterable[int], limit: int) -> str:
    """As Slurm writes the tasks that wait: "3-9,12%2"."""
    parts: list[list[int]] = []
    for task in tasks:
        if parts and parts[-1][1] == task - 1:
            parts[-1][1] = task
        else:
            parts.append([task, task])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
    return f"{text}%{limit}" if limit and text else text


def begin(job: Job) -> None:
    """Make a new job the record of an array's waiting tasks, where it is one. Raises Refused."""
    if job.array_pending:
        tasks, limit = read_tasks(job.array_pending)
        job.array_id, job.array_limit, job.array_pending = job.job_id, limit, written(tasks, limit)


def next_task(job: Job, new_id: int) -> tuple[Job, bool]:
    """The record of the next task to start; True where it is a new one beside the waiting ones."""
    tasks, limit = read_tasks(job.array_pending, 10**9)
    if len(tasks) == 1:
        job.array_task, job.array_pending = tasks[0], ""
        return job, False
    task = replace(job, job_id=new_id, array_task=tasks[0], array_pending="", excluded=list(job.excluded))
    job.array_pending = written(tasks[1:], limit)
    return task, True


def without(job: Job, task: int, new_id: int) -> Job | None:
    """Take one waiting task out of the record; its own record, or None where it does not wait there."""
    tasks, limit = read_tasks(job.array_pending, 10**9) if job.array_pending else ([], 0)
    if task not in tasks:
        return None
    if len(tasks) == 1:
        job.array_task, job.array_pending = task, ""
        return job
    job.array_pending = written([t for t in tasks if t != task], limit)
    return replace(job, job_id=new_id, array_task=task, array_pending="", excluded=list(job.excluded))


def environment(job: Job) -> dict[str, str]:
    """What a task finds in its environment."""
    if job.array_task is None:
        return {}
    return {"SLURM_ARRAY_JOB_ID": str(job.array_id), "SLURM_ARRAY_TASK_ID": str(job.array_task)}
