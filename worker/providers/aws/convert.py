"""Turns our values into EC2 request parts and EC2 answers into our values."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from worker.providers import values as v
from worker.providers.aws.sources import launch_data
from worker.providers.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import (
        FilterTypeDef,
        InstanceTypeDef,
        LaunchTemplateTypeDef,
        NetworkInterfaceTypeDef,
        PlacementGroupTypeDef,
        TagSpecificationTypeDef,
        TagTypeDef,
    )

#: EC2's limit for user data, before base64.
USER_DATA_LIMIT_BYTES: Final = 16_384

#: Everything that RunInstances makes; each kind has to be tagged by name.
LAUNCHED_KINDS: Final = ("instance", "volume", "network-interface")


def tag_list(tags: Mapping[str, str]) -> list[TagTypeDef]:
    """Tags as EC2 wants them, in a stable order: the order counts for idempotency tokens."""
    return [{"Key": key, "Value": tags[key]} for key in sorted(tags)]


def tag_map(tags: Iterable[TagTypeDef] | None) -> dict[str, str]:
    """Tags as EC2 lists them, by key."""
    return {tag.get("Key", ""): tag.get("Value", "") for tag in tags or ()}


def tag_specifications(tags: Mapping[str, str], kinds: Sequence[str]) -> list[TagSpecificationTypeDef]:
    """The same tags on several kinds of resource."""
    listed = tag_list(tags)
    return [{"ResourceType": kind, "Tags": listed} for kind in kinds]  # type: ignore[typeddict-item]


def tag_filters(tags: Mapping[str, str]) -> list[FilterTypeDef]:
    """A filter for things that carry all these tags. Raises ``InvalidRequest`` for no tags."""
    if not tags:
        raise InvalidRequest("a search by tags needs at least one tag", source="aws", code="NoTags")
    return [{"Name": f"tag:{key}", "Values": [tags[key]]} for key in sorted(tags)]


def interface_specifications(
    interfaces: Sequence[v.InterfaceSpec], subnet_id: str, security_group_ids: Sequence[str]
) -> list[dict[str, Any]]:
    """Network interfaces of a launch template or of RunInstances; both shapes share these fields."""
    return [
        {
            "NetworkCardIndex": interface.card,
            "DeviceIndex": interface.device,
            "InterfaceType": interface.kind,
            "SubnetId": subnet_id,
            "Groups": list(security_group_ids),
            "DeleteOnTermination": True,
        }
        for interface in interfaces
    ]


def encoded_user_data(text: str) -> str:
    """User data in base64, which launch templates want from the caller. Raises ``InvalidRequest`` over EC2's limit."""
    raw = text.encode()
    if len(raw) > USER_DATA_LIMIT_BYTES:
        raise InvalidRequest(
            f"user data has {len(raw):,} bytes, EC2 takes at most {USER_DATA_LIMIT_BYTES:,}",
            source="aws",
            code="UserDataTooLong",
        )
    return base64.b64encode(raw).decode()


def template_data(spec: v.LaunchTemplateSpec, root_device: str) -> dict[str, Any]:
    """The contents of version 1 of a launch template."""
    data: dict[str, Any] = {
        "ImageId": spec.image_id,
        "InstanceType": spec.instance_type,
        "NetworkInterfaces": interface_specifications(spec.interfaces, spec.subnet_id, spec.security_group_ids),
        "EbsOptimized": True,
        "BlockDeviceMappings": [
            {
                "DeviceName": root_device,
                "Ebs": {
                    "VolumeSize": spec.root_volume_gib,
                    "VolumeType": "gp3",
                    "DeleteOnTermination": True,
                    "Encrypted": True,
                },
            }
        ],
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "UserData": encoded_user_data(spec.user_data),
        "TagSpecifications": tag_specifications(spec.tags, LAUNCHED_KINDS),
        **launch_data(spec.source),
    }
    if spec.instance_profile_arn:
        data["IamInstanceProfile"] = {"Arn": spec.instance_profile_arn}
    return data


def part(answer: Mapping[str, Any], key: str, operation: str) -> Any:
    """One top-level part of an answer.

    Raises ``Unavailable`` where it is missing: a page of a proxy that happens to be well-formed XML parses as an
    empty answer, and must not be read as "there are no instances".
    """
    if key not in answer:
        raise Unavailable(f"{operation}: the answer is not EC2's (it has no {key})", source="aws", code="NotAnAnswer")
    return answer[key]


def instance(raw: InstanceTypeDef) -> v.Instance:
    """An instance as DescribeInstances and RunInstances show it."""
    placement = raw.get("Placement", {})
    reason = raw.get("StateReason", {})
    provider_id = raw.get("InstanceId", "")
    return v.Instance(
        provider_id=provider_id,
        # A terminated instance has lost its private name.
        name=raw.get("PrivateDnsName", "").split(".")[0],
        instance_type=str(raw.get("InstanceType", "")),
        state=str(raw.get("State", {}).get("Name", "")),
        private_ip=raw.get("PrivateIpAddress", ""),
        zone_id=placement.get("AvailabilityZoneId", ""),
        placement_group=placement.get("GroupName", ""),
        launched_at=raw.get("LaunchTime"),
        tags=tag_map(raw.get("Tags")),
        state_reason=_reason(reason.get("Code", ""), reason.get("Message", "")),
        state_reason_code=reason.get("Code", ""),
        client_token=raw.get("ClientToken", ""),
        reservation_id=raw.get("CapacityReservationId", ""),
    )


def _reason(code: str, message: str) -> str:
    """AWS's code and words, the code once: some messages begin with it."""
    return message if message.startswith(code) else ": ".join(text for text in (code, message) if text)


def placement_group(raw: PlacementGroupTypeDef) -> v.PlacementGroup:
    """A placement group as EC2 shows it."""
    return v.PlacementGroup(
        name=raw.get("GroupName", ""),
        provider_id=raw.get("GroupId", ""),
        state=str(raw.get("State", "")),
        tags=tag_map(raw.get("Tags")),
    )


def launch_template(raw: LaunchTemplateTypeDef) -> v.LaunchTemplate:
    """A launch template pinned to version 1, which never changes."""
    return v.LaunchTemplate(
        provider_id=raw.get("LaunchTemplateId", ""),
        name=raw.get("LaunchTemplateName", ""),
        version="1",
        tags=tag_map(raw.get("Tags")),
    )


def _owned(
    kind: str, provider_id: str, state: str, tags: Mapping[str, str], created_at: Any = None, instance_type: str = ""
) -> v.Owned:
    return v.Owned(
        kind=kind,
        provider_id=provider_id,
        uid=tags.get(v.TAG_UID, ""),
        attempt=tags.get(v.TAG_ATTEMPT, ""),
        state=state,
        created_at=created_at,
        instance_type=instance_type,
    )


def owned_instance(raw: InstanceTypeDef) -> v.Owned:
    """An instance as the sweep sees it."""
    state = str(raw.get("State", {}).get("Name", ""))
    tags, kind = tag_map(raw.get("Tags")), str(raw.get("InstanceType", ""))
    return _owned("instance", raw.get("InstanceId", ""), state, tags, raw.get("LaunchTime"), kind)


def owned_placement_group(raw: PlacementGroupTypeDef) -> v.Owned:
    """A placement group as the sweep sees it; its provider id is the name, by which it is deleted."""
    return _owned("placement-group", raw.get("GroupName", ""), str(raw.get("State", "")), tag_map(raw.get("Tags")))


def owned_launch_template(raw: LaunchTemplateTypeDef) -> v.Owned:
    """A launch template as the sweep sees it."""
    tags = tag_map(raw.get("Tags"))
    return _owned("launch-template", raw.get("LaunchTemplateId", ""), "available", tags, raw.get("CreateTime"))


def owned_interface(raw: NetworkInterfaceTypeDef) -> v.Owned:
    """A network interface as the sweep sees it."""
    tags = tag_map(raw.get("TagSet"))
    return _owned("network-interface", raw.get("NetworkInterfaceId", ""), str(raw.get("Status", "")), tags)
