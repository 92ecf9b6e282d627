"""Named reads of a job's output: a window of it, a search through all of it, the first error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from django.db.models import Q, QuerySet, Sum

from apps.jobs.log_levels import ERROR, level_of
from apps.jobs.log_models import LogSegment
from apps.jobs.models import Job, LogChunk, RunnerStream

MAX_CHUNKS: Final = 500
#: What the shortest useful search is: one letter would match nearly every line.
LEAST_TEXT: Final = 2
#: Chunks one search looks through before it answers with how to go on.
SEARCH_CHUNKS: Final = 2000
MAX_HITS: Final = 200
_EXCERPT: Final = 300


@dataclass(frozen=True)
class LogWindow:
    """What of a job's output is asked for: of one attempt, runner, and from a level on, where they are given."""

    attempt: int | None = None
    runner: str = ""
    level: int = 0


@dataclass(frozen=True)
class LogPage:
    """A window of a job's output, oldest first.

    ``next_id`` continues it and ``is_open`` says whether more may come. ``first_id`` continues it backwards where
    ``has_earlier``. ``away`` are the segments that must come back from the object store before there is more to show.
    """

    chunks: list[LogChunk]
    next_id: int
    first_id: int
    is_open: bool
    has_earlier: bool = False
    away: tuple[LogSegment, ...] = ()

    @property
    def problem(self) -> str:
        """Why what is away does not come back; empty while it may."""
        return next((s.problem for s in self.away if s.problem), "")

    @property
    def away_bytes(self) -> int:
        """Stored bytes that are on their way."""
        return sum(s.stored_bytes for s in self.away)


def chunks_of(job: Job, window: LogWindow) -> QuerySet[LogChunk]:
    """The chunks that are in the table and match, without order."""
    rows = LogChunk.objects.filter(attempt__job=job).select_related("attempt")
    if window.attempt is not None:
        rows = rows.filter(attempt__number=window.attempt)
    if window.runner:
        rows = rows.filter(runner_id=window.runner)
    if window.level:
        rows = rows.filter(level__gte=window.level)
    return rows


def segments_of(job: Job, window: LogWindow) -> QuerySet[LogSegment]:
    """The segments that hold such chunks, in order. A runner's are not told apart: any may hold its output."""
    rows = LogSegment.objects.filter(attempt__job=job).select_related("attempt").order_by("first_id")
    if window.attempt is not None:
        rows = rows.filter(attempt__number=window.attempt)
    if window.level:
        rows = rows.filter(level__gte=window.level)
    return rows


def _away(job: Job, window: LogWindow) -> QuerySet[LogSegment]:
    return segments_of(job, window).filter(stored_at__isnull=False, restored_at__isnull=True)


def log_page(
    job: Job,
    *,
    after_id: int = 0,
    limit: int = 200,
    tail: bool = False,
    before_id: int | None = None,
    window: LogWindow = LogWindow(),
) -> LogPage:
    """Chunks after an id, the last ones before ``before_id``, or the last ones at all with ``tail``.

    At most ``limit`` (≤ 500) of at most 32 KiB each. Never across a hole: where chunks lie in the object store, the
    page ends before them.
    """
    limit = max(1, min(limit, MAX_CHUNKS))
    rows, away = chunks_of(job, window), _away(job, window)
    if tail or before_id is not None:
        if before_id is not None:
            rows, away = rows.filter(id__lt=before_id), away.filter(first_id__lt=before_id)
        hole = away.order_by("-last_id").first()
        if hole is not None:
            newer = rows.filter(id__gt=hole.last_id)
            chunks = list(newer.order_by("-id")[:limit])[::-1]
            missing = () if chunks else (hole,)
        else:
            chunks, missing = list(rows.order_by("-id")[:limit])[::-1], ()
    else:
        hole = away.filter(last_id__gt=after_id).first()
        rows = rows.filter(id__gt=after_id)
        chunks = list((rows if hole is None else rows.filter(id__lt=hole.first_id)).order_by("id")[:limit])
        missing = (hole,) if hole is not None and not chunks else ()
    first = chunks[0].pk if chunks else (before_id if before_id is not None else after_id)
    earlier = Q(id__lt=first)
    has_earlier = bool(chunks or missing) and (
        chunks_of(job, window).filter(earlier).exists() or _away(job, window).filter(first_id__lt=first).exists()
    )
    return LogPage(
        chunks=chunks,
        next_id=chunks[-1].pk if chunks else after_id,
        first_id=first,
        is_open=not job.has_ended,
        has_earlier=has_earlier,
        away=missing,
    )


@dataclass(frozen=True)
class LogHit:
    """One line that a search found; ``chunk_id`` is where the viewer jumps to."""

    chunk_id: int
    attempt: int
    runner: str
    at: datetime
    level: int
    line: str


@dataclass(frozen=True)
class LogSearch:
    """The lines a search found, oldest first.

    ``next_after`` goes on from where it stopped, None at the end. ``away`` are segments that lie in the object store:
    they are not searched until they are brought back.
    """

    hits: list[LogHit]
    next_after: int | None
    away: list[LogSegment] = field(default_factory=list)

    @property
    def away_bytes(self) -> int:
        """Output that was not searched."""
        return sum(s.raw_bytes for s in self.away)


def log_search(job: Job, text: str, *, after_id: int = 0, window: LogWindow = LogWindow()) -> LogSearch:
    """Lines that contain a text, in any letter case; with no text, all lines of the window's level, if it has one.

    Looks through at most 2,000 chunks and finds at most 200 lines at once. A line that is cut between two chunks is
    found when the text lies whole in one of them.
    """
    hits: list[LogHit] = []
    wanted = text.lower()
    seen = last = 0
    if not wanted and not window.level:
        return LogSearch(hits, None)
    for chunk in chunks_of(job, window).filter(id__gt=after_id).order_by("id")[:SEARCH_CHUNKS].iterator(200):
        seen, last = seen + 1, chunk.pk
        for line in _lines(chunk.text, wanted, window.level):
            hits.append(
                LogHit(chunk.pk, chunk.attempt.number, chunk.runner_id, chunk.at, level_of(line), _cut(line, wanted))
            )
        if len(hits) >= MAX_HITS:
            break
    done = seen < SEARCH_CHUNKS and len(hits) < MAX_HITS
    return LogSearch(hits, None if done else last, list(_away(job, window)))


def _lines(text: str, wanted: str, level: int) -> Iterator[str]:
    if wanted and wanted not in text.lower():
        return
    for line in text.split("\n"):
        if (not wanted or wanted in line.lower()) and (not level or level_of(line) >= level) and line.strip():
            yield line


def _cut(line: str, wanted: str) -> str:
    """The part of a line around what was found."""
    at = line.lower().find(wanted) if wanted else 0
    start = max(0, at - _EXCERPT // 2)
    part = line[start : start + _EXCERPT]
    return ("…" if start else "") + part + ("…" if start + _EXCERPT < len(line) else "")


def first_error(job: Job, window: LogWindow = LogWindow()) -> int | None:
    """The id of the first chunk with an error in it; that of its segment's first where it lies in the store."""
    bad = LogWindow(window.attempt, window.runner, ERROR)
    here = chunks_of(job, bad).order_by("id").values_list("id", flat=True).first()
    there = _away(job, bad).values_list("first_id", flat=True).first()
    found = [one for one in (here, there) if one is not None]
    return min(found, default=None)


def log_bytes(job: Job) -> tuple[int, int]:
    """Bytes of a job's output in the database and, before compression, in the object store alone."""
    here = LogChunk.objects.filter(attempt__job=job).aggregate(total=Sum("size"))["total"] or 0
    there = _away(job, LogWindow()).aggregate(total=Sum("raw_bytes"))["total"] or 0
    return int(here), int(there)


def task_runners(job: Job, tasks: Sequence[int]) -> dict[tuple[int, int], str]:
    """The runner that reported each of these tasks' output, by (attempt number, task)."""
    rows = RunnerStream.objects.filter(attempt__job=job, task__in=list(tasks), role="batch")
    found = rows.values_list("attempt__number", "task", "runner_id")
    return {(number, task): runner for number, task, runner in found if task is not None}
