"""API of the ledger and budgets."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django_filters import DateFilter, FilterSet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint, ListEndpoint, etag, expected_version
from apps.core.errors import NotFound
from apps.core.filters import ChoicesFilter, KnownFilter, TextFilter
from apps.costs.models import Budget, Posting
from apps.costs.selectors import budget_of, month_of, postings_visible_to, standings_of
from apps.costs.services import budget_set
from apps.costs.states import PostingKind, Unit
from apps.teams.models import Team
from apps.teams.selectors import team_for, teams_visible_to


class PostingSerializer(serializers.ModelSerializer[Posting]):
    """One posting: an amount from one account to another."""

    team = serializers.CharField(source="target.team.slug", read_only=True)
    from_account = serializers.CharField(source="source.kind", read_only=True)
    to_account = serializers.CharField(source="target.kind", read_only=True)
    amount = serializers.DecimalField(max_digits=20, decimal_places=6, read_only=True)
    job = serializers.CharField(source="subject_uid", read_only=True)
    attempt = serializers.CharField(source="detail_uid", read_only=True)

    class Meta:
        model = Posting
        fields = ["at", "team", "kind", "unit", "amount", "from_account", "to_account", "job", "attempt", "memo"]


class StandingSerializer(serializers.Serializer[Any]):
    """A team's month in one unit."""

    team = serializers.CharField()
    period = serializers.CharField()
    limit = serializers.DecimalField(max_digits=20, decimal_places=6)
    free = serializers.DecimalField(max_digits=20, decimal_places=6)
    held = serializers.DecimalField(max_digits=20, decimal_places=6)
    spent = serializers.DecimalField(max_digits=20, decimal_places=6)


class BudgetSerializer(serializers.ModelSerializer[Budget]):
    """A monthly budget."""

    team = serializers.CharField(source="team.slug", read_only=True)

    class Meta:
        model = Budget
        fields = ["uid", "team", "usd_per_month", "updated_at", "version"]


class BudgetSetSerializer(serializers.Serializer[Any]):
    """The new amount."""

    usd_per_month = serializers.DecimalField(max_digits=14, decimal_places=2, min_value=0)


def _teams(actor: Any) -> QuerySet[Team]:
    return teams_visible_to(actor, "costs.view")


class PostingFilter(FilterSet):  # type: ignore[misc]
    """By team, job, unit, kind, text; since and until are UTC days, both included."""

    unit = ChoicesFilter("unit", values=Unit.choices)
    kind = ChoicesFilter("kind", values=PostingKind.choices)
    job = TextFilter("subject_uid")
    team = KnownFilter("source__team__slug", known=_teams, column="slug")
    q = TextFilter("memo", "subject_uid")
    since = DateFilter(field_name="at", lookup_expr="date__gte")
    until = DateFilter(field_name="at", lookup_expr="date__lte")

    class Meta:
        model = Posting
        fields: list[str] = []


class Postings(ListEndpoint):
    """The ledger, newest first."""

    rights = {"GET": "costs.view"}
    serializer_class = PostingSerializer
    filterset_class = PostingFilter
    sorts = {"-at": "-at"}

    def get_rows(self) -> Any:
        """Postings of visible teams."""
        return postings_visible_to(self.actor)


class Standings(Endpoint):
    """This month's budget, held and spent of each visible team, in USD."""

    rights = {"GET": "costs.view"}
    serializer_class = StandingSerializer

    def get(self, request: Request) -> Response:
        """One row a team."""
        teams = teams_visible_to(self.actor, "costs.view")
        rows = [
            {
                "team": s.team.slug,
                "period": month_of(),
                "limit": s.limit,
                "free": s.free,
                "held": s.held,
                "spent": s.spent,
            }
            for s in standings_of(teams, Unit.USD)
        ]
        return Response({"results": StandingSerializer(rows, many=True).data, "next": None, "previous": None})


class BudgetDetail(Endpoint):
    """A team's monthly budget."""

    rights = {"GET": "costs.view", "PUT": "quotas.manage"}
    serializer_class = BudgetSerializer

    def get_serializer_class(self) -> Any:
        """The body of a PUT differs from the object."""
        return BudgetSetSerializer if self.request.method == "PUT" else BudgetSerializer

    def get(self, request: Request, slug: str) -> Response:
        """Read; 404 when none was set."""
        team = team_for(actor=self.actor, may="costs.view", slug=slug)
        budget = budget_of(team)
        if budget is None:
            raise NotFound(f"team {slug} has no budget")
        return Response(BudgetSerializer(budget).data, headers={"ETag": etag(budget)})

    def put(self, request: Request, slug: str) -> Response:
        """Set it; If-Match is required once there is one."""
        team = team_for(actor=self.actor, may="quotas.manage", slug=slug)
        body = self.read_body(BudgetSetSerializer)
        version = expected_version(request) if budget_of(team) is not None else None
        budget = budget_set(actor=self.actor, team=team, usd_per_month=body["usd_per_month"], expected_version=version)
        return Response(BudgetSerializer(budget).data, headers={"ETag": etag(budget)})
