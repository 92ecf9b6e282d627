"""API of orphans."""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.capacity.orphan_models import Orphan
from apps.capacity.orphan_selectors import orphan_for, orphan_sentence, orphans_visible_to
from apps.capacity.orphan_services import orphan_keep, orphan_release, orphan_remove
from apps.capacity.orphan_views import OrphanFilter
from apps.core.api import Endpoint, ListEndpoint
from apps.core.errors import field_refusal


class OrphanSerializer(serializers.ModelSerializer[Orphan]):
    """Something with our tag that belongs to nothing here, and what it costs an hour."""

    account = serializers.CharField(source="account.name", read_only=True)
    price_source = serializers.CharField(read_only=True)
    message = serializers.CharField(read_only=True)
    sentence = serializers.SerializerMethodField()

    class Meta:
        model = Orphan
        fields = [
            "uid",
            "account",
            "kind",
            "provider_id",
            "tagged_uid",
            "has_row",
            "state",
            "instance_type",
            "usd_per_hour",
            "price_source",
            "phase",
            "sentence",
            "message",
            "kept_reason",
            "kept_by",
            "removal_asked_by",
            "removal_asked_at",
            "provider_created_at",
            "first_seen_at",
            "last_seen_at",
        ]

    def get_sentence(self, orphan: Orphan) -> str:
        """The state sentence."""
        return orphan_sentence(orphan)


class OrphanDecisionSerializer(serializers.Serializer[Any]):
    """Why it is kept, or AWS's id of what is removed, as a confirmation."""

    provider_id = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    reason = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)


class Orphans(ListEndpoint):
    """What nobody here owns, dearest first."""

    rights = {"GET": "capacity.operate"}
    serializer_class = OrphanSerializer
    filterset_class = OrphanFilter

    def get_rows(self) -> Any:
        """For operators."""
        return orphans_visible_to(self.actor)


class OrphanDecision(Endpoint):
    """A person's word about an orphan: remove, keep (with a reason) or release."""

    rights = {"POST": "capacity.operate"}
    serializer_class = OrphanDecisionSerializer
    verb: ClassVar[str] = "remove"

    def post(self, request: Request, uid: str) -> Response:
        """Say it (202)."""
        orphan = orphan_for(actor=self.actor, may="capacity.operate", uid=uid)
        body = self.read_body(OrphanDecisionSerializer)
        if self.verb == "keep":
            orphan_keep(actor=self.actor, orphan=orphan, reason=body["reason"])
        elif self.verb == "release":
            orphan_release(actor=self.actor, orphan=orphan)
        elif body["provider_id"] != orphan.provider_id:
            raise field_refusal("/provider_id", _("Type %(name)s to confirm.") % {"name": orphan.provider_id})
        else:
            orphan_remove(actor=self.actor, orphan=orphan)
        return Response(OrphanSerializer(orphan).data, status=202)
