"""RunInstances: template and request merged, everything checked as EC2 checks it, then all instances or none."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sandbox.aws import seed
from sandbox.aws.errors import AwsError, insufficient_capacity, token_mismatch, token_terminated, vcpu_limit
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.state import Cloud, Interface, LaunchToken, Machine, new_id
from sandbox.world import Fault, World

#: Parts of a request that do not say what is wanted.
_NOT_PARAMETERS: Final = frozenset({"ClientToken", "DryRun"})


@dataclass
class Plan:
    """A checked request: what each instance gets."""

    instance_type: str
    image_id: str
    architecture: str
    root_device: str
    subnet: Any
    group_ids: list[str]
    interfaces: list[dict[str, Any]]
    placement_group: str
    user_data: str
    profile_arn: str
    metadata_options: dict[str, Any]
    ebs_optimized: bool
    disks: list[dict[str, Any]]
    least: int
    most: int
    vcpus: int
    cores: int
    memory_mib: int
    tags: dict[str, dict[str, str]] = field(default_factory=dict)
    #: What decides where the machines come from: market, reservation and placement, as asked.
    source: dict[str, Any] = field(default_factory=dict)


#: The parameters of a launch that name its capacity.
_SOURCE: Final = ("InstanceMarketOptions", "CapacityReservationSpecification", "Placement")


def fingerprint(params: Mapping[str, Any]) -> str:
    """A digest of what a request wants, the same for the same wishes in any order of keys."""
    wanted = {key: value for key, value in params.items() if key not in _NOT_PARAMETERS}
    return hashlib.sha256(json.dumps(wanted, sort_keys=True, default=str).encode()).hexdigest()


def tags_by_kind(specifications: Any) -> dict[str, dict[str, str]]:
    """TagSpecifications as tags by resource type."""
    found: dict[str, dict[str, str]] = {}
    for specification in specifications or []:
        kind = specification.get("ResourceType", "")
        found.setdefault(kind, {}).update({t["Key"]: t.get("Value", "") for t in specification.get("Tags", [])})
    return found


def replay(cloud: Cloud, params: Mapping[str, Any]) -> list[Machine] | None:
    """The instances that this token already made, None for a new token. Raises ``AwsError`` for a misused one."""
    used = cloud.tokens.get(params.get("ClientToken") or "")
    if used is None:
        return None
    if used.fingerprint != fingerprint(params):
        raise token_mismatch()
    made = [cloud.machines.get(instance_id) for instance_id in used.instance_ids]
    alive = [machine for machine in made if machine is not None and machine.terminated_at is None]
    if len(alive) < len(made):
        raise token_terminated()
    return alive


def plan(cloud: Cloud, backend: Any, params: Mapping[str, Any]) -> Plan:
    """Merge the template with the request and check everything that needs no capacity. Raises as EC2 does."""
    data = {**_template(cloud, params.get("LaunchTemplate")), **{k: v for k, v in params.items() if v is not None}}
    least, most = int(data.get("MinCount") or 1), int(data.get("MaxCount") or 1)
    if least < 1 or most < least:
        raise AwsError(
            "InvalidParameterValue", f"Value ({least}) for parameter minCount is invalid: it must be 1 to maxCount."
        )
    name = str(data.get("InstanceType") or "")
    described = seed.instance_type(name)
    if described is None:
        raise AwsError("InvalidParameterValue", f"Invalid value '{name}' for InstanceType.")
    image_id = str(data.get("ImageId") or "")
    if not image_id:
        raise AwsError("MissingParameter", "The request must contain the parameter ImageId")
    image = backend.amis.get(image_id)
    if image is None:
        raise AwsError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
    architectures = described["ProcessorInfo"]["SupportedArchitectures"]
    if image.architecture not in architectures:
        raise AwsError(
            "InvalidParameterValue",
            f"The architecture '{architectures[0]}' of the specified instance type does not match the architecture "
            f"'{image.architecture}' of the specified AMI. Specify an instance type and an AMI that have matching "
            "architectures, and try again.",
        )
    interfaces = _interfaces(data, described)
    subnet = _subnet(backend, interfaces)
    group_ids = _groups(backend, subnet, interfaces)
    zones = seed.zones_offering(name, backend.region_name)
    if subnet.availability_zone not in zones:
        choice = f" or choosing {', '.join(zones)}" if zones else ""
        raise AwsError(
            "Unsupported",
            f"Your requested instance type ({name}) is not supported in your requested Availability Zone "
            f"({subnet.availability_zone}). Please retry your request by not specifying an Availability Zone{choice}.",
        )
    placement_group = str((data.get("Placement") or {}).get("GroupName") or "")
    if placement_group and placement_group not in cloud.groups:
        raise AwsError("InvalidPlacementGroup.Unknown", f"The Placement Group '{placement_group}' is unknown.")
    tags = tags_by_kind(_template(cloud, params.get("LaunchTemplate")).get("TagSpecifications"))
    for kind, own in tags_by_kind(params.get("TagSpecifications")).items():
        tags.setdefault(kind, {}).update(own)
    cpu = described["VCpuInfo"]
    return Plan(
        instance_type=name,
        image_id=image_id,
        architecture=image.architecture,
        root_device=image.root_device_name,
        subnet=subnet,
        group_ids=group_ids,
        interfaces=interfaces,
        placement_group=placement_group,
        user_data=str(data.get("UserData") or ""),
        profile_arn=str((data.get("IamInstanceProfile") or {}).get("Arn") or ""),
        metadata_options=dict(data.get("MetadataOptions") or {}),
        ebs_optimized=bool(data.get("EbsOptimized")),
        disks=_disks(data, image.root_device_name),
        least=least,
        most=most,
        vcpus=int(cpu["DefaultVCpus"]),
        cores=int(cpu.get("DefaultCores") or cpu["DefaultVCpus"]),
        memory_mib=int(described["MemoryInfo"]["SizeInMiB"]),
        tags=tags,
        source={key: data[key] for key in _SOURCE if data.get(key)},
    )


def _template(cloud: Cloud, named: Any) -> dict[str, Any]:
    if not named:
        return {}
    wanted_id, wanted_name = named.get("LaunchTemplateId"), named.get("LaunchTemplateName")
    for template in cloud.templates.values():
        if template.id == wanted_id or (not wanted_id and template.name == wanted_name):
            break
    else:
        if wanted_id:
            raise AwsError("InvalidLaunchTemplateId.NotFound", f"LaunchTemplate {wanted_id} does not exist.")
        raise AwsError("InvalidLaunchTemplateName.NotFoundException", f"LaunchTemplate {wanted_name} does not exist.")
    version = str(named.get("Version") or "$Default")
    if version not in ("1", "$Default", "$Latest"):
        raise AwsError(
            "InvalidLaunchTemplateId.VersionNotFound",
            f"Could not find the specified version {version} for {template.id}.",
        )
    return template.data


def _interfaces(data: Mapping[str, Any], described: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The interfaces asked for, checked against the type's network cards; one ENA interface where none is asked for."""
    asked = data.get("NetworkInterfaces") or []
    if asked and (data.get("SubnetId") or data.get("SecurityGroupIds")):
        raise AwsError(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level subnet ID or security groups may not be specified on the same "
            "request",
        )
    if not asked:
        asked = [{"SubnetId": data.get("SubnetId"), "Groups": data.get("SecurityGroupIds") or []}]
    name = described["InstanceType"]
    network = described["NetworkInfo"]
    cards = {card["NetworkCardIndex"]: card for card in network["NetworkCards"]}
    most, most_efas = network["MaximumNetworkInterfaces"], network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    found = [
        {
            "card": int(raw.get("NetworkCardIndex") or 0),
            "device": int(raw.get("DeviceIndex") or 0),
            "kind": raw.get("InterfaceType") or "interface",
            "subnet_id": raw.get("SubnetId"),
            "group_ids": list(raw.get("Groups") or []),
            "delete_on_termination": raw.get("DeleteOnTermination") is not False,
            "address_asked": bool(raw.get("PrivateIpAddress") or raw.get("PrivateIpAddresses")),
        }
        for raw in asked
    ]
    if len(found) > most:
        raise AwsError(
            "AttachmentLimitExceeded", f"Interface count {len(found)} exceeds the limit for {name}, which is {most}."
        )
    if len({(i["card"], i["device"]) for i in found}) != len(found):
        raise AwsError("InvalidParameterValue", "Each network interface requires a unique card and device index.")
    for interface in found:
        _fits(interface, cards, name)
    for index, card in cards.items():
        count = sum(1 for interface in found if interface["card"] == index)
        if count > card["MaximumNetworkInterfaces"]:
            raise AwsError(
                "AttachmentLimitExceeded",
                f"Interface count {count} exceeds the limit for network card {index} of {name}, which is "
                f"{card['MaximumNetworkInterfaces']}.",
            )
    if not any((i["card"], i["device"]) == (0, 0) for i in found):
        raise AwsError("InvalidParameterValue", "A primary network interface (card 0, device 0) is required.")
    if sum(1 for interface in found if interface["kind"] != "interface") > most_efas:
        raise AwsError("AttachmentLimitExceeded", f"{name} takes at most {most_efas} EFA interfaces.")
    return found


def _fits(interface: Mapping[str, Any], cards: Mapping[int, Any], name: str) -> None:
    card = cards.get(interface["card"])
    if card is None:
        raise AwsError("InvalidParameterValue", f"Network card index {interface['card']} is not valid for {name}.")
    allowed = card.get("InterfaceTypes") or ["interface", "efa", "efa-only"]
    if interface["kind"] not in allowed:
        raise AwsError(
            "InvalidParameterValue",
            f"Interface type {interface['kind']} is not supported on network card {interface['card']} of {name}.",
        )
    if interface["kind"] == "efa-only":
        if (interface["card"], interface["device"]) == (0, 0):
            raise AwsError("InvalidParameterCombination", "The primary network interface can't be of type efa-only.")
        if interface["address_asked"]:
            raise AwsError("InvalidParameterCombination", "An efa-only network interface can't have IP addresses.")


def _subnet(backend: Any, interfaces: list[dict[str, Any]]) -> Any:
    asked = {interface["subnet_id"] for interface in interfaces}
    if len(asked) != 1 or None in asked:
        raise AwsError("InvalidParameterCombination", "All network interfaces must name the same subnet.")
    subnet_id = asked.pop()
    for subnets in backend.subnets.values():
        if subnet_id in subnets:
            return subnets[subnet_id]
    raise AwsError("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist")


def _groups(backend: Any, subnet: Any, interfaces: list[dict[str, Any]]) -> list[str]:
    known = backend.groups.get(subnet.vpc_id, {})
    for interface in interfaces:
        if not interface["group_ids"]:
            interface["group_ids"] = [group.id for group in known.values() if group.name == "default"]
        for group_id in interface["group_ids"]:
            if group_id not in known:
                raise AwsError(
                    "InvalidGroup.NotFound", f"The security group '{group_id}' does not exist in VPC '{subnet.vpc_id}'"
                )
    primary = next(i for i in interfaces if (i["card"], i["device"]) == (0, 0))
    return list(primary["group_ids"])


def _disks(data: Mapping[str, Any], root_device: str) -> list[dict[str, Any]]:
    asked = {raw.get("DeviceName"): raw.get("Ebs") or {} for raw in data.get("BlockDeviceMappings") or []}
    asked.setdefault(root_device, {})
    return [
        {
            "device": device,
            "size_gib": int(ebs.get("VolumeSize") or 15),
            "type": ebs.get("VolumeType") or "gp3",
            "encrypted": bool(ebs.get("Encrypted")),
            "delete_on_termination": ebs.get("DeleteOnTermination") is not False,
        }
        for device, ebs in asked.items()
    ]


def make(cloud: Cloud, world: World, wanted: Plan, params: Mapping[str, Any]) -> list[Machine]:
    """Take quota, capacity and addresses, or raise having taken nothing."""
    name, zone = wanted.instance_type, wanted.subnet.availability_zone
    options, book = cloud.options, cloud.book
    held = book.admit(wanted.source, name, zone, wanted.least)
    if any(held) and world.fault_use("wrong-reservation", instance_type=name) is not None:
        held = [""] * len(held)
    # Blocks have their own quota and their own machines.
    if not book.is_block(held[0]):
        limit = options.quota_of(name)
        bucket = [m for m in _outside_blocks(cloud, cloud.live()) if _same_bucket(m.instance_type, name)]
        if sum(machine.vcpus for machine in bucket) + wanted.least * wanted.vcpus > limit:
            raise vcpu_limit(limit)
    count = wanted.least
    if "" in held:
        free = options.pool_of(name) - len(_outside_blocks(cloud, cloud.live(name))) - book.kept_back(name)
        if free < held.count("") or world.fault_use("no-capacity", instance_type=name, zone=zone) is not None:
            others = [other for other in seed.zones_offering(name, options.region) if other != zone]
            raise insufficient_capacity(name, zone, others)
        count = min(wanted.most, free + len(held) - held.count(""))
        held += [""] * (count - len(held))
    with_address = sum(1 for interface in wanted.interfaces if interface["kind"] != "efa-only")
    addresses = cloud.take_addresses(wanted.subnet.id, wanted.subnet.cidr_block, count * with_address)
    reservation_id, now = new_id("r"), time.time()
    made = []
    for index in range(count):
        own = addresses[index * with_address : (index + 1) * with_address]
        made.append(_machine(cloud, wanted, params, reservation_id, index, own, now))
    _doom(made, world.fault_use("partial-start", instance_type=name), options.boot_s)
    book.take({machine.id: of for machine, of in zip(made, held, strict=True)})
    if params.get("ClientToken"):
        cloud.tokens[params["ClientToken"]] = LaunchToken(fingerprint(params), [machine.id for machine in made])
    cloud.save()
    return made


def _outside_blocks(cloud: Cloud, machines: list[Machine]) -> list[Machine]:
    return [m for m in machines if not cloud.book.is_block(cloud.book.reservation_of(m.id))]


#: StateReasons of machines that die pending, as EC2 words them.
DEATHS: Final = {
    "Client.VolumeLimitExceeded": "Volume limit exceeded. You have exceeded the maximum gp3 storage in this region",
    "Client.InternalError": "Client error on launch",
    "Client.InvalidSnapshot.NotFound": "The snapshot of the image does not exist",
    "Server.InsufficientInstanceCapacity": "There was insufficient capacity available to satisfy the launch request",
    "Server.InternalError": "Internal error on launch",
}


def _doom(made: list[Machine], fault: Fault | None, boot_s: float) -> None:
    """Let the last of these machines die before they run, as the fault says."""
    if fault is None:
        return
    code = str(fault.parameters.get("reason") or "Server.InternalError")
    for machine in made[-int(str(fault.parameters.get("count") or 1)) :]:
        machine.death = [code, f"{code}: {DEATHS[code]}"]
        machine.terminated_at = machine.launched_at + boot_s / 2


def _place(cloud: Cloud, instance_type: str, zone: str) -> int:
    """The first free place among the live machines of a type and zone: late machines fill gaps far apart."""
    taken = {m.place for m in cloud.live(instance_type) if m.zone == zone}
    return next(n for n in range(len(taken) + 1) if n not in taken)


def _same_bucket(one: str, other: str) -> bool:
    quoted = ("p", "g")
    return one[:1] == other[:1] or (one[:1] not in quoted and other[:1] not in quoted)


def _private_dns_name(address: str, region: str) -> str:
    dashed = address.replace(".", "-")
    return f"ip-{dashed}.ec2.internal" if region == "us-east-1" else f"ip-{dashed}.{region}.compute.internal"


def _machine(
    cloud: Cloud,
    wanted: Plan,
    params: Mapping[str, Any],
    reservation_id: str,
    index: int,
    addresses: list[str],
    now: float,
) -> Machine:
    subnet, instance_id = wanted.subnet, new_id("i")
    tags = dict(wanted.tags.get("instance", {}))
    named = params.get("LaunchTemplate") or {}
    if named.get("LaunchTemplateId"):
        tags["aws:ec2launchtemplate:id"] = named["LaunchTemplateId"]
        tags["aws:ec2launchtemplate:version"] = "1"
    left = iter(addresses)
    # The primary gets the first address, whatever order the request lists them in.
    primary_address = ""
    for asked in sorted(wanted.interfaces, key=lambda i: (i["card"], i["device"])):
        address = "" if asked["kind"] == "efa-only" else next(left)
        primary_address = primary_address or address
        interface = Interface(
            id=new_id("eni"),
            instance_id=instance_id,
            card=asked["card"],
            device=asked["device"],
            kind=asked["kind"],
            subnet_id=subnet.id,
            vpc_id=subnet.vpc_id,
            group_ids=list(asked["group_ids"]),
            private_ip=address,
            mac="0a:" + ":".join(f"{byte:02x}" for byte in secrets.token_bytes(5)),
            tags=dict(wanted.tags.get("network-interface", {})),
            delete_on_termination=asked["delete_on_termination"],
            attachment_id=new_id("eni-attach"),
            attached_at=now,
        )
        cloud.interfaces[interface.id] = interface
    volume_tags = wanted.tags.get("volume", {})
    machine = Machine(
        id=instance_id,
        reservation_id=reservation_id,
        client_token=str(params.get("ClientToken") or ""),
        index=index,
        instance_type=wanted.instance_type,
        vcpus=wanted.vcpus,
        cores=wanted.cores,
        memory_mib=wanted.memory_mib,
        image_id=wanted.image_id,
        architecture=wanted.architecture,
        root_device=wanted.root_device,
        subnet_id=subnet.id,
        vpc_id=subnet.vpc_id,
        zone=subnet.availability_zone,
        zone_id=subnet.availability_zone_id,
        group_ids=wanted.group_ids,
        private_ip=primary_address,
        private_dns_name=_private_dns_name(primary_address, cloud.options.region),
        placement_group=wanted.placement_group,
        user_data=wanted.user_data,
        profile_arn=wanted.profile_arn,
        metadata_options=wanted.metadata_options,
        ebs_optimized=wanted.ebs_optimized,
        volumes=[{**disk, "id": new_id("vol"), "tags": dict(volume_tags)} for disk in wanted.disks],
        tags=tags,
        launched_at=now,
        place=_place(cloud, wanted.instance_type, subnet.availability_zone),
    )
    cloud.machines[machine.id] = machine
    return machine


def terminate(cloud: Cloud, instance_ids: list[str]) -> list[tuple[Machine, str]]:
    """End instances; one unknown id fails the whole call. Returns each with its state before."""
    unknown = [instance_id for instance_id in instance_ids if instance_id not in cloud.machines]
    if unknown:
        raise unknown_instances(unknown)
    ended = []
    for instance_id in dict.fromkeys(instance_ids):
        machine = cloud.machines[instance_id]
        ended.append((machine, cloud.state_of(machine)))
        if machine.terminated_at is None:
            machine.terminated_at = time.time()
    cloud.save()
    return ended


def unknown_instances(unknown: list[str]) -> AwsError:
    """EC2's words for one or several instance ids that do not exist."""
    if len(unknown) == 1:
        return AwsError("InvalidInstanceID.NotFound", f"The instance ID '{unknown[0]}' does not exist")
    return AwsError("InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(unknown)}' do not exist")


def arn(region: str, kind: str, name: str) -> str:
    """The ARN of an EC2 thing in the fake account."""
    return f"arn:aws:ec2:{region}:{ACCOUNT_ID}:{kind}/{name}"
