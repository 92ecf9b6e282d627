"""SageMaker HyperPod: clusters by name alone, instance groups, nodes of its own, batch operations and events.

Nodes are in no EC2 account. A cluster without continuous provisioning is made whole or fails; with it, it is
InService while CurrentCount climbs to TargetCount, and it keeps events.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sandbox.aws.errors import AwsError
from sandbox.aws.network import subnet_of
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.service import hex_id, tags_of

if TYPE_CHECKING:
    from sandbox.aws.trainingplans import TrainingPlans

    class _Base(TrainingPlans):
        """What the class it is mixed into brings."""

else:
    _Base = object

_SETTLED: Final = ("InService", "Failed")
_MOST_EVENTS: Final = 500


class HyperPod(_Base):
    """Mixed into the SageMaker service, whose ``settle`` calls ``clusters_settle``."""

    # --- time

    def clusters_settle(self) -> None:
        """Clusters and nodes come and go by the clock."""
        now, create_s, delete_s = time.time(), self.options.cluster_create_s, self.options.cluster_delete_s
        for name, cluster in list(self.rows("clusters").items()):
            if cluster["status"] == "Deleting" and now >= cluster["since"] + delete_s:
                self._hold(cluster["groups"], {})
                del self.rows("clusters")[name]
                continue
            if cluster["status"] == "Creating" and now >= cluster["since"] + create_s:
                self._created(cluster)
            elif cluster["status"] in ("Updating", "SystemUpdating") and now >= cluster["since"] + create_s / 2:
                cluster["status"] = "InService"
            for node_id, node in list(cluster["nodes"].items()):
                self._settle_node(cluster, node_id, node, now)
            if cluster["status"] == "InService":
                self._fill(cluster, now)

    def _created(self, cluster: dict[str, Any]) -> None:
        script = self.world.fault_use("lifecycle-fails")
        short = self.world.fault_use("group-no-capacity")
        if (script or short) and not cluster["continuous"]:
            cluster["status"] = "Failed"
            cluster["failure"] = (
                "Lifecycle scripts did not run successfully on all nodes of the instance group."
                if script
                else "Insufficient capacity: we currently do not have sufficient capacity to provision the instances."
            )
            cluster["nodes"] = {}
            self._hold(cluster["groups"], {})
            return
        cluster["status"] = "InService"
        if not cluster["continuous"]:
            for group in cluster["groups"].values():
                for _number in range(group["InstanceCount"]):
                    self._start(cluster, group, "Running")
        self._event(cluster, "Cluster", "Info", "Cluster is InService")

    def _fill(self, cluster: dict[str, Any], now: float) -> None:
        """What continuous provisioning does: nodes up or down to what is wanted."""
        for group in cluster["groups"].values():
            mine = [n for n in cluster["nodes"].values() if n["group"] == group["InstanceGroupName"]]
            living = [n for n in mine if n["status"] != "ShuttingDown"]
            if not self._plan_holds(group):
                # A plan that is over takes its machines with it.
                for node in living:
                    node |= {"status": "ShuttingDown", "since": now}
                continue
            missing = group["InstanceCount"] - len(living)
            if missing > 0 and now >= cluster.get("retry_at", 0.0):
                short = self.world.fault_use("group-no-capacity", group=group["InstanceGroupName"])
                if short is not None:
                    cluster["retry_at"] = now + self.options.cluster_create_s
                    why = "Insufficient capacity to add instances to the instance group."
                    self._pair(cluster, "InstanceGroup", "Error", why, group=group["InstanceGroupName"], failure=why)
                    continue
                for _number in range(missing):
                    self._start(cluster, group, "Pending")
            for node in living[group["InstanceCount"] :] if missing < 0 else []:
                node |= {"status": "ShuttingDown", "since": now}

    def _settle_node(self, cluster: dict[str, Any], node_id: str, node: dict[str, Any], now: float) -> None:
        rebooting = node["status"] == "SystemUpdating"
        lasts = self.options.node_reboot_s if rebooting else self.options.cluster_create_s / 3
        if node["status"] == "ShuttingDown" and now >= node["since"] + lasts:
            del cluster["nodes"][node_id]
        elif node["status"] in ("Pending", "SystemUpdating") and now >= node["since"] + lasts:
            script = self.world.fault_use("lifecycle-fails", node=True)
            node["status"] = "Failure" if script else "Running"
            node["message"] = "Lifecycle script exited with status 1." if script else ""
            level = "Error" if script else "Info"
            self._pair(
                cluster,
                "Instance",
                level,
                f"Instance {node_id} is {node['status']}",
                node=node_id,
                failure=node["message"],
            )

    def _start(
        self, cluster: dict[str, Any], group: Mapping[str, Any], status: str, like: Mapping[str, Any] | None = None
    ) -> None:
        node_id = hex_id("i")
        address = f"10.1.{secrets.randbelow(250)}.{secrets.randbelow(250) + 2}"
        cluster["nodes"][node_id] = {
            "id": node_id,
            "group": group["InstanceGroupName"],
            "type": group["InstanceType"],
            "status": status,
            "since": time.time(),
            "launched": time.time(),
            "message": "",
            # A replacement takes over the interface, and with it address and name, of the node it stands for.
            "address": like["address"] if like else address,
            "logical": like["logical"] if like else f"{group['InstanceGroupName']}-{secrets.token_hex(4)}",
        }

    def clusters_census(self) -> dict[str, int]:
        """Clusters and the nodes that are billed."""
        clusters = self.rows("clusters").values()
        return {"hyperpod_clusters": len(clusters), "hyperpod_nodes": sum(len(c["nodes"]) for c in clusters)}

    # --- events

    def _event(self, cluster: dict[str, Any], resource: str, level: str, text: str, **more: str) -> None:
        event = {
            "id": str(uuid.uuid4()),
            "resource": resource,
            "level": level,
            "text": text,
            "at": time.time(),
            **more,
        }
        cluster["events"] = [*cluster["events"], event][-_MOST_EVENTS:]

    def _pair(self, cluster: dict[str, Any], resource: str, level: str, text: str, **more: str) -> None:
        """Events come in pairs, of which one carries the reason: now the first, now the second."""
        pair = [more, {**more, "failure": ""}]
        for each in pair if len(cluster["events"]) % 4 < 2 else reversed(pair):
            self._event(cluster, resource, level, text, **each)

    def list_cluster_events(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Newest first. Raises ``AwsError`` where the cluster is not continuous: it keeps none."""
        cluster = self._cluster(asked["ClusterName"])
        if not cluster["continuous"]:
            raise AwsError(
                "ValidationException", "Events are available for clusters with continuous provisioning only."
            )
        rows, following = self.page(list(reversed(cluster["events"])), asked)
        views = [self._event_view(cluster, e) for e in rows]
        return {"Events": views, **({"NextToken": following} if following else {})}

    def describe_cluster_event(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One, with its reason where it has one."""
        cluster = self._cluster(asked["ClusterName"])
        for event in cluster["events"]:
            if event["id"] == asked["EventId"]:
                view = self._event_view(cluster, event)
                if event.get("failure"):
                    view["EventDetails"] = {"EventMetadata": {event["resource"]: {"FailureMessage": event["failure"]}}}
                return {"EventDetails": view}
        raise AwsError("ResourceNotFound", f"Event {asked['EventId']} not found.")

    def _event_view(self, cluster: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
        view = {
            "EventId": event["id"],
            "ClusterArn": cluster["arn"],
            "ClusterName": cluster["name"],
            "ResourceType": event["resource"],
            "EventTime": event["at"],
            "Description": event["text"],
            "EventLevel": event["level"],
        }
        if event.get("group"):
            view["InstanceGroupName"] = event["group"]
        if event.get("node"):
            view["InstanceId"] = event["node"]
        return view

    # --- clusters

    def _cluster(self, name: str) -> dict[str, Any]:
        for cluster in self.rows("clusters").values():
            if name in (cluster["name"], cluster["arn"]):
                return cluster
        raise AwsError("ResourceNotFound", f"Cluster with name {name} not found.")

    def create_cluster(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The name is the only key: there is no client token."""
        name = asked["ClusterName"]
        if name in self.rows("clusters"):
            raise AwsError("ResourceInUse", f"Resource Already Exists: cluster {name}")
        orchestrator = asked.get("Orchestrator") or {}
        if asked.get("NodeProvisioningMode") and "Eks" not in orchestrator:
            raise AwsError("ValidationException", "NodeProvisioningMode is supported with the Eks orchestrator only.")
        for subnet_id in (asked.get("VpcConfig") or {}).get("Subnets") or []:
            if subnet_of(self.options.region, subnet_id) is None:
                raise AwsError("ValidationException", f"The subnet ID '{subnet_id}' does not exist")
        groups = {g["InstanceGroupName"]: self._group(g) for g in asked.get("InstanceGroups") or []}
        if "Slurm" in orchestrator:
            kinds = [(g.get("SlurmConfig") or {}).get("NodeType") for g in groups.values()]
            if kinds.count("Controller") != 1:
                raise AwsError("ValidationException", "Exactly one instance group must be of node type Controller.")
        self._hold({}, groups)
        arn = f"arn:aws:sagemaker:{self.options.region}:{ACCOUNT_ID}:cluster/{secrets.token_hex(6)}"
        self.rows("clusters")[name] = {
            "name": name,
            "arn": arn,
            "status": "Creating",
            "since": time.time(),
            "created": time.time(),
            "failure": "",
            "groups": groups,
            "nodes": {},
            "events": [],
            "orchestrator": orchestrator,
            "vpc": asked.get("VpcConfig"),
            "recovery": asked.get("NodeRecovery", "Automatic"),
            "continuous": asked.get("NodeProvisioningMode") == "Continuous",
            "patched": False,
            "tags": tags_of(asked.get("Tags")),
        }
        return {"ClusterArn": arn}

    def _group(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if not asked.get("InstanceType", "ml.").startswith("ml."):
            raise AwsError("ValidationException", f"Instance type {asked['InstanceType']} is not supported.")
        uri = (asked.get("LifeCycleConfig") or {}).get("SourceS3Uri", "")
        if uri and not uri.startswith("s3://sagemaker-"):
            raise AwsError("ValidationException", "SourceS3Uri must start with s3://sagemaker-.")
        return dict(asked)

    def _hold(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Take of the training plans what groups now use more, give back what they use less. Raises ``AwsError``."""
        changes = []
        for name in {*before, *after}:
            old, new = before.get(name) or {}, after.get(name) or {}
            old_arn, new_arn = old.get("TrainingPlanArn", ""), new.get("TrainingPlanArn", "")
            had, wants = old.get("InstanceCount", 0), new.get("InstanceCount", 0)
            if old_arn == new_arn:
                changes.append((new_arn, new.get("InstanceType", ""), wants - had))
            else:
                changes += [(old_arn, "", -had), (new_arn, new.get("InstanceType", ""), wants)]
        taken: list[tuple[str, int]] = []
        for arn, instance_type, count in changes:
            try:
                if arn and count > 0:
                    self.plan_take(arn, instance_type, count)
                    taken.append((arn, count))
            except AwsError:
                for had_arn, had_count in taken:
                    self.plan_free(had_arn, had_count)
                raise
        for arn, _type, count in changes:
            if arn and count < 0:
                self.plan_free(arn, -count)

    def _plan_holds(self, group: Mapping[str, Any]) -> bool:
        arn = group.get("TrainingPlanArn", "")
        rows = [row for row in self.rows("plans").values() if row["arn"] == arn]
        return not rows or self.plan_status(rows[0]) == "Active"

    def describe_cluster(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One, by name or ARN."""
        cluster = self._cluster(asked["ClusterName"])
        view = {
            "ClusterArn": cluster["arn"],
            "ClusterName": cluster["name"],
            "ClusterStatus": cluster["status"],
            "CreationTime": cluster["created"],
            "InstanceGroups": [self._group_view(cluster, g) for g in cluster["groups"].values()],
            "NodeRecovery": cluster["recovery"],
        }
        for key, value in (
            ("FailureMessage", cluster["failure"]),
            ("VpcConfig", cluster["vpc"]),
            ("Orchestrator", cluster["orchestrator"]),
            ("NodeProvisioningMode", "Continuous" if cluster["continuous"] else ""),
        ):
            if value:
                view[key] = value
        return view

    def _group_view(self, cluster: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
        keys: tuple[str, ...] = (
            "InstanceGroupName",
            "InstanceType",
            "LifeCycleConfig",
            "ExecutionRole",
            "ThreadsPerCore",
        )
        keys += ("TrainingPlanArn", "OnStartDeepHealthChecks", "SlurmConfig", "NetworkInterface", "OverrideVpcConfig")
        here = [n for n in cluster["nodes"].values() if n["group"] == group["InstanceGroupName"]]
        view = {k: group[k] for k in keys if k in group}
        status = {"Creating": "Creating", "Deleting": "Deleting", "Failed": "Failed"}.get(
            cluster["status"], "InService"
        )
        return {
            **view,
            "CurrentCount": sum(1 for n in here if n["status"] in ("Running", "Failure", "SystemUpdating")),
            "TargetCount": group["InstanceCount"],
            "Status": status,
        }

    def list_clusters(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All in short."""
        rows, following = self.page(list(self.rows("clusters").values()), asked)
        views = [
            {
                "ClusterArn": c["arn"],
                "ClusterName": c["name"],
                "CreationTime": c["created"],
                "ClusterStatus": c["status"],
            }
            for c in rows
        ]
        return {"ClusterSummaries": views, **({"NextToken": following} if following else {})}

    def list_tags(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The tags of a cluster."""
        tags = self._cluster(asked["ResourceArn"])["tags"]
        return {"Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}

    def update_cluster(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Groups as they shall be; those not named stay."""
        cluster = self._usable(asked)
        groups = dict(cluster["groups"])
        for group in asked.get("InstanceGroups") or []:
            groups[group["InstanceGroupName"]] = self._group(group)
        for gone in asked.get("InstanceGroupsToDelete") or []:
            if groups.pop(gone, None) is None:
                raise AwsError("ValidationException", f"Instance group {gone} does not exist.")
        self._hold(cluster["groups"], groups)
        cluster["groups"] = groups
        cluster["nodes"] = {i: n for i, n in cluster["nodes"].items() if n["group"] in groups}
        if not cluster["continuous"]:
            cluster |= {"status": "Updating", "since": time.time()}
        return {"ClusterArn": cluster["arn"]}

    def _usable(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        cluster = self._cluster(asked["ClusterName"])
        if cluster["status"] not in _SETTLED:
            raise AwsError("ConflictException", f"Cluster {cluster['name']} is {cluster['status']}.")
        return cluster

    def delete_cluster(self, asked: dict[str, Any]) -> dict[str, Any]:
        """With everything in it."""
        cluster = self._cluster(asked["ClusterName"])
        if cluster["status"] == "Creating":
            raise AwsError("ConflictException", "Cluster is being created.")
        if cluster["status"] != "Deleting":
            cluster |= {"status": "Deleting", "since": time.time()}
        return {"ClusterArn": cluster["arn"]}

    def update_cluster_software(self, asked: dict[str, Any]) -> dict[str, Any]:
        """New images everywhere; afterwards nodes can be replaced and rebooted by a call."""
        cluster = self._usable(asked)
        cluster |= {"status": "SystemUpdating", "since": time.time(), "patched": True}
        return {"ClusterArn": cluster["arn"]}
