"""What a list of jobs can be narrowed by, on pages and in the API."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django_filters import FilterSet

from apps.clusters.models import Cluster
from apps.clusters.states import ClusterKind
from apps.core.filters import ChoicesFilter, KnownFilter, TextFilter
from apps.jobs.models import Job
from apps.jobs.states import JobOrigin, JobPhase
from apps.teams.models import Team
from apps.teams.selectors import teams_visible_to


def _teams(actor: Any) -> QuerySet[Team]:
    return teams_visible_to(actor, "jobs.view")


def _clusters(actor: Any) -> QuerySet[Cluster]:
    # Jobs outlive their cluster: a removed one is still a name to look for.
    return Cluster.objects.all() if actor.holds("clusters.view") else Cluster.objects.none()


class JobFilter(FilterSet):  # type: ignore[misc]
    """By phase, team, owner, cluster, kind of cluster, where it was submitted, text."""

    phase = ChoicesFilter("phase", values=JobPhase.choices)
    team = KnownFilter("team__slug", known=_teams, column="slug")
    cluster = KnownFilter("cluster__name", known=_clusters, column="name")
    cluster_kind = ChoicesFilter("cluster__kind", values=ClusterKind.choices)
    origin = ChoicesFilter("origin", values=JobOrigin.choices)
    owner = TextFilter("owner_name")
    q = TextFilter("name", "uid", "owner_name")

    class Meta:
        model = Job
        fields: list[str] = []
