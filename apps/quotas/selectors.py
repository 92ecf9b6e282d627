"""Named reads of quotas."""

from __future__ import annotations

from django.db.models import QuerySet

from apps.costs.selectors import Standing, standing_of
from apps.costs.states import Unit
from apps.quotas.models import Quota
from apps.teams.models import Team
from apps.teams.permissions import Actor


def quotas_visible_to(actor: Actor) -> QuerySet[Quota]:
    """Quotas of teams the actor sees."""
    rows = Quota.objects.select_related("team").order_by("team__slug")
    return rows if actor.everywhere("quotas.view") else rows.filter(team__in=actor.team_ids("quotas.view"))


def gpus_standing(team: Team) -> Standing:
    """Concurrent GPUs: free, held, limit."""
    return standing_of(team, Unit.GPUS)
