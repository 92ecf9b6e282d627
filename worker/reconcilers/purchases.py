"""Searches for offers, and purchases: one attempt, never repeated; a doubt is settled by looking, not by trying.

AWS takes no token for a purchase. The attempt is therefore committed before the call, and only the visit that
committed it calls. Whoever finds it committed (a redelivery, a worker after a crash) looks for what carries the
purchase's tag, and says "unknown" with what it saw until that turns up or a person decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext_noop as _

from apps.capacity import observations, rules
from apps.capacity.models import Purchase, Reservation
from apps.capacity.selectors import purchase_by_uid, reservation_by_uid, search_by_uid
from apps.capacity.states import LIVE, PurchaseKind, PurchasePhase, SearchPhase
from apps.core import clock
from apps.core.said import said
from apps.intents.services import intent_ask
from worker import doors
from worker.collectors.reservations import KIND as READ_KIND
from worker.engine import DONE, Outcome, again
from worker.providers import capacity_values as cv
from worker.providers import values as v
from worker.providers.errors import (
    Conflict,
    InsufficientCapacity,
    NotFound,
    ProviderError,
    Throttled,
    Unavailable,
    Unknown,
)
from worker.providers.ports import Capacity

#: A purchase shows in AWS's lists within seconds; later looks are for what AWS was slow to list.
LOOK_S = 15.0
LOOK_SELDOM_S = 300.0
LOOK_CLOSELY_S = 900.0
#: In a paused account nothing is read; whether it still is, is looked at after this time.
PAUSED_S = 30.0
#: How much earlier than ours AWS's clock may stamp what our call did.
CLOCKS_DIFFER = timedelta(minutes=1)
#: AWS's words for what became of an extension's price.
_PAID, _UNPAID = "payment-succeeded", "payment-failed"
#: No connection was made: the call cannot have taken effect.
_NEVER_SENT = frozenset({"EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError"})


def search(uid: str) -> Outcome:
    """Ask AWS what is on sale."""
    row = search_by_uid(uid)
    if row is None or row.phase != SearchPhase.PENDING:
        return DONE
    if row.account.is_paused:
        return again(PAUSED_S)
    capacity, asked = doors.capacity_for(row.account), row.criteria
    query = cv.OfferingQuery(
        instance_type=rules.ULTRASERVER_TYPE if row.kind == PurchaseKind.ULTRASERVER_BLOCK else asked["instance_type"],
        instances=asked["instances"],
        hours=asked["hours"],
        start_at=parse_datetime(asked["start_at"]) if asked.get("start_at") else None,
        end_at=parse_datetime(asked["end_at"]) if asked.get("end_at") else None,
        ultraserver=asked["instance_type"] if row.kind == PurchaseKind.ULTRASERVER_BLOCK else "",
    )
    try:
        if row.kind == PurchaseKind.EXTENSION:
            assert row.reservation is not None
            found = capacity.extension_offerings(row.reservation.provider_id, query.hours)
        elif row.kind == PurchaseKind.TRAINING_PLAN:
            found = capacity.plan_offerings(query)
        else:
            found = capacity.block_offerings(query)
    except (Throttled, Unavailable):
        raise
    except ProviderError as error:
        observations.search_failed(row, str(error))
        return DONE
    zones = set(asked.get("zones") or [])
    chosen = [o for o in found if not zones or o.zone_name in zones or o.zone_id in zones]
    observations.search_answered(row, [_plain(o) for o in sorted(chosen, key=lambda o: (o.start_at, o.usd_upfront))])
    return DONE


def _plain(offer: cv.Offering) -> dict[str, Any]:
    hours = (offer.end_at - offer.start_at).total_seconds() / 3600
    each = rules.usd_per_instance_hour(offer.usd_upfront, offer.instances, hours)
    per_gpu = rules.usd_per_gpu_hour(each, offer.instance_type)
    return {
        "offering_id": offer.offering_id,
        "instance_type": offer.instance_type,
        "instances": offer.instances,
        "zone_name": offer.zone_name,
        "zone_id": offer.zone_id,
        "start_at": clock.iso(offer.start_at),
        "end_at": clock.iso(offer.end_at),
        "hours": offer.hours,
        "usd_upfront": str(offer.usd_upfront),
        "usd_per_gpu_hour": None if per_gpu is None else str(per_gpu),
        "currency": offer.currency,
        "ultraserver": offer.ultraserver,
        "parts": offer.parts,
    }


def buy(uid: str) -> Outcome:
    """Buy what was approved, once; or settle a doubt by looking."""
    purchase = purchase_by_uid(uid)
    if purchase is None:
        return DONE
    match purchase.phase:
        case PurchasePhase.REQUESTED:
            return _wait_or_expire(purchase)
        case PurchasePhase.APPROVED:
            return _buy(purchase)
        case PurchasePhase.BUYING:
            # The call was made, or its worker died just before it; nobody saw its end.
            if purchase.kind == PurchaseKind.ODCR:
                return _again(purchase)
            why = said(_("the worker ended around the call;"))
            observations.purchase_move(purchase, PurchasePhase.UNKNOWN, why)
            return again(0)
        case PurchasePhase.UNKNOWN | PurchasePhase.PAYING if purchase.account.is_paused:
            return again(PAUSED_S)
        case PurchasePhase.UNKNOWN:
            return _look(purchase) if purchase.account.is_trusted else again(10)
        case PurchasePhase.PAYING:
            return _await_payment(purchase) if purchase.account.is_trusted else again(10)
    return DONE


def _wait_or_expire(purchase: Purchase) -> Outcome:
    if purchase.good_until is not None and clock.now() >= purchase.good_until:
        observations.purchase_move(purchase, PurchasePhase.EXPIRED, said(_("nobody decided while it was good")))
        return DONE
    return again(60)


def _buy(purchase: Purchase) -> Outcome:
    account = purchase.account
    if not _may_buy(purchase):
        text = said(_("account %(name)s is paused or allows no purchases; nothing is bought"), name=account.name)
        if purchase.good_until is None or clock.now() < purchase.good_until:
            observations.purchase_say(purchase, text)
            return again(30)
        observations.purchase_move(purchase, PurchasePhase.EXPIRED, text)
        return DONE
    if purchase.good_until is not None and clock.now() >= purchase.good_until:
        observations.purchase_move(
            purchase, PurchasePhase.EXPIRED, said(_("the offer was too old when it came to buying"))
        )
        return DONE
    # The door is opened first: bad credentials must not use the attempt up.
    capacity = doors.capacity_for(account)
    if not observations.purchase_attempt(purchase):
        return again(0)
    return _call(purchase, capacity)


def _may_buy(purchase: Purchase) -> bool:
    account = purchase.account
    return account.is_trusted and account.allows_purchases and not account.is_paused


def _again(purchase: Purchase) -> Outcome:
    """An ODCR whose call nobody saw the end of: looked for by tag, then asked again if all still holds."""
    if not purchase.account.is_trusted:
        return again(10)
    if purchase.account.is_paused:
        observations.purchase_move(purchase, PurchasePhase.UNKNOWN, said(_("the worker ended around the call;")))
        return again(PAUSED_S)
    capacity = doors.capacity_for(purchase.account)
    ours = [one for one in _seen(purchase, capacity) if _is_ours(purchase, one)]
    if ours:
        _bought(purchase, capacity, [one.provider_id for one in ours])
        return DONE
    if not _may_buy(purchase) or (purchase.good_until is not None and clock.now() >= purchase.good_until):
        why = said(_("the worker ended around the call;"))
        observations.purchase_move(purchase, PurchasePhase.UNKNOWN, why)
        return again(0)
    return _call(purchase, capacity, is_repeat=True)


def _call(purchase: Purchase, capacity: Capacity, *, is_repeat: bool = False) -> Outcome:
    """The one call. An ODCR's has a token: asked again, it answers with what it made."""
    tags = {
        v.TAG_UID: purchase.uid,
        v.TAG_TEAM: purchase.team.slug if purchase.team else "shared",
        "Name": purchase.name,
    }
    try:
        match purchase.kind:
            case PurchaseKind.EXTENSION:
                assert purchase.extends is not None
                capacity.extension_purchase(purchase.offering_id, purchase.extends.provider_id)
                observations.purchase_move(purchase, PurchasePhase.PAYING)
                return again(2)
            case PurchaseKind.TRAINING_PLAN:
                ids: Sequence[str] = [capacity.plan_purchase(purchase.offering_id, plan_name(purchase), tags)]
            case PurchaseKind.ODCR:
                spec = cv.OdcrSpec(
                    purchase.instance_type,
                    purchase.instances,
                    purchase.zone_name,
                    purchase.offer.get("match_criteria", "targeted"),
                    tags,
                    purchase.end_at,
                )
                ids = [capacity.odcr_create(spec, purchase.client_token).provider_id]
            case _:
                ids = capacity.block_purchase(purchase.offering_id, tags)
    except (Unavailable, Unknown) as error:
        if error.code in _NEVER_SENT and not is_repeat:
            text = said(_("AWS was not reached, the call was not sent: %(error)s"), error=str(error))
            observations.purchase_move(purchase, PurchasePhase.FAILED, text)
            return DONE
        if purchase.kind == PurchaseKind.ODCR:
            text = said(_("no clear answer (%(error)s); asking again with the same token"), error=str(error))
            observations.purchase_say(purchase, text)
            return again(LOOK_S)
        text = said(_("no clear answer (%(error)s);"), error=str(error))
        observations.purchase_move(purchase, PurchasePhase.UNKNOWN, text)
        return again(2)
    except (ProviderError, InsufficientCapacity) as error:
        if isinstance(error, Conflict) and purchase.kind == PurchaseKind.TRAINING_PLAN:
            # The name is ours alone: a plan of this name is the one an earlier call bought.
            observations.purchase_move(purchase, PurchasePhase.UNKNOWN, str(error))
            return again(0)
        if is_repeat:
            # This call was refused; what the one before it did is not known.
            observations.purchase_move(purchase, PurchasePhase.UNKNOWN, str(error))
            return again(LOOK_S)
        observations.purchase_move(purchase, PurchasePhase.FAILED, str(error))
        return DONE
    _bought(purchase, capacity, ids)
    return DONE


def plan_name(purchase: Purchase) -> str:
    """The name of a training plan, which AWS takes once: from the purchase's uid."""
    return "qd-" + purchase.uid.replace("_", "-")


def _seen(purchase: Purchase, capacity: Capacity) -> tuple[cv.SeenReservation, ...]:
    if purchase.kind == PurchaseKind.TRAINING_PLAN:
        return capacity.training_plans()
    return capacity.reservations()


def _is_ours(purchase: Purchase, one: cv.SeenReservation) -> bool:
    return one.tags.get(v.TAG_UID) == purchase.uid or one.name == plan_name(purchase)


def _bought(purchase: Purchase, capacity: Capacity, ids: Sequence[str]) -> None:
    """Its reservations become rows now; where AWS does not list them yet, the collector makes them."""
    first = None
    try:
        seen = {one.provider_id: one for one in _seen(purchase, capacity)}
    except ProviderError:
        seen = {}
    for provider_id in ids:
        one = seen.get(provider_id)
        row = _row(purchase, one) if one is not None else None
        first = first or row
    observations.purchase_move(purchase, PurchasePhase.BOUGHT, "", reservation=first)


def _row(purchase: Purchase, one: cv.SeenReservation) -> Reservation | None:
    known = Reservation.objects.filter(account=purchase.account, provider_id=one.provider_id).first()
    if known is None:
        tagged = cv.SeenReservation(**{**_fields(one), "tags": {**one.tags, v.TAG_UID: purchase.uid}})
        return observations.reservation_add(purchase.account, tagged, uid_tag=v.TAG_UID)
    if known.is_adopted:
        Reservation.objects.filter(pk=known.pk).update(is_adopted=False, name=purchase.name, team=purchase.team)
    return known


def _fields(one: cv.SeenReservation) -> dict[str, Any]:
    return {name: getattr(one, name) for name in cv.SeenReservation.__dataclass_fields__}


def _await_payment(purchase: Purchase) -> Outcome:
    """An extension that AWS has sold and not charged yet: it is bought when it is paid, and not when it is not."""
    states = _extension_states(purchase, doors.capacity_for(purchase.account))
    if _PAID in states:
        return _extended(purchase)
    if states == {_UNPAID}:
        return _unpaid(purchase)
    return again(_pause(purchase))


def _extensions(purchase: Purchase, capacity: Capacity) -> list[cv.SeenExtension]:
    """What the block was extended by since our call; an older extension of the same offering says nothing of it."""
    assert purchase.extends is not None
    assert purchase.attempted_at is not None
    since = purchase.attempted_at - CLOCKS_DIFFER
    history = capacity.extensions(purchase.extends.provider_id)
    return [e for e in history if e.bought_at is None or e.bought_at >= since]


def _extension_states(purchase: Purchase, capacity: Capacity) -> set[str]:
    return {e.state for e in _extensions(purchase, capacity) if e.offering_id == purchase.offering_id}


def _unpaid(purchase: Purchase) -> Outcome:
    text = said(_("AWS could not charge it; nothing was paid and the block ends as before"))
    observations.purchase_move(purchase, PurchasePhase.FAILED, text)
    return DONE


def _extended(purchase: Purchase) -> Outcome:
    row = reservation_by_uid(purchase.extends.uid) if purchase.extends is not None else None
    # One commit: a crash in between would add the price twice.
    with transaction.atomic():
        if row is not None:
            observations.extension_priced(row, purchase)
        observations.purchase_move(purchase, PurchasePhase.BOUGHT, "", reservation=row)
        # Its new end is read at once: the clock of the old one must not give back what was just paid for.
        intent_ask(READ_KIND, purchase.account.uid)
    return DONE


def _look(purchase: Purchase) -> Outcome:
    """Find what carries our tag; what else appeared since is the evidence a person decides by."""
    capacity = doors.capacity_for(purchase.account)
    if purchase.kind == PurchaseKind.EXTENSION:
        history = _extensions(purchase, capacity)
        mine = {e.state for e in history if e.offering_id == purchase.offering_id}
        if _PAID in mine:
            return _extended(purchase)
        if mine == {_UNPAID}:
            return _unpaid(purchase)
        if mine:
            observations.purchase_move(purchase, PurchasePhase.PAYING)
            return again(2)
        found = [
            {"provider_id": e.provider_id, "state": e.state, "end_at": clock.iso(e.end_at), "fits": False}
            for e in history
        ]
        observations.purchase_say(purchase, purchase.message, candidates=found)
        return again(_pause(purchase))
    seen = _seen(purchase, capacity)
    ours = [one for one in seen if _is_ours(purchase, one)]
    if ours:
        _bought(purchase, capacity, [one.provider_id for one in ours])
        return DONE
    observations.purchase_say(purchase, purchase.message, candidates=observations.evidence(purchase, seen, v.TAG_UID))
    return again(_pause(purchase))


def _pause(purchase: Purchase) -> float:
    since = (clock.now() - purchase.phase_since).total_seconds()
    return LOOK_S if since < LOOK_CLOSELY_S else LOOK_SELDOM_S


def cancel(uid: str) -> Outcome:
    """Give an ODCR back; the collector sees when AWS has done so."""
    row = reservation_by_uid(uid)
    if row is None or row.delete_requested_at is None or row.phase not in LIVE or row.is_adopted:
        return DONE
    if row.account.is_paused or not row.account.is_trusted:
        return again(30)
    try:
        doors.capacity_for(row.account).odcr_cancel(row.provider_id)
    except (NotFound, Conflict):
        pass
    except (Throttled, Unavailable):
        raise
    except ProviderError as error:
        observations.reservation_say(row, said(_("not cancelled: %(error)s"), error=str(error)))
        return again(300)
    intent_ask(READ_KIND, row.account.uid)
    return again(60)
