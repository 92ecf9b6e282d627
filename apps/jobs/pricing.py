"""What a GPU-hour costs on the nodes a job may land on, and what a node's hour costs a job without GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

from django.utils.translation import gettext_noop

from apps.capacity.states import PREPAID
from apps.catalog.selectors import gpu_price, price_words, type_by_name
from apps.clusters.models import Cluster, Node
from apps.core.said import said
from apps.jobs.rules import gpu_hours, node_usd, parse_memory
from apps.jobs.sbatch import check_options, value_of

if TYPE_CHECKING:
    from apps.jobs.models import Job

_SIX = Decimal("0.000001")
#: The CPUs of a task in ``--tres-per-task``, which Slurm takes instead of those that the job says.
TASK_CPUS = re.compile(r"(?:^|,)cpu[:=]([0-9]{1,9})", re.IGNORECASE)


class Shape(Protocol):
    """What a job, or a job to be, asks of its nodes."""

    @property
    def nodes(self) -> int: ...

    @property
    def tasks_per_node(self) -> int: ...

    @property
    def cpus_per_task(self) -> int: ...

    @property
    def memory_per_node_mib(self) -> int: ...

    @property
    def slurm_options(self) -> Sequence[str]: ...


def price_on(cluster: Cluster, nodes: Sequence[Node], gpu_type: str) -> tuple[Decimal, str] | None:
    """(USD a GPU-hour, where that comes from) of the dearest of these nodes: the scheduler may choose any that fits.

    None where no price is known. ``gpu_type`` counts where there are no nodes.
    """
    region = _region(cluster)
    prepaid = {n.pk: p for n in nodes if (p := _block_price(n)) is not None}
    kinds = {(n.instance_type, n.gpu_type) for n in nodes if n.pk not in prepaid}
    if not kinds and not prepaid:
        kinds = {("", gpu_type)}
    prices = [found for kind in sorted(kinds) if (found := gpu_price(*kind, region)) is not None]
    return max([*prices, *prepaid.values()], default=None)


def node_price_on(
    cluster: Cluster, nodes: Sequence[Node], *, cpus: int, memory_mib: int, whole: bool = False
) -> tuple[Decimal, str] | None:
    """(USD an hour that so much of one node costs, where that comes from): the larger of its CPU and memory share.

    Of the dearest of these nodes; ``whole``: all of it. None where no price is known.
    """
    found = []
    for node in nodes:
        price = _node_price(node, _region(cluster))
        if price is not None:
            share = Decimal(1) if whole else share_of(node, cpus, memory_mib)
            found.append(((price[0] * share).quantize(_SIX), price[1]))
    return max(found, default=None)


def share_of(node: Node, cpus: int, memory_mib: int) -> Decimal:
    """The larger of the CPU and memory share of a node, at most all of it."""
    shares = [Decimal(cpus) / node.cpus] if node.cpus else []
    shares += [Decimal(memory_mib) / node.memory_mib] if node.memory_mib else []
    return min(Decimal(1), max(shares, default=Decimal(0)))


def asked_of_a_node(
    *, nodes: int, tasks_per_node: int, cpus_per_task: int, memory_per_node_mib: int, options: Sequence[str]
) -> tuple[int, int, bool]:
    """(CPUs, MiB, whether it is all of it) that a job asks of each node, by its fields and its kept options."""
    kept, problems = check_options(options)
    tasks = tasks_per_node
    if problems:
        return tasks * cpus_per_task, memory_per_node_mib, False
    total = value_of(kept, "ntasks") or ""
    if total.isdecimal():
        tasks = max(tasks, -(-int(total) // max(1, nodes)))
    by_tres = TASK_CPUS.search(value_of(kept, "tres-per-task") or "")
    cpus = tasks * (int(by_tres[1]) if by_tres else cpus_per_task)
    least = value_of(kept, "mincpus") or ""
    cpus = max(cpus, int(least)) if least.isdecimal() else cpus
    memory = memory_per_node_mib
    with suppress(ValueError):
        memory = max(memory, cpus * parse_memory(value_of(kept, "mem-per-cpu") or "0"))
    return cpus, memory, bool(takes_whole_nodes(kept))


def takes_whole_nodes(options: Sequence[str]) -> list[str]:
    """The options by which a job shares its nodes with nobody."""
    # Slurm gives whole nodes to whoever sets cores or threads of them aside for the system, too.
    whole = [name for name in ("core-spec", "thread-spec") if value_of(options, name) is not None]
    return ["exclusive", *whole] if value_of(options, "exclusive") in ("", "topo") else whole


def share_price(cluster: Cluster, shape: Shape, nodes: Sequence[Node]) -> tuple[Decimal, str] | None:
    """(USD an hour of a job's share of one of these nodes, where that comes from); None where no price is known."""
    cpus, memory_mib, is_whole = asked_of_a_node(
        nodes=shape.nodes,
        tasks_per_node=shape.tasks_per_node,
        cpus_per_task=shape.cpus_per_task,
        memory_per_node_mib=shape.memory_per_node_mib,
        options=shape.slurm_options,
    )
    return node_price_on(cluster, nodes, cpus=cpus, memory_mib=memory_mib, whole=is_whole)


def cost_of(job: Job, gpus: int, seconds: float, nodes: int | None = None) -> tuple[Decimal, Decimal]:
    """(GPU-hours, USD) of a job, or of one task of its array, for so long on so many GPUs in all.

    Without GPUs its share of its nodes is paid, or of so many where that is told.
    """
    hours = gpu_hours(gpus, seconds)
    if gpus:
        return hours, (hours * job.usd_per_gpu_hour).quantize(_SIX)
    return hours, node_usd(job.nodes if nodes is None else nodes, seconds, job.usd_per_node_hour)


def _region(cluster: Cluster) -> str:
    return cluster.account.region if cluster.account is not None else ""


def _node_price(node: Node, region: str) -> tuple[Decimal, str] | None:
    """USD an hour of a whole node and where that comes from."""
    block = _block_price(node)
    if block is not None:
        return block[0] * node.gpus, block[1]
    kind = type_by_name(node.instance_type) if node.instance_type else None
    if kind is not None and kind.usd_per_hour is not None:
        return kind.usd_per_hour, price_words(kind, region)
    price = gpu_price(node.instance_type, node.gpu_type, region) if node.gpus else None
    return None if price is None else (price[0] * node.gpus, price[1])


def _block_price(node: Node) -> tuple[Decimal, str] | None:
    """The rate of the block that a node belongs to and where it comes from; None for any other node."""
    reservation = node.reserved_in
    if reservation is None or reservation.kind not in PREPAID or reservation.usd_per_hour is None or not node.gpus:
        return None
    words = said(gettext_noop("the upfront price of %(name)s, spread over its hours"), name=str(reservation))
    return (reservation.usd_per_hour / node.gpus).quantize(_SIX), words
