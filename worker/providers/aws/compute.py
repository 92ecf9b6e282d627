"""The port ``Compute`` on EC2: machines, placement groups, launch templates and interfaces of one account."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from worker.providers import values as v
from worker.providers.aws import convert, topology
from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import Clients, build_clients
from worker.providers.aws.errors import SOURCE, refused_choices
from worker.providers.aws.preflight import Preflight
from worker.providers.errors import Conflict, InvalidRequest, NotFound, Unknown

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceTypeDef, NetworkInterfaceTypeDef

#: 33 interfaces an instance make some 25 kB of answer each; this many a page stay well within one call's time.
INSTANCES_A_PAGE: Final = 100
ITEMS_A_PAGE: Final = 200
#: One bad id fails a whole TerminateInstances call, and AWS advises against large ones.
TERMINATED_A_CALL: Final = 100
#: A filter takes at most so many values.
VALUES_A_FILTER: Final = 200

_LIVE_STATES: Final = ("pending", "running", "shutting-down", "stopping", "stopped")
_ENDING_STATES: Final = frozenset({"shutting-down", "terminated"})


class Ec2Compute:
    """Implements ``worker.providers.ports.Compute``; see there for the contract.

    ``clients`` replaces the clients made from ``access``. Reads and deletions are repeated by botocore within the
    time of one call, everything that creates is sent exactly once.
    """

    def __init__(self, access: v.CloudAccess, *, clients: Clients | None = None) -> None:
        if clients is None:
            with aws_call("connect"):
                clients = build_clients(access)
        self._clients = clients

    def identity(self) -> v.CallerIdentity:
        """Who we are. Raises ``AccessDenied`` for wrong or missing credentials."""
        with aws_call("GetCallerIdentity"):
            answer = self._clients.sts.get_caller_identity()
        return v.CallerIdentity(
            account_id=convert.part(answer, "Account", "GetCallerIdentity"),
            arn=convert.part(answer, "Arn", "GetCallerIdentity"),
        )

    def preflight(self, plan: v.LaunchPlan) -> tuple[v.Check, ...]:
        """All read-only checks of a launch, each shown; see ``preflight.Preflight`` for what each means."""
        return Preflight(self._clients, aws_call).run(plan)

    # --- placement groups

    def placement_group_ensure(self, name: str, tags: Mapping[str, str]) -> v.PlacementGroup:
        """Create a cluster placement group or return ours of that name."""
        uid = _uid_of(tags)
        try:
            with aws_call("CreatePlacementGroup"):
                answer = self._clients.launch.create_placement_group(
                    GroupName=name,
                    Strategy="cluster",
                    TagSpecifications=convert.tag_specifications(tags, ["placement-group"]),
                )
            return convert.placement_group(convert.part(answer, "PlacementGroup", "CreatePlacementGroup"))
        except Conflict as exc:
            if exc.code != "InvalidPlacementGroup.Duplicate":
                raise
            group = self._placement_group(name, exc)
            _must_be_ours("placement group", name, group.tags, uid, exc)
            if group.state in ("deleting", "deleted"):
                raise _conflict(f"placement group {name!r} is still being deleted", "Deleting") from exc
            return group

    def _placement_group(self, name: str, cause: Conflict) -> v.PlacementGroup:
        try:
            with aws_call("DescribePlacementGroups"):
                answer = self._clients.ec2.describe_placement_groups(GroupNames=[name])
            groups = convert.part(answer, "PlacementGroups", "DescribePlacementGroups")
        except NotFound:
            groups = []
        if not groups:
            # It went between the two calls; the next attempt can have the name.
            raise cause
        return convert.placement_group(groups[0])

    def placement_group_delete(self, name: str) -> None:
        """Ask for deletion; ``Conflict`` while an instance is in it, ``NotFound`` when gone."""
        with aws_call("DeletePlacementGroup"):
            self._clients.ec2.delete_placement_group(GroupName=name)

    # --- launch templates

    def launch_template_ensure(self, spec: v.LaunchTemplateSpec, client_token: str) -> v.LaunchTemplate:
        """Create version 1 or return ours of that name."""
        uid = _uid_of(spec.tags)
        data: Any = convert.template_data(spec, self._root_device(spec.image_id))
        try:
            with aws_call("CreateLaunchTemplate"):
                answer = self._clients.launch.create_launch_template(
                    LaunchTemplateName=spec.name,
                    ClientToken=client_token,
                    LaunchTemplateData=data,
                    TagSpecifications=convert.tag_specifications(spec.tags, ["launch-template"]),
                )
            return convert.launch_template(convert.part(answer, "LaunchTemplate", "CreateLaunchTemplate"))
        except Conflict as exc:
            if exc.code != "InvalidLaunchTemplateName.AlreadyExistsException":
                raise
            template = self._launch_template(spec.name, exc)
            _must_be_ours("launch template", spec.name, template.tags, uid, exc)
            return template

    def _launch_template(self, name: str, cause: Conflict) -> v.LaunchTemplate:
        try:
            with aws_call("DescribeLaunchTemplates"):
                answer = self._clients.ec2.describe_launch_templates(LaunchTemplateNames=[name])
            templates = convert.part(answer, "LaunchTemplates", "DescribeLaunchTemplates")
        except NotFound:
            templates = []
        if not templates:
            raise cause
        return convert.launch_template(templates[0])

    def _root_device(self, image_id: str) -> str:
        """The image's own root device: a mapping for another name would add a second disk, not size the root."""
        try:
            with aws_call("DescribeImages"):
                answer = self._clients.ec2.describe_images(ImageIds=[image_id])
        except NotFound as exc:
            raise InvalidRequest(exc.message, source=SOURCE, code=exc.code, request_id=exc.request_id) from exc
        images = convert.part(answer, "Images", "DescribeImages")
        if not images:
            raise InvalidRequest(f"image {image_id} does not exist", source=SOURCE, code="InvalidAMIID.NotFound")
        return str(images[0].get("RootDeviceName") or "/dev/sda1")

    def launch_template_delete(self, provider_id: str) -> None:
        """Delete; ``NotFound`` when gone."""
        with aws_call("DeleteLaunchTemplate"):
            self._clients.ec2.delete_launch_template(LaunchTemplateId=provider_id)

    # --- instances

    def launch(self, request: v.LaunchRequest) -> tuple[v.Instance, ...]:
        """All ``count`` instances or none, in exactly one HTTP attempt.

        After ``Unavailable`` it is unknown whether they exist: look by tag, or repeat with the same token.
        ``Conflict`` with code ``IdempotentParameterMismatch`` or ``IdempotentInstanceTerminated`` means that this
        token is used up and a new attempt number is needed.
        """
        placement: Any = {"Placement": {"GroupName": request.placement_group}} if request.placement_group else {}
        try:
            with aws_call("RunInstances"):
                answer = self._clients.launch.run_instances(
                    LaunchTemplate={
                        "LaunchTemplateId": request.launch_template_id,
                        "Version": request.launch_template_version,
                    },
                    MinCount=request.count,
                    MaxCount=request.count,
                    ClientToken=request.client_token,
                    TagSpecifications=convert.tag_specifications(request.tags, convert.LAUNCHED_KINDS),
                    **placement,
                )
        except NotFound as exc:
            # Something the request names is missing; for a caller that creates, this is no success of a deletion.
            raise InvalidRequest(exc.message, source=SOURCE, code=exc.code, request_id=exc.request_id) from exc
        made = tuple(convert.instance(raw) for raw in convert.part(answer, "Instances", "RunInstances"))
        if len(made) != request.count:
            raise Unknown(
                f"RunInstances: asked for exactly {request.count} instances, the answer lists {len(made)}",
                source=SOURCE,
                code="PartialLaunch",
            )
        return made

    def launch_choice(self, request: v.ChoiceRequest) -> v.ChoiceAnswer:
        """CreateFleet of type instant: all ``count`` of one template or none, in exactly one HTTP attempt.

        AWS tells refusals inside a 200. Raises the error of the first refusal where nothing was made.
        """
        placed: Any = {"Placement": {"GroupName": request.placement_group}} if request.placement_group else {}
        overrides: list[Any] = [[{"Priority": float(n), **placed}] for n in range(len(request.templates))]
        with aws_call("CreateFleet"):
            answer = self._clients.launch.create_fleet(
                Type="instant",
                ClientToken=request.client_token,
                LaunchTemplateConfigs=[
                    {
                        "LaunchTemplateSpecification": {
                            "LaunchTemplateId": template.provider_id,
                            "Version": template.version,
                        },
                        "Overrides": overrides[number],
                    }
                    for number, template in enumerate(request.templates)
                ],
                TargetCapacitySpecification={
                    "TotalTargetCapacity": request.count,
                    "OnDemandTargetCapacity": request.count,
                    "DefaultTargetCapacityType": "on-demand",
                },
                OnDemandOptions={
                    "AllocationStrategy": "prioritized",
                    "SingleInstanceType": True,
                    "SingleAvailabilityZone": True,
                    "MinTargetCapacity": request.count,
                },
                TagSpecifications=convert.tag_specifications(request.tags, ("fleet", "instance")),
            )
        made = [i for group in answer.get("Instances") or [] for i in group.get("InstanceIds") or []]
        refusals = answer.get("Errors") or []
        if not made:
            raise refused_choices(refusals)
        sentences = tuple(f"{e.get('ErrorCode', '')}: {e.get('ErrorMessage', '')}" for e in refusals)
        return v.ChoiceAnswer(str(answer.get("FleetId", "")), tuple(made), sentences)

    def instances_by_id(self, instance_ids: Sequence[str]) -> tuple[v.Instance, ...]:
        """Those of these instances that AWS still knows, whatever became of their tags."""
        wanted = list(dict.fromkeys(instance_ids))
        found: list[v.Instance] = []
        for start in range(0, len(wanted), VALUES_A_FILTER):
            # A filter, unlike a list of ids, skips what does not exist.
            filters = [{"Name": "instance-id", "Values": wanted[start : start + VALUES_A_FILTER]}]
            found += [convert.instance(raw) for raw in self._instances(filters)]
        return tuple(found)

    def topology(self, instance_ids: Sequence[str], group_name: str = "") -> tuple[v.NetworkPlace, ...]:
        """Where running instances hang in the network; see ``topology``."""
        return topology.topology(self._clients.ec2, instance_ids, group_name)

    def instance_events(self) -> tuple[v.InstanceEvent, ...]:
        """What AWS has planned for the account's instances."""
        return topology.instance_events(self._clients.ec2)

    def instances(self, tags: Mapping[str, str]) -> tuple[v.Instance, ...]:
        """All instances with all these tags, terminated ones included while AWS shows them."""
        return tuple(convert.instance(raw) for raw in self._instances(convert.tag_filters(tags)))

    def _instances(self, filters: Any) -> list[InstanceTypeDef]:
        def page(token: str) -> Mapping[str, Any]:
            return self._clients.ec2.describe_instances(Filters=filters, MaxResults=INSTANCES_A_PAGE, **_after(token))

        reservations = _pages("DescribeInstances", "Reservations", page)
        return [raw for reservation in reservations for raw in reservation.get("Instances", [])]

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """Ask for termination; ids that are terminated, ending or no longer known to AWS are already done."""
        wanted = list(dict.fromkeys(instance_ids))
        for start in range(0, len(wanted), TERMINATED_A_CALL):
            batch = wanted[start : start + TERMINATED_A_CALL]
            try:
                self._terminate(batch)
            except NotFound:
                # One unknown id fails the whole call. A filter, unlike a list of ids, skips what does not exist.
                found = self._instances([{"Name": "instance-id", "Values": batch}])
                left = [
                    raw.get("InstanceId", "")
                    for raw in found
                    if str(raw.get("State", {}).get("Name")) not in _ENDING_STATES
                ]
                if left:
                    self._terminate(left)

    def _terminate(self, batch: list[str]) -> None:
        with aws_call("TerminateInstances"):
            self._clients.ec2.terminate_instances(InstanceIds=batch)

    # --- interfaces and the sweep

    def interfaces(self, tags: Mapping[str, str]) -> tuple[v.Owned, ...]:
        """Network interfaces with all these tags, attached or not."""
        return tuple(convert.owned_interface(raw) for raw in self._interfaces(convert.tag_filters(tags)))

    def _interfaces(self, filters: Any) -> list[NetworkInterfaceTypeDef]:
        def page(token: str) -> Mapping[str, Any]:
            return self._clients.ec2.describe_network_interfaces(
                Filters=filters, MaxResults=ITEMS_A_PAGE, **_after(token)
            )

        return list(_pages("DescribeNetworkInterfaces", "NetworkInterfaces", page))

    def interface_delete(self, provider_id: str) -> None:
        """Delete one detached interface; ``NotFound`` when gone, ``Conflict`` while in use."""
        with aws_call("DeleteNetworkInterface"):
            self._clients.ec2.delete_network_interface(NetworkInterfaceId=provider_id)

    def owned(self) -> tuple[v.Owned, ...]:
        """Everything with our uid tag, in the order in which it has to be torn down."""
        ours: Any = [{"Name": "tag-key", "Values": [v.TAG_UID]}]

        def templates(token: str) -> Mapping[str, Any]:
            return self._clients.ec2.describe_launch_templates(Filters=ours, MaxResults=ITEMS_A_PAGE, **_after(token))

        live = self._instances([*ours, {"Name": "instance-state-name", "Values": list(_LIVE_STATES)}])
        found = [convert.owned_instance(raw) for raw in live]
        found += [convert.owned_interface(raw) for raw in self._interfaces(ours)]
        found += [
            convert.owned_launch_template(raw)
            for raw in _pages("DescribeLaunchTemplates", "LaunchTemplates", templates)
        ]
        with aws_call("DescribePlacementGroups"):
            answer = self._clients.ec2.describe_placement_groups(Filters=ours)
        groups = convert.part(answer, "PlacementGroups", "DescribePlacementGroups")
        found += [convert.owned_placement_group(raw) for raw in groups if raw.get("State") != "deleted"]
        return tuple(found)


def _after(token: str) -> Any:
    return {"NextToken": token} if token else {}


def _pages(operation: str, key: str, page: Callable[[str], Mapping[str, Any]]) -> Iterator[Any]:
    """Items of all pages; each page is a call of its own with its own time limit."""
    token = ""
    while True:
        with aws_call(operation):
            answer = page(token)
        yield from convert.part(answer, key, operation)
        following = str(answer.get("NextToken") or "")
        if not following:
            return
        if following == token:
            raise Unknown(f"{operation}: AWS repeats the same page", source=SOURCE, code="RepeatedPage")
        token = following


def _uid_of(tags: Mapping[str, str]) -> str:
    uid = tags.get(v.TAG_UID, "")
    if not uid:
        raise InvalidRequest(f"tags lack {v.TAG_UID}, so the thing could not be found again", source=SOURCE)
    return uid


def _conflict(message: str, code: str) -> Conflict:
    return Conflict(message, source=SOURCE, code=code)


def _must_be_ours(noun: str, name: str, tags: Mapping[str, str], uid: str, cause: Conflict) -> None:
    if tags.get(v.TAG_UID) != uid:
        owner = tags.get(v.TAG_UID) or "someone without our tag"
        raise _conflict(f"{noun} {name!r} exists already and belongs to {owner}", cause.code) from cause
