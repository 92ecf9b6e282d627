"""Read-only checks before a launch: what would make it fail or, worse, make it succeed and hang."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from worker.providers import values as v
from worker.providers.aws import convert
from worker.providers.aws.clients import Clients
from worker.providers.aws.errors import DRY_RUN_PASSED, code_of
from worker.providers.aws.layouts import addresses_per_node
from worker.providers.errors import AccessDenied, NotFound, ProviderError, Unsupported

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import IpPermissionTypeDef, SubnetTypeDef

#: On-demand vCPU quotas by the family's letter: name, and the code as a hint that is checked against the name.
QUOTAS: Final = {
    "p": ("Running On-Demand P instances", "L-417A185B", ("p*",)),
    "g": ("Running On-Demand G and VT instances", "L-DB2E81BA", ("g*", "vt*")),
}
_STANDARD_QUOTA: Final = (
    "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "L-1216C47A",
    ("a*", "c*", "d*", "h*", "i*", "m*", "r*", "t*", "z*"),
)
_QUOTA_PAGES: Final = 10

Call = Callable[[str], AbstractContextManager[None]]


class Preflight:
    """Runs the checks of one plan. Each becomes a ``Check``; none raises, an unmade check counts as failed."""

    def __init__(self, clients: Clients, call: Call) -> None:
        self._clients = clients
        self._call = call

    def run(self, plan: v.LaunchPlan) -> tuple[v.Check, ...]:
        """All checks, in the order in which a person should mend them."""
        subnet: SubnetTypeDef | None = None
        try:
            subnet = self._subnet(plan.subnet_id)
            found = v.Check("subnet", True, f"{plan.subnet_id} is in zone {subnet.get('AvailabilityZoneId', '?')}.")
        except ProviderError as exc:
            found = v.Check("subnet", False, f"Subnet {plan.subnet_id} cannot be read: {exc}")
        checks = [found]
        steps: list[tuple[str, Callable[[], tuple[bool, str]]]] = [
            ("instance-type-offered", lambda: self._offered(plan, subnet)),
            ("interfaces", lambda: self._interfaces(plan)),
            ("subnet-addresses", lambda: self._addresses(plan, subnet)),
            ("security-groups", lambda: self._security_groups(plan)),
            ("vcpu-quota", lambda: self._quota(plan)),
            ("permission-to-launch", lambda: self._dry_run(plan)),
        ]
        for name, step in steps:
            try:
                passed, detail = step()
            except ProviderError as exc:
                passed, detail = False, f"Could not be checked: {exc}"
            checks.append(v.Check(name, passed, detail))
        return tuple(checks)

    def _subnet(self, subnet_id: str) -> SubnetTypeDef:
        with self._call("DescribeSubnets"):
            answer = self._clients.ec2.describe_subnets(SubnetIds=[subnet_id])
        subnets = convert.part(answer, "Subnets", "DescribeSubnets")
        if not subnets:
            raise NotFound(f"DescribeSubnets: {subnet_id} is not listed", source="aws", code="InvalidSubnetID.NotFound")
        subnet: SubnetTypeDef = subnets[0]
        return subnet

    def _offered(self, plan: v.LaunchPlan, subnet: SubnetTypeDef | None) -> tuple[bool, str]:
        if subnet is None:
            return False, "Cannot be told while the subnet, and so its zone, is unknown."
        with self._call("DescribeInstanceTypeOfferings"):
            answer = self._clients.ec2.describe_instance_type_offerings(
                LocationType="availability-zone-id", Filters=[{"Name": "instance-type", "Values": [plan.instance_type]}]
            )
        offerings = convert.part(answer, "InstanceTypeOfferings", "DescribeInstanceTypeOfferings")
        zones = sorted(str(offering.get("Location", "")) for offering in offerings)
        here = subnet.get("AvailabilityZoneId", "")
        if here in zones:
            return True, f"{plan.instance_type} is offered in {here}."
        elsewhere = f"choose a subnet in {', '.join(zones)}" if zones else "no zone of this region offers it"
        return False, f"{plan.instance_type} is not offered in {here}; {elsewhere}."

    def _interfaces(self, plan: v.LaunchPlan) -> tuple[bool, str]:
        with self._call("DescribeInstanceTypes"):
            answer = self._clients.ec2.describe_instance_types(InstanceTypes=[plan.instance_type])  # type: ignore[list-item]
        listed = convert.part(answer, "InstanceTypes", "DescribeInstanceTypes")
        if not listed:
            return False, f"AWS does not describe {plan.instance_type} in this region."
        problems = layout_problems(plan.interfaces, listed[0])
        vcpus = int(listed[0].get("VCpuInfo", {}).get("DefaultVCpus", 0))
        if vcpus != plan.vcpus_per_node:
            problems.append(f"AWS says {vcpus} vCPUs a node, the plan says {plan.vcpus_per_node}")
        if problems:
            return False, f"The plan does not fit {plan.instance_type}: {'; '.join(problems)}."
        efas = sum(1 for interface in plan.interfaces if interface.kind != "interface")
        return True, f"{len(plan.interfaces)} interfaces a node, {efas} of them EFA, fit {plan.instance_type}."

    def _addresses(self, plan: v.LaunchPlan, subnet: SubnetTypeDef | None) -> tuple[bool, str]:
        if subnet is None:
            return False, "Cannot be told while the subnet is unknown."
        each = addresses_per_node(plan.interfaces)
        needed, free = plan.nodes * each, int(subnet.get("AvailableIpAddressCount", 0))
        sentence = f"{plan.subnet_id} has {free:,} free addresses, {plan.nodes} nodes × {each} need {needed:,}"
        if free >= needed:
            return True, f"{sentence}."
        return False, f"{sentence}; use a larger subnet or fewer nodes."

    def _security_groups(self, plan: v.LaunchPlan) -> tuple[bool, str]:
        if not plan.security_group_ids:
            return False, "No security group is given; EFA needs one that allows all traffic to and from itself."
        with self._call("DescribeSecurityGroups"):
            answer = self._clients.ec2.describe_security_groups(GroupIds=list(plan.security_group_ids))
        missing: list[str] = []
        for group in convert.part(answer, "SecurityGroups", "DescribeSecurityGroups"):
            group_id = group.get("GroupId", "")
            for way, key in (("inbound", "IpPermissions"), ("outbound", "IpPermissionsEgress")):
                if not any(_allows_itself(rule, group_id) for rule in group.get(key, [])):
                    missing.append(f"{group_id} lacks an {way} rule for all traffic with itself")
        if missing:
            return False, (
                f"{'; '.join(missing)}. EFA traffic is not IP, so a rule for 0.0.0.0/0 does not let it through: "
                "add a rule with protocol -1 and the group itself as the other side."
            )
        return True, f"{', '.join(plan.security_group_ids)} allow all traffic to and from themselves."

    def _quota(self, plan: v.LaunchPlan) -> tuple[bool, str]:
        name, code, families = QUOTAS.get(plan.instance_type[:1], _STANDARD_QUOTA)
        needed = plan.nodes * plan.vcpus_per_node
        try:
            limit = self._quota_value(name, code)
        except (AccessDenied, NotFound, Unsupported) as exc:
            return True, f"The quota “{name}” is not readable here ({exc}); the launch needs {needed:,} vCPUs of it."
        used = self._vcpus_in_use(families)
        sentence = f"“{name}” is {limit:,.0f} vCPUs, {used:,} in use, {plan.nodes} nodes need {needed:,}"
        if used + needed <= limit:
            return True, f"{sentence}."
        return False, f"{sentence}; ask AWS for at least {used + needed:,} (quota code {code}) or plan fewer nodes."

    def _quota_value(self, name: str, code: str) -> float:
        """The applied value, else AWS's default; searched by name where the code means another quota."""
        quotas = self._clients.quotas
        try:
            with self._call("GetServiceQuota"):
                answer = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)
        except NotFound:
            with self._call("GetAWSDefaultServiceQuota"):
                answer = quotas.get_aws_default_service_quota(ServiceCode="ec2", QuotaCode=code)
        quota = convert.part(answer, "Quota", "GetServiceQuota")
        if quota.get("QuotaName") == name:
            return float(quota.get("Value", 0))
        token = ""
        for _ in range(_QUOTA_PAGES):
            more: Any = {"NextToken": token} if token else {}
            with self._call("ListServiceQuotas"):
                page = quotas.list_service_quotas(ServiceCode="ec2", MaxResults=100, **more)
            for quota in convert.part(page, "Quotas", "ListServiceQuotas"):
                if quota.get("QuotaName") == name:
                    return float(quota.get("Value", 0))
            token = str(page.get("NextToken") or "")
            if not token:
                break
        raise NotFound(f"no quota is named “{name}”", source="aws", code="NoSuchQuotaName")

    def _vcpus_in_use(self, families: tuple[str, ...]) -> int:
        used, token = 0, ""
        while True:
            more: Any = {"NextToken": token} if token else {}
            with self._call("DescribeInstances"):
                page = self._clients.ec2.describe_instances(
                    Filters=[
                        {"Name": "instance-type", "Values": list(families)},
                        {"Name": "instance-state-name", "Values": ["pending", "running"]},
                    ],
                    MaxResults=100,
                    **more,
                )
            for reservation in convert.part(page, "Reservations", "DescribeInstances"):
                for raw in reservation.get("Instances", []):
                    cpu = raw.get("CpuOptions", {})
                    used += int(cpu.get("CoreCount", 0)) * int(cpu.get("ThreadsPerCore", 1))
            token = str(page.get("NextToken") or "")
            if not token:
                return used

    def _dry_run(self, plan: v.LaunchPlan) -> tuple[bool, str]:
        interfaces: Any = convert.interface_specifications(plan.interfaces, plan.subnet_id, plan.security_group_ids)
        try:
            with self._call("RunInstances (dry run)"):
                try:
                    self._clients.launch.run_instances(
                        DryRun=True,
                        ImageId=plan.image_id,
                        InstanceType=plan.instance_type,  # type: ignore[arg-type]
                        MinCount=plan.nodes,
                        MaxCount=plan.nodes,
                        NetworkInterfaces=interfaces,
                    )
                except ClientError as exc:
                    if code_of(exc) != DRY_RUN_PASSED:
                        raise
                    return True, "AWS would accept the launch (dry run)."
        except AccessDenied as exc:
            return False, f"Our credentials may not launch: {exc}. Allow ec2:RunInstances for this role."
        except ProviderError as exc:
            return False, f"AWS would refuse the launch: {exc}"
        return False, "AWS answered a dry run as if it were a launch; check the account for new instances."


def _allows_itself(rule: IpPermissionTypeDef, group_id: str) -> bool:
    if rule.get("IpProtocol") != "-1":
        return False
    return any(pair.get("GroupId") == group_id for pair in rule.get("UserIdGroupPairs", []))


def layout_problems(interfaces: tuple[v.InterfaceSpec, ...], described: Any) -> list[str]:
    """What in a layout contradicts AWS's own description of the type (one element of DescribeInstanceTypes)."""
    network = described.get("NetworkInfo", {})
    cards = {int(card.get("NetworkCardIndex", 0)): card for card in network.get("NetworkCards", [])}
    problems: list[str] = []
    if not interfaces or (interfaces[0].card, interfaces[0].device, interfaces[0].kind) != (0, 0, "interface"):
        problems.append("the first interface must be an ENA interface on card 0, device 0")
    if len({(i.card, i.device) for i in interfaces}) != len(interfaces):
        problems.append("two interfaces share a card and device")
    for index in sorted({i.card for i in interfaces}):
        on_card = [i for i in interfaces if i.card == index]
        card = cards.get(index)
        if card is None:
            problems.append(f"there is no network card {index}")
            continue
        most = int(card.get("MaximumNetworkInterfaces", 0))
        if len(on_card) > most:
            problems.append(f"card {index} takes {most} interfaces, not {len(on_card)}")
        allowed = card.get("InterfaceTypes") or ["interface", "efa", "efa-only"]
        problems += [f"card {index} takes no {i.kind}" for i in on_card if i.kind not in allowed]
    efas = sum(1 for i in interfaces if i.kind != "interface")
    most_efas = int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0))
    if efas > most_efas:
        problems.append(f"at most {most_efas} EFA interfaces, not {efas}")
    return problems
