"""AWS PCS: clusters, compute node groups and queues with their life cycles, limits and order of deletion."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from sandbox.aws.errors import AwsError
from sandbox.aws.group_machines import Wanted, reservation_problem, scale
from sandbox.aws.network import subnet_of
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.secretsmanager import SecretsManager
from sandbox.aws.service import Service
from sandbox.aws.state import Cloud

#: Managed nodes by cluster size.
SIZES: Final = {"SMALL": 32, "MEDIUM": 512, "LARGE": 2048}
_VERSIONS: Final = ("24.05", "24.11", "25.05")
_GONE: Final = {"clusters": "Cluster", "groups": "Compute node group", "queues": "Queue"}


class Pcs(Service):
    """A cluster's key lies in Secrets Manager; a group's machines are in EC2 with PCS's tags."""

    name: ClassVar[str] = "pcs"

    def __init__(self, *args: Any, keys: SecretsManager, cloud: Cloud) -> None:
        super().__init__(*args)
        self._keys = keys
        self._cloud = cloud

    def settle(self) -> None:
        """Creating, updating and deleting end by the clock."""
        now, create_s, delete_s = time.time(), self.options.cluster_create_s, self.options.cluster_delete_s
        for kind in ("clusters", "groups", "queues"):
            lasts = create_s if kind == "clusters" else create_s / 2
            for thing in list(self.rows(kind).values()):
                if thing["status"] in ("CREATING", "UPDATING") and now >= thing["since"] + lasts:
                    self._made(kind, thing)
                elif thing["status"] == "DELETING" and now >= thing["since"] + delete_s:
                    del self.rows(kind)[thing["id"]]
                    if kind == "clusters":
                        self._keys.forget(thing["secret"])
                elif kind == "groups" and thing["status"] == "ACTIVE" and now >= thing.get("next", 0.0):
                    self._keep(thing)

    def _made(self, kind: str, thing: dict[str, Any]) -> None:
        failed = self.world.fault_use("cluster-fails", what=f"pcs-{kind[:-1]}")
        if failed is None:
            thing |= {"status": "ACTIVE", "errors": []}
            return
        thing["status"] = "CREATE_FAILED" if thing["status"] == "CREATING" else "UPDATE_FAILED"
        thing["errors"] = [{"code": "InternalError", "message": "The sandbox was told to fail it."}]

    def _keep(self, group: dict[str, Any]) -> None:
        """A group keeps at least its minimum, and tries again and again where EC2 has not the machines."""
        group["next"] = time.time() + self.options.cluster_create_s / 4
        problem = ""
        if self.world.fault_use("group-no-capacity", group=group["name"]) is not None:
            problem = "We currently do not have sufficient capacity in the Availability Zone you requested."
        problem = problem or self._scale(group, group["scalingConfiguration"]["minInstanceCount"])
        group["errors"] = [{"code": "InsufficientInstanceCapacity", "message": problem}] if problem else []

    def _scale(self, group: Mapping[str, Any], count: int) -> str:
        tags = {"aws:pcs:cluster-id": group["clusterId"], "aws:pcs:compute-node-group-id": group["id"]}
        wanted = Wanted(
            tags=tags,
            instance_type=group["instanceConfigs"][0]["instanceType"],
            subnet_id=group["subnetIds"][0],
            group_ids=list(group.get("securityGroupIds") or []),
            template=self._data(group),
        )
        return scale(self._cloud, self.world, wanted, count)

    def _data(self, group: Mapping[str, Any]) -> dict[str, Any]:
        template = self._cloud.templates.get((group.get("customLaunchTemplate") or {}).get("id", ""))
        return dict(template.data) if template is not None else {}

    def census(self) -> dict[str, int]:
        """Clusters, groups, queues."""
        return {
            "pcs_clusters": len(self.rows("clusters")),
            "pcs_groups": len(self.rows("groups")),
            "pcs_queues": len(self.rows("queues")),
        }

    def mismatch_code(self) -> str:
        """PCS's word."""
        return "ConflictException"

    # --- finding

    def _find(self, kind: str, name: str, within: str = "") -> dict[str, Any]:
        for thing in self.rows(kind).values():
            if name in (thing["id"], thing["name"]) and within in ("", thing.get("clusterId")):
                return thing
        raise AwsError("ResourceNotFoundException", f"{_GONE[kind]} {name} does not exist.")

    def _cluster(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return self._find("clusters", asked["clusterIdentifier"])

    def _new(self, kind: str, name: str, **more: Any) -> dict[str, Any]:
        within = more.get("clusterId", "")
        if any(t["name"] == name and t.get("clusterId", "") == within for t in self.rows(kind).values()):
            raise AwsError("ConflictException", f"{_GONE[kind]} {name} already exists.")
        thing_id = f"pcs_{secrets.token_hex(5)}"
        now = time.time()
        thing = {
            "id": thing_id,
            "name": name,
            "status": "CREATING",
            "since": now,
            "createdAt": now,
            "errors": [],
            **more,
        }
        self.rows(kind)[thing_id] = thing
        return thing

    def _arn(self, path: str) -> str:
        return f"arn:aws:pcs:{self.options.region}:{ACCOUNT_ID}:{path}"

    def _subnets(self, subnet_ids: list[str]) -> None:
        for subnet_id in subnet_ids:
            if subnet_of(self.options.region, subnet_id) is None:
                raise AwsError("ValidationException", f"The subnet ID '{subnet_id}' does not exist")

    # --- clusters

    def create_cluster(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A new cluster, or the one this token made."""
        made = self.once(asked.get("clientToken"), asked, lambda: self._create_cluster(asked))
        if made not in self.rows("clusters"):
            raise AwsError("ConflictException", "The cluster that this client token made was deleted.")
        return {"cluster": self._cluster_view(self.rows("clusters")[made])}

    def _create_cluster(self, asked: Mapping[str, Any]) -> str:
        if asked["scheduler"]["version"] not in _VERSIONS:
            raise AwsError("ValidationException", f"Slurm {asked['scheduler']['version']} is not supported.")
        subnets = asked["networking"].get("subnetIds") or []
        if len(subnets) != 1:
            raise AwsError("ValidationException", "networking.subnetIds must hold exactly one subnet.")
        self._subnets(subnets)
        cluster = self._new(
            "clusters",
            asked["clusterName"],
            version=asked["scheduler"]["version"],
            size=asked["size"],
            networking=dict(asked["networking"]),
            slurm=dict(asked.get("slurmConfiguration") or {}),
            tags=dict(asked.get("tags") or {}),
            address=f"10.0.9.{secrets.randbelow(200) + 10}",
        )
        cluster["secret"] = self._keys.keep(f"pcs!slurm-secret-{cluster['id']}")
        return str(cluster["id"])

    def get_cluster(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One, by id or name."""
        return {"cluster": self._cluster_view(self._cluster(asked))}

    def list_clusters(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All."""
        rows, following = self.page(list(self.rows("clusters").values()), asked)
        keys = ("name", "id", "arn", "createdAt", "modifiedAt", "status")
        views = [{k: v for k, v in self._cluster_view(c).items() if k in keys} for c in rows]
        return {"clusters": views, **({"nextToken": following} if following else {})}

    def delete_cluster(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Refused while groups or queues exist."""
        cluster = self._cluster(asked)
        for kind in ("queues", "groups"):
            if any(t["clusterId"] == cluster["id"] for t in self.rows(kind).values()):
                raise AwsError("ConflictException", f"Cluster {cluster['name']} still has {kind}.")
        self._end(cluster)
        return {}

    def _end(self, thing: dict[str, Any]) -> None:
        if thing["status"] in ("CREATING", "UPDATING"):
            raise AwsError("ConflictException", f"{thing['name']} is {thing['status']}.")
        if thing["status"] != "DELETING":
            thing |= {"status": "DELETING", "since": time.time()}

    def _cluster_view(self, cluster: Mapping[str, Any]) -> dict[str, Any]:
        slurm = {k: v for k, v in cluster["slurm"].items() if k != "slurmCustomSettings"}
        view = {
            **_common(cluster),
            "arn": self._arn(f"cluster/{cluster['id']}"),
            "scheduler": {"type": "SLURM", "version": cluster["version"]},
            "size": cluster["size"],
            "networking": cluster["networking"],
            "slurmConfiguration": slurm,
        }
        if cluster["status"] != "CREATING":
            slurm["authKey"] = {"secretArn": cluster["secret"], "secretVersion": "1"}
            view["endpoints"] = [{"type": "SLURMCTLD", "privateIpAddress": cluster["address"], "port": "6817"}]
            if (slurm.get("slurmRest") or {}).get("mode") == "STANDARD":
                slurm["jwtAuth"] = {"jwtKey": {"secretArn": cluster["secret"], "secretVersion": "1"}}
                view["endpoints"].append({"type": "SLURMRESTD", "privateIpAddress": cluster["address"], "port": "6820"})
        return view

    # --- compute node groups

    def create_compute_node_group(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A new group, or the one this token made."""
        made = self.once(asked.get("clientToken"), asked, lambda: self._create_group(asked))
        if made not in self.rows("groups"):
            raise AwsError("ConflictException", "The compute node group that this client token made was deleted.")
        return {"computeNodeGroup": self._group_view(self.rows("groups")[made])}

    def _create_group(self, asked: Mapping[str, Any]) -> str:
        cluster = self._cluster(asked)
        if cluster["status"] != "ACTIVE":
            raise AwsError("ConflictException", f"Cluster {cluster['name']} is {cluster['status']}.")
        self._subnets(asked["subnetIds"])
        profile = asked["iamInstanceProfileArn"].partition("instance-profile/")[2]
        if not profile.rpartition("/")[2].startswith("AWSPCS") and "aws-pcs/" not in profile:
            raise AwsError("ValidationException", "The instance profile's name must start with AWSPCS.")
        custom = asked.get("customLaunchTemplate")
        if asked.get("launchTemplateMode", "CUSTOM") == "CUSTOM" and not custom:
            raise AwsError("ValidationException", "customLaunchTemplate is required.")
        self._launchable(asked, custom)
        self._fits(cluster, asked["scalingConfiguration"], "")
        group = self._new(
            "groups",
            asked["computeNodeGroupName"],
            clusterId=cluster["id"],
            tags=dict(asked.get("tags") or {}),
            **{
                k: asked[k]
                for k in (
                    "amiId",
                    "securityGroupIds",
                    "subnetIds",
                    "customLaunchTemplate",
                    "iamInstanceProfileArn",
                    "scalingConfiguration",
                    "instanceConfigs",
                    "instanceHealthChecks",
                )
                if k in asked
            },
            purchaseOption=asked.get("purchaseOption", "ONDEMAND"),
            launchTemplateMode=asked.get("launchTemplateMode", "CUSTOM"),
        )
        return str(group["id"])

    def _launchable(self, asked: Mapping[str, Any], custom: Mapping[str, str] | None) -> None:
        """What PCS asks of image, interfaces and reservation; a block that begins later is taken."""
        if custom and custom["id"] not in self._cloud.templates:
            raise AwsError("ValidationException", f"Launch template {custom['id']} does not exist.")
        data = self._data(asked)
        if not asked.get("amiId") and not data.get("ImageId"):
            raise AwsError("ValidationException", "amiId is required where the launch template names no image.")
        if any(i.get("InterfaceType") == "efa-only" for i in data.get("NetworkInterfaces") or []):
            raise AwsError("ValidationException", "PCS does not support network interfaces of the type efa-only.")
        market = (data.get("InstanceMarketOptions") or {}).get("MarketType", "")
        purchase = asked.get("purchaseOption", "ONDEMAND")
        if (purchase == "CAPACITY_BLOCK") != (market == "capacity-block"):
            raise AwsError(
                "ValidationException",
                "The purchase option CAPACITY_BLOCK needs a launch template with the market type capacity-block.",
            )
        zone = subnet_of(self.options.region, asked["subnetIds"][0]).availability_zone  # type: ignore[union-attr]
        problem = reservation_problem(self._cloud, data, asked["instanceConfigs"][0]["instanceType"], zone)
        if problem:
            raise AwsError("ValidationException", problem)

    def _fits(self, cluster: Mapping[str, Any], scaling: Mapping[str, int], but: str) -> None:
        if scaling["minInstanceCount"] > scaling["maxInstanceCount"]:
            raise AwsError("ValidationException", "minInstanceCount is above maxInstanceCount.")
        others = sum(
            g["scalingConfiguration"]["maxInstanceCount"]
            for g in self.rows("groups").values()
            if g["clusterId"] == cluster["id"] and g["id"] != but
        )
        most = SIZES[cluster["size"]]
        if others + scaling["maxInstanceCount"] > most:
            raise AwsError(
                "ServiceQuotaExceededException", f"A {cluster['size']} cluster manages at most {most} instances."
            )

    def get_compute_node_group(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One, by id or name."""
        cluster = self._cluster(asked)
        return {"computeNodeGroup": self._group_view(self._group(asked, cluster))}

    def _group(self, asked: Mapping[str, Any], cluster: Mapping[str, Any]) -> dict[str, Any]:
        return self._find("groups", asked["computeNodeGroupIdentifier"], cluster["id"])

    def list_compute_node_groups(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All of a cluster."""
        return self._list("groups", "computeNodeGroups", asked)

    def _list(self, kind: str, key: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        cluster = self._cluster(asked)
        mine = [t for t in self.rows(kind).values() if t["clusterId"] == cluster["id"]]
        rows, following = self.page(mine, asked)
        path = "computenodegroup" if kind == "groups" else "queue"
        views = [
            {**_common(t, with_errors=False), "clusterId": cluster["id"], "arn": self._arn(f"{path}/{t['id']}")}
            for t in rows
        ]
        return {key: views, **({"nextToken": following} if following else {})}

    def update_compute_node_group(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Other limits of scaling, once a token."""
        group = self._group(asked, self._cluster(asked))
        self.once(asked.get("clientToken"), asked, lambda: self._update_group(asked))
        return {"computeNodeGroup": self._group_view(group)}

    def _update_group(self, asked: Mapping[str, Any]) -> str:
        cluster = self._cluster(asked)
        group = self._group(asked, cluster)
        if group["status"] not in ("ACTIVE", "UPDATE_FAILED"):
            raise AwsError("ConflictException", f"Compute node group {group['name']} is {group['status']}.")
        if "scalingConfiguration" in asked:
            self._fits(cluster, asked["scalingConfiguration"], group["id"])
            group["scalingConfiguration"] = asked["scalingConfiguration"]
        group |= {"status": "UPDATING", "since": time.time()}
        return str(group["id"])

    def delete_compute_node_group(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Refused while a queue uses it."""
        group = self._group(asked, self._cluster(asked))
        for queue in self.rows("queues").values():
            if any(c["computeNodeGroupId"] == group["id"] for c in queue["computeNodeGroupConfigurations"]):
                raise AwsError("ConflictException", f"Queue {queue['name']} uses compute node group {group['name']}.")
        self._end(group)
        self._scale(group, 0)
        return {}

    def _group_view(self, group: Mapping[str, Any]) -> dict[str, Any]:
        kept = {k: v for k, v in group.items() if k not in ("status", "since", "tags", "errors", "createdAt", "next")}
        return {**kept, **_common(group), "arn": self._arn(f"computenodegroup/{group['id']}")}

    # --- queues

    def create_queue(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A new queue, or the one this token made."""
        made = self.once(asked.get("clientToken"), asked, lambda: self._create_queue(asked))
        if made not in self.rows("queues"):
            raise AwsError("ConflictException", "The queue that this client token made was deleted.")
        return {"queue": self._queue_view(self.rows("queues")[made])}

    def _create_queue(self, asked: Mapping[str, Any]) -> str:
        cluster = self._cluster(asked)
        groups = asked.get("computeNodeGroupConfigurations") or []
        if cluster["status"] != "ACTIVE":
            raise AwsError("ConflictException", f"Cluster {cluster['name']} is {cluster['status']}.")
        for wanted in groups:
            group = self._find("groups", wanted["computeNodeGroupId"], cluster["id"])
            if group["status"] not in ("ACTIVE", "UPDATING"):
                raise AwsError("ConflictException", f"Compute node group {group['name']} is {group['status']}.")
        queue = self._new(
            "queues",
            asked["queueName"],
            clusterId=cluster["id"],
            computeNodeGroupConfigurations=groups,
            tags=dict(asked.get("tags") or {}),
        )
        return str(queue["id"])

    def get_queue(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One, by id or name."""
        cluster = self._cluster(asked)
        return {"queue": self._queue_view(self._find("queues", asked["queueIdentifier"], cluster["id"]))}

    def list_queues(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All of a cluster."""
        return self._list("queues", "queues", asked)

    def delete_queue(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The first to go."""
        self._end(self._find("queues", asked["queueIdentifier"], self._cluster(asked)["id"]))
        return {}

    def _queue_view(self, queue: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **_common(queue),
            "arn": self._arn(f"queue/{queue['id']}"),
            "clusterId": queue["clusterId"],
            "computeNodeGroupConfigurations": queue["computeNodeGroupConfigurations"],
        }

    def list_tags_for_resource(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The tags of a cluster, group or queue."""
        thing_id = asked["resourceArn"].rpartition("/")[2]
        for kind in ("clusters", "groups", "queues"):
            if thing_id in self.rows(kind):
                return {"tags": self.rows(kind)[thing_id]["tags"]}
        raise AwsError("ResourceNotFoundException", f"{asked['resourceArn']} does not exist.")


def _common(thing: Mapping[str, Any], *, with_errors: bool = True) -> dict[str, Any]:
    view: dict[str, Any] = {
        "name": thing["name"],
        "id": thing["id"],
        "status": thing["status"],
        "createdAt": _stamp(thing["createdAt"]),
        "modifiedAt": _stamp(thing["since"]),
    }
    if with_errors and thing["errors"]:
        view["errorInfo"] = thing["errors"]
    return view


def _stamp(at: float) -> str:
    """PCS's instants are ISO 8601 text."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
