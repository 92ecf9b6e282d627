"""The port ``ClusterService`` on SageMaker HyperPod: the name is the only key, nodes are in no EC2 account."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from worker.providers import cluster_values as kv
from worker.providers import values as v
from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import creating_client, reading_client
from worker.providers.errors import Conflict, InvalidRequest, NotFound

_STATES: Final = {
    "Creating": kv.CREATING,
    "InService": kv.ACTIVE,
    "Updating": kv.UPDATING,
    "SystemUpdating": kv.UPDATING,
    "RollingBack": kv.UPDATING,
    "Failed": kv.FAILED,
    "Deleting": kv.DELETING,
    "Degraded": kv.DEGRADED,
}
_NODE_STATES: Final = {"Running": "running", "Failure": "failing", "Pending": "pending", "ShuttingDown": "ending"}
_EVENTS: Final = 50
_WITH_REASON: Final = ("Warn", "Error")
_REASONS_A_VISIT: Final = 20
_TWIN_WITHIN: Final = timedelta(minutes=1)
#: What of a described group can be sent back: a resize must change nothing but the count.
_SENT_BACK: Final = (
    "CapacityRequirements",
    "ExecutionRole",
    "InstanceGroupName",
    "InstanceStorageConfigs",
    "InstanceType",
    "LifeCycleConfig",
    "NetworkInterface",
    "OnStartDeepHealthChecks",
    "OverrideVpcConfig",
    "ScheduledUpdateConfig",
    "SlurmConfig",
    "ThreadsPerCore",
    "TrainingPlanArn",
)


class HyperPod:
    """Implements ``worker.providers.ports.ClusterService``; see there for the contract."""

    def __init__(self, access: v.CloudAccess) -> None:
        self._access = access

    @property
    def _read(self) -> Any:
        return reading_client(self._access, "sagemaker")

    @property
    def _once(self) -> Any:
        return creating_client(self._access, "sagemaker")

    # --- clusters

    def cluster_ensure(self, spec: kv.ClusterSpec, client_token: str) -> kv.SeenCluster:
        """One attempt under the name that was derived from our uid; what is there already is looked at first."""
        found = self._mine(spec)
        if found is not None:
            return found
        wants = spec.settings
        eks_arn = str(wants.get("eks_cluster_arn") or "")
        orchestrator: dict[str, Any] = {"Slurm": {"SlurmConfigStrategy": "Managed"}}
        more: dict[str, Any] = {}
        if eks_arn:
            orchestrator = {"Eks": {"ClusterArn": eks_arn}}
            more["NodeProvisioningMode"] = "Continuous"
        try:
            with aws_call("CreateCluster"):
                self._once.create_cluster(
                    ClusterName=spec.name,
                    InstanceGroups=[_group_request(g) for g in spec.groups],
                    VpcConfig={
                        "SecurityGroupIds": list(wants["security_group_ids"]),
                        "Subnets": list(wants["subnet_ids"]),
                    },
                    Orchestrator=orchestrator,
                    NodeRecovery="Automatic" if wants.get("recovers", True) else "None",
                    Tags=[{"Key": key, "Value": value} for key, value in spec.tags.items()],
                    **more,
                )
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
            raise InvalidRequest(f"a HyperPod cluster named {spec.name} exists and is not ours", source="aws")
        return seen

    def cluster(self, name: str) -> kv.SeenCluster:
        """One, with its orchestrator and whether it provisions continuously."""
        raw = self._describe(name)
        with aws_call("ListTags"):
            tags = self._read.list_tags(ResourceArn=raw["ClusterArn"]).get("Tags") or []
        orchestrator = raw.get("Orchestrator") or {}
        return kv.SeenCluster(
            provider_id=raw["ClusterArn"],
            name=raw.get("ClusterName", name),
            state=_STATES.get(raw["ClusterStatus"], kv.UPDATING),
            word=raw["ClusterStatus"],
            tags={str(t["Key"]): str(t["Value"]) for t in tags},
            failure=str(raw.get("FailureMessage", "")),
            facts={
                "orchestrator": "EKS" if "Eks" in orchestrator else "Slurm",
                "eks_cluster_arn": (orchestrator.get("Eks") or {}).get("ClusterArn", ""),
                "is_continuous": raw.get("NodeProvisioningMode") == "Continuous",
                "recovery": raw.get("NodeRecovery", ""),
                "subnet_ids": (raw.get("VpcConfig") or {}).get("Subnets") or [],
                "security_group_ids": (raw.get("VpcConfig") or {}).get("SecurityGroupIds") or [],
            },
        )

    def _describe(self, name: str) -> Mapping[str, Any]:
        with aws_call("DescribeCluster"):
            raw: Mapping[str, Any] = self._read.describe_cluster(ClusterName=name)
        return raw

    def cluster_delete(self, name: str) -> None:
        """With all groups and nodes in it."""
        with aws_call("DeleteCluster"):
            self._read.delete_cluster(ClusterName=name)

    def prepare(self, cluster: kv.SeenCluster, settings: Mapping[str, Any], tags: Mapping[str, str], step: str) -> str:
        """Which groups have not as many nodes as they want: InService does not mean settled."""
        short = [
            f"{g.name} {g.current_nodes}/{g.target_nodes}"
            for g in self.groups(cluster)
            if g.current_nodes != g.target_nodes
        ]
        return ", ".join(short)

    # --- groups

    def groups(self, cluster: kv.SeenCluster) -> tuple[kv.SeenGroup, ...]:
        """All of a cluster, in one call."""
        return tuple(_group(raw) for raw in self._describe(cluster.name).get("InstanceGroups") or [])

    def template_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, client_token: str) -> str:
        """HyperPod takes none."""
        return ""

    def template_delete(self, uid: str) -> None:
        """HyperPod takes none."""
        raise NotFound("HyperPod uses no launch templates", source="aws")

    def group_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, client_token: str) -> kv.SeenGroup:
        """A group of this name is ours: the cluster is. Updating with the same group twice changes nothing."""
        for seen in self.groups(cluster):
            if seen.name == spec.name:
                return seen
        self._update(cluster, _group_request(spec))
        return kv.SeenGroup(spec.name, spec.name, kv.CREATING, "Creating", target_nodes=spec.nodes)

    def _update(self, cluster: kv.SeenCluster, group: Mapping[str, Any]) -> None:
        with aws_call("UpdateCluster"):
            self._once.update_cluster(ClusterName=cluster.name, InstanceGroups=[group])

    def group_resize(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, seen: kv.SeenGroup, client_token: str) -> None:
        """The same group with another count."""
        group = dict(seen.settings.get("request") or {}) or _group_request(spec)
        self._update(cluster, {**group, "InstanceCount": spec.nodes})

    def group_delete(self, cluster: kv.SeenCluster, provider_id: str) -> None:
        """Take the group out; ``NotFound`` when gone."""
        if all(g.name != provider_id for g in self.groups(cluster)):
            raise NotFound(f"no instance group {provider_id}", source="aws")
        with aws_call("UpdateCluster"):
            self._once.update_cluster(ClusterName=cluster.name, InstanceGroupsToDelete=[provider_id])

    def queue_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, group_id: str, client_token: str) -> str:
        """Partitions stand in the groups."""
        return ""

    def queue_delete(self, cluster: kv.SeenCluster, name: str, uid: str) -> None:
        """There is none."""
        raise NotFound("HyperPod has no queues of its own", source="aws")

    # --- nodes

    def members(self, cluster: kv.SeenCluster) -> tuple[kv.SeenMember, ...]:
        """HyperPod's own list: EC2 does not show these machines."""
        found = []
        for raw in self._pages(self._read.list_cluster_nodes, "ClusterNodeSummaries", ClusterName=cluster.name):
            status = raw.get("InstanceStatus") or {}
            word = str(status.get("Status", ""))
            host = str(raw.get("PrivateDnsHostname", "")).split(".")[0]
            found.append(
                kv.SeenMember(
                    provider_id=str(raw["InstanceId"]),
                    name=host or str(raw["InstanceId"]),
                    group=str(raw["InstanceGroupName"]),
                    state=_NODE_STATES.get(word, "updating"),
                    word=word,
                    instance_type=str(raw.get("InstanceType", "")).removeprefix("ml."),
                    message=str(status.get("Message", "")),
                )
            )
        return tuple(found)

    def _pages(self, call: Any, key: str, **asked: Any) -> Iterator[Mapping[str, Any]]:
        token = ""
        while True:
            with aws_call(key):
                answer = call(MaxResults=100, **asked, **({"NextToken": token} if token else {}))
            yield from answer.get(key) or []
            token = str(answer.get("NextToken") or "")
            if not token:
                return

    def happenings(self, cluster: kv.SeenCluster, known: Collection[str]) -> tuple[kv.SeenHappening, ...]:
        """Only continuous clusters keep events. They come in pairs, of which one at most carries the reason.

        The reason costs a call for each event, is asked for warnings and errors alone, and a visit makes only so many.
        """
        if not cluster.facts.get("is_continuous"):
            return ()
        with aws_call("ListClusterEvents"):
            answer = self._read.list_cluster_events(
                ClusterName=cluster.name, MaxResults=_EVENTS, SortBy="EventTime", SortOrder="Descending"
            )
        pairs: list[list[Mapping[str, Any]]] = []
        for raw in reversed(answer.get("Events") or []):
            twin = next((p for p in pairs[-3:] if len(p) == 1 and _same(p[0], raw)), None)
            if twin is not None:
                twin.append(raw)
            else:
                pairs.append([raw])
        found: list[kv.SeenHappening] = []
        asked = 0
        for pair in pairs:
            fresh = [str(raw["EventId"]) for raw in pair if str(raw["EventId"]) not in known]
            if not fresh:
                continue
            reason = ""
            if str(pair[0].get("EventLevel", "Info")) in _WITH_REASON:
                if asked >= _REASONS_A_VISIT:
                    break
                for event_id in fresh:
                    asked += 1
                    reason = reason or self._reason_of(cluster, event_id)
            found.append(_happening(pair, reason))
        return tuple(found)

    def _reason_of(self, cluster: kv.SeenCluster, event_id: str) -> str:
        """Why something failed stands only in the event's own description, and often not even there."""
        with aws_call("DescribeClusterEvent"):
            answer = self._read.describe_cluster_event(ClusterName=cluster.name, EventId=event_id)
        details = (answer.get("EventDetails") or {}).get("EventDetails") or {}
        metadata = details.get("EventMetadata") or {}
        reasons = [str(m.get("FailureMessage")) for m in metadata.values() if m and m.get("FailureMessage")]
        return reasons[0] if reasons else ""

    def nodes_act(self, cluster: kv.SeenCluster, verb: str, provider_ids: Sequence[str]) -> tuple[kv.NodeAnswer, ...]:
        """One call for up to 25 nodes; what it did to each."""
        if len(provider_ids) > kv.NODES_A_CALL:
            raise InvalidRequest(f"at most {kv.NODES_A_CALL} nodes a call", source="aws")
        call = self._once.batch_replace_cluster_nodes if verb == "replace" else self._once.batch_reboot_cluster_nodes
        with aws_call("BatchReplaceClusterNodes" if verb == "replace" else "BatchRebootClusterNodes"):
            answer = call(ClusterName=cluster.name, NodeIds=list(provider_ids))
        taken = [kv.NodeAnswer(str(node)) for node in answer.get("Successful") or []]
        failed = [
            kv.NodeAnswer(str(f["NodeId"]), str(f["ErrorCode"]), str(f["Message"])) for f in answer.get("Failed") or []
        ]
        return (*taken, *failed)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two events tell the same, at nearly the same time."""
    keys = ("Description", "InstanceGroupName", "InstanceId", "EventLevel", "ResourceType")
    if any(one.get(key) != other.get(key) for key in keys):
        return False
    first, second = one.get("EventTime"), other.get("EventTime")
    return first is None or second is None or abs(second - first) <= _TWIN_WITHIN


def _happening(pair: Sequence[Mapping[str, Any]], reason: str) -> kv.SeenHappening:
    raw = pair[0]
    return kv.SeenHappening(
        provider_id=str(raw["EventId"]),
        at=raw.get("EventTime"),
        level=str(raw.get("EventLevel", "Info")),
        resource=str(raw.get("ResourceType", "")),
        text=str(raw.get("Description", "")),
        reason=reason,
        group=str(raw.get("InstanceGroupName", "")),
        node=str(raw.get("InstanceId", "")),
        twins=tuple(str(twin["EventId"]) for twin in pair[1:]),
    )


def _group_request(spec: kv.GroupSpec) -> dict[str, Any]:
    wants = spec.settings
    group: dict[str, Any] = {
        "InstanceGroupName": spec.name,
        "InstanceType": f"ml.{spec.instance_type}",
        "InstanceCount": spec.nodes,
        "ExecutionRole": spec.role_arn,
        "ThreadsPerCore": 1,
        "LifeCycleConfig": {"SourceS3Uri": wants["lifecycle_s3"], "OnCreate": wants.get("on_create") or "on_create.sh"},
    }
    if wants.get("deep_checks"):
        group["OnStartDeepHealthChecks"] = ["InstanceStress", "InstanceConnectivity"]
    if spec.source == "training-plan":
        group["TrainingPlanArn"] = spec.reservation_id
    if wants.get("node_type"):
        partition = {"PartitionNames": [spec.queue]} if spec.queue else {}
        group["SlurmConfig"] = {"NodeType": wants["node_type"], **partition}
    return group


def _sent_back(raw: Mapping[str, Any]) -> dict[str, Any]:
    found = {k: raw[k] for k in _SENT_BACK if raw.get(k) not in (None, [], {})}
    kubernetes = raw.get("KubernetesConfig") or {}
    wished = {k: kubernetes[f"Desired{k}"] for k in ("Labels", "Taints") if kubernetes.get(f"Desired{k}")}
    return {**found, "KubernetesConfig": wished} if wished else found


def _group(raw: Mapping[str, Any]) -> kv.SeenGroup:
    status = str(raw.get("Status", "InService"))
    slurm = raw.get("SlurmConfig") or {}
    return kv.SeenGroup(
        provider_id=str(raw.get("InstanceGroupName", "")),
        name=str(raw.get("InstanceGroupName", "")),
        state=_STATES.get(status, kv.UPDATING),
        word=status,
        instance_type=str(raw.get("InstanceType", "")).removeprefix("ml."),
        source="training-plan" if raw.get("TrainingPlanArn") else "on-demand",
        target_nodes=int(raw.get("TargetCount") or 0),
        current_nodes=int(raw.get("CurrentCount") or 0),
        role_arn=str(raw.get("ExecutionRole", "")),
        settings={
            "request": _sent_back(raw),
            "node_type": slurm.get("NodeType", ""),
            "lifecycle_s3": (raw.get("LifeCycleConfig") or {}).get("SourceS3Uri", ""),
            "on_create": (raw.get("LifeCycleConfig") or {}).get("OnCreate", ""),
        },
    )
