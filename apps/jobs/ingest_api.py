"""API where runners and training programs post what they have to say; each token opens one attempt and nothing else."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import clock
from apps.core.api import Endpoint
from apps.core.pages import PUBLIC
from apps.jobs.ingest import IngestMalformed, attempt_for_token, events_take
from apps.jobs.models import Attempt
from apps.jobs.progress_ingest import status_take


class IngestSerializer(serializers.Serializer[Any]):
    """A runner's batch."""

    runner = serializers.DictField()
    events = serializers.ListField(child=serializers.DictField())


class ReceiptSerializer(serializers.Serializer[Any]):
    """How far the runner's events are stored."""

    acknowledged_seq = serializers.IntegerField()
    server_time = serializers.CharField()
    next_post_s = serializers.FloatField()
    rejected = serializers.ListField(child=serializers.IntegerField())


def attempt_of(request: Request, uid: str) -> Attempt:
    """The attempt that the bearer of this request may write to. Raises IngestDenied, IngestExpired."""
    kind, _sep, bearer = request.headers.get("Authorization", "").partition(" ")
    return attempt_for_token(uid, bearer.strip() if kind.lower() == "bearer" else "")


class Ingest(Endpoint):
    """Where runners post; the token in the Authorization header belongs to one attempt and opens nothing else."""

    rights = {"POST": PUBLIC}
    authentication_classes: list[Any] = []
    throttle_classes: list[Any] = []
    serializer_class = IngestSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Store a batch."""
        attempt = attempt_of(request, uid)
        data = request.data
        if not isinstance(data, dict) or not isinstance(data.get("runner"), dict):
            raise IngestMalformed("the body must be {runner: {…}, events: […]}")
        if not isinstance(data.get("events"), list):
            raise IngestMalformed("events must be a list")
        receipt = events_take(attempt, data["runner"], data["events"])
        body = {
            "acknowledged_seq": receipt.acknowledged_seq,
            "server_time": clock.iso(clock.now()),
            "next_post_s": receipt.next_post_s,
            "rejected": [seq for seq, _why in receipt.rejected],
        }
        return Response(body)


class StatusSerializer(serializers.Serializer[Any]):
    """A status post in the shape of Kubeflow Trainer's."""

    trainerStatus = serializers.DictField()


class Status(Endpoint):
    """Where a training program posts its progress itself, as it would to Kubeflow's Trainer; the runner's token."""

    rights = {"POST": PUBLIC}
    authentication_classes: list[Any] = []
    throttle_classes: list[Any] = []
    serializer_class = StatusSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Store step, metrics, percentage and time left; what is not given stays."""
        attempt = attempt_of(request, uid)
        told = status_take(attempt, request.data)
        return Response({"trainerStatus": told})
