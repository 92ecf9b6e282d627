"""What people do with the mounts of a cluster."""

from __future__ import annotations

import re

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from apps.audit.services import record
from apps.clusters.models import Cluster, Mount
from apps.clusters.permissions import can_operate_clusters
from apps.clusters.states import MountKind, MountPurpose
from apps.core.errors import FieldProblem, Forbidden, InvalidInput, TransitionConflict
from apps.storage.models import FileSystem
from apps.storage.states import FileSystemPhase
from apps.teams.permissions import Actor

_PATH = re.compile(r"^/[A-Za-z0-9._/-]+$")
_S3 = re.compile(r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$")
_BACKED = (MountKind.LUSTRE, MountKind.EFS)


def mount_add(
    *,
    actor: Actor,
    cluster: Cluster,
    kind: str,
    path: str,
    purpose: str,
    file_system: FileSystem | None = None,
    source: str = "",
) -> Mount:
    """Record where the nodes find some data. Raises Forbidden, InvalidInput, TransitionConflict."""
    if not can_operate_clusters(actor):
        raise Forbidden(_("only operators and administrators do this"))
    if cluster.delete_requested_at is not None:
        raise TransitionConflict(_("the cluster is being removed"))
    problems: list[FieldProblem] = []
    if kind not in MountKind.values:
        problems.append(
            FieldProblem("/kind", "unknown", _("one of %(known)s") % {"known": ", ".join(MountKind.values)})
        )
    if purpose not in MountPurpose.values:
        known = ", ".join(MountPurpose.values)
        problems.append(FieldProblem("/purpose", "unknown", _("one of %(known)s") % {"known": known}))
    if not _PATH.fullmatch(path) or ".." in path:
        problems.append(FieldProblem("/path", "invalid", _("an absolute folder of the nodes, such as /fsx")))
    if kind in _BACKED:
        problems += _file_system_problems(cluster, kind, file_system)
        source = ""
    else:
        file_system = None
        if kind == MountKind.S3 and not _S3.fullmatch(source):
            problems.append(FieldProblem("/source", "invalid", _("an S3 address such as s3://bucket/prefix/")))
    if problems:
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=problems)
    mount = Mount(
        cluster=cluster,
        kind=kind,
        file_system=file_system,
        source=source,
        path=path.rstrip("/"),
        purpose=purpose,
    )
    try:
        with transaction.atomic():
            if file_system is not None:
                # Under the lock that a deletion takes: it is not deleted in between.
                locked = FileSystem.objects.select_for_update().get(pk=file_system.pk)
                if late := _file_system_problems(cluster, kind, locked):
                    raise InvalidInput(late[0].detail, problems=late)
            mount.save()
            after = {"path": mount.path, "kind": kind, "purpose": purpose, "source": source}
            after["file_system"] = file_system.name if file_system else ""
            record(actor, "mount.add", "cluster", cluster.uid, after=after)
    except IntegrityError:
        raise InvalidInput(
            _("the cluster already has something at %(path)s") % {"path": mount.path},
            problems=[FieldProblem("/path", "taken", _("already used"))],
        ) from None
    return mount


def _file_system_problems(cluster: Cluster, kind: str, file_system: FileSystem | None) -> list[FieldProblem]:
    if file_system is None:
        return [FieldProblem("/file_system", "required", _("choose a file system of the portal"))]
    if file_system.kind != kind:
        return [FieldProblem("/file_system", "other-kind", _("it is a file system of another kind"))]
    if file_system.phase == FileSystemPhase.DELETED or file_system.delete_requested_at is not None:
        return [FieldProblem("/file_system", "gone", _("it is being deleted"))]
    if cluster.account_id is not None and cluster.account_id != file_system.account_id:
        return [FieldProblem("/file_system", "other-account", _("it lies in another account than the cluster"))]
    return []


def mount_remove(*, actor: Actor, mount: Mount) -> None:
    """Take a mount out of the record; nothing on the nodes changes. Raises Forbidden."""
    if not can_operate_clusters(actor):
        raise Forbidden(_("only operators and administrators do this"))
    with transaction.atomic():
        before = {"path": mount.path, "kind": mount.kind, "source": mount.source}
        record(actor, "mount.remove", "cluster", mount.cluster.uid, before=before)
        mount.delete()
