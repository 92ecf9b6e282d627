"""Rows that stand for tasks of arrays from outside which came and went unseen: accounting gives each its own.

Tasks that have not begun share one row. What leaves it without being shown in the queue keeps a row that has left the
queue and has no end, written in the commit that saw the change: accounting is asked for it like for any other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from django.db.models import Q

from apps.clusters.models import Cluster
from apps.core import clock
from apps.jobs.array_rules import compressed, tasks_in
from apps.jobs.models import Attempt
from apps.jobs.queue_models import QueueEntry
from apps.jobs.rules import is_final_state

#: The columns of a row by name, of a job as the scheduler tells it.
ColumnsOf = Callable[[object], dict[str, Any]]


def arrays_of_ours(attempt_ids: Iterable[int | None]) -> frozenset[int]:
    """Those of these attempts that are arrays of the portal, whose unseen tasks it finds by itself."""
    wanted = {pk for pk in attempt_ids if pk is not None}
    if not wanted:
        return frozenset()
    return frozenset(Attempt.objects.filter(pk__in=wanted).exclude(array="").values_list("pk", flat=True))


def tasks_lost(
    changed: Sequence[tuple[int, Mapping[str, Any], Mapping[str, Any]]], jobs: Collection[Any]
) -> list[tuple[int, tuple[int, ...]]]:
    """(pk of a shared row, tasks that left it and that the queue does not show) of rows (pk, before, now)."""
    found = []
    listed: dict[str, set[int]] = {}
    for pk, before, now in changed:
        waited = set(tasks_in(before["array_pending"]))
        still = set(tasks_in(now["array_pending"]))
        if not waited or (now["array_pending"] and not still):
            # Slurm cuts a long list off: nobody can say what is missing from it.
            continue
        left = waited - still - {now["array_task"]}
        if left and not listed:
            listed = defaultdict(set)
            for job in jobs:
                if job.array_id and job.array_task is not None:
                    listed[job.array_id].add(job.array_task)
        left -= listed.get(before["array_id"], set())
        if left:
            found.append((pk, tuple(sorted(left))))
    return found


def tasks_keep(lost: Sequence[tuple[int, tuple[int, ...]]]) -> int:
    """Write a row for the lost tasks of each shared row; how many. Arrays of the portal are left alone."""
    rows = {row.pk: row for row in QueueEntry.objects.filter(pk__in=[pk for pk, _tasks in lost])}
    ours = arrays_of_ours(row.attempt_id for row in rows.values())
    now = clock.now()
    new = []
    for pk, tasks in lost:
        row = rows.get(pk)
        if row is None or row.attempt_id in ours:
            continue
        row.pk = None
        row.array_task, row.array_pending, row.state, row.gone_at = None, compressed(tasks), "PENDING", now
        row.started_at = row.ended_at = row.charged_until_at = row.exit_code = row.signal = None
        row.nodes, row.final_tries = [], 0
        new.append(row)
    QueueEntry.objects.bulk_create(new, batch_size=200)
    return len(new)


def shares_settle(cluster: Cluster, rows: Sequence[QueueEntry], told: Collection[Any], columns_of: ColumnsOf) -> int:
    """Give each task that such rows stand for its own row where accounting tells its end; how many were written.

    ``told`` are jobs of accounting, of other jobs too. A task that has a row already loses its place in the shared one.
    What is left is asked for again.
    """
    written = 0
    for row in rows:
        tasks = set(tasks_in(row.array_pending))
        same = QueueEntry.objects.filter(cluster=cluster, array_id=row.array_id, user_name=row.user_name)
        own = same.filter(Q(submitted_at=row.submitted_at) | Q(gone_at__isnull=True), array_task__in=tasks)
        rest = tasks - set(own.values_list("array_task", flat=True))
        ends = {job.array_task: job for job in told if job.array_task in rest and _is_end_of(job, row)}
        made = []
        for job in ends.values():
            values = columns_of(job)
            extra = {"comment": row.comment, "array_pending": "", "user_name": row.user_name, "account": row.account}
            made.append(
                QueueEntry(
                    cluster=cluster,
                    scheduler_id=job.scheduler_id,
                    attempt_id=row.attempt_id,
                    gone_at=row.gone_at,
                    **{**values, **extra},
                )
            )
        QueueEntry.objects.bulk_create(made, batch_size=500)
        written += len(made)
        rest -= set(ends)
        if rest:
            QueueEntry.objects.filter(pk=row.pk).update(array_pending=compressed(rest), final_tries=row.final_tries + 1)
        else:
            QueueEntry.objects.filter(pk=row.pk).delete()
    return written


def _is_end_of(job: Any, row: QueueEntry) -> bool:
    """Whether a record of accounting is the end of a task of this very array."""
    if job.array_id != row.array_id or not is_final_state(job.state) or job.user_name not in ("", row.user_name):
        return False
    return job.ended_at is None or row.submitted_at is None or job.ended_at >= row.submitted_at
