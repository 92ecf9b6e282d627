"""Appending to the audit trail and sealing it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import Max

from apps.audit.models import Entry, Event
from apps.core import clock
from apps.core.actors import Actor
from apps.core.middleware import request_id_var
from apps.core.said import brief


def record(
    actor: Actor,
    verb: str,
    object_type: str,
    object_uid: str,
    *,
    team_id: int | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> Entry:
    """Append who asked for what; call it inside the transaction of the change itself."""
    return Entry.objects.create(
        actor=actor.key,
        actor_name=actor.name,
        token_id=actor.token_id,
        address=actor.address[:64],
        request_id=actor.request_id or request_id_var.get(),
        verb=verb,
        object_type=object_type,
        object_uid=object_uid,
        team_id=team_id,
        before=before or {},
        after=after or {},
    )


def event(
    object_type: str,
    object_uid: str,
    kind: str,
    text: str,
    *,
    team_id: int | None = None,
    data: dict[str, Any] | None = None,
) -> Event:
    """Append what happened; call it inside the transaction of the status change."""
    return Event.objects.create(
        object_type=object_type,
        object_uid=object_uid,
        team_id=team_id,
        kind=kind,
        text=brief(text, 1000),
        data=data or {},
        request_id=request_id_var.get(),
    )


def events(rows: Iterable[Event]) -> None:
    """Append what happened to many things at once; call it inside the transaction of their change."""
    request_id = request_id_var.get()
    made = list(rows)
    for row in made:
        row.request_id = request_id
    Event.objects.bulk_create(made, batch_size=500)


def entry_digest(entry: Entry, sequence: int, previous: str) -> str:
    """The chained digest of one entry."""
    body = json.dumps(
        [
            sequence,
            previous,
            entry.uid,
            clock.iso(entry.created_at),
            entry.actor,
            entry.actor_name,
            entry.token_id,
            entry.address,
            entry.request_id,
            entry.verb,
            entry.object_type,
            entry.object_uid,
            entry.team_id,
            entry.before,
            entry.after,
        ],
        sort_keys=True,
        default=str,
    )
    return hashlib.sha256(body.encode()).hexdigest()


def seal(limit: int = 500) -> int:
    """Chain the entries written since the last time, oldest first; the number sealed.

    Two sealers at once are harmless: ``sequence`` is unique, the slower one rolls back.
    """
    with transaction.atomic():
        last = Entry.objects.filter(sequence=Entry.objects.aggregate(m=Max("sequence"))["m"]).first()
        sequence, previous = (last.sequence or 0, last.digest) if last else (0, "")
        sealed = 0
        for entry in Entry.objects.filter(sequence__isnull=True).order_by("id")[:limit]:
            sequence += 1
            previous = entry_digest(entry, sequence, previous)
            Entry.objects.filter(pk=entry.pk, sequence__isnull=True).update(sequence=sequence, digest=previous)
            sealed += 1
    return sealed
