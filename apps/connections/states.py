"""States of a connection to a cloud account.

PENDING ──identity read──▶ CONNECTED ◀──▶ FAILED
"""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class AccountPhase(TextChoices):
    """Where a connection is."""

    PENDING = "PENDING", _("Checking")
    CONNECTED = "CONNECTED", _("Connected")
    FAILED = "FAILED", _("Failed")


P = AccountPhase
TRANSITIONS: dict[str, frozenset[str]] = {
    P.PENDING: frozenset({P.CONNECTED, P.FAILED}),
    P.CONNECTED: frozenset({P.FAILED, P.PENDING}),
    P.FAILED: frozenset({P.CONNECTED, P.PENDING}),
}
COLOURS: dict[str, str] = {P.PENDING: "busy", P.CONNECTED: "good", P.FAILED: "bad"}
