"""The port ``ClusterService`` on AWS ParallelCluster 3: read from its stack, its machines and its configuration.

What is read needs nothing but CloudFormation, EC2 and the bucket that ParallelCluster keeps. Making and taking away
goes through the ParallelCluster API (https://docs.aws.amazon.com/parallelcluster/latest/ug/api-reference-v3.html),
which an operator has put into the account: its name is the only key, there is no client token.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, urlsplit

import yaml

from worker.providers import cluster_values as kv
from worker.providers import values as v
from worker.providers.aws import convert
from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import reading_client, signed_request
from worker.providers.aws.errors import class_of
from worker.providers.aws.groups import tagged_machines
from worker.providers.errors import Conflict, InvalidRequest, NotFound, ProviderError, Unsupported

#: The tags of ParallelCluster 3 on its stack and machines.
TAG_CLUSTER: Final = "parallelcluster:cluster-name"
TAG_VERSION: Final = "parallelcluster:version"
TAG_KIND: Final = "parallelcluster:node-type"
TAG_QUEUE: Final = "parallelcluster:queue-name"
TAG_RESOURCE: Final = "parallelcluster:compute-resource-name"

_CONFIG: Final = "configs/cluster-config.yaml"
_MOST_CONFIG: Final = 200_000
_SOURCES: Final = {"ONDEMAND": "on-demand", "SPOT": "spot", "CAPACITY_BLOCK": "capacity-block"}
_CHANGE_BY_CONFIG: Final = "ParallelCluster's queues are changed by updating its configuration"


class ParallelCluster:
    """Implements ``worker.providers.ports.ClusterService``; ``api_url`` is the ParallelCluster API's, "" for none."""

    def __init__(self, access: v.CloudAccess, api_url: str = "") -> None:
        self._access = access
        self._api_url = api_url.rstrip("/")

    # --- clusters

    def cluster_ensure(self, spec: kv.ClusterSpec, client_token: str) -> kv.SeenCluster:
        """One attempt under the name that was derived from our uid; what is there already is looked at first."""
        found = self._mine(spec)
        if found is not None:
            return found
        config = tagged_config(str(spec.settings.get("config") or ""), spec.tags, self._access.region)
        try:
            self._call("POST", "/v3/clusters", {"clusterName": spec.name, "clusterConfiguration": config})
        except Conflict:
            found = self._mine(spec)
            if found is None:
                raise
            return found
        return self.cluster(spec.name)

    def _mine(self, spec: kv.ClusterSpec) -> kv.SeenCluster | None:
        try:
            seen = self.cluster(spec.name)
        except NotFound:
            return None
        if seen.tags.get(v.TAG_UID) != spec.tags[v.TAG_UID]:
            raise InvalidRequest(f"a stack named {spec.name} exists and is not ours", source="aws")
        return seen

    def cluster(self, name: str) -> kv.SeenCluster:
        """One by its name, which is its stack's. Raises ``InvalidRequest`` where the stack is something else."""
        stack = self._stack(name)
        tags = convert.tag_map(stack.get("Tags"))
        if TAG_VERSION not in tags:
            raise InvalidRequest(f"stack {name} is not a ParallelCluster 3 cluster", source="aws")
        word = str(stack["StackStatus"])
        config, problem = self._config(stack)
        return kv.SeenCluster(
            provider_id=str(stack["StackId"]),
            name=str(stack["StackName"]),
            state=state_of(word),
            word=word,
            tags=tags,
            failure=str(stack.get("StackStatusReason", "")),
            version=tags[TAG_VERSION],
            facts={
                "scheduler": _parameter(stack, "Scheduler"),
                "head_node": self._head(name),
                "config": config,
                "config_problem": problem,
            },
        )

    def _stack(self, name: str) -> Mapping[str, Any]:
        client = reading_client(self._access, "cloudformation")
        try:
            with aws_call("DescribeStacks"):
                found: list[Mapping[str, Any]] = client.describe_stacks(StackName=name).get("Stacks") or []
        except ProviderError as error:
            # CloudFormation has no code of its own for a stack that is not there.
            if error.code == "ValidationError" and "does not exist" in error.message:
                raise NotFound(f"no stack {name}", source="aws") from error
            raise
        if not found or found[0]["StackStatus"] == "DELETE_COMPLETE":
            raise NotFound(f"no stack {name}", source="aws")
        return found[0]

    def _config(self, stack: Mapping[str, Any]) -> tuple[str, str]:
        """The configuration's text, and why it is empty where it is."""
        bucket, folder = _parameter(stack, "ResourcesS3Bucket"), _parameter(stack, "ArtifactS3RootDirectory")
        if not bucket or not folder:
            return "", "the stack names no bucket"
        version = _parameter(stack, "ConfigVersion")
        try:
            with aws_call("GetObject"):
                answer = reading_client(self._access, "s3").get_object(
                    Bucket=bucket, Key=f"{folder}/{_CONFIG}", **({"VersionId": version} if version else {})
                )
                text = answer["Body"].read(_MOST_CONFIG).decode("utf-8", "replace")
        except ProviderError as error:
            return "", str(error)
        return text, ""

    def _head(self, name: str) -> dict[str, str]:
        for member, tags in self._machines(name):
            if tags.get(TAG_KIND) == "HeadNode":
                return {
                    "provider_id": member.provider_id,
                    "instance_type": member.instance_type,
                    "private_ip": member.private_ip,
                    "state": member.word,
                }
        return {}

    def _machines(self, name: str) -> tuple[tuple[kv.SeenMember, Mapping[str, str]], ...]:
        return tagged_machines(self._access, TAG_CLUSTER, name)

    def cluster_delete(self, name: str) -> None:
        """Its stack, with every machine in it; ``NotFound`` when gone."""
        if self._stack(name)["StackStatus"] == "DELETE_IN_PROGRESS":
            return
        self._call("DELETE", f"/v3/clusters/{quote(name, safe='')}")

    def prepare(self, cluster: kv.SeenCluster, settings: Mapping[str, Any], tags: Mapping[str, str], step: str) -> str:
        """That the head node runs and each queue has the machines it always keeps."""
        head = cluster.facts.get("head_node") or {}
        if head.get("state") != "running":
            return "head node"
        short = [
            f"{g.name} {g.current_nodes}/{g.min_nodes}"
            for g in self.groups(cluster)
            if (g.current_nodes or 0) < g.min_nodes
        ]
        return ", ".join(short)

    # --- groups: one for each compute resource of each queue

    def groups(self, cluster: kv.SeenCluster) -> tuple[kv.SeenGroup, ...]:
        """As configured, and what runs of each; those that only machines tell of where no configuration is readable."""
        here: dict[str, list[kv.SeenMember]] = {}
        for member in self.members(cluster):
            if member.group:
                here.setdefault(member.group, []).append(member)
        wanted = {g.provider_id: g for g in configured_groups(str(cluster.facts.get("config") or ""))}
        for name, rows in here.items():
            if name not in wanted:
                queue = name.partition("/")[0]
                wanted[name] = kv.SeenGroup(name, name, kv.ACTIVE, "", rows[0].instance_type, settings={"queue": queue})
        return tuple(replace(g, current_nodes=len(here.get(g.provider_id, ()))) for g in wanted.values())

    def group_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, client_token: str) -> kv.SeenGroup:
        """Not a call of ParallelCluster's."""
        raise Unsupported(_CHANGE_BY_CONFIG, source="aws")

    def group_resize(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, seen: kv.SeenGroup, client_token: str) -> None:
        """Not a call of ParallelCluster's."""
        raise Unsupported(_CHANGE_BY_CONFIG, source="aws")

    def group_delete(self, cluster: kv.SeenCluster, provider_id: str) -> None:
        """Groups go with the cluster."""
        raise NotFound("ParallelCluster's queues go with the cluster", source="aws")

    def template_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, client_token: str) -> str:
        """ParallelCluster makes its own."""
        return ""

    def template_delete(self, uid: str) -> None:
        """ParallelCluster removes its own."""
        raise NotFound("ParallelCluster keeps its own launch templates", source="aws")

    def queue_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, group_id: str, client_token: str) -> str:
        """Queues stand in the configuration."""
        return ""

    def queue_delete(self, cluster: kv.SeenCluster, name: str, uid: str) -> None:
        """Queues stand in the configuration."""
        raise NotFound("ParallelCluster's queues go with the cluster", source="aws")

    # --- nodes

    def members(self, cluster: kv.SeenCluster) -> tuple[kv.SeenMember, ...]:
        """Its compute machines, which are in the account; the head node stands among the facts."""
        found = []
        for member, tags in self._machines(cluster.name):
            if tags.get(TAG_KIND) == "Compute":
                group = f"{tags.get(TAG_QUEUE, '')}/{tags.get(TAG_RESOURCE, '')}"
                found.append(replace(member, group=group))
        return tuple(found)

    def happenings(self, cluster: kv.SeenCluster, known: Collection[str]) -> tuple[kv.SeenHappening, ...]:
        """Stack events tell of CloudFormation's own resources, not of nodes; none are read."""
        return ()

    def nodes_act(self, cluster: kv.SeenCluster, verb: str, provider_ids: Sequence[str]) -> tuple[kv.NodeAnswer, ...]:
        """ParallelCluster replaces what Slurm marks down."""
        raise Unsupported("ParallelCluster replaces nodes that Slurm marks down; drain the node instead", source="aws")

    # --- the ParallelCluster API

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        if not self._api_url:
            raise Unsupported("the cluster has no address of a ParallelCluster API", source="aws")
        check_address(self._api_url, self._access)
        operation = f"{method} {path}"
        with aws_call(operation):
            status, text = signed_request(
                self._access,
                method,
                f"{self._api_url}{path}?region={self._access.region}",
                json.dumps(body) if body is not None else "",
                "execute-api",
            )
        try:
            answer = json.loads(text) if text.strip() else {}
        except ValueError:
            answer = {}
        if not isinstance(answer, dict):
            answer = {}
        if status >= 300:
            raise _refusal(operation, status, answer)
        return answer


def check_address(url: str, access: v.CloudAccess) -> None:
    """Requests signed with the account's keys go to API Gateway in its region or to the account's own endpoint.

    Raises ``InvalidRequest`` for any other address.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    own = urlsplit(access.endpoint_url) if access.endpoint_url else None
    if own is not None and (parts.scheme, parts.netloc) == (own.scheme, own.netloc):
        return
    gateway = f".execute-api.{access.region}.amazonaws.com"
    if parts.scheme != "https" or not (host.endswith(gateway) or host.endswith(f"{gateway}.cn")):
        raise InvalidRequest(f"{url} is not an API Gateway address in {access.region}", source="aws")


def _refusal(operation: str, status: int, answer: Mapping[str, Any]) -> ProviderError:
    message = str(answer.get("message") or answer.get("Message") or f"HTTP {status}")
    problems = answer.get("configurationValidationErrors") or []
    said = "; ".join(f"{p.get('type', '')}: {p.get('message', '')}" for p in problems if isinstance(p, dict))
    code = {400: "ValidationException", 404: "ResourceNotFoundException", 409: "ConflictException"}.get(
        status, str(status)
    )
    kind = class_of(code, status, message)
    return kind(f"{operation}: {message}{f' ({said})' if said else ''}", source="aws", code=code)


def state_of(word: str) -> str:
    """One of our states for a stack's status."""
    if word == "CREATE_IN_PROGRESS":
        return kv.CREATING
    if word in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE"):
        return kv.ACTIVE
    if word == "DELETE_IN_PROGRESS":
        return kv.DELETING
    if word.startswith("UPDATE_") and word.endswith("IN_PROGRESS"):
        return kv.UPDATING
    return kv.FAILED


def _parameter(stack: Mapping[str, Any], name: str) -> str:
    for parameter in stack.get("Parameters") or []:
        if parameter.get("ParameterKey") == name:
            return str(parameter.get("ParameterValue", ""))
    return ""


def read_config(text: str) -> Mapping[str, Any]:
    """A configuration as a mapping. Raises ``InvalidRequest`` where it is none."""
    try:
        found = yaml.safe_load(text)
    except RecursionError as error:
        raise InvalidRequest("the configuration is not YAML: too deeply nested", source="aws") from error
    except (yaml.YAMLError, ValueError) as error:
        # A number or date that Python cannot hold is a ValueError of its own.
        raise InvalidRequest(f"the configuration is not YAML: {' '.join(str(error).split())}", source="aws") from error
    if not isinstance(found, dict):
        raise InvalidRequest("the configuration is not a YAML mapping", source="aws")
    return found


def tagged_config(text: str, tags: Mapping[str, str], region: str) -> str:
    """The configuration with our tags, which ParallelCluster puts on everything it makes.

    Raises ``InvalidRequest`` where it is not YAML or names another region.
    """
    config = dict(read_config(text))
    if config.get("Region", region) != region:
        raise InvalidRequest(f"the configuration is for {config['Region']}, the account for {region}", source="aws")
    kept = [t for t in config.get("Tags") or [] if isinstance(t, dict) and t.get("Key") not in tags]
    config["Tags"] = [*kept, *({"Key": key, "Value": value} for key, value in tags.items())]
    return yaml.safe_dump(config, sort_keys=False)


def configured_groups(text: str) -> tuple[kv.SeenGroup, ...]:
    """The compute resources of every Slurm queue; none where the text is empty or cannot be understood."""
    try:
        return tuple(_groups(read_config(text))) if text.strip() else ()
    except (InvalidRequest, AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return ()


def _groups(config: Mapping[str, Any]) -> Iterator[kv.SeenGroup]:
    for queue in (config.get("Scheduling") or {}).get("SlurmQueues") or []:
        source = _SOURCES.get(str(queue.get("CapacityType", "ONDEMAND")), "on-demand")
        subnets = tuple(str(s) for s in (queue.get("Networking") or {}).get("SubnetIds") or ())
        for resource in queue.get("ComputeResources") or []:
            types = [str(i.get("InstanceType", "")) for i in resource.get("Instances") or []]
            if resource.get("InstanceType"):
                types = [str(resource["InstanceType"])]
            target = resource.get("CapacityReservationTarget") or queue.get("CapacityReservationTarget") or {}
            reserved = str(target.get("CapacityReservationId", ""))
            name = f"{queue['Name']}/{resource['Name']}"
            yield kv.SeenGroup(
                provider_id=name,
                name=name,
                state=kv.ACTIVE,
                word="",
                instance_type=types[0] if types else "",
                source="odcr" if reserved and source == "on-demand" else source,
                min_nodes=int(resource.get("MinCount") or 0),
                target_nodes=int(resource.get("MaxCount", 10)),
                subnet_ids=subnets,
                settings={
                    "queue": str(queue["Name"]),
                    "reservation_id": reserved,
                    "other_types": types[1:],
                    "has_efa": bool((resource.get("Efa") or {}).get("Enabled")),
                },
            )
