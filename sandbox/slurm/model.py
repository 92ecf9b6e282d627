"""What the pretend controller remembers: jobs, and what it adds to the world's nodes."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

#: States after which a job does not change any more.
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"})
#: What a job that could not be started shows as its wait status (slurmd's own error number).
LAUNCH_FAILED_STATUS = 4021


@dataclass
class Job:
    """One job. Times are UNIX seconds, 0 for "not yet"; ``exit_status`` is a wait status as the kernel gives it."""

    job_id: int
    user: str
    name: str
    script: str
    environment: dict[str, str]
    work_dir: str
    partition: str
    comment: str = ""
    account: str = ""
    qos: str = "normal"
    stdout: str = ""
    stderr: str = ""
    node_count: int = 1
    gpus_per_node: int = 0
    gpu_type: str = ""
    tasks: int = 1
    tasks_per_node: int = 0
    cpus_per_task: int = 1
    memory_mib: int = 0
    time_limit_min: int = 60
    excluded: list[str] = field(default_factory=list)
    requeue: bool = True
    state: str = "PENDING"
    #: True while processes of an ended job are still being killed.
    completing: bool = False
    reason: str = "None"
    description: str = ""
    nodes: list[str] = field(default_factory=list)
    submitted_at: float = field(default_factory=time.time)
    eligible_at: float = 0.0
    expected_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    exit_status: int = 0
    restarts: int = 0
    nice: int = 0
    #: "user" or "admin" while somebody keeps it from starting.
    held: str = ""
    #: The array's first job id and this task, or the tasks that still wait in this record ("3-9%2"); 0 for no array.
    array_id: int = 0
    array_task: int | None = None
    array_pending: str = ""
    array_limit: int = 0
    #: The first job id of a heterogeneous job and which part this is; 0 for none.
    het_id: int = 0
    het_offset: int = 0
    reservation: str = ""
    dependency: str = ""
    features: str = ""

    @property
    def ended(self) -> bool:
        """Whether the state will not change any more."""
        return self.state in ENDED

    @property
    def priority(self) -> int:
        """Slurm's priority/basic: the earlier the higher; 0 while it is held."""
        return 0 if self.held else 4_294_901_760 - self.job_id - self.nice

    @property
    def cpus_per_node(self) -> int:
        """CPUs a node gives the job: whole cores of two threads."""
        tasks = self.tasks_per_node or -(-self.tasks // self.node_count)
        wanted = max(1, tasks * self.cpus_per_task)
        return wanted + wanted % 2

    @property
    def gres(self) -> str:
        """The GPU request without a prefix, e.g. "gpu:h100:8"; empty when there is none."""
        if not self.gpus_per_node:
            return ""
        return f"gpu:{self.gpu_type}:{self.gpus_per_node}" if self.gpu_type else f"gpu:{self.gpus_per_node}"

    def record(self) -> dict[str, Any]:
        """All fields, for the state file."""
        return asdict(self)


@dataclass
class NodeMarks:
    """What Slurm knows of a node beyond the world: whether it is drained, and why."""

    drained: bool = False
    reason: str = ""
    reason_at: float = 0.0
    reason_user: str = ""


class Refused(Exception):
    """The controller refuses a request. ``code`` is Slurm's error number, ``text`` Slurm's sentence for it."""

    TEXTS = {
        1007: "Protocol authentication error",
        2000: "Invalid partition name specified",
        2002: "Access/permission denied",
        2006: "Node count specification invalid",
        2009: "Job script not specified",
        2010: "Invalid user id",
        2014: "Requested node configuration is not available",
        2015: "Requested partition configuration not available now",
        2017: "Invalid job id specified",
        2018: "Invalid node name specified",
        2020: "Job is no longer pending execution",
        2021: "Job/step already completing or completed",
        2028: "Invalid node state specified",
        2051: "Requested time limit is invalid (missing or exceeds some limit)",
        2037: "Requested operation is presently disabled",
        2063: "Job cannot be submitted without the current working directory specified.",
        2068: "Required node not available (down, drained or reserved)",
        2081: "Invalid job array specification",
        2084: "Job has already finished",
        2127: "environment must be set",
    }

    def __init__(self, code: int, detail: str = "") -> None:
        super().__init__(self.TEXTS.get(code, "Unspecified error"))
        self.code = code
        self.text = self.TEXTS.get(code, "Unspecified error")
        self.detail = detail
