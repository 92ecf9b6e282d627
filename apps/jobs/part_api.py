"""API of a heterogeneous job's parts."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint
from apps.jobs.part_selectors import parts_shown
from apps.jobs.selectors import job_for


class PartSerializer(serializers.Serializer[Any]):
    """One part as it was asked for and as the scheduler last showed it."""

    offset = serializers.IntegerField(help_text="0 is the part in which the script runs.")
    name = serializers.CharField()
    partition = serializers.CharField()
    nodes = serializers.IntegerField()
    gpus = serializers.IntegerField(help_text="On all its nodes.")
    gpu_type = serializers.CharField()
    time_limit_min = serializers.IntegerField()
    slurm_options = serializers.ListField(source="options", child=serializers.CharField())
    attempt = serializers.IntegerField(help_text="The newest that had it; 0 before the first is in the scheduler.")
    scheduler_id = serializers.CharField()
    state = serializers.CharField(help_text="Slurm's word; empty while it is not in the scheduler.")
    reason = serializers.CharField()
    node_names = serializers.ListField(child=serializers.CharField())
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    usd = serializers.DecimalField(max_digits=20, decimal_places=6, help_text="What it came to so far.")


class JobParts(Endpoint):
    """The parts of a heterogeneous job."""

    rights = {"GET": "jobs.view"}
    serializer_class = PartSerializer

    def get(self, request: Request, uid: str) -> Response:
        """In order, all of them; empty for an ordinary job."""
        job = job_for(actor=self.actor, may="jobs.view", uid=uid)
        body = {"results": PartSerializer(parts_shown(job), many=True).data, "next": None, "previous": None}
        return Response(body)
