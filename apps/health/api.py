"""API of findings and the XID catalogue."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext
from django_filters import CharFilter, FilterSet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint, ListEndpoint, idempotent
from apps.core.filters import ChoicesFilter, TextFilter
from apps.health.models import Finding, XidCode
from apps.health.selectors import finding_for, finding_sentence, findings_visible_to, xid_codes
from apps.health.services import finding_acknowledge, finding_resolve
from apps.health.states import FindingPhase, Severity


class FindingSerializer(serializers.ModelSerializer[Finding]):
    """A finding with its evidence."""

    node = serializers.CharField(source="node.name", read_only=True)
    node_uid = serializers.CharField(source="node.uid", read_only=True)
    cluster = serializers.CharField(source="node.cluster.name", read_only=True)
    sentence = serializers.SerializerMethodField()

    class Meta:
        model = Finding
        fields = [
            "uid",
            "title",
            "source",
            "code",
            "severity",
            "suggested_action",
            "node",
            "node_uid",
            "cluster",
            "gpu_index",
            "gpu_uuid",
            "evidence",
            "count",
            "first_seen_at",
            "last_seen_at",
            "phase",
            "phase_since",
            "response",
            "responded_at",
            "resolved_by",
            "sentence",
            "created_at",
        ]

    def get_sentence(self, finding: Finding) -> str:
        """What was found, what was done, what to do."""
        return finding_sentence(finding)


class XidSerializer(serializers.ModelSerializer[XidCode]):
    """One code of the catalogue; NVIDIA's words as they are, ours in the request's language."""

    suggested_action = serializers.SerializerMethodField()

    class Meta:
        model = XidCode
        fields = [
            "code",
            "mnemonic",
            "meaning",
            "architectures",
            "fault_class",
            "nvidia_immediate_action",
            "nvidia_if_it_recurs",
            "severity",
            "suggested_action",
            "source",
        ]

    def get_suggested_action(self, code: XidCode) -> str:
        """What this site does about it."""
        return gettext(code.suggested_action)


class FindingFilter(FilterSet):  # type: ignore[misc]
    """By phase, severity, cluster, node, code."""

    phase = ChoicesFilter("phase", values=[c.value for c in FindingPhase])
    severity = ChoicesFilter("severity", values=[c.value for c in Severity])
    cluster = CharFilter(field_name="node__cluster__name")
    node = CharFilter(field_name="node__name")
    q = TextFilter("title", "node__name", "code")

    class Meta:
        model = Finding
        fields = ["code", "source"]


class EmptySerializer(serializers.Serializer[Any]):
    """Nothing to say."""


class Findings(ListEndpoint):
    """Findings, newest first."""

    rights = {"GET": "health.view"}
    serializer_class = FindingSerializer
    filterset_class = FindingFilter

    def get_rows(self) -> Any:
        """Visible findings."""
        return findings_visible_to(self.actor)


class FindingDetail(Endpoint):
    """One finding."""

    rights = {"GET": "health.view"}
    serializer_class = FindingSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        return Response(FindingSerializer(finding_for(actor=self.actor, may="health.view", uid=uid)).data)


class FindingAnswer(Endpoint):
    """Acknowledge or resolve."""

    rights = {"POST": "health.operate"}
    serializer_class = EmptySerializer
    verb = ""

    def post(self, request: Request, uid: str) -> Response:
        """Answer."""
        finding = finding_for(actor=self.actor, may="health.operate", uid=uid)
        answer = {"acknowledge": finding_acknowledge, "resolve": finding_resolve}[self.verb]

        def effect() -> tuple[int, dict[str, Any], str]:
            answer(actor=self.actor, finding=finding)
            return 200, dict(FindingSerializer(finding).data), ""

        return idempotent(request, effect)


class XidCodes(ListEndpoint):
    """The catalogue of XID codes as this site has it."""

    rights = {"GET": "health.view"}
    serializer_class = XidSerializer
    sorts = {"code": "code"}

    def get_rows(self) -> Any:
        """All codes."""
        return xid_codes()
