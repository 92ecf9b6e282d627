"""The sweep's look at clusters and node groups that AWS's services keep: tagged by us and owned by nobody here."""

from __future__ import annotations

from decimal import Decimal

import structlog

from apps.capacity import orphan_observations as observations
from apps.capacity.orphan_models import Orphan
from apps.capacity.orphan_states import CLUSTERS, GROUPS, OrphanKind
from apps.catalog.selectors import price_words, type_by_name
from apps.clusters.group_models import NodeGroup
from apps.clusters.models import Cluster, Node
from apps.clusters.states import KINDS_HYPERPOD, ClusterKind, ClusterPhase, GroupPhase, NodePhase
from apps.connections.models import CloudAccount
from worker.providers import values as v
from worker.providers.errors import ProviderError
from worker.providers.ports import OwnedClusters

log = structlog.get_logger(__name__)
#: Which kinds of clusters here a finding can belong to: a name is one service's alone.
_KINDS: dict[str, frozenset[str]] = {
    OrphanKind.PCS_CLUSTER: frozenset({ClusterKind.PCS}),
    OrphanKind.PCS_GROUP: frozenset({ClusterKind.PCS}),
    OrphanKind.EKS_CLUSTER: frozenset({ClusterKind.EKS}),
    OrphanKind.EKS_GROUP: frozenset({ClusterKind.EKS}),
    OrphanKind.HYPERPOD: KINDS_HYPERPOD,
}
#: What each service keeps.
SERVICES: dict[str, tuple[str, ...]] = {
    "pcs": (OrphanKind.PCS_CLUSTER, OrphanKind.PCS_GROUP),
    "eks": (OrphanKind.EKS_CLUSTER, OrphanKind.EKS_GROUP),
    "hyperpod": (OrphanKind.HYPERPOD,),
}


def look(account: CloudAccount, clusters: OwnedClusters) -> list[Orphan]:
    """Rows for what nobody owns. A service that cannot be asked tells nothing, and nothing of it is gone."""
    found: list[Orphan] = []
    for service, kinds in SERVICES.items():
        try:
            there = clusters.owned(service)
        except ProviderError as error:
            # A region without the service, or a role that may not look: none of ours can be there.
            log.info("clusters not swept", account=account.uid, service=service, error=str(error))
            continue
        mine = [o for o in (_orphan(account, thing) for thing in there) if o is not None]
        observations.orphans_gone(account, kinds, {(o.kind, o.provider_id) for o in mine})
        found += mine
    return found


def _orphan(account: CloudAccount, thing: v.Owned) -> Orphan | None:
    is_owned, has_row = owner(thing.uid)
    if is_owned or is_watched(account, thing.kind, thing.provider_id):
        return None
    usd, source = _price(account, thing)
    return observations.orphan_seen(
        account,
        observations.SeenOrphan(
            kind=thing.kind,
            provider_id=thing.provider_id,
            tagged_uid=thing.uid,
            has_row=has_row,
            state=thing.state,
            instance_type=", ".join(f"{n} × {kind}" for kind, n in thing.machines)[:40],
            usd_per_hour=usd,
            price_source=source,
            created_at=thing.created_at,
        ),
    )


def owner(uid: str) -> tuple[bool, bool]:
    """(a cluster or group that lives here has this uid, this portal deleted it).

    A group that left the portal with an adopted cluster was not deleted: it stays in AWS until a person says so.
    """
    cluster = Cluster.objects.filter(uid=uid).first()
    if cluster is not None:
        return cluster.phase != ClusterPhase.DELETED, True
    group = NodeGroup.objects.select_related("cluster").filter(uid=uid).first()
    if group is None:
        return False, False
    was_deleted = group.delete_requested_at is not None or not group.cluster.is_adopted
    return group.phase != GroupPhase.DELETED, was_deleted


def is_watched(account: CloudAccount, kind: str, provider_id: str) -> bool:
    """Whether a row here stands for it, whoever made it and whatever its tag says: an adopted cluster, its groups."""
    name = provider_id.partition("/")[0]
    rows = Cluster.objects.filter(account=account, kind__in=_KINDS[kind]).exclude(phase=ClusterPhase.DELETED)
    cluster = next((c for c in rows if name in (c.provider_id, c.name_at_provider)), None)
    if cluster is None or kind in CLUSTERS:
        return cluster is not None
    group = provider_id.partition("/")[2]
    return NodeGroup.objects.filter(cluster=cluster, provider_id=group).exclude(phase=GroupPhase.DELETED).exists()


def members(account: CloudAccount) -> set[str]:
    """Ids of machines that groups here are known to have."""
    rows = Node.objects.filter(cluster__account=account, group__isnull=False).exclude(phase=NodePhase.GONE)
    return set(rows.exclude(provider_id="").values_list("provider_id", flat=True))


def _price(account: CloudAccount, thing: v.Owned) -> tuple[Decimal | None, str]:
    """What its machines cost an hour, as far as their types have a price; None where it has none of its own."""
    total, source = Decimal(0), ""
    for name, count in thing.machines:
        kind = type_by_name(name)
        if kind is not None and kind.usd_per_hour is not None:
            total += kind.usd_per_hour * count
            source = source or price_words(kind, account.region)
    return (total, source) if source else (None, "")


def goes_with_its_group(orphan: Orphan, found: list[Orphan]) -> bool:
    """Whether a machine is kept alive by a group: ended alone, it would be started anew."""
    groups = {o.tagged_uid for o in found if o.kind in GROUPS}
    return orphan.kind == OrphanKind.INSTANCE and orphan.tagged_uid in groups
