"""What the services that keep clusters share: launch templates of node groups, and their machines in EC2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from worker.providers import cluster_values as kv
from worker.providers import values as v
from worker.providers.aws import convert
from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import creating_client, reading_client
from worker.providers.aws.layouts import SHAPES, interface_layout
from worker.providers.errors import Conflict, NotFound

_STATES: Final = {"pending": "pending", "running": "running", "stopping": "ending", "shutting-down": "ending"}
#: Sources that need a launch template: the reservation stands in it.
_RESERVED: Final = frozenset({"capacity-block", "odcr"})


def template_name(uid: str) -> str:
    """The name of a group's launch template."""
    return f"qd-{uid.replace('_', '-')}"


def needs_template(spec: kv.GroupSpec) -> bool:
    """Whether interfaces or a reservation must be said in a launch template."""
    return spec.instance_type in SHAPES or spec.source in _RESERVED


def template_data(spec: kv.GroupSpec, group_ids: tuple[str, ...], backend: str, *, names_type: bool) -> dict[str, Any]:
    """Launch template data of a group: interfaces without a subnet, no instance profile (the service sets both)."""
    data: dict[str, Any] = {
        "EbsOptimized": True,
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        "TagSpecifications": convert.tag_specifications(spec.tags, convert.LAUNCHED_KINDS),
    }
    if names_type:
        data["InstanceType"] = spec.instance_type
    if spec.instance_type in SHAPES:
        data["NetworkInterfaces"] = [
            {
                "NetworkCardIndex": interface.card,
                "DeviceIndex": interface.device,
                "InterfaceType": interface.kind,
                "Groups": list(group_ids),
                "DeleteOnTermination": True,
            }
            for interface in interface_layout(spec.instance_type, backend)
        ]
    elif group_ids:
        data["SecurityGroupIds"] = list(group_ids)
    if spec.source == "capacity-block":
        data["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if spec.source in _RESERVED:
        data["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": spec.reservation_id}
        }
    return data


class Templates:
    """Launch templates of node groups in one account."""

    def __init__(self, access: v.CloudAccess) -> None:
        self._access = access

    def ensure(self, spec: kv.GroupSpec, data: Mapping[str, Any], client_token: str) -> str:
        """Create, or return ours of that name. Raises ``Conflict`` if the name is another owner's."""
        name = template_name(spec.uid)
        try:
            with aws_call("CreateLaunchTemplate"):
                answer = creating_client(self._access, "ec2").create_launch_template(
                    LaunchTemplateName=name,
                    ClientToken=client_token,
                    LaunchTemplateData=data,
                    TagSpecifications=convert.tag_specifications(spec.tags, ["launch-template"]),
                )
            return str(convert.part(answer, "LaunchTemplate", "CreateLaunchTemplate")["LaunchTemplateId"])
        except Conflict:
            found = self._find(name)
            if found is None or convert.tag_map(found.get("Tags")).get(v.TAG_UID) != spec.uid:
                raise
            return str(found["LaunchTemplateId"])

    def _find(self, name: str) -> Any | None:
        try:
            with aws_call("DescribeLaunchTemplates"):
                answer = reading_client(self._access, "ec2").describe_launch_templates(LaunchTemplateNames=[name])
        except NotFound:
            return None
        found = answer.get("LaunchTemplates") or []
        return found[0] if found else None

    def delete(self, uid: str) -> None:
        """Delete by the group's uid; ``NotFound`` when gone."""
        with aws_call("DeleteLaunchTemplate"):
            reading_client(self._access, "ec2").delete_launch_template(LaunchTemplateName=template_name(uid))


def tagged_machines(access: v.CloudAccess, tag: str, value: str) -> tuple[tuple[kv.SeenMember, Mapping[str, str]], ...]:
    """Living EC2 machines with a tag of a service, each with all its tags; no group is known yet."""
    found = []
    for raw in _instances(access, tag, value):
        machine = convert.instance(raw)
        state = _STATES.get(machine.state)
        if state is None:
            continue
        member = kv.SeenMember(
            provider_id=machine.provider_id,
            name=machine.name,
            group="",
            state=state,
            word=machine.state,
            instance_type=machine.instance_type,
            message=machine.state_reason,
            private_ip=machine.private_ip,
            zone_id=machine.zone_id,
        )
        found.append((member, machine.tags))
    return tuple(found)


def machines(access: v.CloudAccess, tag: str, value: str, group_tag: str) -> tuple[kv.SeenMember, ...]:
    """The same, each with what another tag says as its group."""
    return tuple(replace(m, group=tags.get(group_tag, "")) for m, tags in tagged_machines(access, tag, value))


def _instances(access: v.CloudAccess, tag: str, value: str) -> Iterator[Any]:
    token = ""
    while True:
        with aws_call("DescribeInstances"):
            answer = reading_client(access, "ec2").describe_instances(
                Filters=[{"Name": f"tag:{tag}", "Values": [value]}],
                MaxResults=1000,
                **({"NextToken": token} if token else {}),
            )
        for reservation in answer.get("Reservations") or []:
            yield from reservation.get("Instances") or []
        token = str(answer.get("NextToken") or "")
        if not token:
            return
