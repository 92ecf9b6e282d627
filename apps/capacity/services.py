"""What people do with reserved capacity; what the worker writes is in ``observations``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from apps.audit.services import event, record
from apps.capacity import rules
from apps.capacity.models import OfferingSearch, Purchase, Reservation
from apps.capacity.observations import extension_priced
from apps.capacity.permissions import can_approve_purchase, can_operate_capacity
from apps.capacity.states import (
    BLOCKS,
    LIVE,
    PURCHASE_TRANSITIONS,
    PurchaseKind,
    PurchasePhase,
    ReservationKind,
    ReservationPhase,
    SearchPhase,
)
from apps.catalog.selectors import price_words, type_by_name
from apps.connections.models import CloudAccount
from apps.connections.states import AccountPhase
from apps.core import clock
from apps.core.errors import FieldProblem, Forbidden, InvalidInput, Refusal, TransitionConflict
from apps.core.said import said
from apps.core.states import move
from apps.intents.services import intent_ask
from apps.teams.models import Team
from apps.teams.permissions import Actor

SEARCH_INTENT = "offering.search"
PURCHASE_INTENT = "purchase.buy"
CANCEL_INTENT = "reservation.cancel"
_NAME = re.compile(r"^[a-z0-9](-?[a-z0-9]){0,57}$")


class PurchasesOff(Refusal):
    """The account does not allow purchases."""

    status = 403


class OwnRequest(Refusal):
    """Nobody approves what they asked for themselves."""

    status = 403


class OfferGone(Refusal):
    """The offer is no longer the one that was looked at."""


def _operate(actor: Actor) -> None:
    if not can_operate_capacity(actor):
        raise Forbidden(_("only operators and administrators do this"))


def _refuse(problems: Sequence[FieldProblem]) -> None:
    if problems:
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=problems)


def _usable(account: CloudAccount) -> None:
    if account.phase != AccountPhase.CONNECTED:
        raise TransitionConflict(
            _("account %(name)s is not connected: %(why)s")
            % {"name": account.name, "why": account.message or _("still checking")}
        )
    if account.is_paused:
        raise TransitionConflict(_("account %(name)s is paused; resume it first") % {"name": account.name})


def _buyable(account: CloudAccount) -> None:
    _usable(account)
    if not account.allows_purchases:
        raise PurchasesOff(
            _("account %(name)s does not allow purchases; an administrator allows them on its page")
            % {"name": account.name}
        )


# --- searches


def offering_search(
    *,
    actor: Actor,
    account: CloudAccount,
    kind: str,
    instance_type: str,
    instances: int,
    days: int,
    start_at: datetime | None = None,
    end_at: datetime | None = None,
    zones: Sequence[str] = (),
) -> OfferingSearch:
    """Ask AWS what is on sale. Raises Forbidden, InvalidInput, TransitionConflict."""
    _operate(actor)
    if kind not in (PurchaseKind.CAPACITY_BLOCK, PurchaseKind.ULTRASERVER_BLOCK, PurchaseKind.TRAINING_PLAN):
        text = _("%(value)s is not one of %(known)s") % {
            "value": kind,
            "known": "capacity-block, ultraserver-block, training-plan",
        }
        _refuse([FieldProblem("/kind", "unknown", text)])
    _refuse(rules.search_problems(kind, instance_type, instances, days * 24, start_at, end_at, clock.now()))
    _usable(account)
    criteria = {
        "instance_type": instance_type,
        "instances": instances,
        "hours": days * 24,
        "start_at": clock.iso(start_at),
        "end_at": clock.iso(end_at),
        "zones": [z.strip() for z in zones if z.strip()],
    }
    return _search(actor, account, kind, criteria)


def extension_search(*, actor: Actor, reservation: Reservation, days: int) -> OfferingSearch:
    """Ask AWS what a block can be extended by. Raises Forbidden, InvalidInput, TransitionConflict."""
    _operate(actor)
    if reservation.kind not in BLOCKS:
        raise TransitionConflict(_("only Capacity Blocks can be extended"))
    if reservation.phase not in (ReservationPhase.ACTIVE, ReservationPhase.SCHEDULED):
        raise TransitionConflict(_("only an active or scheduled block can be extended"))
    problem = rules.duration_problem(days * 24)
    if problem:
        _refuse([FieldProblem("/days", "not-a-step", problem)])
    _usable(reservation.account)
    criteria = {
        "instance_type": reservation.instance_type,
        "instances": reservation.instances,
        "hours": days * 24,
        "zones": [],
    }
    return _search(actor, reservation.account, PurchaseKind.EXTENSION, criteria, reservation)


def _search(
    actor: Actor,
    account: CloudAccount,
    kind: str,
    criteria: dict[str, Any],
    reservation: Reservation | None = None,
) -> OfferingSearch:
    with transaction.atomic():
        search = OfferingSearch.objects.create(
            account=account,
            kind=kind,
            reservation=reservation,
            criteria=criteria,
            asked_by=actor.key,
            asked_by_name=actor.name,
        )
        intent_ask(SEARCH_INTENT, search.uid)
    return search


# --- purchases


def purchase_request(
    *, actor: Actor, search: OfferingSearch, offering_id: str, name: str, team: Team | None, reason: str, key: str
) -> Purchase:
    """Ask that an offer be bought. The same ``key`` asks once.

    Raises Forbidden, PurchasesOff, OfferGone, InvalidInput, TransitionConflict.
    """
    _operate(actor)
    offer: Mapping[str, Any] | None = next((o for o in search.offers if o["offering_id"] == offering_id), None)
    if search.phase != SearchPhase.DONE or offer is None:
        raise OfferGone(_("this search has no offer %(id)s") % {"id": offering_id})
    good_until = (search.answered_at or clock.now()) + timedelta(seconds=rules.OFFER_GOOD_S)
    if clock.now() >= good_until:
        raise OfferGone(_("the offer is older than an hour; search again"))
    _named(name, reason)
    _buyable(search.account)
    start, end = parse_datetime(offer["start_at"]), parse_datetime(offer["end_at"])
    usd = Decimal(offer["usd_upfront"])
    hours = (end - start).total_seconds() / 3600 if start and end else float(offer["hours"])
    return _request(
        actor,
        key,
        Purchase(
            account=search.account,
            kind=search.kind,
            team=team if search.reservation is None else search.reservation.team,
            search=search,
            extends=search.reservation,
            name=name,
            offering_id=offering_id,
            offer=dict(offer),
            instance_type=offer["instance_type"],
            instances=offer["instances"],
            zone_name=offer.get("zone_name", ""),
            zone_id=offer.get("zone_id", ""),
            start_at=start,
            end_at=end,
            usd_upfront=usd,
            usd_per_hour=rules.usd_per_instance_hour(usd, offer["instances"], hours),
            price_source="UpfrontFee",
            reason=reason[:500],
            good_until=good_until,
        ),
    )


def odcr_request(
    *,
    actor: Actor,
    account: CloudAccount,
    name: str,
    instance_type: str,
    instances: int,
    zone_name: str,
    team: Team | None,
    reason: str,
    key: str,
    is_open: bool = False,
    end_at: datetime | None = None,
) -> Purchase:
    """Ask for an ODCR, which costs by the hour until it is cancelled. Raises as ``purchase_request``."""
    _operate(actor)
    known = type_by_name(instance_type)
    problems = []
    if known is None or known.name == rules.ULTRASERVER_TYPE:
        text = _("no instance type %(type)s that can be reserved") % {"type": instance_type or "–"}
        problems.append(FieldProblem("/instance_type", "unknown", text))
    if not 1 <= instances <= 1000:
        problems.append(FieldProblem("/instances", "out-of-range", _("1 to %(most)s") % {"most": 1000}))
    if not zone_name.startswith(account.region):
        text = _("a zone of %(region)s, such as %(region)sa") % {"region": account.region}
        problems.append(FieldProblem("/zone_name", "unknown", text))
    if end_at is not None and end_at <= clock.now():
        problems.append(FieldProblem("/end_date", "past", _("lies in the past")))
    _refuse(problems)
    _named(name, reason)
    _buyable(account)
    assert known is not None
    return _request(
        actor,
        key,
        Purchase(
            account=account,
            kind=PurchaseKind.ODCR,
            team=team,
            name=name,
            offer={"match_criteria": "open" if is_open else "targeted"},
            instance_type=instance_type,
            instances=instances,
            zone_name=zone_name,
            end_at=end_at,
            usd_per_hour=known.usd_per_hour,
            price_source=str(price_words(known, account.region))[:200],
            reason=reason[:500],
            good_until=clock.now() + rules.REQUEST_GOOD,
        ),
    )


def _named(name: str, reason: str) -> None:
    problems = []
    if not _NAME.fullmatch(name):
        text = _("lower-case letters, digits and single dashes, at most 58")
        problems.append(FieldProblem("/name", "invalid", text))
    if not reason.strip():
        problems.append(FieldProblem("/reason", "required", _("say what it is for; the approver reads it")))
    _refuse(problems)


def _request(actor: Actor, key: str, purchase: Purchase) -> Purchase:
    purchase.key = key[:64]
    purchase.requested_by, purchase.requested_by_name = actor.key, actor.name
    try:
        with transaction.atomic():
            purchase.save()
            _record(actor, purchase, "purchase.request")
            _event(purchase, "PurchaseRequested", actor.name)
            assert purchase.good_until is not None
            wait_s = max(1.0, (purchase.good_until - clock.now()).total_seconds())
            intent_ask(PURCHASE_INTENT, purchase.uid, delay_s=wait_s)
    except IntegrityError:
        # A double click: the same key, the same request.
        known = Purchase.objects.filter(key=purchase.key, requested_by=actor.key).first()
        if known is None:
            raise
        return known
    return purchase


def _record(actor: Actor, purchase: Purchase, verb: str, **more: Any) -> None:
    after = {
        "name": purchase.name,
        "kind": purchase.kind,
        "account": purchase.account.name,
        "offering_id": purchase.offering_id,
        "instances": purchase.instances,
        "instance_type": purchase.instance_type,
        "usd_upfront": str(purchase.usd_upfront) if purchase.usd_upfront is not None else None,
        "usd_per_hour": str(purchase.usd_per_hour) if purchase.usd_per_hour is not None else None,
        **more,
    }
    record(actor, verb, "purchase", purchase.uid, team_id=purchase.team_id, after=after)


def _event(purchase: Purchase, kind: str, text: str) -> None:
    event("purchase", purchase.uid, kind, text, team_id=purchase.team_id)


def purchase_approve(*, actor: Actor, purchase: Purchase, expected_version: int, reason: str = "") -> None:
    """Let it be bought, exactly as it was asked for. Raises Forbidden, OwnRequest, OfferGone, StaleVersion."""
    _decide(actor, purchase)
    _buyable(purchase.account)
    if purchase.good_until is not None and clock.now() >= purchase.good_until:
        raise OfferGone(_("the offer is no longer good; search and ask again"))
    _decided(actor, purchase, PurchasePhase.APPROVED, expected_version, reason, "purchase.approve")


def purchase_reject(*, actor: Actor, purchase: Purchase, expected_version: int, reason: str) -> None:
    """Decline it. Raises Forbidden, OwnRequest, InvalidInput, StaleVersion."""
    _decide(actor, purchase)
    if not reason.strip():
        _refuse([FieldProblem("/reason", "required", _("say why, for whoever asked"))])
    _decided(actor, purchase, PurchasePhase.REJECTED, expected_version, reason, "purchase.reject")


def _decide(actor: Actor, purchase: Purchase) -> None:
    if not actor.everywhere("capacity.approve"):
        raise Forbidden(_("only operators and administrators decide on purchases"))
    if not can_approve_purchase(actor, purchase.requested_by):
        raise OwnRequest(_("you asked for it yourself; another person decides"))
    if purchase.phase != PurchasePhase.REQUESTED:
        raise TransitionConflict(_("it has been decided on already"))


def _decided(actor: Actor, purchase: Purchase, phase: str, version: int, reason: str, verb: str) -> None:
    with transaction.atomic():
        purchase.spec_update(
            version,
            decided_by=actor.key,
            decided_by_name=actor.name,
            decided_at=clock.now(),
            decision_reason=reason[:500],
            generation=purchase.generation + 1,
        )
        move(purchase, PURCHASE_TRANSITIONS, phase)
        _record(actor, purchase, verb, reason=reason[:500])
        _event(purchase, f"Purchase{phase.title()}", actor.name)
        intent_ask(PURCHASE_INTENT, purchase.uid)


def purchase_withdraw(*, actor: Actor, purchase: Purchase, expected_version: int) -> None:
    """Take a request back before it is bought. Raises Forbidden, TransitionConflict, StaleVersion."""
    if purchase.requested_by != actor.key and not actor.everywhere("capacity.approve"):
        raise Forbidden(_("only who asked for it or who decides takes it back"))
    if purchase.phase not in (PurchasePhase.REQUESTED, PurchasePhase.APPROVED):
        raise TransitionConflict(_("it can no longer be taken back"))
    with transaction.atomic():
        purchase.spec_update(expected_version, generation=purchase.generation + 1)
        # By the phase it was seen in: the worker may be about to buy it.
        move(purchase, PURCHASE_TRANSITIONS, PurchasePhase.WITHDRAWN, ended_at=clock.now())
        _record(actor, purchase, "purchase.withdraw")
        _event(purchase, "PurchaseWithdrawn", actor.name)


def purchase_resolve(*, actor: Actor, purchase: Purchase, expected_version: int, provider_id: str, reason: str) -> None:
    """A person's word on a doubt: it was bought as ``provider_id``, or ("") it was not. Nothing is tried again.

    Raises Forbidden, InvalidInput, TransitionConflict, StaleVersion.
    """
    if not actor.everywhere("capacity.approve"):
        raise Forbidden(_("only operators and administrators decide on purchases"))
    if purchase.phase != PurchasePhase.UNKNOWN:
        raise TransitionConflict(_("there is no doubt about it"))
    if not reason.strip():
        _refuse([FieldProblem("/reason", "required", _("say how you know"))])
    found = None
    if provider_id and purchase.kind == PurchaseKind.EXTENSION:
        found = purchase.extends
        if found is None or found.provider_id != provider_id:
            text = _("the block that was to be extended is %(id)s") % {"id": found.provider_id if found else "–"}
            _refuse([FieldProblem("/provider_id", "unknown", text)])
    elif provider_id:
        found = Reservation.objects.filter(account=purchase.account, provider_id=provider_id).first()
        if found is None or found.purchases.exclude(pk=purchase.pk).exists():
            text = _("no reservation of this account that no other purchase has")
            _refuse([FieldProblem("/provider_id", "unknown", text)])
    phase = PurchasePhase.BOUGHT if found is not None else PurchasePhase.FAILED
    message = said(gettext_noop("%(who)s looked in AWS: %(why)s"), who=actor.name, why=reason.strip())
    with transaction.atomic():
        purchase.spec_update(expected_version, generation=purchase.generation + 1)
        move(
            purchase,
            PURCHASE_TRANSITIONS,
            phase,
            reservation=found,
            resolved_by=actor.key,
            resolved_by_name=actor.name,
            resolved_at=clock.now(),
            ended_at=clock.now(),
            message=message,
        )
        if found is not None and purchase.kind == PurchaseKind.EXTENSION:
            extension_priced(found, purchase)
        elif found is not None:
            found.spec_update(
                None,
                is_adopted=False,
                name=purchase.name,
                team=purchase.team,
                usd_upfront=purchase.usd_upfront,
                usd_per_hour=purchase.usd_per_hour,
                price_source=purchase.price_source,
            )
        _record(actor, purchase, "purchase.resolve", outcome=phase, provider_id=provider_id, reason=reason[:500])
        _event(purchase, "PurchaseResolved", reason.strip())


# --- reservations


def reservation_assign(*, actor: Actor, reservation: Reservation, team: Team | None, expected_version: int) -> None:
    """Whose it is: who pays for its hours that no job uses. Raises Forbidden, StaleVersion."""
    _operate(actor)
    with transaction.atomic():
        before = reservation.team.slug if reservation.team else None
        reservation.spec_update(expected_version, team=team)
        after = team.slug if team else None
        record(
            actor,
            "reservation.assign",
            "reservation",
            reservation.uid,
            team_id=team.pk if team else None,
            before={"team": before},
            after={"team": after},
        )
        event("reservation", reservation.uid, "ReservationAssigned", after or "", data={"from": before})


def reservation_cancel(*, actor: Actor, reservation: Reservation, expected_version: int) -> None:
    """Give an ODCR back. Raises Forbidden, TransitionConflict, StaleVersion."""
    _operate(actor)
    if reservation.kind != ReservationKind.ODCR:
        raise TransitionConflict(_("what was paid before cannot be cancelled: it runs to its end"))
    if reservation.phase not in LIVE:
        raise TransitionConflict(_("it is over already"))
    if reservation.is_adopted:
        raise TransitionConflict(_("it was made elsewhere; cancel it there"))
    _usable(reservation.account)
    with transaction.atomic():
        if reservation.delete_requested_at is None:
            reservation.spec_update(
                expected_version, delete_requested_at=clock.now(), generation=reservation.generation + 1
            )
            record(
                actor,
                "reservation.cancel",
                "reservation",
                reservation.uid,
                team_id=reservation.team_id,
                before={"provider_id": reservation.provider_id, "instances": reservation.instances},
            )
            event("reservation", reservation.uid, "ReservationCancelAsked", actor.name)
        intent_ask(CANCEL_INTENT, reservation.uid)
