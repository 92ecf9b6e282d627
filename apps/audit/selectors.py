"""Named reads of the audit trail and of timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import QuerySet

from apps.audit.models import Entry, Event
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


def chain_check() -> ChainReport:
    """Recompute the whole chain."""
    previous = ""
    expected = 0
    for entry in Entry.objects.filter(sequence__isnull=False).order_by("sequence").iterator(chunk_size=500):
        expected += 1
        digest = entry_digest(entry, expected, previous)
        if entry.sequence != expected or entry.digest != digest:
            return ChainReport(expected, entry.uid)
        previous = digest
    return ChainReport(expected)
