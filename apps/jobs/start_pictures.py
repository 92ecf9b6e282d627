"""From the mirrors of queue and nodes to the picture that ``start_rules`` plays: reads of the database, no network."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apps.clusters.models import Cluster, Node
from apps.clusters.states import NodePhase
from apps.core import clock
from apps.jobs.kube_words import WAITS_FOR_ROOM
from apps.jobs.models import QueueEntry
from apps.jobs.start_models import StartHistory
from apps.jobs.start_rules import NO_LIMIT_S, UNKNOWN_USE, Picture, Place, Running, Waiting

#: Reasons with which a job may start as soon as there is room. With any other it waits for something else.
OPEN = WAITS_FOR_ROOM | frozenset(
    {"", "None", "Resources", "Priority", "ReqNodeNotAvail", "NodeDown", "SchedDefer", "BeginTime", "Cleaning"}
)
#: Waiting jobs that a picture holds at most: those the scheduler looks at first.
MOST_WAITING = 1500
#: So few jobs of a kind say nothing; the next wider kind is asked.
FEW = 5
#: Where the history keeps how earlier expectations turned out; no kind of jobs is called so.
RATIOS = "ratios"
#: Words among a node's states that keep jobs of the queue away.
_RESERVED = frozenset({"RESERVED", "MAINT", "MAINTENANCE"})
_TASKS = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?")
_FIELDS = (
    "scheduler_id",
    "state",
    "reason",
    "partition",
    "nodes",
    "node_count",
    "gpus",
    "user_name",
    "name",
    "started_at",
    "eligible_at",
    "time_limit_min",
    "array_pending",
)


@dataclass(frozen=True)
class Pool:
    """The picture of one partition, with the instant it shows and the nodes' GPU types."""

    picture: Picture
    at: datetime
    types: Mapping[str, str]

    def others_than(self, gpu_type: str) -> frozenset[str]:
        """Nodes with other GPUs than these; none where any will do."""
        return frozenset(name for name, own in self.types.items() if gpu_type and own != gpu_type)


def stem(user_name: str, name: str) -> str:
    """The kind of jobs that one is of: its user and its name without numbers."""
    return f"n:{user_name}/{re.sub(r'[0-9]+', '#', name)[:60]}"


def use_of(history: Mapping[str, Any], *, user_name: str, name: str, partition: str) -> tuple[float, ...]:
    """Parts of their limits that jobs like this one took, from the narrowest kind that is known well enough."""
    for kind in (stem(user_name, name), f"u:{user_name}", f"p:{partition}"):
        found = history.get(kind)
        if isinstance(found, list) and len(found) >= FEW:
            return tuple(float(part) for part in found)
    return UNKNOWN_USE


def history_of(cluster: Cluster) -> Mapping[str, Any]:
    """What is known of the cluster's jobs; empty before the first ended."""
    found = StartHistory.objects.filter(cluster=cluster).values_list("use", flat=True).first()
    return found if isinstance(found, dict) else {}


def ratios_in(history: Mapping[str, Any]) -> tuple[float, ...]:
    """How earlier expectations of the cluster turned out, as ``start_rules.calibrated`` takes it."""
    found = history.get(RATIOS)
    return tuple(float(ratio) for ratio in found) if isinstance(found, list) else ()


def tasks_in(pending: str) -> int:
    """How many tasks "0-20%3" are that may run at once, at least 1."""
    spans, _, limit = pending.partition("%")
    count = 0
    for first, last, step in _TASKS.findall(spans):
        count += (int(last or first) - int(first)) // int(step or 1) + 1
    return max(1, min(count, int(limit) if limit.isdigit() and int(limit) else count))


def share_of(gpus: int, node_count: int) -> int:
    """GPUs on each node."""
    return math.ceil(gpus / node_count) if node_count else gpus


def pool_of(cluster: Cluster, partition: str, *, reach: Collection[str] = ()) -> Pool:
    """The picture of a partition ("" for all nodes). Jobs in ``reach`` are in it however far behind they are.

    A queue of Kubernetes has no nodes of its own: all queues' jobs stand on all of them.
    """
    if cluster.is_kubernetes:
        partition = ""
    now = clock.now()
    rows = Node.objects.filter(cluster=cluster).exclude(phase=NodePhase.GONE).order_by("name", "-pk")
    nodes: dict[str, Node] = {}
    for node in rows.only("name", "phase", "gpus", "gpu_type", "partitions", "observed_state"):
        if not partition or partition in node.partitions:
            nodes.setdefault(node.name, node)
    places = tuple(_place(node) for node in nodes.values())
    sizes = {place.name: place.gpus for place in places}
    bare = {name for name, node in nodes.items() if not node.gpus}
    history = history_of(cluster)
    live = QueueEntry.objects.filter(cluster=cluster, gone_at__isnull=True)
    running = []
    for row in live.filter(state__in=["RUNNING", "COMPLETING", "SUSPENDED"]).values(*_FIELDS):
        if any(name in sizes for name in row["nodes"]):
            share = 1 if any(name in bare for name in row["nodes"]) else share_of(row["gpus"], len(row["nodes"]))
            running.append(
                Running(
                    key=row["scheduler_id"],
                    nodes=tuple(row["nodes"]),
                    share=share,
                    elapsed_s=(now - row["started_at"]).total_seconds() if row["started_at"] else 0.0,
                    limit_s=_limit_s(row["time_limit_min"]),
                    use=_use(history, row),
                )
            )
    first = list(live.filter(state="PENDING").order_by("-priority", "pk").values(*_FIELDS)[:MOST_WAITING])
    known = {row["scheduler_id"] for row in first}
    beyond = [key for key in reach if key not in known]
    if beyond:
        first += list(live.filter(state="PENDING", scheduler_id__in=beyond).values(*_FIELDS))
    is_bare = bool(bare) and len(bare) == len(nodes)
    waiting: list[Waiting] = []
    for row in first:
        if partition and partition not in row["partition"].split(","):
            continue
        if row["reason"] in OPEN and len(waiting) < 2 * MOST_WAITING:
            waiting += _waiting(row, history, now, is_bare=is_bare)
    picture = Picture(places, tuple(running), tuple(waiting), seed=cluster.pk)
    return Pool(picture, now, {name: node.gpu_type for name, node in nodes.items()})


def _place(node: Node) -> Place:
    words = set(node.observed_state.upper().split())
    usable = node.phase == NodePhase.READY and not words & _RESERVED
    why = "" if usable else "reserved" if words & _RESERVED else node.phase.lower()
    return Place(node.name, node.gpus or 1, usable, why)


def _limit_s(minutes: int | None) -> float:
    return minutes * 60.0 if minutes else NO_LIMIT_S


def _use(history: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[float, ...]:
    partition = str(row["partition"]).split(",")[0]
    return use_of(history, user_name=row["user_name"], name=row["name"], partition=partition)


def _waiting(row: Mapping[str, Any], history: Mapping[str, Any], now: datetime, *, is_bare: bool) -> list[Waiting]:
    """A job of the queue, or the tasks of an array that may start side by side: the first bears the job's number."""
    eligible = row["eligible_at"]
    job = Waiting(
        key=row["scheduler_id"],
        nodes=max(1, row["node_count"]),
        share=1 if is_bare else share_of(row["gpus"], row["node_count"]),
        limit_s=_limit_s(row["time_limit_min"]),
        use=_use(history, row),
        eligible_in_s=max(0.0, (eligible - now).total_seconds()) if eligible else 0.0,
    )
    more = min(tasks_in(row["array_pending"]), 50) - 1 if row["array_pending"] else 0
    return [job, *(_copy(job, number) for number in range(1, more + 1))]


def _copy(job: Waiting, number: int) -> Waiting:
    return Waiting(f"{job.key}#{number}", job.nodes, job.share, job.limit_s, job.use, job.eligible_in_s)
