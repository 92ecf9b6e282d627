"""Clusters and node groups with our tag in an account, whoever asked for them, and how each is taken away.

A group's machines carry our tag through its launch template and are found in EC2, each with its own price; those
that do not are counted with their group. HyperPod's machines are in no EC2 account and are counted with the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from worker.providers import values as v
from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import reading_client
from worker.providers.aws.groups import tagged_machines
from worker.providers.errors import InvalidRequest, NotFound

PCS_CLUSTER: Final = "pcs-cluster"
PCS_GROUP: Final = "pcs-group"
EKS_CLUSTER: Final = "eks-cluster"
EKS_GROUP: Final = "eks-group"
HYPERPOD: Final = "hyperpod-cluster"
#: Kinds by the service that keeps them.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pcs": (PCS_CLUSTER, PCS_GROUP),
    "eks": (EKS_CLUSTER, EKS_GROUP),
    "hyperpod": (HYPERPOD,),
}


class OwnedClusters:
    """Implements ``worker.providers.ports.OwnedClusters``; see there for the contract."""

    def __init__(self, access: v.CloudAccess) -> None:
        self._access = access

    def owned(self, service: str) -> tuple[v.Owned, ...]:
        """All of one service: "pcs", "eks" or "hyperpod"."""
        match service:
            case "pcs":
                return tuple(self._pcs())
            case "eks":
                return tuple(self._eks())
            case "hyperpod":
                return tuple(self._hyperpod())
        raise InvalidRequest(f"no service {service!r} keeps clusters", source="aws")

    def remove(self, kind: str, provider_id: str) -> None:
        """Ask for one removal. A group's id is cluster and group with a slash between them."""
        cluster, _slash, group = provider_id.partition("/")
        match kind:
            case "pcs-cluster":
                with aws_call("DeleteCluster"):
                    self._client("pcs").delete_cluster(clusterIdentifier=cluster)
            case "pcs-group":
                self._remove_pcs_group(cluster, group)
            case "eks-cluster":
                with aws_call("DeleteCluster"):
                    self._client("eks").delete_cluster(name=cluster)
            case "eks-group":
                with aws_call("DeleteNodegroup"):
                    self._client("eks").delete_nodegroup(clusterName=cluster, nodegroupName=group)
            case "hyperpod-cluster":
                with aws_call("DeleteCluster"):
                    self._client("sagemaker").delete_cluster(ClusterName=cluster)
            case _:
                raise InvalidRequest(f"no cluster or group is of kind {kind!r}", source="aws")

    def _client(self, service: str) -> Any:
        return reading_client(self._access, service)

    def _pages(self, operation: str, call: Any, key: str, **asked: Any) -> Iterator[Any]:
        token_name = "NextToken" if key[0].isupper() else "nextToken"
        token = ""
        while True:
            with aws_call(operation):
                answer = call(**asked, **({token_name: token} if token else {}))
            yield from answer.get(key) or []
            token = str(answer.get(token_name) or "")
            if not token:
                return

    def _untagged(self, tag: str, value: str, group_tag: str) -> dict[str, Counter[str]]:
        """Machines of a cluster without our tag: types and counts, by group."""
        found: dict[str, Counter[str]] = {}
        for member, tags in tagged_machines(self._access, tag, value):
            if v.TAG_UID not in tags:
                found.setdefault(tags.get(group_tag, ""), Counter())[member.instance_type] += 1
        return found

    # --- PCS

    def _pcs(self) -> Iterator[v.Owned]:
        client = self._client("pcs")
        for cluster in self._pages("ListClusters", client.list_clusters, "clusters"):
            tags = self._pcs_tags(cluster["arn"])
            if v.TAG_UID in tags:
                yield _owned(PCS_CLUSTER, cluster["id"], cluster["status"], tags, cluster.get("createdAt"))
            groups = self._pages(
                "ListComputeNodeGroups",
                client.list_compute_node_groups,
                "computeNodeGroups",
                clusterIdentifier=cluster["id"],
            )
            machines: dict[str, Counter[str]] | None = None
            for group in groups:
                tags = self._pcs_tags(group["arn"])
                if v.TAG_UID not in tags:
                    continue
                if machines is None:
                    machines = self._untagged("aws:pcs:cluster-id", cluster["id"], "aws:pcs:compute-node-group-id")
                yield _owned(
                    PCS_GROUP,
                    f"{cluster['id']}/{group['id']}",
                    group["status"],
                    tags,
                    group.get("createdAt"),
                    machines.get(group["id"]),
                )

    def _pcs_tags(self, arn: str) -> Mapping[str, str]:
        try:
            with aws_call("ListTagsForResource"):
                found: Mapping[str, str] = self._client("pcs").list_tags_for_resource(resourceArn=arn).get("tags") or {}
        except NotFound:
            return {}
        return found

    def _remove_pcs_group(self, cluster: str, group: str) -> None:
        client = self._client("pcs")
        for row in self._pages("ListQueues", client.list_queues, "queues", clusterIdentifier=cluster):
            with aws_call("GetQueue"):
                queue = client.get_queue(clusterIdentifier=cluster, queueIdentifier=row["id"])["queue"]
            behind = {c.get("computeNodeGroupId") for c in queue.get("computeNodeGroupConfigurations") or []}
            # A queue that others' groups stand behind too is theirs: AWS refuses the group then, and a person looks.
            if behind == {group}:
                with aws_call("DeleteQueue"):
                    client.delete_queue(clusterIdentifier=cluster, queueIdentifier=row["id"])
        with aws_call("DeleteComputeNodeGroup"):
            client.delete_compute_node_group(clusterIdentifier=cluster, computeNodeGroupIdentifier=group)

    # --- EKS

    def _eks(self) -> Iterator[v.Owned]:
        client = self._client("eks")
        for name in self._pages("ListClusters", client.list_clusters, "clusters"):
            try:
                with aws_call("DescribeCluster"):
                    cluster = client.describe_cluster(name=name)["cluster"]
                names = list(self._pages("ListNodegroups", client.list_nodegroups, "nodegroups", clusterName=name))
            except NotFound:
                continue
            tags = cluster.get("tags") or {}
            if v.TAG_UID in tags:
                yield _owned(EKS_CLUSTER, name, cluster["status"], tags, cluster.get("createdAt"))
            machines = self._untagged("eks:cluster-name", name, "eks:nodegroup-name") if names else {}
            for group_name in names:
                try:
                    with aws_call("DescribeNodegroup"):
                        group = client.describe_nodegroup(clusterName=name, nodegroupName=group_name)["nodegroup"]
                except NotFound:
                    continue
                tags = group.get("tags") or {}
                if v.TAG_UID in tags:
                    key, made_at = f"{name}/{group_name}", group.get("createdAt")
                    yield _owned(EKS_GROUP, key, group["status"], tags, made_at, machines.get(group_name))

    # --- HyperPod

    def _hyperpod(self) -> Iterator[v.Owned]:
        client = self._client("sagemaker")
        for cluster in self._pages("ListClusters", client.list_clusters, "ClusterSummaries"):
            try:
                with aws_call("ListTags"):
                    listed = client.list_tags(ResourceArn=cluster["ClusterArn"]).get("Tags") or []
                tags = {str(t["Key"]): str(t["Value"]) for t in listed}
                if v.TAG_UID not in tags:
                    continue
                nodes = self._pages(
                    "ListClusterNodes",
                    client.list_cluster_nodes,
                    "ClusterNodeSummaries",
                    ClusterName=cluster["ClusterName"],
                )
                machines = Counter(str(n["InstanceType"]).removeprefix("ml.") for n in nodes)
            except NotFound:
                continue
            yield _owned(
                HYPERPOD, cluster["ClusterName"], cluster["ClusterStatus"], tags, cluster.get("CreationTime"), machines
            )


def _owned(
    kind: str,
    provider_id: str,
    state: str,
    tags: Mapping[str, str],
    created_at: Any,
    machines: Mapping[str, int] | None = None,
) -> v.Owned:
    return v.Owned(
        kind=kind,
        provider_id=provider_id,
        uid=tags[v.TAG_UID],
        attempt=tags.get(v.TAG_ATTEMPT, ""),
        state=state,
        created_at=created_at,
        machines=tuple(sorted((machines or {}).items())),
    )
