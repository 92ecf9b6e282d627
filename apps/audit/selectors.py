"""Named reads of the audit trail and of timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from apps.audit.models import ChainMark, Entry, Event
from apps.audit.permissions import can_view_audit
from apps.audit.services import entry_digest
from apps.core.actors import Actor


@dataclass(frozen=True)
class ChainReport:
    """What a check of the chain found; ``broken_uid`` is the first entry that does not fit."""

    checked: int
    broken_uid: str = ""

    @property
    def is_whole(self) -> bool:
        """No entry was edited or removed."""
        return not self.broken_uid


def entries_visible_to(actor: Actor) -> QuerySet[Entry]:
    """All entries for those who may read them, none for others."""
    return Entry.objects.all() if can_view_audit(actor) else Entry.objects.none()


def events_of(object_uids: Sequence[str], newest: int = 200) -> list[Event]:
    """The newest events of these objects, oldest first; the caller has checked the right to the objects."""
    rows = list(Event.objects.filter(object_uid__in=list(object_uids)).order_by("-at", "-id")[:newest])
    return rows[::-1]


@dataclass(frozen=True)
class Walk:
    """Where a walk along the chain came to, and the place and uid of the entry that stopped it.

    ``broken_sequence`` is 0 when none did; ``broken_uid`` is empty where the entry itself is missing.
    """

    sequence: int
    digest: str
    broken_sequence: int = 0
    broken_uid: str = ""
    is_end: bool = True


def chain_walk(sequence: int, digest: str, most: int | None = None) -> Walk:
    """Check at most so many entries after the one that has this sequence and digest, and that one's digest itself."""
    if sequence:
        here = Entry.objects.filter(sequence=sequence).values_list("digest", "uid").first()
        if here is None or here[0] != digest:
            return Walk(sequence, digest, sequence, here[1] if here else "")
    rows = Entry.objects.filter(sequence__gt=sequence).order_by("sequence")
    seen = 0
    for entry in (rows if most is None else rows[:most]).iterator(chunk_size=500):
        seen += 1
        expected = entry_digest(entry, sequence + 1, digest)
        if entry.sequence != sequence + 1 or entry.digest != expected:
            return Walk(sequence, digest, sequence + 1, entry.uid)
        sequence, digest = sequence + 1, expected
    return Walk(sequence, digest, is_end=most is None or seen < most)


def chain_check() -> ChainReport:
    """Recompute the whole chain."""
    walk = chain_walk(0, "")
    return ChainReport(walk.broken_sequence or walk.sequence, walk.broken_uid)


@dataclass(frozen=True)
class ChainStanding:
    """What the checks in the background last found. Instants are None before the first."""

    is_whole: bool
    checked: int
    checked_at: datetime | None
    whole_checked: int
    whole_at: datetime | None
    broken_sequence: int = 0
    broken_uid: str = ""


def chain_standing() -> ChainStanding:
    """Read the marks: whole only if neither walk found anything."""
    marks = {mark.name: mark for mark in ChainMark.objects.all()}
    newest = marks.get(ChainMark.NEWEST) or ChainMark()
    whole = marks.get(ChainMark.WHOLE) or ChainMark()
    broken = min(
        (m for m in (newest, whole) if m.broken_sequence), key=lambda m: m.broken_sequence, default=ChainMark()
    )
    return ChainStanding(
        not broken.broken_sequence,
        newest.sequence,
        newest.checked_at,
        whole.ended_sequence,
        whole.ended_at,
        broken.broken_sequence,
        broken.broken_uid,
    )
