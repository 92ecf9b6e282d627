"""Named reads of job arrays: each task as the scheduler last showed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Q
from django.utils.translation import gettext_noop as _

from apps.core.said import Said, said
from apps.jobs.action_models import JobAction
from apps.jobs.action_states import ActionKind, ActionPhase
from apps.jobs.array_rules import AGAIN, MAX_TASKS, array_of, tasks_in
from apps.jobs.models import Attempt, Job
from apps.jobs.queue_models import QueueEntry
from apps.jobs.queue_observations import FINAL_TRIES
from apps.jobs.rules import is_final_state

#: Failed ends of a task for which a faulty node may be to blame.
_MAY_BE_THE_NODES = frozenset({"FAILED", "OUT_OF_MEMORY"})
#: What Slurm tells has whole seconds, and clocks differ a little; what was ended closer to a stop counts as stopped.
_CLOCKS_DIFFER = timedelta(seconds=3)
_COLUMNS = (
    "id",
    "attempt__number",
    "scheduler_id",
    "array_task",
    "array_pending",
    "state",
    "reason",
    "nodes",
    "started_at",
    "ended_at",
    "exit_code",
    "signal",
    "gone_at",
)


@dataclass(frozen=True)
class Task:
    """One task of an array in its newest attempt; ``scheduler_id`` is empty while it has no number of its own."""

    number: int
    attempt: int
    state: str = ""
    reason: str = ""
    nodes: list[str] = field(default_factory=list)
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    signal: int | None = None
    scheduler_id: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether its state will not change any more in this attempt."""
        return is_final_state(self.state)

    @property
    def may_run_again(self) -> bool:
        """Whether it began and has not succeeded."""
        return self.state not in ("", "PENDING", "COMPLETED")


def tasks_of(job: Job) -> list[Task]:
    """Every task of an array job in order, each from the newest attempt that had it. Two queries."""
    wanted = array_of(job.array)
    found: dict[int, Task] = {}
    numbers = dict(Attempt.objects.filter(job=job).order_by("number").values_list("number", "array"))
    for number, text in numbers.items():
        for task in array_of(text or job.array).tasks:
            found[task] = Task(task, number)
    for row in _rows(job):
        for task in _numbers(row["array_task"], row["array_pending"]):
            known = found.get(task)
            if known is None or row["attempt__number"] >= known.attempt:
                found[task] = _task(task, row)
    return [found[task] for task in wanted.tasks if task in found]


def _rows(job: Job) -> list[dict[str, Any]]:
    """Rows of its attempts, the oldest first: what comes later is newer."""
    rows = QueueEntry.objects.filter(attempt__job=job).order_by("attempt__number", "id")
    return list(rows.values(*_COLUMNS))


def _numbers(task: object, pending: object) -> tuple[int, ...]:
    return (task,) if isinstance(task, int) else tasks_in(str(pending or ""))


def _task(number: int, row: dict[str, Any]) -> Task:
    own = {name: row[name] for name in ("state", "reason", "nodes", "started_at", "ended_at", "exit_code", "signal")}
    scheduler_id = str(row["scheduler_id"]) if row["array_task"] is not None else ""
    return Task(number, int(str(row["attempt__number"])), scheduler_id=scheduler_id, **own)


def _count(task: object, pending: object) -> int:
    if task is not None or not pending:
        return 1
    # Slurm cuts a long list of tasks off ("1,3,5,..."): then it stands for all that are not told of elsewhere.
    return len(tasks_in(str(pending))) or MAX_TASKS


@dataclass(frozen=True)
class Tally:
    """What an attempt's tasks are doing, all together."""

    states: dict[str, int]
    started_at: datetime | None
    ended_at: datetime | None
    nodes: list[str]
    reason: str
    exit_code: int | None
    signal: int | None
    expected_start_at: datetime | None
    time_limit_min: int | None


def tally_of(attempt: Attempt) -> Tally:
    """Counts of an attempt's tasks by state, and the first start, the last end and the first failure. One query."""
    states: Counter[str] = Counter()
    started: list[datetime] = []
    ended: list[datetime] = []
    nodes: set[str] = set()
    reason, code, signal, expected, limit = "", None, None, None, None
    rows = QueueEntry.objects.filter(attempt=attempt).order_by("id")
    names = (*_COLUMNS[3:], "expected_start_at", "time_limit_min", "final_tries")
    for row in rows.values(*names).iterator(chunk_size=2000):
        state = str(row["state"])
        if row["gone_at"] is not None and not is_final_state(state):
            # It left the queue and its end is not known yet; where accounting never tells it, it did not succeed.
            state = "COMPLETING" if row["final_tries"] < FINAL_TRIES else "FAILED"
        states[state] += _count(row["array_task"], row["array_pending"])
        limit = row["time_limit_min"] or limit
        if row["started_at"]:
            started.append(row["started_at"])
        if row["ended_at"]:
            ended.append(row["ended_at"])
        if state == "RUNNING":
            nodes |= set(row["nodes"])
        elif state == "PENDING":
            reason, expected = reason or row["reason"], expected or row["expected_start_at"]
        elif state == "FAILED" and code is None and signal is None:
            code, signal = row["exit_code"], row["signal"]
    return Tally(
        states=dict(states),
        started_at=min(started, default=None),
        ended_at=max(ended, default=None),
        nodes=sorted(nodes),
        reason=reason,
        exit_code=code,
        signal=signal,
        expected_start_at=expected,
        time_limit_min=limit,
    )


def tasks_to_run_again(
    job: Job, ended: Attempt, failed_node: str = "", *, left_out: Collection[int] = ()
) -> tuple[int, ...]:
    """Tasks of an ended attempt that the next one repeats: those that neither succeeded nor failed by themselves.

    Where the attempt was stopped as a whole, all that had not ended by then. What failed on ``failed_node`` is that
    node's failure; a task that a person cancelled stays cancelled, and so do those ``left_out``. All of them where
    nothing is known of any; none where nothing is left to repeat.
    """
    again = AGAIN | {"CANCELLED", ""} if ended.stop_reason else AGAIN
    wishes = _wishes_of_tasks(job)
    asked = set(tasks_asked_again(job, ended))

    def is_wanted(task: Task) -> bool:
        if task.number in left_out:
            return False
        if task.number in asked:
            return True
        wish = wishes.get(task.number)
        cancelled = wish is not None and wish.kind == ActionKind.CANCEL_TASK
        if task.attempt != ended.number or cancelled or _was_ended_by_hand(task, ended):
            return False
        of_node = task.state in _MAY_BE_THE_NODES and bool(failed_node) and failed_node in task.nodes
        return of_node or task.state in again or not task.has_ended

    return tuple(task.number for task in tasks_of(job) if is_wanted(task))


def tasks_asked_again(job: Job, ended: Attempt) -> dict[int, str]:
    """Tasks of an attempt that are to run again and did not succeed in it, each with the node whose fault it was.

    Where a person wants it, the node is "".
    """
    wishes = _wishes_of_tasks(job)
    wanted = {n: w.node for n, w in wishes.items() if w.kind == ActionKind.REQUEUE_TASK and w.attempt == ended.pk}
    if not wanted:
        return {}
    return {
        task.number: wanted[task.number]
        for task in tasks_of(job)
        if task.number in wanted and task.attempt == ended.number and task.state != "COMPLETED"
    }


class _Wish(NamedTuple):
    kind: str
    attempt: int
    node: str


def _wishes_of_tasks(job: Job) -> dict[int, _Wish]:
    """Of each task the last that someone asked about it alone, with the attempt's pk; refused ones left out.

    A cancel counts once it was sent: until then the task is none that ended by it.
    """
    rows = JobAction.objects.filter(job=job).exclude(phase__in=[ActionPhase.REFUSED, ActionPhase.UNKNOWN])
    rows = rows.filter(
        Q(kind=ActionKind.REQUEUE_TASK) | Q(kind=ActionKind.CANCEL_TASK, phase=ActionPhase.DONE)
    ).order_by("id")
    told = rows.values_list("kind", "parameters", "attempt_id")
    return {
        int(given["task"]): _Wish(str(kind), int(attempt or 0), str(given.get("node", "")))
        for kind, given, attempt in told
    }


def _was_ended_by_hand(task: Task, ended: Attempt) -> bool:
    """Whether a task was cancelled before the attempt was stopped: by someone on the cluster, not by the stop."""
    if task.state != "CANCELLED" or task.ended_at is None:
        return False
    return ended.stop_decided_at is not None and task.ended_at < ended.stop_decided_at - _CLOCKS_DIFFER


def tasks_words(attempt: Attempt) -> Said:
    """How many of an attempt's tasks did not succeed."""
    states = tally_of(attempt).states
    failed = attempt.tasks - states.get("COMPLETED", 0)
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if state != "COMPLETED")
    text = _("%(failed)s of %(tasks)s tasks did not succeed: %(told)s")
    return said(text, failed=failed, tasks=attempt.tasks, told=told)


def worst_of(job: Job) -> Task | None:
    """A task that did not succeed in its newest attempt, the lowest number first; None where all did."""
    return next((task for task in tasks_of(job) if task.state != "COMPLETED"), None)
