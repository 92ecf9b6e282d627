"""What people do with shared storage; what the worker writes is in ``observations``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from apps.audit.services import event, record
from apps.connections.models import CloudAccount
from apps.connections.states import AccountPhase
from apps.core import clock
from apps.core.errors import FieldProblem, Forbidden, InvalidInput, Refusal, TransitionConflict
from apps.intents.services import intent_ask
from apps.storage import rules
from apps.storage.models import Export, FileSystem, RepositoryAssociation
from apps.storage.permissions import can_operate_storage
from apps.storage.selectors import associations_of, unexported_reason
from apps.storage.states import (
    EXPORT_WORKING,
    AssociationPhase,
    FileSystemKind,
    FileSystemPhase,
)
from apps.teams.models import Team
from apps.teams.permissions import Actor

INTENT = "file_system.reconcile"
_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,58}$")
_PROVIDER_ID = re.compile(r"^fs-[0-9a-f]{8,40}$")
#: Phases in which a file system holds data and takes changes.
_USABLE = frozenset({FileSystemPhase.AVAILABLE, FileSystemPhase.UPDATING})


class FileSystemInUse(Refusal):
    """A cluster still mounts it."""


class ExportPending(Refusal):
    """Files have not reached S3 yet, or it is not known whether they have."""


def _operate(actor: Actor) -> None:
    if not can_operate_storage(actor):
        raise Forbidden(_("only operators and administrators do this"))


def _refuse(problems: Sequence[FieldProblem]) -> None:
    if problems:
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=problems)


def _usable(account: CloudAccount) -> None:
    if account.phase != AccountPhase.CONNECTED:
        raise TransitionConflict(
            _("account %(name)s is not connected: %(why)s")
            % {"name": account.name, "why": account.message or _("still checking")}
        )
    if account.is_paused:
        raise TransitionConflict(_("account %(name)s is paused; resume it first") % {"name": account.name})


def file_system_create(
    *,
    actor: Actor,
    account: CloudAccount,
    name: str,
    kind: str,
    subnet_id: str,
    security_group_ids: Sequence[str],
    capacity_gib: int = 0,
    throughput_mb_s_tib: int = 0,
    has_efa: bool = False,
    is_compressed: bool = True,
    metadata_iops: int = 0,
    team: Team | None = None,
) -> FileSystem:
    """Record a file system and ask the worker to make it. Raises Forbidden, InvalidInput, TransitionConflict."""
    _operate(actor)
    problems: list[FieldProblem] = []
    if not _NAME.fullmatch(name):
        problems.append(FieldProblem("/name", "invalid", _("lower-case letters, digits and dashes")))
    if kind not in FileSystemKind.values:
        problems.append(FieldProblem("/kind", "unknown", _("fsx-lustre or efs")))
    if not subnet_id.startswith("subnet-"):
        problems.append(FieldProblem("/subnet_id", "invalid", _("must start with subnet-")))
    if not security_group_ids or any(not s.startswith("sg-") for s in security_group_ids):
        problems.append(FieldProblem("/security_group_ids", "invalid", _("one or more, each starting with sg-")))
    if kind == FileSystemKind.LUSTRE:
        problems += rules.lustre_problems(capacity_gib, throughput_mb_s_tib, has_efa, metadata_iops)
    else:
        capacity_gib, throughput_mb_s_tib, has_efa, metadata_iops = 0, 0, False, 0
    _refuse(problems)
    _usable(account)
    file_system = FileSystem(
        account=account,
        team=team,
        name=name,
        kind=kind,
        subnet_id=subnet_id,
        security_group_ids=list(security_group_ids),
        capacity_gib=capacity_gib,
        throughput_mb_s_tib=throughput_mb_s_tib,
        has_efa=has_efa,
        is_compressed=is_compressed,
        metadata_iops=metadata_iops,
        usd_per_month=rules.usd_per_month(kind, capacity_gib, throughput_mb_s_tib),
        price_source=rules.PRICE_SOURCE,
    )
    _insert(actor, file_system, "file_system.create", _("%(name)s asked for"))
    return file_system


def file_system_adopt(
    *, actor: Actor, account: CloudAccount, name: str, kind: str, provider_id: str, team: Team | None = None
) -> FileSystem:
    """Watch a file system that exists; it is never deleted from here.

    Raises Forbidden, InvalidInput, TransitionConflict.
    """
    _operate(actor)
    problems: list[FieldProblem] = []
    if not _NAME.fullmatch(name):
        problems.append(FieldProblem("/name", "invalid", _("lower-case letters, digits and dashes")))
    if kind not in FileSystemKind.values:
        problems.append(FieldProblem("/kind", "unknown", _("fsx-lustre or efs")))
    if not _PROVIDER_ID.fullmatch(provider_id):
        problems.append(FieldProblem("/provider_id", "invalid", _("an id such as fs-0123456789abcdef0")))
    _refuse(problems)
    _usable(account)
    file_system = FileSystem(account=account, team=team, name=name, kind=kind, provider_id=provider_id, is_adopted=True)
    _insert(actor, file_system, "file_system.adopt", _("%(name)s adopted"))
    return file_system


def _insert(actor: Actor, file_system: FileSystem, verb: str, said: str) -> None:
    try:
        with transaction.atomic():
            file_system.save()
            after = {
                "name": file_system.name,
                "kind": file_system.kind,
                "account": file_system.account.name,
                "capacity_gib": file_system.capacity_gib,
                "throughput_mb_s_tib": file_system.throughput_mb_s_tib,
                "provider_id": file_system.provider_id,
                "usd_per_month": str(file_system.usd_per_month) if file_system.usd_per_month is not None else None,
            }
            team_id = file_system.team_id
            record(actor, verb, "file_system", file_system.uid, team_id=team_id, after=after)
            event("file_system", file_system.uid, "FileSystemRequested", said % {"name": file_system.name})
            intent_ask(INTENT, file_system.uid)
    except IntegrityError:
        same = FileSystem.objects.exclude(phase=FileSystemPhase.DELETED).filter(account=file_system.account)
        if file_system.provider_id and same.filter(provider_id=file_system.provider_id).exists():
            problem = FieldProblem("/provider_id", "taken", _("already here"))
            raise InvalidInput(_("this file system is already here"), problems=[problem]) from None
        raise InvalidInput(
            _("the account already has a file system named %(name)s") % {"name": file_system.name},
            problems=[FieldProblem("/name", "taken", _("already used"))],
        ) from None


def file_system_grow(*, actor: Actor, file_system: FileSystem, capacity_gib: int, expected_version: int) -> None:
    """Ask for a larger capacity; AWS never makes one smaller.

    Raises Forbidden, InvalidInput, TransitionConflict, StaleVersion.
    """
    _operate(actor)
    if file_system.kind != FileSystemKind.LUSTRE:
        raise TransitionConflict(_("EFS grows by itself with what is written"))
    if file_system.phase != FileSystemPhase.AVAILABLE:
        raise TransitionConflict(_("only an available file system grows, and one increase at a time"))
    now_gib = file_system.observed_capacity_gib
    problem = rules.grow_problem(now_gib, capacity_gib, file_system.throughput_mb_s_tib, file_system.has_efa)
    if problem:
        _refuse([FieldProblem("/capacity_gib", "not-a-step", problem)])
    _usable(file_system.account)
    usd = rules.usd_per_month(file_system.kind, capacity_gib, file_system.throughput_mb_s_tib)
    with transaction.atomic():
        file_system.spec_update(
            expected_version,
            capacity_gib=capacity_gib,
            usd_per_month=usd,
            price_source=rules.PRICE_SOURCE,
            generation=file_system.generation + 1,
        )
        record(
            actor,
            "file_system.grow",
            "file_system",
            file_system.uid,
            team_id=file_system.team_id,
            before={"capacity_gib": now_gib},
            after={"capacity_gib": capacity_gib, "usd_per_month": str(usd)},
        )
        intent_ask(INTENT, file_system.uid)


def file_system_delete(
    *, actor: Actor, file_system: FileSystem, expected_version: int, loses_unexported: bool = False
) -> None:
    """Delete a file system with everything on it; an adopted one only leaves the portal.

    Raises ExportPending while something may not have reached S3 (unless a person says it may be lost),
    FileSystemInUse while a cluster mounts it, TransitionConflict.
    """
    _operate(actor)
    if file_system.phase == FileSystemPhase.DELETED:
        raise TransitionConflict(_("the file system is already deleted"))
    reason = "" if file_system.is_adopted or loses_unexported else unexported_reason(file_system)
    if reason:
        raise ExportPending(_("not deleted: %(reason)s") % {"reason": reason})
    with transaction.atomic():
        # A mount is added under the same lock, so that none comes in between.
        FileSystem.objects.select_for_update().get(pk=file_system.pk)
        # By the relation's name: clusters live on a higher floor.
        mounts = getattr(file_system, "mounts")  # noqa: B009
        users = sorted(set(mounts.values_list("cluster__name", flat=True)))
        if users:
            raise FileSystemInUse(_("mounted by %(names)s; remove the mount first") % {"names": ", ".join(users)})
        if file_system.delete_requested_at is not None and loses_unexported and not file_system.loses_unexported:
            # It waits for its exports, and a person now says that they may be lost.
            file_system.spec_update(expected_version, loses_unexported=True)
            record(
                actor,
                "file_system.delete",
                "file_system",
                file_system.uid,
                team_id=file_system.team_id,
                before={"loses_unexported": False},
                after={"loses_unexported": True},
            )
        elif file_system.delete_requested_at is None:
            file_system.spec_update(
                expected_version,
                delete_requested_at=clock.now(),
                loses_unexported=loses_unexported,
                generation=file_system.generation + 1,
            )
            record(
                actor,
                "file_system.delete",
                "file_system",
                file_system.uid,
                team_id=file_system.team_id,
                before={"name": file_system.name, "provider_id": file_system.provider_id},
                after={"loses_unexported": loses_unexported},
            )
            event("file_system", file_system.uid, "FileSystemDeleteRequested", f"deletion asked for by {actor.name}")
        intent_ask(INTENT, file_system.uid)


def association_create(
    *,
    actor: Actor,
    file_system: FileSystem,
    path: str,
    repository: str,
    imports: Sequence[str] = ("NEW", "CHANGED"),
    exports: Sequence[str] = ("NEW", "CHANGED"),
    is_imported_at_start: bool = True,
) -> RepositoryAssociation:
    """Tie a folder to an S3 prefix. Raises Forbidden, InvalidInput, TransitionConflict."""
    _operate(actor)
    if file_system.kind != FileSystemKind.LUSTRE:
        raise TransitionConflict(_("only a Lustre file system can be tied to S3"))
    if file_system.phase not in _USABLE or file_system.delete_requested_at is not None:
        raise TransitionConflict(_("the file system is not available"))
    _usable(file_system.account)
    others = [(a.path, a.repository) for a in associations_of(file_system)]
    _refuse(rules.association_problems(path, repository, list(imports), list(exports), others))
    association = RepositoryAssociation(
        file_system=file_system,
        path=path.rstrip("/") or "/",
        repository=repository,
        imports=list(imports),
        exports=list(exports),
        is_imported_at_start=is_imported_at_start,
    )
    try:
        with transaction.atomic():
            association.save()
            after = {"path": path, "repository": repository, "imports": list(imports), "exports": list(exports)}
            team_id = file_system.team_id
            record(actor, "association.create", "file_system", file_system.uid, team_id=team_id, after=after)
            intent_ask(INTENT, file_system.uid)
    except IntegrityError:
        _refuse([FieldProblem("/path", "taken", _("already tied"))])
    return association


def association_delete(*, actor: Actor, association: RepositoryAssociation, expected_version: int) -> None:
    """Untie a folder; the files on both sides stay. Raises Forbidden, TransitionConflict, StaleVersion."""
    _operate(actor)
    if association.phase in (AssociationPhase.DELETING, AssociationPhase.DELETED):
        raise TransitionConflict(_("it is already being removed"))
    file_system = association.file_system
    with transaction.atomic():
        association.spec_update(
            expected_version, delete_requested_at=clock.now(), generation=association.generation + 1
        )
        record(
            actor,
            "association.delete",
            "file_system",
            file_system.uid,
            team_id=file_system.team_id,
            before={"path": association.path, "repository": association.repository},
        )
        intent_ask(INTENT, file_system.uid)


def export_begin(*, actor: Actor, file_system: FileSystem, paths: Sequence[str]) -> Export:
    """Export what changed below some folders to S3 now. Raises Forbidden, InvalidInput, TransitionConflict."""
    _operate(actor)
    tied = [a for a in associations_of(file_system) if a.phase == AssociationPhase.AVAILABLE]
    if not tied:
        raise TransitionConflict(_("no folder of it is tied to S3"))
    wanted = [p.strip().strip("/") for p in paths if p.strip().strip("/")]
    outside = [p for p in wanted if not any(rules.overlap("/" + p, a.path) or a.path == "/" for a in tied) or ".." in p]
    if outside:
        text = _("%(paths)s lies in no folder that is tied to S3") % {"paths": ", ".join(outside)}
        _refuse([FieldProblem("/paths", "not-tied", text)])
    with transaction.atomic():
        if file_system.exports_asked.select_for_update().filter(phase__in=EXPORT_WORKING).exists():
            raise TransitionConflict(_("another export is running; AWS runs one at a time"))
        export = Export(file_system=file_system, paths=wanted, asked_by=actor.name[:150])
        export.save()
        record(
            actor,
            "export.begin",
            "file_system",
            file_system.uid,
            team_id=file_system.team_id,
            after={"paths": wanted},
        )
        intent_ask(INTENT, file_system.uid)
    return export
