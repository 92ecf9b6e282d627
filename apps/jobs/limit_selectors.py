"""What a team may use of a cluster, as limits of its Slurm accounts, and who can raise them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

from django.utils.translation import gettext as _

from apps.clusters.models import Cluster, Node
from apps.clusters.slurm_models import SlurmAccount, SlurmLimit
from apps.clusters.states import LimitsMode, NodePhase
from apps.core import clock, units
from apps.costs.selectors import free_of, standing_of, still_held
from apps.costs.states import Unit
from apps.jobs.models import Job
from apps.jobs.pricing import price_on
from apps.jobs.states import JOB_ENDED, JobOrigin
from apps.teams.models import Team, User
from apps.teams.states import PlatformRole

#: A written limit is left as it is while it differs by less than this, or by less than this part of it.
STEP_MIN, STEP_PART = 60, Decimal("0.02")
#: Reasons of waiting jobs that come from limits written here.
BUDGET_REASONS = frozenset({"AssocGrpGRESMinutes", "AssocGrpGRESMinsLimit", "AssocGrpGRESRunMinutes"})
QUOTA_REASONS = frozenset({"AssocGrpGRES", "AssocGrpGRESLimit"})


@dataclass(frozen=True)
class Allowance:
    """What a team has left of a cluster: GPUs at once, and GPU-minutes; None: no limit can be told."""

    gpus: int | None
    left_gpu_min: int | None


@dataclass(frozen=True)
class LimitRow:
    """An account with what the portal wants of it and what was last seen there (None: never looked)."""

    account: SlurmAccount
    allowance: Allowance
    seen: SlurmLimit | None

    @property
    def left_gpu_h(self) -> str:
        """GPU-hours that the budget still pays for."""
        minutes = self.allowance.left_gpu_min
        return "–" if minutes is None else units.count(minutes // 60)

    @property
    def wanted_words(self) -> str:
        """GrpTRESMins as it should be."""
        minutes = self.allowance.left_gpu_min
        return "–" if minutes is None else units.count(minutes + (self.seen.used_gpu_min if self.seen else 0))

    @property
    def observed_words(self) -> str:
        """GrpTRESMins as Slurm told it last."""
        found = self.seen.observed_gpu_min if self.seen is not None else None
        return "–" if found is None else units.count(found)


def allowance_of(team: Team, cluster: Cluster) -> Allowance:
    """The team's GPU quota, and its budget's rest at the cluster's dearest price.

    The GPU-minutes that portal jobs hold here come on top, in whatever month and at whatever price they were held:
    they run within the same limit.
    """
    nodes = list(
        Node.objects.filter(cluster=cluster)
        .exclude(phase=NodePhase.GONE)
        .select_related("fleet__reservation", "group__reservation")
    )
    quota = standing_of(team, Unit.GPUS)
    price = price_on(cluster, nodes, "")
    minutes = None
    if price is not None and price[0] > 0:
        jobs = Job.objects.filter(team=team, cluster=cluster, origin=JobOrigin.PORTAL).exclude(phase__in=JOB_ENDED)
        held_h = still_held(jobs.values_list("uid", flat=True), Unit.GPU_HOURS)
        # Rounded up, or the last job that the money pays for would not fit by a part of a minute.
        minutes = int(max(Decimal(0), free_of(team)) / price[0] * 60) + math.ceil(held_h * 60)
    return Allowance(int(max(Decimal(0), quota.limit)), minutes)


def differs(wanted: int | None, written: int | None, *, step: bool) -> bool:
    """Whether a limit is worth writing again: never for less than a step, always for all or nothing."""
    if wanted is None or written is None or not step:
        return wanted != written
    return abs(wanted - written) > max(STEP_MIN, int(written * STEP_PART))


def limit_rows(cluster: Cluster) -> list[LimitRow]:
    """Every account of a team with both sides, by name."""
    accounts = SlurmAccount.objects.filter(cluster=cluster).select_related("team", "limit")
    allowances: dict[int, Allowance] = {}
    rows = []
    for account in accounts:
        if account.team_id not in allowances:
            allowances[account.team_id] = allowance_of(account.team, cluster)
        rows.append(LimitRow(account, allowances[account.team_id], getattr(account, "limit", None)))
    return rows


def admins_named() -> str:
    """Up to three people who may raise budgets and quotas, by name; never empty."""
    rows = User.objects.filter(is_active=True, platform_role=PlatformRole.ADMIN).order_by("username")
    return ", ".join(rows.values_list("username", flat=True)[:3]) or _("an administrator of the portal")


def limit_words(job: Job, reason: str) -> str:
    """A waiting job's reason where it comes from the team's limits in Slurm; "" for any other reason."""
    if job.cluster.limits_mode != LimitsMode.ENFORCE or reason not in BUDGET_REASONS | QUOTA_REASONS:
        return ""
    facts: dict[str, object] = {"team": job.team.slug, "who": admins_named(), "month": f"{clock.now():%Y-%m}"}
    if reason in QUOTA_REASONS:
        quota = standing_of(job.team, Unit.GPUS)
        facts["gpus"] = int(quota.limit)
        return _("team %(team)s may use %(gpus)s GPUs at once and they are in use; who can raise that: %(who)s") % facts
    money = standing_of(job.team, Unit.USD)
    facts |= {"left": units.usd(max(Decimal(0), free_of(job.team))), "limit": units.usd(money.limit)}
    text = _(
        "the budget of team %(team)s for %(month)s has not enough left for it: %(left)s of %(limit)s; "
        "who can raise it: %(who)s"
    )
    return text % facts
