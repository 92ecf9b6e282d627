"""Whether the capacity that a launch means is there: its reservation, and the account's vCPU quota for its source."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from worker.providers import values as v
from worker.providers.aws import convert
from worker.providers.aws.clients import Clients
from worker.providers.aws.sources import RESERVATION_TYPES
from worker.providers.errors import AccessDenied, NotFound, Unsupported

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import CapacityReservationTypeDef, SubnetTypeDef

Call = Callable[[str], AbstractContextManager[None]]


def _(template: str, /, **facts: object) -> v.Text:
    """A sentence; named so that its template is collected for translation."""
    return v.Text(template, facts)


#: vCPU quotas by source and instance types: name, code, types that count. The code is a hint, the name decides.
_STANDARD: Final = (
    "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "L-1216C47A",
    ("a*", "c*", "d*", "h*", "i*", "m*", "r*", "t*", "z*"),
)
_ON_DEMAND: Final = {
    "p": ("Running On-Demand P instances", "L-417A185B", ("p*",)),
    "g": ("Running On-Demand G and VT instances", "L-DB2E81BA", ("g*", "vt*")),
}
_SPOT: Final = {
    "p5": ("All P5 Spot Instance Requests", "L-C4BD4855", ("p5*",)),
    "p4": ("All P4, P3 and P2 Spot Instance Requests", "L-7212CCBC", ("p4*", "p3*", "p2*")),
    "g": ("All G and VT Spot Instance Requests", "L-3819A6DF", ("g*", "vt*")),
}
_BLOCKS: Final = {
    "p4d": ("P4d", "L-2C8F52B3"),
    "p4de": ("P4de", "L-CFF3E941"),
    "p5": ("P5", "L-DA6814F2"),
    "p5e": ("P5e", "L-C45F30BC"),
    "p5en": ("P5en", "L-4F9BB70B"),
    "p6-b200": ("P6-B200", "L-8B23CEF3"),
    "p6-b300": ("P6-B300", "L-9C38E5AB"),
    "p6e-gb200": ("P6e-GB200", "L-FCF0179E"),
}
_QUOTA_PAGES: Final = 10
#: A reservation that ends sooner than this is of no use to a launch.
_LEAST_LEFT: Final = timedelta(minutes=30)


def quota_of(instance_type: str, source: str) -> tuple[str, str, tuple[str, ...]] | None:
    """Name, code and counted types of the quota that a launch needs; None where AWS has none of its own for it."""
    family = instance_type.partition(".")[0]
    if source in ("capacity-block", "ultraserver-block"):
        block = _BLOCKS.get(family)
        return (f"Concurrent {block[0]} Capacity Blocks per account", block[1], ()) if block else None
    if source == "spot":
        return _SPOT.get(family[:2]) or _SPOT.get(family[:1])
    return _ON_DEMAND.get(family[:1], _STANDARD)


def check_quota(clients: Clients, call: Call, plan: v.LaunchPlan) -> tuple[bool, v.Text]:
    """The account's limit in vCPUs. Machines of a block count against the block's own quota since it was bought."""
    found = quota_of(plan.instance_type, plan.source.kind)
    needed = plan.nodes * plan.vcpus_per_node
    if found is None:
        return True, _("No vCPU quota is known for %(type)s from this source.", type=plan.instance_type)
    name, code, families = found
    facts: dict[str, object] = {"name": name, "needed": f"{needed:,}", "code": code}
    try:
        limit = _value(clients, call, name, code)
    except (AccessDenied, NotFound, Unsupported) as exc:
        return True, _(
            "The quota “%(name)s” is not readable here (%(error)s); the launch needs %(needed)s vCPUs of it.",
            **facts,
            error=str(exc),
        )
    facts["limit"] = f"{limit:,.0f}"
    if plan.source.is_block:
        if limit < needed:
            return False, _(
                "“%(name)s” is %(limit)s vCPUs, the machines need %(needed)s; ask AWS for more (quota code %(code)s).",
                **facts,
            )
        return True, _("“%(name)s” is %(limit)s vCPUs; the block that was bought counts in it already.", **facts)
    if plan.source.reservation_id:
        return True, _(
            "“%(name)s” is %(limit)s vCPUs; the reservation counts in it already, launching into it needs no more.",
            **facts,
        )
    used = _in_use(clients, call, families)
    sentence = _(
        "“%(name)s” is %(limit)s vCPUs, %(used)s in use, %(nodes)s nodes need %(needed)s",
        **facts,
        used=f"{used:,}",
        nodes=plan.nodes,
    )
    if used + needed <= limit:
        return True, v.Text("%(sentence)s.", {"sentence": sentence})
    return False, _(
        "%(sentence)s; ask AWS for at least %(vcpus)s (quota code %(code)s) or plan fewer nodes.",
        sentence=sentence,
        vcpus=f"{used + needed:,}",
        code=code,
    )


def _value(clients: Clients, call: Call, name: str, code: str) -> float:
    """The applied value, else AWS's default; searched by name where the code means another quota."""
    quotas = clients.quotas
    try:
        with call("GetServiceQuota"):
            answer = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)
    except NotFound:
        with call("GetAWSDefaultServiceQuota"):
            answer = quotas.get_aws_default_service_quota(ServiceCode="ec2", QuotaCode=code)
    quota = convert.part(answer, "Quota", "GetServiceQuota")
    if quota.get("QuotaName") == name:
        return float(quota.get("Value", 0))
    token = ""
    for _page in range(_QUOTA_PAGES):
        more: Any = {"NextToken": token} if token else {}
        with call("ListServiceQuotas"):
            page = quotas.list_service_quotas(ServiceCode="ec2", MaxResults=100, **more)
        for quota in convert.part(page, "Quotas", "ListServiceQuotas"):
            if quota.get("QuotaName") == name:
                return float(quota.get("Value", 0))
        token = str(page.get("NextToken") or "")
        if not token:
            break
    raise NotFound(f"no quota is named “{name}”", source="aws", code="NoSuchQuotaName")


def _in_use(clients: Clients, call: Call, families: tuple[str, ...]) -> int:
    used, token = 0, ""
    while True:
        more: Any = {"NextToken": token} if token else {}
        with call("DescribeInstances"):
            page = clients.ec2.describe_instances(
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


# --- reservations --------------------------------------------------------------------------------------


def check_reservation(
    clients: Clients, call: Call, plan: v.LaunchPlan, subnet: SubnetTypeDef | None
) -> tuple[bool, v.Text]:
    """State, count, type, zone, platform, tenancy and end of the reservation: all five attributes have to match."""
    wanted = plan.source.reservation_id
    if not wanted:
        return True, _("Any open ODCR of the account that matches type, zone, platform and tenancy is taken.")
    try:
        with call("DescribeCapacityReservations"):
            answer = clients.ec2.describe_capacity_reservations(CapacityReservationIds=[wanted])
    except NotFound:
        return False, _(
            "AWS knows no reservation %(id)s in this account and region; a block can only be used by the account "
            "that owns it or that it is shared with.",
            id=wanted,
        )
    rows = convert.part(answer, "CapacityReservations", "DescribeCapacityReservations")
    if not rows:
        return False, _("AWS does not list reservation %(id)s.", id=wanted)
    problems = _problems(rows[0], plan, subnet)
    if problems:
        names = [f"p{i}" for i in range(len(problems))]
        joined = v.Text("; ".join(f"%({n})s" for n in names), dict(zip(names, problems, strict=True)))
        return False, _("%(id)s does not fit: %(problems)s.", id=wanted, problems=joined)
    end = rows[0].get("EndDate")
    facts = {"id": wanted, "free": int(rows[0].get("AvailableInstanceCount", 0)), "nodes": plan.nodes}
    if end is None:
        return True, _(
            "%(id)s is active, %(free)s of its machines are free for %(nodes)s nodes; it has no end.", **facts
        )
    return True, _(
        "%(id)s is active, %(free)s of its machines are free for %(nodes)s nodes; it ends on %(end)s UTC.",
        **facts,
        end=f"{end:%Y-%m-%d %H:%M}",
    )


def _problems(row: CapacityReservationTypeDef, plan: v.LaunchPlan, subnet: SubnetTypeDef | None) -> list[v.Text]:
    found: list[v.Text] = []
    state = str(row.get("State", ""))
    if state == "expired":
        found.append(_("it has expired, choose another reservation"))
    elif state != "active":
        found.append(_("it is %(state)s, not active", state=state))
    kind = str(row.get("ReservationType") or "default")
    if plan.source.kind not in RESERVATION_TYPES.get(kind, ()):
        found.append(_("AWS calls it %(kind)s, the fleet's source is %(source)s", kind=kind, source=plan.source.kind))
    if row.get("InstanceType") != plan.instance_type:
        found.append(
            _("it is for %(theirs)s, not %(ours)s", theirs=row.get("InstanceType", ""), ours=plan.instance_type)
        )
    zone = str(row.get("AvailabilityZoneId") or "")
    here = subnet.get("AvailabilityZoneId", "") if subnet is not None else ""
    if zone and here and zone != here:
        found.append(_("it is in zone %(theirs)s, the subnet in %(ours)s", theirs=zone, ours=here))
    platform = str(row.get("InstancePlatform", ""))
    if platform != "Linux/UNIX":
        found.append(_("it is for the platform %(platform)s, not Linux/UNIX", platform=platform))
    tenancy = str(row.get("Tenancy", "default"))
    if tenancy != "default":
        found.append(_("its tenancy is %(tenancy)s, the machines' is default", tenancy=tenancy))
    free = int(row.get("AvailableInstanceCount", 0))
    if state == "active" and free < plan.nodes:
        found.append(_("%(free)s of its machines are free, %(nodes)s are needed", free=free, nodes=plan.nodes))
    end = row.get("EndDate")
    if state == "active" and end is not None and end - datetime.now(UTC) < _LEAST_LEFT:
        found.append(_("it ends on %(end)s UTC, too soon to be of use", end=f"{end:%Y-%m-%d %H:%M}"))
    return found
