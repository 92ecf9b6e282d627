"""API of teams' limits in a cluster's Slurm."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.selectors import cluster_for
from apps.core.api import Endpoint
from apps.jobs.limit_selectors import LimitRow, limit_rows


class SlurmLimitSerializer(serializers.Serializer[LimitRow]):
    """One account: what the team may use as the portal has it, and what Slurm last told; null is no limit."""

    account = serializers.CharField(source="account.account")
    team = serializers.CharField(source="account.team.slug")
    gpus = serializers.IntegerField(source="allowance.gpus", allow_null=True)
    left_gpu_min = serializers.IntegerField(source="allowance.left_gpu_min", allow_null=True)
    observed_gpus = serializers.IntegerField(source="seen.observed_gpus", allow_null=True, default=None)
    observed_gpu_min = serializers.IntegerField(source="seen.observed_gpu_min", allow_null=True, default=None)
    used_gpu_min = serializers.IntegerField(source="seen.used_gpu_min", allow_null=True, default=None)
    observed_at = serializers.DateTimeField(source="seen.observed_at", allow_null=True, default=None)
    drift_since = serializers.DateTimeField(source="seen.drift_since", allow_null=True, default=None)
    message = serializers.CharField(source="seen.message", default="")


class SlurmLimits(Endpoint):
    """The limits of every account of a team on one cluster, here and there."""

    rights = {"GET": "clusters.operate"}
    serializer_class = SlurmLimitSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        rows: Any = limit_rows(cluster)
        return Response({"mode": cluster.limits_mode, "limits": SlurmLimitSerializer(rows, many=True).data})
