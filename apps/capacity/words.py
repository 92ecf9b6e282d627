"""What a timeline says of reservations and purchases."""

from __future__ import annotations

from decimal import Decimal

from django.utils.translation import gettext as _

from apps.audit.timeline import Words
from apps.core import units

WORDS: Words = {
    "PurchaseRequested": lambda e: ("wait", _("Asked for by %(who)s") % {"who": e.text}),
    "PurchaseApproved": lambda e: ("good", _("Approved by %(who)s") % {"who": e.text}),
    "PurchaseRejected": lambda e: ("off", _("Rejected by %(who)s") % {"who": e.text}),
    "PurchaseWithdrawn": lambda e: ("off", _("Withdrawn by %(who)s") % {"who": e.text}),
    "PurchaseAttempted": lambda e: ("busy", _("The one call to AWS begins")),
    "PurchaseBought": lambda e: ("good", _("Bought")),
    "PurchaseFailed": lambda e: ("bad", _("Not bought: %(why)s") % {"why": e.text}),
    "PurchaseUnknown": lambda e: ("bad", _("Unknown whether it was bought: %(why)s") % {"why": e.text}),
    "PurchaseExpired": lambda e: ("off", _("Expired: %(why)s") % {"why": e.text}),
    "PurchaseResolved": lambda e: ("good", _("Settled by a person: %(why)s") % {"why": e.text}),
    "ReservationAdopted": lambda e: ("wait", _("Found in the account: %(id)s") % {"id": e.text}),
    "ReservationBought": lambda e: ("good", _("Bought as %(id)s") % {"id": e.text}),
    "ReservationActive": lambda e: ("good", _("Active")),
    "ReservationScheduled": lambda e: ("wait", _("Scheduled")),
    "ReservationPaymentpending": lambda e: ("wait", _("Payment pending")),
    "ReservationExpired": lambda e: ("off", _("Over")),
    "ReservationCancelled": lambda e: ("off", _("Cancelled")),
    "ReservationFailed": lambda e: ("bad", _("Failed: %(why)s") % {"why": e.text}),
    "ReservationAssigned": lambda e: (
        "wait",
        _("Owner: %(team)s") % {"team": e.text} if e.text else _("Shared by all teams"),
    ),
    "ReservationPriced": lambda e: (
        "wait",
        _("Price entered by %(who)s: %(usd)s (%(why)s)")
        % {"who": e.data.get("by"), "usd": units.usd(Decimal(e.data.get("usd", "0"))), "why": e.text},
    ),
    "ReservationCancelAsked": lambda e: ("wait", _("Cancellation asked for by %(who)s") % {"who": e.text}),
    "BlockEndsSoon": lambda e: ("warn", str(e.text)),
    "BlockCheckpointAsked": lambda e: ("busy", str(e.text)),
    "BlockDrained": lambda e: ("warn", str(e.text)),
    "BlockGivenBack": lambda e: ("off", str(e.text)),
}
