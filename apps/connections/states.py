"""States of a connection to a cloud account.

PENDING ──identity read──▶ CONNECTED ◀──▶ FAILED          any ──▶ REMOVED
"""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class AccountPhase(TextChoices):
    """Where a connection is."""

    PENDING = "PENDING", _("Checking")
    CONNECTED = "CONNECTED", _("Connected")
    FAILED = "FAILED", _("Failed")
    REMOVED = "REMOVED", _("Removed")


P = AccountPhase
TRANSITIONS: dict[str, frozenset[str]] = {
    P.PENDING: frozenset({P.CONNECTED, P.FAILED, P.REMOVED}),
    P.CONNECTED: frozenset({P.FAILED, P.PENDING, P.REMOVED}),
    P.FAILED: frozenset({P.CONNECTED, P.PENDING, P.REMOVED}),
    P.REMOVED: frozenset(),
}
COLOURS: dict[str, str] = {P.PENDING: "busy", P.CONNECTED: "good", P.FAILED: "bad", P.REMOVED: "off"}
