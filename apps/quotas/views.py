"""The quota matrix with inline edit, and the history of a team's limits."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django_filters import FilterSet

from apps.core.errors import BadQuery, Refusal, StaleVersion
from apps.core.filters import TextFilter
from apps.core.lists import listing
from apps.core.pages import Page
from apps.quotas.forms import LimitsForm
from apps.quotas.matrix import Row, changes_of, limits_set, rows_of
from apps.quotas.permissions import can_manage_quotas
from apps.teams.models import Team
from apps.teams.selectors import team_for, teams_visible_to


class TeamFilter(FilterSet):  # type: ignore[misc]
    """By text."""

    q = TextFilter("slug", "name")

    class Meta:
        model = Team
        fields: list[str] = []


def form_for(row: Row) -> LimitsForm:
    """The row's limits as they are now, to be edited."""
    return LimitsForm(
        initial={
            "gpus": row.quota.gpus if row.quota else None,
            "usd_per_month": row.budget.usd_per_month if row.budget else None,
            "gpus_version": row.quota.version if row.quota else 0,
            "usd_version": row.budget.version if row.budget else 0,
        }
    )


class _Matrix(Page):
    """What showing and saving share."""

    right = "quotas.view"
    abstract = True

    def page(
        self,
        request: HttpRequest,
        *,
        editing: str = "",
        form: LimitsForm | None = None,
        problem: str = "",
        status: int = 200,
    ) -> HttpResponse:
        """The matrix; one row in edit mode, with what is wrong with it."""
        found = listing(
            request,
            teams_visible_to(self.actor, "quotas.view"),
            TeamFilter,
            sorts={"team": "slug", "-team": "-slug", "name": "name", "-name": "-name"},
            labels={"q": gettext_lazy("Text")},
            known=("edit",),
        )
        rows = rows_of(found.rows)
        shown = [(row, (form or form_for(row)) if row.team.slug == editing else None) for row in rows]
        context: dict[str, Any] = {
            "list": found,
            "rows": shown,
            "editing": editing,
            "problem": problem,
            "may_manage": can_manage_quotas(self.actor),
        }
        return render(request, "quotas/quotas.html", context, status=status)


class QuotasPage(_Matrix):
    """Teams × limits."""

    right = "quotas.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page; ``?edit=<team>`` puts one row into edit mode for who may. Raises BadQuery."""
        editing = request.GET.get("edit", "")
        if editing:
            if not can_manage_quotas(self.actor):
                raise BadQuery(_("edit: only administrators edit quotas"))
            team_for(actor=self.actor, may="quotas.manage", slug=editing)
        return self.page(request, editing=editing)


class LimitsSave(_Matrix):
    """Save both limits of one team."""

    right = "quotas.manage"

    def post(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Save and go back; what is wrong shows in the row."""
        team = team_for(actor=self.actor, may="quotas.manage", slug=slug)
        form = LimitsForm(request.POST)
        if not form.is_valid():
            return self.page(request, editing=slug, form=form, status=422)
        data = form.cleaned_data
        try:
            changes = limits_set(
                actor=self.actor,
                team=team,
                gpus=data["gpus"],
                usd=data["usd_per_month"],
                gpus_version=data["gpus_version"],
                usd_version=data["usd_version"],
            )
        except StaleVersion as refusal:
            text = _(
                "Someone else changed the limits of %(team)s meanwhile. The row shows them as they are now: look again."
            )
            return self.page(request, editing=slug, problem=text % {"team": slug}, status=refusal.status)
        except Refusal as refusal:
            form.show(refusal)
            return self.page(request, editing=slug, form=form, status=refusal.status)
        if changes:
            self.say(_("%(team)s: %(what)s.") % {"team": slug, "what": ", ".join(changes)})
        else:
            self.say(_("%(team)s: nothing changed.") % {"team": slug})
        return HttpResponseRedirect(reverse("quotas"))


class QuotaHistory(Page):
    """Who changed a team's limits."""

    right = "quotas.view"

    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        """The page."""
        team = team_for(actor=self.actor, may="quotas.view", slug=slug)
        row = rows_of([team])[0]
        return render(request, "quotas/history.html", {"team": team, "row": row, "changes": changes_of(team)})
