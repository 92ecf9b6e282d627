"""SageMaker HyperPod's nodes: listed, described, replaced, rebooted, deleted and added in batches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sandbox.aws.errors import AwsError

if TYPE_CHECKING:
    from sandbox.aws.hyperpod import HyperPod

    class _Base(HyperPod):
        """What the class it is mixed into brings."""

else:
    _Base = object


class HyperPodNodes(_Base):
    """Mixed into the SageMaker service beside ``HyperPod``, which keeps the clusters."""

    def list_cluster_nodes(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All nodes, paged."""
        cluster = self._cluster(asked["ClusterName"])
        group = asked.get("InstanceGroupNameContains", "")
        rows, following = self.page([n for n in cluster["nodes"].values() if group in n["group"]], asked)
        views = [
            {
                "InstanceGroupName": n["group"],
                "InstanceId": n["id"],
                "NodeLogicalId": n["logical"],
                "InstanceType": n["type"],
                "LaunchTime": n["launched"],
                "InstanceStatus": self._status(n),
                "PrivateDnsHostname": self._host(n),
            }
            for n in rows
        ]
        return {"ClusterNodeSummaries": views, **({"NextToken": following} if following else {})}

    def _status(self, node: Mapping[str, Any]) -> dict[str, str]:
        return {"Status": node["status"], **({"Message": node["message"]} if node["message"] else {})}

    def _host(self, node: Mapping[str, Any]) -> str:
        return f"ip-{node['address'].replace('.', '-')}.{self.options.region}.compute.internal"

    def describe_cluster_node(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One, by its id or its logical id."""
        cluster = self._cluster(asked["ClusterName"])
        for node in cluster["nodes"].values():
            if asked.get("NodeId") == node["id"] or asked.get("NodeLogicalId") == node["logical"]:
                details = {
                    "InstanceGroupName": node["group"],
                    "InstanceId": node["id"],
                    "NodeLogicalId": node["logical"],
                    "InstanceType": node["type"],
                    "LaunchTime": node["launched"],
                    "InstanceStatus": self._status(node),
                    "PrivatePrimaryIp": node["address"],
                    "PrivateDnsHostname": self._host(node),
                }
                return {"NodeDetails": details}
        raise AwsError("ResourceNotFound", "Node not found.")

    def batch_replace_cluster_nodes(self, asked: dict[str, Any]) -> dict[str, Any]:
        """New machines in the place of these; the name, which is the address, may stay."""
        return self._batch(asked, self._replace)

    def batch_reboot_cluster_nodes(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The same machines again."""
        return self._batch(asked, self._reboot)

    def _replace(self, cluster: dict[str, Any], node: dict[str, Any]) -> None:
        self._start(cluster, cluster["groups"][node["group"]], "Pending", like=node)
        del cluster["nodes"][node["id"]]

    def _reboot(self, cluster: dict[str, Any], node: dict[str, Any]) -> None:
        node |= {"status": "SystemUpdating", "since": time.time()}
        cluster["reboots"] = cluster.get("reboots", 0) + 1

    def _batch(self, asked: Mapping[str, Any], act: Any) -> dict[str, Any]:
        cluster = self._cluster(asked["ClusterName"])
        if not cluster["patched"]:
            raise AwsError(
                "ValidationException", "Run UpdateClusterSoftware on the cluster once before this operation."
            )
        done: list[str] = []
        failed: list[dict[str, str]] = []
        for node_id in asked.get("NodeIds") or []:
            node = cluster["nodes"].get(node_id)
            if node is None:
                failed.append(
                    {"NodeId": node_id, "ErrorCode": "InstanceIdNotFound", "Message": "The node is not in the cluster."}
                )
            elif node["status"] not in ("Running", "Failure"):
                failed.append(
                    {
                        "NodeId": node_id,
                        "ErrorCode": "InvalidInstanceStatus",
                        "Message": f"The node is {node['status']}.",
                    }
                )
            else:
                act(cluster, node)
                done.append(node_id)
        return {**({"Successful": done} if done else {}), **({"Failed": failed} if failed else {})}

    def batch_delete_cluster_nodes(self, asked: dict[str, Any]) -> dict[str, Any]:
        """These nodes go and the group wants fewer."""
        cluster = self._usable(asked)
        done: list[str] = []
        failed: list[dict[str, str]] = []
        for node_id in asked.get("NodeIds") or []:
            node = cluster["nodes"].pop(node_id, None)
            if node is None:
                failed.append(
                    {"NodeId": node_id, "Code": "NodeIdNotFound", "Message": "The node is not in the cluster."}
                )
                continue
            group = cluster["groups"][node["group"]]
            fewer = {**group, "InstanceCount": group["InstanceCount"] - 1}
            self._hold({"": group}, {"": fewer})
            cluster["groups"][node["group"]] = fewer
            done.append(node_id)
        return {**({"Successful": done} if done else {}), **({"Failed": failed} if failed else {})}

    def batch_add_cluster_nodes(self, asked: dict[str, Any]) -> dict[str, Any]:
        """More of some groups; only with continuous provisioning."""
        cluster = self._usable(asked)
        if not cluster["continuous"]:
            raise AwsError("ValidationException", "BatchAddClusterNodes needs continuous provisioning.")

        def add() -> list[dict[str, Any]]:
            answers = []
            for wanted in asked["NodesToAdd"]:
                group = cluster["groups"].get(wanted["InstanceGroupName"])
                if group is None:
                    continue
                more = {**group, "InstanceCount": group["InstanceCount"] + wanted["IncrementTargetCountBy"]}
                self._hold({"": group}, {"": more})
                cluster["groups"][wanted["InstanceGroupName"]] = group = more
                for _number in range(wanted["IncrementTargetCountBy"]):
                    self._start(cluster, group, "Pending")
                    node = list(cluster["nodes"].values())[-1]
                    answers.append(
                        {"NodeLogicalId": node["logical"], "InstanceGroupName": node["group"], "Status": "Pending"}
                    )
            return answers

        made = self.once(asked.get("ClientToken"), asked, add)
        failed = [
            {
                "InstanceGroupName": w["InstanceGroupName"],
                "ErrorCode": "InstanceGroupNotFound",
                "FailedCount": w["IncrementTargetCountBy"],
            }
            for w in asked["NodesToAdd"]
            if w["InstanceGroupName"] not in cluster["groups"]
        ]
        return {"Successful": made, "Failed": failed}
