"""Puts a network and a machine image with fixed ids into moto's account, and knows moto's instance types."""

from __future__ import annotations

import os
import threading
from typing import Any

# moto reads this while it is imported: its own catalogue of images would cost half a second and is not used.
os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")

from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.models.security_groups import SecurityGroup
from moto.ec2.models.subnets import Subnet
from moto.ec2.models.vpcs import VPC

from sandbox.aws import gb200
from sandbox.aws import options as o

gb200.add()

_lock = threading.Lock()


def zone_named(region: str, name: str) -> Any:
    """moto's availability zone of that name. Raises ``ValueError`` when the region has none such."""
    zones = RegionsAndZonesBackend.zones.get(region, [])
    for zone in zones:
        if zone.name == name:
            return zone
    known = ", ".join(zone.name for zone in zones) or "none, the region is unknown"
    raise ValueError(f"zone {name!r} is not in region {region!r}; its zones: {known}")


def backend_of(region: str) -> Any:
    """moto's EC2 account in a region."""
    return ec2_backends[o.ACCOUNT_ID][region]


def seed(options: o.AwsOptions) -> None:
    """Make the VPC, subnet, security group and image, once a process."""
    zone = zone_named(options.region, options.zone)
    with _lock:
        gb200.offer(options.region, zone.name, zone.zone_id)
        backend = backend_of(options.region)
        if o.VPC_ID in backend.vpcs:
            return
        # moto's own default network has random ids; ours takes its place.
        for vpc_id in list(backend.vpcs):
            backend.groups.pop(vpc_id, None)
            del backend.vpcs[vpc_id]
        backend.subnets.clear()
        vpc = VPC(backend, o.VPC_ID, o.VPC_CIDR, is_default=True)
        backend.vpcs[vpc.id] = vpc
        backend.default_vpc = vpc
        backend.create_route_table(vpc.id, main=True)
        backend.create_network_acl(vpc.id, default=True)
        vpc.add_tag("Name", "sandbox")
        _subnet(backend, vpc.id, o.SUBNET_ID, o.SUBNET_CIDR, zone, "sandbox-private")
        other = next((z for z in RegionsAndZonesBackend.zones[options.region] if z.name != zone.name), None)
        if other is not None:
            _subnet(backend, vpc.id, o.SECOND_SUBNET_ID, o.SECOND_SUBNET_CIDR, other, "sandbox-private-2")
        _security_group(backend, vpc.id)
        _image(backend, options.region, o.IMAGE_ID, "x86_64")
        _image(backend, options.region, o.ARM_IMAGE_ID, "arm64")


def _subnet(backend: Any, vpc_id: str, subnet_id: str, cidr: str, zone: Any, name: str) -> None:
    subnet = Subnet(backend, subnet_id, vpc_id, cidr, None, zone, True, False)
    backend.associate_default_network_acl_with_subnet(subnet.id, vpc_id)
    backend.subnets[zone.name][subnet.id] = subnet
    subnet.add_tag("Name", name)


def _security_group(backend: Any, vpc_id: str) -> None:
    group = SecurityGroup(
        backend, o.SECURITY_GROUP_ID, "sandbox-efa", "All traffic between members, as EFA needs", vpc_id=vpc_id
    )
    backend.groups[vpc_id][group.id] = group
    itself = [{"GroupId": group.id}]
    for authorize in (backend.authorize_security_group_ingress, backend.authorize_security_group_egress):
        authorize(group.id, "-1", None, None, [], source_groups=itself, vpc_id=vpc_id)


def _image(backend: Any, region: str, image_id: str, architecture: str) -> None:
    backend.amis[image_id] = Ami(
        backend,
        image_id,
        name=f"sandbox-gpu-node-{architecture}",
        description="Pretend GPU node image",
        virtualization_type="hvm",
        architecture=architecture,
        root_device_type="ebs",
        root_device_name="/dev/sda1",
        region_name=f"{region}a",
    )


def instance_type(name: str) -> dict[str, Any] | None:
    """AWS's description of an instance type, as DescribeInstanceTypes gives it, or None for an unknown one."""
    found: dict[str, Any] | None = INSTANCE_TYPES.get(name)
    return found


def zones_offering(name: str, region: str) -> list[str]:
    """Names of the region's zones that offer an instance type."""
    offerings = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return sorted(offering["Location"] for offering in offerings if offering["InstanceType"] == name)
