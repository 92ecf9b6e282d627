"""Who may set quotas."""

from __future__ import annotations

from apps.teams.permissions import Actor


def can_manage_quotas(actor: Actor) -> bool:
    """Administrators only."""
    return actor.everywhere("quotas.manage")
