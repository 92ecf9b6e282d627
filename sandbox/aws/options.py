"""What can be set about the fake AWS: its region, its speed, and how much it has to give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

ACCOUNT_ID: Final = "123456789012"

#: Pretend keys. They open nothing but this sandbox.
ACCESS_KEY_ID: Final = "AKIAQUARTERDECKSANDB"
SECRET_ACCESS_KEY: Final = "pretend-key-of-the-sandbox"  # noqa: S105

#: The network that exists at every start; fixed, so that a saved configuration survives a restart.
VPC_ID: Final = "vpc-0a0000000000000a1"
SUBNET_ID: Final = "subnet-0a0000000000000a1"
#: In another zone, for what wants two.
SECOND_SUBNET_ID: Final = "subnet-0a0000000000000b1"
SECURITY_GROUP_ID: Final = "sg-0a0000000000000a1"
IMAGE_ID: Final = "ami-0a0000000000000a1"
ARM_IMAGE_ID: Final = "ami-0a0000000000000a2"
VPC_CIDR: Final = "10.0.0.0/16"
SUBNET_CIDR: Final = "10.0.0.0/20"
SECOND_SUBNET_CIDR: Final = "10.0.16.0/20"


@dataclass(frozen=True)
class AwsOptions:
    """Durations are seconds. ``pools`` is the number of machines by instance type that exist to be had."""

    region: str = "us-east-2"
    zone: str = "us-east-2a"
    boot_s: float = 4.0
    join_s: float = 4.0
    shutdown_s: float = 3.0
    terminated_visible_s: float = 900.0
    pool: int = 64
    pools: Mapping[str, int] = field(default_factory=dict)
    p_vcpu_quota: int = 24_576
    g_vcpu_quota: int = 1_536
    standard_vcpu_quota: int = 1_280
    block_vcpu_quota: int = 24_576
    block_payment_s: float = 6.0
    block_clean_s: float = 5.0
    storage_create_s: float = 6.0
    storage_delete_s: float = 3.0
    cluster_create_s: float = 8.0
    cluster_delete_s: float = 4.0
    node_reboot_s: float = 5.0

    def pool_of(self, instance_type: str) -> int:
        """How many machines of a type exist."""
        return self.pools.get(instance_type, self.pool)

    def quota_of(self, instance_type: str) -> int:
        """The on-demand vCPU quota that a type counts against."""
        family = instance_type[:1]
        return {"p": self.p_vcpu_quota, "g": self.g_vcpu_quota}.get(family, self.standard_vcpu_quota)
