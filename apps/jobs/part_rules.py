"""The parts of a heterogeneous job: what each asks for, and what all of them hold, as pure values.

A job's own columns are its first part, in which Slurm runs the script; ``Job.parts`` are the further ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any, Final, Protocol

from apps.jobs.rules import gpu_hours, node_usd

#: Slurm's own limit of parts (MAX_HET_JOB_COMPS).
MAX_PARTS: Final = 128
_PRICES: Final = ("usd_per_gpu_hour", "usd_per_node_hour")


@dataclass(frozen=True)
class Part:
    """One part; ``time_limit_min`` 0 and ``name`` "" stand for the job's, ``partition`` "" for the cluster's own.

    ``usd_per_gpu_hour``, or without GPUs ``usd_per_node_hour`` for its share of each node, is the price from the moment
    of submit, of this part's own nodes.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    gpu_type: str = ""
    tasks_per_node: int = 1
    cpus_per_task: int = 1
    memory_per_node_mib: int = 0
    partition: str = ""
    time_limit_min: int = 0
    slurm_options: tuple[str, ...] = ()
    name: str = ""
    usd_per_gpu_hour: Decimal = Decimal(0)
    usd_per_node_hour: Decimal = Decimal(0)

    @property
    def gpus(self) -> int:
        """GPUs on all its nodes."""
        return self.nodes * self.gpus_per_node

    def row(self) -> dict[str, Any]:
        """As it is stored."""
        row = {**asdict(self), "slurm_options": list(self.slurm_options)}
        return {**row, **{name: str(row[name]) for name in _PRICES}}

    def cost(self, gpus: int, seconds: float) -> tuple[Decimal, Decimal]:
        """(GPU-hours, USD) of so many GPUs, or of its share of its nodes, for so long."""
        hours = gpu_hours(gpus, seconds)
        if gpus:
            return hours, hours * self.usd_per_gpu_hour
        return hours, node_usd(self.nodes, seconds, self.usd_per_node_hour)


class HasParts(Protocol):
    """A job, by what of it is needed here."""

    nodes: Any
    gpus_per_node: Any
    gpu_type: Any
    tasks_per_node: Any
    cpus_per_task: Any
    memory_per_node_mib: Any
    partition: Any
    time_limit_min: Any
    slurm_options: Any
    name: Any
    usd_per_gpu_hour: Any
    usd_per_node_hour: Any
    parts: Any


#: What a submit says of a part; the price is never told from outside.
MEMBERS: Final = tuple(name for name in Part.__dataclass_fields__ if name not in _PRICES)


def part_of(row: Mapping[str, Any]) -> Part:
    """A part from its stored row or from a submit; what is missing is as for any part."""
    known = {name: row[name] for name in Part.__dataclass_fields__ if name in row}
    known["slurm_options"] = tuple(known.get("slurm_options", ()))
    known |= {name: Decimal(str(known.get(name, 0))) for name in _PRICES}
    return Part(**known)


def further_parts(rows: Sequence[Mapping[str, Any]]) -> list[Part]:
    """The parts behind the first."""
    return [part_of(row) for row in rows]


def told_part(row: Mapping[str, Any]) -> Part:
    """A part as a submit tells it: without a price."""
    return part_of({name: row[name] for name in MEMBERS if name in row})


def parts_of(job: HasParts) -> list[Part]:
    """Every part, the job's own columns first; each with a time limit of its own."""
    first = Part(**{name: getattr(job, name) for name in Part.__dataclass_fields__ if name != "slurm_options"})
    first = replace(first, slurm_options=tuple(job.slurm_options))
    rest = further_parts(job.parts)
    return [first, *(replace(p, time_limit_min=p.time_limit_min or int(job.time_limit_min)) for p in rest)]


def part_numbers(scheduler_id: str, job: HasParts) -> list[str]:
    """The scheduler's number of each part of a job: Slurm numbers them on from the first."""
    if not job.parts:
        # Kubernetes has no numbers, and no parts.
        return [scheduler_id]
    return [str(int(scheduler_id) + offset) for offset in range(1 + len(job.parts))]


def hold_of(job: HasParts) -> tuple[Decimal, Decimal]:
    """(GPU-hours, USD) that running every part until its own limit takes."""
    held = [p.cost(p.gpus, p.time_limit_min * 60) for p in parts_of(job)]
    usd = sum((usd.quantize(Decimal("0.000001")) for _h, usd in held), Decimal(0))
    return sum((hours for hours, _usd in held), Decimal(0)), usd


def words_of_part(part: Part) -> str:
    """As one line of sbatch's options, so that reading it again gives the same part."""
    words = [f"--nodes={part.nodes}"]
    if part.gpus_per_node:
        kind = f"{part.gpu_type}:" if part.gpu_type else ""
        words.append(f"--gpus-per-node={kind}{part.gpus_per_node}")
    for option, value, usual in (
        ("ntasks-per-node", part.tasks_per_node, 1),
        ("cpus-per-task", part.cpus_per_task, 1),
        ("partition", part.partition, ""),
        ("time", part.time_limit_min, 0),
        ("job-name", part.name, ""),
    ):
        if value != usual:
            words.append(f"--{option}={shlex.quote(str(value))}")
    if part.memory_per_node_mib:
        words.append(f"--mem={part.memory_per_node_mib}M")
    return " ".join([*words, *part.slurm_options])
