"""Service Quotas: EC2's vCPU quotas by code and by list, on demand and for Capacity Blocks."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sandbox.aws.errors import AwsError
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.service import Service

#: Codes and names as AWS gives them; a block's quota counts vCPUs of active blocks and is 0 in a new account.
_BLOCKS: Final = (
    ("L-2C8F52B3", "P4d"),
    ("L-CFF3E941", "P4de"),
    ("L-DA6814F2", "P5"),
    ("L-C45F30BC", "P5e"),
    ("L-4F9BB70B", "P5en"),
    ("L-8B23CEF3", "P6-B200"),
    ("L-9C38E5AB", "P6-B300"),
    ("L-FCF0179E", "P6e-GB200"),
)


class Quotas(Service):
    """Reads only; raising one is a request that a person at AWS answers."""

    name: ClassVar[str] = "service-quotas"
    refusal: ClassVar[str] = "IllegalArgumentException"

    def _all(self) -> list[dict[str, Any]]:
        options = self.options
        rows = [
            ("L-417A185B", "Running On-Demand P instances", options.p_vcpu_quota),
            ("L-DB2E81BA", "Running On-Demand G and VT instances", options.g_vcpu_quota),
            (
                "L-1216C47A",
                "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
                options.standard_vcpu_quota,
            ),
            ("L-C4BD4855", "All P5 Spot Instance Requests", options.p_vcpu_quota),
            ("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", options.p_vcpu_quota),
            ("L-3819A6DF", "All G and VT Spot Instance Requests", options.g_vcpu_quota),
            *(
                (code, f"Concurrent {family} Capacity Blocks per account", options.block_vcpu_quota)
                for code, family in _BLOCKS
            ),
        ]
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

    def list_service_quotas(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All of a service's quotas, in pages."""
        found = self._all() if asked["ServiceCode"] == "ec2" else []
        rows, following = self.page(found, asked)
        return {"Quotas": rows, **({"NextToken": following} if following else {})}

    list_aws_default_service_quotas = list_service_quotas

    def get_service_quota(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One quota. Raises ``AwsError`` NoSuchResourceException."""
        for quota in self._all():
            if (asked["ServiceCode"], asked["QuotaCode"]) == ("ec2", quota["QuotaCode"]):
                return {"Quota": quota}
        raise AwsError("NoSuchResourceException", "The request failed because the specified quota does not exist.")

    get_aws_default_service_quota = get_service_quota
