"""Read-only checks before a launch: what would make it fail or, worse, make it succeed and hang."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from worker.providers import values as v
from worker.providers.aws import convert
from worker.providers.aws.clients import Clients
from worker.providers.aws.errors import DRY_RUN_PASSED, code_of
from worker.providers.aws.layouts import addresses_per_node
from worker.providers.aws.preflight_capacity import check_quota, check_reservation
from worker.providers.aws.sources import launch_data
from worker.providers.errors import AccessDenied, NotFound, ProviderError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import IpPermissionTypeDef, SubnetTypeDef


def _(template: str, /, **facts: object) -> v.Text:
    """A sentence; named so that its template is collected for translation."""
    return v.Text(template, facts)


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
            zone = subnet.get("AvailabilityZoneId", "?")
            found = v.Check("subnet", True, _("%(subnet)s is in zone %(zone)s.", subnet=plan.subnet_id, zone=zone))
        except ProviderError as exc:
            found = v.Check(
                "subnet", False, _("Subnet %(subnet)s cannot be read: %(error)s", subnet=plan.subnet_id, error=str(exc))
            )
        checks = [found]
        steps: list[tuple[str, Callable[[], tuple[bool, v.Text]]]] = [
            ("instance-type-offered", lambda: self._offered(plan, subnet)),
            ("interfaces", lambda: self._interfaces(plan)),
            ("subnet-addresses", lambda: self._addresses(plan, subnet)),
            ("security-groups", lambda: self._security_groups(plan)),
            ("image", lambda: self._image(plan)),
            ("reservation", lambda: check_reservation(self._clients, self._call, plan, subnet)),
            ("vcpu-quota", lambda: check_quota(self._clients, self._call, plan)),
            ("permission-to-launch", lambda: self._dry_run(plan)),
        ]
        if plan.source.kind in ("on-demand", "spot"):
            steps = [(name, step) for name, step in steps if name != "reservation"]
        for name, step in steps:
            try:
                passed, detail = step()
            except ProviderError as exc:
                passed, detail = False, _("Could not be checked: %(error)s", error=str(exc))
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

    def _offered(self, plan: v.LaunchPlan, subnet: SubnetTypeDef | None) -> tuple[bool, v.Text]:
        if subnet is None:
            return False, _("Cannot be told while the subnet, and so its zone, is unknown.")
        with self._call("DescribeInstanceTypeOfferings"):
            answer = self._clients.ec2.describe_instance_type_offerings(
                LocationType="availability-zone-id", Filters=[{"Name": "instance-type", "Values": [plan.instance_type]}]
            )
        offerings = convert.part(answer, "InstanceTypeOfferings", "DescribeInstanceTypeOfferings")
        zones = sorted(str(offering.get("Location", "")) for offering in offerings)
        here = subnet.get("AvailabilityZoneId", "")
        if here in zones:
            return True, _("%(type)s is offered in %(zone)s.", type=plan.instance_type, zone=here)
        facts = {"type": plan.instance_type, "zone": here, "zones": ", ".join(zones)}
        if zones:
            return False, _("%(type)s is not offered in %(zone)s; choose a subnet in %(zones)s.", **facts)
        return False, _("%(type)s is not offered in %(zone)s; no zone of this region offers it.", **facts)

    def _interfaces(self, plan: v.LaunchPlan) -> tuple[bool, v.Text]:
        with self._call("DescribeInstanceTypes"):
            answer = self._clients.ec2.describe_instance_types(InstanceTypes=[plan.instance_type])  # type: ignore[list-item]
        listed = convert.part(answer, "InstanceTypes", "DescribeInstanceTypes")
        if not listed:
            return False, _("AWS does not describe %(type)s in this region.", type=plan.instance_type)
        problems = layout_problems(plan.interfaces, listed[0])
        vcpus = int(listed[0].get("VCpuInfo", {}).get("DefaultVCpus", 0))
        if vcpus != plan.vcpus_per_node:
            problems.append(f"AWS says {vcpus} vCPUs a node, the plan says {plan.vcpus_per_node}")
        if problems:
            facts = {"type": plan.instance_type, "problems": "; ".join(problems)}
            return False, _("The plan does not fit %(type)s: %(problems)s.", **facts)
        efas = sum(1 for interface in plan.interfaces if interface.kind != "interface")
        return True, _(
            "%(n)s interfaces a node, %(efas)s of them EFA, fit %(type)s.",
            n=len(plan.interfaces),
            efas=efas,
            type=plan.instance_type,
        )

    def _addresses(self, plan: v.LaunchPlan, subnet: SubnetTypeDef | None) -> tuple[bool, v.Text]:
        if subnet is None:
            return False, _("Cannot be told while the subnet is unknown.")
        each = addresses_per_node(plan.interfaces)
        needed, free = plan.nodes * each, int(subnet.get("AvailableIpAddressCount", 0))
        sentence = _(
            "%(subnet)s has %(free)s free addresses, %(nodes)s nodes × %(each)s need %(needed)s",
            subnet=plan.subnet_id,
            free=f"{free:,}",
            nodes=plan.nodes,
            each=each,
            needed=f"{needed:,}",
        )
        if free >= needed:
            return True, v.Text("%(sentence)s.", {"sentence": sentence})
        return False, _("%(sentence)s; use a larger subnet or fewer nodes.", sentence=sentence)

    def _security_groups(self, plan: v.LaunchPlan) -> tuple[bool, v.Text]:
        if not plan.security_group_ids:
            return False, _("No security group is given; EFA needs one that allows all traffic to and from itself.")
        with self._call("DescribeSecurityGroups"):
            answer = self._clients.ec2.describe_security_groups(GroupIds=list(plan.security_group_ids))
        missing: list[v.Text] = []
        for group in convert.part(answer, "SecurityGroups", "DescribeSecurityGroups"):
            group_id = group.get("GroupId", "")
            if not any(_allows_itself(rule, group_id) for rule in group.get("IpPermissions", [])):
                missing.append(_("%(group)s lacks an inbound rule for all traffic with itself", group=group_id))
            if not any(_allows_itself(rule, group_id) for rule in group.get("IpPermissionsEgress", [])):
                missing.append(_("%(group)s lacks an outbound rule for all traffic with itself", group=group_id))
        if missing:
            return False, _(
                "%(missing)s. EFA traffic is not IP, so a rule for 0.0.0.0/0 does not let it through: "
                "add a rule with protocol -1 and the group itself as the other side.",
                missing=_joined(missing),
            )
        groups = ", ".join(plan.security_group_ids)
        return True, _("%(groups)s allow all traffic to and from themselves.", groups=groups)

    def _image(self, plan: v.LaunchPlan) -> tuple[bool, v.Text]:
        with self._call("DescribeImages"):
            answer = self._clients.ec2.describe_images(ImageIds=[plan.image_id])
        images = convert.part(answer, "Images", "DescribeImages")
        if not images:
            return False, _("AWS knows no image %(image)s.", image=plan.image_id)
        found = str(images[0].get("Architecture", ""))
        facts = {"image": plan.image_id, "found": found, "type": plan.instance_type, "wanted": plan.architecture}
        if plan.architecture and found != plan.architecture:
            return False, _("%(image)s is for %(found)s, %(type)s needs %(wanted)s.", **facts)
        state = str(images[0].get("State", "available"))
        if state != "available":
            return False, _("%(image)s is %(state)s.", image=plan.image_id, state=state)
        return True, _("%(image)s is for %(found)s, as %(type)s needs it.", **facts)

    def _dry_run(self, plan: v.LaunchPlan) -> tuple[bool, v.Text]:
        interfaces: Any = convert.interface_specifications(plan.interfaces, plan.subnet_id, plan.security_group_ids)
        source: Any = launch_data(plan.source)
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
                        **source,
                    )
                except ClientError as exc:
                    if code_of(exc) != DRY_RUN_PASSED:
                        raise
                    return True, _("AWS would accept the launch (dry run).")
        except AccessDenied as exc:
            return False, _(
                "The account's role may not launch: %(error)s. Allow it ec2:RunInstances, as the policy document does.",
                error=str(exc),
            )
        except ProviderError as exc:
            return False, _("AWS would refuse the launch: %(error)s", error=str(exc))
        return False, _("AWS answered a dry run as if it were a launch; check the account for new instances.")


def _joined(texts: list[v.Text]) -> v.Text:
    """Several sentences with semicolons between them."""
    names = [f"t{i}" for i in range(len(texts))]
    return v.Text("; ".join(f"%({name})s" for name in names), dict(zip(names, texts, strict=True)))


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
