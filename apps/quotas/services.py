"""Verbs on quotas: set a limit, take GPUs for a job, give them back."""

from __future__ import annotations

from decimal import Decimal

from django.db import transaction
from django.utils.translation import gettext as _

from apps.audit.services import record
from apps.core.errors import Forbidden, Refusal
from apps.costs import services as ledger
from apps.costs.states import Unit
from apps.quotas.models import Quota
from apps.quotas.permissions import can_manage_quotas
from apps.quotas.selectors import gpus_standing
from apps.teams.models import Team
from apps.teams.permissions import Actor


class QuotaExceeded(Refusal):
    """The team already holds too many GPUs for this."""


def quota_set(*, actor: Actor, team: Team, gpus: int, expected_version: int | None = None) -> Quota:
    """Set the team's limit; lowering it below what is held stops new submits, not running jobs.

    Raises Forbidden, StaleVersion.
    """
    if not can_manage_quotas(actor):
        raise Forbidden(_("only administrators set quotas"))
    with transaction.atomic():
        quota = Quota.objects.filter(team=team).first()
        before = quota.gpus if quota else None
        if quota is None:
            quota = Quota.objects.create(team=team, gpus=gpus)
        else:
            quota.spec_update(expected_version, gpus=gpus)
            quota.save(update_fields=["updated_at"])  # leaves the row in the model's history
        ledger.grant_to(
            team, Unit.GPUS, Decimal(gpus), key=f"quota:{quota.uid}:v{quota.version}", memo=f"quota set to {gpus} GPUs"
        )
        record(actor, "quota.set", "quota", quota.uid, team_id=team.pk, before={"gpus": before}, after={"gpus": gpus})
    return quota


def gpus_take(team: Team, gpus: int, *, subject: str) -> None:
    """Hold GPUs for a job until ``gpus_return``. Raises QuotaExceeded; a team without a quota has none."""
    if ledger.hold(team, Unit.GPUS, Decimal(gpus), key=f"quota:{subject}:take", subject=subject, detail=subject):
        return
    now = gpus_standing(team)
    raise QuotaExceeded(
        _(
            "team %(team)s may hold %(limit)s GPUs at once and holds %(held)s; this needs %(gpus)s."
            " Wait for a job to end, use fewer GPUs, or ask an administrator for more"
        )
        % {"team": team.slug, "limit": f"{now.limit:.0f}", "held": f"{now.held:.0f}", "gpus": gpus}
    )


def gpus_return(team: Team, *, subject: str) -> None:
    """Give a job's GPUs back; twice is once."""
    ledger.release(team, Unit.GPUS, key=f"quota:{subject}:return", subject=subject, detail=subject)
