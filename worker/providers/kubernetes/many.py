"""Workloads that are several jobs, and several workloads that are one: arrays task by task, and manifests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from worker.providers import values as v
from worker.providers.kubernetes import names
from worker.providers.kubernetes.decode import decoded, demand_of_work, index_of
from worker.providers.kubernetes.ends import Scene, lately
from worker.providers.kubernetes.pod_sets import as_map, at
from worker.providers.kubernetes.reason_values import Reason
from worker.providers.kubernetes.reason_values import text as _
from worker.providers.kubernetes.works import Thing, Work
from worker.providers.workload_values import PART_FAILED

#: What of several parts counts first.
_WORST = ("NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED", "FAILED", "CANCELLED")
_OPEN = ("PENDING", "RUNNING", "COMPLETING")
_PART_FAILED = Reason(PART_FAILED, _("A part of it failed; what still runs of it is being ended."))


def jobs_of(work: Work, scene: Scene) -> list[v.SchedulerJob]:
    """The records of one workload: one, or for an array of ours one a task that has begun and one for the rest."""
    if work.parts:
        return [combined(work, [decoded(part, scene) for part in work.parts])]
    job = decoded(work, scene)
    tasks = at(work.root, "metadata", "annotations", names.ARRAY) if work.root is not None else None
    return _tasks(work, job, str(tasks), scene) if tasks else [job]


def index_of_task(work: Work, task: int) -> int | None:
    """Which pod of an array runs a task, by its index; None where the array has no such task."""
    written = str(at(work.root, "metadata", "annotations", names.ARRAY) or "")
    tasks = _numbers(written.partition("%")[0])
    return tasks.index(task) if task in tasks else None


def combined(whole: Work, parts: Sequence[v.SchedulerJob]) -> v.SchedulerJob:
    """The workloads of one manifest as one job: over when all are, failed when one is and nothing runs any more."""
    states = [part.state for part in parts]
    open_parts = [part for part in parts if part.state in _OPEN]
    leading = next((part for worst in _WORST for part in parts if part.state == worst), None)
    if open_parts and leading is None:
        running = [part for part in open_parts if part.state != "PENDING"]
        leading = running[0] if running else open_parts[0]
        if "COMPLETED" in states and not running:
            leading = replace(leading, state="RUNNING")
    elif leading is None:
        leading = parts[0]
    elif open_parts:
        leading = replace(leading, state="COMPLETING", reason=PART_FAILED, why=_PART_FAILED.text, exit_code=None)
    started = [part.started_at for part in parts if part.started_at is not None]
    ended = [part.ended_at for part in parts if part.ended_at is not None]
    is_over = leading.state not in _OPEN
    return replace(
        leading,
        scheduler_id=whole.id,
        comment=whole.attempt,
        name=str(as_map(whole.head.get("annotations")).get(f"{names.PREFIX}/name") or whole.name),
        nodes=tuple(dict.fromkeys(node for part in parts for node in part.nodes)),
        node_count=sum(part.node_count for part in parts),
        gpus=sum(part.gpus for part in parts),
        cpus=sum(part.cpus for part in parts),
        memory_mib=sum(part.memory_mib for part in parts),
        started_at=min(started, default=None),
        ended_at=max(ended, default=None) if is_over else None,
    )


def _tasks(work: Work, whole: v.SchedulerJob, written: str, scene: Scene) -> list[v.SchedulerJob]:
    """An array as the house knows arrays: a record a task that began, and one for all that have not."""
    spelled, _percent, limit = written.partition("%")
    tasks = _numbers(spelled)
    by_index: dict[int, list[Thing]] = {}
    for pod in (*work.pods, *lately(work)):
        by_index.setdefault(index_of(pod), []).append(pod)
    done = set(_numbers(str(at(work.root, "status", "completedIndexes") or "")))
    failed = set(_numbers(str(at(work.root, "status", "failedIndexes") or "")))
    each = max(len(tasks), 1)
    at_once = demand_of_work(work).pods or each
    one_of = replace(
        whole, gpus=whole.gpus // at_once, cpus=whole.cpus // at_once, memory_mib=whole.memory_mib // at_once
    )
    found: list[v.SchedulerJob] = []
    waiting: list[int] = []
    is_over = whole.state not in _OPEN
    for index, task in enumerate(tasks):
        pods = by_index.get(index, [])
        if not pods and index not in done and index not in failed and not is_over:
            waiting.append(task)
            continue
        one = Work(work.namespace, "Task", work.name, pods=[p for p in pods if p in work.pods])
        one.lost = [pod for pod in pods if pod not in one.pods]
        row = replace(
            decoded(one, scene),
            gpus=one_of.gpus,
            cpus=one_of.cpus,
            memory_mib=one_of.memory_mib,
            array_id=whole.scheduler_id,
            array_task=task,
        )
        if index in done:
            row = replace(row, state="COMPLETED", exit_code=0, why=None, reason="")
        elif index in failed and row.state in (*_OPEN, "CANCELLED"):
            row = replace(row, state="FAILED")
        elif is_over and row.state in (*_OPEN, "CANCELLED"):
            row = replace(row, state="CANCELLED" if whole.state == "COMPLETED" else whole.state, reason=whole.reason)
        if row.state not in _OPEN and row.ended_at is None:
            row = replace(row, ended_at=whole.ended_at)
        found.append(
            replace(
                row,
                scheduler_id=f"{whole.scheduler_id}_{task}",
                comment=whole.comment,
                name=whole.name,
                account=whole.account,
                partition=whole.partition,
                submitted_at=whole.submitted_at,
                eligible_at=whole.eligible_at,
                time_limit_min=whole.time_limit_min,
                priority=whole.priority,
                node_count=1,
            )
        )
    if waiting:
        pending = _ranges(waiting) + (f"%{limit}" if limit else "")
        # What waits has neither begun nor a node, whatever the tasks before it did.
        rest = replace(one_of, state="PENDING", array_id=whole.scheduler_id, array_pending=pending, node_count=1)
        found.append(replace(rest, nodes=(), started_at=None, exit_code=None, signal=None))
    return found


def _numbers(written: str) -> list[int]:
    found: list[int] = []
    for part in written.split(","):
        first, _sep, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found += range(int(first), int(last or first) + 1)
    return found


def _ranges(numbers: Sequence[int]) -> str:
    parts: list[str] = []
    first = last = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == last + 1:
            last = number
            continue
        parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = number
    return ",".join(parts)
