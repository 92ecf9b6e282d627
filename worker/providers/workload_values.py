"""What a Kubernetes workload is made of, before it is written as objects of one kind or another: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Who puts the pods on nodes. KUEUE admits whole jobs by quota; PLAIN: the portal itself lets whole jobs begin.
KUEUE, PLAIN, VOLCANO, KAI = "kueue", "plain", "volcano", "kai"
SCHEDULERS = (KUEUE, PLAIN, VOLCANO, KAI)

#: The kinds that a workload can be written as.
INDEXED_JOB, JOBSET, PYTORCHJOB, TRAINJOB = "indexed_job", "jobset", "pytorchjob", "trainjob"
KINDS = (INDEXED_JOB, JOBSET, PYTORCHJOB, TRAINJOB)


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint that the pods may stand on; ``value`` "" means any value (operator Exists)."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class ClaimMount:
    """A folder of a PersistentVolumeClaim, at ``path`` in the container."""

    claim: str
    path: str
    sub_path: str = ""
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class TopologyWish:
    """Nodes below one value of the node label ``level``: a condition, or a wish where it is not ``is_required``."""

    level: str
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """One attempt at a job, as any kind of Kubernetes workload needs it.

    ``uid`` is the attempt's, ``job_uid`` the job's. One pod takes one node's share: ``gpus_per_node``,
    ``cpus_per_node``, ``memory_mib``. ``script`` is a person's script as for Slurm (its ``#!`` is obeyed); without it
    ``command`` runs as it is. ``runner`` is the source of the runner that reports on it, "" for none.
    ``environment`` is in the clear, ``secret_environment`` goes through a Secret.
    ``processes_per_node`` is torchrun's: 0 stands for one a GPU. ``array`` are the task numbers of an array of
    single-pod tasks, at most ``array_at_once`` (0: all) at a time.
    ``efa_per_node``, ``hugepages_mib`` and ``shm_mib`` of None are found from the instance types.
    ``queue`` is the LocalQueue (or the queue of ``scheduler``), ``priority_class`` Kueue's WorkloadPriorityClass and
    ``pod_priority_class`` that of the pods. ``auto_resume_retries`` above 0 asks HyperPod to resume the job itself.
    ``max_restarts`` are restarts of the whole gang by its controller, 0 where the portal makes the next attempt.
    ``runtime`` names a ClusterTrainingRuntime for a TrainJob; "" writes a TrainingRuntime of its own.
    ``grace_s`` is the time between SIGTERM and SIGKILL, in which a checkpoint can be saved.
    """

    name: str
    uid: str
    job_uid: str
    team: str
    owner: str
    namespace: str
    image: str
    nodes: int
    time_limit_min: int
    script: str = ""
    command: tuple[str, ...] = ()
    gpus_per_node: int = 0
    gpu_type: str = ""
    processes_per_node: int = 0
    cpus_per_node: int = 1
    memory_mib: int = 0
    instance_types: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    secret_environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = KUEUE
    queue: str = ""
    priority_class: str = ""
    pod_priority_class: str = ""
    tolerations: tuple[Toleration, ...] = ()
    topology: TopologyWish | None = None
    efa_per_node: int | None = None
    hugepages_mib: int | None = None
    shm_mib: int | None = None
    mounts: tuple[ClaimMount, ...] = ()
    array: tuple[int, ...] = ()
    array_at_once: int = 0
    max_restarts: int = 0
    auto_resume_retries: int = 0
    runner: str = field(default="", repr=False)
    grace_s: int = 120
    runtime: str = ""
    service_account: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()

    @property
    def pods(self) -> int:
        """Pods that run at the same time."""
        if self.array:
            return min(self.array_at_once or len(self.array), len(self.array))
        return self.nodes

    @property
    def processes(self) -> int:
        """Processes a node that torchrun starts."""
        return self.processes_per_node or max(self.gpus_per_node, 1)


#: Why a manifest is ending: one of its workloads failed, and the others are to go.
PART_FAILED = "PartFailed"


@dataclass(frozen=True, slots=True)
class WorkloadSubmit:
    """One attempt to submit: ``spec`` to be written as ``kind``, or the YAML of a person in ``manifest``.

    ``uid`` is the attempt's; ``namespace`` and ``queue`` of ``scheduler`` are where it goes, ``name`` is the job's own.
    ``replaces`` are attempts that have ended and whose objects may be in the way: a manifest's names are its author's.
    """

    uid: str
    job_uid: str
    name: str
    team: str
    owner: str
    namespace: str
    queue: str = ""
    scheduler: str = KUEUE
    kind: str = JOBSET
    spec: WorkloadSpec | None = None
    manifest: str = ""
    replaces: frozenset[str] = frozenset()
