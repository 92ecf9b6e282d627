"""API of clusters, fleets and nodes."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.capacity.selectors import reservation_for
from apps.clusters import managed_services
from apps.clusters.fleet_services import fleet_create, fleet_delete
from apps.clusters.models import Cluster, Fleet, FleetStep, Node
from apps.clusters.selectors import (
    capacities,
    cluster_for,
    cluster_sentence,
    clusters_visible_to,
    fleet_for,
    fleet_sentence,
    fleets_visible_to,
    node_for,
    node_sentence,
    nodes_visible_to,
)
from apps.clusters.services import (
    cluster_create,
    cluster_delete,
    cluster_update,
    node_drain,
    node_resume,
)
from apps.clusters.states import CapacitySource, FleetPhase, NodePhase
from apps.connections.selectors import account_for
from apps.core.api import Endpoint, ListEndpoint, etag, expected_version, idempotent
from apps.core.errors import field_refusal
from apps.core.filters import ChoicesFilter, TextFilter
from apps.core.said import told
from apps.teams.models import Team


class ClusterSerializer(serializers.ModelSerializer[Cluster]):
    """A cluster with its sentence and GPUs."""

    account: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="name", read_only=True)
    message = serializers.CharField(read_only=True)
    takes_jobs = serializers.BooleanField(read_only=True)
    sentence = serializers.SerializerMethodField()
    gpus = serializers.SerializerMethodField()

    class Meta:
        model = Cluster
        fields = [
            "uid",
            "name",
            "kind",
            "is_adopted",
            "takes_jobs",
            "account",
            "api_url",
            "user_name",
            "token_ref",
            "jwt_key_ref",
            "partition",
            "exporter_url",
            "working_root",
            "responds_to_findings",
            "phase",
            "phase_since",
            "message",
            "sentence",
            "gpus",
            "observed_version",
            "observed_api_version",
            "observed_max_time_min",
            "observed_partitions",
            "queue_read_at",
            "nodes_read_at",
            "operator_missing_at",
            "created_at",
            "version",
        ]

    def get_sentence(self, cluster: Cluster) -> str:
        """What is going on."""
        return cluster_sentence(cluster, capacities([cluster])[0])

    def get_gpus(self, cluster: Cluster) -> dict[str, int]:
        """total, used, down and free GPUs, and nodes."""
        c = capacities([cluster])[0]
        return {"total": c.total, "used": c.used, "down": c.down, "free": c.free, "nodes": c.nodes}


class ClusterCreateSerializer(serializers.Serializer[Any]):
    """How to reach a scheduler."""

    name = serializers.CharField(max_length=60)
    api_url = serializers.CharField(max_length=200)
    user_name = serializers.CharField(max_length=60)
    token_ref = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    jwt_key_ref = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    working_root = serializers.CharField(max_length=300)
    account = serializers.CharField(required=False, help_text="uid or name of a connected account.")
    partition = serializers.CharField(max_length=60, required=False, default="", allow_blank=True)
    exporter_url = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)
    responds_to_findings = serializers.BooleanField(default=True)


class ClusterPatchSerializer(serializers.Serializer[Any]):
    """What may be corrected; what is left out stays."""

    name = serializers.CharField(max_length=60, required=False)
    api_url = serializers.CharField(max_length=200, required=False)
    user_name = serializers.CharField(max_length=60, required=False)
    token_ref = serializers.CharField(max_length=200, required=False, allow_blank=True)
    jwt_key_ref = serializers.CharField(max_length=200, required=False, allow_blank=True)
    working_root = serializers.CharField(max_length=300, required=False)
    account = serializers.CharField(
        required=False, allow_blank=True, allow_null=True, help_text="uid or name of a connected account; null: none."
    )
    partition = serializers.CharField(max_length=60, required=False, allow_blank=True)
    exporter_url = serializers.CharField(max_length=300, required=False, allow_blank=True)
    responds_to_findings = serializers.BooleanField(required=False)


class StepSerializer(serializers.ModelSerializer[FleetStep]):
    """One provisioning step."""

    class Meta:
        model = FleetStep
        fields = ["ordinal", "name", "state", "started_at", "ended_at", "expected_s", "message", "checks"]

    def to_representation(self, instance: FleetStep) -> dict[str, Any]:
        """Every sentence in the request's language."""
        return dict(told(super().to_representation(instance)))


class FleetSerializer(serializers.ModelSerializer[Fleet]):
    """A fleet with its steps."""

    cluster: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="name", read_only=True)
    team: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="slug", read_only=True)
    reservation: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="uid", read_only=True)
    conditions = serializers.SerializerMethodField()
    steps = StepSerializer(many=True, read_only=True)
    sentence = serializers.SerializerMethodField()

    class Meta:
        model = Fleet
        fields = [
            "uid",
            "name",
            "cluster",
            "team",
            "instance_type",
            "nodes",
            "subnet_id",
            "security_group_ids",
            "image_id",
            "partition",
            "source",
            "reservation",
            "other_instance_types",
            "other_subnet_ids",
            "zones_named",
            "conditions",
            "usd_per_hour",
            "price_source",
            "phase",
            "phase_since",
            "message",
            "sentence",
            "observed_nodes",
            "capacity_refusals",
            "next_try_at",
            "launched_at",
            "ended_at",
            "steps",
            "generation",
            "observed_generation",
            "created_at",
            "version",
        ]

    def get_conditions(self, fleet: Fleet) -> list[dict[str, Any]]:
        """What a person should know now."""
        return list(told(fleet.conditions))

    def get_sentence(self, fleet: Fleet) -> str:
        """What is going on."""
        return fleet_sentence(fleet)


class FleetCreateSerializer(serializers.Serializer[Any]):
    """What to launch."""

    cluster = serializers.CharField(help_text="uid or name.")
    name = serializers.CharField(max_length=60)
    instance_type = serializers.CharField(max_length=40)
    nodes = serializers.IntegerField(min_value=1)
    subnet_id = serializers.CharField(max_length=40)
    security_group_ids = serializers.ListField(child=serializers.CharField(max_length=40), allow_empty=False)
    image_id = serializers.CharField(max_length=40)
    partition = serializers.CharField(max_length=60, required=False, default="", allow_blank=True)
    team = serializers.CharField(required=False, help_text="Slug of the team that pays; empty: shared.")
    source = serializers.ChoiceField(  # type: ignore[assignment]
        choices=CapacitySource.choices, default=CapacitySource.ON_DEMAND
    )
    reservation = serializers.CharField(required=False, default="", allow_blank=True, help_text="uid of a reservation.")
    other_instance_types = serializers.ListField(child=serializers.CharField(max_length=40), default=list)
    other_subnet_ids = serializers.ListField(child=serializers.CharField(max_length=40), default=list)


class NodeSerializer(serializers.ModelSerializer[Node]):
    """A node."""

    cluster: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="name", read_only=True)
    fleet: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="uid", read_only=True)
    group: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="uid", read_only=True)
    sentence = serializers.SerializerMethodField()

    class Meta:
        model = Node
        fields = [
            "uid",
            "name",
            "cluster",
            "fleet",
            "group",
            "provider_id",
            "instance_type",
            "phase",
            "phase_since",
            "sentence",
            "gpu_type",
            "gpus",
            "gpus_used",
            "cpus",
            "memory_mib",
            "private_ip",
            "zone_id",
            "network_nodes",
            "reservation_id",
            "cloud_events",
            "drain_reason",
            "evict_requested_at",
            "evict_grace_s",
            "evicted_at",
            "labels",
            "observed_state",
            "observed_reason",
            "observed_at",
            "exporter_read_at",
            "exporter_error",
            "exporter_missing",
            "created_at",
        ]

    def get_sentence(self, node: Node) -> str:
        """What is going on."""
        return node_sentence(node)


class DrainSerializer(serializers.Serializer[Any]):
    """Why, and on Kubernetes whether what runs there is ended, too."""

    reason = serializers.CharField(max_length=300)
    evict_grace_s = serializers.IntegerField(
        required=False,
        allow_null=True,
        default=None,
        help_text="Kubernetes only: end the pods on the node, each with so many seconds to save its state.",
    )


class EmptySerializer(serializers.Serializer[Any]):
    """Nothing to say."""


class FleetFilter(FilterSet):  # type: ignore[misc]
    """By cluster, phase, text."""

    phase = ChoicesFilter("phase", values=[c.value for c in FleetPhase])
    cluster = TextFilter("cluster__name")
    q = TextFilter("name", "instance_type")

    class Meta:
        model = Fleet
        fields: list[str] = []


class NodeFilter(FilterSet):  # type: ignore[misc]
    """By cluster, phase, text."""

    phase = ChoicesFilter("phase", values=[c.value for c in NodePhase])
    cluster = TextFilter("cluster__name")
    q = TextFilter("name", "provider_id")

    class Meta:
        model = Node
        fields: list[str] = []


class Clusters(ListEndpoint):
    """Clusters."""

    rights = {"GET": "clusters.view", "POST": "clusters.operate"}
    serializer_class = ClusterSerializer

    def get_rows(self) -> Any:
        """Visible clusters."""
        return clusters_visible_to(self.actor)

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return ClusterCreateSerializer if self.request.method == "POST" else ClusterSerializer

    def post(self, request: Request) -> Response:
        """Record a cluster; the worker connects to it (202)."""
        body = self.read_body(ClusterCreateSerializer)
        account = None
        if name := body.pop("account", ""):
            account = account_for(actor=self.actor, may="connections.view", uid=name)

        def effect() -> tuple[int, dict[str, Any], str]:
            cluster = cluster_create(actor=self.actor, account=account, **body)
            return 202, dict(ClusterSerializer(cluster).data), f"/api/v1/clusters/{cluster.uid}"

        return idempotent(request, effect)


class ClusterDetail(Endpoint):
    """One cluster, by uid or name."""

    rights = {"GET": "clusters.view", "PATCH": "clusters.operate", "DELETE": "clusters.operate"}
    serializer_class = ClusterSerializer

    def get_serializer_class(self) -> Any:
        """The body of a PATCH differs from the object."""
        return ClusterPatchSerializer if self.request.method == "PATCH" else ClusterSerializer

    def patch(self, request: Request, uid: str) -> Response:
        """Correct it; the worker connects again. If-Match required."""
        actor = self.actor
        cluster = cluster_for(actor=actor, may="clusters.operate", uid=uid)
        body = self.read_body(ClusterPatchSerializer)
        version = expected_version(request)
        if cluster.is_managed:
            if "account" in body:
                raise field_refusal("/account", _("a cluster that AWS keeps stays in its account"), "not-here")
            managed_services.cluster_update(actor=actor, cluster=cluster, expected_version=version, **body)
            return Response(ClusterSerializer(cluster).data, headers={"ETag": etag(cluster)})
        if "account" in body:
            name = body["account"]
            body["account"] = account_for(actor=actor, may="connections.view", uid=name) if name else None
        cluster_update(actor=actor, cluster=cluster, expected_version=version, **body)
        return Response(ClusterSerializer(cluster).data, headers={"ETag": etag(cluster)})

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        cluster = cluster_for(actor=self.actor, may="clusters.view", uid=uid)
        return Response(ClusterSerializer(cluster).data, headers={"ETag": etag(cluster)})

    def delete(self, request: Request, uid: str) -> Response:
        """Take it out of the portal (202); If-Match required; refused while it has fleets or jobs.

        A cluster that AWS keeps is deleted there with its groups and machines, unless it was adopted.
        """
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        delete = managed_services.cluster_delete if cluster.is_managed else cluster_delete
        delete(actor=self.actor, cluster=cluster, expected_version=expected_version(request))
        return Response(ClusterSerializer(cluster).data, status=202)


class Fleets(ListEndpoint):
    """Fleets."""

    rights = {"GET": "clusters.view", "POST": "clusters.operate"}
    serializer_class = FleetSerializer
    filterset_class = FleetFilter

    def get_rows(self) -> Any:
        """Visible fleets with their steps."""
        return fleets_visible_to(self.actor).prefetch_related("steps")

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return FleetCreateSerializer if self.request.method == "POST" else FleetSerializer

    def post(self, request: Request) -> Response:
        """Launch a fleet (202). It spends money: Idempotency-Key required."""
        body = self.read_body(FleetCreateSerializer)
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=body.pop("cluster"))
        if uid := body.pop("reservation", ""):
            body["reservation"] = reservation_for(actor=self.actor, may="capacity.view", uid=uid)
        team = None
        if slug := body.pop("team", ""):
            team = Team.objects.filter(slug=slug).first()
            if team is None:
                raise field_refusal("/team", f"no team {slug}", "unknown")

        def effect() -> tuple[int, dict[str, Any], str]:
            fleet = fleet_create(actor=self.actor, cluster=cluster, team=team, **body)
            return 202, dict(FleetSerializer(fleet).data), f"/api/v1/fleets/{fleet.uid}"

        return idempotent(request, effect, required=True)


class FleetDetail(Endpoint):
    """One fleet."""

    rights = {"GET": "clusters.view", "DELETE": "clusters.operate"}
    serializer_class = FleetSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read, with its steps."""
        fleet = fleet_for(actor=self.actor, may="clusters.view", uid=uid)
        return Response(FleetSerializer(fleet).data, headers={"ETag": etag(fleet)})

    def delete(self, request: Request, uid: str) -> Response:
        """Tear it down (202); If-Match required; refused while jobs run on it."""
        fleet = fleet_for(actor=self.actor, may="clusters.operate", uid=uid)
        fleet_delete(actor=self.actor, fleet=fleet, expected_version=expected_version(request))
        return Response(FleetSerializer(fleet).data, status=202)


class Nodes(ListEndpoint):
    """Nodes of all clusters."""

    rights = {"GET": "clusters.view"}
    serializer_class = NodeSerializer
    filterset_class = NodeFilter

    def get_rows(self) -> Any:
        """Visible nodes."""
        return nodes_visible_to(self.actor)


class NodeDetail(Endpoint):
    """One node."""

    rights = {"GET": "clusters.view"}
    serializer_class = NodeSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        return Response(NodeSerializer(node_for(actor=self.actor, may="clusters.view", uid=uid)).data)


class NodeDrain(Endpoint):
    """Take a node out of service."""

    rights = {"POST": "health.operate"}
    serializer_class = DrainSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Ask for a drain (202)."""
        node = node_for(actor=self.actor, may="health.operate", uid=uid)
        body = self.read_body(DrainSerializer)

        def effect() -> tuple[int, dict[str, Any], str]:
            node_drain(actor=self.actor, node=node, reason=body["reason"], evict_grace_s=body["evict_grace_s"])
            node.refresh_from_db()
            return 202, dict(NodeSerializer(node).data), f"/api/v1/nodes/{node.uid}"

        return idempotent(request, effect)


class NodeResume(Endpoint):
    """Put a node back into service."""

    rights = {"POST": "health.operate"}
    serializer_class = EmptySerializer

    def post(self, request: Request, uid: str) -> Response:
        """Ask for a resume (202)."""
        node = node_for(actor=self.actor, may="health.operate", uid=uid)

        def effect() -> tuple[int, dict[str, Any], str]:
            node_resume(actor=self.actor, node=node)
            node.refresh_from_db()
            return 202, dict(NodeSerializer(node).data), f"/api/v1/nodes/{node.uid}"

        return idempotent(request, effect)
