"""States of file systems, of their S3 associations and of exports.

File system:

    PENDING ▶ CREATING ▶ AVAILABLE ◀▶ UPDATING
       └─────────┴──▶ FAILED        AVAILABLE ◀▶ IMPAIRED (AWS says misconfigured, or it vanished)
    any ▶ DELETING ▶ DELETED

Association:

    PENDING ▶ CREATING ▶ AVAILABLE ◀▶ MISCONFIGURED      PENDING, CREATING ▶ FAILED      any ▶ DELETING ▶ DELETED

Export:

    PENDING ▶ EXECUTING ▶ SUCCEEDED | FAILED
"""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class FileSystemKind(TextChoices):
    """What AWS makes."""

    LUSTRE = "fsx-lustre", "FSx for Lustre"
    EFS = "efs", "EFS"


class FileSystemPhase(TextChoices):
    """Where a file system is."""

    PENDING = "PENDING", _("Accepted")
    CREATING = "CREATING", _("Creating")
    AVAILABLE = "AVAILABLE", _("Available")
    UPDATING = "UPDATING", _("Growing")
    IMPAIRED = "IMPAIRED", _("Impaired")
    FAILED = "FAILED", _("Failed")
    DELETING = "DELETING", _("Deleting")
    DELETED = "DELETED", _("Deleted")


class AssociationPhase(TextChoices):
    """Where the tie between a folder and S3 is."""

    PENDING = "PENDING", _("Accepted")
    CREATING = "CREATING", _("Creating")
    AVAILABLE = "AVAILABLE", _("Available")
    MISCONFIGURED = "MISCONFIGURED", _("Misconfigured")
    FAILED = "FAILED", _("Failed")
    DELETING = "DELETING", _("Deleting")
    DELETED = "DELETED", _("Deleted")


class ExportPhase(TextChoices):
    """Where an explicit export to S3 is."""

    PENDING = "PENDING", _("Accepted")
    EXECUTING = "EXECUTING", _("Executing")
    SUCCEEDED = "SUCCEEDED", _("Succeeded")
    FAILED = "FAILED", _("Failed")


class RepositoryEvent(TextChoices):
    """What of a file travels between the file system and S3 by itself."""

    NEW = "NEW", _("new files")
    CHANGED = "CHANGED", _("changed files")
    DELETED = "DELETED", _("deleted files")


F, A, E = FileSystemPhase, AssociationPhase, ExportPhase

TRANSITIONS: dict[str, frozenset[str]] = {
    F.PENDING: frozenset({F.CREATING, F.AVAILABLE, F.FAILED, F.DELETING}),
    F.CREATING: frozenset({F.AVAILABLE, F.FAILED, F.DELETING}),
    F.AVAILABLE: frozenset({F.UPDATING, F.IMPAIRED, F.DELETING}),
    F.UPDATING: frozenset({F.AVAILABLE, F.IMPAIRED, F.DELETING}),
    F.IMPAIRED: frozenset({F.AVAILABLE, F.UPDATING, F.DELETING}),
    F.FAILED: frozenset({F.DELETING}),
    F.DELETING: frozenset({F.DELETED}),
    F.DELETED: frozenset(),
}
ASSOCIATION_TRANSITIONS: dict[str, frozenset[str]] = {
    A.PENDING: frozenset({A.CREATING, A.FAILED, A.DELETING}),
    A.CREATING: frozenset({A.AVAILABLE, A.MISCONFIGURED, A.FAILED, A.DELETING}),
    A.AVAILABLE: frozenset({A.MISCONFIGURED, A.DELETING}),
    A.MISCONFIGURED: frozenset({A.AVAILABLE, A.DELETING}),
    A.FAILED: frozenset({A.DELETING}),
    A.DELETING: frozenset({A.DELETED}),
    A.DELETED: frozenset(),
}
EXPORT_TRANSITIONS: dict[str, frozenset[str]] = {
    E.PENDING: frozenset({E.EXECUTING, E.FAILED}),
    E.EXECUTING: frozenset({E.SUCCEEDED, E.FAILED}),
    E.SUCCEEDED: frozenset(),
    E.FAILED: frozenset(),
}

#: The worker still has something to do.
WORKING = frozenset({F.PENDING, F.CREATING, F.UPDATING, F.DELETING})
LIVE = frozenset(set(F) - {F.DELETED})
#: AWS bills for it.
BILLED = frozenset({F.CREATING, F.AVAILABLE, F.UPDATING, F.IMPAIRED, F.FAILED, F.DELETING})
ASSOCIATION_WORKING = frozenset({A.PENDING, A.CREATING, A.DELETING})
EXPORT_WORKING = frozenset({E.PENDING, E.EXECUTING})

COLOURS: dict[str, str] = {
    F.PENDING: "wait",
    F.CREATING: "busy",
    F.AVAILABLE: "good",
    F.UPDATING: "busy",
    F.IMPAIRED: "bad",
    F.FAILED: "bad",
    F.DELETING: "busy",
    F.DELETED: "off",
}
ASSOCIATION_COLOURS: dict[str, str] = {
    A.PENDING: "wait",
    A.CREATING: "busy",
    A.AVAILABLE: "good",
    A.MISCONFIGURED: "bad",
    A.FAILED: "bad",
    A.DELETING: "busy",
    A.DELETED: "off",
}
EXPORT_COLOURS: dict[str, str] = {E.PENDING: "wait", E.EXECUTING: "busy", E.SUCCEEDED: "good", E.FAILED: "bad"}
