"""API of what a Kubernetes cluster said of a job: events of its pods, its workload and their nodes, once each."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.jobs.api import OfJob
from apps.jobs.kube_selectors import happenings_for
from apps.jobs.models import JobHappening


class HappeningSerializer(serializers.ModelSerializer[JobHappening]):
    """One thing that the cluster said."""

    attempt = serializers.IntegerField(source="attempt.number", read_only=True)
    text = serializers.SerializerMethodField()

    class Meta:
        model = JobHappening
        fields = ["at", "attempt", "code", "text", "is_bad"]

    def get_text(self, row: JobHappening) -> str:
        """A sentence in the request's language."""
        return str(row.text)


class JobHappenings(OfJob):
    """What the cluster said of a job's attempts."""

    serializer_class = HappeningSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Oldest first, at most the newest 500; empty on Slurm."""
        rows: list[Any] = happenings_for(self.job(uid))
        return Response({"results": HappeningSerializer(rows, many=True).data, "next": None, "previous": None})
