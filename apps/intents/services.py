"""Asking, claiming and settling intents; every step is one statement."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import F, Q

from apps.core import clock
from apps.core.middleware import request_id_var
from apps.intents.models import Intent

#: A claim holds this long; longer than any task may live (hard limit 90 s), shorter than the broker's redelivery.
LEASE_S = 120
FIRST_BACKOFF_S = 1
LONGEST_BACKOFF_S = 900

_doorbell: Callable[[], None] | None = None


def set_doorbell(ring: Callable[[], None]) -> None:
    """Tell this app how to wake the worker; the composition root does."""
    global _doorbell
    _doorbell = ring


@dataclass(frozen=True)
class Claim:
    """A leased intent: the ticket that the visit may settle."""

    kind: str
    key: str
    ticket: str
    lease: str
    attempts: int
    request_id: str
    asked_at: object


def intent_ask(kind: str, key: str, *, delay_s: float = 0) -> None:
    """Ask the worker to look at a thing; call it in the transaction that changed the thing.

    An upsert: an intent that is already there gets a new ticket and becomes due now.
    """
    now = clock.now()
    Intent.objects.bulk_create(
        [
            Intent(
                kind=kind,
                key=key,
                ticket=uuid.uuid4().hex,
                due_at=now + timedelta(seconds=delay_s),
                asked_at=now,
                request_id=request_id_var.get(),
                attempts=0,
                last_error="",
            )
        ],
        update_conflicts=True,
        unique_fields=["kind", "key"],
        update_fields=["ticket", "due_at", "asked_at", "request_id", "attempts", "last_error"],
    )
    if _doorbell is not None and not delay_s:
        transaction.on_commit(_doorbell, robust=True)


def intents_claim(limit: int = 1, kinds: Sequence[str] | None = None, paused_keys: Sequence[str] = ()) -> list[Claim]:
    """Lease up to ``limit`` due intents, oldest first, each by one conditional UPDATE.

    Two claimers never hold the same row: the UPDATE asks for a free lease and the row count decides.
    """
    now = clock.now()
    free = Q(leased_until__isnull=True) | Q(leased_until__lt=now)
    due = Intent.objects.filter(free, due_at__lte=now).order_by("due_at", "id")
    if kinds is not None:
        due = due.filter(kind__in=list(kinds))
    if paused_keys:
        due = due.exclude(key__in=list(paused_keys))
    claims: list[Claim] = []
    # More candidates than wanted: neighbours may take some of them between our read and our UPDATE.
    for row in due[: limit * 4]:
        lease = uuid.uuid4().hex
        changed = Intent.objects.filter(free, pk=row.pk, ticket=row.ticket).update(
            lease=lease, leased_until=now + timedelta(seconds=LEASE_S), attempts=F("attempts") + 1
        )
        if changed == 1:
            claims.append(Claim(row.kind, row.key, row.ticket, lease, row.attempts + 1, row.request_id, row.asked_at))
            if len(claims) >= limit:
                break
    return claims


def intent_settle(claim: Claim, *, again_in_s: float | None = None) -> None:
    """End a visit: delete the row, or make it due again; if it was asked anew meanwhile, only free it."""
    mine = Intent.objects.filter(kind=claim.kind, key=claim.key, lease=claim.lease)
    if again_in_s is None:
        deleted, _detail = mine.filter(ticket=claim.ticket).delete()
        if deleted:
            return
    else:
        changed = mine.filter(ticket=claim.ticket).update(
            due_at=clock.now() + timedelta(seconds=again_in_s),
            attempts=0,
            lease="",
            leased_until=None,
            last_error="",
        )
        if changed:
            return
    mine.update(lease="", leased_until=None)


def backoff_s(attempts: int) -> float:
    """1 s doubling to 15 min."""
    return float(min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(max(0, attempts - 1), 12)))


def intent_fail(claim: Claim, error: str, *, again_in_s: float | None = None) -> None:
    """A visit failed: keep the row, push it back, remember why; if it was asked anew, it stays due now."""
    mine = Intent.objects.filter(kind=claim.kind, key=claim.key, lease=claim.lease)
    wait = backoff_s(claim.attempts) if again_in_s is None else again_in_s
    changed = mine.filter(ticket=claim.ticket).update(
        due_at=clock.now() + timedelta(seconds=wait), lease="", leased_until=None, last_error=error[:500]
    )
    if not changed:
        mine.update(lease="", leased_until=None, last_error=error[:500])
