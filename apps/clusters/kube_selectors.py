"""Reads of Kubernetes clusters: where a team's jobs go, how a cluster is set up."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
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


def _named(text: str, source: str) -> str:
    """``text`` where it is a name that Kubernetes takes; else what can be kept of it and a digest of ``source``."""
    kept = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    if kept == text and len(kept) <= 63:
        return kept
    return f"{kept[:54].strip('-') or 'team'}-{_digest(source)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def queue_name(team: Team) -> str:
    """The name of the queue that the portal keeps for a team; two teams never share one."""
    return _named(team.slug, team.slug)


def default_namespace(prefix: str, team: Team) -> str:
    """Where a team without a row runs: never in a namespace of Kubernetes itself, never in another team's."""
    name = _named(f"{prefix}{team.slug}", team.slug)
    return f"team-{name}"[:63].rstrip("-") if is_of_kubernetes(name) else name


def is_of_kubernetes(namespace: str) -> bool:
    """Whether a namespace is Kubernetes' own or everybody's."""
    return namespace.startswith("kube-") or namespace in ("default", "kueue-system")


def place_of(cluster: Cluster, team: Team) -> Place:
    """Where this team's jobs go on this cluster: as an operator entered it, else by the cluster's prefix."""
    rows = {row.team_id: row for row in TeamNamespace.objects.filter(cluster=cluster)}
    return place_by(cluster, team, rows)


def place_by(cluster: Cluster, team: Team, rows: Mapping[int, TeamNamespace]) -> Place:
    """The same, for rows of the cluster by team that were read already."""
    row = rows.get(team.pk)
    if row is not None:
        return Place(row.namespace, row.queue or queue_name(team), is_kept=not row.queue)
    settings = kubernetes_of(cluster)
    name = default_namespace(settings.namespace_prefix if settings is not None else "", team)
    if any(other.namespace == name for other in rows.values()):
        # Another team was given it: what runs there is not this team's to see.
        name = f"{name[:54].rstrip('-')}-{_digest(team.slug)}"
    return Place(name, queue_name(team))


def team_in(cluster: Cluster, namespace: str) -> Team | None:
    """Whose jobs a namespace holds; None for nobody's."""
    row = TeamNamespace.objects.filter(cluster=cluster, namespace=namespace).select_related("team").first()
    return row.team if row is not None else defaults_to(cluster, namespace)


def defaults_to(cluster: Cluster, namespace: str) -> Team | None:
    """The team without a row whose jobs would run in this namespace."""
    rows = {row.team_id: row for row in TeamNamespace.objects.filter(cluster=cluster)}
    for team in Team.objects.exclude(pk__in=rows):
        if place_by(cluster, team, rows).namespace == namespace:
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
    """The instance types of a cluster's nodes, by name; sizes are those of its smallest node, so that all fit.

    A type whose nodes have all gone stays, with none: what was made for it waits for the next ones.
    """
    rows = Node.objects.filter(cluster=cluster).exclude(instance_type="")
    found: dict[str, list[tuple[int, int, int]]] = {}
    there: dict[str, int] = {}
    for name, phase, *size in rows.values_list("instance_type", "phase", "gpus", "cpus", "memory_mib"):
        found.setdefault(name, []).append((size[0], size[1], size[2]))
        there[name] = there.get(name, 0) + (phase != NodePhase.GONE)
    return [
        TypeSize(name, there[name], max(s[0] for s in sizes), min(s[1] for s in sizes), min(s[2] for s in sizes))
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
        place = place_by(cluster, team, rows)
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
