"""Who may see and operate clusters and fleets."""

from __future__ import annotations

from apps.teams.permissions import Actor


def can_view_clusters(actor: Actor) -> bool:
    """Everyone with a role: clusters are shared."""
    return actor.holds("clusters.view")


def can_operate_clusters(actor: Actor) -> bool:
    """Operators and administrators."""
    return actor.everywhere("clusters.operate")
