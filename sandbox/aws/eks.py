"""EKS: clusters, access entries, add-ons and managed node groups with health issues, each with its life cycle."""

from __future__ import annotations

import math
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from sandbox.aws.errors import AwsError
from sandbox.aws.group_machines import Wanted, reservation_problem, scale, target_of
from sandbox.aws.network import subnet_of
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.service import Service
from sandbox.aws.signing import CALLER
from sandbox.aws.state import Cloud

#: EKS itself scales a group in this long before its block ends.
_SCALE_IN_S: Final = 40 * 60
_VERSIONS: Final = ("1.32", "1.33", "1.34")
_ADDONS: Final = {
    "vpc-cni": "v1.20.4-eksbuild.1",
    "kube-proxy": "v1.34.0-eksbuild.2",
    "coredns": "v1.12.3-eksbuild.1",
    "eks-pod-identity-agent": "v1.3.8-eksbuild.2",
    "eks-node-monitoring-agent": "v1.4.1-eksbuild.1",
    "aws-fsx-csi-driver": "v1.7.0-eksbuild.1",
    "aws-ebs-csi-driver": "v1.48.0-eksbuild.1",
}


class Eks(Service):
    """The things of one cluster lie under ``cluster/name`` keys; names are the only identity."""

    name: ClassVar[str] = "eks"
    refusal: ClassVar[str] = "InvalidParameterException"

    def __init__(self, *args: Any, cloud: Cloud) -> None:
        super().__init__(*args)
        self._cloud = cloud
        #: Address and authority of a cluster's API server, None before it answers; unset where none is pretended.
        self.door: Callable[[str], tuple[str, str] | None] | None = None

    def settle(self) -> None:
        """Creating, updating and deleting end by the clock; a group without machines is degraded or failed."""
        now, create_s, delete_s = time.time(), self.options.cluster_create_s, self.options.cluster_delete_s
        for kind in ("clusters", "addons", "nodegroups"):
            lasts = create_s if kind == "clusters" else create_s / 2
            for key, thing in list(self.rows(kind).items()):
                if kind == "clusters" and self.door is not None and self.door(key) is None:
                    lasts = math.inf if thing["status"] == "CREATING" else lasts
                if thing["status"] in ("CREATING", "UPDATING") and now >= thing["since"] + lasts:
                    self._made(kind, thing)
                elif thing["status"] == "DELETING" and now >= thing["since"] + delete_s:
                    del self.rows(kind)[key]
                    if kind == "clusters":
                        for entry in [k for k in self.rows("entries") if k.startswith(f"{key}|")]:
                            del self.rows("entries")[entry]
                elif kind == "nodegroups" and thing["status"] in ("ACTIVE", "DEGRADED"):
                    self._keep(thing, now)

    def _made(self, kind: str, thing: dict[str, Any]) -> None:
        was, thing["status"] = thing["status"], "ACTIVE"
        if kind == "clusters" and self.world.fault_use("cluster-fails", what="eks-cluster"):
            thing["status"] = "FAILED"
        if kind != "nodegroups":
            return
        self._fill(thing)
        if thing["issues"]:
            thing["status"] = "CREATE_FAILED" if was == "CREATING" else "DEGRADED"

    def _keep(self, group: dict[str, Any], now: float) -> None:
        """What goes on without a call: the scheduled action before a block's end, and an Auto Scaling group's tries."""
        end = self._block_end(group)
        if end is not None and now >= end - _SCALE_IN_S and not group.get("scaled_in"):
            group["scaled_in"] = True
            group["scaling"] = {**group["scaling"], "minSize": 0, "desiredSize": 0}
            self._scale(group, 0)
        if group["issues"] and now >= group["since"] + self.options.cluster_create_s / 2:
            group["since"] = now
            self._fill(group)
            group["status"] = "DEGRADED" if group["issues"] else "ACTIVE"

    def _fill(self, group: dict[str, Any]) -> None:
        """Start what is missing. An Auto Scaling group starts what it can: no all-or-nothing here."""
        problem = ""
        if self.world.fault_use("group-no-capacity", group=group["name"]) is not None:
            problem = (
                f"We currently do not have sufficient {group['type']} capacity in the Availability Zone you requested."
            )
        problem = problem or self._scale(group, group["scaling"]["desiredSize"])
        group["issues"] = []
        if problem:
            group["issues"] = [
                {
                    "code": "AsgInstanceLaunchFailures",
                    "message": f"Could not launch On-Demand Instances. InsufficientInstanceCapacity - {problem}",
                    "resourceIds": [group["asg"]],
                }
            ]

    def _scale(self, group: Mapping[str, Any], count: int) -> str:
        wanted = Wanted(
            tags={"eks:cluster-name": group["cluster"], "eks:nodegroup-name": group["name"]},
            instance_type=group["type"],
            subnet_id=group["subnets"][0],
            template=self._template(group["template"]) if group["template"] else {},
        )
        return scale(self._cloud, self.world, wanted, count)

    def _block_row(self, group: Mapping[str, Any]) -> dict[str, Any] | None:
        if group["capacity"] != "CAPACITY_BLOCK" or not group["template"]:
            return None
        template = self._cloud.templates.get(group["template"].get("id", ""))
        if template is None:
            return None
        with self._cloud.lock:
            self._cloud.settle()
            return self._cloud.book.rows("reservations").get(target_of(template.data))

    def _block_end(self, group: Mapping[str, Any]) -> float | None:
        row = self._block_row(group)
        return None if row is None or row["end"] is None else float(row["end"])

    def _check_block(self, group: Mapping[str, Any], desired: int) -> None:
        row = self._block_row(group)
        if row is not None and desired > 0 and self._cloud.book.state_of(row) != "active":
            raise AwsError(
                "InvalidParameterException",
                "desiredSize must be 0 until the Capacity Block of the launch template has begun.",
            )

    def census(self) -> dict[str, int]:
        """Clusters and what hangs on them."""
        return {
            "eks_clusters": len(self.rows("clusters")),
            "eks_nodegroups": len(self.rows("nodegroups")),
            "eks_addons": len(self.rows("addons")),
            "eks_access_entries": len(self.rows("entries")),
        }

    def mismatch_code(self) -> str:
        """EKS's word."""
        return "InvalidRequestException"

    # --- finding

    def _cluster(self, name: str) -> dict[str, Any]:
        cluster = self.rows("clusters").get(name)
        if cluster is None:
            raise AwsError("ResourceNotFoundException", f"No cluster found for name: {name}.")
        return cluster

    def _active(self, name: str) -> dict[str, Any]:
        cluster = self._cluster(name)
        if cluster["status"] != "ACTIVE":
            raise AwsError("InvalidRequestException", f"Cluster {name} is in {cluster['status']} state.")
        return cluster

    def _of(self, kind: str, cluster: str, name: str) -> dict[str, Any]:
        self._cluster(cluster)
        thing = self.rows(kind).get(f"{cluster}|{name}")
        if thing is None:
            raise AwsError("ResourceNotFoundException", f"No {kind[:-1]} found for name: {name}.")
        return thing

    def _arn(self, path: str) -> str:
        return f"arn:aws:eks:{self.options.region}:{ACCOUNT_ID}:{path}"

    def _made_by(self, asked: Mapping[str, Any], kind: str, key: str, make: Any) -> dict[str, Any]:
        """What this token made; without it, or with a new one, a taken name is refused."""

        def first() -> str:
            if key in self.rows(kind):
                raise AwsError("ResourceInUseException", f"{key.rpartition('|')[2]} already exists.")
            self.rows(kind)[key] = {"status": "CREATING", "since": time.time(), "created": time.time(), **make()}
            return key

        made = self.once(asked.get("clientRequestToken"), asked, first)
        if made not in self.rows(kind):
            raise AwsError("InvalidRequestException", "What this client request token made was deleted.")
        found: dict[str, Any] = self.rows(kind)[made]
        return found

    def _subnets(self, subnet_ids: list[str]) -> None:
        for subnet_id in subnet_ids:
            if subnet_of(self.options.region, subnet_id) is None:
                raise AwsError("InvalidParameterException", f"The subnet ID '{subnet_id}' does not exist")

    # --- clusters

    def create_cluster(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A new cluster, or the one this token made."""
        cluster = self._made_by(asked, "clusters", asked["name"], lambda: self._create_cluster(asked))
        return {"cluster": self._cluster_view(asked["name"], cluster)}

    def _create_cluster(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        version = asked.get("version") or _VERSIONS[-1]
        if version not in _VERSIONS:
            raise AwsError("InvalidParameterException", f"unsupported Kubernetes version {version}")
        subnets = asked["resourcesVpcConfig"].get("subnetIds") or []
        self._subnets(subnets)
        if len({subnet_of(self.options.region, s).availability_zone for s in subnets}) < 2:  # type: ignore[union-attr]
            raise AwsError("InvalidParameterException", "Subnets specified must be in at least two different AZs")
        access = asked.get("accessConfig") or {}
        return {
            "version": version,
            "role": asked["roleArn"],
            "subnets": subnets,
            "groups": asked["resourcesVpcConfig"].get("securityGroupIds") or [],
            "own_group": "sg-" + secrets.token_hex(9)[:17],
            "mode": access.get("authenticationMode", "CONFIG_MAP"),
            "tags": asked.get("tags") or {},
            "creator": CALLER.get() if access.get("bootstrapClusterCreatorAdminPermissions", True) else "",
        }

    def groups_of(self, name: str, principal: str) -> tuple[str, ...] | None:
        """Kubernetes groups of an AWS principal in a cluster, None for one that has no way in."""
        with self.lock:
            cluster = self.rows("clusters").get(name)
            if cluster is None or not principal:
                return None
            if principal == cluster.get("creator"):
                return ("system:masters",)
            entry = self.rows("entries").get(f"{name}|{principal}")
            if entry is None or cluster["mode"] == "CONFIG_MAP":
                return None
            admin = any(one.endswith("AmazonEKSClusterAdminPolicy") for one in entry["policies"])
            return (*entry.get("groups", ()), *(("system:masters",) if admin else ()))

    def describe_cluster(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One, by name."""
        return {"cluster": self._cluster_view(asked["name"], self._cluster(asked["name"]))}

    def list_clusters(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All names."""
        rows, following = self.page(list(self.rows("clusters")), asked)
        return {"clusters": rows, **({"nextToken": following} if following else {})}

    def delete_cluster(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Refused while node groups exist; add-ons go with it."""
        name = asked["name"]
        cluster = self._cluster(name)
        if any(k.startswith(f"{name}|") for k in self.rows("nodegroups")):
            raise AwsError("ResourceInUseException", "Cluster has nodegroups attached.")
        if cluster["status"] == "CREATING":
            raise AwsError("ResourceInUseException", "Cluster is being created")
        for key in [k for k in self.rows("addons") if k.startswith(f"{name}|")]:
            del self.rows("addons")[key]
        if cluster["status"] != "DELETING":
            cluster |= {"status": "DELETING", "since": time.time()}
        return {"cluster": self._cluster_view(name, cluster)}

    def _cluster_view(self, name: str, cluster: Mapping[str, Any]) -> dict[str, Any]:
        view: dict[str, Any] = {
            "name": name,
            "arn": self._arn(f"cluster/{name}"),
            "createdAt": cluster["created"],
            "version": cluster["version"],
            "roleArn": cluster["role"],
            "status": cluster["status"],
            "accessConfig": {"authenticationMode": cluster["mode"]},
            "resourcesVpcConfig": {"subnetIds": cluster["subnets"], "securityGroupIds": cluster["groups"]},
            "tags": cluster["tags"],
            "health": {"issues": []},
        }
        if cluster["status"] != "CREATING":
            door = None if self.door is None else self.door(name)
            host = uuid.uuid5(uuid.NAMESPACE_DNS, name).hex.upper()
            view["endpoint"] = (
                f"https://{host}.gr7.{self.options.region}.eks.amazonaws.com" if door is None else door[0]
            )
            if door is not None:
                view["certificateAuthority"] = {"data": door[1]}
            view["resourcesVpcConfig"]["clusterSecurityGroupId"] = cluster["own_group"]
        return view

    # --- access entries

    def create_access_entry(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Who may come in; refused where the cluster knows only its config map."""
        cluster = self._active(asked["clusterName"])
        if cluster["mode"] == "CONFIG_MAP":
            raise AwsError(
                "InvalidRequestException",
                "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP].",
            )
        key = f"{asked['clusterName']}|{asked['principalArn']}"
        if key in self.rows("entries"):
            raise AwsError(
                "ResourceInUseException", "The specified access entry resource is already in use on this cluster."
            )
        groups = asked.get("kubernetesGroups") or []
        self.rows("entries")[key] = {"policies": [], "groups": groups, "tags": asked.get("tags") or {}}
        return {"accessEntry": {"clusterName": asked["clusterName"], "principalArn": asked["principalArn"]}}

    def list_access_entries(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All principals of a cluster."""
        self._cluster(asked["clusterName"])
        prefix = f"{asked['clusterName']}|"
        return {"accessEntries": [k.removeprefix(prefix) for k in self.rows("entries") if k.startswith(prefix)]}

    def associate_access_policy(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What an entry may do; doing it twice changes nothing."""
        entry = self._of("entries", asked["clusterName"], asked["principalArn"])
        if asked["policyArn"] not in entry["policies"]:
            entry["policies"].append(asked["policyArn"])
        return {"clusterName": asked["clusterName"], "principalArn": asked["principalArn"]}

    # --- add-ons

    def create_addon(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One of those that the sandbox knows."""
        if asked["addonName"] not in _ADDONS:
            raise AwsError("InvalidParameterException", f"Addon {asked['addonName']} is not supported")
        self._active(asked["clusterName"])
        key = f"{asked['clusterName']}|{asked['addonName']}"
        addon = self._made_by(asked, "addons", key, lambda: {"tags": asked.get("tags") or {}})
        return {"addon": self._addon_view(asked["clusterName"], asked["addonName"], addon)}

    def describe_addon(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One."""
        addon = self._of("addons", asked["clusterName"], asked["addonName"])
        return {"addon": self._addon_view(asked["clusterName"], asked["addonName"], addon)}

    def list_addons(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All names of a cluster."""
        self._cluster(asked["clusterName"])
        prefix = f"{asked['clusterName']}|"
        return {"addons": [k.removeprefix(prefix) for k in self.rows("addons") if k.startswith(prefix)]}

    def _addon_view(self, cluster: str, name: str, addon: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "addonName": name,
            "clusterName": cluster,
            "status": addon["status"],
            "addonVersion": _ADDONS[name],
            "addonArn": self._arn(f"addon/{cluster}/{name}/x"),
            "createdAt": addon["created"],
            "tags": addon["tags"],
        }

    # --- node groups

    def create_nodegroup(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A new group, or the one this token made; with a launch template type and disk stand in it."""
        self._active(asked["clusterName"])
        key = f"{asked['clusterName']}|{asked['nodegroupName']}"
        group = self._made_by(asked, "nodegroups", key, lambda: self._create_group(asked))
        return {"nodegroup": self._group_view(asked["clusterName"], group)}

    def _create_group(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._subnets(asked["subnets"])
        template = asked.get("launchTemplate")
        instance_type = (asked.get("instanceTypes") or ["t3.medium"])[0]
        market, data = "", {}
        if template:
            for field in ("diskSize", "remoteAccess"):
                if field in asked:
                    raise AwsError("InvalidParameterException", f"{field} and launch template cannot both be given.")
            data = self._template(template)
            if "IamInstanceProfile" in data:
                raise AwsError("InvalidParameterException", "IamInstanceProfile is not allowed in the launch template.")
            for interface in data.get("NetworkInterfaces") or []:
                if interface.get("SubnetId"):
                    raise AwsError(
                        "InvalidParameterException",
                        "SubnetId is not allowed in a launch template's network interfaces.",
                    )
            if data.get("InstanceType") and asked.get("instanceTypes"):
                raise AwsError("InvalidParameterException", "Instance types in both node group and launch template.")
            instance_type = data.get("InstanceType") or instance_type
            market = (data.get("InstanceMarketOptions") or {}).get("MarketType", "")
        if (asked.get("capacityType") == "CAPACITY_BLOCK") != (market == "capacity-block"):
            raise AwsError(
                "InvalidParameterException",
                "A CAPACITY_BLOCK node group needs a launch template with MarketType capacity-block, and only it.",
            )
        if market and not data.get("InstanceType"):
            raise AwsError(
                "InvalidParameterException", "The launch template of a CAPACITY_BLOCK node group must name its type."
            )
        zone = subnet_of(self.options.region, asked["subnets"][0]).availability_zone  # type: ignore[union-attr]
        problem = reservation_problem(self._cloud, data, instance_type, zone)
        if problem:
            raise AwsError("InvalidParameterException", problem)
        scaling = asked["scalingConfig"]
        if not scaling["minSize"] <= scaling["desiredSize"] <= scaling["maxSize"]:
            raise AwsError("InvalidParameterException", "desiredSize must lie between minSize and maxSize.")
        capacity = asked.get("capacityType", "ON_DEMAND")
        self._check_block({"capacity": capacity, "template": template}, scaling["desiredSize"])
        return {
            "name": asked["nodegroupName"],
            "scaling": scaling,
            "subnets": asked["subnets"],
            "type": instance_type,
            "ami": asked.get("amiType", "AL2023_x86_64_STANDARD"),
            "role": asked["nodeRole"],
            "capacity": capacity,
            "template": template,
            "repair": asked.get("nodeRepairConfig") or {},
            "asg": f"eks-{asked['nodegroupName']}-{uuid.uuid4()}",
            "issues": [],
            "cluster": asked["clusterName"],
            "tags": asked.get("tags") or {},
        }

    def _template(self, wanted: Mapping[str, str]) -> dict[str, Any]:
        template = self._cloud.templates.get(wanted.get("id", ""))
        if template is None:
            raise AwsError("InvalidParameterException", f"Launch template {wanted.get('id')} does not exist.")
        data: dict[str, Any] = template.data
        return data

    def describe_nodegroup(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One."""
        group = self._of("nodegroups", asked["clusterName"], asked["nodegroupName"])
        return {"nodegroup": self._group_view(asked["clusterName"], group)}

    def list_nodegroups(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All names of a cluster."""
        self._cluster(asked["clusterName"])
        prefix = f"{asked['clusterName']}|"
        names = [k.removeprefix(prefix) for k in self.rows("nodegroups") if k.startswith(prefix)]
        rows, following = self.page(names, asked)
        return {"nodegroups": rows, **({"nextToken": following} if following else {})}

    def update_nodegroup_config(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Other sizes; the answer is an update that goes on."""
        made = self.once(asked.get("clientRequestToken"), asked, lambda: self._update_group(asked))
        update = {
            "id": made,
            "status": "InProgress",
            "type": "ConfigUpdate",
            "params": [],
            "createdAt": time.time(),
            "errors": [],
        }
        return {"update": update}

    def _update_group(self, asked: Mapping[str, Any]) -> str:
        group = self._of("nodegroups", asked["clusterName"], asked["nodegroupName"])
        if group["status"] in ("CREATING", "DELETING", "UPDATING", "CREATE_FAILED"):
            raise AwsError("ResourceInUseException", f"Nodegroup is {group['status']}.")
        scaling = {**group["scaling"], **(asked.get("scalingConfig") or {})}
        if not scaling["minSize"] <= scaling["desiredSize"] <= scaling["maxSize"]:
            raise AwsError("InvalidParameterException", "desiredSize must lie between minSize and maxSize.")
        self._check_block(group, scaling["desiredSize"])
        group |= {"scaling": scaling, "status": "UPDATING", "since": time.time()}
        return str(uuid.uuid4())

    def delete_nodegroup(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Its machines go with it."""
        group = self._of("nodegroups", asked["clusterName"], asked["nodegroupName"])
        if group["status"] in ("CREATING", "UPDATING"):
            raise AwsError("ResourceInUseException", f"Nodegroup is {group['status']}.")
        if group["status"] != "DELETING":
            group |= {"status": "DELETING", "since": time.time()}
            self._scale(group, 0)
        return {"nodegroup": self._group_view(asked["clusterName"], group)}

    def _group_view(self, cluster: str, group: Mapping[str, Any]) -> dict[str, Any]:
        view: dict[str, Any] = {
            "nodegroupName": group["name"],
            "nodegroupArn": self._arn(f"nodegroup/{cluster}/{group['name']}/x"),
            "clusterName": cluster,
            "createdAt": group["created"],
            "status": group["status"],
            "capacityType": group["capacity"],
            "scalingConfig": group["scaling"],
            "subnets": group["subnets"],
            "amiType": group["ami"],
            "nodeRole": group["role"],
            "resources": {"autoScalingGroups": [{"name": group["asg"]}]},
            "health": {"issues": group["issues"]},
            "nodeRepairConfig": group["repair"],
            "tags": group["tags"],
        }
        if group["template"]:
            view["launchTemplate"] = group["template"]
        else:
            view["instanceTypes"] = [group["type"]]
        return view
