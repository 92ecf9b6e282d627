"""Two walks along the audit chain in the background: one follows its end, one starts over every day."""

from __future__ import annotations

from datetime import timedelta

import structlog

from apps.audit.models import ChainMark
from apps.audit.selectors import Walk, chain_walk
from apps.core import clock

log = structlog.get_logger(__name__)
#: Entries of one round, about a tenth of a second of work.
MOST = 2000
WHOLE_EVERY = timedelta(days=1)


def chain_observe() -> None:
    """One round of both walks; a killed one is continued from the mark it left."""
    newest, _made = ChainMark.objects.get_or_create(name=ChainMark.NEWEST)
    _save(newest, chain_walk(newest.sequence, newest.digest, MOST))
    whole, _made = ChainMark.objects.get_or_create(name=ChainMark.WHOLE)
    is_under_way = whole.sequence > 0
    if is_under_way or whole.ended_at is None or clock.now() - whole.ended_at >= WHOLE_EVERY:
        _save_whole(whole, chain_walk(whole.sequence, whole.digest, MOST))


def _save(mark: ChainMark, walk: Walk) -> None:
    """It stands still at what does not fit and looks at that again every round."""
    mark.sequence, mark.digest = walk.sequence, walk.digest
    mark.broken_sequence, mark.broken_uid = walk.broken_sequence, walk.broken_uid
    mark.checked_at = clock.now()
    mark.save()


def _save_whole(mark: ChainMark, walk: Walk) -> None:
    """What an earlier walk found stands until a later one comes through to the end."""
    mark.checked_at = clock.now()
    mark.sequence, mark.digest = walk.sequence, walk.digest
    if walk.broken_sequence or walk.is_end:
        mark.broken_sequence, mark.broken_uid = walk.broken_sequence, walk.broken_uid
        mark.ended_at, mark.ended_sequence = mark.checked_at, walk.broken_sequence or walk.sequence
        mark.sequence, mark.digest = 0, ""
        if walk.broken_sequence:
            log.error("audit chain broken", sequence=walk.broken_sequence, uid=walk.broken_uid)
    mark.save()
