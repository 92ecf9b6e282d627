"""What the worker writes about reservations, searches and purchases: every status column, each conditionally."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Protocol

from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.audit.services import event
from apps.capacity import rules
from apps.capacity.models import OfferingSearch, Purchase, Reservation
from apps.capacity.states import (
    ENDED,
    LIVE,
    PREPAID,
    PURCHASE_TRANSITIONS,
    SEARCH_TRANSITIONS,
    PurchaseKind,
    PurchasePhase,
    ReservationPhase,
    SearchPhase,
)
from apps.catalog.selectors import price_words, type_by_name
from apps.connections.models import CloudAccount
from apps.core import clock, ids
from apps.core.said import brief, said
from apps.core.states import move
from apps.intents.services import intent_ask

#: AWS's words and ours.
PHASE_OF: Final[Mapping[str, str]] = {
    "active": ReservationPhase.ACTIVE,
    "expired": ReservationPhase.EXPIRED,
    "cancelled": ReservationPhase.CANCELLED,
    "cancelling": ReservationPhase.CANCELLED,
    "pending": ReservationPhase.PENDING,
    "assessing": ReservationPhase.PENDING,
    "delayed": ReservationPhase.PENDING,
    "failed": ReservationPhase.FAILED,
    "unsupported": ReservationPhase.FAILED,
    "unavailable": ReservationPhase.FAILED,
    "scheduled": ReservationPhase.SCHEDULED,
    "payment-pending": ReservationPhase.PAYMENT_PENDING,
    "payment-failed": ReservationPhase.FAILED,
    # SageMaker's
    "Pending": ReservationPhase.PAYMENT_PENDING,
    "Active": ReservationPhase.ACTIVE,
    "Scheduled": ReservationPhase.SCHEDULED,
    "Expired": ReservationPhase.EXPIRED,
    "Failed": ReservationPhase.FAILED,
}
WATCH_INTENT: Final = "reservation.watch"
#: Columns that AWS decides and that a read may change.
_SEEN: Final = (
    "instances",
    "available_instances",
    "zone_name",
    "zone_id",
    "match_criteria",
    "platform",
    "tenancy",
    "placement_group_arn",
    "start_at",
    "end_at",
    "observed_state",
)


class Seen(Protocol):
    """What a provider tells about one reservation."""

    @property
    def provider_id(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def instance_type(self) -> str: ...
    @property
    def instances(self) -> int: ...
    @property
    def available(self) -> int | None: ...
    @property
    def name(self) -> str: ...
    @property
    def zone_name(self) -> str: ...
    @property
    def zone_id(self) -> str: ...
    @property
    def match_criteria(self) -> str: ...
    @property
    def platform(self) -> str: ...
    @property
    def tenancy(self) -> str: ...
    @property
    def placement_group_arn(self) -> str: ...
    @property
    def start_at(self) -> datetime | None: ...
    @property
    def end_at(self) -> datetime | None: ...
    @property
    def created_at(self) -> datetime | None: ...
    @property
    def usd_upfront(self) -> Decimal | None: ...
    @property
    def tags(self) -> Mapping[str, str]: ...


def reservations_observe(
    account: CloudAccount, seen: Iterable[Seen], *, kinds: Sequence[str], uid_tag: str
) -> tuple[int, int]:
    """Bring the rows of these kinds in line with one read of the account; (looked at, written).

    What is not known yet becomes a row: ours where its tag names a purchase, adopted otherwise. A row whose
    reservation AWS no longer lists has ended.
    """
    known = {r.provider_id: r for r in Reservation.objects.filter(account=account, kind__in=kinds)}
    looked = written = 0
    found: set[str] = set()
    for one in seen:
        looked += 1
        found.add(one.provider_id)
        row = known.get(one.provider_id)
        if row is None:
            written += reservation_add(account, one, uid_tag=uid_tag) is not None
        else:
            written += _observe(row, one)
    for provider_id, row in known.items():
        if provider_id and provider_id not in found and row.phase in LIVE:
            over = row.end_at is not None and row.end_at <= clock.now()
            phase = ReservationPhase.EXPIRED if over else ReservationPhase.CANCELLED
            _take(row, phase, {"available_instances": 0}, said(_("AWS no longer lists it")))
            written += 1
    return looked, written


def reservation_add(account: CloudAccount, one: Seen, *, uid_tag: str) -> Reservation | None:
    """A row for what AWS has and we have not; None for what had ended before we ever saw it."""
    purchase = Purchase.objects.filter(uid=one.tags.get(uid_tag, "-"), account=account).first()
    phase = PHASE_OF.get(one.state, ReservationPhase.PENDING)
    if purchase is None and phase in ENDED:
        return None
    row = Reservation(
        account=account,
        kind=one.kind,
        name=purchase.name if purchase is not None else one.name[:120],
        team=purchase.team if purchase is not None else None,
        is_adopted=purchase is None,
        provider_id=one.provider_id,
        instance_type=one.instance_type,
        instances=one.instances,
        phase=phase,
        observed_at=clock.now(),
        **{k: v for k, v in _values(one).items() if k != "instances"},
    )
    _price(row, one, purchase)
    with transaction.atomic():
        row.save()
        kind = "ReservationAdopted" if row.is_adopted else "ReservationBought"
        event("reservation", row.uid, kind, row.provider_id, data={"state": one.state})
        intent_ask(WATCH_INTENT, row.uid)
    return row


def _price(row: Reservation, one: Seen, purchase: Purchase | None) -> None:
    if row.kind in PREPAID:
        upfront = one.usd_upfront
        if upfront is None and purchase is not None and purchase.kind != PurchaseKind.ODCR:
            # Of a purchase in several parts, each part has its share by its hours.
            whole, part = _hours(purchase.start_at, purchase.end_at), _hours(row.start_at, row.end_at)
            if purchase.usd_upfront is not None and whole:
                share = Decimal(str(min(1.0, part / whole)))
                upfront = (purchase.usd_upfront * share).quantize(Decimal("0.01"))
        row.usd_upfront = upfront
        row.usd_per_hour = rules.usd_per_instance_hour(upfront, row.instances, _hours(row.start_at, row.end_at))
        row.price_source = "UpfrontFee" if upfront is not None else ""
        return
    known = type_by_name(row.instance_type)
    if known is not None and known.usd_per_hour is not None:
        row.usd_per_hour = known.usd_per_hour
        row.price_source = str(price_words(known, row.account.region))[:200]


def _hours(start: datetime | None, end: datetime | None) -> float:
    return 0.0 if start is None or end is None else max(0.0, (end - start).total_seconds() / 3600)


def _values(one: Seen) -> dict[str, Any]:
    return {
        "instances": one.instances,
        "available_instances": one.available,
        "zone_name": one.zone_name,
        "zone_id": one.zone_id,
        "match_criteria": one.match_criteria[:10],
        "platform": one.platform,
        "tenancy": one.tenancy,
        "placement_group_arn": one.placement_group_arn,
        "start_at": one.start_at,
        "end_at": one.end_at,
        "observed_state": one.state,
    }


def _observe(row: Reservation, one: Seen) -> bool:
    values = _values(one)
    changed = {name: values[name] for name in _SEEN if getattr(row, name) != values[name]}
    phase = PHASE_OF.get(one.state, row.phase)
    if "end_at" in changed and row.end_at is not None and one.end_at is not None and one.end_at > row.end_at:
        # Extended: the marks of the old end are no longer due.
        changed |= {"warned_at": None, "checkpoint_asked_at": None, "drain_asked_at": None, "terminate_asked_at": None}
    if phase == row.phase and not changed:
        return False
    _take(row, phase, changed, "" if phase not in ENDED else row.message)
    return True


def _take(row: Reservation, phase: str, columns: dict[str, Any], message: str) -> None:
    """AWS is the truth here: whatever it says is where the reservation is."""
    old = row.phase
    now = clock.now()
    columns = {**columns, "phase": phase, "observed_at": now, "message": brief(message, 500)}
    if phase != old:
        columns["phase_since"] = now
        if phase in ENDED:
            columns["ended_at"] = now
    with transaction.atomic():
        if not Reservation.objects.filter(pk=row.pk, phase=old).update(**columns):
            return
        for name, value in columns.items():
            setattr(row, name, value)
        if phase != old:
            text = message or row.provider_id
            event("reservation", row.uid, f"Reservation{phase.title().replace('_', '')}", text, data={"from": old})
        intent_ask(WATCH_INTENT, row.uid)


def reservations_read(account: CloudAccount, kinds: Sequence[str]) -> None:
    """All live rows were looked at now; one statement."""
    Reservation.objects.filter(account=account, kind__in=kinds, phase__in=LIVE).update(observed_at=clock.now())


def mark_once(reservation: Reservation, column: str, kind: str, text: str, data: dict[str, Any] | None = None) -> bool:
    """Write one mark of the end and its event; False where another visit was first."""
    with transaction.atomic():
        now = clock.now()
        changed = Reservation.objects.filter(pk=reservation.pk, **{f"{column}__isnull": True}).update(**{column: now})
        if not changed:
            return False
        setattr(reservation, column, now)
        event("reservation", reservation.uid, kind, text, data=data or {}, team_id=reservation.team_id)
    return True


def reservation_say(reservation: Reservation, message: str) -> None:
    """The newest sentence about it."""
    if reservation.message != message:
        Reservation.objects.filter(pk=reservation.pk).update(message=brief(message, 500))
        reservation.message = message


def extension_priced(row: Reservation, purchase: Purchase) -> None:
    """Spread what was paid for an extension over the block's hours, old and new."""
    upfront = None
    if row.usd_upfront is not None and purchase.usd_upfront is not None:
        upfront = row.usd_upfront + purchase.usd_upfront
    hours = 0.0
    if row.start_at is not None and purchase.end_at is not None:
        hours = (purchase.end_at - row.start_at).total_seconds() / 3600
    each = rules.usd_per_instance_hour(upfront, row.instances, hours)
    Reservation.objects.filter(pk=row.pk).update(usd_upfront=upfront, usd_per_hour=each)


def charged_until(reservation: Reservation, until: datetime) -> None:
    """Up to which whole hour the ledger has it; it never goes back."""
    Reservation.objects.filter(pk=reservation.pk).exclude(charged_until__gte=until).update(charged_until=until)
    reservation.charged_until = until


# --- searches


def search_answered(search: OfferingSearch, offers: Sequence[Mapping[str, Any]], message: str = "") -> None:
    """AWS's answer, or none."""
    move(
        search,
        SEARCH_TRANSITIONS,
        SearchPhase.DONE,
        offers=list(offers),
        answered_at=clock.now(),
        message=brief(message, 500),
    )


def search_failed(search: OfferingSearch, message: str) -> None:
    """AWS refused the question."""
    move(search, SEARCH_TRANSITIONS, SearchPhase.FAILED, answered_at=clock.now(), message=brief(message, 500))


# --- purchases


def purchase_attempt(purchase: Purchase) -> bool:
    """Commit that the one call is made now; False where it was made or decided otherwise before.

    Whoever gets True makes the call, at once and once. A row that has ``attempted_at`` never gives True again.
    """
    now = clock.now()
    token = ids.idempotency_token(purchase.uid, 1, "buy")
    with transaction.atomic():
        changed = Purchase.objects.filter(
            pk=purchase.pk, phase=PurchasePhase.APPROVED, attempted_at__isnull=True
        ).update(
            phase=PurchasePhase.BUYING,
            attempted_at=now,
            phase_since=now,
            observed_at=now,
            client_token=token,
            message="",
        )
        if changed != 1:
            return False
        purchase.phase, purchase.attempted_at, purchase.client_token = PurchasePhase.BUYING, now, token
        purchase.message = ""
        event("purchase", purchase.uid, "PurchaseAttempted", purchase.offering_id, team_id=purchase.team_id)
    return True


def purchase_move(purchase: Purchase, phase: str, message: str = "", **columns: Any) -> None:
    """Take it to another phase with what is known."""
    columns |= {"message": brief(message, 500), "observed_at": clock.now()}
    if phase in (PurchasePhase.BOUGHT, PurchasePhase.FAILED, PurchasePhase.EXPIRED):
        columns["ended_at"] = clock.now()
    with transaction.atomic():
        move(purchase, PURCHASE_TRANSITIONS, phase, **columns)
        event("purchase", purchase.uid, f"Purchase{phase.title()}", message or purchase.name, team_id=purchase.team_id)


def purchase_say(purchase: Purchase, message: str, **columns: Any) -> None:
    """The newest sentence, and evidence."""
    columns |= {"message": brief(message, 500)}
    changed = {k: v for k, v in columns.items() if getattr(purchase, k) != v}
    if changed:
        Purchase.objects.filter(pk=purchase.pk).update(**changed)
        for name, value in changed.items():
            setattr(purchase, name, value)


def evidence(purchase: Purchase, seen: Iterable[Seen], uid_tag: str) -> list[dict[str, Any]]:
    """What appeared in the account since the attempt and carries no tag of another purchase."""
    if purchase.attempted_at is None:
        return []
    since = purchase.attempted_at - timedelta(minutes=1)
    taken = set(
        Reservation.objects.filter(account=purchase.account, is_adopted=False).values_list("provider_id", flat=True)
    )
    return [
        {
            "provider_id": one.provider_id,
            "instance_type": one.instance_type,
            "instances": one.instances,
            "zone_name": one.zone_name,
            "state": one.state,
            "start_at": clock.iso(one.start_at),
            "end_at": clock.iso(one.end_at),
            "created_at": clock.iso(one.created_at),
            "fits": (one.instance_type, one.instances, one.zone_name)
            == (purchase.instance_type, purchase.instances, purchase.zone_name or one.zone_name),
        }
        for one in seen
        if one.created_at is not None
        and one.created_at >= since
        and one.provider_id not in taken
        and one.tags.get(uid_tag, purchase.uid) == purchase.uid
    ]
