"""Named reads of clusters that AWS keeps: their groups, steps, events and requests about nodes, and what they cost."""

from __future__ import annotations

from decimal import Decimal

from django.db.models import Count, Max, Q, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from apps.capacity.models import Reservation
from apps.capacity.states import ENDED
from apps.catalog.selectors import price_words, type_by_name
from apps.clusters.group_models import ClusterEvent, ClusterStep, NodeAction, NodeGroup
from apps.clusters.group_rules import Kept, TypeFacts, Wish
from apps.clusters.managed_rules import Place
from apps.clusters.models import Cluster, Fleet, Node
from apps.clusters.states import FLEET_LIVE, KINDS_HYPERPOD, GroupPhase, GroupSource, NodePhase
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.core.errors import NotFound
from apps.core.said import said
from apps.teams.permissions import Actor

_PREPAID = frozenset({GroupSource.CAPACITY_BLOCK, GroupSource.TRAINING_PLAN})


def groups_visible_to(actor: Actor) -> QuerySet[NodeGroup]:
    """All groups, deleted ones included, for everyone with a role."""
    if not actor.holds("clusters.view"):
        return NodeGroup.objects.none()
    return NodeGroup.objects.select_related("cluster", "cluster__account", "team", "reservation")


def group_for(*, actor: Actor, may: str, uid: str) -> NodeGroup:
    """The group of this uid. Raises NotFound."""
    rows = groups_visible_to(actor) if actor.holds(may) else NodeGroup.objects.none()
    group = rows.filter(uid=uid).first()
    if group is None:
        raise NotFound(_("no node group %(uid)s in which you may do this") % {"uid": uid})
    return group


def groups_live(cluster: Cluster) -> list[NodeGroup]:
    """Groups of a cluster that were not deleted, by name."""
    rows = NodeGroup.objects.filter(cluster=cluster).exclude(phase=GroupPhase.DELETED)
    return list(rows.select_related("team", "reservation", "cluster").order_by("name"))


def steps_of(cluster: Cluster) -> list[ClusterStep]:
    """Its steps in their order."""
    return list(ClusterStep.objects.filter(cluster=cluster))


def happenings_of(cluster: Cluster) -> QuerySet[ClusterEvent]:
    """Events that AWS keeps about it, the newest first."""
    return ClusterEvent.objects.filter(cluster=cluster)


def actions_of(cluster: Cluster) -> QuerySet[NodeAction]:
    """Requests about its nodes, the newest first."""
    return NodeAction.objects.filter(node__cluster=cluster).select_related("node")


def members_of(cluster: Cluster) -> list[tuple[Node, NodeAction | None]]:
    """Machines of its groups that exist, by name, each with the newest request about it."""
    rows = Node.objects.filter(cluster=cluster).exclude(phase=NodePhase.GONE).select_related("group")
    nodes = list(rows.annotate(newest_action=Max("actions__id")).order_by("name")[:2000])
    found = NodeAction.objects.in_bulk([n.newest_action for n in nodes if n.newest_action])
    return [(n, found.get(n.newest_action)) for n in nodes]


def group_counts(clusters: list[Cluster]) -> dict[int, tuple[int, int]]:
    """(live groups, those in trouble) by cluster pk, in one query; clusters without groups are absent."""
    trouble = Q(phase__in=[GroupPhase.DEGRADED, GroupPhase.FAILED])
    rows = (
        NodeGroup.objects.filter(cluster__in=clusters)
        .exclude(phase=GroupPhase.DELETED)
        .values("cluster_id")
        .annotate(live=Count("id"), troubled=Count("id", filter=trouble))
    )
    return {r["cluster_id"]: (r["live"], r["troubled"]) for r in rows}


# --- what the rules need ---------------------------------------------------------------------------


def place_of(account: CloudAccount) -> Place:
    """The account as the rules know it."""
    return Place(account.uid, account.name, account.observed_account_id, account.region, account.endpoint_url)


def machine_of(instance_type: str) -> TypeFacts | None:
    """What the catalog says of a type; None where it does not hold it."""
    kind = type_by_name(instance_type)
    return TypeFacts(kind.usd_per_hour is not None, kind.efa_interfaces) if kind else None


def slurm_of(cluster: Cluster) -> str:
    """The version of its scheduler: as AWS says, else as asked for."""
    return cluster.observed_version or str(cluster.settings.get("version") or "")


def wish_of(group: NodeGroup, *, nodes: int | None = None, min_nodes: int | None = None) -> Wish:
    """A group as the rules know it, perhaps with other counts."""
    return Wish(
        name=group.name,
        instance_type=group.instance_type,
        nodes=group.nodes if nodes is None else nodes,
        min_nodes=group.min_nodes if min_nodes is None else min_nodes,
        source=group.source,
        subnet_ids=tuple(group.subnet_ids),
        security_group_ids=tuple(group.security_group_ids),
        image_id=group.image_id,
        role_arn=group.role_arn,
        queue=group.queue,
        settings=group.settings,
    )


def kept_of(reservation: Reservation | None, but: NodeGroup | None = None) -> Kept | None:
    """A reservation as the rules know it, with what other groups and fleets take of it."""
    if reservation is None:
        return None
    groups = NodeGroup.objects.filter(reservation=reservation, delete_requested_at__isnull=True)
    groups = groups.exclude(phase=GroupPhase.DELETED)
    if but is not None:
        groups = groups.exclude(pk=but.pk)
    fleets = Fleet.objects.filter(reservation=reservation, phase__in=FLEET_LIVE)
    takers = [*groups.values_list("name", "nodes"), *fleets.values_list("name", "nodes")]
    return Kept(
        name=str(reservation),
        kind=reservation.kind,
        account_uid=reservation.account.uid,
        instance_type=reservation.instance_type,
        instances=reservation.instances,
        phase=reservation.phase,
        is_over=reservation.phase in ENDED or (reservation.end_at is not None and reservation.end_at <= clock.now()),
        zone_id=reservation.zone_id,
        start_at=reservation.start_at,
        end_at=reservation.end_at,
        taken=sum(nodes for _name, nodes in takers),
        used_by=", ".join(name for name, _nodes in takers[:5]),
    )


def price_for(
    kind: str, source: str, instance_type: str, reservation: Reservation | None, region: str
) -> tuple[Decimal | None, str]:
    """USD an hour of one machine of a group, and whose price it is, in words; None: nobody publishes one."""
    machine = type_by_name(instance_type)
    if source in _PREPAID:
        if reservation is None or reservation.usd_per_hour is None:
            return None, said(gettext_noop("its price is not known here"))
        text = gettext_noop("%(name)s, paid up front, spread over its hours")
        return reservation.usd_per_hour, said(text, name=str(reservation))
    if machine is None or machine.usd_per_hour is None:
        return None, said(gettext_noop("no price of %(type)s is known here; AWS charges it"), type=instance_type)
    words = price_words(machine, region)
    if kind in KINDS_HYPERPOD:
        text = gettext_noop("an estimate by EC2's price, SageMaker charges its own: %(price)s")
        return machine.usd_per_hour, said(text, price=words)
    if source == GroupSource.SPOT:
        text = gettext_noop("at most the price on demand: %(price)s")
        return machine.usd_per_hour, said(text, price=words)
    return machine.usd_per_hour, words


def group_price(group: NodeGroup) -> tuple[Decimal | None, str]:
    """``price_for`` a group's machines."""
    account = group.cluster.account
    region = account.region if account is not None else ""
    return price_for(group.cluster.kind, group.source, group.instance_type, group.reservation, region)
