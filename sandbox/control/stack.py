"""All servers of one sandbox together: started in order, stopped in reverse, read as one state."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sandbox.aws import AwsServer
from sandbox.kubernetes.estate import Estate
from sandbox.world import Fault, Node, World


class Server(Protocol):
    """Anything that answers on a port."""

    def start(self) -> None:
        """Begin to answer."""
        ...

    def stop(self) -> None:
        """Stop, leaving no process."""
        ...


class SlurmSwitches(Server, Protocol):
    """What the desk needs of the fake Slurm."""

    def jobs_snapshot(self) -> list[dict[str, Any]]:
        """All jobs the controller remembers."""
        ...

    def tear_newest_checkpoint(self, job_id: int | None = None) -> str | None:
        """Damage the newest checkpoint of a running job; its path, or None when there is none."""
        ...

    def kill_tasks(self, node: str) -> int:
        """Kill the processes of jobs on a node; how many."""
        ...


@dataclass(frozen=True)
class Event:
    """Something that was done to the sandbox, for people to read."""

    at: float
    text: str


class Stack:
    """One sandbox. ``slurm``, ``dcgm`` and ``kubernetes`` are None where only the cloud is pretended."""

    def __init__(
        self,
        world: World,
        aws: AwsServer,
        slurm: SlurmSwitches | None,
        dcgm: Server | None,
        kubernetes: Estate | None = None,
    ) -> None:
        self.world = world
        self.aws = aws
        self.slurm = slurm
        self.kubernetes = kubernetes
        self.events: deque[Event] = deque(maxlen=50)
        # Slurm first: it must hear of the nodes that saved instances bring in when AWS starts.
        self._servers: list[Server] = [server for server in (slurm, dcgm, aws, kubernetes) if server is not None]
        self._started: list[Server] = []

    def start(self) -> None:
        """Start all; on a failure stop those that started and raise it."""
        try:
            for server in self._servers:
                server.start()
                self._started.append(server)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all that started, the last first; one that fails does not keep the others."""
        failures: list[Exception] = []
        while self._started:
            try:
                self._started.pop().stop()
            except Exception as exc:
                failures.append(exc)
        if failures:
            raise ExceptionGroup("servers did not stop cleanly", failures)

    def note(self, text: str) -> None:
        """Write down what was done."""
        self.events.appendleft(Event(time.time(), text))

    # --- reads

    def census(self) -> dict[str, Any]:
        """Counts of what costs money, and the ids of what always exists."""
        return {**self.aws.census(), **self.aws.ids()}

    def faults(self) -> list[dict[str, Any]]:
        """Faults in force, oldest first."""
        now = time.time()
        with self.world.lock:
            for fault in list(self.world.faults.values()):
                if fault.until is not None and fault.until <= now:
                    del self.world.faults[fault.uid]
            return [fault_view(fault, now) for fault in self.world.faults.values()]

    def nodes(self) -> list[dict[str, Any]]:
        """Nodes that joined outside of Kubernetes, by name."""
        with self.world.lock:
            found = [self.world.nodes[name] for name in sorted(self.world.nodes)]
        return [node_view(node) for node in found if not node.is_kubernetes]

    def clusters(self) -> list[dict[str, Any]]:
        """Kubernetes clusters with their nodes and pods."""
        return [] if self.kubernetes is None else self.kubernetes.snapshot()

    def jobs(self) -> list[dict[str, Any]]:
        """Jobs the fake Slurm remembers, newest first; empty without one."""
        if self.slurm is None:
            return []
        jobs = [
            dict(job) if isinstance(job, Mapping) else dataclasses.asdict(job) for job in self.slurm.jobs_snapshot()
        ]
        return sorted(jobs, key=lambda job: int(job.get("job_id") or 0), reverse=True)

    def state(self) -> dict[str, Any]:
        """Everything, for the page and for programs."""
        return {
            "census": self.census(),
            "nodes": self.nodes(),
            "instances": self.aws.instances(),
            "jobs": self.jobs(),
            "clusters": self.clusters(),
            "faults": self.faults(),
            "events": [{"at": event.at, "text": event.text} for event in self.events],
        }


def fault_view(fault: Fault, now: float) -> dict[str, Any]:
    """A fault as shown: its kind, its parameters and what will end it."""
    return {
        "uid": fault.uid,
        "kind": fault.kind,
        "parameters": {key: value for key, value in fault.parameters.items() if value not in (None, "")},
        "made_at": fault.made_at,
        "times_left": fault.left,
        "seconds_left": None if fault.until is None else round(fault.until - now, 1),
    }


def node_view(node: Node) -> dict[str, Any]:
    """A node as shown, with the health of each GPU."""
    return {
        "name": node.name,
        "instance_id": node.instance_id,
        "instance_type": node.instance_type,
        "cluster": node.cluster,
        "partition": node.partition,
        "gpu_type": node.gpu_type,
        "up": node.up,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "on_bus": gpu.on_bus,
                "xids": [code for _, code in gpu.xids],
                "row_remap_pending": gpu.row_remap_pending,
                "row_remap_failure": gpu.row_remap_failure,
                "ecc_dbe_volatile": gpu.ecc_dbe_volatile,
            }
            for gpu in node.gpus
        ],
    }
