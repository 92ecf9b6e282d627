"""The EC2 calls: ours for everything a fleet makes, moto's for networks, images and instance types."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from moto.core.responses import ActionResult
from moto.core.utils import camelcase_to_underscores
from moto.ec2.responses import EC2Response

from sandbox.aws import block_calls, fleet_calls, launch, reservation_calls, views
from sandbox.aws.block_calls import BlockCalls
from sandbox.aws.errors import AwsError, invalid_action, token_mismatch
from sandbox.aws.filters import Filters, matches, page
from sandbox.aws.fleet_calls import FleetCalls
from sandbox.aws.modelcheck import answer_problems, request_problems, service_model
from sandbox.aws.service import WrongAnswer
from sandbox.aws.state import Cloud, Group, Interface, Machine, Template, new_id
from sandbox.aws.tag_calls import TagCalls
from sandbox.world import World

#: Calls answered in this file.
OURS: Final = frozenset(
    {
        "create_launch_template",
        "create_placement_group",
        "create_tags",
        "delete_launch_template",
        "delete_network_interface",
        "delete_placement_group",
        "delete_security_group",
        "delete_subnet",
        "delete_tags",
        "describe_instance_status",
        "describe_instances",
        "describe_launch_template_versions",
        "describe_launch_templates",
        "describe_network_interfaces",
        "describe_placement_groups",
        "describe_subnets",
        "describe_tags",
        "describe_volumes",
        "run_instances",
        "terminate_instances",
    }
    | reservation_calls.CALLS
    | block_calls.CALLS
    | fleet_calls.CALLS
)

#: Calls that moto answers rightly. Anything else would act on moto's own idea of instances, so it does not exist here.
MOTO: Final = frozenset(
    {
        "authorize_security_group_egress",
        "authorize_security_group_ingress",
        "create_security_group",
        "create_subnet",
        "create_vpc",
        "delete_vpc",
        "describe_account_attributes",
        "describe_availability_zones",
        "describe_images",
        "describe_instance_type_offerings",
        "describe_instance_types",
        "describe_network_acls",
        "describe_regions",
        "describe_route_tables",
        "describe_security_group_rules",
        "describe_security_groups",
        "describe_vpcs",
        "register_image",
        "revoke_security_group_egress",
        "revoke_security_group_ingress",
    }
)


def _plain(value: Any) -> Any:
    """moto's parsed parameters as plain JSON types, so that they can be saved and compared."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


class Ec2Handler(FleetCalls, TagCalls, BlockCalls, EC2Response):  # type: ignore[misc]
    """Answers one EC2 call of one ``Cloud``. Errors leave as ``AwsError`` or as moto's own."""

    def __init__(self, cloud: Cloud, world: World) -> None:
        super().__init__()
        self.cloud = cloud
        self.world = world

    # --- plumbing

    def call_action(self) -> Any:
        """Answer, or say that the call does not exist."""
        name = str(self._get_action())
        if camelcase_to_underscores(name) not in OURS | MOTO:
            raise invalid_action(name)
        if self.region != self.cloud.options.region:
            raise AwsError(
                "AuthFailure",
                f"The sandbox has only the region {self.cloud.options.region}, not {self.region}.",
                status=401,
            )
        operation = service_model("ec2").operation_model(name)
        problems = request_problems(operation, self._all)
        if problems:
            raise AwsError("InvalidParameterValue", f"The request is not as EC2 takes it: {'; '.join(problems[:5])}")
        with self.cloud.lock:
            self.cloud.settle()
            return super().call_action()

    def serialized(self, action_result: ActionResult) -> Any:
        """The answer as XML. Raises ``WrongAnswer`` for one that EC2 could not give."""
        # moto's own answers hold its objects, which it serialises by the same model.
        if isinstance(action_result.result, Mapping) and camelcase_to_underscores(str(self._get_action())) in OURS:
            operation = service_model("ec2").operation_model(self._get_action())
            wrong = answer_problems(operation, action_result.result)
            if wrong:
                raise WrongAnswer(f"ec2 {operation.name}: {'; '.join(wrong[:5])}")
        return super().serialized(action_result)

    @property
    def _all(self) -> dict[str, Any]:
        plain: dict[str, Any] = _plain(self.params)
        return plain

    @property
    def _filters(self) -> Filters:
        found: Filters = self._filters_from_querystring()
        return found

    def _tags(self, kind: str) -> dict[str, str]:
        return launch.tags_by_kind(self._all.get("TagSpecifications")).get(kind, {})

    def _refuse_dry_run(self) -> None:
        if self._all.get("DryRun"):
            raise AwsError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412)

    def _required(self, name: str) -> str:
        value = str(self._all.get(name) or "")
        if not value:
            raise AwsError("MissingParameter", f"The request must contain the parameter {name}")
        return value

    def _paged(self, things: Sequence[Any], *, least: int = 5) -> tuple[Sequence[Any], str | None]:
        asked = self._all
        return page(things, asked.get("MaxResults"), asked.get("NextToken"), least=least)

    # --- placement groups

    def create_placement_group(self) -> ActionResult:
        """Names are unique in the account; there is no idempotency token."""
        name = self._required("GroupName")
        if name in self.cloud.groups:
            raise AwsError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
        self._refuse_dry_run()
        group = Group(new_id("pg"), name, str(self._all.get("Strategy") or "cluster"), self._tags("placement-group"))
        self.cloud.groups[name] = group
        self.cloud.save()
        return ActionResult({"PlacementGroup": views.placement_group(self.cloud, group)})

    def describe_placement_groups(self) -> ActionResult:
        """All groups, or those named; an unknown name is an error."""
        asked = self._all
        groups = list(self.cloud.groups.values())
        for name in asked.get("GroupNames") or []:
            if name not in self.cloud.groups:
                raise _unknown_group(name)
        known_ids = {group.id for group in groups}
        for group_id in asked.get("GroupIds") or []:
            if group_id not in known_ids:
                raise AwsError("InvalidPlacementGroupId.NotFound", f"The Placement Group ID '{group_id}' is unknown.")
        names, ids = asked.get("GroupNames") or [], asked.get("GroupIds") or []
        chosen = [g for g in groups if (not names or g.name in names) and (not ids or g.id in ids)]

        def passes(group: Group) -> bool:
            values = {"group-name": [group.name], "state": ["available"], "strategy": [group.strategy]}
            return matches(self._filters, group.tags, values.get)

        return ActionResult({"PlacementGroups": [views.placement_group(self.cloud, g) for g in chosen if passes(g)]})

    def delete_placement_group(self) -> ActionResult:
        """Refused until the last instance in the group is terminated."""
        name = self._required("GroupName")
        if name not in self.cloud.groups:
            raise _unknown_group(name)
        if any(machine.placement_group == name for machine in self.cloud.live()):
            raise AwsError(
                "InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use and may not be deleted."
            )
        self._refuse_dry_run()
        del self.cloud.groups[name]
        self.cloud.save()
        return ActionResult(None)

    # --- launch templates

    def create_launch_template(self) -> ActionResult:
        """The same token with the same parameters answers with what it made before."""
        name, token = self._required("LaunchTemplateName"), str(self._all.get("ClientToken") or "")
        digest = launch.fingerprint(self._all)
        for template in self.cloud.templates.values():
            if token and template.client_token == token:
                if template.fingerprint != digest:
                    raise token_mismatch()
                return ActionResult({"LaunchTemplate": views.launch_template(template)})
        if any(template.name == name for template in self.cloud.templates.values()):
            raise AwsError("InvalidLaunchTemplateName.AlreadyExistsException", "Launch template name already in use.")
        data = self._all.get("LaunchTemplateData") or {}
        if not data:
            raise AwsError("MissingParameter", "The request must contain the parameter LaunchTemplateData")
        self._refuse_dry_run()
        description = str(self._all.get("VersionDescription") or "")
        tags = self._tags("launch-template")
        template = Template(new_id("lt"), name, data, tags, description, time.time(), token, digest)
        self.cloud.templates[template.id] = template
        self.cloud.save()
        return ActionResult({"LaunchTemplate": views.launch_template(template)})

    def _template(self) -> Template:
        template_id, name = self._all.get("LaunchTemplateId"), self._all.get("LaunchTemplateName")
        for template in self.cloud.templates.values():
            if template.id == template_id or (not template_id and template.name == name):
                return template
        raise _unknown_template(template_id, name)

    def describe_launch_templates(self) -> ActionResult:
        """All templates, or those named; an unknown one is an error."""
        ids, names = self._all.get("LaunchTemplateIds") or [], self._all.get("LaunchTemplateNames") or []
        templates = list(self.cloud.templates.values())
        for template_id in ids:
            if template_id not in self.cloud.templates:
                raise _unknown_template(template_id, None)
        for name in names:
            if all(template.name != name for template in templates):
                raise _unknown_template(None, name)
        chosen = [t for t in templates if (not ids or t.id in ids) and (not names or t.name in names)]

        def passes(template: Template) -> bool:
            values = {"launch-template-name": [template.name]}
            return matches(self._filters, template.tags, values.get)

        shown, following = self._paged([t for t in chosen if passes(t)], least=1)
        return ActionResult({"LaunchTemplates": [views.launch_template(t) for t in shown], "NextToken": following})

    def describe_launch_template_versions(self) -> ActionResult:
        """The one version there is."""
        return ActionResult({"LaunchTemplateVersions": [views.template_version(self._template())]})

    def delete_launch_template(self) -> ActionResult:
        """Instances made from it stay."""
        template = self._template()
        self._refuse_dry_run()
        del self.cloud.templates[template.id]
        self.cloud.save()
        return ActionResult({"LaunchTemplate": views.launch_template(template)})

    # --- instances

    def run_instances(self) -> ActionResult:
        """See ``sandbox.aws.launch``."""
        params = self._all
        if params.get("MaxCount") is None or params.get("MinCount") is None:
            raise AwsError("MissingParameter", "The request must contain the parameters MinCount and MaxCount")
        made = None if params.get("DryRun") else launch.replay(self.cloud, params)
        if made is None:
            wanted = launch.plan(self.cloud, self.ec2_backend, params)
            self._refuse_dry_run()
            made = launch.make(self.cloud, self.world, wanted, params)
        return ActionResult(views.reservations(self.cloud, self.ec2_backend, made)[0])

    def terminate_instances(self) -> ActionResult:
        """Already terminated instances are no error, unknown ones are."""
        ids = self._all.get("InstanceIds") or []
        if not ids:
            raise AwsError("MissingParameter", "The request must contain the parameter instancesSet")
        unknown = [instance_id for instance_id in ids if instance_id not in self.cloud.machines]
        if unknown:
            raise launch.unknown_instances(unknown)
        self._refuse_dry_run()
        ended = launch.terminate(self.cloud, ids)
        return ActionResult(
            {
                "TerminatingInstances": [
                    {
                        "InstanceId": machine.id,
                        "PreviousState": views.state(before),
                        "CurrentState": views.state(self.cloud.state_of(machine)),
                    }
                    for machine, before in ended
                ]
            }
        )

    def _machines(self, ids: Sequence[str]) -> list[Machine]:
        unknown = [instance_id for instance_id in ids if instance_id not in self.cloud.machines]
        if unknown:
            raise launch.unknown_instances(unknown)
        chosen = [m for m in self.cloud.machines.values() if not ids or m.id in ids]
        passing = [m for m in chosen if matches(self._filters, m.tags, partial(self._machine_values, m))]
        return sorted(passing, key=lambda m: (m.launched_at, m.reservation_id, m.index))

    def _machine_values(self, machine: Machine, name: str) -> list[str] | None:
        values = {
            "availability-zone": machine.zone,
            "capacity-reservation-id": self.cloud.book.reservation_of(machine.id),
            "client-token": machine.client_token,
            "image-id": machine.image_id,
            "instance-id": machine.id,
            "instance-state-name": self.cloud.state_of(machine),
            "instance-type": machine.instance_type,
            "placement-group-name": machine.placement_group,
            "private-dns-name": machine.private_dns_name,
            "private-ip-address": machine.private_ip,
            "reservation-id": machine.reservation_id,
            "subnet-id": machine.subnet_id,
            "vpc-id": machine.vpc_id,
        }
        if name == "event.code":
            return [str(planned["code"]) for planned in machine.planned]
        return [values[name]] if name in values else None

    def describe_instances(self) -> ActionResult:
        """Terminated instances stay listed for a while."""
        ids = self._all.get("InstanceIds") or []
        if ids and self._all.get("MaxResults"):
            raise AwsError(
                "InvalidParameterCombination",
                "The parameter instancesSet cannot be used with the parameter maxResults",
            )
        shown, following = self._paged(self._machines(ids))
        listed = views.reservations(self.cloud, self.ec2_backend, shown)
        return ActionResult({"Reservations": listed, "NextToken": following})

    def describe_instance_status(self) -> ActionResult:
        """Running instances, or all when asked for."""
        everything = bool(self._all.get("IncludeAllInstances"))
        ids = self._all.get("InstanceIds") or []
        if ids and self._all.get("MaxResults"):
            raise AwsError(
                "InvalidParameterCombination",
                "The parameter instancesSet cannot be used with the parameter maxResults",
            )
        if len(ids) > 100:
            raise AwsError("InvalidParameterValue", "At most 100 instance IDs can be specified.")
        chosen = self._machines(ids)
        shown, following = self._paged(
            [m for m in chosen if everything or self.cloud.state_of(m) == "running"],
        )
        listed = []
        for machine in shown:
            nodes = self.world.nodes
            node = nodes.get(machine.node_name) or nodes.get(machine.private_dns_name)
            reachable = node is None or node.instance_id != machine.id or node.up
            listed.append(views.instance_status(machine, self.cloud.state_of(machine), reachable))
        return ActionResult({"InstanceStatuses": listed, "NextToken": following})

    def describe_volumes(self) -> ActionResult:
        """Disks of instances that are not terminated."""
        ids = self._all.get("VolumeIds") or []
        pairs = [(m, disk) for m in self.cloud.live() for disk in m.volumes if not ids or disk["id"] in ids]

        def passes(machine: Machine, disk: dict[str, Any]) -> bool:
            values = {"volume-id": [disk["id"]], "attachment.instance-id": [machine.id], "status": ["in-use"]}
            return matches(self._filters, disk["tags"], values.get)

        shown, following = self._paged([(m, disk) for m, disk in pairs if passes(m, disk)])
        return ActionResult({"Volumes": [views.volume(m, disk) for m, disk in shown], "NextToken": following})

    # --- networks

    def describe_network_interfaces(self) -> ActionResult:
        """Attached and left-over interfaces."""
        ids = self._all.get("NetworkInterfaceIds") or []
        for interface_id in ids:
            if interface_id not in self.cloud.interfaces:
                raise _unknown_interface(interface_id)

        def values(interface: Interface, name: str) -> list[str] | None:
            known = {
                "attachment.instance-id": interface.instance_id,
                "interface-type": interface.kind,
                "network-interface-id": interface.id,
                "status": "in-use" if interface.instance_id else "available",
                "subnet-id": interface.subnet_id,
                "vpc-id": interface.vpc_id,
            }
            return [known[name]] if name in known else None

        chosen = [
            i
            for i in self.cloud.interfaces.values()
            if (not ids or i.id in ids) and matches(self._filters, i.tags, partial(values, i))
        ]
        shown, following = self._paged(chosen)
        listed = [views.network_interface(self.cloud, self.ec2_backend, i) for i in shown]
        return ActionResult({"NetworkInterfaces": listed, "NextToken": following})

    def delete_network_interface(self) -> ActionResult:
        """Only a detached one."""
        interface_id = self._required("NetworkInterfaceId")
        interface = self.cloud.interfaces.get(interface_id)
        if interface is None:
            raise _unknown_interface(interface_id)
        if interface.instance_id:
            raise AwsError("InvalidParameterValue", f"Network interface '{interface_id}' is currently in use.")
        self._refuse_dry_run()
        del self.cloud.interfaces[interface_id]
        self.cloud.save()
        return ActionResult(None)

    def describe_subnets(self) -> ActionResult:
        """moto's subnets, with our instances' addresses counted."""
        models = self.ec2_backend.describe_subnets(self._all.get("SubnetIds"), self._filters)
        return ActionResult({"Subnets": [views.subnet(self.cloud, model) for model in models]})

    def delete_subnet(self) -> Any:
        """Refused while an interface is in it."""
        subnet_id = self._required("SubnetId")
        if any(interface.subnet_id == subnet_id for interface in self.cloud.interfaces.values()):
            raise _dependency("subnet", subnet_id)
        return super().delete_subnet()

    def delete_security_group(self) -> Any:
        """Refused while an interface uses it."""
        group_id = str(self._all.get("GroupId") or "")
        if any(group_id in interface.group_ids for interface in self.cloud.interfaces.values()):
            raise _dependency("security group", group_id)
        return super().delete_security_group()


def _unknown_group(name: str) -> AwsError:
    return AwsError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")


def _unknown_template(template_id: Any, name: Any) -> AwsError:
    if template_id:
        message = f"The specified launch template, with template ID {template_id}, does not exist."
        return AwsError("InvalidLaunchTemplateId.NotFound", message)
    message = f"The specified launch template, with template name {name}, does not exist."
    return AwsError("InvalidLaunchTemplateName.NotFoundException", message)


def _unknown_interface(interface_id: str) -> AwsError:
    return AwsError("InvalidNetworkInterfaceID.NotFound", f"The networkInterface ID '{interface_id}' does not exist")


def _dependency(noun: str, name: str) -> AwsError:
    return AwsError("DependencyViolation", f"The {noun} '{name}' has dependencies and cannot be deleted.")
