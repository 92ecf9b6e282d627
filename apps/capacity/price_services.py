"""The price of a block that was bought elsewhere, as a person tells it: AWS says it of nothing once it is sold."""

from __future__ import annotations

from decimal import Decimal

from django.db import transaction
from django.utils.translation import gettext as _

from apps.audit.services import event, record
from apps.capacity import rules
from apps.capacity.models import Reservation
from apps.capacity.observations import WATCH_INTENT
from apps.capacity.permissions import can_operate_capacity
from apps.capacity.states import PREPAID
from apps.core import units
from apps.core.errors import FieldProblem, Forbidden, InvalidInput, TransitionConflict
from apps.intents.services import intent_ask
from apps.teams.permissions import Actor

#: Source of a price that a person entered.
ENTERED = "entered by a person"
MOST_USD = Decimal(1_000_000_000)


def may_be_priced(reservation: Reservation) -> bool:
    """Whether its price is a person's to tell: prepaid, not bought here, and AWS said none."""
    r = reservation
    return r.kind in PREPAID and r.is_adopted and (r.usd_upfront is None or r.price_source == ENTERED)


def reservation_price(
    *, actor: Actor, reservation: Reservation, usd_upfront: Decimal, reason: str, expected_version: int | None
) -> None:
    """Write down what was paid for it in all, and spread it over its hours; hours charged before stay as they are.

    Raises Forbidden, InvalidInput, TransitionConflict, StaleVersion.
    """
    if not can_operate_capacity(actor):
        raise Forbidden(_("only operators and administrators do this"))
    if not may_be_priced(reservation):
        raise TransitionConflict(_("its price is known from AWS, or it has no price of its own"))
    problems = []
    if not 0 < usd_upfront <= MOST_USD or usd_upfront != usd_upfront.quantize(Decimal("0.01")):
        text = _("dollars and cents, more than 0 and at most %(most)s") % {"most": units.usd(MOST_USD)}
        problems.append(FieldProblem("/usd_upfront", "out-of-range", text))
    if not reason.strip():
        problems.append(FieldProblem("/reason", "required", _("say how you know: an invoice, a purchase order")))
    start, end = reservation.start_at, reservation.end_at
    hours = (end - start).total_seconds() / 3600 if start is not None and end is not None else 0.0
    each = rules.usd_per_instance_hour(usd_upfront, reservation.instances, hours)
    if each is None and not problems:
        text = _("AWS has not said when it starts and ends; wait until it has")
        problems.append(FieldProblem("/usd_upfront", "no-hours", text))
    if problems:
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=problems)
    with transaction.atomic():
        before = reservation.usd_upfront
        reservation.spec_update(expected_version, usd_upfront=usd_upfront, usd_per_hour=each, price_source=ENTERED)
        record(
            actor,
            "reservation.price",
            "reservation",
            reservation.uid,
            team_id=reservation.team_id,
            before={"usd_upfront": None if before is None else str(before)},
            after={"usd_upfront": str(usd_upfront), "reason": reason.strip()[:500]},
        )
        text = reason.strip()[:500]
        event(
            "reservation", reservation.uid, "ReservationPriced", text, data={"usd": str(usd_upfront), "by": actor.name}
        )
        # Its hours that are over are charged now.
        intent_ask(WATCH_INTENT, reservation.uid)
