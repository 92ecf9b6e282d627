"""Where instances hang in the network, and what AWS has planned for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from worker.providers import values as v
from worker.providers.aws import convert
from worker.providers.aws.calls import aws_call

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

#: AWS takes so many ids in a call, and lists so many in a page of a group.
TOPOLOGY_A_CALL: Final = 100
EVENTS_A_PAGE: Final = 1000
EVENT_CODES: Final = ("instance-retirement", "instance-stop", "instance-reboot", "system-reboot", "system-maintenance")


def topology(ec2: EC2Client, instance_ids: Sequence[str], group_name: str) -> tuple[v.NetworkPlace, ...]:
    """Places of running instances: by group where they stand in one, else by ids. What is not running has none."""
    found: list[v.NetworkPlace] = []
    if group_name:
        wanted = frozenset(instance_ids)
        found += [p for p in _by_group(ec2, group_name) if not wanted or p.provider_id in wanted]
        return tuple(found)
    for start in range(0, len(instance_ids), TOPOLOGY_A_CALL):
        with aws_call("DescribeInstanceTopology"):
            # Ids and MaxResults exclude each other.
            answer = ec2.describe_instance_topology(InstanceIds=list(instance_ids[start : start + TOPOLOGY_A_CALL]))
        found += [_place(raw) for raw in convert.part(answer, "Instances", "DescribeInstanceTopology")]
    return tuple(found)


def _by_group(ec2: EC2Client, group_name: str) -> Iterator[v.NetworkPlace]:
    token = ""
    while True:
        more: Any = {"NextToken": token} if token else {}
        with aws_call("DescribeInstanceTopology"):
            answer = ec2.describe_instance_topology(GroupNames=[group_name], MaxResults=TOPOLOGY_A_CALL, **more)
        yield from (_place(raw) for raw in convert.part(answer, "Instances", "DescribeInstanceTopology"))
        token = str(answer.get("NextToken") or "")
        if not token:
            return


def _place(raw: Mapping[str, Any]) -> v.NetworkPlace:
    return v.NetworkPlace(
        provider_id=str(raw.get("InstanceId", "")),
        network_nodes=tuple(str(node) for node in raw.get("NetworkNodes") or ()),
        group_name=str(raw.get("GroupName") or ""),
        block_id=str(raw.get("CapacityBlockId") or ""),
    )


def instance_events(ec2: EC2Client) -> tuple[v.InstanceEvent, ...]:
    """All events planned in the account, one page of up to a thousand instances a call; completed ones left out."""
    found: list[v.InstanceEvent] = []
    token = ""
    while True:
        more: Any = {"NextToken": token} if token else {}
        with aws_call("DescribeInstanceStatus"):
            answer = ec2.describe_instance_status(
                Filters=[{"Name": "event.code", "Values": list(EVENT_CODES)}],
                IncludeAllInstances=True,
                MaxResults=EVENTS_A_PAGE,
                **more,
            )
        for status in convert.part(answer, "InstanceStatuses", "DescribeInstanceStatus"):
            for raw in status.get("Events") or []:
                description = str(raw.get("Description", ""))
                # AWS goes on listing what is over, with a word before it.
                if description.startswith(("[Completed]", "[Canceled]")):
                    continue
                found.append(
                    v.InstanceEvent(
                        provider_id=str(status.get("InstanceId", "")),
                        code=str(raw.get("Code", "")),
                        description=description,
                        not_before=raw.get("NotBefore"),
                        not_after=raw.get("NotAfter"),
                    )
                )
        token = str(answer.get("NextToken") or "")
        if not token:
            return tuple(found)
