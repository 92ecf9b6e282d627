"""API of clusters' Kubernetes: settings, namespaces and shares of teams, Kueue's queues and their drift."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters import kube_services as services
from apps.clusters.api import ClusterSerializer
from apps.clusters.kube_models import KubernetesSettings, TeamNamespace, TeamShare
from apps.clusters.kube_selectors import kubernetes_of, namespace_for, namespaces_of, share_for, shares_of
from apps.clusters.kube_states import Allowance, KubeAuth, KubeScheduler, WorkloadKind
from apps.clusters.models import Cluster
from apps.clusters.selectors import cluster_for
from apps.clusters.states import LimitsMode
from apps.connections.selectors import accounts_visible_to
from apps.core.api import Endpoint, ListEndpoint, etag, expected_version, idempotent
from apps.core.errors import NotFound, field_refusal
from apps.teams.models import Team

KIND_CHOICES = [(k.value, k.label) for k in WorkloadKind if k != WorkloadKind.MANIFEST]


def _team(slug: str) -> Team:
    team = Team.objects.filter(slug=slug).first()
    if team is None:
        raise field_refusal("/team", _("no team %(name)s") % {"name": slug}, "unknown")
    return team


class MountRowSerializer(serializers.Serializer[Any]):
    """A PersistentVolumeClaim in every pod."""

    claim = serializers.CharField(max_length=63)
    path = serializers.CharField(max_length=200)
    sub_path = serializers.CharField(max_length=200, required=False, allow_blank=True)
    read_only = serializers.BooleanField(required=False)  # type: ignore[assignment]


class KubernetesSettingsSerializer(serializers.ModelSerializer[KubernetesSettings]):
    """How jobs reach a cluster's Kubernetes, what was seen of it, and what differs from what is wanted of Kueue."""

    cluster = serializers.CharField(source="cluster.uid", read_only=True)
    limits_mode = serializers.ChoiceField(
        source="cluster.limits_mode", choices=LimitsMode.choices, read_only=True, help_text="Teams' shares in Kueue."
    )
    exporter_url = serializers.CharField(source="cluster.exporter_url", read_only=True)
    outside_team = serializers.CharField(source="cluster.outside_team.slug", read_only=True, default=None)
    queues_message = serializers.CharField(read_only=True)
    drift = serializers.SerializerMethodField(help_text="What differs, a sentence each.")

    class Meta:
        model = KubernetesSettings
        fields = [
            "uid",
            "cluster",
            *services.SETTINGS,
            "limits_mode",
            "exporter_url",
            "outside_team",
            "observed",
            "observed_queues",
            "queues_read_at",
            "queues_written_at",
            "queues_message",
            "drift",
            "drift_since",
            "version",
        ]

    def get_drift(self, row: KubernetesSettings) -> list[str]:
        """In the reader's language."""
        return [str(place["text"]) for place in row.drift]


class KubernetesPatchSerializer(serializers.Serializer[Any]):
    """What may be changed; what is left out stays."""

    auth = serializers.ChoiceField(choices=KubeAuth.choices, required=False)
    kubeconfig_ref = serializers.CharField(max_length=200, required=False, allow_blank=True)
    context = serializers.CharField(max_length=120, required=False, allow_blank=True)  # type: ignore[assignment]
    scheduler = serializers.ChoiceField(choices=KubeScheduler.choices, required=False)
    namespace_prefix = serializers.CharField(max_length=30, required=False, allow_blank=True)
    default_kind = serializers.ChoiceField(choices=KIND_CHOICES, required=False, allow_blank=True)
    default_image = serializers.CharField(max_length=500, required=False, allow_blank=True)
    mounts = MountRowSerializer(many=True, required=False)
    service_account = serializers.CharField(max_length=63, required=False, allow_blank=True)
    pull_secrets = serializers.ListField(child=serializers.CharField(max_length=63), required=False, max_length=20)
    pod_priority_class = serializers.CharField(max_length=63, required=False, allow_blank=True)
    priority_classes = serializers.ListField(child=serializers.CharField(max_length=63), required=False, max_length=50)
    topology_level = serializers.CharField(max_length=120, required=False, allow_blank=True)
    cohort = serializers.CharField(max_length=63, required=False, allow_blank=True)
    allowances = serializers.MultipleChoiceField(choices=Allowance.choices, required=False)
    host_paths = serializers.ListField(child=serializers.CharField(max_length=300), required=False, max_length=50)

    def validate_allowances(self, value: Any) -> list[str]:
        """As a list, in a set's place."""
        return sorted(value)

    def validate_mounts(self, value: Any) -> list[dict[str, Any]]:
        """As plain rows."""
        return [dict(row) for row in value]


class KubernetesSettingsPatchSerializer(KubernetesPatchSerializer):
    """The same with what belongs to the cluster itself."""

    limits_mode = serializers.ChoiceField(choices=LimitsMode.choices, required=False)
    exporter_url = serializers.CharField(max_length=300, required=False, allow_blank=True)
    responds_to_findings = serializers.BooleanField(required=False)
    outside_team = serializers.CharField(required=False, allow_blank=True, help_text="A team's slug; empty: none.")


class KubernetesConnectSerializer(KubernetesPatchSerializer):
    """A Kubernetes that no AWS service keeps."""

    name = serializers.CharField(max_length=60)
    account = serializers.CharField(required=False, default="", allow_blank=True, help_text="uid of a cloud account.")
    exporter_url = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)
    auth = serializers.ChoiceField(choices=KubeAuth.choices, default=KubeAuth.KUBECONFIG)


class KubernetesClusters(Endpoint):
    """Connect a cluster by a kubeconfig or from within it."""

    rights = {"POST": "clusters.operate"}
    serializer_class = KubernetesConnectSerializer

    def post(self, request: Request) -> Response:
        """Record it and ask the worker to connect."""
        actor = self.actor
        body = self.read_body(KubernetesConnectSerializer)
        uid = body.pop("account")
        account = accounts_visible_to(actor).filter(uid=uid).first() if uid else None
        if uid and account is None:
            raise field_refusal("/account", _("no account %(uid)s") % {"uid": uid}, "unknown")

        def effect() -> tuple[int, dict[str, Any], str]:
            cluster = services.kubernetes_connect(actor=actor, account=account, **body)
            return 201, dict(ClusterSerializer(cluster).data), f"/api/v1/clusters/{cluster.uid}"

        return idempotent(request, effect)


def _cluster(endpoint: Endpoint | ListEndpoint, uid: str) -> Cluster:
    cluster = cluster_for(actor=endpoint.actor, may="clusters.operate", uid=uid)
    if not cluster.is_kubernetes:
        raise NotFound(_("%(name)s runs no Kubernetes") % {"name": cluster.name})
    return cluster


class KubernetesDetail(Endpoint):
    """How jobs reach one cluster's Kubernetes."""

    rights = {"GET": "clusters.operate", "PUT": "clusters.operate", "PATCH": "clusters.operate"}
    serializer_class = KubernetesSettingsSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read; 404 while the cluster is only watched."""
        settings = kubernetes_of(_cluster(self, uid))
        if settings is None:
            raise NotFound(_("no job reaches this cluster's Kubernetes: PUT says how"))
        return Response(KubernetesSettingsSerializer(settings).data, headers={"ETag": etag(settings)})

    def put(self, request: Request, uid: str) -> Response:
        """Let jobs in for the first time."""
        cluster = _cluster(self, uid)
        if kubernetes_of(cluster) is not None:
            return self.patch(request, uid)
        return self._write(cluster, None)

    def patch(self, request: Request, uid: str) -> Response:
        """Change; If-Match required."""
        return self._write(_cluster(self, uid), expected_version(request))

    def _write(self, cluster: Cluster, version: int | None) -> Response:
        body = self.read_body(KubernetesSettingsPatchSerializer)
        if "outside_team" in body:
            body["outside_team"] = _team(body["outside_team"]) if body["outside_team"] else None
        if version is not None and kubernetes_of(cluster) is None:
            raise NotFound(_("no job reaches this cluster's Kubernetes: PUT says how"))
        services.kubernetes_settings_put(actor=self.actor, cluster=cluster, expected_version=version, **body)
        settings = KubernetesSettings.objects.select_related("cluster__outside_team").get(cluster=cluster)
        return Response(KubernetesSettingsSerializer(settings).data, headers={"ETag": etag(settings)})


class KubernetesCompare(Endpoint):
    """Compare Kueue with what is wanted, now."""

    rights = {"POST": "clusters.operate"}
    serializer_class = KubernetesSettingsSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Ask for it (202); where the cluster says so, what differs is put right."""
        cluster = _cluster(self, uid)

        def effect() -> tuple[int, dict[str, Any], str]:
            services.queues_compare(actor=self.actor, cluster=cluster)
            return 202, {}, f"/api/v1/kubernetes-clusters/{cluster.uid}"

        return idempotent(request, effect)


class TeamNamespaceSerializer(serializers.ModelSerializer[TeamNamespace]):
    """Where a team's jobs run; the same team again corrects the row."""

    team: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="slug", queryset=Team.objects.all()
    )

    class Meta:
        model = TeamNamespace
        fields = ["uid", "team", "namespace", "queue", "weight", "created_at", "version"]
        read_only_fields = ["uid", "created_at", "version"]
        validators: list[Any] = []


class TeamNamespaces(ListEndpoint):
    """Where teams' jobs run on one cluster."""

    rights = {"GET": "clusters.operate", "POST": "clusters.operate"}
    serializer_class = TeamNamespaceSerializer

    def get_rows(self) -> Any:
        """By namespace."""
        return namespaces_of(_cluster(self, self.kwargs["uid"]))

    def post(self, request: Request, uid: str) -> Response:
        """Say where one's run."""
        actor, cluster = self.actor, _cluster(self, uid)
        body = self.read_body(TeamNamespaceSerializer)

        def effect() -> tuple[int, dict[str, Any], str]:
            row = services.team_namespace_put(actor=actor, cluster=cluster, **body)
            return 201, dict(TeamNamespaceSerializer(row).data), f"/api/v1/team-namespaces/{row.uid}"

        return idempotent(request, effect)


class TeamNamespaceDetail(Endpoint):
    """One team's namespace."""

    rights = {"GET": "clusters.operate", "DELETE": "clusters.operate"}
    serializer_class = TeamNamespaceSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        return Response(TeamNamespaceSerializer(namespace_for(actor=self.actor, may="clusters.operate", uid=uid)).data)

    def delete(self, request: Request, uid: str) -> Response:
        """Forget it; the namespace itself stays."""
        row = namespace_for(actor=self.actor, may="clusters.operate", uid=uid)
        services.team_namespace_remove(actor=self.actor, row=row)
        return Response(status=204)


class TeamShareSerializer(serializers.ModelSerializer[TeamShare]):
    """A team's GPUs of one type; the same team and type again corrects the row."""

    team: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="slug", queryset=Team.objects.all()
    )

    class Meta:
        model = TeamShare
        fields = [
            "uid",
            "team",
            "instance_type",
            "gpus",
            "borrowing_gpus",
            "lending_gpus",
            "created_at",
            "version",
        ]
        read_only_fields = ["uid", "created_at", "version"]
        validators: list[Any] = []


class TeamShares(ListEndpoint):
    """What teams have of one cluster."""

    rights = {"GET": "clusters.operate", "POST": "clusters.operate"}
    serializer_class = TeamShareSerializer

    def get_rows(self) -> Any:
        """By team and type."""
        return shares_of(_cluster(self, self.kwargs["uid"]))

    def post(self, request: Request, uid: str) -> Response:
        """Give a team some."""
        actor, cluster = self.actor, _cluster(self, uid)
        body = self.read_body(TeamShareSerializer)
        body.setdefault("gpus", 0)

        def effect() -> tuple[int, dict[str, Any], str]:
            row = services.team_share_put(actor=actor, cluster=cluster, **body)
            return 201, dict(TeamShareSerializer(row).data), f"/api/v1/team-shares/{row.uid}"

        return idempotent(request, effect)


class TeamShareDetail(Endpoint):
    """One team's share of one type."""

    rights = {"GET": "clusters.operate", "DELETE": "clusters.operate"}
    serializer_class = TeamShareSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        return Response(TeamShareSerializer(share_for(actor=self.actor, may="clusters.operate", uid=uid)).data)

    def delete(self, request: Request, uid: str) -> Response:
        """Take it away."""
        row = share_for(actor=self.actor, may="clusters.operate", uid=uid)
        services.team_share_remove(actor=self.actor, row=row)
        return Response(status=204)
