"""Machines that another service keeps in the account: as many as a group wants, tagged as that service tags them.

They come from where the group's launch template says: a reservation, or what is left of the type. Like an Auto
Scaling group this starts what it can and says what was missing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sandbox.aws import seed
from sandbox.aws.errors import AwsError
from sandbox.aws.launch import tags_by_kind
from sandbox.aws.network import subnet_of
from sandbox.aws.options import IMAGE_ID
from sandbox.aws.state import Cloud, Interface, Machine, new_id
from sandbox.world import World

_CORES: Final = 96


@dataclass(frozen=True)
class Wanted:
    """What a group's machines are: the service's tags, type, subnet, and the data of the launch template."""

    tags: Mapping[str, str]
    instance_type: str
    subnet_id: str
    group_ids: list[str] = field(default_factory=list)
    template: Mapping[str, Any] = field(default_factory=dict)


def machines_of(cloud: Cloud, tags: Mapping[str, str]) -> list[Machine]:
    """Living machines with all these tags that are not on their way out."""
    return [m for m in cloud.live() if m.terminated_at is None and tags.items() <= m.tags.items()]


def scale(cloud: Cloud, world: World, wanted: Wanted, count: int) -> str:
    """Start or end machines until ``count`` carry the tags; EC2's words for what could not be started, "" for all."""
    with cloud.lock:
        cloud.settle()
        here = machines_of(cloud, wanted.tags)
        for machine in here[count:]:
            machine.terminated_at = time.time()
        problem = ""
        if len(here) < count:
            problem = _start(cloud, world, wanted, count - len(here))
        cloud.save()
        return problem


def reservation_problem(cloud: Cloud, template: Mapping[str, Any], instance_type: str, zone: str) -> str:
    """Why the reservation that a template names can never serve this type and zone; one that begins later can."""
    target = target_of(template)
    if not target:
        return ""
    with cloud.lock:
        cloud.settle()
        try:
            row = cloud.book.found(target)
        except AwsError as error:
            return error.message
        is_block = (template.get("InstanceMarketOptions") or {}).get("MarketType") == "capacity-block"
        if (row["type"] == "capacity-block") != is_block:
            return f"The market type of the launch template does not fit the Capacity Reservation {target}."
        if row["instance_type"] != instance_type:
            return f"The Capacity Reservation {target} is for {row['instance_type']}, not for {instance_type}."
        if row["zone"] != zone:
            return f"The Capacity Reservation {target} is in {row['zone']}, the subnet is in {zone}."
        state = cloud.book.state_of(row)
        if state not in ("active", "scheduled", "payment-pending"):
            return f"The Capacity Reservation {target} is {state}."
    return ""


def target_of(template: Mapping[str, Any]) -> str:
    """The reservation that a launch template names, "" for none."""
    specification = template.get("CapacityReservationSpecification") or {}
    return str((specification.get("CapacityReservationTarget") or {}).get("CapacityReservationId") or "")


def _start(cloud: Cloud, world: World, wanted: Wanted, count: int) -> str:
    subnet = subnet_of(cloud.options.region, wanted.subnet_id)
    if subnet is None:
        return f"The subnet ID '{wanted.subnet_id}' does not exist"
    name, zone = wanted.instance_type, subnet.availability_zone
    if world.fault_use("no-capacity", instance_type=name) is not None:
        return _short(name, zone)
    held, problem = _from_reservation(cloud, wanted, count, zone)
    if not target_of(wanted.template):
        outside = [m for m in cloud.live(name) if not cloud.book.is_block(cloud.book.reservation_of(m.id))]
        free = max(0, cloud.options.pool_of(name) - len(outside) - cloud.book.kept_back(name))
        held = [""] * min(count, free)
        problem = "" if len(held) == count else _short(name, zone)
    addresses = cloud.take_addresses(wanted.subnet_id, subnet.cidr_block, len(held))
    made = [_machine(cloud, wanted, subnet, address) for address in addresses]
    cloud.book.take({machine.id: of for machine, of in zip(made, held, strict=True)})
    return problem


def _from_reservation(cloud: Cloud, wanted: Wanted, count: int, zone: str) -> tuple[list[str], str]:
    """The reservation of each machine that can be started there, and why it is not all of them."""
    target = target_of(wanted.template)
    if not target:
        return [], ""
    try:
        return cloud.book.admit(wanted.template, wanted.instance_type, zone, count), ""
    except AwsError as error:
        if error.code != "ReservationCapacityExceeded":
            return [], error.message
        left = cloud.book.available(target, cloud.book.found(target))
        return [target] * left, error.message


def _short(instance_type: str, zone: str) -> str:
    return (
        f"We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested ({zone})."
    )


def _machine(cloud: Cloud, wanted: Wanted, subnet: Any, address: str) -> Machine:
    described = seed.instance_type(wanted.instance_type) or {}
    cpu = described.get("VCpuInfo") or {}
    tags = tags_by_kind(wanted.template.get("TagSpecifications"))
    now, machine_id = time.time(), new_id("i")
    interface = Interface(
        id=new_id("eni"),
        instance_id=machine_id,
        card=0,
        device=0,
        kind="interface",
        subnet_id=subnet.id,
        vpc_id=subnet.vpc_id,
        group_ids=list(wanted.group_ids),
        private_ip=address,
        mac="0a:" + ":".join(f"{byte:02x}" for byte in secrets.token_bytes(5)),
        tags=tags.get("network-interface", {}),
        delete_on_termination=True,
        attachment_id=new_id("eni-attach"),
        attached_at=now,
    )
    cloud.interfaces[interface.id] = interface
    machine = Machine(
        id=machine_id,
        reservation_id=new_id("r"),
        client_token="",
        index=0,
        instance_type=wanted.instance_type,
        vcpus=int(cpu.get("DefaultVCpus") or _CORES * 2),
        cores=int(cpu.get("DefaultCores") or _CORES),
        memory_mib=int((described.get("MemoryInfo") or {}).get("SizeInMiB") or 2_097_152),
        image_id=str(wanted.template.get("ImageId") or IMAGE_ID),
        architecture="x86_64",
        root_device="/dev/sda1",
        subnet_id=subnet.id,
        vpc_id=subnet.vpc_id,
        zone=subnet.availability_zone,
        zone_id=subnet.availability_zone_id,
        group_ids=list(wanted.group_ids),
        private_ip=address,
        private_dns_name=f"ip-{address.replace('.', '-')}.{cloud.options.region}.compute.internal",
        placement_group="",
        user_data="",
        profile_arn="",
        metadata_options={},
        ebs_optimized=True,
        volumes=[],
        tags={**tags.get("instance", {}), **wanted.tags},
        launched_at=now,
    )
    cloud.machines[machine.id] = machine
    return machine
