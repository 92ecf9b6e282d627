"""Named reads of reservations, searches and purchases, and the sentence each page opens with."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from apps.capacity import rules
from apps.capacity.models import OfferingSearch, Purchase, Reservation
from apps.capacity.states import LIVE, PREPAID, PURCHASE_OPEN, PurchasePhase, ReservationPhase
from apps.connections.models import CloudAccount
from apps.core import clock, units
from apps.core.errors import NotFound
from apps.teams.permissions import Actor


def reservations_visible_to(actor: Actor) -> QuerySet[Reservation]:
    """All reservations, ended ones included, for everyone with a role."""
    if not actor.holds("capacity.view"):
        return Reservation.objects.none()
    return Reservation.objects.select_related("account", "team")


def reservation_for(*, actor: Actor, may: str, uid: str) -> Reservation:
    """The reservation of this uid. Raises NotFound."""
    rows = reservations_visible_to(actor) if actor.holds(may) else Reservation.objects.none()
    found = rows.filter(uid=uid).first()
    if found is None:
        raise NotFound(_("no reservation %(uid)s in which you may do this") % {"uid": uid})
    return found


def reservation_by_uid(uid: str) -> Reservation | None:
    """For the worker."""
    return Reservation.objects.select_related("account", "team").filter(uid=uid).first()


def live_reservations(account: CloudAccount) -> QuerySet[Reservation]:
    """What AWS keeps or will."""
    return Reservation.objects.filter(account=account, phase__in=LIVE)


def purchases_visible_to(actor: Actor) -> QuerySet[Purchase]:
    """All purchases for operators, those of their teams for members."""
    rows = Purchase.objects.select_related("account", "team", "reservation", "extends")
    if actor.everywhere("capacity.operate") or actor.everywhere("capacity.approve"):
        return rows
    if not actor.holds("capacity.view"):
        return rows.none()
    return rows.filter(team_id__in=actor.team_ids("capacity.view"))


def purchase_for(*, actor: Actor, may: str, uid: str) -> Purchase:
    """The purchase of this uid. Raises NotFound."""
    rows = purchases_visible_to(actor) if actor.holds(may) else Purchase.objects.none()
    found = rows.filter(uid=uid).first()
    if found is None:
        raise NotFound(_("no purchase %(uid)s in which you may do this") % {"uid": uid})
    return found


def purchase_by_uid(uid: str) -> Purchase | None:
    """For the worker."""
    return Purchase.objects.select_related("account", "team", "extends").filter(uid=uid).first()


def searches_visible_to(actor: Actor) -> QuerySet[OfferingSearch]:
    """Searches of operators."""
    rows = OfferingSearch.objects.select_related("account", "reservation")
    return rows if actor.everywhere("capacity.operate") else rows.none()


def search_for(*, actor: Actor, may: str, uid: str) -> OfferingSearch:
    """The search of this uid. Raises NotFound."""
    rows = searches_visible_to(actor) if actor.holds(may) else OfferingSearch.objects.none()
    found = rows.filter(uid=uid).first()
    if found is None:
        raise NotFound(_("no search %(uid)s in which you may do this") % {"uid": uid})
    return found


def search_by_uid(uid: str) -> OfferingSearch | None:
    """For the worker."""
    return OfferingSearch.objects.select_related("account", "reservation").filter(uid=uid).first()


def purchases_waiting_for(actor: Actor) -> list[Purchase]:
    """What this person may decide on, and doubts that need a person."""
    if not actor.everywhere("capacity.approve"):
        return []
    rows = Purchase.objects.select_related("account", "team").filter(phase__in=PURCHASE_OPEN)
    return [
        p
        for p in rows
        if p.phase == PurchasePhase.UNKNOWN or (p.phase == PurchasePhase.REQUESTED and p.requested_by != actor.key)
    ]


def blocks_ending(within_h: int = 24) -> list[Reservation]:
    """Active reservations with an end near enough to warn of."""
    rows = Reservation.objects.select_related("team", "account").filter(
        phase=ReservationPhase.ACTIVE,
        end_at__isnull=False,
        end_at__lte=clock.now() + timedelta(hours=within_h),
    )
    return list(rows.order_by("end_at"))


def unused_usd_per_hour(reservation: Reservation) -> Decimal | None:
    """What its free machines cost an hour now; None when the price is unknown, 0 when it is not active."""
    if reservation.phase != ReservationPhase.ACTIVE:
        return Decimal(0)
    if reservation.usd_per_hour is None or reservation.available_instances is None:
        return None
    return reservation.usd_per_hour * reservation.available_instances


def unused_total(reservations: Iterable[Reservation]) -> Decimal:
    """Over all whose price is known."""
    return sum((unused_usd_per_hour(r) or Decimal(0) for r in reservations), Decimal(0))


def price_of(purchase: Purchase) -> Decimal | None:
    """USD of one GPU-hour of what is bought."""
    return rules.usd_per_gpu_hour(purchase.usd_per_hour, purchase.instance_type)


def reservation_sentence(reservation: Reservation) -> str:
    """What is going on, since when, what next."""
    now, r = clock.now(), reservation
    facts = {
        "n": r.instances,
        "type": r.instance_type,
        "free": r.available_instances if r.available_instances is not None else "?",
        "start": timezone.localtime(r.start_at).strftime("%Y-%m-%d %H:%M") if r.start_at else "?",
        "end": timezone.localtime(r.end_at).strftime("%Y-%m-%d %H:%M") if r.end_at else "",
        "left": units.duration((r.end_at - now).total_seconds()) if r.end_at and r.end_at > now else "",
        "until_start": units.duration((r.start_at - now).total_seconds()) if r.start_at and r.start_at > now else "",
    }
    match r.phase:
        case ReservationPhase.ACTIVE:
            text = _("Active: %(n)s × %(type)s, %(free)s free now.") % facts
            if r.end_at is None:
                text += " " + _("It costs until it is cancelled.")
            elif r.kind in PREPAID:
                until = rules.usable_until(r.kind, r.end_at)
                text += " " + _("Ends at %(end)s, in %(left)s.") % facts
                if until is not None and until > now:
                    text += " " + _("Jobs must be done %(left)s from now.") % {
                        "left": units.duration((until - now).total_seconds())
                    }
                elif until is not None:
                    text += " " + _("It takes no new work; its machines are being given back.")
            else:
                text += " " + _("Ends at %(end)s, in %(left)s.") % facts
        case ReservationPhase.SCHEDULED:
            text = _("Scheduled: %(n)s × %(type)s from %(start)s, in %(until_start)s.") % facts
        case ReservationPhase.PAYMENT_PENDING:
            text = _("Payment pending: AWS has not charged %(n)s × %(type)s yet; it starts at %(start)s.") % facts
        case ReservationPhase.PENDING:
            text = _("Asked for: AWS has not answered about %(n)s × %(type)s yet.") % facts
        case ReservationPhase.EXPIRED:
            text = _("Over: %(n)s × %(type)s ended at %(end)s.") % facts
        case ReservationPhase.CANCELLED:
            text = _("Cancelled: %(n)s × %(type)s are no longer kept.") % facts
        case _:
            text = _("Failed: %(why)s") % {"why": r.message or r.observed_state or _("AWS gave no reason")}
    if r.delete_requested_at is not None and r.phase in LIVE:
        text += " " + _("Its cancellation has been asked for.")
    return text


def purchase_sentence(purchase: Purchase) -> str:
    """What is going on, what next, who has to act."""
    p = purchase
    facts = {
        "who": p.requested_by_name,
        "by": p.decided_by_name,
        "usd": units.usd(p.usd_upfront) if p.usd_upfront is not None else "?",
        "why": p.message,
    }
    match p.phase:
        case PurchasePhase.REQUESTED:
            return _("Asked for by %(who)s; nothing is bought until another person approves.") % facts
        case PurchasePhase.APPROVED:
            text = _("Approved by %(by)s; the worker buys it now, once.") % facts
            return f"{text} {p.message}".strip()
        case PurchasePhase.BUYING:
            return _("Being bought: the one call to AWS is under way.")
        case PurchasePhase.PAYING:
            text = _("Sold, but AWS has not charged %(usd)s yet: until it has, the block ends as before.") % facts
            return f"{text} {p.message}".strip()
        case PurchasePhase.BOUGHT:
            return _("Bought for %(usd)s; approved by %(by)s.") % facts
        case PurchasePhase.UNKNOWN:
            return _("Unknown whether AWS sold it: %(why)s It is never tried again. A person has to look.") % facts
        case PurchasePhase.REJECTED:
            return _("Rejected by %(by)s: %(why)s") % {**facts, "why": p.decision_reason or "–"}
        case PurchasePhase.WITHDRAWN:
            return _("Withdrawn; nothing was bought.")
        case PurchasePhase.EXPIRED:
            return _("Nobody decided while the offer was good; nothing was bought.")
        case _:
            return _("Not bought: %(why)s") % facts
