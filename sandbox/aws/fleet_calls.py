"""The EC2 calls CreateFleet (instant) and DescribeInstanceTopology, mixed into the EC2 handler."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from moto.core.responses import ActionResult

from sandbox.aws import launch
from sandbox.aws.errors import AwsError, token_mismatch
from sandbox.aws.filters import matches
from sandbox.aws.state import Cloud, LaunchToken, Machine
from sandbox.world import World

#: Calls answered in this file.
CALLS: Final = frozenset({"create_fleet", "describe_instance_topology"})

#: Refusals that CreateFleet tells inside a 200, beside what other choices gave.
_TOLD_INSIDE: Final = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientFreeAddressesInSubnet",
        "ReservationCapacityExceeded",
        "Unsupported",
        "VcpuLimitExceeded",
    }
)
#: Layers of switches above an instance, by family; other types are not told.
_LAYERS: Final = {"p4d": 3, "p4de": 3, "p5": 3, "p5e": 3, "p5en": 3, "p6e-gb200": 3, "p6-b200": 4, "p6-b300": 4}
#: Machines under one switch of the lowest layer, and switches under one of the next.
_UNDER_LEAF: Final = 16
_UNDER_SPINE: Final = 4


def network_nodes(cloud: Cloud, machine: Machine) -> list[str]:
    """The switches above a machine, the top layer first; empty where AWS tells none."""
    layers = _LAYERS.get(machine.instance_type.partition(".")[0], 0)
    if not layers:
        return []
    leaf = machine.place // _UNDER_LEAF
    path: list[str] = []
    for up in range(layers):
        number = leaf // _UNDER_SPINE**up
        text = f"{machine.zone_id}/{machine.instance_type.split('.')[0]}/{layers - up}/{number}"
        path.insert(0, f"nn-{hashlib.sha256(text.encode()).hexdigest()[:17]}")
    return path


def _token(fleet_token: str) -> str:
    return f"fleet-{hashlib.sha256(fleet_token.encode()).hexdigest()[:32]}"


class FleetCalls:
    """One instant fleet a call, of one choice."""

    cloud: Cloud
    world: World
    ec2_backend: Any
    _all: Any
    _filters: Any

    def create_fleet(self) -> ActionResult:
        """The first choice with room for all; AWS's rules for what goes together are checked first."""
        asked = self._all
        target = asked.get("TargetCapacitySpecification") or {}
        options = asked.get("OnDemandOptions") or {}
        if asked.get("Type") != "instant":
            raise AwsError("InvalidParameterValue", "The sandbox makes fleets of type instant only.")
        if target.get("DefaultTargetCapacityType", "on-demand") != "on-demand":
            raise AwsError("InvalidParameterCombination", "The sandbox makes fleets on demand only.")
        total, least = int(target.get("TotalTargetCapacity") or 0), int(options.get("MinTargetCapacity") or 0)
        if not 1 <= total <= 1000:
            raise AwsError("InvalidParameterValue", "TotalTargetCapacity must be from 1 to 1000.")
        if least and not (options.get("SingleInstanceType") or options.get("SingleAvailabilityZone")):
            raise AwsError(
                "InvalidParameterCombination",
                "MinTargetCapacity requires SingleAvailabilityZone or SingleInstanceType.",
            )
        if asked.get("DryRun"):
            raise AwsError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412)
        fleet_id = _token(str(asked.get("ClientToken") or ""))
        used = self.cloud.tokens.get(fleet_id)
        if used is not None:
            if used.fingerprint != launch.fingerprint(asked):
                raise token_mismatch()
            return self._fleet(fleet_id, [self.cloud.machines[i] for i in used.instance_ids], [])
        return self._first(asked, fleet_id, total, least or total)

    def _first(self, asked: Mapping[str, Any], fleet_id: str, total: int, least: int) -> ActionResult:
        refused: list[dict[str, Any]] = []
        for config in asked.get("LaunchTemplateConfigs") or []:
            for override in config.get("Overrides") or [{}]:
                params = {
                    "LaunchTemplate": config.get("LaunchTemplateSpecification"),
                    "MinCount": least,
                    "MaxCount": total,
                    "TagSpecifications": [
                        t for t in asked.get("TagSpecifications") or [] if t.get("ResourceType") == "instance"
                    ],
                    **{k: v for k, v in override.items() if k in ("InstanceType", "ImageId", "Placement")},
                }
                try:
                    wanted = launch.plan(self.cloud, self.ec2_backend, params)
                    made = launch.make(self.cloud, self.world, wanted, params)
                except AwsError as error:
                    if error.code not in _TOLD_INSIDE:
                        raise
                    refused.append(_refusal(config, override, error))
                    continue
                ids = [machine.id for machine in made]
                self.cloud.tokens[fleet_id] = LaunchToken(launch.fingerprint(asked), ids)
                self.cloud.save()
                return self._fleet(fleet_id, made, refused)
        return self._fleet(fleet_id, [], refused)

    def _fleet(self, fleet_id: str, made: list[Machine], refused: list[dict[str, Any]]) -> ActionResult:
        answer: dict[str, Any] = {"FleetId": f"fleet-{fleet_id[6:14]}-0000-0000-0000-{fleet_id[14:26]}"}
        if made:
            answer["Instances"] = [
                {
                    "Lifecycle": "on-demand",
                    "InstanceIds": [machine.id for machine in made],
                    "InstanceType": made[0].instance_type,
                    "AvailabilityZone": made[0].zone,
                    "AvailabilityZoneId": made[0].zone_id,
                    "SubnetId": made[0].subnet_id,
                }
            ]
        if refused:
            answer["Errors"] = refused
        return ActionResult(answer)

    def describe_instance_topology(self) -> ActionResult:
        """Running instances of types that have one, by ids or by pages."""
        asked = self._all
        ids, groups = asked.get("InstanceIds") or [], asked.get("GroupNames") or []
        if ids and asked.get("MaxResults"):
            raise AwsError(
                "InvalidParameterCombination",
                "The parameter instanceIds cannot be used with the parameter maxResults",
            )
        if len(ids) > 100 or len(groups) > 100:
            raise AwsError("InvalidParameterValue", "At most 100 instance IDs or group names can be specified.")
        unknown = [i for i in ids if i not in self.cloud.machines]
        if unknown:
            raise launch.unknown_instances(unknown)
        for name in groups:
            if name not in self.cloud.groups:
                raise AwsError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        rows = []
        for machine in self.cloud.machines.values():
            if (ids and machine.id not in ids) or (groups and machine.placement_group not in groups):
                continue
            nodes = network_nodes(self.cloud, machine)
            values = {"instance-type": [machine.instance_type], "zone-id": [machine.zone_id]}
            known = {**values, "availability-zone": [machine.zone]}
            if nodes and self.cloud.state_of(machine) == "running" and matches(self._filters, {}, known.get):
                rows.append(self._place(machine, nodes))
        shown, following = self._paged(rows, least=1)  # type: ignore[attr-defined]
        return ActionResult({"Instances": list(shown), "NextToken": following})

    def _place(self, machine: Machine, nodes: list[str]) -> dict[str, Any]:
        row = {
            "InstanceId": machine.id,
            "InstanceType": machine.instance_type,
            "GroupName": machine.placement_group,
            "NetworkNodes": nodes,
            "AvailabilityZone": machine.zone,
            "ZoneId": machine.zone_id,
        }
        held = self.cloud.book.rows("reservations").get(self.cloud.book.reservation_of(machine.id), {})
        if held.get("ultraserver_type"):
            row["CapacityBlockId"] = held["block_id"]
        return row


def _refusal(config: Mapping[str, Any], override: Mapping[str, Any], error: AwsError) -> dict[str, Any]:
    chosen = {"LaunchTemplateSpecification": config.get("LaunchTemplateSpecification")}
    if override:
        chosen["Overrides"] = {k: v for k, v in override.items() if k in ("InstanceType", "SubnetId", "Priority")}
    return {
        "LaunchTemplateAndOverrides": chosen,
        "Lifecycle": "on-demand",
        "ErrorCode": error.code,
        "ErrorMessage": error.message,
    }
