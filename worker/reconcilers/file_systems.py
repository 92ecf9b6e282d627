"""File systems: made, grown, tied to S3, exported and taken away, one idempotent step a visit.

Every creating call carries a token that was saved before it: a worker killed anywhere is continued by the next,
which gets the same thing back. A file system made here is recognised by its uid tag where its id was never saved.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.utils.translation import gettext_noop as _

from apps.core import clock, ids
from apps.core.said import said
from apps.storage import observations, rules
from apps.storage.models import Export, FileSystem, RepositoryAssociation
from apps.storage.selectors import associations_of, exports_of, file_system_by_uid, has_exports
from apps.storage.states import (
    EXPORT_WORKING,
    AssociationPhase,
    ExportPhase,
    FileSystemKind,
    FileSystemPhase,
)
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.providers import storage_values as sv
from worker.providers import values as v
from worker.providers.errors import (
    AccessDenied,
    Conflict,
    InvalidRequest,
    NotFound,
    ProviderError,
    QuotaExceeded,
    Unavailable,
)
from worker.providers.ports import FileStorage

POLL_S = 3.0
WATCH_S = 60.0
#: AWS makes a Lustre file system in about ten minutes; after this long a person should look.
CREATE_LIMIT = timedelta(hours=1)
_FINAL = (InvalidRequest, QuotaExceeded, AccessDenied)


def reconcile(uid: str) -> Outcome:
    """One step towards what the file system's spec wants."""
    fs = file_system_by_uid(uid)
    if fs is None or fs.phase == FileSystemPhase.DELETED:
        return DONE
    if fs.account.is_paused:
        text = said(_("account %(name)s is paused; nothing is changed until it is resumed"), name=fs.account.name)
        observations.file_system_say(fs, text)
        return again(30)
    if not fs.account.is_trusted:
        # Whoever answers may be another account, which holds nothing of ours: believe nothing until it is known.
        text = said(_("account %(name)s is being checked, or failed its check; waiting for it"), name=fs.account.name)
        observations.file_system_say(fs, text)
        return again(10)
    storage = doors.storage_for(fs.account)
    if fs.delete_requested_at is not None:
        return _delete(fs, storage)
    step = _STEPS.get(fs.phase)
    return step(fs, storage) if step is not None else DONE


def tags_of(fs: FileSystem) -> dict[str, str]:
    """The tags on everything made for a file system."""
    return {
        v.TAG_UID: fs.uid,
        v.TAG_ATTEMPT: str(max(1, fs.create_attempt)),
        v.TAG_TEAM: fs.team.slug if fs.team else "shared",
    }


def _seen(fs: FileSystem, storage: FileStorage) -> sv.SeenFileSystem | None:
    """Ours by its id, or by its tag where the id was never saved."""
    for found in storage.file_systems(fs.kind):
        if fs.provider_id == found.provider_id or (not fs.provider_id and found.tags.get(v.TAG_UID) == fs.uid):
            return found
    return None


def _columns(seen: sv.SeenFileSystem) -> dict[str, object]:
    return {
        "provider_id": seen.provider_id,
        "dns_name": seen.dns_name,
        "mount_name": seen.mount_name,
        "observed_capacity_gib": seen.capacity_gib,
        "update_percent": seen.update_percent,
    }


# --- making


def _create(fs: FileSystem, storage: FileStorage) -> Outcome:
    if fs.is_adopted:
        return _adopt(fs, storage)
    if not fs.client_token:
        observations.create_attempt(fs)
    spec = sv.FileSystemSpec(
        kind=fs.kind,
        name=fs.name,
        subnet_id=fs.subnet_id,
        security_group_ids=tuple(fs.security_group_ids),
        tags=tags_of(fs),
        capacity_gib=fs.capacity_gib,
        throughput_mb_s_tib=fs.throughput_mb_s_tib,
        has_efa=fs.has_efa,
        is_compressed=fs.is_compressed,
        metadata_iops=fs.metadata_iops,
    )
    try:
        made = storage.file_system_ensure(spec, fs.client_token)
    except _FINAL as error:
        observations.file_system_move(fs, FileSystemPhase.FAILED, str(error))
        return DONE
    except Conflict as error:
        # The token's file system is gone or meant something else: nothing of ours lives, a look by tag shows it.
        if _seen(fs, storage) is None:
            observations.create_attempt(fs)
        observations.file_system_say(fs, said(_("%(error)s; trying with a new token"), error=str(error)))
        return again(POLL_S)
    except Unavailable as error:
        text = said(_("no clear answer (%(error)s); asking again with the same token"), error=str(error))
        observations.file_system_say(fs, text)
        return again(POLL_S)
    observations.file_system_move(fs, FileSystemPhase.CREATING, said(_("AWS is making it")), **_columns(made))
    return again(POLL_S)


def _adopt(fs: FileSystem, storage: FileStorage) -> Outcome:
    found = _seen(fs, storage)
    if found is None:
        text = said(_("the account has no file system %(id)s of this kind"), id=fs.provider_id)
        observations.file_system_move(fs, FileSystemPhase.FAILED, text)
        return DONE
    if found.state not in ("AVAILABLE", "UPDATING"):
        observations.file_system_say(fs, said(_("AWS says %(state)s; waiting for AVAILABLE"), state=found.state))
        return again(WATCH_S)
    usd = rules.usd_per_month(fs.kind, found.capacity_gib, found.throughput_mb_s_tib)
    # What a person would have typed is read from AWS instead, once; from now on it is the wish.
    FileSystem.objects.filter(pk=fs.pk).update(
        capacity_gib=found.capacity_gib,
        throughput_mb_s_tib=found.throughput_mb_s_tib,
        has_efa=found.has_efa,
        usd_per_month=usd,
        price_source=rules.PRICE_SOURCE,
    )
    observations.file_system_move(fs, FileSystemPhase.AVAILABLE, "", **_columns(found))
    return again(0)


def _creating(fs: FileSystem, storage: FileStorage) -> Outcome:
    found = _seen(fs, storage)
    if found is None:
        observations.file_system_move(fs, FileSystemPhase.FAILED, said(_("it vanished while AWS was making it")))
        return DONE
    if found.state == "FAILED":
        why = found.failure or said(_("AWS gave no reason"))
        observations.file_system_move(fs, FileSystemPhase.FAILED, why, **_columns(found))
        return DONE
    if found.state != "AVAILABLE":
        text = said(_("AWS is making it"))
        if clock.now() - fs.phase_since > CREATE_LIMIT:
            text = said(_("AWS has been making it for over an hour; look at it there"))
        observations.file_system_seen(fs, message=text, **_columns(found))
        return again(POLL_S)
    if fs.kind == FileSystemKind.EFS:
        state = storage.mount_target_ensure(found.provider_id, fs.subnet_id, fs.security_group_ids)
        if state != "AVAILABLE":
            observations.file_system_seen(fs, message=said(_("waiting for its mount target")), **_columns(found))
            return again(POLL_S)
    observations.file_system_move(fs, FileSystemPhase.AVAILABLE, "", **_columns(found))
    observations.generation_seen(fs)
    return again(0)


# --- using


def _watch(fs: FileSystem, storage: FileStorage) -> Outcome:
    """An available file system: what changed in AWS, growth, associations, exports; one step a visit."""
    found = _seen(fs, storage)
    if found is None:
        if fs.phase != FileSystemPhase.IMPAIRED:
            observations.file_system_move(fs, FileSystemPhase.IMPAIRED, said(_("it is no longer in the account")))
        return again(WATCH_S)
    observations.file_system_seen(fs, **_columns(found))
    if found.state not in ("AVAILABLE", "UPDATING"):
        if fs.phase != FileSystemPhase.IMPAIRED:
            why = found.failure or said(_("AWS says %(state)s"), state=found.state)
            observations.file_system_move(fs, FileSystemPhase.IMPAIRED, why)
        return again(WATCH_S)
    phase = FileSystemPhase.UPDATING if found.state == "UPDATING" else FileSystemPhase.AVAILABLE
    if fs.phase != phase:
        observations.file_system_move(fs, phase, "")
    if phase == FileSystemPhase.AVAILABLE and fs.kind == FileSystemKind.LUSTRE and fs.capacity_gib > found.capacity_gib:
        return _grow(fs, storage)
    outcome = _next_association(fs, storage) or _next_export(fs, storage)
    if outcome is not None:
        return outcome
    if phase == FileSystemPhase.UPDATING:
        return again(POLL_S)
    _read_metrics(fs, storage)
    if fs.observed_generation != fs.generation:
        observations.generation_seen(fs)
    return again(WATCH_S)


def _grow(fs: FileSystem, storage: FileStorage) -> Outcome:
    # The same wish asks with the same token: a second call after a kill changes nothing.
    token = ids.idempotency_token(fs.uid, fs.generation, "grow")
    try:
        storage.file_system_grow(fs.provider_id, fs.capacity_gib, token)
    except _FINAL as error:
        observations.file_system_say(fs, said(_("not grown: %(error)s"), error=str(error)))
        return again(WATCH_S)
    observations.file_system_move(fs, FileSystemPhase.UPDATING, "")
    return again(POLL_S)


def _read_metrics(fs: FileSystem, storage: FileStorage) -> None:
    if fs.kind != FileSystemKind.LUSTRE:
        return
    try:
        readings = storage.readings([fs.provider_id])
    except ProviderError as error:
        # Not allowed to read metrics is no fault of the file system; what is unknown is shown as unknown.
        observations.file_system_say(fs, said(_("metrics cannot be read: %(error)s"), error=str(error)))
        observations.metrics_seen(fs, export_queue_age_s=None, free_bytes=None, fullest_free_bytes=None, targets=None)
        return
    for reading in readings:
        observations.metrics_seen(
            fs,
            export_queue_age_s=reading.export_queue_age_s,
            free_bytes=reading.free_bytes,
            fullest_free_bytes=reading.fullest_free_bytes,
            targets=reading.targets,
        )
        if fs.message:
            observations.file_system_say(fs, "")


def _next_association(fs: FileSystem, storage: FileStorage) -> Outcome | None:
    """One step on the associations, None when all are as wanted."""
    rows = list(associations_of(fs))
    if not rows:
        return None
    seen = {a.provider_id: a for a in storage.associations(fs.provider_id)}
    waiting = False
    for row in rows:
        row.file_system = fs
        if row.delete_requested_at is not None:
            if _untie(row, seen, storage):
                continue
            return again(POLL_S)
        if row.phase == AssociationPhase.PENDING:
            return _tie(row, storage)
        found = seen.get(row.provider_id)
        wanted = AssociationPhase.FAILED if found is None else _PHASES.get(found.state, AssociationPhase.CREATING)
        if found is None and row.phase in (AssociationPhase.AVAILABLE, AssociationPhase.MISCONFIGURED):
            wanted = AssociationPhase.MISCONFIGURED
        why = found.failure if found is not None else said(_("it is no longer in the account"))
        if wanted != row.phase:
            observations.association_move(row, wanted, why)
        waiting = waiting or wanted == AssociationPhase.CREATING
    return again(POLL_S) if waiting else None


_PHASES = {
    "CREATING": AssociationPhase.CREATING,
    "AVAILABLE": AssociationPhase.AVAILABLE,
    "UPDATING": AssociationPhase.AVAILABLE,
    "MISCONFIGURED": AssociationPhase.MISCONFIGURED,
    "FAILED": AssociationPhase.MISCONFIGURED,
}


def _tie(row: RepositoryAssociation, storage: FileStorage) -> Outcome:
    if not row.client_token:
        observations.association_token(row)
    spec = sv.AssociationSpec(
        file_system_id=row.file_system.provider_id,
        path=row.path,
        repository=row.repository,
        imports=tuple(row.imports),
        exports=tuple(row.exports),
        is_imported_at_start=row.is_imported_at_start,
        tags={v.TAG_UID: row.uid, v.TAG_ATTEMPT: "1"},
    )
    try:
        made = storage.association_ensure(spec, row.client_token)
    except (*_FINAL, Conflict) as error:
        observations.association_move(row, AssociationPhase.FAILED, str(error))
        return again(0)
    observations.association_move(row, AssociationPhase.CREATING, "", provider_id=made.provider_id)
    return again(POLL_S)


def _untie(row: RepositoryAssociation, seen: dict[str, sv.SeenAssociation], storage: FileStorage) -> bool:
    """Whether the association is gone. One whose id was never saved is found by its tag."""
    if row.phase != AssociationPhase.DELETING:
        observations.association_move(row, AssociationPhase.DELETING, "")
    by_tag = next((a.provider_id for a in seen.values() if a.tags.get(v.TAG_UID) == row.uid), "")
    provider_id = row.provider_id or by_tag
    if provider_id and provider_id in seen:
        try:
            storage.association_delete(provider_id)
        except NotFound:
            pass
        else:
            return False
    observations.association_move(row, AssociationPhase.DELETED, "")
    return True


def _next_export(fs: FileSystem, storage: FileStorage) -> Outcome | None:
    """One step on the running export, None when there is none."""
    export = exports_of(fs).filter(phase__in=EXPORT_WORKING).order_by("id").first()
    if export is None:
        return None
    export.file_system = fs
    if export.phase == ExportPhase.PENDING:
        return _begin_export(export, storage)
    try:
        state = storage.export_state(export.provider_id)
    except NotFound as error:
        observations.export_move(export, ExportPhase.FAILED, str(error))
        return again(0)
    if state == "SUCCEEDED":
        observations.export_move(export, ExportPhase.SUCCEEDED, "")
        return again(0)
    if state in ("FAILED", "CANCELED"):
        observations.export_move(export, ExportPhase.FAILED, said(_("AWS says %(state)s"), state=state))
        return again(0)
    return again(POLL_S)


def _begin_export(export: Export, storage: FileStorage) -> Outcome:
    if not export.client_token:
        observations.export_token(export)
    try:
        task = storage.export_begin(export.file_system.provider_id, export.paths, export.client_token)
    except _FINAL as error:
        observations.export_move(export, ExportPhase.FAILED, str(error))
        return again(0)
    observations.export_move(export, ExportPhase.EXECUTING, "", provider_id=task)
    return again(POLL_S)


# --- taking away


def _delete(fs: FileSystem, storage: FileStorage) -> Outcome:
    """Associations first, then mount targets, then the file system, each until AWS says it is gone."""
    if fs.phase != FileSystemPhase.DELETING:
        observations.file_system_move(fs, FileSystemPhase.DELETING, said(_("deletion has begun")))
    if fs.is_adopted:
        _forget(fs, said(_("it left the portal; AWS keeps it")))
        return DONE
    found = _seen(fs, storage)
    if found is None:
        _forget(fs, said(_("AWS holds nothing of it any more")))
        return DONE
    if found.state in ("CREATING", "UPDATING"):
        text = said(_("AWS says %(state)s and deletes it only afterwards"), state=found.state)
        observations.file_system_seen(fs, message=text, **_columns(found))
        return again(POLL_S)
    if not fs.loses_unexported and found.state not in ("DELETING", "FAILED") and has_exports(fs):
        # The reading that allowed the request may be minutes old: look again before anything is lost.
        _read_metrics(fs, storage)
        age = (clock.now() - fs.metrics_read_at).total_seconds() if fs.metrics_read_at else None
        reason = rules.unexported_reason(fs.export_queue_age_s, age, has_exports=True)
        if reason:
            text = said(_("waiting with the deletion: files may not have reached S3 yet"))
            observations.file_system_say(fs, text)
            return again(WATCH_S)
    if fs.kind == FileSystemKind.EFS and storage.mount_targets_delete(found.provider_id):
        observations.file_system_say(fs, said(_("removing its mount targets")))
        return again(POLL_S)
    try:
        storage.file_system_delete(fs.kind, found.provider_id)
    except NotFound:
        _forget(fs, said(_("AWS holds nothing of it any more")))
        return DONE
    except Conflict as error:
        observations.file_system_say(fs, str(error))
        return again(POLL_S)
    observations.file_system_seen(fs, message=said(_("AWS is deleting it")), **_columns(found))
    return again(POLL_S)


def _forget(fs: FileSystem, text: str) -> None:
    """Nothing of it is left: its associations went with it."""
    for row in associations_of(fs):
        row.file_system = fs
        if row.phase != AssociationPhase.DELETING:
            observations.association_move(row, AssociationPhase.DELETING, "")
        observations.association_move(row, AssociationPhase.DELETED, "")
    for export in exports_of(fs).filter(phase__in=EXPORT_WORKING):
        export.file_system = fs
        observations.export_move(export, ExportPhase.FAILED, said(_("the file system was deleted")))
    observations.file_system_move(
        fs, FileSystemPhase.DELETED, text, ended_at=clock.now(), observed_generation=fs.generation
    )


_STEPS: dict[str, Callable[[FileSystem, FileStorage], Outcome]] = {
    FileSystemPhase.PENDING: _create,
    FileSystemPhase.CREATING: _creating,
    FileSystemPhase.AVAILABLE: _watch,
    FileSystemPhase.UPDATING: _watch,
    FileSystemPhase.IMPAIRED: _watch,
}
