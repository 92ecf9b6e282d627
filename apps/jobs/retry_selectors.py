"""Named reads of how an attempt failed, for the decision what follows it."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Max

from apps.checkpoints.selectors import newest_complete
from apps.core import clock
from apps.jobs.models import Attempt, Job, LogChunk, ProgressPoint
from apps.jobs.retry_rules import Failure
from apps.jobs.states import AttemptPhase
from apps.jobs.task_evictions import attempts_evicted_from

#: How much of the end of its output is read.
TAIL_CHUNKS, TAIL_BYTES = 24, 64 * 1024
_DAY = timedelta(hours=24)
#: Ends that count as failures, the machines' or the program's.
FAILURES = frozenset({AttemptPhase.NODE_FAILED, AttemptPhase.LOST, AttemptPhase.FAILED})


def log_tail(attempt: Attempt) -> str:
    """The last lines that the attempt's runners reported, of a bounded length."""
    rows = LogChunk.objects.filter(attempt=attempt).order_by("-id")
    return "".join(list(rows.values_list("text", flat=True)[:TAIL_CHUNKS])[::-1])[-TAIL_BYTES:]


def failure_of(job: Job, ended: Attempt, node: str = "") -> Failure:
    """All that the decision needs; ``node`` is the one to blame, where it is known."""
    tail = log_tail(ended) if ended.phase == AttemptPhase.FAILED else ""
    return Failure(
        phase=ended.phase,
        reason=ended.reason,
        exit_code=ended.exit_code,
        signal=ended.signal,
        log=tail,
        node=node,
        restarts=job.recoveries,
        most_restarts=job.max_recoveries,
        restarts_in_vain=_in_vain(job),
        same_step=_same_step(job, ended),
        is_array=bool(job.array),
    )


def _in_vain(job: Job) -> int:
    """Restarts of the last day after failures that resumed from where the newest checkpoint still is."""
    newest = newest_complete(job.series)
    attempts = {a.number: a for a in Attempt.objects.filter(job=job)}
    lost_tasks = attempts_evicted_from(job)
    since = clock.now() - _DAY
    return sum(
        1
        for number, attempt in attempts.items()
        if number > 1
        and attempt.created_at >= since
        and (attempts[number - 1].phase in FAILURES or attempts[number - 1].pk in lost_tasks)
        and attempt.resume_step == (newest.step if newest else None)
    )


def _same_step(job: Job, ended: Attempt) -> int | None:
    """The step at which this attempt and the one before it failed, on different nodes; None otherwise."""
    before = Attempt.objects.filter(job=job, number=ended.number - 1, phase__in=FAILURES).first()
    if before is None or not ended.nodes or set(before.nodes) == set(ended.nodes):
        return None
    rows = ProgressPoint.objects.filter(attempt__in=[before, ended]).values_list("attempt_id").annotate(top=Max("step"))
    steps: dict[int, int] = dict(rows)
    top = steps.get(ended.pk)
    return top if top is not None and steps.get(before.pk) == top else None
