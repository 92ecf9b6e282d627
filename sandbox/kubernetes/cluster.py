"""A whole pretend cluster: the API with its scheduler, kubelets and controllers, on the world's machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sandbox.kubernetes import machines
from sandbox.kubernetes.actors import Actor, is_true
from sandbox.kubernetes.authority import Authority
from sandbox.kubernetes.housekeeping import Housekeeper
from sandbox.kubernetes.jobs import JobController, JobSetController
from sandbox.kubernetes.kubelet import Kubelets
from sandbox.kubernetes.kueue import Kueue
from sandbox.kubernetes.quota_controller import QuotaController
from sandbox.kubernetes.scheduler import Scheduler
from sandbox.kubernetes.server import ClusterApi
from sandbox.kubernetes.serving import ServingController
from sandbox.kubernetes.store import Key
from sandbox.kubernetes.trainers import PyTorchController, TrainController
from sandbox.world import Node, World


class Cluster:
    """Started and stopped as one. Machines of the world that join under this cluster's name become its nodes."""

    def __init__(
        self,
        world: World,
        state_dir: Path,
        *,
        name: str,
        port: int = 0,
        host: str = "127.0.0.1",
        authority: Authority | None = None,
        claims: Sequence[str] = (),
        crds: Sequence[str] | None = None,
        eviction_s: float = 5.0,
        restart_s: float = 0.5,
    ) -> None:
        self.world = world
        self.api = ClusterApi(state_dir, name=name, world=world, crds=crds)
        self.kubelets = Kubelets(self.api, eviction_s=eviction_s, restart_s=restart_s)
        self._port = port
        self._host = host
        self._authority = authority or Authority(Path(state_dir))
        self._actors: list[Actor] = [
            self.kubelets,
            Scheduler(self.api),
            JobController(self.api),
            JobSetController(self.api),
            PyTorchController(self.api),
            TrainController(self.api),
            Kueue(self.api),
            QuotaController(self.api),
            ServingController(self.api),
            Housekeeper(self.api, claims),
        ]
        world.on_node(self._heard)

    @property
    def url(self) -> str:
        """The API server's address."""
        return self.api.url

    def trouble(self) -> dict[str, str]:
        """What components could not cope with, by their names; empty where all is well."""
        return {actor.name: actor.trouble for actor in self._actors if actor.trouble}

    def start(self) -> None:
        """Answer, take in the machines that are there, and begin to work. Raises PortUnavailable."""
        self.api.serve(self._port, self._host, self._authority)
        with self.world.lock:
            nodes = list(self.world.nodes.values())
        for node in nodes:
            self._heard("joined" if node.up else "lost", node)
        for actor in self._actors:
            actor.start()

    def stop(self) -> None:
        """End all processes, then the API."""
        for actor in reversed(self._actors):
            actor.stop()
        self.api.stop()

    def _heard(self, event: str, node: Node) -> None:
        if node.cluster != self.api.name:
            return
        there = self.api.store.get(Key("nodes", "", node.name)) is not None
        if event == "joined" and not there:
            self.kubelets.add_node(
                node.name,
                machines.allocatable(node),
                machines.labels(node),
                machines.taints(node, []),
                capacity=machines.capacity(node),
                provider_id=machines.provider_id(node),
            )
        elif event in ("joined", "back") and there:
            self.kubelets.refresh_node(node)
            self.kubelets.recover_node(node.name)
        elif event == "changed" and there:
            self.kubelets.refresh_node(node)
        elif event == "lost" and there:
            self.kubelets.lose_node(node.name)
        elif event == "left" and there:
            self.kubelets.remove_node(node.name)

    def forget_nodes(self, known: set[str]) -> None:
        """Take away nodes whose machines went while nobody looked; those that somebody else made stay."""
        for node in self.api.store.scan("nodes"):
            name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
            if name not in known and "quarterdeck.dev/instance-id" in labels:
                self.kubelets.remove_node(name)

    def snapshot(self) -> dict[str, Any]:
        """What the control desk shows: nodes with their state, pods with their phase and node."""
        store = self.api.store
        nodes = [
            {
                "name": one["metadata"]["name"],
                "type": (one["metadata"].get("labels") or {}).get("node.kubernetes.io/instance-type", ""),
                "ready": is_true(one, "Ready"),
                "cordoned": bool((one.get("spec") or {}).get("unschedulable")),
                "gpus": (one["status"].get("allocatable") or {}).get("nvidia.com/gpu", "0"),
            }
            for one in store.scan("nodes")
        ]
        pods = [
            {
                "namespace": one["metadata"]["namespace"],
                "name": one["metadata"]["name"],
                "phase": one["status"].get("phase", ""),
                "reason": one["status"].get("reason", ""),
                "node": one["spec"].get("nodeName", ""),
            }
            for one in store.scan("pods")
        ]
        return {"name": self.api.name, "url": self.url, "nodes": nodes, "pods": pods, "trouble": self.trouble()}
