"""Pages of money: what burns and was spent, one team's month by job, and the ledger with both legs."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.core import clock
from apps.core.errors import BadQuery
from apps.core.lists import csv_answer, filtered_rows, listing
from apps.core.pages import Page
from apps.core.units import usd
from apps.costs.api import PostingFilter
from apps.costs.charts import Chart, stacked_days
from apps.costs.models import Posting
from apps.costs.selectors import (
    Standing,
    budget_of,
    charged_by_team_and_day,
    costs_by_job,
    ledger_standing,
    month_of,
    name_in_memo,
    postings_visible_to,
    standing_of,
    standings_of,
)
from apps.costs.states import PostingKind, Unit
from apps.teams.models import Team
from apps.teams.selectors import team_for, teams_visible_to

DAYS = 30


def month_start() -> datetime:
    """The first instant of this month."""
    return clock.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def month_part() -> Decimal:
    """How much of the month has passed, above 0 and at most 1."""
    first = month_start()
    following = (first + timedelta(days=32)).replace(day=1)
    return max(Decimal("0.001"), Decimal(str((clock.now() - first) / (following - first))))


def budget_segments(standing: Standing) -> list[tuple[str, Decimal, str]]:
    """Spent, held and left as parts of a bar."""
    return [
        ("used", standing.spent, _("%(usd)s spent") % {"usd": usd(standing.spent)}),
        ("held", standing.held, _("%(usd)s held") % {"usd": usd(standing.held)}),
        ("free", max(standing.free, Decimal(0)), _("%(usd)s left") % {"usd": usd(standing.free)}),
    ]


def days_chart(teams: list[Team]) -> Chart:
    """The last 30 days of these teams."""
    since = (clock.now() - timedelta(days=DAYS - 1)).replace(hour=0, minute=0, second=0, microsecond=0)
    slugs = {t.pk: t.slug for t in teams}
    amounts = {(slugs[pk], day): usd for (pk, day), usd in charged_by_team_and_day(slugs, since).items()}
    names = {**{t.slug: t.slug for t in teams}, "": _("other teams")}
    return stacked_days(amounts, until=clock.now().date(), days=DAYS, names=names)


class CostsPage(Page):
    """All the money one may see."""

    right = "costs.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page. Raises BadQuery."""
        if request.GET:
            raise BadQuery(f"unknown query parameter {', '.join(sorted(request.GET))}; this page takes none")
        teams = list(teams_visible_to(self.actor, "costs.view")[:500])
        standings = standings_of(teams, Unit.USD)
        part = month_part()
        spent = sum((s.spent for s in standings), Decimal(0))
        chart = days_chart(teams)
        context: dict[str, Any] = {
            "teams": [(s, budget_segments(s), s.spent / part) for s in standings],
            "chart": chart,
            "month": month_of(),
            "spent": spent,
            "held": sum((s.held for s in standings), Decimal(0)),
            "limit": sum((s.limit for s in standings), Decimal(0)),
            "forecast": spent / part,
            "day_label": DAYS,
        }
        return render(request, "costs/costs.html", context)


class TeamCosts(Page):
    """One team's month: bar, days, cost by job."""

    right = "costs.view"

    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        """The page. Raises BadQuery, NotFound."""
        team = team_for(actor=self.actor, may="costs.view", slug=slug)
        if request.GET:
            raise BadQuery(f"unknown query parameter {', '.join(sorted(request.GET))}; this page takes none")
        standing = standing_of(team, Unit.USD)
        jobs = costs_by_job(team, month_start())
        context = {
            "team": team,
            "budget": budget_of(team),
            "standing": standing,
            "segments": budget_segments(standing),
            "forecast": standing.spent / month_part(),
            "chart": days_chart([team]),
            "jobs": jobs,
            "charged": sum((j.usd.charged for j in jobs), Decimal(0)),
            "hours": sum((j.gpu_hours for j in jobs), Decimal(0)),
            "month": month_of(),
        }
        return render(request, "costs/team.html", context)


LEDGER_SORTS = {"-at": "-at", "at": "at", "-amount": "-amount", "amount": "amount"}
LEDGER_LABELS = {
    "unit": gettext_lazy("Unit"),
    "kind": gettext_lazy("Posting"),
    "team": gettext_lazy("Team"),
    "job": gettext_lazy("Job"),
    "since": gettext_lazy("Since"),
    "until": gettext_lazy("Until"),
    "q": gettext_lazy("Text"),
}


class LedgerPage(Page):
    """Every posting with both legs, and the proof that they balance."""

    right = "costs.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page. Raises BadQuery."""
        found = listing(
            request,
            postings_visible_to(self.actor),
            PostingFilter,
            sorts=LEDGER_SORTS,
            labels=LEDGER_LABELS,
            words={
                "unit": lambda v: str(Unit(v).label),
                "kind": lambda v: str(PostingKind(v).label),
            },
            columns={
                "posting": (2, gettext_lazy("Posting")),
                "team": (3, gettext_lazy("Team")),
                "unit": (4, gettext_lazy("Unit")),
                "job": (9, gettext_lazy("Job")),
                "memo": (10, gettext_lazy("Memo")),
            },
        )
        context = {
            "list": found,
            "rows": [(p, *_told(p)) for p in found.rows],
            "units": Unit.choices,
            "kinds": PostingKind.choices,
            "teams": list(teams_visible_to(self.actor, "costs.view")[:200]),
            "mark": ledger_standing(),
        }
        return render(request, "costs/ledger.html", context)


def _told(posting: Posting) -> tuple[str, str]:
    """The job's name and what the memo says besides it."""
    name = name_in_memo(posting.memo)
    return name, posting.memo.removeprefix(f"{name}, ") if name else posting.memo


class LedgerCsv(Page):
    """The filtered postings as CSV."""

    right = "costs.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """Newest first."""
        rows, _values = filtered_rows(request, postings_visible_to(self.actor), PostingFilter, ("sort", "cursor"))
        header = ["at", "team", "kind", "unit", "amount", "from", "to", "period", "job", "attempt", "memo", "key"]
        return csv_answer("ledger", header, (_csv_row(p) for p in rows.order_by("-at", "-id")[:20_001]))


def _csv_row(posting: Posting) -> list[Any]:
    return [
        clock.iso(posting.at),
        posting.source.team.slug,
        posting.kind,
        posting.unit,
        posting.amount,
        posting.source.kind,
        posting.target.kind,
        posting.source.period,
        posting.subject_uid,
        posting.detail_uid,
        posting.memo,
        posting.key,
    ]
