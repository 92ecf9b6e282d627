"""All pretend clusters of one sandbox: one for each EKS cluster of the fake AWS, and one that stands beside it."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandbox.kubernetes.access import User
from sandbox.kubernetes.authority import Authority
from sandbox.kubernetes.cluster import Cluster
from sandbox.kubernetes.crds import groups
from sandbox.kubernetes.machines import facts_of, topology
from sandbox.serving import PortUnavailable
from sandbox.world import Node, World

if TYPE_CHECKING:
    from sandbox.aws import AwsServer

STANDING: Final = "kube"
#: Namespaces get this claim, as an administrator's script would make it: a folder that all their pods share.
CLAIM: Final = "shared"
_LOOK_S: Final = 0.5
_STANDING_NODES: Final = 2


@dataclass(frozen=True)
class Machine:
    """A machine that belongs to a cluster as it should be now."""

    cluster: str
    name: str
    instance_id: str
    instance_type: str
    group: str
    zone: str
    labels: dict[str, str]
    is_up: bool = True


class Estate:
    """Started after the fake AWS and stopped before it. ``aws`` is None where only the standing cluster is wanted."""

    def __init__(
        self,
        world: World,
        aws: AwsServer | None,
        state_dir: Path,
        *,
        host: str = "127.0.0.1",
        standing: bool = True,
        kueue: bool = True,
        port: int = 0,
        names: Sequence[str] = (),
    ) -> None:
        self.world = world
        self.folder = state_dir / "kubernetes"
        self.authority = Authority(self.folder, names)
        self.clusters: dict[str, Cluster] = {}
        self._aws = aws
        self._host = host
        self._standing = standing
        self._crds = None if kueue else [one for one in groups() if not one.startswith("kueue")]
        self._port = port
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sandbox-kubernetes-estate", daemon=True)
        if aws is not None:
            self._eks.door = self.door_of

    @property
    def _eks(self) -> Any:
        assert self._aws is not None
        return self._aws.services["eks"]

    def start(self) -> None:
        """Bring back what there was, and begin to follow the fake AWS. Raises PortUnavailable for the standing one."""
        if self._standing:
            for number in range(1, _STANDING_NODES + 1):
                self._join(self._standing_machine(number))
            self._open(STANDING, self._port)
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """End all clusters with their processes; what they hold is there at the next start."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)
        with self._lock:
            ending = [threading.Thread(target=one.stop) for one in self.clusters.values()]
            for each in ending:
                each.start()
            for each in ending:
                each.join(timeout=4)
            self.clusters.clear()

    def door_of(self, name: str) -> tuple[str, str] | None:
        """Address and authority (base64) of a running cluster, None before it answers."""
        found = self.clusters.get(name)
        return None if found is None else (found.url, self.authority.ca_data)

    def kubeconfig(self) -> dict[str, Any] | None:
        """The standing cluster's, None without it."""
        found = self.clusters.get(STANDING)
        return None if found is None else found.api.kubeconfig()

    def snapshot(self) -> list[dict[str, Any]]:
        """Clusters with their nodes and pods, for the control desk."""
        with self._lock:
            return [one.snapshot() for _, one in sorted(self.clusters.items())]

    # --- following AWS

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            try:
                self.look()
            except Exception:
                # One broken look must not stop all later ones.
                traceback.print_exc(file=sys.stderr)

    def look(self) -> None:
        """One look at the clusters and machines of the fake AWS."""
        if self._aws is None:
            return
        with self._eks.lock:
            self._eks.settle()
            wanted = {
                name: float(row["created"])
                for name, row in self._eks.rows("clusters").items()
                if row["status"] not in ("DELETING", "FAILED")
            }
        with self._lock:
            for name in [one for one in self.clusters if one != STANDING and one not in wanted]:
                self._close(name)
            for name, created in wanted.items():
                if name not in self.clusters:
                    self._begin(name, created)
        machines = self._machines()
        self._follow(machines)

    def _begin(self, name: str, created: float) -> None:
        """Start one, anew where an earlier cluster of the same name has left its state."""
        mark = self.folder / name / "made.json"
        with contextlib.suppress(OSError, ValueError):
            if json.loads(mark.read_text())["created"] != created:
                shutil.rmtree(self.folder / name)
        self._open(name, 0, secured=True)
        mark.write_text(json.dumps({"created": created}))

    def _open(self, name: str, port: int, *, secured: bool = False) -> None:
        folder = self.folder / name
        known = folder / "port"
        with contextlib.suppress(OSError, ValueError):
            port = port or int(known.read_text())
        try:
            made = self._started(name, port, secured)
        except PortUnavailable:
            if not known.exists() or port == self._port:
                raise
            # Somebody else has the port of the last time; clients learn the new one from DescribeCluster.
            made = self._started(name, 0, secured)
        known.write_text(made.url.rpartition(":")[2])
        self.clusters[name] = made

    def _started(self, name: str, port: int, secured: bool) -> Cluster:
        made = Cluster(
            self.world,
            self.folder / name,
            name=name,
            port=port,
            host=self._host,
            crds=self._crds,
            authority=self.authority,
            claims=(CLAIM,),
        )
        if secured:
            self._secure(made)
        try:
            made.start()
        except BaseException:
            made.stop()
            raise
        return made

    def _secure(self, cluster: Cluster) -> None:
        """Let in who has an access entry of this cluster, by keys that the fake AWS knows."""
        from sandbox.aws import signing

        name, access = cluster.api.name, cluster.api.access

        def identity(access_key: str) -> User | None:
            principal = signing.principal_of(access_key)
            groups_of = self._eks.groups_of(name, principal)
            return None if groups_of is None else User(principal, (*groups_of, "system:authenticated"))

        access.secrets_of = signing.secret_of
        access.identity = identity

    def _close(self, name: str) -> None:
        with self.world.lock:
            gone = [node.name for node in self.world.nodes.values() if node.cluster == name and node.is_kubernetes]
        made = self.clusters.pop(name)
        for node in gone:
            self.world.node_leave(node)
        made.stop()
        shutil.rmtree(self.folder / name, ignore_errors=True)

    # --- machines

    def _machines(self) -> dict[str, Machine]:
        return {one.name: one for one in [*self._of_groups(), *self._of_hyperpod()] if one.cluster in self.clusters}

    def _of_groups(self) -> list[Machine]:
        from sandbox.aws.fleet_calls import network_nodes

        assert self._aws is not None
        cloud, found, now = self._aws.cloud, [], time.time()
        with cloud.lock:
            cloud.settle()
            for machine in cloud.machines.values():
                cluster = machine.tags.get("eks:cluster-name", "")
                state = cloud.state_of(machine, now)
                ready_at = machine.launched_at + cloud.options.boot_s + cloud.options.join_s
                if not cluster or state in ("pending", "terminated") or now < ready_at:
                    continue
                group = machine.tags.get("eks:nodegroup-name", "")
                labels = {
                    "eks.amazonaws.com/nodegroup": group,
                    "topology.k8s.aws/zone-id": machine.zone_id,
                    **topology(machine.zone, machine.id, network_nodes(cloud, machine)),
                }
                found.append(
                    Machine(
                        cluster,
                        machine.private_dns_name,
                        machine.id,
                        machine.instance_type,
                        group,
                        machine.zone,
                        labels,
                        state == "running",
                    )
                )
        return found

    def _of_hyperpod(self) -> list[Machine]:
        assert self._aws is not None
        service: Any = self._aws.services["sagemaker"]
        found = []
        with service.lock:
            service.settle()
            for cluster in service.rows("clusters").values():
                arn = str(((cluster["orchestrator"] or {}).get("Eks") or {}).get("ClusterArn") or "")
                if not arn:
                    continue
                for node in cluster["nodes"].values():
                    if node["status"] in ("Pending", "Failure"):
                        continue
                    zone = self._aws.options.zone
                    labels = {
                        "sagemaker.amazonaws.com/instance-group-name": node["group"],
                        "sagemaker.amazonaws.com/cluster-name": cluster["name"],
                        "sagemaker.amazonaws.com/compute-type": "hyperpod",
                        **topology(zone, node["id"]),
                    }
                    found.append(
                        Machine(
                            arn.rpartition("/")[2],
                            f"hyperpod-{node['id']}",
                            node["id"],
                            node["type"],
                            node["group"],
                            zone,
                            labels,
                            node["status"] == "Running",
                        )
                    )
        return found

    @staticmethod
    def _standing_machine(number: int) -> Machine:
        name, zone = f"{STANDING}-{number}", "us-east-2a"
        return Machine(
            STANDING, name, f"i-{number:017x}", "p5.48xlarge", "", zone, topology(zone, name, ["nn-1", "nn-2", "nn-3"])
        )

    def _follow(self, machines: dict[str, Machine]) -> None:
        with self.world.lock:
            here = {one.name: one for one in self.world.nodes.values() if one.is_kubernetes}
        for name, node in here.items():
            if node.cluster == STANDING and node.cluster in self.clusters:
                continue
            if name not in machines or machines[name].instance_id != node.instance_id:
                self.world.node_leave(name)
                del here[name]
        for cluster in list(self.clusters.values()):
            cluster.forget_nodes({node.name for node in here.values()} | set(machines))
        for name, machine in machines.items():
            known = here.get(name)
            if known is None and machine.is_up:
                self._join(machine)
            elif known is not None and known.up and not machine.is_up:
                known.resting = True
                self.world.node_lose(name)
            elif known is not None and known.resting and machine.is_up:
                known.resting = False
                self.world.node_recover(name)

    def _join(self, machine: Machine) -> Node:
        from sandbox.aws.seed import instance_type

        facts = facts_of(instance_type(machine.instance_type.removeprefix("ml.")) or {})
        return self.world.node_join(
            name=machine.name,
            instance_id=machine.instance_id,
            instance_type=machine.instance_type,
            cluster=machine.cluster,
            partition=machine.group,
            gpu_type=facts["gpu_type"],
            gpu_count=facts["gpu_count"],
            cpus=facts["cpus"],
            memory_mib=facts["memory_mib"],
            efa=facts["efa"],
            zone=machine.zone,
            labels=machine.labels,
            is_kubernetes=True,
        )
