"""Service Quotas: the on-demand vCPU quotas of EC2, by code and by list."""

from __future__ import annotations

import json
from typing import Any, Final

from sandbox.aws.errors import AwsError
from sandbox.aws.options import ACCOUNT_ID, AwsOptions

CONTENT_TYPE: Final = "application/x-amz-json-1.1"


def _quotas(options: AwsOptions) -> list[dict[str, Any]]:
    rows = (
        ("L-417A185B", "Running On-Demand P instances", options.p_vcpu_quota),
        ("L-DB2E81BA", "Running On-Demand G and VT instances", options.g_vcpu_quota),
        (
            "L-1216C47A",
            "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
            options.standard_vcpu_quota,
        ),
    )
    return [
        {
            "ServiceCode": "ec2",
            "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "QuotaArn": f"arn:aws:servicequotas:{options.region}:{ACCOUNT_ID}:ec2/{code}",
            "QuotaCode": code,
            "QuotaName": name,
            "Value": float(value),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }
        for code, name, value in rows
    ]


def answer(options: AwsOptions, operation: str, body: bytes) -> bytes:
    """The JSON answer of one call. Raises ``AwsError`` for an unknown service, quota or operation."""
    try:
        asked = json.loads(body or b"{}")
    except ValueError as exc:
        raise AwsError("SerializationException", "The request body is not JSON.") from exc
    if operation in ("ListServiceQuotas", "ListAWSDefaultServiceQuotas"):
        found: dict[str, Any] = {"Quotas": _quotas(options) if asked.get("ServiceCode") == "ec2" else []}
        return json.dumps(found).encode()
    if operation not in ("GetServiceQuota", "GetAWSDefaultServiceQuota"):
        raise AwsError("UnknownOperationException", f"The sandbox has no {operation or 'such call'}.")
    if asked.get("ServiceCode") == "ec2":
        for quota in _quotas(options):
            if quota["QuotaCode"] == asked.get("QuotaCode"):
                return json.dumps({"Quota": quota}).encode()
    raise AwsError("NoSuchResourceException", "The request failed because the specified quota does not exist.")
