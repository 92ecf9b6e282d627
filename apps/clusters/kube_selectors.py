"""Reads of Kubernetes clusters: where a team's jobs go, how a cluster is set up."""

from __future__ import annotations

import re
from dataclasses import dataclass

from apps.clusters.kube_models import KubernetesSettings, TeamNamespace
from apps.clusters.models import Cluster
from apps.teams.models import Team


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
