"""What the worker writes about file systems, associations and exports: every status column, each conditionally."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import F

from apps.audit.services import event
from apps.core import clock, ids
from apps.core.said import brief
from apps.core.states import move
from apps.storage.models import Export, FileSystem, RepositoryAssociation
from apps.storage.states import (
    ASSOCIATION_TRANSITIONS,
    EXPORT_TRANSITIONS,
    TRANSITIONS,
    AssociationPhase,
    ExportPhase,
    FileSystemPhase,
)

#: What a timeline calls the phases that a person should notice.
_EVENTS: Mapping[str, str] = {
    FileSystemPhase.AVAILABLE: "FileSystemAvailable",
    FileSystemPhase.FAILED: "FileSystemFailed",
    FileSystemPhase.IMPAIRED: "FileSystemImpaired",
    FileSystemPhase.UPDATING: "FileSystemGrowing",
    FileSystemPhase.DELETED: "FileSystemDeleted",
}


def create_attempt(file_system: FileSystem) -> None:
    """Write the token of the next attempt before AWS is asked; one UPDATE, so that two workers agree on it."""
    number = file_system.create_attempt + 1
    token = ids.idempotency_token(file_system.uid, number, "create")
    changed = FileSystem.objects.filter(pk=file_system.pk, create_attempt=file_system.create_attempt).update(
        create_attempt=number, client_token=token
    )
    if changed == 1:
        file_system.create_attempt, file_system.client_token = number, token
    else:
        file_system.refresh_from_db()


def file_system_move(file_system: FileSystem, phase: str, message: str = "", **columns: Any) -> None:
    """Take it to another phase with what was seen; a phase a person should notice leaves an event."""
    columns |= {"message": brief(message, 500), "observed_at": clock.now()}
    with transaction.atomic():
        move(file_system, TRANSITIONS, phase, **columns)
        if phase in _EVENTS:
            event("file_system", file_system.uid, _EVENTS[phase], message or file_system.name)


def file_system_seen(file_system: FileSystem, **columns: Any) -> None:
    """Write what differs, and when it was looked at."""
    changed = {k: v for k, v in columns.items() if getattr(file_system, k) != v}
    FileSystem.objects.filter(pk=file_system.pk).update(**changed, observed_at=clock.now())
    for name, value in changed.items():
        setattr(file_system, name, value)


def file_system_say(file_system: FileSystem, message: str) -> None:
    """The newest sentence about it."""
    file_system_seen(file_system, message=brief(message, 500))


def metrics_seen(
    file_system: FileSystem,
    *,
    export_queue_age_s: float | None,
    free_bytes: int | None,
    fullest_free_bytes: int | None,
    targets: int | None,
) -> None:
    """A reading of the metrics; what CloudWatch had no point for becomes unknown, never the last value."""
    FileSystem.objects.filter(pk=file_system.pk).update(
        export_queue_age_s=export_queue_age_s,
        free_bytes=free_bytes,
        fullest_free_bytes=fullest_free_bytes,
        targets=targets,
        metrics_read_at=clock.now(),
    )
    file_system.export_queue_age_s = export_queue_age_s
    file_system.metrics_read_at = clock.now()


def association_token(association: RepositoryAssociation) -> None:
    """Write the token before AWS is asked."""
    token = ids.idempotency_token(association.uid, 1, "associate")
    RepositoryAssociation.objects.filter(pk=association.pk, client_token="").update(client_token=token)
    association.client_token = token


def association_move(association: RepositoryAssociation, phase: str, message: str = "", **columns: Any) -> None:
    """Take it to another phase with what was seen."""
    columns |= {"message": brief(message, 500), "observed_at": clock.now()}
    with transaction.atomic():
        move(association, ASSOCIATION_TRANSITIONS, phase, **columns)
        if phase in (AssociationPhase.AVAILABLE, AssociationPhase.MISCONFIGURED, AssociationPhase.FAILED):
            kind = "AssociationAvailable" if phase == AssociationPhase.AVAILABLE else "AssociationBroken"
            data = {"path": association.path, "repository": association.repository}
            event("file_system", association.file_system.uid, kind, message or str(association), data=data)


def export_token(export: Export) -> None:
    """Write the token before AWS is asked."""
    token = ids.idempotency_token(export.uid, 1, "export")
    Export.objects.filter(pk=export.pk, client_token="").update(client_token=token)
    export.client_token = token


def export_move(export: Export, phase: str, message: str = "", **columns: Any) -> None:
    """Take it to another phase; its end leaves an event."""
    columns |= {"message": brief(message, 500), "observed_at": clock.now()}
    if phase in (ExportPhase.SUCCEEDED, ExportPhase.FAILED):
        columns["ended_at"] = clock.now()
    with transaction.atomic():
        move(export, EXPORT_TRANSITIONS, phase, **columns)
        if phase in (ExportPhase.SUCCEEDED, ExportPhase.FAILED):
            kind = "ExportSucceeded" if phase == ExportPhase.SUCCEEDED else "ExportFailed"
            event("file_system", export.file_system.uid, kind, message or str(export), data={"paths": export.paths})


def generation_seen(file_system: FileSystem) -> None:
    """The worker has acted on the newest wish."""
    FileSystem.objects.filter(pk=file_system.pk).update(observed_generation=F("generation"))
