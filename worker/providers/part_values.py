"""The value of a further part of a heterogeneous job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SubmitPart:
    """A further part of a heterogeneous job; ``name`` "" and ``time_limit_min`` 0 stand for the job's."""

    name: str
    partition: str
    nodes: int
    gpus_per_node: int
    gpu_type: str
    tasks_per_node: int
    cpus_per_task: int
    memory_per_node_mib: int
    time_limit_min: int
    options: tuple[str, ...]
