"""The port ``ClusterService`` on AWS PCS."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from worker.providers import cluster_values as kv
from worker.providers import values as v
from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import creating_client, reading_client
from worker.providers.aws.groups import Templates, machines, needs_template, template_data
from worker.providers.errors import Conflict, InvalidRequest, NotFound, Unsupported

_PURCHASE: Final = {
    "on-demand": "ONDEMAND",
    "odcr": "ONDEMAND",
    "spot": "SPOT",
    "capacity-block": "CAPACITY_BLOCK",
}
_SOURCES: Final = {"ONDEMAND": "on-demand", "SPOT": "spot", "CAPACITY_BLOCK": "capacity-block"}


class Pcs:
    """Implements ``worker.providers.ports.ClusterService``; see there for the contract."""

    def __init__(self, access: v.CloudAccess) -> None:
        self._access = access
        self._templates = Templates(access)

    @property
    def _read(self) -> Any:
        return reading_client(self._access, "pcs")

    @property
    def _once(self) -> Any:
        return creating_client(self._access, "pcs")

    # --- clusters

    def cluster_ensure(self, spec: kv.ClusterSpec, client_token: str) -> kv.SeenCluster:
        """Create, or return what this token made or what is ours under the name."""
        wants = spec.settings
        slurm: dict[str, Any] = {
            "scaleDownIdleTimeInSeconds": int(wants.get("idle_s") or 600),
            "accounting": {"mode": "STANDARD"},
            "slurmRest": {"mode": "STANDARD"},
        }
        try:
            with aws_call("CreateCluster"):
                self._once.create_cluster(
                    clusterName=spec.name,
                    scheduler={"type": "SLURM", "version": wants["version"]},
                    size=wants["size"],
                    networking={
                        "subnetIds": list(wants["subnet_ids"])[:1],
                        "securityGroupIds": list(wants["security_group_ids"]),
                    },
                    slurmConfiguration=slurm,
                    clientToken=client_token,
                    tags=dict(spec.tags),
                )
        except Conflict as error:
            try:
                seen = self.cluster(spec.name)
            except NotFound:
                raise error from None
            if seen.tags.get(v.TAG_UID) != spec.tags[v.TAG_UID]:
                raise
            return seen
        return self.cluster(spec.name)

    def cluster(self, name: str) -> kv.SeenCluster:
        """One, with its addresses and the ARN of its key."""
        with aws_call("GetCluster"):
            raw = self._read.get_cluster(clusterIdentifier=name)["cluster"]
        tags = self._tags(raw["arn"])
        slurm = raw.get("slurmConfiguration") or {}
        ends = {e["type"]: f"{e['privateIpAddress']}:{e['port']}" for e in raw.get("endpoints") or []}
        facts = {
            "size": raw.get("size", ""),
            "endpoints": ends,
            "key_arn": (slurm.get("authKey") or {}).get("secretArn", ""),
            "jwt_key_arn": ((slurm.get("jwtAuth") or {}).get("jwtKey") or {}).get("secretArn", ""),
            "subnet_ids": raw["networking"].get("subnetIds") or [],
            "security_group_ids": raw["networking"].get("securityGroupIds") or [],
        }
        return kv.SeenCluster(
            provider_id=raw["id"],
            name=raw["name"],
            state=_state(raw["status"]),
            word=raw["status"],
            tags=tags,
            failure=_failure(raw),
            version=raw["scheduler"]["version"],
            scheduler_url=f"http://{ends['SLURMRESTD']}" if "SLURMRESTD" in ends else "",
            facts=facts,
        )

    def cluster_delete(self, name: str) -> None:
        """The last to go."""
        with aws_call("DeleteCluster"):
            self._read.delete_cluster(clusterIdentifier=name)

    def prepare(self, cluster: kv.SeenCluster, settings: Mapping[str, Any], tags: Mapping[str, str], step: str) -> str:
        """That the key, which nodes and REST clients need, is there."""
        arn = cluster.facts.get("jwt_key_arn") or cluster.facts.get("key_arn")
        if not arn:
            return "the key in Secrets Manager"
        with aws_call("DescribeSecret"):
            reading_client(self._access, "secretsmanager").describe_secret(SecretId=arn)
        return ""

    # --- groups

    def template_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, client_token: str) -> str:
        """Interfaces are plain ``efa``: PCS takes no ``efa-only``."""
        if not needs_template(spec):
            return ""
        data = template_data(spec, spec.security_group_ids, "pcs", names_type=False)
        return self._templates.ensure(spec, data, client_token)

    def template_delete(self, uid: str) -> None:
        """By the group's uid."""
        self._templates.delete(uid)

    def group_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, client_token: str) -> kv.SeenGroup:
        """Create, or return what this token made."""
        template: dict[str, Any] = {
            "launchTemplateMode": "MANAGED",
            "securityGroupIds": list(spec.security_group_ids),
        }
        if spec.launch_template_id:
            template = {
                "launchTemplateMode": "CUSTOM",
                "customLaunchTemplate": {"id": spec.launch_template_id, "version": "1"},
            }
        if spec.image_id:
            template["amiId"] = spec.image_id
        with aws_call("CreateComputeNodeGroup"):
            answer = self._once.create_compute_node_group(
                clusterIdentifier=cluster.provider_id,
                computeNodeGroupName=spec.name,
                subnetIds=list(spec.subnet_ids),
                iamInstanceProfileArn=spec.role_arn,
                scalingConfiguration={"minInstanceCount": spec.min_nodes, "maxInstanceCount": spec.nodes},
                instanceConfigs=[{"instanceType": spec.instance_type}],
                purchaseOption=_PURCHASE[spec.source],
                instanceHealthChecks={"healthMonitoring": {"mode": "STANDARD", "repairAction": "AUTO"}},
                clientToken=client_token,
                tags=dict(spec.tags),
                **template,
            )
        return _group(answer["computeNodeGroup"])

    def groups(self, cluster: kv.SeenCluster) -> tuple[kv.SeenGroup, ...]:
        """All of a cluster, each described."""
        found = []
        for raw in self._pages(self._read.list_compute_node_groups, "computeNodeGroups", cluster.provider_id):
            try:
                with aws_call("GetComputeNodeGroup"):
                    answer = self._read.get_compute_node_group(
                        clusterIdentifier=cluster.provider_id, computeNodeGroupIdentifier=raw["id"]
                    )
                with aws_call("ListTagsForResource"):
                    tags = self._read.list_tags_for_resource(resourceArn=answer["computeNodeGroup"]["arn"])
            except NotFound:
                continue
            found.append(replace(_group(answer["computeNodeGroup"]), tags=tags.get("tags") or {}))
        return tuple(found)

    def _pages(self, call: Any, key: str, cluster_id: str) -> Iterator[Mapping[str, Any]]:
        token = ""
        while True:
            with aws_call(key):
                answer = call(clusterIdentifier=cluster_id, **({"nextToken": token} if token else {}))
            yield from answer.get(key) or []
            token = str(answer.get("nextToken") or "")
            if not token:
                return

    def group_resize(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, seen: kv.SeenGroup, client_token: str) -> None:
        """Other limits of scaling."""
        with aws_call("UpdateComputeNodeGroup"):
            self._once.update_compute_node_group(
                clusterIdentifier=cluster.provider_id,
                computeNodeGroupIdentifier=seen.provider_id,
                scalingConfiguration={"minInstanceCount": spec.min_nodes, "maxInstanceCount": spec.nodes},
                clientToken=client_token,
            )

    def group_delete(self, cluster: kv.SeenCluster, provider_id: str) -> None:
        """After its queue."""
        with aws_call("DeleteComputeNodeGroup"):
            self._read.delete_compute_node_group(
                clusterIdentifier=cluster.provider_id, computeNodeGroupIdentifier=provider_id
            )

    # --- queues

    def queue_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, group_id: str, client_token: str) -> str:
        """Create, or look how far ours of that name has come.

        ``InvalidRequest`` where the name is another's, or AWS could not make it.
        """
        try:
            with aws_call("CreateQueue"):
                made = self._once.create_queue(
                    clusterIdentifier=cluster.provider_id,
                    queueName=spec.queue,
                    computeNodeGroupConfigurations=[{"computeNodeGroupId": group_id}],
                    clientToken=client_token,
                    tags=dict(spec.tags),
                )["queue"]
        except Conflict as error:
            try:
                made = self._queue(cluster, spec.queue)
            except NotFound:
                raise error from None
            if self._tags(made["arn"]).get(v.TAG_UID) != spec.uid:
                text = f"the cluster has a queue named {spec.queue} that is not ours"
                raise InvalidRequest(text, source="aws") from error
        raw = self._queue(cluster, made["id"])
        if raw["status"] == "CREATE_FAILED":
            # The same token gives the same failed queue for ever: it goes when its group is deleted.
            raise InvalidRequest(f"queue {spec.queue}: {_failure(raw) or 'AWS gave no reason'}", source="aws")
        return str(raw["id"]) if raw["status"] == "ACTIVE" else ""

    def queue_delete(self, cluster: kv.SeenCluster, name: str, uid: str) -> None:
        """The first to go; ``NotFound`` when gone, or when a queue of that name is another's."""
        raw = self._queue(cluster, name)
        if self._tags(raw["arn"]).get(v.TAG_UID) != uid:
            raise NotFound(f"queue {name} is not ours", source="aws")
        with aws_call("DeleteQueue"):
            self._read.delete_queue(clusterIdentifier=cluster.provider_id, queueIdentifier=raw["id"])

    def _queue(self, cluster: kv.SeenCluster, name: str) -> Mapping[str, Any]:
        with aws_call("GetQueue"):
            found: Mapping[str, Any] = self._read.get_queue(
                clusterIdentifier=cluster.provider_id, queueIdentifier=name
            )["queue"]
        return found

    def _tags(self, arn: str) -> Mapping[str, str]:
        with aws_call("ListTagsForResource"):
            found: Mapping[str, str] = self._read.list_tags_for_resource(resourceArn=arn).get("tags") or {}
        return found

    # --- nodes

    def members(self, cluster: kv.SeenCluster) -> tuple[kv.SeenMember, ...]:
        """PCS's machines are in the account, with its tags."""
        return machines(self._access, "aws:pcs:cluster-id", cluster.provider_id, "aws:pcs:compute-node-group-id")

    def happenings(self, cluster: kv.SeenCluster, known: Collection[str]) -> tuple[kv.SeenHappening, ...]:
        """PCS keeps none that can be read by a call."""
        return ()

    def nodes_act(self, cluster: kv.SeenCluster, verb: str, provider_ids: Sequence[str]) -> tuple[kv.NodeAnswer, ...]:
        """PCS repairs by itself (health monitoring)."""
        raise Unsupported("PCS replaces unhealthy nodes itself; terminate one to have it replaced", source="aws")


def _state(word: str) -> str:
    if word.endswith("_FAILED"):
        return kv.FAILED
    return {"SUSPENDING": kv.UPDATING, "SUSPENDED": kv.DEGRADED, "RESUMING": kv.UPDATING}.get(word, word)


def _failure(raw: Mapping[str, Any]) -> str:
    return "; ".join(f"{e.get('code', '')}: {e.get('message', '')}" for e in raw.get("errorInfo") or [])


def _group(raw: Mapping[str, Any]) -> kv.SeenGroup:
    scaling = raw["scalingConfiguration"]
    types = [c.get("instanceType", "") for c in raw["instanceConfigs"]]
    return kv.SeenGroup(
        provider_id=raw["id"],
        name=raw["name"],
        state=_state(raw["status"]),
        word=raw["status"],
        instance_type=types[0] if types else "",
        source=_SOURCES.get(raw.get("purchaseOption", "ONDEMAND"), "on-demand"),
        min_nodes=scaling["minInstanceCount"],
        target_nodes=scaling["maxInstanceCount"],
        issues=tuple((str(e.get("code", "")), str(e.get("message", ""))) for e in raw.get("errorInfo") or []),
        subnet_ids=tuple(raw.get("subnetIds") or ()),
        role_arn=raw.get("iamInstanceProfileArn", ""),
    )
