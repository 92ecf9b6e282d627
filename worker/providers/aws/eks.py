"""The port ``ClusterService`` on EKS with managed node groups."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from worker.providers import cluster_values as kv
from worker.providers import values as v
from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import creating_client, reading_client
from worker.providers.aws.groups import Templates, machines, needs_template, template_data
from worker.providers.errors import Conflict, NotFound, Unsupported

_CAPACITY: Final = {"on-demand": "ON_DEMAND", "odcr": "ON_DEMAND", "spot": "SPOT", "capacity-block": "CAPACITY_BLOCK"}
_SOURCES: Final = {"ON_DEMAND": "on-demand", "SPOT": "spot", "CAPACITY_BLOCK": "capacity-block"}
_ADMIN_POLICY: Final = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
_ARM_FAMILIES: Final = ("p6e-",)


class Eks:
    """Implements ``worker.providers.ports.ClusterService``; see there for the contract."""

    def __init__(self, access: v.CloudAccess) -> None:
        self._access = access
        self._templates = Templates(access)

    @property
    def _read(self) -> Any:
        return reading_client(self._access, "eks")

    @property
    def _once(self) -> Any:
        return creating_client(self._access, "eks")

    # --- clusters

    def cluster_ensure(self, spec: kv.ClusterSpec, client_token: str) -> kv.SeenCluster:
        """Create, or return ours of that name."""
        wants = spec.settings
        try:
            with aws_call("CreateCluster"):
                answer = self._once.create_cluster(
                    name=spec.name,
                    version=wants["version"],
                    roleArn=wants["role_arn"],
                    resourcesVpcConfig={
                        "subnetIds": list(wants["subnet_ids"]),
                        "securityGroupIds": list(wants.get("security_group_ids") or []),
                        "endpointPrivateAccess": True,
                        "endpointPublicAccess": False,
                    },
                    accessConfig={"authenticationMode": "API"},
                    clientRequestToken=client_token,
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
        return _cluster(answer["cluster"])

    def cluster(self, name: str) -> kv.SeenCluster:
        """One, with its address and security group."""
        with aws_call("DescribeCluster"):
            return _cluster(self._read.describe_cluster(name=name)["cluster"])

    def cluster_delete(self, name: str) -> None:
        """After the node groups; add-ons and access entries go with it."""
        with aws_call("DeleteCluster"):
            self._read.delete_cluster(name=name)

    def prepare(self, cluster: kv.SeenCluster, settings: Mapping[str, Any], tags: Mapping[str, str], step: str) -> str:
        """Access entries, or add-ons: one that is missing at a time."""
        if step == "ACCESS":
            return self._access_entries(cluster, list(settings.get("admin_arns") or []), tags)
        return self._addons(cluster, list(settings.get("addons") or []), tags)

    def _access_entries(self, cluster: kv.SeenCluster, wanted: list[str], tags: Mapping[str, str]) -> str:
        there = set(self._pages("ListAccessEntries", self._read.list_access_entries, "accessEntries", cluster))
        for principal in wanted:
            if principal not in there:
                try:
                    with aws_call("CreateAccessEntry"):
                        self._once.create_access_entry(
                            clusterName=cluster.name, principalArn=principal, tags=dict(tags)
                        )
                except Conflict:
                    pass
            with aws_call("AssociateAccessPolicy"):
                self._read.associate_access_policy(
                    clusterName=cluster.name,
                    principalArn=principal,
                    policyArn=_ADMIN_POLICY,
                    accessScope={"type": "cluster"},
                )
        return ""

    def _addons(self, cluster: kv.SeenCluster, wanted: list[str], tags: Mapping[str, str]) -> str:
        there = set(self._pages("ListAddons", self._read.list_addons, "addons", cluster))
        for name in wanted:
            if name not in there:
                try:
                    with aws_call("CreateAddon"):
                        self._once.create_addon(
                            clusterName=cluster.name, addonName=name, resolveConflicts="OVERWRITE", tags=dict(tags)
                        )
                except Conflict:
                    continue
        waiting = []
        for name in wanted:
            with aws_call("DescribeAddon"):
                status = self._read.describe_addon(clusterName=cluster.name, addonName=name)["addon"]["status"]
            # Without nodes coredns stays DEGRADED until the first group is there.
            if status == "CREATING":
                waiting.append(name)
        return ", ".join(waiting)

    # --- groups

    def template_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, client_token: str) -> str:
        """Every interface holds the cluster's own security group beside those for EFA."""
        if not needs_template(spec):
            return ""
        own = str(cluster.facts.get("security_group_id") or "")
        groups = tuple(dict.fromkeys([*([own] if own else []), *spec.security_group_ids]))
        data = template_data(spec, groups, "ec2", names_type=True)
        return self._templates.ensure(spec, data, client_token)

    def template_delete(self, uid: str) -> None:
        """By the group's uid."""
        self._templates.delete(uid)

    def group_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, client_token: str) -> kv.SeenGroup:
        """Create, or return ours of that name."""
        kind: dict[str, Any] = {"instanceTypes": [spec.instance_type]}
        if spec.launch_template_id:
            kind = {"launchTemplate": {"id": spec.launch_template_id, "version": "1"}}
        arm = spec.instance_type.startswith(_ARM_FAMILIES)
        try:
            with aws_call("CreateNodegroup"):
                answer = self._once.create_nodegroup(
                    clusterName=cluster.name,
                    nodegroupName=spec.name,
                    capacityType=_CAPACITY[spec.source],
                    amiType="AL2023_ARM_64_NVIDIA" if arm else "AL2023_x86_64_NVIDIA",
                    subnets=list(spec.subnet_ids),
                    scalingConfig=_scaling(spec),
                    nodeRole=spec.role_arn,
                    nodeRepairConfig={"enabled": bool(spec.settings.get("repairs", True))},
                    clientRequestToken=client_token,
                    tags=dict(spec.tags),
                    **kind,
                )
        except Conflict as error:
            try:
                raw = self._group(cluster, spec.name)
            except NotFound:
                raise error from None
            if (raw.get("tags") or {}).get(v.TAG_UID) != spec.uid:
                raise
            return _group(raw)
        return _group(answer["nodegroup"])

    def _group(self, cluster: kv.SeenCluster, name: str) -> Mapping[str, Any]:
        with aws_call("DescribeNodegroup"):
            found: Mapping[str, Any] = self._read.describe_nodegroup(clusterName=cluster.name, nodegroupName=name)
        raw: Mapping[str, Any] = found["nodegroup"]
        return raw

    def groups(self, cluster: kv.SeenCluster) -> tuple[kv.SeenGroup, ...]:
        """All of a cluster, each described."""
        found = []
        for name in self._names(cluster):
            try:
                found.append(_group(self._group(cluster, name)))
            except NotFound:
                continue
        return tuple(found)

    def _names(self, cluster: kv.SeenCluster) -> Iterator[str]:
        return self._pages("ListNodegroups", self._read.list_nodegroups, "nodegroups", cluster)

    def _pages(self, operation: str, call: Any, key: str, cluster: kv.SeenCluster) -> Iterator[str]:
        token = ""
        while True:
            with aws_call(operation):
                answer = call(clusterName=cluster.name, **({"nextToken": token} if token else {}))
            yield from answer.get(key) or []
            token = str(answer.get("nextToken") or "")
            if not token:
                return

    def group_resize(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, seen: kv.SeenGroup, client_token: str) -> None:
        """Other sizes of its Auto Scaling group; one that others made keeps its room to scale."""
        scaling = _scaling(spec)
        if seen.tags.get(v.TAG_UID) != spec.uid:
            scaling["maxSize"] = max(scaling["maxSize"], int(seen.settings.get("max_nodes") or 0))
        with aws_call("UpdateNodegroupConfig"):
            self._once.update_nodegroup_config(
                clusterName=cluster.name,
                nodegroupName=seen.provider_id,
                scalingConfig=scaling,
                clientRequestToken=client_token,
            )

    def group_delete(self, cluster: kv.SeenCluster, provider_id: str) -> None:
        """Its machines go with it."""
        with aws_call("DeleteNodegroup"):
            self._read.delete_nodegroup(clusterName=cluster.name, nodegroupName=provider_id)

    def queue_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, group_id: str, client_token: str) -> str:
        """Kubernetes has no queues of EKS's."""
        return ""

    def queue_delete(self, cluster: kv.SeenCluster, name: str, uid: str) -> None:
        """There is none."""
        raise NotFound("EKS has no queues", source="aws")

    # --- nodes

    def members(self, cluster: kv.SeenCluster) -> tuple[kv.SeenMember, ...]:
        """A managed group's machines are in the account, with EKS's tags."""
        return machines(self._access, "eks:cluster-name", cluster.name, "eks:nodegroup-name")

    def happenings(self, cluster: kv.SeenCluster, known: Collection[str]) -> tuple[kv.SeenHappening, ...]:
        """EKS keeps none that can be read by a call; health issues stand on the groups."""
        return ()

    def nodes_act(self, cluster: kv.SeenCluster, verb: str, provider_ids: Sequence[str]) -> tuple[kv.NodeAnswer, ...]:
        """EKS repairs by itself (nodeRepairConfig)."""
        raise Unsupported("EKS repairs nodes itself where node repair is on", source="aws")


def _scaling(spec: kv.GroupSpec) -> dict[str, int]:
    desired = spec.nodes if spec.desired_nodes is None else spec.desired_nodes
    return {"minSize": min(spec.min_nodes, desired), "maxSize": max(1, spec.nodes), "desiredSize": desired}


def _cluster(raw: Mapping[str, Any]) -> kv.SeenCluster:
    network = raw.get("resourcesVpcConfig") or {}
    issues = (raw.get("health") or {}).get("issues") or []
    return kv.SeenCluster(
        provider_id=str(raw.get("arn", "")),
        name=str(raw.get("name", "")),
        state=str(raw.get("status", "")),
        word=str(raw.get("status", "")),
        tags=raw.get("tags") or {},
        failure="; ".join(f"{i.get('code', '')}: {i.get('message', '')}" for i in issues),
        version=str(raw.get("version", "")),
        facts={
            "endpoint": raw.get("endpoint", ""),
            "certificate_authority": (raw.get("certificateAuthority") or {}).get("data", ""),
            "role_arn": raw.get("roleArn", ""),
            "security_group_id": network.get("clusterSecurityGroupId", ""),
            "subnet_ids": network.get("subnetIds") or [],
            "authentication": (raw.get("accessConfig") or {}).get("authenticationMode", ""),
        },
    )


def _group(raw: Mapping[str, Any]) -> kv.SeenGroup:
    scaling = raw.get("scalingConfig") or {}
    status = str(raw.get("status", ""))
    types = raw.get("instanceTypes") or []
    issues = (raw.get("health") or {}).get("issues") or []
    return kv.SeenGroup(
        provider_id=str(raw.get("nodegroupName", "")),
        name=str(raw.get("nodegroupName", "")),
        state=kv.FAILED if status.endswith("_FAILED") else status,
        word=status,
        instance_type=str(types[0]) if types else "",
        source=_SOURCES.get(str(raw.get("capacityType")), "on-demand"),
        min_nodes=int(scaling.get("minSize") or 0),
        target_nodes=int(scaling.get("desiredSize") or 0),
        issues=tuple((str(i.get("code", "")), str(i.get("message", ""))) for i in issues),
        subnet_ids=tuple(raw.get("subnets") or ()),
        role_arn=str(raw.get("nodeRole", "")),
        settings={
            "repairs": bool((raw.get("nodeRepairConfig") or {}).get("enabled")),
            "max_nodes": int(scaling.get("maxSize") or 0),
        },
        tags=raw.get("tags") or {},
    )
