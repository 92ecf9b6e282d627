"""What other services ask about moto's network: subnets, and security groups that let EFA through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandbox.aws.seed import backend_of


def subnet_of(region: str, subnet_id: str) -> Any | None:
    """moto's subnet, or None."""
    for subnets in backend_of(region).subnets.values():
        if subnet_id in subnets:
            return subnets[subnet_id]
    return None


def efa_group_problem(region: str, group_ids: Sequence[str]) -> str:
    """Why these groups do not let EFA traffic through between their members, "" when one does."""
    backend = backend_of(region)
    groups = {group_id: group for of_vpc in backend.groups.values() for group_id, group in of_vpc.items()}
    if not group_ids:
        return "no security group was given"
    for group_id in group_ids:
        group = groups.get(group_id)
        if group is None:
            return f"the security group '{group_id}' does not exist"
        for way, rules in (("inbound", group.ingress_rules), ("outbound", group.egress_rules)):
            if not any(
                str(rule.ip_protocol) == "-1" and (rule.source_group or {}).get("GroupId") == group_id for rule in rules
            ):
                return f"{group_id} does not allow all {way} traffic with itself"
    return ""
