"""Machines that another service keeps in the account: as many as a group wants, tagged as that service tags them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from sandbox.aws.network import subnet_of
from sandbox.aws.state import Cloud, Machine, new_id

_CORES: Final = 96


def machines_of(cloud: Cloud, tags: Mapping[str, str]) -> list[Machine]:
    """Living machines with all these tags."""
    return [m for m in cloud.live() if tags.items() <= m.tags.items()]


def scale(cloud: Cloud, tags: Mapping[str, str], instance_type: str, subnet_id: str, count: int) -> None:
    """Start or end machines until ``count`` carry these tags."""
    with cloud.lock:
        here = machines_of(cloud, tags)
        for machine in here[count:]:
            machine.terminated_at = time.time()
        subnet = subnet_of(cloud.options.region, subnet_id)
        if subnet is not None and len(here) < count:
            for address in cloud.take_addresses(subnet_id, subnet.cidr_block, count - len(here)):
                _start(cloud, tags, instance_type, subnet, address)
        cloud.save()


def _start(cloud: Cloud, tags: Mapping[str, str], instance_type: str, subnet: object, address: str) -> None:
    machine = Machine(
        id=new_id("i"),
        reservation_id=new_id("r"),
        client_token="",
        index=0,
        instance_type=instance_type,
        vcpus=_CORES * 2,
        cores=_CORES,
        memory_mib=2_097_152,
        image_id="ami-0a0000000000000a1",
        architecture="x86_64",
        root_device="/dev/sda1",
        subnet_id=str(getattr(subnet, "id")),  # noqa: B009
        vpc_id=str(getattr(subnet, "vpc_id")),  # noqa: B009
        zone=str(getattr(subnet, "availability_zone")),  # noqa: B009
        zone_id=str(getattr(subnet, "availability_zone_id")),  # noqa: B009
        group_ids=[],
        private_ip=address,
        private_dns_name=f"ip-{address.replace('.', '-')}.{cloud.options.region}.compute.internal",
        placement_group="",
        user_data="",
        profile_arn="",
        metadata_options={},
        ebs_optimized=True,
        volumes=[],
        tags=dict(tags),
        launched_at=time.time(),
    )
    cloud.machines[machine.id] = machine
