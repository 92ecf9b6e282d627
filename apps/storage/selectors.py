"""Named reads of file systems, their associations and exports, and the sentence each page opens with."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from django.db.models import QuerySet, Sum
from django.utils.translation import gettext as _

from apps.connections.models import CloudAccount
from apps.core import clock, units
from apps.core.errors import NotFound
from apps.storage import rules
from apps.storage.models import Export, FileSystem, RepositoryAssociation
from apps.storage.states import (
    ASSOCIATION_WORKING,
    BILLED,
    EXPORT_WORKING,
    AssociationPhase,
    FileSystemKind,
    FileSystemPhase,
)
from apps.teams.permissions import Actor


def file_systems_visible_to(actor: Actor) -> QuerySet[FileSystem]:
    """All file systems, deleted ones included, for everyone with a role."""
    if not actor.holds("storage.view"):
        return FileSystem.objects.none()
    return FileSystem.objects.select_related("account", "team")


def file_system_for(*, actor: Actor, may: str, uid: str) -> FileSystem:
    """The file system of this uid. Raises NotFound."""
    rows = file_systems_visible_to(actor) if actor.holds(may) else FileSystem.objects.none()
    found = rows.filter(uid=uid).first()
    if found is None:
        raise NotFound(_("no file system %(uid)s in which you may do this") % {"uid": uid})
    return found


def association_for(*, actor: Actor, may: str, uid: str) -> RepositoryAssociation:
    """The association of this uid. Raises NotFound."""
    rows = RepositoryAssociation.objects.select_related("file_system", "file_system__account")
    found = rows.filter(uid=uid).first() if actor.holds(may) else None
    if found is None:
        raise NotFound(_("no association %(uid)s in which you may do this") % {"uid": uid})
    return found


def file_system_by_uid(uid: str) -> FileSystem | None:
    """For the worker."""
    return FileSystem.objects.select_related("account", "team").filter(uid=uid).first()


def associations_of(file_system: FileSystem) -> QuerySet[RepositoryAssociation]:
    """The ties that exist or are being made or removed."""
    return file_system.associations.exclude(phase=AssociationPhase.DELETED)


def exports_of(file_system: FileSystem) -> QuerySet[Export]:
    """Explicit exports, newest first."""
    return file_system.exports_asked.all()


def has_exports(file_system: FileSystem) -> bool:
    """Whether anything of it travels to S3 by itself."""
    return any(a.exports for a in associations_of(file_system))


def unexported_reason(file_system: FileSystem) -> str:
    """Why deleting it now may lose data, "" when it cannot."""
    age = None
    if file_system.metrics_read_at is not None:
        age = (clock.now() - file_system.metrics_read_at).total_seconds()
    return rules.unexported_reason(file_system.export_queue_age_s, age, has_exports(file_system))


def is_settling(file_system: FileSystem) -> bool:
    """Whether the worker still has something to do on it."""
    from apps.storage.states import WORKING

    return (
        file_system.phase in WORKING
        or file_system.associations.filter(phase__in=ASSOCIATION_WORKING).exists()
        or file_system.exports_asked.filter(phase__in=EXPORT_WORKING).exists()
    )


def storage_usd_per_month(actor: Actor) -> Decimal:
    """List price of everything billed that the actor may see."""
    rows = file_systems_visible_to(actor).filter(phase__in=BILLED).exclude(provider_id="")
    return rows.aggregate(usd=Sum("usd_per_month"))["usd"] or Decimal(0)


def live_in_account(account: CloudAccount) -> QuerySet[FileSystem]:
    """File systems of an account that exist or are on their way."""
    return FileSystem.objects.filter(account=account).exclude(phase=FileSystemPhase.DELETED)


@dataclass(frozen=True)
class Fullness:
    """How full a file system is: shares 0 to 1, None when unknown."""

    used: float | None
    fullest: float | None
    is_tight: bool


def fullness_of(file_system: FileSystem) -> Fullness:
    """Used share of all and of the fullest storage target."""
    used = rules.fullness(file_system.observed_capacity_gib, file_system.free_bytes)
    fullest = rules.fullest_share(
        file_system.observed_capacity_gib, file_system.targets, file_system.fullest_free_bytes
    )
    worst = max((share for share in (used, fullest) if share is not None), default=0.0)
    return Fullness(used, fullest, worst > 1 - rules.FULL_SHARE)


def mount_command(file_system: FileSystem, path: str = "") -> str:
    """What a node runs to mount it (at /fsx or /efs where no path is given); empty until AWS has given it a name."""
    if not file_system.dns_name:
        return ""
    if file_system.kind == FileSystemKind.EFS:
        options = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,noresvport"
        return f"mount -t nfs4 -o {options} {file_system.dns_name}:/ {path or '/efs'}"
    protocol = "efa" if file_system.has_efa else "tcp"
    source = f"{file_system.dns_name}@{protocol}:/{file_system.mount_name}"
    return f"mount -t lustre -o relatime,flock {source} {path or '/fsx'}"


def file_system_sentence(file_system: FileSystem) -> str:
    """What is going on with a file system, since when, and whether anyone must act."""
    facts = {
        "since": units.duration(clock.now() - file_system.phase_since),
        "what": str(file_system.message).rstrip("."),
        "size": f"{file_system.observed_capacity_gib or file_system.capacity_gib:,} GiB",
        "wanted": f"{file_system.capacity_gib:,} GiB",
        "percent": file_system.update_percent or 0,
    }
    match file_system.phase:
        case FileSystemPhase.PENDING:
            return _("Accepted %(since)s ago; the worker asks AWS for it next. %(what)s") % facts
        case FileSystemPhase.CREATING:
            return _("AWS has been making it for %(since)s; a Lustre file system takes about 10 min.") % facts
        case FileSystemPhase.UPDATING:
            return _("Growing to %(wanted)s for %(since)s, %(percent)s %% done; it stays usable.") % facts
        case FileSystemPhase.FAILED:
            return _("Failed %(since)s ago: %(what)s. Delete it and make another.") % facts
        case FileSystemPhase.IMPAIRED:
            return _("Impaired for %(since)s: %(what)s.") % facts
        case FileSystemPhase.DELETING:
            return _("Being deleted for %(since)s: %(what)s.") % facts
        case FileSystemPhase.DELETED:
            return _("Deleted %(since)s ago; AWS holds nothing of it any more.") % facts
        case _:
            pass
    if file_system.kind == FileSystemKind.EFS:
        return _("Available for %(since)s; it grows with what is written.") % facts
    full = fullness_of(file_system)
    if full.is_tight:
        facts["percent"] = round(100 * max(full.used or 0, full.fullest or 0))
        return _("Nearly full: %(percent)s %% of its fullest storage target used; grow it or remove data.") % facts
    if file_system.export_queue_age_s:
        age = units.duration(file_system.export_queue_age_s)
        return _("Available, %(size)s; the oldest file that waits for its export to S3 waits for %(age)s.") % (
            facts | {"age": age}
        )
    if full.used is None:
        return _("Available for %(since)s, %(size)s; how full it is is not known yet.") % facts
    facts["percent"] = round(100 * full.used)
    return _("Available for %(since)s, %(percent)s %% of %(size)s used.") % facts
