"""A whole pretend cluster: the API with its scheduler, kubelets and controllers, on the world's machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sandbox.kubernetes.actors import Actor
from sandbox.kubernetes.jobs import JobController, JobSetController
from sandbox.kubernetes.kubelet import Kubelets
from sandbox.kubernetes.kueue import Kueue
from sandbox.kubernetes.quota_controller import QuotaController
from sandbox.kubernetes.scheduler import Scheduler
from sandbox.kubernetes.server import ClusterApi
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
        crds: Sequence[str] | None = None,
        eviction_s: float = 5.0,
        restart_s: float = 0.5,
    ) -> None:
        self.world = world
        self.api = ClusterApi(state_dir, name=name, world=world, crds=crds)
        self.kubelets = Kubelets(self.api, eviction_s=eviction_s, restart_s=restart_s)
        self._port = port
        self._actors: list[Actor] = [
            self.kubelets,
            Scheduler(self.api),
            JobController(self.api),
            JobSetController(self.api),
            PyTorchController(self.api),
            TrainController(self.api),
            Kueue(self.api),
            QuotaController(self.api),
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
        self.api.serve(self._port)
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
        if event == "joined" and there:
            self.kubelets.recover_node(node.name)
        elif event == "joined":
            labels = {
                "node.kubernetes.io/instance-type": node.instance_type,
                "eks.amazonaws.com/nodegroup": node.partition,
                "quarterdeck.dev/instance-id": node.instance_id,
            }
            allocatable = {
                "cpu": str(node.cpus),
                "memory": f"{node.memory_mib}Mi",
                "nvidia.com/gpu": str(len(node.gpus)),
            }
            self.kubelets.add_node(node.name, allocatable, labels)
        elif event == "lost" and there:
            self.kubelets.lose_node(node.name)
        elif event == "left" and there:
            self.kubelets.remove_node(node.name)
