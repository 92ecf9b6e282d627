"""What the sweep writes about orphans: seen, gone, not removable yet."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db import IntegrityError, transaction

from apps.audit.services import event
from apps.capacity.orphan_models import Orphan
from apps.capacity.orphan_states import ORPHAN_LIVE, ORPHAN_TRANSITIONS, OrphanPhase
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.core.said import brief
from apps.core.states import move


@dataclass(frozen=True)
class SeenOrphan:
    """A thing in the account whose tag names nothing that lives here."""

    kind: str
    provider_id: str
    tagged_uid: str
    has_row: bool
    state: str
    instance_type: str
    usd_per_hour: Decimal | None
    price_source: str
    created_at: datetime | None


def orphan_seen(account: CloudAccount, seen: SeenOrphan) -> Orphan:
    """Its row: made at the first sight, refreshed at the next, found again where AWS had stopped listing it."""
    now = clock.now()
    facts = {
        "tagged_uid": seen.tagged_uid,
        "has_row": seen.has_row,
        "state": seen.state,
        "instance_type": seen.instance_type,
        "usd_per_hour": seen.usd_per_hour,
        "price_source": seen.price_source,
        "provider_created_at": seen.created_at,
        "last_seen_at": now,
    }
    key = {"account": account, "kind": seen.kind, "provider_id": seen.provider_id}
    orphan = Orphan.objects.filter(**key).first()
    if orphan is None:
        try:
            with transaction.atomic():
                orphan = Orphan.objects.create(**key, **facts)
                data = {"kind": seen.kind, "provider_id": seen.provider_id, "uid": seen.tagged_uid}
                text = f"{seen.kind} {seen.provider_id} of {seen.tagged_uid} has no owner"
                event("account", account.uid, "OrphanFound", text, data=data)
            return orphan
        except IntegrityError:
            orphan = Orphan.objects.get(**key)
    if orphan.phase == OrphanPhase.GONE:
        move(orphan, ORPHAN_TRANSITIONS, OrphanPhase.FOUND, first_seen_at=now, kept_reason="", kept_by="")
    Orphan.objects.filter(pk=orphan.pk).update(**facts)
    for name, value in facts.items():
        setattr(orphan, name, value)
    return orphan


def orphans_gone(account: CloudAccount, kinds: Collection[str], still: Collection[tuple[str, str]]) -> int:
    """Of these kinds, whatever was not seen among ``still`` (kind, id) is gone; how many went."""
    went = 0
    for orphan in Orphan.objects.filter(account=account, kind__in=kinds, phase__in=sorted(ORPHAN_LIVE)):
        if (orphan.kind, orphan.provider_id) in still:
            continue
        with transaction.atomic():
            move(orphan, ORPHAN_TRANSITIONS, OrphanPhase.GONE)
            data = {"kind": orphan.kind, "provider_id": orphan.provider_id, "uid": orphan.tagged_uid}
            text = f"{orphan.kind} {orphan.provider_id} of {orphan.tagged_uid} had no owner"
            event("account", account.uid, "OrphanRemoved", text, data=data)
        went += 1
    return went


def orphan_say(orphan: Orphan, message: str) -> None:
    """Why it is still there."""
    Orphan.objects.filter(pk=orphan.pk).update(message=brief(message, 500))
