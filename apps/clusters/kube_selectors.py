"""Reads of Kubernetes clusters: where a team's jobs go, how a cluster is set up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from apps.clusters.kube_models import KubernetesSettings, TeamNamespace, TeamShare
from apps.clusters.models import Cluster, Node
from apps.clusters.states import ClusterKind, NodePhase
from apps.core.errors import NotFound
from apps.costs.selectors import standings_of
from apps.costs.states import Unit
from apps.teams.models import Team
from apps.teams.permissions import Actor


@dataclass(frozen=True)
class Place:
    """Where a team's jobs run: a namespace and the LocalQueue in it; ``is_kept``: the portal keeps the queue."""

    namespace: str
    queue: str
    is_kept: bool = True


def kubernetes_of(cluster: Cluster) -> KubernetesSettings | None:
    """How jobs reach a cluster's Kubernetes; None where they do not."""
    return getattr(cluster, "kubernetes", None)


def queue_name(team: Team) -> str:
    """The name of the queue that the portal keeps for a team."""
    return re.sub(r"[^a-z0-9-]+", "-", team.slug.lower()).strip("-")[:63] or "team"


def place_of(cluster: Cluster, team: Team) -> Place:
    """Where this team's jobs go on this cluster: as an operator entered it, else by the cluster's prefix."""
    row = TeamNamespace.objects.filter(cluster=cluster, team=team).first()
    return place_by(cluster, team, row)


def place_by(cluster: Cluster, team: Team, row: TeamNamespace | None) -> Place:
    """The same, for a row that was read already."""
    if row is not None:
        return Place(row.namespace, row.queue or queue_name(team), is_kept=not row.queue)
    settings = kubernetes_of(cluster)
    prefix = settings.namespace_prefix if settings is not None else ""
    return Place(f"{prefix}{queue_name(team)}"[:63].rstrip("-"), queue_name(team))


def team_in(cluster: Cluster, namespace: str) -> Team | None:
    """Whose jobs a namespace holds; None for nobody's."""
    row = TeamNamespace.objects.filter(cluster=cluster, namespace=namespace).select_related("team").first()
    if row is not None:
        return row.team
    taken = set(TeamNamespace.objects.filter(cluster=cluster).values_list("team_id", flat=True))
    for team in Team.objects.exclude(pk__in=taken):
        if place_by(cluster, team, None).namespace == namespace:
            return team
    return None


def namespaces_of(cluster: Cluster) -> QuerySet[TeamNamespace]:
    """Where teams' jobs run on a cluster, as it was entered, by namespace."""
    return TeamNamespace.objects.filter(cluster=cluster).select_related("team")


def shares_of(cluster: Cluster) -> QuerySet[TeamShare]:
    """What teams have of a cluster, by team and type."""
    return TeamShare.objects.filter(cluster=cluster).select_related("team").order_by("team__slug", "instance_type")


def namespace_for(*, actor: Actor, may: str, uid: str) -> TeamNamespace:
    """The row of this uid. Raises NotFound."""
    rows = TeamNamespace.objects.select_related("cluster__account", "cluster__kubernetes", "team")
    found = rows.filter(uid=uid).first() if actor.everywhere(may) else None
    if found is None:
        raise NotFound(_("no namespace %(uid)s in which you may do this") % {"uid": uid})
    return found


def share_for(*, actor: Actor, may: str, uid: str) -> TeamShare:
    """The row of this uid. Raises NotFound."""
    rows = TeamShare.objects.select_related("cluster__account", "cluster__kubernetes", "team")
    found = rows.filter(uid=uid).first() if actor.everywhere(may) else None
    if found is None:
        raise NotFound(_("no share %(uid)s in which you may do this") % {"uid": uid})
    return found


def gpus_by_type(cluster: Cluster) -> dict[str, int]:
    """GPUs of a cluster's nodes by instance type; nodes that are gone do not count."""
    rows = Node.objects.filter(cluster=cluster, gpus__gt=0).exclude(phase=NodePhase.GONE)
    found: dict[str, int] = {}
    for name, gpus in rows.values_list("instance_type", "gpus"):
        if name:
            found[name] = found.get(name, 0) + gpus
    return found


@dataclass(frozen=True)
class TypeSize:
    """What one node of a type offers to pods."""

    name: str
    nodes: int
    gpus: int
    cpus: int
    memory_mib: int

    @property
    def all_gpus(self) -> int:
        """GPUs of all its nodes."""
        return self.nodes * self.gpus


def types_of(cluster: Cluster) -> list[TypeSize]:
    """The instance types of a cluster's nodes, by name; sizes are those of its smallest node, so that all fit."""
    rows = Node.objects.filter(cluster=cluster).exclude(phase=NodePhase.GONE).exclude(instance_type="")
    found: dict[str, list[tuple[int, int, int]]] = {}
    for name, *size in rows.values_list("instance_type", "gpus", "cpus", "memory_mib"):
        found.setdefault(name, []).append((size[0], size[1], size[2]))
    return [
        TypeSize(name, len(sizes), max(s[0] for s in sizes), min(s[1] for s in sizes), min(s[2] for s in sizes))
        for name, sizes in sorted(found.items())
    ]


@dataclass(frozen=True)
class TeamPlace:
    """A team on a cluster as its queue is to be kept: place, weight, shares by type, and its quota of GPUs."""

    team: Team
    place: Place
    weight: Decimal
    shares: tuple[TeamShare, ...]
    quota_gpus: int


def team_places(cluster: Cluster) -> list[TeamPlace]:
    """All teams that have a share, a namespace or a quota, by slug, whose queue the portal keeps."""
    rows = {row.team_id: row for row in namespaces_of(cluster)}
    shares: dict[int, list[TeamShare]] = {}
    for share in shares_of(cluster):
        shares.setdefault(share.team_id, []).append(share)
    found = []
    teams = list(Team.objects.order_by("slug"))
    quotas = {s.team.pk: int(s.limit) for s in standings_of(teams, Unit.GPUS)}
    for team in teams:
        row = rows.get(team.pk)
        place = place_by(cluster, team, row)
        if not place.is_kept or not (row or team.pk in shares or quotas.get(team.pk)):
            continue
        weight = row.weight if row is not None else Decimal(1)
        found.append(TeamPlace(team, place, weight, tuple(shares.get(team.pk, ())), quotas.get(team.pk, 0)))
    return found


def repaired_by(node: Node) -> str:
    """The service that repairs a node of Kubernetes by itself, as people call it; "" where none does.

    HyperPod replaces or reboots it and resumes what it was told to; EKS does so for groups with node repair.
    """
    cluster = node.cluster
    if cluster.kind == ClusterKind.HYPERPOD_EKS and cluster.settings.get("recovers", True):
        return "HyperPod"
    if cluster.kind == ClusterKind.EKS and node.group is not None and node.group.settings.get("repairs"):
        return "EKS"
    return ""
