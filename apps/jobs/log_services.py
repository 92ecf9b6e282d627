"""What becomes of a job's output: which chunks form the next segment, and asking for one to be brought back."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import transaction
from django.db.models import Q, Sum
from django.utils.translation import gettext_noop as _

from apps.audit.models import Event
from apps.audit.services import event
from apps.clusters.states import KINDS_KUBERNETES
from apps.core import clock
from apps.core.said import said
from apps.intents.services import intent_ask
from apps.jobs.log_levels import level_of
from apps.jobs.log_models import LogSegment
from apps.jobs.models import Attempt, LogChunk, RunnerStream
from apps.jobs.states import ATTEMPT_ENDED

ROLL_INTENT: Final = "log.roll"
READ_INTENT: Final = "log.read"
#: The stream of what is read from a job's output file instead of told by a runner.
FILE_ROLE: Final = "file"
#: A runner says something within this of its start; else there is none.
RUNNER_HEARD: Final = timedelta(seconds=90)
#: Output in one segment before compression.
SEGMENT_BYTES: Final = 8 * 1024 * 1024
#: A runner's output after which the worker is asked to look whether something can go: many small streams add up.
ASK_BYTES: Final = 1024 * 1024
#: Chunks younger than this stay: one with a lower id may still be on its way to the table.
SETTLED: Final = timedelta(seconds=60)
#: A restored segment that nobody asked for again goes back after this.
RESTORED_FOR: Final = timedelta(hours=1)
#: Asking again for the same segment within this changes nothing.
_ASK_AGAIN: Final = timedelta(seconds=30)


def segment_name(attempt: Attempt) -> LogSegment | None:
    """Choose the next chunks to go to the store and tie them to a new segment; None while there are too few.

    Of an attempt that goes on, the newest ``log_keep_mib`` stay in the database; of one that ended long enough ago,
    nothing does.
    """
    now = clock.now()
    rows = LogChunk.objects.filter(attempt=attempt, segment__isnull=True)
    after_end = timedelta(seconds=settings.CONFIG.log_roll_after_s)
    is_over = attempt.phase in ATTEMPT_ENDED and attempt.ended_at is not None and now - attempt.ended_at >= after_end
    spare = rows.aggregate(total=Sum("size"))["total"] or 0
    if not is_over:
        spare -= settings.CONFIG.log_keep_mib * 1024 * 1024
        rows = rows.filter(at__lt=now - SETTLED)
    if spare <= 0 or (not is_over and spare < SEGMENT_BYTES):
        return None
    ids: list[int] = []
    size = 0
    for chunk_id, chunk_size in rows.order_by("id").values_list("id", "size").iterator(chunk_size=2000):
        if ids and (size + chunk_size > SEGMENT_BYTES or len(ids) >= 5000):
            break
        ids.append(chunk_id)
        size += chunk_size
    if not ids:
        return None
    job = attempt.job
    with transaction.atomic():
        segment = LogSegment.objects.create(
            attempt=attempt,
            key=f"logs/{job.team.slug}/{job.uid}/{attempt.uid}/{ids[0]:012d}-{ids[-1]:012d}.jsonl.gz",
            first_id=ids[0],
            last_id=ids[-1],
            chunk_count=len(ids),
            raw_bytes=size,
        )
        taken = 0
        for start in range(0, len(ids), 500):
            part = LogChunk.objects.filter(id__in=ids[start : start + 500], segment__isnull=True)
            taken += part.update(segment=segment)
        if taken != len(ids):
            # Another worker was at it too: its segment stands.
            transaction.set_rollback(True)
            return None
    return segment


def segment_stored(segment: LogSegment, *, stored_bytes: int, sha256: str, level: int) -> None:
    """The store has it: its chunks leave the database."""
    with transaction.atomic():
        changed = LogSegment.objects.filter(pk=segment.pk, stored_at__isnull=True).update(
            stored_at=clock.now(), stored_bytes=stored_bytes, sha256=sha256, level=level, problem=""
        )
        if changed:
            LogChunk.objects.filter(segment=segment).delete()


def segment_restored(segment: LogSegment, chunks: Iterable[LogChunk]) -> None:
    """Its chunks are in the table again, under their old ids."""
    with transaction.atomic():
        LogChunk.objects.bulk_create(chunks, ignore_conflicts=True, batch_size=500)
        LogSegment.objects.filter(pk=segment.pk, stored_at__isnull=False).update(restored_at=clock.now(), problem="")


def segment_evict(segment: LogSegment) -> None:
    """Nobody looked for a while: the copy in the table goes, the one in the store stays."""
    with transaction.atomic():
        old = clock.now() - RESTORED_FOR
        changed = LogSegment.objects.filter(pk=segment.pk, restored_at__isnull=False, wanted_at__lt=old).update(
            restored_at=None, wanted_at=None
        )
        if changed:
            LogChunk.objects.filter(segment=segment).delete()


def segment_failed(segment: LogSegment, why: str) -> None:
    """The store refused or lost it; shown where the output should be."""
    LogSegment.objects.filter(pk=segment.pk).update(problem=why[:300])


def segments_want(segments: Iterable[LogSegment]) -> None:
    """Somebody wants to read these: the worker brings them back, or lets them stay longer."""
    now = clock.now()
    for segment in segments:
        if segment.wanted_at is not None and now - segment.wanted_at < _ASK_AGAIN:
            continue
        with transaction.atomic():
            LogSegment.objects.filter(pk=segment.pk).update(wanted_at=now)
            if segment.is_away:
                intent_ask(ROLL_INTENT, segment.attempt.uid)


def attempts_to_roll(most: int = 50) -> list[str]:
    """Attempts whose output should be on its way to the store and has nobody at it, for the housekeeping."""
    now = clock.now()
    ended = Q(phase__in=ATTEMPT_ENDED, ended_at__lt=now - timedelta(seconds=settings.CONFIG.log_roll_after_s))
    lying = Attempt.objects.filter(ended, log_chunks__segment__isnull=True).values_list("uid", flat=True)
    named = LogSegment.objects.filter(Q(stored_at__isnull=True) | Q(restored_at__lt=now - RESTORED_FOR))
    wanted = LogSegment.objects.filter(wanted_at__isnull=False, restored_at__isnull=True, stored_at__isnull=False)
    found = [*lying.distinct()[:most]]
    for rows in (named, wanted):
        found += rows.values_list("attempt__uid", flat=True).distinct()[:most]
    return list(dict.fromkeys(found))


def needs_its_file(attempt: Attempt) -> bool:
    """Whether nobody but the shared file system can say what it printed: it runs, and no runner has been heard."""
    # Kubernetes has no such file: there the pods are asked.
    if attempt.job.cluster.is_kubernetes:
        return False
    if attempt.array or attempt.started_at is None or clock.now() - attempt.started_at < RUNNER_HEARD:
        return False
    return not RunnerStream.objects.filter(attempt=attempt).exclude(role=FILE_ROLE).exists()


def attempts_to_read(most: int = 50) -> list[str]:
    """Attempts whose output only their file can tell and that nobody reads yet, for the housekeeping."""
    now = clock.now()
    fresh = Q(ended_at__isnull=True) | Q(ended_at__gt=now - timedelta(minutes=15))
    rows = Attempt.objects.filter(fresh, started_at__lt=now - RUNNER_HEARD, streams__isnull=True, array="")
    rows = rows.exclude(job__cluster__kind__in=KINDS_KUBERNETES)
    return list(rows.exclude(scheduler_id="").order_by("-started_at").values_list("uid", flat=True)[:most])


def file_read(attempt: Attempt, part: bytes, *, is_whole: bool) -> int:
    """Store what the output file holds from where it was last read to; where to go on from.

    Unless ``is_whole``, what follows the last line break waits for its rest.
    """
    with transaction.atomic():
        RunnerStream.objects.get_or_create(attempt=attempt, runner_id=FILE_ROLE, defaults={"role": FILE_ROLE})
        stream = RunnerStream.objects.select_for_update(no_key=True).get(attempt=attempt, runner_id=FILE_ROLE)
        taken = part if is_whole else part[: part.rfind(b"\n") + 1]
        if taken:
            text = taken.decode("utf-8", "replace").replace("\x00", "")
            LogChunk.objects.bulk_create(
                [
                    LogChunk(
                        attempt=attempt,
                        runner_id=FILE_ROLE,
                        stream="stdout",
                        offset=stream.log_bytes,
                        size=len(taken),
                        text=text,
                        at=clock.now(),
                        level=level_of(text),
                    )
                ],
                ignore_conflicts=True,
            )
            stream.log_bytes += len(taken)
            stream.save(update_fields=["log_bytes"])
    return stream.log_bytes


def file_unreadable(attempt: Attempt, path: str, why: str) -> None:
    """Say once, among the job's events, why its output cannot be shown."""
    with transaction.atomic():
        _stream, is_new = RunnerStream.objects.get_or_create(
            attempt=attempt, runner_id=FILE_ROLE, defaults={"role": FILE_ROLE}
        )
        if is_new or not LogChunk.objects.filter(attempt=attempt).exists():
            job = attempt.job
            if not Event.objects.filter(object_uid=job.uid, kind="OutputUnreadable").exists():
                text = said(_("its output %(path)s is not shown: %(why)s"), path=path, why=why)
                event("job", job.uid, "OutputUnreadable", text, team_id=job.team_id, data={"path": path, "why": why})
