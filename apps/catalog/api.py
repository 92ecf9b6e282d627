"""API of the catalog."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.catalog.selectors import all_types
from apps.core.api import Endpoint


class InstanceTypeSerializer(serializers.Serializer[Any]):
    """Facts of one instance type; null means unknown or not applicable."""

    name = serializers.CharField()
    family = serializers.CharField()
    gpu = serializers.CharField()
    gpu_type = serializers.CharField(help_text="The word jobs use, e.g. h100.")
    gpus = serializers.IntegerField()
    gpu_memory_mib = serializers.IntegerField(allow_null=True)
    gpu_memory_tb_s = serializers.DecimalField(max_digits=8, decimal_places=3, allow_null=True)
    bf16_tflops = serializers.IntegerField(allow_null=True, help_text="Dense, per GPU.")
    fp8_tflops = serializers.IntegerField(allow_null=True, help_text="Dense, per GPU.")
    nvlink_gb_s = serializers.IntegerField(allow_null=True)
    vcpus = serializers.IntegerField()
    memory_gib = serializers.IntegerField()
    nvme_count = serializers.IntegerField()
    nvme_gb = serializers.IntegerField()
    efa_generation = serializers.IntegerField(allow_null=True)
    efa_interfaces = serializers.IntegerField()
    efa_gbps = serializers.IntegerField()
    network_cards = serializers.IntegerField()
    architecture = serializers.CharField()
    usd_per_hour = serializers.DecimalField(max_digits=12, decimal_places=6, allow_null=True)
    usd_per_gpu_hour = serializers.DecimalField(max_digits=12, decimal_places=6, allow_null=True)
    price_date = serializers.CharField()
    price_source = serializers.CharField()
    price_region = serializers.CharField()
    price_same_in = serializers.ListField(child=serializers.CharField())
    note = serializers.CharField()
    sources = serializers.CharField()


class InstanceTypes(Endpoint):
    """All instance types the portal knows."""

    rights = {"GET": "catalog.view"}
    serializer_class = InstanceTypeSerializer

    def get(self, request: Request) -> Response:
        """The whole list: it is short."""
        rows = [{**asdict(t), "usd_per_gpu_hour": t.usd_per_gpu_hour} for t in all_types()]
        return Response({"results": InstanceTypeSerializer(rows, many=True).data, "next": None, "previous": None})
