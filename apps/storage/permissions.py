"""Who may see and change shared storage."""

from __future__ import annotations

from apps.teams.permissions import Actor


def can_view_storage(actor: Actor) -> bool:
    """Everyone with a role: file systems are shared."""
    return actor.holds("storage.view")


def can_operate_storage(actor: Actor) -> bool:
    """Operators and administrators."""
    return actor.everywhere("storage.operate")
