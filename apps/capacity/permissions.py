"""Who may see reserved capacity, ask for it and approve what costs money."""

from __future__ import annotations

from apps.teams.permissions import Actor


def can_view_capacity(actor: Actor) -> bool:
    """Everyone with a role: reserved capacity is shared knowledge."""
    return actor.holds("capacity.view")


def can_operate_capacity(actor: Actor) -> bool:
    """Operators and administrators."""
    return actor.everywhere("capacity.operate")


def can_approve_purchase(actor: Actor, requested_by: str) -> bool:
    """Operators and administrators, never of what they asked for themselves."""
    return actor.everywhere("capacity.approve") and actor.key != requested_by
