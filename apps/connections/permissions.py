"""Who may see and change connections."""

from __future__ import annotations

from apps.teams.permissions import Actor


def can_view_account(actor: Actor) -> bool:
    """Operators and administrators."""
    return actor.everywhere("connections.view")


def can_allow_purchases(actor: Actor) -> bool:
    """Administrators alone: what is bought cannot be given back."""
    return actor.everywhere("purchases.allow")


def can_manage_account(actor: Actor) -> bool:
    """Operators and administrators."""
    return actor.everywhere("connections.manage")
