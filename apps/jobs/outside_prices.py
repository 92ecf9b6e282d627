"""What jobs from outside cost by the rows of the queue: those without GPUs each by its own CPUs, memory and nodes.

A waiting row tells what was asked for and a running one what is held, and parts of one job may hold very different
shares: no price of the first sight holds for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from apps.clusters.models import Cluster, Node
from apps.clusters.states import NodePhase
from apps.jobs.models import Job
from apps.jobs.pricing import cost_of, node_price_on
from apps.jobs.queue_models import QueueEntry
from apps.jobs.rules import gpu_hours, node_usd


def priced_nodes(cluster: Cluster, names: Sequence[str] = ()) -> list[Node]:
    """The nodes of a cluster, or those of these names, with what their price is read from."""
    rows = Node.objects.filter(cluster=cluster).exclude(phase=NodePhase.GONE)
    rows = rows.filter(name__in=names) if names else rows
    return list(rows.select_related("fleet__reservation", "group__reservation"))


def places_of(row: QueueEntry) -> list[Node]:
    """The nodes that a row names, all of its cluster where it names none that is known."""
    return (priced_nodes(row.cluster, row.nodes) if row.nodes else []) or priced_nodes(row.cluster)


def share_of_row(cluster: Cluster, row: QueueEntry, nodes: Sequence[Node]) -> tuple[Decimal, str] | None:
    """(USD an hour of what a row holds of each of its nodes, where that comes from); None where nobody knows a price.

    Of ``nodes`` those count that the row names, the dearest of all where it names none of them.
    """
    each = max(1, row.node_count)
    on = [node for node in nodes if node.name in row.nodes]
    return node_price_on(cluster, on or nodes, cpus=-(-row.cpus // each), memory_mib=row.memory_mib // each)


def cost_of_row(job: Job, row: QueueEntry, seconds: float) -> tuple[Decimal, Decimal]:
    """(GPU-hours, USD) of what a row of a job from outside holds for so long; its price now where it has no GPUs."""
    count = row.node_count or job.nodes
    if row.gpus or not (row.cpus or row.memory_mib):
        return cost_of(job, row.gpus, seconds, count)
    share = share_of_row(job.cluster, row, places_of(row))
    rate = job.usd_per_node_hour if share is None else share[0]
    return gpu_hours(0, seconds), node_usd(count, seconds, rate)
