"""Jobs' output: from the database to the object store, and back while somebody reads it."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from datetime import datetime

from django.conf import settings

from apps.core import clock
from apps.jobs import log_services as logs
from apps.jobs.log_models import LogSegment
from apps.jobs.models import Attempt, LogChunk
from apps.jobs.selectors import attempt_by_uid
from apps.jobs.states import ATTEMPT_ENDED
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.providers.errors import NotFound

#: What a segment may grow to when it is unpacked: its chunks are at most 8 MiB, and JSON escapes what is no letter.
MOST_BYTES = 128 * 1024 * 1024


class BrokenSegment(Exception):
    """What the store gave back is not what was put there."""


def roll(uid: str) -> Outcome:
    """One step for one attempt: bring back what is wanted, take away what is not, store what is old enough."""
    attempt = attempt_by_uid(uid)
    if attempt is None:
        return DONE
    segments = list(LogSegment.objects.filter(attempt=attempt))
    wanted = [s for s in segments if s.is_away and s.wanted_at is not None and not s.problem]
    if wanted:
        _restore(attempt, min(wanted, key=lambda s: s.wanted_at or clock.now()))
        return again(0)
    named = [s for s in segments if s.stored_at is None]
    segment = named[0] if named else logs.segment_name(attempt)
    if segment is not None:
        _store(attempt, segment)
        return again(0)
    restored = [s for s in segments if s.restored_at is not None]
    for one in restored:
        logs.segment_evict(one)
    return _later(attempt, bool(restored))


def _later(attempt: Attempt, has_restored: bool) -> Outcome:
    if has_restored:
        return again(logs.RESTORED_FOR.total_seconds() / 2)
    rest = LogChunk.objects.filter(attempt=attempt, segment__isnull=True)
    if attempt.phase in ATTEMPT_ENDED and attempt.ended_at is not None and rest.exists():
        left_s = settings.CONFIG.log_roll_after_s - (clock.now() - attempt.ended_at).total_seconds()
        return again(max(1.0, left_s))
    return DONE


def _store(attempt: Attempt, segment: LogSegment) -> None:
    chunks = list(LogChunk.objects.filter(segment=segment).order_by("id"))
    body = gzip.compress(b"".join(packed(chunks)), compresslevel=6, mtime=0)
    doors.object_store().put(segment.key, body)
    level = max((c.level for c in chunks), default=0)
    logs.segment_stored(segment, stored_bytes=len(body), sha256=hashlib.sha256(body).hexdigest(), level=level)


def _restore(attempt: Attempt, segment: LogSegment) -> None:
    try:
        body = doors.object_store().get(segment.key)
        if hashlib.sha256(body).hexdigest() != segment.sha256:
            raise BrokenSegment("its checksum is not the one it was stored with")
        chunks = list(unpacked(body, attempt, segment))
    except NotFound as error:
        logs.segment_failed(segment, str(error))
        return
    except BrokenSegment as error:
        logs.segment_failed(segment, f"{segment.key}: {error}")
        return
    logs.segment_restored(segment, chunks)


def packed(chunks: list[LogChunk]) -> Iterator[bytes]:
    """Chunks as lines of JSON: all that the table knows of them."""
    for chunk in chunks:
        yield (
            json.dumps(
                {
                    "id": chunk.pk,
                    "runner": chunk.runner_id,
                    "stream": chunk.stream,
                    "offset": chunk.offset,
                    "size": chunk.size,
                    "at": chunk.at.isoformat(),
                    "level": chunk.level,
                    "text": chunk.text,
                },
                ensure_ascii=False,
                separators=(",", ":"),
            ).encode("utf-8", "surrogatepass")
            + b"\n"
        )


def unpacked(body: bytes, attempt: Attempt, segment: LogSegment) -> Iterator[LogChunk]:
    """The chunks of a stored segment. Raises BrokenSegment."""
    try:
        inflater = zlib.decompressobj(wbits=31)
        content = inflater.decompress(body, MOST_BYTES)
        if inflater.unconsumed_tail or not inflater.eof:
            raise BrokenSegment("it is longer than it can be")
        for line in content.splitlines():
            told = json.loads(line.decode("utf-8", "surrogatepass"))
            yield LogChunk(
                pk=int(told["id"]),
                attempt=attempt,
                runner_id=str(told["runner"]),
                stream=str(told["stream"]),
                offset=int(told["offset"]),
                size=int(told["size"]),
                text=str(told["text"]),
                at=datetime.fromisoformat(told["at"]),
                level=int(told["level"]),
                segment=segment,
            )
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise BrokenSegment(f"it cannot be read: {error}") from error
