"""The quota matrix: each team with its two limits, what is used of them, and who changed them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from apps.core import units
from apps.costs.models import Budget
from apps.costs.selectors import Standing, standings_of
from apps.costs.services import budget_set
from apps.costs.states import Unit
from apps.quotas.models import Quota
from apps.quotas.services import quota_set
from apps.teams.models import Team
from apps.teams.permissions import Actor


@dataclass(frozen=True)
class Row:
    """One team: its limits (None: none set) and where it stands in both units."""

    team: Team
    quota: Quota | None
    budget: Budget | None
    gpus: Standing
    usd: Standing

    @property
    def gpu_segments(self) -> list[tuple[str, Decimal, str]]:
        """Held and free GPUs as parts of a bar."""
        return [
            ("used", self.gpus.held, _("%(n)s held") % {"n": units.count(float(self.gpus.held))}),
            ("free", max(self.gpus.free, Decimal(0)), _("%(n)s free") % {"n": units.count(float(self.gpus.free))}),
        ]

    @property
    def usd_segments(self) -> list[tuple[str, Decimal, str]]:
        """Spent, held and left dollars as parts of a bar."""
        return [
            ("used", self.usd.spent, _("%(usd)s spent") % {"usd": units.usd(self.usd.spent)}),
            ("held", self.usd.held, _("%(usd)s held") % {"usd": units.usd(self.usd.held)}),
            ("free", max(self.usd.free, Decimal(0)), _("%(usd)s left") % {"usd": units.usd(self.usd.free)}),
        ]


def rows_of(teams: Iterable[Team]) -> list[Row]:
    """Rows of these teams, in their order; four queries."""
    listed = list(teams)
    quotas = {q.team_id: q for q in Quota.objects.filter(team__in=listed)}
    budgets = {b.team_id: b for b in Budget.objects.filter(team__in=listed)}
    gpus = standings_of(listed, Unit.GPUS)
    usd = standings_of(listed, Unit.USD)
    return [Row(t, quotas.get(t.pk), budgets.get(t.pk), g, u) for t, g, u in zip(listed, gpus, usd, strict=True)]


def limits_set(
    *, actor: Actor, team: Team, gpus: int | None, usd: Decimal | None, gpus_version: int, usd_version: int
) -> list[str]:
    """Set what differs, both or neither; the changes in words.

    A version of 0 says that the person saw no limit; if there is one by now, that is a stale view too.
    Raises Forbidden, StaleVersion.
    """
    changes = []
    with transaction.atomic():
        quota = Quota.objects.filter(team=team).first()
        if gpus is not None and (quota is None or quota.gpus != gpus):
            quota_set(actor=actor, team=team, gpus=gpus, expected_version=gpus_version)
            changes.append(_("%(n)s GPUs at once") % {"n": units.count(gpus)})
        budget = Budget.objects.filter(team=team).first()
        if usd is not None and (budget is None or budget.usd_per_month != usd):
            budget_set(actor=actor, team=team, usd_per_month=usd, expected_version=usd_version)
            changes.append(_("%(usd)s a month") % {"usd": units.usd(usd)})
    return changes


@dataclass(frozen=True)
class Change:
    """One change of a limit: what it was (None: nothing) and became, by whom (empty: the portal itself)."""

    at: datetime
    what: str
    before: str | None
    after: str
    who: str


def changes_of(team: Team) -> list[Change]:
    """Every change of both limits, newest first."""
    gpus = _changes(Quota.history.filter(team_id=team.pk), "gpus", _("GPUs at once"), lambda v: units.count(v))
    usd = _changes(Budget.history.filter(team_id=team.pk), "usd_per_month", _("USD a month"), lambda v: units.usd(v))
    return sorted([*gpus, *usd], key=lambda c: c.at, reverse=True)


def _changes(history: Any, column: str, what: str, text: Any) -> list[Change]:
    found: list[Change] = []
    before: Any = None
    for row in history.select_related("history_user").order_by("history_date", "history_id"):
        value = getattr(row, column)
        if value == before:
            continue
        who = row.history_user.username if row.history_user else ""
        found.append(Change(row.history_date, what, None if before is None else text(before), text(value), who))
        before = value
    return found
