"""API of clusters that AWS keeps, their node groups, what AWS tells about them, and requests about nodes."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.capacity.selectors import reservation_for
from apps.clusters.api import ClusterSerializer, EmptySerializer
from apps.clusters.group_models import REMOVED, ClusterStep, NodeGroup
from apps.clusters.group_rules import NODE_TYPES
from apps.clusters.group_services import group_add, group_delete, group_resize
from apps.clusters.managed_rules import SETTINGS
from apps.clusters.managed_selectors import (
    group_for,
    group_price,
    groups_visible_to,
    steps_of,
)
from apps.clusters.managed_services import REACH, cluster_adopt, cluster_create, cluster_retry
from apps.clusters.managed_words import group_sentence, jobs_words
from apps.clusters.models import Cluster
from apps.clusters.selectors import cluster_for, clusters_visible_to
from apps.clusters.states import KINDS_MANAGED, ClusterKind, ClusterPhase, GroupPhase, GroupSource
from apps.connections.selectors import account_for
from apps.core.api import Endpoint, ListEndpoint, etag, expected_version, idempotent
from apps.core.errors import FieldProblem, InvalidInput, NotFound, field_refusal
from apps.core.filters import ChoicesFilter, TextFilter
from apps.core.said import told
from apps.teams.models import Team
from apps.teams.permissions import Actor

MANAGED_CHOICES = [(k.value, k.label) for k in ClusterKind if k in KINDS_MANAGED]
#: What a group's settings hold, by the names that the API gives them.
_GROUP_SETTINGS = ("repairs", "lifecycle_s3", "on_create", "deep_checks", "node_type")


class ClusterStepSerializer(serializers.ModelSerializer[ClusterStep]):
    """One step of making or adopting a cluster."""

    message = serializers.CharField(read_only=True)

    class Meta:
        model = ClusterStep
        fields = ["ordinal", "name", "state", "started_at", "ended_at", "expected_s", "message"]


class GroupSerializer(serializers.ModelSerializer[NodeGroup]):
    """A node group with its sentence, its health and its price."""

    cluster: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="name", read_only=True)
    team: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="slug", read_only=True)
    reservation: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="uid", read_only=True)
    message = serializers.CharField(read_only=True)
    sentence = serializers.SerializerMethodField()
    health = serializers.SerializerMethodField()
    price_source = serializers.SerializerMethodField()

    class Meta:
        model = NodeGroup
        fields = [
            "uid",
            "name",
            "cluster",
            "team",
            "instance_type",
            "nodes",
            "min_nodes",
            "source",
            "reservation",
            "subnet_ids",
            "security_group_ids",
            "image_id",
            "role_arn",
            "queue",
            "settings",
            "usd_per_hour",
            "price_source",
            "is_adopted",
            "phase",
            "phase_since",
            "message",
            "sentence",
            "provider_id",
            "observed_state",
            "observed_nodes",
            "target_nodes",
            "health",
            "observed_at",
            "ended_at",
            "generation",
            "observed_generation",
            "created_at",
            "version",
        ]

    def get_sentence(self, group: NodeGroup) -> str:
        """What is going on."""
        return group_sentence(group)

    def get_health(self, group: NodeGroup) -> list[dict[str, Any]]:
        """AWS's issues: code, message, advice."""
        return [{k: v for k, v in issue.items() if k != REMOVED} for issue in told(group.health)]

    def get_price_source(self, group: NodeGroup) -> str:
        """Whose price ``usd_per_hour`` of one machine is."""
        return str(group_price(group)[1])


class ManagedClusterSerializer(ClusterSerializer):
    """A cluster that AWS keeps, with its steps and groups."""

    steps = serializers.SerializerMethodField()
    groups = serializers.SerializerMethodField()
    jobs = serializers.SerializerMethodField()

    class Meta(ClusterSerializer.Meta):
        fields = [
            *ClusterSerializer.Meta.fields,
            "settings",
            "provider_id",
            "provider_facts",
            "name_at_provider",
            "jobs",
            "steps",
            "groups",
            "generation",
            "observed_generation",
        ]

    def get_steps(self, cluster: Cluster) -> list[dict[str, Any]]:
        """In their order."""
        return [dict(row) for row in ClusterStepSerializer(steps_of(cluster), many=True).data]

    def get_groups(self, cluster: Cluster) -> list[dict[str, Any]]:
        """Those that were not deleted, by name."""
        rows = NodeGroup.objects.filter(cluster=cluster).exclude(phase=GroupPhase.DELETED)
        rows = rows.select_related("cluster", "cluster__account", "team", "reservation", "reservation__account")
        return [dict(row) for row in GroupSerializer(rows, many=True).data]

    def get_jobs(self, cluster: Cluster) -> str:
        """Whether jobs are submitted there from the portal, and if not, how."""
        return jobs_words(cluster)


class GroupCreateSerializer(serializers.Serializer[Any]):
    """A node group; what its kind of cluster has no use for is refused at its field."""

    name = serializers.CharField(max_length=63)
    instance_type = serializers.CharField(max_length=40)
    nodes = serializers.IntegerField(min_value=0, help_text="Of PCS the most; machines come with the queue.")
    min_nodes = serializers.IntegerField(min_value=0, default=0, help_text="PCS: those that always run.")
    source = serializers.ChoiceField(  # type: ignore[assignment]
        choices=GroupSource.choices, default=GroupSource.ON_DEMAND
    )
    reservation = serializers.CharField(required=False, default="", allow_blank=True, help_text="uid of a reservation.")
    team = serializers.CharField(required=False, default="", allow_blank=True, help_text="Slug; empty: shared.")
    subnet_ids = serializers.ListField(child=serializers.CharField(max_length=40), default=list)
    security_group_ids = serializers.ListField(child=serializers.CharField(max_length=40), default=list)
    image_id = serializers.CharField(max_length=40, required=False, default="", allow_blank=True, help_text="PCS.")
    role_arn = serializers.CharField(
        max_length=300, help_text="EKS: node role. PCS: instance profile. HyperPod: execution role."
    )
    queue = serializers.CharField(max_length=40, required=False, default="", allow_blank=True)
    repairs = serializers.BooleanField(required=False, help_text="EKS: node repair.")
    lifecycle_s3 = serializers.CharField(max_length=300, required=False, help_text="HyperPod: s3://sagemaker-…")
    on_create = serializers.CharField(max_length=128, required=False, help_text="HyperPod: the script's name.")
    deep_checks = serializers.BooleanField(required=False, help_text="HyperPod: checks before a node joins.")
    node_type = serializers.ChoiceField(choices=[(t, t) for t in NODE_TYPES], required=False)


class ReachSerializer(serializers.Serializer[Any]):
    """How jobs are submitted where Slurm runs: user, token and folder together, or nothing."""

    api_url = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    user_name = serializers.CharField(max_length=60, required=False, default="", allow_blank=True)
    token_ref = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    jwt_key_ref = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    working_root = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)
    partition = serializers.CharField(max_length=60, required=False, default="", allow_blank=True)
    exporter_url = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)


class ManagedCreateSerializer(ReachSerializer):
    """A cluster for AWS to make; which of the settings belong to a kind is said at each."""

    kind = serializers.ChoiceField(choices=MANAGED_CHOICES)
    name = serializers.CharField(max_length=60)
    account = serializers.CharField(help_text="uid or name of a connected account.")
    version = serializers.CharField(max_length=10, required=False, help_text="PCS: Slurm's. EKS: Kubernetes'.")
    size = serializers.CharField(max_length=10, required=False, help_text="PCS: SMALL, MEDIUM or LARGE.")
    idle_s = serializers.IntegerField(required=False, help_text="PCS: idle machines stop after so long.")
    subnet_ids = serializers.ListField(child=serializers.CharField(max_length=40), required=False)
    security_group_ids = serializers.ListField(child=serializers.CharField(max_length=40), required=False)
    role_arn = serializers.CharField(max_length=300, required=False, help_text="EKS: of the control plane.")
    admin_arns = serializers.ListField(
        child=serializers.CharField(max_length=300), required=False, help_text="EKS: who may do everything."
    )
    addons = serializers.ListField(child=serializers.CharField(max_length=60), required=False, help_text="EKS.")
    recovers = serializers.BooleanField(required=False, help_text="HyperPod: replaces faulty nodes by itself.")
    eks_cluster_arn = serializers.CharField(max_length=300, required=False, help_text="HyperPod on EKS.")
    config = serializers.CharField(max_length=100_000, required=False, help_text="ParallelCluster: YAML.")
    pcluster_api_url = serializers.CharField(max_length=300, required=False, help_text="ParallelCluster's API.")
    groups = GroupCreateSerializer(many=True, default=list)


class ManagedAdoptSerializer(ReachSerializer):
    """A cluster that is in the account already."""

    kind = serializers.ChoiceField(choices=MANAGED_CHOICES)
    name = serializers.CharField(max_length=60, help_text="In the portal.")
    account = serializers.CharField(help_text="uid or name of a connected account.")
    name_at_provider = serializers.CharField(max_length=100, help_text="As AWS lists it.")


class GroupPatchSerializer(serializers.Serializer[Any]):
    """Other counts."""

    nodes = serializers.IntegerField(min_value=0)
    min_nodes = serializers.IntegerField(min_value=0, required=False)


class ManagedFilter(FilterSet):  # type: ignore[misc]
    """By kind, phase, text."""

    kind = ChoicesFilter("kind", values=[value for value, _label in MANAGED_CHOICES])
    phase = ChoicesFilter("phase", values=[c.value for c in ClusterPhase])
    q = TextFilter("name", "name_at_provider")

    class Meta:
        model = Cluster
        fields: list[str] = []


class GroupFilter(FilterSet):  # type: ignore[misc]
    """By phase, text."""

    phase = ChoicesFilter("phase", values=[c.value for c in GroupPhase])
    q = TextFilter("name", "instance_type")

    class Meta:
        model = NodeGroup
        fields: list[str] = []


def _group(actor: Actor, body: dict[str, Any], at: str = "") -> dict[str, Any]:
    """A group as the services take it. Raises InvalidInput at ``at`` for an unknown team or reservation."""
    asked = {k: v for k, v in body.items() if k not in _GROUP_SETTINGS}
    asked["settings"] = {k: body[k] for k in _GROUP_SETTINGS if k in body}
    uid, slug = asked.pop("reservation", ""), asked.pop("team", "")
    asked["reservation"] = asked["team"] = None
    if uid:
        try:
            asked["reservation"] = reservation_for(actor=actor, may="capacity.view", uid=uid)
        except NotFound as error:
            raise field_refusal(f"{at}/reservation", error.detail, "unknown") from None
    if slug:
        asked["team"] = Team.objects.filter(slug=slug).first()
        if asked["team"] is None:
            raise field_refusal(f"{at}/team", _("no team %(slug)s") % {"slug": slug}, "unknown")
    return asked


class ManagedClusters(ListEndpoint):
    """Clusters that AWS keeps."""

    rights = {"GET": "clusters.view", "POST": "clusters.operate"}
    serializer_class = ClusterSerializer
    filterset_class = ManagedFilter

    def get_rows(self) -> Any:
        """Visible ones."""
        return clusters_visible_to(self.actor).filter(kind__in=sorted(KINDS_MANAGED))

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return ManagedCreateSerializer if self.request.method == "POST" else ClusterSerializer

    def post(self, request: Request) -> Response:
        """Have AWS make one (202). It spends money: Idempotency-Key required."""
        actor = self.actor
        body = self.read_body(ManagedCreateSerializer)
        account = account_for(actor=actor, may="connections.view", uid=body["account"])
        kind, wanted = body["kind"], SETTINGS[body["kind"]]
        known = set(ManagedCreateSerializer().fields) - set(ReachSerializer().fields)
        strange = sorted(set(body) & (known - {"kind", "name", "account", "groups"}) - set(wanted))
        if strange:
            text = _("not a setting of this kind")
            problems = [FieldProblem(f"/{name}", "not-here", text) for name in strange]
            raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=problems)
        groups = [_group(actor, dict(g), f"/groups/{i}") for i, g in enumerate(body["groups"])]

        def effect() -> tuple[int, dict[str, Any], str]:
            cluster = cluster_create(
                actor=actor,
                account=account,
                kind=kind,
                name=body["name"],
                settings={name: body[name] for name in wanted if name in body},
                groups=groups,
                **{name: body[name] for name in REACH},
            )
            return 202, dict(ManagedClusterSerializer(cluster).data), f"/api/v1/managed-clusters/{cluster.uid}"

        return idempotent(request, effect, required=True)


class ClusterAdoptions(Endpoint):
    """Clusters that are in an account already."""

    rights = {"POST": "clusters.operate"}
    serializer_class = ManagedAdoptSerializer

    def post(self, request: Request) -> Response:
        """Watch one (202); nothing is made or changed."""
        actor = self.actor
        body = self.read_body(ManagedAdoptSerializer)
        account = account_for(actor=actor, may="connections.view", uid=body.pop("account"))

        def effect() -> tuple[int, dict[str, Any], str]:
            cluster = cluster_adopt(actor=actor, account=account, **body)
            return 202, dict(ManagedClusterSerializer(cluster).data), f"/api/v1/managed-clusters/{cluster.uid}"

        return idempotent(request, effect)


class ManagedClusterDetail(Endpoint):
    """One cluster that AWS keeps, by uid or name; it is corrected and deleted at /clusters."""

    rights = {"GET": "clusters.view"}
    serializer_class = ManagedClusterSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read, with its steps and groups."""
        cluster = cluster_for(actor=self.actor, may="clusters.view", uid=uid)
        if not cluster.is_managed:
            raise NotFound(_("%(name)s is not kept by AWS; read it at /clusters") % {"name": cluster.name})
        return Response(ManagedClusterSerializer(cluster).data, headers={"ETag": etag(cluster)})


class ClusterRetry(Endpoint):
    """Another try of a cluster that failed."""

    rights = {"POST": "clusters.operate"}
    serializer_class = EmptySerializer

    def post(self, request: Request, uid: str) -> Response:
        """Ask for it (202); If-Match required."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        version = expected_version(request)

        def effect() -> tuple[int, dict[str, Any], str]:
            cluster_retry(actor=self.actor, cluster=cluster, expected_version=version)
            return 202, dict(ManagedClusterSerializer(cluster).data), f"/api/v1/managed-clusters/{cluster.uid}"

        return idempotent(request, effect)


class ClusterGroups(ListEndpoint):
    """Node groups of one cluster."""

    rights = {"GET": "clusters.view", "POST": "clusters.operate"}
    serializer_class = GroupSerializer
    filterset_class = GroupFilter

    def get_rows(self) -> Any:
        """Deleted ones included."""
        cluster = cluster_for(actor=self.actor, may="clusters.view", uid=self.kwargs["uid"])
        return groups_visible_to(self.actor).filter(cluster=cluster)

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return GroupCreateSerializer if self.request.method == "POST" else GroupSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Add a group (202). It spends money: Idempotency-Key required."""
        actor = self.actor
        cluster = cluster_for(actor=actor, may="clusters.operate", uid=uid)
        asked = _group(actor, self.read_body(GroupCreateSerializer))

        def effect() -> tuple[int, dict[str, Any], str]:
            group = group_add(actor=actor, cluster=cluster, **asked)
            return 202, dict(GroupSerializer(group).data), f"/api/v1/groups/{group.uid}"

        return idempotent(request, effect, required=True)


class GroupDetail(Endpoint):
    """One node group."""

    rights = {"GET": "clusters.view", "PATCH": "clusters.operate", "DELETE": "clusters.operate"}
    serializer_class = GroupSerializer

    def get_serializer_class(self) -> Any:
        """The body of a PATCH differs from the object."""
        return GroupPatchSerializer if self.request.method == "PATCH" else GroupSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        group = group_for(actor=self.actor, may="clusters.view", uid=uid)
        return Response(GroupSerializer(group).data, headers={"ETag": etag(group)})

    def patch(self, request: Request, uid: str) -> Response:
        """Ask for other counts (202). It may spend money: If-Match required."""
        group = group_for(actor=self.actor, may="clusters.operate", uid=uid)
        version = expected_version(request)
        body = self.read_body(GroupPatchSerializer)
        group_resize(
            actor=self.actor,
            group=group,
            nodes=body["nodes"],
            min_nodes=body.get("min_nodes"),
            expected_version=version,
        )
        return Response(GroupSerializer(group).data, status=202, headers={"ETag": etag(group)})

    def delete(self, request: Request, uid: str) -> Response:
        """Delete it with its machines (202); If-Match required; refused while jobs run on it."""
        group = group_for(actor=self.actor, may="clusters.operate", uid=uid)
        group_delete(actor=self.actor, group=group, expected_version=expected_version(request))
        return Response(GroupSerializer(group).data, status=202)
