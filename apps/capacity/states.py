"""States of reservations, of searches for offerings and of purchases.

Reservation (AWS decides; the worker writes what it saw):

    PENDING ▶ PAYMENT_PENDING ▶ SCHEDULED ▶ ACTIVE ▶ EXPIRED      any before its end ▶ CANCELLED | FAILED

Search:

    PENDING ▶ DONE | FAILED

Purchase:

    REQUESTED ▶ APPROVED ▶ BUYING ▶ BOUGHT | FAILED      BUYING ▶ UNKNOWN ▶ BOUGHT | FAILED
    an extension:          BUYING | UNKNOWN ▶ PAYING ▶ BOUGHT | FAILED
    REQUESTED ▶ REJECTED | WITHDRAWN | EXPIRED           APPROVED ▶ WITHDRAWN | EXPIRED | FAILED
"""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class ReservationKind(TextChoices):
    """What AWS keeps for us."""

    ODCR = "odcr", "ODCR"
    CAPACITY_BLOCK = "capacity-block", "Capacity Block"
    ULTRASERVER_BLOCK = "ultraserver-block", _("UltraServer block")
    TRAINING_PLAN = "training-plan", _("Training plan")


class ReservationPhase(TextChoices):
    """Where a reservation is."""

    PENDING = "PENDING", _("Accepted")
    PAYMENT_PENDING = "PAYMENT_PENDING", _("Payment pending")
    SCHEDULED = "SCHEDULED", _("Scheduled")
    ACTIVE = "ACTIVE", _("Active")
    EXPIRED = "EXPIRED", _("Expired")
    CANCELLED = "CANCELLED", _("Cancelled")
    FAILED = "FAILED", _("Failed")


class SearchPhase(TextChoices):
    """Where a search for offerings is."""

    PENDING = "PENDING", _("Searching")
    DONE = "DONE", _("Done")
    FAILED = "FAILED", _("Failed")


class PurchaseKind(TextChoices):
    """What is asked for."""

    CAPACITY_BLOCK = "capacity-block", "Capacity Block"
    ULTRASERVER_BLOCK = "ultraserver-block", _("UltraServer block")
    EXTENSION = "extension", _("Extension of a block")
    TRAINING_PLAN = "training-plan", _("Training plan")
    ODCR = "odcr", "ODCR"


class PurchasePhase(TextChoices):
    """Where a purchase is."""

    REQUESTED = "REQUESTED", _("Waits for approval")
    APPROVED = "APPROVED", _("Approved")
    BUYING = "BUYING", _("Buying")
    PAYING = "PAYING", _("Payment pending")
    BOUGHT = "BOUGHT", _("Bought")
    FAILED = "FAILED", _("Not bought")
    UNKNOWN = "UNKNOWN", _("Unknown")
    REJECTED = "REJECTED", _("Rejected")
    WITHDRAWN = "WITHDRAWN", _("Withdrawn")
    EXPIRED = "EXPIRED", _("Expired")


R, P, S = ReservationPhase, PurchasePhase, SearchPhase

_ENDS = frozenset({R.EXPIRED, R.CANCELLED, R.FAILED})
TRANSITIONS: dict[str, frozenset[str]] = {
    R.PENDING: frozenset({R.PAYMENT_PENDING, R.SCHEDULED, R.ACTIVE}) | _ENDS,
    R.PAYMENT_PENDING: frozenset({R.SCHEDULED, R.ACTIVE}) | _ENDS,
    R.SCHEDULED: frozenset({R.ACTIVE}) | _ENDS,
    R.ACTIVE: _ENDS,
    # An extension bought at the last minute brings a block back.
    R.EXPIRED: frozenset({R.ACTIVE}),
    R.CANCELLED: frozenset(),
    R.FAILED: frozenset(),
}
SEARCH_TRANSITIONS: dict[str, frozenset[str]] = {
    S.PENDING: frozenset({S.DONE, S.FAILED}),
    S.DONE: frozenset(),
    S.FAILED: frozenset(),
}
PURCHASE_TRANSITIONS: dict[str, frozenset[str]] = {
    P.REQUESTED: frozenset({P.APPROVED, P.REJECTED, P.WITHDRAWN, P.EXPIRED}),
    P.APPROVED: frozenset({P.BUYING, P.WITHDRAWN, P.EXPIRED, P.FAILED}),
    P.BUYING: frozenset({P.PAYING, P.BOUGHT, P.FAILED, P.UNKNOWN}),
    P.UNKNOWN: frozenset({P.PAYING, P.BOUGHT, P.FAILED}),
    P.PAYING: frozenset({P.BOUGHT, P.FAILED}),
    P.BOUGHT: frozenset(),
    P.FAILED: frozenset(),
    P.REJECTED: frozenset(),
    P.WITHDRAWN: frozenset(),
    P.EXPIRED: frozenset(),
}

#: Kinds that end at an instant fixed when they were bought, with EC2 taking the machines back before it.
BLOCKS = frozenset({ReservationKind.CAPACITY_BLOCK, ReservationKind.ULTRASERVER_BLOCK})
#: Paid before it begins, whether used or not.
PREPAID = BLOCKS | {ReservationKind.TRAINING_PLAN}
#: AWS keeps it or will.
LIVE = frozenset(set(R) - _ENDS)
ENDED = _ENDS
#: A person or the worker still has something to do.
PURCHASE_OPEN = frozenset({P.REQUESTED, P.APPROVED, P.BUYING, P.UNKNOWN, P.PAYING})
#: The one call was or may have been made.
ATTEMPTED = frozenset({P.BUYING, P.PAYING, P.BOUGHT, P.UNKNOWN})

COLOURS: dict[str, str] = {
    R.PENDING: "wait",
    R.PAYMENT_PENDING: "wait",
    R.SCHEDULED: "wait",
    R.ACTIVE: "good",
    R.EXPIRED: "off",
    R.CANCELLED: "off",
    R.FAILED: "bad",
}
PURCHASE_COLOURS: dict[str, str] = {
    P.REQUESTED: "wait",
    P.APPROVED: "busy",
    P.BUYING: "busy",
    P.PAYING: "wait",
    P.BOUGHT: "good",
    P.FAILED: "bad",
    P.UNKNOWN: "bad",
    P.REJECTED: "off",
    P.WITHDRAWN: "off",
    P.EXPIRED: "off",
}
SEARCH_COLOURS: dict[str, str] = {S.PENDING: "busy", S.DONE: "good", S.FAILED: "bad"}
