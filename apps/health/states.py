"""States and words of GPU health.

Finding:

    OPEN ──▶ ACKNOWLEDGED ──▶ RESOLVED
      └────────────────────────▲
"""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class FindingPhase(TextChoices):
    """Where a finding is."""

    OPEN = "OPEN", _("Open")
    ACKNOWLEDGED = "ACKNOWLEDGED", _("Acknowledged")
    RESOLVED = "RESOLVED", _("Resolved")


class Severity(TextChoices):
    """What a code calls for, mildest first."""

    INFO = "info", _("Information")
    APP = "app", _("Application")
    WATCH = "watch", _("Watch")
    RESET = "reset", _("Reset")
    REBOOT = "reboot", _("Reboot")
    REPLACE = "replace", _("Replace")


P = FindingPhase
TRANSITIONS: dict[str, frozenset[str]] = {
    P.OPEN: frozenset({P.ACKNOWLEDGED, P.RESOLVED}),
    P.ACKNOWLEDGED: frozenset({P.RESOLVED}),
    P.RESOLVED: frozenset(),
}
COLOURS: dict[str, str] = {P.OPEN: "bad", P.ACKNOWLEDGED: "warn", P.RESOLVED: "off"}
SEVERITY_COLOURS: dict[str, str] = {
    Severity.INFO: "off",
    Severity.APP: "wait",
    Severity.WATCH: "warn",
    Severity.RESET: "bad",
    Severity.REBOOT: "bad",
    Severity.REPLACE: "bad",
}
#: Severities for which the node takes no new jobs and its jobs start again elsewhere.
FATAL = frozenset({Severity.RESET, Severity.REBOOT, Severity.REPLACE})
LIVE = frozenset({P.OPEN, P.ACKNOWLEDGED})
