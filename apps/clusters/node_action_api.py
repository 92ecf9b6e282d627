"""API of requests about HyperPod's nodes, and of the events that AWS keeps about a cluster."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.group_models import ClusterEvent, NodeAction
from apps.clusters.group_services import nodes_ask
from apps.clusters.managed_selectors import actions_of, happenings_of
from apps.clusters.selectors import cluster_for, nodes_visible_to
from apps.clusters.states import NodeVerb
from apps.core.api import ListEndpoint, idempotent
from apps.core.errors import field_refusal


class NodeActionSerializer(serializers.ModelSerializer[NodeAction]):
    """A request about one node and AWS's answer."""

    node = serializers.CharField(source="node.name", read_only=True)
    message = serializers.CharField(read_only=True)

    class Meta:
        model = NodeAction
        fields = [
            "uid",
            "node",
            "provider_id",
            "verb",
            "reason",
            "asked_by",
            "phase",
            "message",
            "attempted_at",
            "ended_at",
            "created_at",
        ]


class NodeActionCreateSerializer(serializers.Serializer[Any]):
    """What to ask of HyperPod, about which nodes, and why."""

    verb = serializers.ChoiceField(choices=NodeVerb.choices)
    nodes = serializers.ListField(
        child=serializers.CharField(max_length=120), allow_empty=False, max_length=2000, help_text="uids or names."
    )
    reason = serializers.CharField(max_length=300)


class ProviderEventSerializer(serializers.ModelSerializer[ClusterEvent]):
    """An event that AWS keeps about a cluster."""

    class Meta:
        model = ClusterEvent
        fields = ["provider_id", "at", "level", "resource", "text", "reason", "group_name", "node_id"]


class NodeActions(ListEndpoint):
    """Requests about the nodes of one HyperPod cluster."""

    rights = {"GET": "clusters.view", "POST": "clusters.operate"}
    serializer_class = NodeActionSerializer

    def get_rows(self) -> Any:
        """The newest first."""
        return actions_of(cluster_for(actor=self.actor, may="clusters.view", uid=self.kwargs["uid"]))

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return NodeActionCreateSerializer if self.request.method == "POST" else NodeActionSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Ask for replacements or reboots (202), any number: the worker sends 25 a call. Idempotency-Key required."""
        actor = self.actor
        cluster = cluster_for(actor=actor, may="clusters.operate", uid=uid)
        body = self.read_body(NodeActionCreateSerializer)
        named = list(dict.fromkeys(body["nodes"]))
        rows = nodes_visible_to(actor).filter(cluster=cluster)
        found = list(rows.filter(Q(uid__in=named) | Q(name__in=named)))
        known = {n.uid for n in found} | {n.name for n in found}
        if missing := [name for name in named if name not in known]:
            text = _("no such node in this cluster: %(names)s") % {"names": ", ".join(missing[:5])}
            raise field_refusal("/nodes", text, "unknown")

        def effect() -> tuple[int, dict[str, Any], str]:
            made = nodes_ask(actor=actor, cluster=cluster, nodes=found, verb=body["verb"], reason=body["reason"])
            data = {"actions": [dict(row) for row in NodeActionSerializer(made, many=True).data]}
            return 202, data, f"/api/v1/clusters/{cluster.uid}/node-actions"

        return idempotent(request, effect, required=True)


class ProviderEvents(ListEndpoint):
    """What AWS tells of one cluster; HyperPod with continuous provisioning keeps such events."""

    rights = {"GET": "clusters.view"}
    serializer_class = ProviderEventSerializer
    sorts = {"-at": "-at"}

    def get_rows(self) -> Any:
        """The newest first."""
        return happenings_of(cluster_for(actor=self.actor, may="clusters.view", uid=self.kwargs["uid"]))
