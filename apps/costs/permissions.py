"""Who may read the ledger and set budgets."""

from __future__ import annotations

from apps.teams.models import Team
from apps.teams.permissions import Actor


def can_view_costs(actor: Actor, team: Team) -> bool:
    """Members see their team's money; operators and admins all."""
    return actor.may("costs.view", team.pk)


def can_manage_budgets(actor: Actor) -> bool:
    """Administrators only."""
    return actor.everywhere("quotas.manage")
