"""The mirror of a scheduler's queue: what the collector writes, and only where it differs."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from apps.clusters.models import Cluster
from apps.core import clock
from apps.jobs.array_rules import tasks_in
from apps.jobs.models import Attempt
from apps.jobs.queue_models import QueueEntry
from apps.jobs.rules import is_final_state
from apps.jobs.shared_rows import arrays_of_ours, tasks_keep, tasks_lost

#: What the scheduler tells of a job, by the names of the columns.
COLUMNS = (
    "comment",
    "array_id",
    "array_task",
    "array_pending",
    "het_id",
    "het_offset",
    "name",
    "user_name",
    "account",
    "partition",
    "qos",
    "reservation",
    "state",
    "reason",
    "priority",
    "nodes",
    "node_count",
    "gpus",
    "cpus",
    "memory_mib",
    "dependency",
    "features",
    "submitted_at",
    "eligible_at",
    "started_at",
    "ended_at",
    "expected_start_at",
    "time_limit_min",
    "exit_code",
    "signal",
)
#: Columns that accounting may correct once a job left the queue.
_FINAL = ("state", "reason", "nodes", "started_at", "ended_at", "exit_code", "signal")
_LENGTHS = {
    column.name: column.max_length for column in QueueEntry._meta.concrete_fields if getattr(column, "max_length", None)
}
_CHUNK = 200
#: States in which a job has not ended.
UNFINISHED = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING")
#: How long rows of jobs that left the queue are kept.
KEEP_GONE = timedelta(days=30)
#: Accounting that did not know a job's end is asked again after so long, doubling, so many times.
FINAL_RETRY = timedelta(seconds=30)
FINAL_TRIES = 10


def _fitted(name: str, value: Any) -> Any:
    """A value as its column takes it."""
    if isinstance(value, str):
        return value.replace("\x00", "")[: _LENGTHS.get(name)]
    if isinstance(value, tuple):
        return list(value)
    return value


def columns_of(seen: object) -> tuple[Any, ...]:
    """The columns of a job as the scheduler tells it (any object with attributes of their names)."""
    return tuple(_fitted(name, getattr(seen, name)) for name in COLUMNS)


def named_of(seen: object) -> dict[str, Any]:
    """The same by name."""
    return dict(zip(COLUMNS, columns_of(seen), strict=True))


@dataclass(slots=True)
class Kept:
    """One live row as it is in the database; ``seen`` is the very value it was written from."""

    pk: int
    columns: tuple[Any, ...]
    attempt_id: int | None
    seen: object = None


@dataclass
class Mirror:
    """The live rows of one cluster in memory, good while the cluster's ``epoch`` is the one they were read under."""

    epoch: str
    rows: dict[str, Kept] = field(default_factory=dict)


@dataclass(frozen=True)
class Changes:
    """What one comparison wrote. ``left`` are the keys that the queue no longer shows; they are not written yet."""

    created: int
    updated: int
    left: tuple[str, ...]


def epoch_of(cluster: Cluster) -> str:
    """Under which writing the live rows stand now."""
    return str(cluster.queue_reading.get("epoch") or "")


def mirror_load(cluster: Cluster) -> Mirror:
    """The live rows as the database has them."""
    rows = QueueEntry.objects.filter(cluster=cluster, gone_at__isnull=True)
    found = {
        key: Kept(pk, tuple(columns), attempt_id)
        for pk, key, attempt_id, *columns in rows.values_list("pk", "scheduler_id", "attempt_id", *COLUMNS).iterator(
            chunk_size=2000
        )
    }
    return Mirror(epoch_of(cluster), found)


def _turn_epoch(cluster: Cluster, mirror: Mirror) -> str:
    """A new epoch, in the transaction that writes rows: another process's memory of them is out of date from here."""
    epoch = uuid.uuid4().hex
    cluster.queue_reading = {**cluster.queue_reading, "epoch": epoch}
    Cluster.objects.filter(pk=cluster.pk).update(queue_reading=cluster.queue_reading)
    return epoch


def _attempts_by_comment(cluster: Cluster, comments: Collection[str]) -> dict[str, tuple[int, str]]:
    """Attempts of this cluster by uid, as (pk, scheduler id)."""
    found: dict[str, tuple[int, str]] = {}
    wanted = sorted(comment for comment in comments if 0 < len(comment) <= 40)
    for start in range(0, len(wanted), 500):
        rows = Attempt.objects.filter(job__cluster=cluster, uid__in=wanted[start : start + 500])
        found |= {uid: (pk, key) for uid, pk, key in rows.values_list("uid", "pk", "scheduler_id")}
    return found


def _is_reused(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the number now means another job: submitted at another time (as a requeue is), and not the same job."""
    return old["submitted_at"] != new["submitted_at"] and any(
        old[name] != new[name] for name in ("user_name", "comment", "name")
    )


def entries_observe(cluster: Cluster, mirror: Mirror, jobs: Mapping[str, object]) -> Changes:
    """Compare the whole queue with the mirror and write what differs, in one commit.

    ``jobs`` are all jobs of the queue by scheduler id. Equal values cost a comparison and no statement.
    """
    new: list[tuple[str, object, tuple[Any, ...]]] = []
    changed: list[tuple[str, object, tuple[Any, ...]]] = []
    reused: list[str] = []
    for key, seen in jobs.items():
        kept = mirror.rows.get(key)
        if kept is None:
            new.append((key, seen, columns_of(seen)))
        elif kept.seen is not seen:
            columns = columns_of(seen)
            if columns == kept.columns:
                kept.seen = seen
            elif _is_reused(_named(kept.columns), _named(columns)):
                reused.append(key)
                new.append((key, seen, columns))
            else:
                changed.append((key, seen, columns))
    left = tuple(key for key in mirror.rows if key not in jobs)
    if not new and not changed:
        return Changes(0, 0, left)
    ours = _attempts_by_comment(cluster, {_named(columns)["comment"] for _key, _seen, columns in new})
    with transaction.atomic():
        if reused:
            pks = [mirror.rows[key].pk for key in reused]
            QueueEntry.objects.filter(pk__in=pks).update(gone_at=clock.now())
        rows = [_row(cluster, key, columns, ours) for key, _seen, columns in new]
        QueueEntry.objects.bulk_create(rows, batch_size=500)
        moved = ((mirror.rows[key].pk, _named(mirror.rows[key].columns), _named(now)) for key, _seen, now in changed)
        lost = tasks_lost([(pk, before, now) for pk, before, now in moved if before["array_pending"]], jobs.values())
        if lost:
            tasks_keep(lost)
        _update_rows(mirror, changed)
        epoch = _turn_epoch(cluster, mirror)
    mirror.epoch = epoch
    for row, (key, seen, columns) in zip(rows, new, strict=True):
        mirror.rows[key] = Kept(row.pk, columns, row.attempt_id, seen)
    for key, seen, columns in changed:
        kept = mirror.rows[key]
        kept.columns, kept.seen = columns, seen
    return Changes(len(new), len(changed), left)


def _named(columns: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(COLUMNS, columns, strict=True))


def _row(cluster: Cluster, key: str, columns: tuple[Any, ...], ours: Mapping[str, tuple[int, str]]) -> QueueEntry:
    named = _named(columns)
    attempt_id = None
    found = ours.get(named["comment"])
    # The comment alone is anybody's to write: the number must be the one that our submit was given.
    if found is not None and found[1] and found[1] in (key, named["array_id"], named["het_id"]):
        attempt_id = found[0]
    return QueueEntry(cluster=cluster, scheduler_id=key, attempt_id=attempt_id, **named)


def _update_rows(mirror: Mirror, changed: Sequence[tuple[str, object, tuple[Any, ...]]]) -> None:
    """One statement for all rows in which the same columns differ."""
    groups: dict[tuple[str, ...], list[QueueEntry]] = defaultdict(list)
    for key, _seen, columns in changed:
        kept = mirror.rows[key]
        names = tuple(name for name, old, now in zip(COLUMNS, kept.columns, columns, strict=True) if old != now)
        named = _named(columns)
        groups[names].append(QueueEntry(pk=kept.pk, **{name: named[name] for name in names}))
    for names, rows in groups.items():
        if len(rows) == 1:
            QueueEntry.objects.filter(pk=rows[0].pk).update(**{name: getattr(rows[0], name) for name in names})
        else:
            QueueEntry.objects.bulk_update(rows, names, batch_size=_CHUNK)


def entries_link(cluster: Cluster, mirror: Mirror, attempts: Iterable[Attempt]) -> int:
    """Tie rows to attempts whose number was saved after the row was made; how many."""
    uids = {attempt.uid: attempt for attempt in attempts if attempt.scheduler_id}
    if not uids:
        return 0
    comment, array, het = COLUMNS.index("comment"), COLUMNS.index("array_id"), COLUMNS.index("het_id")
    found: dict[int, list[int]] = defaultdict(list)
    for key, kept in mirror.rows.items():
        if kept.attempt_id is None and kept.columns[comment] in uids:
            attempt = uids[kept.columns[comment]]
            if attempt.scheduler_id in (key, kept.columns[array], kept.columns[het]):
                kept.attempt_id = attempt.pk
                found[attempt.pk].append(kept.pk)
    for attempt_id, pks in found.items():
        QueueEntry.objects.filter(pk__in=pks, attempt__isnull=True).update(attempt_id=attempt_id)
    return sum(len(pks) for pks in found.values())


def has_ended(kept: Kept) -> bool:
    """Whether the row already holds the end of its job: it was seen in the queue."""
    return is_final_state(_named(kept.columns)["state"])


def entries_gone(
    cluster: Cluster, mirror: Mirror, left: Sequence[str], finals: Mapping[str, object], *, asked: bool
) -> int:
    """Jobs left the queue: their rows end, with the final state where accounting tells it; how many.

    ``asked`` says that accounting answered: where it did not, it is asked again later without a try being counted.
    """
    if not left:
        return 0
    now = clock.now()
    shared = {key for key in left if len(tasks_in(_named(mirror.rows[key].columns)["array_pending"])) > 1}
    ours = arrays_of_ours(mirror.rows[key].attempt_id for key in shared)
    with transaction.atomic():
        for key in left:
            kept = mirror.rows[key]
            columns: dict[str, Any] = {"gone_at": now}
            named = _named(kept.columns)
            final = finals.get(key)
            if key in shared and kept.attempt_id not in ours:
                # It stood for several tasks, of which one record cannot speak.
                pass
            elif not is_final_state(named["state"]):
                columns |= _final_columns(named, final)
                if "state" not in columns and asked:
                    columns["final_tries"] = 1
            QueueEntry.objects.filter(pk=kept.pk).update(**columns)
        epoch = _turn_epoch(cluster, mirror)
    mirror.epoch = epoch
    for key in left:
        del mirror.rows[key]
    return len(left)


def _final_columns(known: Mapping[str, Any], final: object | None) -> dict[str, Any]:
    """What accounting says of the end of this very job, or nothing where it speaks of another or of no end."""
    if final is None:
        return {}
    told = _named(columns_of(final))
    if not is_final_state(told["state"]) or told["user_name"] not in ("", known["user_name"]):
        return {}
    if told["comment"] not in ("", known["comment"]):
        return {}
    # A record from before this job was submitted is of an earlier job under the same number.
    if told["ended_at"] is not None and known["submitted_at"] is not None and told["ended_at"] < known["submitted_at"]:
        return {}
    columns = {name: told[name] for name in _FINAL if told[name] not in (None, "", [])} | {"expected_start_at": None}
    if known["array_task"] is None and told["array_task"] is not None:
        # The row stood for all that waited; the array's own number is that of the one that began last.
        if told["array_task"] not in (tasks_in(known["array_pending"]) or (told["array_task"],)):
            return {}
        columns |= {"array_task": told["array_task"], "array_pending": ""}
    return columns


def entries_without_end(cluster: Cluster, limit: int = 100) -> list[QueueEntry]:
    """Rows of jobs that left the queue and whose end accounting has not told yet, due to be asked for again."""
    now = clock.now()
    due = Q()
    for tries in range(FINAL_TRIES):
        due |= Q(final_tries=tries, gone_at__lte=now - FINAL_RETRY * (2**tries - 1))
    rows = QueueEntry.objects.filter(
        due, cluster=cluster, gone_at__isnull=False, state__in=UNFINISHED, final_tries__lt=FINAL_TRIES
    )
    return list(rows.order_by("gone_at", "pk")[:limit])


def shared_apart(rows: Sequence[QueueEntry]) -> tuple[list[QueueEntry], list[QueueEntry]]:
    """(rows of one job each, rows that stand for tasks of arrays from outside)."""
    ours = arrays_of_ours(row.attempt_id for row in rows if row.array_pending)
    shared = [row for row in rows if tasks_in(row.array_pending) and row.attempt_id not in ours]
    apart = {row.pk for row in shared}
    return [row for row in rows if row.pk not in apart], shared


def entries_settle(rows: Sequence[QueueEntry], finals: Mapping[str, object]) -> int:
    """Give rows of jobs that left the queue the end that accounting tells now; how many got one."""
    settled = 0
    for row in rows:
        columns = _final_columns({name: getattr(row, name) for name in COLUMNS}, finals.get(row.scheduler_id))
        settled += bool(columns)
        columns = columns or {"final_tries": row.final_tries + 1}
        QueueEntry.objects.filter(pk=row.pk, final_tries=row.final_tries).update(**columns)
    return settled


def entries_of(attempt: Attempt) -> list[QueueEntry]:
    """The rows of an attempt, gone ones included: one, or those of an array's tasks, in the order of the tasks."""
    rows = QueueEntry.objects.filter(attempt=attempt)
    return sorted(rows, key=lambda row: (row.array_task is None, row.array_task or 0, row.het_offset or 0, row.pk))


def entries_forget(now: datetime | None = None) -> int:
    """Remove rows of jobs that left the queue long ago; how many."""
    deleted, _detail = QueueEntry.objects.filter(gone_at__lt=(now or clock.now()) - KEEP_GONE).delete()
    return deleted
