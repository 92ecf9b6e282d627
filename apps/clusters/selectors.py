"""Named reads of clusters, fleets and nodes, and the sentence each of them opens with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TypeVar

from django.db.models import Count, Model, Q, QuerySet, Sum
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.capacity.models import Reservation
from apps.clusters.group_models import NodeGroup
from apps.clusters.managed_selectors import group_counts
from apps.clusters.managed_words import managed_sentence
from apps.clusters.models import Cluster, Fleet, Mount, Node, PreflightRun
from apps.clusters.states import (
    FLEET_BILLED,
    FLEET_LIVE,
    ClusterPhase,
    FleetPhase,
    GroupPhase,
    NodePhase,
)
from apps.core import clock, units
from apps.core.errors import NotFound
from apps.teams.permissions import Actor

_Row = TypeVar("_Row", bound=Model)


def clusters_visible_to(actor: Actor) -> QuerySet[Cluster]:
    """All clusters that were not removed, for everyone with a role."""
    return _clusters(actor).exclude(phase=ClusterPhase.DELETED)


def clusters_removed(actor: Actor) -> QuerySet[Cluster]:
    """Removed ones, kept for their history."""
    return _clusters(actor).filter(phase=ClusterPhase.DELETED)


def _clusters(actor: Actor) -> QuerySet[Cluster]:
    if not actor.holds("clusters.view"):
        return Cluster.objects.none()
    return Cluster.objects.select_related("account", "kubernetes")


def cluster_for(*, actor: Actor, may: str, uid: str) -> Cluster:
    """The cluster of this uid or name; a removed one can only be viewed. Raises NotFound."""
    rows = clusters_visible_to(actor) if actor.holds(may) else Cluster.objects.none()
    if may == "clusters.view":
        rows = _clusters(actor)
    cluster = rows.filter(uid=uid).first() or rows.filter(name=uid).first()
    if cluster is None:
        raise NotFound(f"no cluster {uid} in which you may do this")
    return cluster


def cluster_by_uid(uid: str) -> Cluster | None:
    """For the worker."""
    return Cluster.objects.select_related("account", "kubernetes").filter(uid=uid).first()


def fleets_visible_to(actor: Actor) -> QuerySet[Fleet]:
    """All fleets, deleted ones included, for everyone with a role."""
    if not actor.holds("clusters.view"):
        return Fleet.objects.none()
    return Fleet.objects.select_related("cluster", "cluster__account", "team", "reservation")


def fleet_for(*, actor: Actor, may: str, uid: str) -> Fleet:
    """The fleet of this uid. Raises NotFound."""
    rows = fleets_visible_to(actor) if actor.holds(may) else Fleet.objects.none()
    fleet = rows.filter(uid=uid).first()
    if fleet is None:
        raise NotFound(f"no fleet {uid} in which you may do this")
    return fleet


def fleet_by_uid(uid: str) -> Fleet | None:
    """For the worker."""
    return Fleet.objects.select_related("cluster", "cluster__account", "team", "reservation").filter(uid=uid).first()


def preflight_by_uid(uid: str) -> PreflightRun | None:
    """For the worker."""
    rows = PreflightRun.objects.select_related("cluster", "cluster__account", "reservation")
    return rows.filter(uid=uid).first()


def preflight_for(*, actor: Actor, may: str, uid: str) -> PreflightRun:
    """The check of this uid. Raises NotFound."""
    rows = PreflightRun.objects.select_related("cluster", "cluster__account", "reservation")
    run = rows.filter(uid=uid).first() if actor.everywhere(may) else None
    if run is None:
        raise NotFound(_("no check %(uid)s in which you may do this") % {"uid": uid})
    return run


def mounts_of(cluster: Cluster) -> QuerySet[Mount]:
    """What the nodes of a cluster mount, by path."""
    return cluster.mounts.select_related("file_system")


def mount_for(*, actor: Actor, may: str, uid: str) -> Mount:
    """The mount of this uid. Raises NotFound."""
    rows = Mount.objects.select_related("cluster", "file_system")
    mount = rows.filter(uid=uid).first() if actor.holds(may) else None
    if mount is None:
        raise NotFound(_("no mount %(uid)s in which you may do this") % {"uid": uid})
    return mount


def nodes_visible_to(actor: Actor) -> QuerySet[Node]:
    """Nodes that exist, for everyone with a role."""
    if not actor.holds("clusters.view"):
        return Node.objects.none()
    return Node.objects.exclude(phase=NodePhase.GONE).select_related("cluster", "fleet", "group")


def node_for(*, actor: Actor, may: str, uid: str) -> Node:
    """The node of this uid. Raises NotFound."""
    rows = nodes_visible_to(actor) if actor.holds(may) else Node.objects.none()
    node = rows.filter(uid=uid).first()
    if node is None:
        raise NotFound(f"no node {uid} in which you may do this")
    return node


def node_by_uid(uid: str) -> Node | None:
    """For the worker."""
    return Node.objects.select_related("cluster", "fleet").filter(uid=uid).first()


def gpu_types_of(clusters: list[Cluster]) -> dict[str, list[str]]:
    """GPU types that the nodes of each cluster have, by cluster uid, in one query."""
    rows = (
        Node.objects.filter(cluster__in=clusters)
        .exclude(phase=NodePhase.GONE)
        .exclude(gpu_type="")
        .order_by("gpu_type")
        .values_list("cluster__uid", "gpu_type")
        .distinct()
    )
    found: dict[str, list[str]] = {}
    for uid, gpu_type in rows:
        found.setdefault(uid, []).append(gpu_type)
    return found


def live_nodes(cluster: Cluster) -> dict[str, Node]:
    """Nodes of a cluster that exist, by name."""
    return {n.name: n for n in Node.objects.filter(cluster=cluster).exclude(phase=NodePhase.GONE)}


def nodes_reserved(rows: Iterable[Reservation]) -> QuerySet[Node]:
    """Nodes, gone ones too, of fleets and groups that these reservations serve."""
    found = list(rows)
    return Node.objects.filter(Q(fleet__reservation__in=found) | Q(group__reservation__in=found))


@dataclass(frozen=True)
class Capacity:
    """GPUs of one cluster: free and used on usable nodes, the rest down."""

    cluster: Cluster
    total: int
    used: int
    down: int
    nodes: int

    @property
    def free(self) -> int:
        """GPUs that a job could take now."""
        return max(0, self.total - self.used - self.down)


def capacities(clusters: list[Cluster]) -> list[Capacity]:
    """GPU bars of several clusters in one query."""
    rows = (
        Node.objects.filter(cluster__in=clusters)
        .exclude(phase=NodePhase.GONE)
        .values("cluster_id")
        .annotate(
            total=Sum("gpus", default=0),
            used=Sum("gpus_used", filter=Q(phase__in=[NodePhase.READY, NodePhase.DRAINING]), default=0),
            down=Sum("gpus", filter=~Q(phase__in=[NodePhase.READY, NodePhase.DRAINING]), default=0),
            nodes=Count("id"),
        )
    )
    found = {r["cluster_id"]: r for r in rows}
    empty = {"total": 0, "used": 0, "down": 0, "nodes": 0}
    result = []
    for cluster in clusters:
        r = found.get(cluster.pk, empty)
        result.append(Capacity(cluster, r["total"], r["used"], r["down"], r["nodes"]))
    return result


def gpu_segments(capacity: Capacity) -> list[tuple[str, int, str]]:
    """Used, free and down as parts of a bar."""
    return [
        ("used", capacity.used, _("%(n)s used") % {"n": capacity.used}),
        ("free", capacity.free, _("%(n)s free") % {"n": capacity.free}),
        ("down", capacity.down, _("%(n)s down") % {"n": capacity.down}),
    ]


def burn_usd_per_hour(actor: Actor) -> Decimal:
    """What machines of fleets and node groups cost per hour now, of those the actor may see the cost of: one query."""
    columns = ("usd_per_hour", "observed_nodes")
    fleets = _fleets_burning(actor).order_by().values_list(*columns)
    groups = _groups_burning(actor).order_by().values_list(*columns)
    return sum((usd * nodes for usd, nodes in fleets.union(groups, all=True) if usd is not None), Decimal(0))


def _fleets_burning(actor: Actor) -> QuerySet[Fleet]:
    return _costs_seen(actor, Fleet.objects.filter(phase__in=FLEET_BILLED))


def _groups_burning(actor: Actor) -> QuerySet[NodeGroup]:
    rows = NodeGroup.objects.exclude(phase=GroupPhase.DELETED).filter(observed_nodes__gt=0)
    return _costs_seen(actor, rows)


def burning(actor: Actor) -> list[tuple[Fleet | NodeGroup, Decimal]]:
    """Fleets and node groups with what their machines cost per hour now, the dearest first.

    A machine belongs to a fleet or to a group, never to both: fleets are launched here, groups by AWS's services.
    """
    rows: list[Fleet | NodeGroup] = list(_fleets_burning(actor).select_related("cluster", "team"))
    rows += _groups_burning(actor).select_related("cluster", "team")
    found = [(row, (row.usd_per_hour or Decimal(0)) * row.observed_nodes) for row in rows]
    return sorted(found, key=lambda pair: -pair[1])


def _costs_seen(actor: Actor, rows: QuerySet[_Row]) -> QuerySet[_Row]:
    return rows if actor.everywhere("costs.view") else rows.filter(team__in=actor.team_ids("costs.view"))


def is_stale(read_at: datetime | None, period_s: float) -> bool:
    """Whether a live figure is older than three of its periods."""
    return read_at is None or (clock.now() - read_at).total_seconds() > max(3 * period_s, 15)


def fleet_sentence(fleet: Fleet) -> str:
    """What is going on with a fleet, since when, what next."""
    since = units.duration(clock.now() - fleet.phase_since)
    name = fleet.instance_type
    match fleet.phase:
        case FleetPhase.PENDING if fleet.message:
            return _("Accepted: %(nodes)s × %(type)s; %(message)s.") % {
                "nodes": fleet.nodes,
                "type": name,
                "message": fleet.message,
            }
        case FleetPhase.PENDING:
            return _("Accepted: %(nodes)s × %(type)s; the worker takes it up next.") % {
                "nodes": fleet.nodes,
                "type": name,
            }
        case FleetPhase.WAITING_CAPACITY:
            wait = max(0.0, (fleet.next_try_at - clock.now()).total_seconds()) if fleet.next_try_at else 0
            sentence = _(
                "Waiting: AWS has no %(type)s capacity now; next try in %(wait)s (refused %(count)s times so far)."
            ) % {
                "type": name,
                "wait": units.duration(wait),
                "count": fleet.capacity_refusals,
            }
            if fleet.zones_named:
                zones = ", ".join(fleet.zones_named)
                sentence += " " + _("AWS names zones that may have some: %(zones)s.") % {"zones": zones}
            return sentence
        case FleetPhase.READY:
            return _("Ready: %(nodes)s × %(type)s in the cluster for %(since)s.") % {
                "nodes": fleet.nodes,
                "type": name,
                "since": since,
            }
        case FleetPhase.DEGRADED:
            return _("Degraded for %(since)s: %(seen)s of %(nodes)s machines are there. %(message)s") % {
                "since": since,
                "seen": fleet.observed_nodes,
                "nodes": fleet.nodes,
                "message": fleet.message,
            }
        case FleetPhase.FAILED:
            return _("Failed %(since)s ago: %(message)s Nothing more is started; delete the fleet to clean up.") % {
                "since": since,
                "message": str(fleet.message).rstrip(".") + ".",
            }
        case FleetPhase.DELETING:
            return _("Deleting for %(since)s: %(message)s") % {"since": since, "message": fleet.message}
        case FleetPhase.DELETED:
            return _("Deleted %(since)s ago; AWS holds nothing of it any more.") % {"since": since}
        case _:
            return _("%(step)s for %(since)s: %(message)s") % {
                "step": FleetPhase(fleet.phase).label,
                "since": since,
                "message": fleet.message or "…",
            }


def cluster_sentence(cluster: Cluster, capacity: Capacity, groups: tuple[int, int] | None = None) -> str:
    """What is going on with a cluster; ``groups`` as ``group_counts`` gives them, None: to be looked up."""
    if cluster.is_managed:
        if groups is None:
            groups = group_counts([cluster]).get(cluster.pk, (0, 0))
        return managed_sentence(cluster, capacity.nodes, groups)
    since = units.duration(clock.now() - cluster.phase_since)
    match cluster.phase:
        case ClusterPhase.PENDING:
            return _("Connecting to the scheduler for %(since)s. %(message)s") % {
                "since": since,
                "message": cluster.message,
            }
        case ClusterPhase.UNREACHABLE:
            return _("Unreachable for %(since)s: %(message)s. What you see is the last known state.") % {
                "since": since,
                "message": str(cluster.message).rstrip("."),
            }
        case ClusterPhase.DELETING:
            return _("Being removed from the portal. %(message)s") % {"message": cluster.message}
        case ClusterPhase.DELETED:
            return _("Removed %(since)s ago; its jobs, costs and checkpoints stay readable.") % {"since": since}
        case _:
            pass
    if cluster.delete_requested_at is not None:
        return _("Being removed from the portal. %(message)s") % {"message": cluster.message}
    if cluster.generation > max(cluster.observed_generation, 1):
        return _("Changed: the worker is connecting again.")
    if not capacity.nodes:
        return _("Ready, but it has no nodes yet: create a fleet.")
    return ngettext(
        "Ready: %(free)s of %(total)s GPUs free on %(nodes)s node; %(down)s GPUs are out of service.",
        "Ready: %(free)s of %(total)s GPUs free on %(nodes)s nodes; %(down)s GPUs are out of service.",
        capacity.nodes,
    ) % {"free": capacity.free, "total": capacity.total, "nodes": capacity.nodes, "down": capacity.down}


def node_sentence(node: Node) -> str:
    """What is going on with a node."""
    since = units.duration(clock.now() - node.phase_since)
    match node.phase:
        case NodePhase.READY:
            return _("In service for %(since)s: %(used)s of %(gpus)s GPUs in use.") % {
                "since": since,
                "used": node.gpus_used,
                "gpus": node.gpus,
            }
        case NodePhase.DRAINING | NodePhase.DRAINED:
            return _("Takes no new jobs for %(since)s: %(reason)s") % {
                "since": since,
                "reason": node.drain_reason or node.observed_reason or "–",
            }
        case NodePhase.DOWN:
            return _("Down for %(since)s: %(reason)s") % {"since": since, "reason": node.observed_reason or "–"}
        case _:
            return _("%(phase)s for %(since)s.") % {"phase": NodePhase(node.phase).label, "since": since}


def fleets_live(cluster: Cluster) -> list[Fleet]:
    """Fleets of a cluster that were not deleted."""
    return list(Fleet.objects.filter(cluster=cluster, phase__in=FLEET_LIVE).select_related("team"))
