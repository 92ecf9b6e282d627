"""What people may ask of a job in the scheduler, and how far such a wish has come.

ASKED ▶ SENT ▶ DONE | REFUSED | UNKNOWN
  ▲───────┘ where asking twice does no harm, or nothing was sent
"""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class ActionKind(TextChoices):
    """The verbs."""

    HOLD = "HOLD", _("Hold")
    RELEASE = "RELEASE", _("Release")
    SIGNAL = "SIGNAL", _("Send a signal")
    PRIORITY = "PRIORITY", _("Priority")
    PARTITION = "PARTITION", _("Partition")
    TIME_LIMIT = "TIME_LIMIT", _("Time limit")
    CANCEL_TASK = "CANCEL_TASK", _("Cancel a task")
    REQUEUE_TASK = "REQUEUE_TASK", _("Run a task again")


class ActionPhase(TextChoices):
    """Where a wish is."""

    ASKED = "ASKED", _("Asked")
    SENT = "SENT", _("Being sent")
    DONE = "DONE", _("Done")
    REFUSED = "REFUSED", _("Refused")
    UNKNOWN = "UNKNOWN", _("Unknown")


K, P = ActionKind, ActionPhase

ACTION_TRANSITIONS: dict[str, frozenset[str]] = {
    P.ASKED: frozenset({P.SENT, P.REFUSED}),
    P.SENT: frozenset({P.ASKED, P.DONE, P.REFUSED, P.UNKNOWN}),
    P.DONE: frozenset(),
    P.REFUSED: frozenset(),
    P.UNKNOWN: frozenset(),
}
ACTION_OPEN = frozenset({P.ASKED, P.SENT})
ACTION_COLOURS: dict[str, str] = {
    P.ASKED: "wait",
    P.SENT: "busy",
    P.DONE: "good",
    P.REFUSED: "bad",
    P.UNKNOWN: "warn",
}
#: Kinds that come to the same however often they are sent.
REPEATABLE = frozenset({K.HOLD, K.RELEASE, K.PRIORITY, K.PARTITION, K.TIME_LIMIT, K.CANCEL_TASK, K.REQUEUE_TASK})
#: What is offered for several jobs at once.
BULK_KINDS = (K.HOLD, K.RELEASE, K.SIGNAL, K.PRIORITY)
#: Signals that a person may send; ending a job is cancelling it.
SIGNALS = ("USR1", "USR2", "HUP", "INT", "TERM", "CONT")
#: Slurm's reasons of a job that somebody keeps from starting.
HELD_REASONS = frozenset({"JobHeldUser", "JobHeldAdmin"})
