"""Tasks of an array that began, ended and left the queue between two reads: their rows, as accounting tells them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from django.db import transaction

from apps.core import clock
from apps.jobs.array_rules import array_of, compressed, tasks_in
from apps.jobs.models import Attempt
from apps.jobs.queue_models import QueueEntry
from apps.jobs.queue_observations import COLUMNS, columns_of
from apps.jobs.rules import is_final_state

#: By how much the clocks of portal and cluster may differ.
_CLOCKS_DIFFER = timedelta(minutes=1)


def lacks_tasks(attempt: Attempt) -> bool:
    """Whether tasks of an array of which nothing is left in the queue have no row, nor one that stands for them."""
    rows = QueueEntry.objects.filter(attempt=attempt)
    known: set[int] = set()
    for task, pending, gone_at in rows.values_list("array_task", "array_pending", "gone_at"):
        if task is not None:
            known.add(task)
        elif gone_at is not None:
            tasks = tasks_in(pending)
            if not tasks:
                return False
            known.update(tasks)
    return not known.issuperset(array_of(attempt.array).tasks)


def tasks_observe(attempt: Attempt, told: Iterable[Any]) -> int:
    """Give every task that was never seen a row; how many were written. Nothing of the array may be in the queue.

    ``told`` are jobs of accounting (objects with attributes of the columns' names), of other jobs too. Tasks that it
    does not tell share one row without an end, for which accounting is asked again. Nothing is written while neither
    queue nor accounting ever knew any of them.
    """
    rows = QueueEntry.objects.filter(attempt=attempt)
    if rows.filter(array_task__isnull=True, gone_at__isnull=True).exists():
        return 0
    with transaction.atomic():
        seen = set(rows.filter(array_task__isnull=False).values_list("array_task", flat=True))
        wanted = [task for task in array_of(attempt.array).tasks if task not in seen]
        ended = {job.array_task: job for job in told if job.array_task in wanted and _is_end_of(job, attempt)}
        QueueEntry.objects.bulk_create([_row(attempt, job) for job in ended.values()], batch_size=500)
        rest = [task for task in wanted if task not in ended]
        shared = list(rows.filter(array_task__isnull=True, gone_at__isnull=False).order_by("pk"))
        if not rest:
            rows.filter(pk__in=[row.pk for row in shared]).delete()
        elif shared:
            _share(shared, rest)
        elif (sibling := rows.order_by("pk").last()) is not None:
            _stand_in(sibling, attempt, rest)
            return len(ended) + 1
    return len(ended)


def _is_end_of(job: Any, attempt: Attempt) -> bool:
    """Whether a record is of the end of a task of this very array, not of an earlier one under the same number."""
    if job.array_id != attempt.scheduler_id or job.comment not in ("", attempt.uid) or not is_final_state(job.state):
        return False
    since = attempt.submit_started_at
    return since is None or job.ended_at is None or job.ended_at >= since - _CLOCKS_DIFFER


def _row(attempt: Attempt, job: Any) -> QueueEntry:
    columns = dict(zip(COLUMNS, columns_of(job), strict=True))
    return QueueEntry(
        cluster=attempt.job.cluster,
        scheduler_id=job.scheduler_id,
        attempt=attempt,
        gone_at=clock.now(),
        **{**columns, "comment": attempt.uid, "array_pending": ""},
    )


def _share(shared: Sequence[QueueEntry], rest: Sequence[int]) -> None:
    """The first of these rows stands for the rest, the others for nothing."""
    text = compressed(rest)
    if shared[0].array_pending != text:
        QueueEntry.objects.filter(pk=shared[0].pk).update(array_pending=text)
    QueueEntry.objects.filter(pk__in=[row.pk for row in shared[1:]]).delete()


def _stand_in(sibling: QueueEntry, attempt: Attempt, rest: Sequence[int]) -> None:
    """One row for tasks that nothing tells of yet: what all tasks have in common, and no end."""
    common = ("name", "user_name", "account", "partition", "qos", "gpus", "cpus", "memory_mib", "submitted_at")
    QueueEntry.objects.create(
        cluster=attempt.job.cluster,
        scheduler_id=attempt.scheduler_id,
        attempt=attempt,
        comment=attempt.uid,
        array_id=attempt.scheduler_id,
        array_pending=compressed(rest),
        state="PENDING",
        gone_at=clock.now(),
        time_limit_min=sibling.time_limit_min,
        **{name: getattr(sibling, name) for name in common},
    )
