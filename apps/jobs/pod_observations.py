"""What the worker reads of pods: output of containers that no runner reports, and what a cluster tells of attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q

from apps.clusters.models import Cluster
from apps.core import clock
from apps.jobs.log_levels import level_of
from apps.jobs.log_services import FILE_ROLE, RUNNER_HEARD
from apps.jobs.models import Attempt, JobHappening, LogChunk, RunnerStream
from apps.jobs.states import ATTEMPT_PLACED

POD_ROLE: Final = "pod"
#: The output of an attempt that ended is still read for so long.
READ_AFTER_END: Final = timedelta(minutes=15)
#: The same sentence about the same attempt is told again after so long at the earliest.
AGAIN: Final = timedelta(hours=1)
#: An attempt's timeline holds no more than so many of them.
MOST: Final = 2000


@dataclass(frozen=True)
class Happening:
    """Something that a cluster said of an attempt; ``key`` is its own mark of it."""

    attempt_id: int
    key: str
    code: str
    text: str
    is_bad: bool
    at: datetime


def attempts_by_scheduler_id(cluster: Cluster, ids: Collection[str]) -> dict[str, int]:
    """The attempts behind these ids, by the id; several lives of one name: the newest."""
    rows = Attempt.objects.filter(job__cluster=cluster, scheduler_id__in=set(ids)).order_by("pk")
    return dict(rows.values_list("scheduler_id", "pk"))


def happenings_add(found: Sequence[Happening]) -> int:
    """Store what was not told yet; how many rows. Told twice, whoever was killed in between, it is there once."""
    if not found:
        return 0
    attempts = {one.attempt_id for one in found}
    rows = JobHappening.objects.filter(attempt_id__in=attempts)
    keys: set[tuple[int, str]] = set()
    last: dict[tuple[int, str, str], datetime] = {}
    counts: dict[int, int] = {}
    for row in rows.order_by("at"):
        keys.add((row.attempt_id, row.key))
        last[row.attempt_id, row.code, _english(row.text)] = row.at
        counts[row.attempt_id] = counts.get(row.attempt_id, 0) + 1
    new: list[JobHappening] = []
    for one in sorted(found, key=lambda each: each.at):
        said = (one.attempt_id, one.code, _english(one.text))
        before = last.get(said)
        if (one.attempt_id, one.key) in keys or (before is not None and abs(one.at - before) < AGAIN):
            continue
        if counts.get(one.attempt_id, 0) >= MOST:
            continue
        counts[one.attempt_id] = counts.get(one.attempt_id, 0) + 1
        keys.add((one.attempt_id, one.key))
        last[said] = one.at
        new.append(
            JobHappening(
                attempt_id=one.attempt_id,
                key=one.key,
                code=one.code,
                text=one.text,
                is_bad=one.is_bad,
                at=one.at,
            )
        )
    JobHappening.objects.bulk_create(new, ignore_conflicts=True)
    return len(new)


def _english(text: str) -> str:
    return "".join(text)


# --- output


def attempts_to_listen_to(cluster: Cluster, most: int) -> list[Attempt]:
    """Attempts whose output nobody but their pods can tell: they run, or ended lately, and no runner has been heard."""
    now = clock.now()
    placed = Q(phase__in=ATTEMPT_PLACED) | Q(ended_at__gt=now - READ_AFTER_END)
    # Those without a runner need not wait for one.
    silent = Q(started_at__lt=now - RUNNER_HEARD) | ~Q(job__manifest="") | Q(ended_at__isnull=False)
    rows = Attempt.objects.filter(placed, silent, job__cluster=cluster, started_at__isnull=False)
    heard = RunnerStream.objects.exclude(role__in=(POD_ROLE, FILE_ROLE)).values("attempt_id")
    rows = rows.exclude(scheduler_id="").exclude(pk__in=heard).select_related("job")
    return list(rows.order_by("-started_at")[:most])


def pod_streams(attempts: Iterable[Attempt]) -> dict[tuple[int, str], RunnerStream]:
    """What was read of the containers of these attempts, by attempt and container."""
    rows = RunnerStream.objects.filter(attempt__in=list(attempts), role=POD_ROLE)
    return {(row.attempt_id, row.runner_id): row for row in rows}


def pod_read(
    attempt: Attempt,
    runner_id: str,
    lines: Sequence[tuple[datetime, bytes]],
    *,
    before: str,
    cursor: str,
    node: str = "",
    rank: int | None = None,
    task: int | None = None,
    exit_code: int | None = None,
) -> bool:
    """Store lines together with how far has been read; False where another had read on from ``before`` already.

    ``exit_code`` says that nothing more will come.
    """
    with transaction.atomic():
        RunnerStream.objects.get_or_create(
            attempt=attempt,
            runner_id=runner_id,
            defaults={"role": POD_ROLE, "node": node[:120], "rank": rank, "task": task},
        )
        stream = RunnerStream.objects.select_for_update(no_key=True).get(attempt=attempt, runner_id=runner_id)
        if stream.cursor != before:
            return False
        offset, chunks = stream.log_bytes, []
        for at, part in _pieces(lines):
            text = part.decode("utf-8", "replace").replace("\x00", "")
            chunks.append(
                LogChunk(
                    attempt=attempt,
                    runner_id=runner_id,
                    stream="stdout",
                    offset=offset,
                    size=len(part),
                    text=text,
                    at=at,
                    level=level_of(text),
                )
            )
            offset += len(part)
        LogChunk.objects.bulk_create(chunks)
        stream.log_bytes, stream.cursor = offset, cursor
        stream.heartbeat_at = clock.now()
        if exit_code is not None:
            stream.exit_code = exit_code
        stream.save(update_fields=["log_bytes", "cursor", "heartbeat_at", "exit_code"])
    return True


def _pieces(lines: Sequence[tuple[datetime, bytes]]) -> Iterable[tuple[datetime, bytes]]:
    """Lines in pieces of at most 32 KiB and a few seconds, each with the instant of its first line."""
    held: list[bytes] = []
    size, since = 0, None
    for at, line in lines:
        if since is not None and (size + len(line) > 32 * 1024 or at - since > timedelta(seconds=5)):
            yield since, b"".join(held)
            held, size, since = [], 0, None
        since = since or at
        held.append(line)
        size += len(line)
    if since is not None:
        yield since, b"".join(held)
