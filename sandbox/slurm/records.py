"""The records of the pretend slurmctld: its jobs and marks, how they are kept, and what can be read of them."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

from sandbox.slurm.associations import Associations
from sandbox.slurm.changes import Settings
from sandbox.slurm.model import Job, NodeMarks
from sandbox.slurm.runs import Runs
from sandbox.slurm.store import Store
from sandbox.world import Node, World


class Records:
    """Jobs and marks behind one lock, kept in a folder."""

    def __init__(self, world: World, directory: Path, settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self.lock = threading.RLock()
        self.runs = Runs(directory)
        self.changed_at = time.time()
        self._store = Store(directory / "jobs.json")
        self.associations = Associations(directory / "associations.json")
        self._jobs: dict[int, Job] = {}
        self._marks: dict[str, NodeMarks] = {}
        self._next_id = 1
        self._unsaved = False
        self._kill_at: dict[int, float] = {}

    def _touch(self) -> None:
        self.changed_at = time.time()
        self._unsaved = True

    def _save(self) -> None:
        self._unsaved = False
        self._jobs = self._store.save(self._jobs, self._next_id)

    # --- reads (hold the lock while using what they return) ------------------------------------------

    def queue(self) -> list[Job]:
        """Jobs of the queue: all that run or wait, and those that ended less than MinJobAge ago."""
        horizon = time.time() - self.settings.min_job_age_s
        return [job for job in self._jobs.values() if not job.ended or job.completing or job.ended_at > horizon]

    def history(self) -> list[Job]:
        """Jobs of accounting: all that are remembered."""
        return list(self._jobs.values())

    def nodes(self) -> list[Node]:
        """The world's nodes, in natural order of their names."""
        with self.world.lock:
            nodes = [node for node in self.world.nodes.values() if not node.is_kubernetes]
        return sorted(nodes, key=lambda node: _natural(node.name))

    def marks(self, name: str) -> NodeMarks:
        """What is known of a node beyond the world."""
        return self._marks.setdefault(name, NodeMarks())

    def jobs_on(self, name: str) -> list[Job]:
        """Jobs that occupy a node."""
        return [job for job in self._jobs.values() if name in job.nodes and (job.state == "RUNNING" or job.completing)]

    def partitions(self) -> dict[str, list[Node]]:
        """Nodes by partition."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes():
            found.setdefault(node.partition, []).append(node)
        return found

    def _could(self, job: Job, node: Node) -> bool:
        """Whether the node could ever run its share of the job."""
        return (
            node.name not in job.excluded
            and len(node.gpus) >= job.gpus_per_node
            and (not job.gpu_type or not job.gpus_per_node or node.gpu_type == job.gpu_type)
            and node.cpus >= job.cpus_per_node
            and node.memory_mib >= job.memory_mib
        )

    def _usable(self, node: Node) -> bool:
        return node.up and not self.marks(node.name).drained

    def _free(self, job: Job, node: Node) -> bool:
        busy = self.jobs_on(node.name)
        gpus = sum(one.gpus_per_node for one in busy)
        cpus = sum(one.cpus_per_node for one in busy)
        return gpus + job.gpus_per_node <= len(node.gpus) and cpus + job.cpus_per_node <= node.cpus


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
