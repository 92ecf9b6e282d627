"""Who may see and act on findings."""

from __future__ import annotations

from apps.teams.permissions import Actor


def can_view_health(actor: Actor) -> bool:
    """Everyone with a role: nodes are shared."""
    return actor.holds("health.view")


def can_operate_health(actor: Actor) -> bool:
    """Operators and administrators."""
    return actor.everywhere("health.operate")
