"""States of a job and of one attempt at it.

Job:

    PENDING ▶ QUEUED ▶ RUNNING ▶ SUCCEEDED | FAILED | TIMED_OUT
                ▲         │
                └ RECOVERING ◀▶ WAITING_BUDGET
    any of the above that has not ended ▶ CANCELLING ▶ CANCELLED

Attempt:

    PENDING ▶ SUBMITTING ▶ QUEUED ▶ RUNNING ▶ STOPPING
    and from each of them to one end:
    SUCCEEDED | FAILED | TIMED_OUT | CANCELLED | NODE_FAILED | REQUEUED | LOST | REFUSED
"""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class JobOrigin(TextChoices):
    """Where a job was submitted."""

    PORTAL = "portal", _("Portal")
    OUTSIDE = "outside", _("Outside")


class JobPhase(TextChoices):
    """Where a job is."""

    PENDING = "PENDING", _("Accepted")
    QUEUED = "QUEUED", _("Waiting")
    RUNNING = "RUNNING", _("Running")
    RECOVERING = "RECOVERING", _("Recovering")
    WAITING_BUDGET = "WAITING_BUDGET", _("Waiting for budget")
    CANCELLING = "CANCELLING", _("Cancelling")
    SUCCEEDED = "SUCCEEDED", _("Succeeded")
    FAILED = "FAILED", _("Failed")
    TIMED_OUT = "TIMED_OUT", _("Timed out")
    CANCELLED = "CANCELLED", _("Cancelled")


class AttemptPhase(TextChoices):
    """Where an attempt is."""

    PENDING = "PENDING", _("Accepted")
    SUBMITTING = "SUBMITTING", _("Submitting")
    QUEUED = "QUEUED", _("Waiting")
    RUNNING = "RUNNING", _("Running")
    STOPPING = "STOPPING", _("Stopping")
    SUCCEEDED = "SUCCEEDED", _("Succeeded")
    FAILED = "FAILED", _("Failed")
    TIMED_OUT = "TIMED_OUT", _("Timed out")
    CANCELLED = "CANCELLED", _("Cancelled")
    NODE_FAILED = "NODE_FAILED", _("Node failure")
    REQUEUED = "REQUEUED", _("Requeued")
    LOST = "LOST", _("Lost")
    REFUSED = "REFUSED", _("Refused")


J, A = JobPhase, AttemptPhase

JOB_ENDED = frozenset({J.SUCCEEDED, J.FAILED, J.TIMED_OUT, J.CANCELLED})
JOB_LIVE = frozenset(set(J) - JOB_ENDED)
ATTEMPT_ENDED = frozenset(
    {A.SUCCEEDED, A.FAILED, A.TIMED_OUT, A.CANCELLED, A.NODE_FAILED, A.REQUEUED, A.LOST, A.REFUSED}
)
ATTEMPT_LIVE = frozenset(set(A) - ATTEMPT_ENDED)
#: Phases in which the scheduler knows the attempt.
ATTEMPT_PLACED = frozenset({A.QUEUED, A.RUNNING, A.STOPPING})

JOB_TRANSITIONS: dict[str, frozenset[str]] = {
    J.PENDING: frozenset({J.QUEUED, J.RUNNING, J.RECOVERING, J.CANCELLING, *JOB_ENDED}),
    J.QUEUED: frozenset({J.RUNNING, J.RECOVERING, J.CANCELLING, *JOB_ENDED}),
    J.RUNNING: frozenset({J.QUEUED, J.RECOVERING, J.CANCELLING, *JOB_ENDED}),
    J.RECOVERING: frozenset({J.QUEUED, J.RUNNING, J.WAITING_BUDGET, J.CANCELLING, *JOB_ENDED}),
    J.WAITING_BUDGET: frozenset({J.RECOVERING, J.CANCELLING, J.CANCELLED, J.FAILED}),
    # Back where it was where the scheduler denies the cancel.
    J.CANCELLING: frozenset({J.QUEUED, J.RUNNING, *JOB_ENDED}),
    J.SUCCEEDED: frozenset(),
    J.FAILED: frozenset(),
    J.TIMED_OUT: frozenset(),
    J.CANCELLED: frozenset(),
}
ATTEMPT_TRANSITIONS: dict[str, frozenset[str]] = {
    A.PENDING: frozenset({A.SUBMITTING, A.CANCELLED, A.REFUSED}),
    A.SUBMITTING: frozenset({A.QUEUED, A.REFUSED, A.CANCELLED}),
    A.QUEUED: frozenset({A.RUNNING, A.STOPPING, *ATTEMPT_ENDED}),
    A.RUNNING: frozenset({A.QUEUED, A.STOPPING, *ATTEMPT_ENDED}),
    A.STOPPING: frozenset(ATTEMPT_ENDED),
    **{end: frozenset() for end in ATTEMPT_ENDED},
}
JOB_COLOURS: dict[str, str] = {
    J.PENDING: "wait",
    J.QUEUED: "wait",
    J.RUNNING: "busy",
    J.RECOVERING: "warn",
    J.WAITING_BUDGET: "warn",
    J.CANCELLING: "warn",
    J.SUCCEEDED: "good",
    J.FAILED: "bad",
    J.TIMED_OUT: "bad",
    J.CANCELLED: "off",
}
ATTEMPT_COLOURS: dict[str, str] = {
    A.PENDING: "wait",
    A.SUBMITTING: "wait",
    A.QUEUED: "wait",
    A.RUNNING: "busy",
    A.STOPPING: "warn",
    A.SUCCEEDED: "good",
    A.FAILED: "bad",
    A.TIMED_OUT: "bad",
    A.CANCELLED: "off",
    A.NODE_FAILED: "bad",
    A.REQUEUED: "off",
    A.LOST: "bad",
    A.REFUSED: "bad",
}
