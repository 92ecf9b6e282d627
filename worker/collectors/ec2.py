"""The sweep that looks both ways: what carries our tag and belongs to nothing here is shown, and removed with care.

Everything found gets a row at once, with what it costs an hour. It is removed when a person says so, or, where this
portal had made it for something that is deleted here, after the grace period; file systems and clusters go only by a
person's word, and so does everything of a uid that this database never gave.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import structlog
from django.conf import settings
from django.db.models import QuerySet
from django.utils.translation import gettext_noop as _

from apps.audit.services import event
from apps.capacity import orphan_observations as observations
from apps.capacity.orphan_models import Orphan
from apps.capacity.orphan_states import BY_PERSON_ALONE, CLUSTERS, GROUPS, OrphanKind, OrphanPhase
from apps.catalog.selectors import price_words, type_by_name
from apps.clusters.models import Fleet
from apps.clusters.states import FleetPhase
from apps.connections.models import CloudAccount
from apps.connections.selectors import account_by_uid
from apps.connections.states import AccountPhase
from apps.core import clock
from apps.core.said import said
from apps.storage import rules as storage_rules
from apps.storage.models import FileSystem
from apps.storage.states import FileSystemKind, FileSystemPhase
from worker import doors
from worker.collectors import kept_clusters, planned
from worker.engine import DONE, Outcome, again
from worker.providers import values as v
from worker.providers.errors import AccessDenied, Conflict, NotFound, ProviderError, Unsupported
from worker.providers.ports import Compute, FileStorage, OwnedClusters

log = structlog.get_logger(__name__)
PERIOD_S = 300.0
#: More orphaned machines than this at once look like a wrong database, not like leaks: a person must look.
BRAKE = 16
COMPUTE_KINDS = (
    OrphanKind.INSTANCE,
    OrphanKind.NETWORK_INTERFACE,
    OrphanKind.LAUNCH_TEMPLATE,
    OrphanKind.PLACEMENT_GROUP,
)
HOURS_A_MONTH = Decimal(730)


def sweep(uid: str) -> Outcome:
    """One look at everything with our tag in an account, and what follows from it. A paused one is not visited."""
    account = account_by_uid(uid)
    if account is None or account.phase != AccountPhase.CONNECTED:
        return DONE
    if account.is_paused:
        return again(PERIOD_S)
    if not account.is_trusted:
        return again(10)
    compute = doors.compute_for(account)
    planned.read(account, compute)
    found = [observations.orphan_seen(account, seen) for seen in _machines_and_more(account, compute)]
    observations.orphans_gone(account, COMPUTE_KINDS, {(o.kind, o.provider_id) for o in found})
    storage = doors.storage_for(account)
    try:
        stored = [observations.orphan_seen(account, seen) for seen in _file_systems(account, storage)]
    except (AccessDenied, Unsupported) as error:
        # An account that lets us see no file systems has none of ours.
        log.info("file systems not swept", account=account.uid, error=str(error))
    else:
        observations.orphans_gone(account, (OrphanKind.FILE_SYSTEM,), {(o.kind, o.provider_id) for o in stored})
        found += stored
    clusters = doors.owned_clusters_for(account)
    found += kept_clusters.look(account, clusters)
    return _clear(account, found, compute, storage, clusters)


def _clear(
    account: CloudAccount, found: list[Orphan], compute: Compute, storage: FileStorage, clusters: OwnedClusters
) -> Outcome:
    asked = [o for o in found if o.phase == OrphanPhase.REMOVAL_ASKED]
    due = [o for o in found if o.phase == OrphanPhase.FOUND and is_due(o)]
    machines = sum(1 for o in due if o.kind == OrphanKind.INSTANCE)
    if machines > BRAKE:
        event("account", account.uid, "SweepStopped", f"{machines} orphaned machines at once: nothing was removed")
        due = []
    for orphan in [*asked, *due]:
        if orphan.kind == OrphanKind.NETWORK_INTERFACE and orphan.state == "in-use":
            continue  # it goes with its machine
        if kept_clusters.goes_with_its_group(orphan, found):
            continue
        _remove(orphan, compute, storage, clusters)
    # What was asked away is looked after until AWS no longer lists it.
    return again(5.0 if asked else PERIOD_S)


def is_due(orphan: Orphan) -> bool:
    """Whether it goes without a person: this portal had made it, nothing wants it, and the grace period is over."""
    if not orphan.has_row or orphan.kind in BY_PERSON_ALONE:
        return False
    grace = timedelta(seconds=settings.CONFIG.sweep_grace_s)
    now = clock.now()
    if orphan.provider_created_at is not None and now - orphan.provider_created_at < grace:
        return False
    return now - orphan.first_seen_at >= grace


def _machines_and_more(account: CloudAccount, compute: Compute) -> list[observations.SeenOrphan]:
    found = []
    # Machines of an adopted group may carry a tag of another portal's: here they have their rows.
    members = kept_clusters.members(account)
    for thing in compute.owned():
        if thing.provider_id in members:
            continue
        is_owned, has_row = _owner(thing.uid)
        if not is_owned:
            found.append(_seen(account, thing, has_row))
    return found


def _owner(uid: str) -> tuple[bool, bool]:
    """(something that lives wants it, this database ever had a row of that uid)."""
    rows: tuple[tuple[QuerySet[Any], str], ...] = (
        (Fleet.objects.all(), FleetPhase.DELETED),
        (FileSystem.objects.all(), FileSystemPhase.DELETED),
    )
    for kind, dead in rows:
        phase = kind.filter(uid=uid).values_list("phase", flat=True).first()
        if phase is not None:
            return phase != dead, True
    return kept_clusters.owner(uid)


def _seen(account: CloudAccount, thing: v.Owned, has_row: bool) -> observations.SeenOrphan:
    kind = type_by_name(thing.instance_type) if thing.instance_type else None
    return observations.SeenOrphan(
        kind=thing.kind,
        provider_id=thing.provider_id,
        tagged_uid=thing.uid,
        has_row=has_row,
        state=thing.state,
        instance_type=thing.instance_type,
        usd_per_hour=kind.usd_per_hour if kind is not None else None,
        price_source=price_words(kind, account.region) if kind is not None else "",
        created_at=thing.created_at,
    )


def _is_adopted(account: CloudAccount, provider_id: str) -> bool:
    """Whether a file system here is this one, whoever made it and whatever its tag says."""
    rows = FileSystem.objects.filter(account=account, provider_id=provider_id)
    return rows.exclude(phase=FileSystemPhase.DELETED).exists()


def _file_systems(account: CloudAccount, storage: FileStorage) -> list[observations.SeenOrphan]:
    found = []
    for kind in FileSystemKind.values:
        for fs in storage.file_systems(kind):
            uid = fs.tags.get(v.TAG_UID, "")
            is_owned, has_row = _owner(uid)
            if not uid or is_owned or _is_adopted(account, fs.provider_id):
                continue
            usd = storage_rules.usd_per_month(fs.kind, fs.capacity_gib, fs.throughput_mb_s_tib)
            found.append(
                observations.SeenOrphan(
                    kind=OrphanKind.FILE_SYSTEM,
                    provider_id=fs.provider_id,
                    tagged_uid=uid,
                    has_row=has_row,
                    state=fs.state,
                    instance_type=fs.kind,
                    usd_per_hour=(usd / HOURS_A_MONTH).quantize(Decimal("0.000001")) if usd is not None else None,
                    price_source=storage_rules.PRICE_SOURCE,
                    created_at=fs.created_at,
                )
            )
    return found


def _remove(orphan: Orphan, compute: Compute, storage: FileStorage, clusters: OwnedClusters) -> None:
    try:
        match orphan.kind:
            case OrphanKind.INSTANCE:
                compute.terminate([orphan.provider_id])
            case OrphanKind.NETWORK_INTERFACE:
                compute.interface_delete(orphan.provider_id)
            case OrphanKind.LAUNCH_TEMPLATE:
                compute.launch_template_delete(orphan.provider_id)
            case OrphanKind.PLACEMENT_GROUP:
                compute.placement_group_delete(orphan.provider_id)
            case OrphanKind.FILE_SYSTEM:
                if _is_adopted(orphan.account, orphan.provider_id):
                    return
                if orphan.instance_type == FileSystemKind.EFS and storage.mount_targets_delete(orphan.provider_id):
                    return
                storage.file_system_delete(orphan.instance_type, orphan.provider_id)
            case _ if orphan.kind in CLUSTERS | GROUPS:
                if not kept_clusters.is_watched(orphan.account, orphan.kind, orphan.provider_id):
                    clusters.remove(orphan.kind, orphan.provider_id)
    except NotFound:
        return
    except Conflict as error:
        observations.orphan_say(orphan, said(_("still in use: %(error)s"), error=str(error)))
    except ProviderError as error:
        # One that AWS does not let go must not keep the others.
        observations.orphan_say(orphan, said(_("not removed: %(error)s"), error=str(error)))
