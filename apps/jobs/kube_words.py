"""What codes of a Kubernetes cluster mean for a job that waits, as clauses; sentences come with the attempt."""

from __future__ import annotations

from django.utils.translation import gettext as _

from apps.jobs.models import Attempt, Job

#: Codes with which a job begins as soon as there is room.
WAITS_FOR_ROOM = frozenset(
    (
        *("Queued", "QuotaInUse", "BorrowingLimit", "TopologyFull", "QuotaReserved", "Preempting", "Preempted"),
        *("NoRoom", "Behind", "Gated", "Suspended", "Starting", "Unschedulable", "UnschedulableResources"),
    )
)
#: Words that begin a sentence in capitals for no other reason.
_STARTS = frozenset(("It", "Its", "The", "A", "An", "No", "Something"))


def waits_for_room(code: str) -> bool:
    """Whether what it waits for is its turn or room, by the code of its scheduler; without one it may be."""
    return not code or code in WAITS_FOR_ROOM or not code_words(code)


def code_words(code: str) -> str:
    """A code in a clause; empty for one that is none of Kubernetes'."""
    words = {
        "Queued": _("Kueue has not looked at it yet"),
        "QuotaInUse": _("the quota of its queue is in use"),
        "BorrowingLimit": _("its queue has borrowed all that it may"),
        "MoreThanQuota": _("it asks for more than its queue can ever get"),
        "TopologyFull": _("no place in the network has room for all of it"),
        "QuotaReserved": _("its quota is reserved; it begins at any moment"),
        "Preempting": _("jobs of lower priority are leaving for it"),
        "Preempted": _("a job of higher priority took its place"),
        "QueueMissing": _("its queue does not exist"),
        "QueueStopped": _("its queue is stopped"),
        "Deactivated": _("Kueue has set it aside"),
        "CheckPending": _("an admission check is not done yet"),
        "CheckRejected": _("an admission check has refused it"),
        "NoRoom": _("not enough free GPUs or nodes"),
        "NoNode": _("no node is of the type that it asks for"),
        "Behind": _("jobs with higher priority are ahead"),
        "Gated": _("it is held back until the whole job may begin"),
        "Suspended": _("it is suspended until someone lets it begin"),
        "Starting": _("its pods are being started"),
        "Taint": _("the nodes are tainted against it"),
        "NodeAffinity": _("no node has the labels that it asks for"),
        "NotOffered": _("its queue does not offer what it asks for"),
        "ImagePull": _("its image cannot be pulled"),
        "ImageMissing": _("its image is not in the registry"),
        "ImageDenied": _("the registry does not let the cluster read its image"),
        "ImageName": _("its image has a name that is none"),
        "ImageNoSpace": _("the node has no room for its image"),
        "ImageArchitecture": _("its image is not for the nodes' architecture"),
        "Missing": _("something that it names is not there"),
        "CannotStart": _("its container cannot be started"),
        "CrashLoop": _("its container ends again and again"),
        "VolumeUnbound": _("its volume has not been made yet"),
        "VolumeMount": _("its volume cannot be mounted"),
        "Evicted": _("it was evicted and waits again"),
        "Drained": _("its node was drained"),
        "NodeLost": _("its node is gone"),
    }
    if code.startswith("Unschedulable"):
        return _("no node takes it")
    return words.get(code, "")


def said_words(attempt: Attempt | None) -> str:
    """What the cluster itself says about an attempt, in sentences; empty where it gives no more than a code."""
    return str(attempt.observed_words).strip() if attempt is not None and attempt.observed_words else ""


def ended_words(job: Job) -> str:
    """How a job on Kubernetes ended, as the cluster told it, to stand inside a sentence; empty where it did not."""
    words = str(job.message).strip()
    if not job.cluster.is_kubernetes or not words.endswith("."):
        return ""
    first = words.partition(" ")[0]
    plain = words.removesuffix(".")
    return plain[:1].lower() + plain[1:] if first in _STARTS else plain
