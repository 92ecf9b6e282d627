"""How things of the fake account look in EC2's answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sandbox.aws.launch import arn
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.state import Cloud, Group, Interface, Machine, Template

STATE_CODES: Final = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48}


def instant(at: float) -> datetime:
    """A Unix instant as AWS prints it: UTC, whole seconds."""
    return datetime.fromtimestamp(int(at), UTC)


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags in AWS's shape."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def state(name: str) -> dict[str, Any]:
    """An instance state with its number."""
    return {"Code": STATE_CODES[name], "Name": name}


def group_names(backend: Any, vpc_id: str, group_ids: Iterable[str]) -> list[dict[str, str]]:
    """Security groups by id and name."""
    known = backend.groups.get(vpc_id, {})
    return [{"GroupId": i, "GroupName": known[i].name if i in known else i} for i in group_ids]


def instance(cloud: Cloud, backend: Any, machine: Machine) -> dict[str, Any]:
    """One instance of DescribeInstances; a terminated one has lost its network."""
    name = cloud.state_of(machine)
    shown: dict[str, Any] = {
        "InstanceId": machine.id,
        "ImageId": machine.image_id,
        "InstanceType": machine.instance_type,
        "State": state(name),
        "AmiLaunchIndex": machine.index,
        "Architecture": machine.architecture,
        "ClientToken": machine.client_token,
        "CpuOptions": {"CoreCount": machine.cores, "ThreadsPerCore": max(1, machine.vcpus // machine.cores)},
        "EbsOptimized": machine.ebs_optimized,
        "EnaSupport": True,
        "Hypervisor": "xen",
        "LaunchTime": instant(machine.launched_at),
        "MetadataOptions": {"State": "applied", **machine.metadata_options},
        "Monitoring": {"State": "disabled"},
        "Placement": {
            "AvailabilityZone": machine.zone,
            "AvailabilityZoneId": machine.zone_id,
            "GroupName": machine.placement_group,
            "Tenancy": "default",
        },
        "PrivateDnsName": "",
        "PublicDnsName": "",
        "ProductCodes": [],
        "RootDeviceName": machine.root_device,
        "RootDeviceType": "ebs",
        "SecurityGroups": [],
        "NetworkInterfaces": [],
        "BlockDeviceMappings": [],
        "StateTransitionReason": "",
        "Tags": tag_list(machine.tags),
        "VirtualizationType": "hvm",
    }
    if machine.profile_arn:
        shown["IamInstanceProfile"] = {"Arn": machine.profile_arn, "Id": "AIPASANDBOXPROFILE000"}
    if machine.terminated_at is not None and not machine.death:
        when = instant(machine.terminated_at).strftime("%Y-%m-%d %H:%M:%S GMT")
        shown["StateTransitionReason"] = f"User initiated ({when})"
        shown["StateReason"] = {
            "Code": "Client.UserInitiatedShutdown",
            "Message": "Client.UserInitiatedShutdown: User initiated shutdown",
        }
    held = cloud.book.reservation_of(machine.id)
    if held:
        shown["CapacityReservationId"] = held
        shown["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": held},
        }
    if cloud.book.is_block(held):
        shown["InstanceLifecycle"] = "capacity-block"
    if cloud.book.was_reclaimed(machine.id):
        shown["StateTransitionReason"] = ""
        shown["StateReason"] = {
            "Code": "Server.CapacityBlockEnded",
            "Message": "Server.CapacityBlockEnded: EC2 takes the instances of a Capacity Block back before its end",
        }
    if machine.death and name != "pending":
        shown["StateTransitionReason"] = "Server.InternalError"
        shown["StateReason"] = {"Code": machine.death[0], "Message": machine.death[1]}
    if name == "terminated":
        return shown
    shown |= {
        "PrivateDnsName": machine.private_dns_name,
        "PrivateIpAddress": machine.private_ip,
        "SubnetId": machine.subnet_id,
        "VpcId": machine.vpc_id,
        "SecurityGroups": group_names(backend, machine.vpc_id, machine.group_ids),
        "NetworkInterfaces": [_of_instance(backend, i) for i in cloud.interfaces_of(machine.id)],
        "BlockDeviceMappings": [
            {
                "DeviceName": volume["device"],
                "Ebs": {
                    "VolumeId": volume["id"],
                    "Status": "attached",
                    "DeleteOnTermination": volume["delete_on_termination"],
                    "AttachTime": instant(machine.launched_at),
                },
            }
            for volume in machine.volumes
        ],
    }
    return shown


def reservations(cloud: Cloud, backend: Any, machines: Sequence[Machine]) -> list[dict[str, Any]]:
    """Instances grouped by the call that made them."""
    grouped: dict[str, list[Machine]] = {}
    for machine in machines:
        grouped.setdefault(machine.reservation_id, []).append(machine)
    return [
        {
            "ReservationId": reservation_id,
            "OwnerId": ACCOUNT_ID,
            "Groups": [],
            "Instances": [instance(cloud, backend, machine) for machine in group],
        }
        for reservation_id, group in grouped.items()
    ]


def _attachment(interface: Interface) -> dict[str, Any]:
    return {
        "AttachmentId": interface.attachment_id,
        "AttachTime": instant(interface.attached_at),
        "DeleteOnTermination": interface.delete_on_termination,
        "DeviceIndex": interface.device,
        "NetworkCardIndex": interface.card,
        "Status": "attached",
    }


def _addresses(interface: Interface) -> list[dict[str, Any]]:
    return [{"Primary": True, "PrivateIpAddress": interface.private_ip}] if interface.private_ip else []


def _of_instance(backend: Any, interface: Interface) -> dict[str, Any]:
    shown = {
        "NetworkInterfaceId": interface.id,
        "InterfaceType": interface.kind,
        "MacAddress": interface.mac,
        "OwnerId": ACCOUNT_ID,
        "SubnetId": interface.subnet_id,
        "VpcId": interface.vpc_id,
        "SourceDestCheck": True,
        "Status": "in-use",
        "Groups": group_names(backend, interface.vpc_id, interface.group_ids),
        "PrivateIpAddresses": _addresses(interface),
        "Attachment": _attachment(interface),
    }
    if interface.private_ip:
        shown["PrivateIpAddress"] = interface.private_ip
    return shown


def network_interface(cloud: Cloud, backend: Any, interface: Interface) -> dict[str, Any]:
    """One interface of DescribeNetworkInterfaces."""
    machine = cloud.machines.get(interface.instance_id)
    zone = cloud.options.zone if machine is None else machine.zone
    shown = {
        **_of_instance(backend, interface),
        "Status": "in-use" if interface.instance_id else "available",
        "AvailabilityZone": zone,
        "RequesterManaged": False,
        "Description": "",
        "TagSet": tag_list(interface.tags),
    }
    if interface.instance_id:
        shown["Attachment"] = {
            **_attachment(interface),
            "InstanceId": interface.instance_id,
            "InstanceOwnerId": ACCOUNT_ID,
        }
    else:
        del shown["Attachment"]
    return shown


def volume(machine: Machine, disk: Mapping[str, Any]) -> dict[str, Any]:
    """One volume of DescribeVolumes."""
    return {
        "VolumeId": disk["id"],
        "Size": disk["size_gib"],
        "VolumeType": disk["type"],
        "Encrypted": disk["encrypted"],
        "State": "in-use",
        "AvailabilityZone": machine.zone,
        "CreateTime": instant(machine.launched_at),
        "SnapshotId": "",
        "Tags": tag_list(disk["tags"]),
        "Attachments": [
            {
                "VolumeId": disk["id"],
                "InstanceId": machine.id,
                "Device": disk["device"],
                "State": "attached",
                "AttachTime": instant(machine.launched_at),
                "DeleteOnTermination": disk["delete_on_termination"],
            }
        ],
    }


def placement_group(cloud: Cloud, group: Group) -> dict[str, Any]:
    """One placement group."""
    return {
        "GroupName": group.name,
        "GroupId": group.id,
        "GroupArn": arn(cloud.options.region, "placement-group", group.name),
        "State": "available",
        "Strategy": group.strategy,
        "Tags": tag_list(group.tags),
    }


def launch_template(template: Template) -> dict[str, Any]:
    """One launch template, without its contents."""
    return {
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
        "CreateTime": instant(template.created_at),
        "CreatedBy": f"arn:aws:iam::{ACCOUNT_ID}:root",
        "DefaultVersionNumber": 1,
        "LatestVersionNumber": 1,
        "Tags": tag_list(template.tags),
    }


def template_version(template: Template) -> dict[str, Any]:
    """The one version of a launch template, with its contents as they were given."""
    return {
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
        "VersionNumber": 1,
        "VersionDescription": template.description,
        "CreateTime": instant(template.created_at),
        "CreatedBy": f"arn:aws:iam::{ACCOUNT_ID}:root",
        "DefaultVersion": True,
        "LaunchTemplateData": template.data,
    }


def instance_status(machine: Machine, name: str, reachable: bool) -> dict[str, Any]:
    """One entry of DescribeInstanceStatus; a machine that was lost runs on but fails its checks."""
    if name != "running":
        summary: dict[str, Any] = {"Status": "not-applicable"}
    elif reachable:
        summary = {"Status": "ok", "Details": [{"Name": "reachability", "Status": "passed"}]}
    else:
        summary = {"Status": "impaired", "Details": [{"Name": "reachability", "Status": "failed"}]}
    return {
        "InstanceId": machine.id,
        "AvailabilityZone": machine.zone,
        "AvailabilityZoneId": machine.zone_id,
        "InstanceState": state(name),
        "InstanceStatus": summary,
        "SystemStatus": summary,
        "Events": [
            {
                "InstanceEventId": planned["id"],
                "Code": planned["code"],
                "Description": planned["description"],
                "NotBefore": instant(planned["not_before"]),
                "NotAfter": instant(planned["not_after"]),
            }
            for planned in machine.planned
        ],
    }


def subnet(cloud: Cloud, model: Any) -> dict[str, Any]:
    """One subnet, with the addresses our instances have taken counted."""
    return {
        "SubnetId": model.id,
        "SubnetArn": model.arn,
        "State": model.state,
        "VpcId": model.vpc_id,
        "CidrBlock": model.cidr_block,
        "AvailableIpAddressCount": cloud.free_addresses(model.id, model.cidr_block),
        "AvailabilityZone": model.availability_zone,
        "AvailabilityZoneId": model.availability_zone_id,
        "DefaultForAz": model.default_for_az,
        "MapPublicIpOnLaunch": model.map_public_ip_on_launch,
        "OwnerId": ACCOUNT_ID,
        "Tags": [{"Key": tag["key"], "Value": tag["value"]} for tag in model.get_tags()],
    }
