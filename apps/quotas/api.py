"""API of quotas."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint, ListEndpoint, etag, expected_version
from apps.core.errors import NotFound
from apps.quotas.models import Quota
from apps.quotas.selectors import gpus_standing, quotas_visible_to
from apps.quotas.services import quota_set
from apps.teams.selectors import team_for


class QuotaSerializer(serializers.ModelSerializer[Quota]):
    """A team's limit and use of concurrent GPUs."""

    team = serializers.CharField(source="team.slug", read_only=True)
    gpus_held = serializers.SerializerMethodField()
    gpus_free = serializers.SerializerMethodField()

    class Meta:
        model = Quota
        fields = ["uid", "team", "gpus", "gpus_held", "gpus_free", "updated_at", "version"]

    def get_gpus_held(self, quota: Quota) -> int:
        """Held by jobs that have not ended."""
        return int(gpus_standing(quota.team).held)

    def get_gpus_free(self, quota: Quota) -> int:
        """Left; negative when the limit was lowered below what is held."""
        return int(gpus_standing(quota.team).free)


class QuotaSetSerializer(serializers.Serializer[Any]):
    """The new limit."""

    gpus = serializers.IntegerField(min_value=0, max_value=1_000_000)


class Quotas(ListEndpoint):
    """Quotas of visible teams."""

    rights = {"GET": "quotas.view"}
    serializer_class = QuotaSerializer

    def get_rows(self) -> Any:
        """Visible quotas."""
        return quotas_visible_to(self.actor)


class QuotaDetail(Endpoint):
    """One team's quota."""

    rights = {"GET": "quotas.view", "PUT": "quotas.manage"}
    serializer_class = QuotaSerializer

    def get_serializer_class(self) -> Any:
        """The body of a PUT differs from the object."""
        return QuotaSetSerializer if self.request.method == "PUT" else QuotaSerializer

    def get(self, request: Request, slug: str) -> Response:
        """Read; 404 when none was set."""
        quota = quotas_visible_to(self.actor).filter(team__slug=slug).first()
        if quota is None:
            raise NotFound(f"no quota of team {slug} that you may see")
        return Response(QuotaSerializer(quota).data, headers={"ETag": etag(quota)})

    def put(self, request: Request, slug: str) -> Response:
        """Set it; If-Match is required once there is one."""
        team = team_for(actor=self.actor, may="quotas.manage", slug=slug)
        body = self.read_body(QuotaSetSerializer)
        version = expected_version(request) if Quota.objects.filter(team=team).exists() else None
        quota = quota_set(actor=self.actor, team=team, gpus=body["gpus"], expected_version=version)
        return Response(QuotaSerializer(quota).data, headers={"ETag": etag(quota)})
