"""What runners post: heartbeats, logs, progress, checkpoints and the end, each exactly once by sequence number."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from apps.checkpoints.services import checkpoint_gone, checkpoint_report
from apps.core import clock
from apps.core.errors import Refusal
from apps.intents.services import intent_ask
from apps.jobs.log_levels import level_of
from apps.jobs.log_services import ASK_BYTES, ROLL_INTENT
from apps.jobs.models import Attempt, LogChunk, RunnerStream
from apps.jobs.progress_ingest import progress_take
from apps.jobs.selectors import attempt_by_uid
from apps.jobs.states import ATTEMPT_ENDED

#: A runner may deliver what it buffered this long after its attempt ended.
GRACE = timedelta(hours=24)
MAX_EVENTS = 1000
#: A runner cuts its output into pieces of 32 KiB; nothing much larger is one of them.
MAX_CHUNK_BYTES = 256 * 1024
#: All runners of one attempt together post about so often a second: more of them post less often each.
POSTS_PER_S = 20
LONGEST_PAUSE_S = 30.0
_KINDS = frozenset({"start", "heartbeat", "log", "progress", "checkpoint", "checkpoint_gone", "exit", "gap"})


class IngestDenied(Refusal):
    """The token is not this attempt's, or the attempt's time is over."""

    status = 403


class IngestExpired(Refusal):
    """The attempt ended too long ago; nothing more is taken."""

    status = 410


class IngestMalformed(Refusal):
    """The whole batch cannot be read."""

    status = 422


def ingest_token(attempt_uid: str) -> str:
    """The bearer text of one attempt: derived, so that a repeated submit sends the same one and no table holds it."""
    key = settings.CONFIG.token_peppers[0].get_secret_value().encode()
    return _derive(attempt_uid, key)


def _derive(attempt_uid: str, key: bytes) -> str:
    digest = hmac.new(key, f"ingest/{attempt_uid}".encode(), hashlib.sha256).hexdigest()
    return f"qdi_{digest}"


def attempt_for_token(attempt_uid: str, bearer: str) -> Attempt:
    """The attempt this token may write to. Raises IngestDenied (also for unknown attempts), IngestExpired."""
    fits = False
    for pepper in settings.CONFIG.token_peppers:
        derived = _derive(attempt_uid, pepper.get_secret_value().encode())
        fits |= hmac.compare_digest(derived.encode(), bearer.encode(errors="replace"))
    attempt = attempt_by_uid(attempt_uid) if fits else None
    if attempt is None:
        raise IngestDenied("this token does not open this attempt")
    if attempt.phase in ATTEMPT_ENDED and attempt.ended_at is not None and clock.now() - attempt.ended_at > GRACE:
        raise IngestExpired("the attempt ended more than a day ago")
    return attempt


@dataclass(frozen=True)
class Receipt:
    """Everything up to ``acknowledged_seq`` is stored; ``rejected`` lists events dropped as unreadable, with why.

    ``next_post_s``: how long the runner should gather events before it posts again.
    """

    acknowledged_seq: int
    rejected: tuple[tuple[int, str], ...]
    next_post_s: float = 1.0


def events_take(attempt: Attempt, runner: Mapping[str, Any], events: Sequence[Any]) -> Receipt:
    """Store a batch in one transaction; events at or below the stored sequence number are repeats and skipped.

    Instants of a node whose clock is off are corrected by the difference between its ``clock`` and ours.
    Raises IngestMalformed when the batch as a whole makes no sense.
    """
    runner_id = runner.get("id")
    if not isinstance(runner_id, str) or not 1 <= len(runner_id) <= 64:
        raise IngestMalformed("runner.id must be text of 1 to 64 characters")
    if len(events) > MAX_EVENTS:
        raise IngestMalformed(f"at most {MAX_EVENTS} events in one batch")
    now = clock.now()
    skew = _skew(runner.get("clock"), now)
    rejected: list[tuple[int, str]] = []
    with transaction.atomic():
        RunnerStream.objects.get_or_create(
            attempt=attempt,
            runner_id=runner_id,
            defaults={
                "role": str(runner.get("role", "batch"))[:8],
                "node": str(runner.get("node", ""))[:120],
                "rank": _rank(runner.get("rank")),
                "task": _rank(runner.get("task")),
            },
        )
        # Locked so that two deliveries of the same batch are stored one after the other, the second as a repeat.
        stream = RunnerStream.objects.select_for_update(no_key=True).get(attempt=attempt, runner_id=runner_id)
        stream.skew_s = skew.total_seconds()
        chunks: list[LogChunk] = []
        before = stream.log_bytes // ASK_BYTES
        for raw in events:
            seq = raw.get("seq") if isinstance(raw, Mapping) else None
            if not isinstance(seq, int) or isinstance(seq, bool) or seq < 1:
                raise IngestMalformed("every event needs a whole seq from 1")
            if seq <= stream.acknowledged_seq:
                continue
            problem = _take(attempt, stream, raw, now, skew, chunks)
            if problem:
                rejected.append((seq, problem))
            stream.acknowledged_seq = seq
        LogChunk.objects.bulk_create(chunks, ignore_conflicts=True)
        stream.save()
        if attempt.phase in ATTEMPT_ENDED or stream.log_bytes // ASK_BYTES != before:
            # Much output at once, or some that comes after the end: what is old goes to the object store.
            intent_ask(ROLL_INTENT, attempt.uid)
        runners = RunnerStream.objects.filter(attempt=attempt, exit_code__isnull=True).count()
    return Receipt(stream.acknowledged_seq, tuple(rejected), min(LONGEST_PAUSE_S, max(1.0, runners / POSTS_PER_S)))


def _rank(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _skew(text: Any, now: datetime) -> timedelta:
    """How far the node's clock is behind ours (negative: ahead); differences under 5 s are the network's."""
    there = _instant(text)
    if there is None:
        return timedelta(0)
    difference = now - there
    return difference if abs(difference) > timedelta(seconds=5) else timedelta(0)


def _instant(text: Any) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _take(
    attempt: Attempt,
    stream: RunnerStream,
    raw: Mapping[str, Any],
    now: datetime,
    skew: timedelta,
    chunks: list[LogChunk],
) -> str:
    """Store one event; the reason when it cannot be read, else empty."""
    kind, data = raw.get("kind"), raw.get("data")
    if kind not in _KINDS or not isinstance(data, Mapping):
        return "unknown kind or data that is not an object"
    at = (_instant(raw.get("at")) or now) + skew
    at = min(at, now)
    try:
        if kind == "heartbeat" or kind == "start":
            _beat(attempt, stream, now)
        elif kind == "log":
            chunks.append(_log(attempt, stream, data, at))
        elif kind == "progress":
            # Steps of different tasks of an array are different curves: none of them is the job's.
            if not attempt.array:
                progress_take(attempt, data, at)
            elif stream.task is not None:
                progress_take(attempt, data, at, stream.task)
        elif kind == "checkpoint":
            _checkpoint(attempt, data, at, skew)
        elif kind == "checkpoint_gone":
            checkpoint_gone(attempt.job.series, str(data["path"]))
        elif kind == "gap":
            stream.lost_events += int(data.get("dropped_events", 1))
        else:
            _exit(attempt, stream, data)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        return f"{kind}: {error.__class__.__name__}"
    return ""


def _beat(attempt: Attempt, stream: RunnerStream, now: datetime) -> None:
    stream.heartbeat_at = now
    if stream.role == "batch":
        # A node that lives says nothing of whether the script does.
        Attempt.objects.filter(pk=attempt.pk).update(heartbeat_at=now)


def _log(attempt: Attempt, stream: RunnerStream, data: Mapping[str, Any], at: datetime) -> LogChunk:
    name = data["stream"]
    if name not in ("stdout", "stderr"):
        raise ValueError("stream")
    # A half of a surrogate pair is no character, and no database takes it.
    text = str(data["text"]).replace("\x00", "").encode("utf-8", "replace").decode()
    size = int(data["size"])
    if not 0 <= size <= MAX_CHUNK_BYTES or len(text) > MAX_CHUNK_BYTES:
        raise ValueError("size")
    stream.log_bytes += size
    return LogChunk(
        attempt=attempt,
        runner_id=stream.runner_id,
        stream=name,
        offset=int(data["offset"]),
        size=size,
        text=text,
        at=at,
        level=level_of(text),
    )


def _checkpoint(attempt: Attempt, data: Mapping[str, Any], at: datetime, skew: timedelta) -> None:
    files = [f for f in data["files"] if isinstance(f, Mapping)][:5000]
    times = [found for f in files if (found := _instant(f.get("mtime"))) is not None]
    changed_at = max(times) + skew if times else at
    step = data.get("step")
    facts = data.get("facts")
    checkpoint_report(
        attempt.job.series,
        attempt_uid=attempt.uid,
        path=str(data["path"]),
        step=step if isinstance(step, int) and not isinstance(step, bool) else None,
        files=files,
        facts=facts if isinstance(facts, Mapping) else {},
        changed_at=min(changed_at, clock.now()),
        writer_is_alive=attempt.phase not in ATTEMPT_ENDED,
    )


def _exit(attempt: Attempt, stream: RunnerStream, data: Mapping[str, Any]) -> None:
    code, signal = data.get("code"), data.get("signal")
    stream.exit_code = code if isinstance(code, int) else None
    # The end of one task of an array is not the end of all.
    if stream.role == "batch" and not attempt.array:
        Attempt.objects.filter(pk=attempt.pk).update(
            runner_exit_code=code if isinstance(code, int) else None,
            runner_exit_signal=signal if isinstance(signal, int) else None,
        )
