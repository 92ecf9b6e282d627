"""API of checks before a launch, and of replacements of lost machines."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.capacity.selectors import reservation_for
from apps.clusters.api import EmptySerializer, FleetCreateSerializer, FleetSerializer
from apps.clusters.fleet_services import fleet_replace, preflight_ask
from apps.clusters.models import PreflightRun
from apps.clusters.selectors import cluster_for, fleet_for, preflight_for
from apps.core.api import Endpoint, expected_version, idempotent
from apps.core.said import told


class PreflightSerializer(serializers.ModelSerializer[PreflightRun]):
    """A check: what was asked about and what was found."""

    cluster: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="name", read_only=True)

    class Meta:
        model = PreflightRun
        fields = ["uid", "cluster", "spec", "phase", "checks", "message", "checked_at", "created_at"]

    def to_representation(self, instance: PreflightRun) -> dict[str, Any]:
        """Every sentence in the request's language."""
        return dict(told(super().to_representation(instance)))


class PreflightCreateSerializer(FleetCreateSerializer):
    """What a fleet would be, without a name."""

    name = None  # type: ignore[assignment]
    partition = None  # type: ignore[assignment]
    team = None  # type: ignore[assignment]


class Preflights(Endpoint):
    """Checks of launches that nobody has asked for yet."""

    rights = {"POST": "clusters.operate"}
    serializer_class = PreflightCreateSerializer

    def post(self, request: Request) -> Response:
        """Ask for one (202); read it until its phase is DONE or FAILED."""
        body = self.read_body(PreflightCreateSerializer)
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=body.pop("cluster"))
        if uid := body.pop("reservation", ""):
            body["reservation"] = reservation_for(actor=self.actor, may="capacity.view", uid=uid)

        def effect() -> tuple[int, dict[str, Any], str]:
            run = preflight_ask(actor=self.actor, cluster=cluster, **body)
            return 202, dict(PreflightSerializer(run).data), f"/api/v1/preflights/{run.uid}"

        return idempotent(request, effect)


class PreflightDetail(Endpoint):
    """One check."""

    rights = {"GET": "clusters.operate"}
    serializer_class = PreflightSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        return Response(PreflightSerializer(preflight_for(actor=self.actor, may="clusters.operate", uid=uid)).data)


class FleetReplace(Endpoint):
    """Machines in the place of lost ones."""

    rights = {"POST": "clusters.operate"}
    serializer_class = EmptySerializer

    def post(self, request: Request, uid: str) -> Response:
        """Ask for them (202). It spends money: Idempotency-Key and If-Match required."""
        fleet = fleet_for(actor=self.actor, may="clusters.operate", uid=uid)
        version = expected_version(request)

        def effect() -> tuple[int, dict[str, Any], str]:
            fleet_replace(actor=self.actor, fleet=fleet, expected_version=version)
            return 202, dict(FleetSerializer(fleet).data), f"/api/v1/fleets/{fleet.uid}"

        return idempotent(request, effect, required=True)
