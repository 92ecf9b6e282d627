"""Schedulers: whole queues and all nodes in bulk reads, compared with mirrors; each leased, never twice at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from apps.catalog.selectors import type_by_name
from apps.clusters import observations as cluster_observations
from apps.clusters.models import Cluster
from apps.clusters.observations import SeenNode
from apps.clusters.selectors import cluster_by_uid
from apps.clusters.states import ClusterPhase
from apps.core import clock
from apps.intents.services import intent_ask
from apps.jobs import queue_observations as mirrors
from apps.jobs.array_observations import lacks_tasks, tasks_observe
from apps.jobs.models import Attempt
from apps.jobs.observations import Seen, array_observe, attempt_observe, attempt_unseen
from apps.jobs.rules import is_final_state
from apps.jobs.selectors import attempts_placed
from apps.jobs.shared_rows import shares_settle
from apps.jobs.states import AttemptPhase
from worker import doors, kube_doors
from worker.collectors import READ, WRITTEN
from worker.collectors.pace import next_period, too_early_s
from worker.engine import DONE, Outcome, again
from worker.providers import values as v
from worker.providers.errors import ProviderError
from worker.providers.ports import Scheduler
from worker.words import said_text

UNREACHABLE_S = 10.0
#: Jobs that left the queue are asked of accounting in one call; at most so many a tick, the rest next time.
ENDS_PER_TICK = 200
#: Where accounting did not answer, it is left alone for this long.
ACCOUNTING_REST_S = 15.0
#: How often rows without an end are looked for.
SETTLE_EVERY_S = 30.0
#: The part of the time that reading may take until a queue that was never read is known.
CATCHING_UP_SHARE = 0.5
#: A portal job that waits or runs keeps the period at or below this, whatever the rest of the queue does.
WAITING_S = 5.0
RUNNING_S = 10.0
_SOON = timedelta(seconds=60)
#: Ends for which a node is to blame.
_LOST_A_NODE = frozenset({"NODE_FAIL", "BOOT_FAIL"})


@dataclass
class _Memory:
    """What this process remembers of one cluster between its reads."""

    mirror: mirrors.Mirror
    accounting_after: float = 0.0
    settle_after: float = 0.0


_memories: dict[str, _Memory] = {}


def _open(uid: str) -> Cluster | None:
    cluster = cluster_by_uid(uid)
    if cluster is None or cluster.delete_requested_at is not None:
        return None
    return cluster if cluster.phase in (ClusterPhase.READY, ClusterPhase.UNREACHABLE) else None


def _parts_of(leader: v.SchedulerJob, jobs: Mapping[str, v.SchedulerJob]) -> list[v.SchedulerJob]:
    """The further parts of a heterogeneous job among these; Slurm numbers them on from the first."""
    found, number = [], int(leader.scheduler_id) + 1
    while (part := jobs.get(str(number))) is not None and part.het_id == leader.scheduler_id:
        found.append(part)
        number += 1
    return found


def seen_of(job: v.SchedulerJob, parts: Sequence[v.SchedulerJob] = ()) -> Seen:
    """The provider's value as the domain's; of a heterogeneous job the first part and the ``parts`` behind it.

    The first part says how it goes, since the script runs there. Where it ended without success and another lost its
    node, that is why: Slurm then ends the rest.
    """
    lost = next((p for p in parts if p.state in _LOST_A_NODE), None)
    if lost is not None and is_final_state(job.state) and job.state != "COMPLETED":
        job = replace(job, state=lost.state, reason=lost.reason)
    return Seen(
        state=job.state,
        reason=job.reason,
        nodes=tuple(dict.fromkeys([*job.nodes, *(name for part in parts for name in part.nodes)])),
        started_at=job.started_at,
        ended_at=job.ended_at,
        expected_start_at=job.expected_start_at,
        exit_code=job.exit_code,
        signal=job.signal,
        time_limit_min=job.time_limit_min,
        why=said_text(job.why) if job.why is not None else "",
        failed_node=job.failed_node,
    )


def _job_of(key: str, columns: Sequence[Any]) -> v.SchedulerJob:
    named = dict(zip(mirrors.COLUMNS, columns, strict=True))
    return v.SchedulerJob(scheduler_id=key, **{**named, "nodes": tuple(named["nodes"])})


def _remembered(cluster: Cluster, scheduler: Scheduler) -> _Memory:
    """The mirror as this process has it; what another process wrote meanwhile is read from the database first."""
    memory = _memories.get(cluster.uid)
    if memory is not None and memory.mirror.epoch == mirrors.epoch_of(cluster):
        return memory
    mirror = mirrors.mirror_load(cluster)
    if mirror.epoch and cluster.queue_as_of is not None:
        jobs = [_job_of(key, kept.columns) for key, kept in mirror.rows.items()]
        for job in jobs:
            mirror.rows[job.scheduler_id].seen = job
        scheduler.remember(jobs, cluster.queue_as_of)
    _memories[cluster.uid] = memory = _Memory(mirror)
    return memory


def queue(uid: str) -> Outcome:
    """Read the queue, write what differs of the mirror, and tell every attempt that looks different."""
    cluster = _open(uid)
    if cluster is None:
        return DONE
    config = settings.CONFIG
    told: Mapping[str, Any] = cluster.queue_reading
    share = max(config.collect_share, CATCHING_UP_SHARE) if told.get("left_over") else config.collect_share
    early = too_early_s(cluster.queue_read_at, float(told.get("read_s") or 0), share, clock.now())
    if early > 0 and cluster.phase == ClusterPhase.READY:
        # Someone asked for a look right now; a source that is slow is spared all the same.
        return again(early)
    attempts = attempts_placed(cluster)
    try:
        scheduler = doors.scheduler_for(cluster)
        memory = _remembered(cluster, scheduler)
        # An attempt we never saw yet needs a full answer once, however little has changed.
        fresh = any(not a.observed_state and a.scheduler_id for a in attempts)
        since = None if fresh or not mirrors.epoch_of(cluster) else cluster.queue_as_of
        read = scheduler.queue(since, [a.scheduler_id for a in attempts if a.scheduler_id])
        written, skipped = 0, False
        if read.jobs is not None:
            READ.labels("slurm_queue").inc(len(read.jobs))
            written, skipped = _compare(cluster, scheduler, memory, read, attempts)
        written += _settle(cluster, scheduler, memory)
        if cluster.is_kubernetes:
            # Without Kueue nobody lets a whole job begin but the portal.
            kube_doors.kubernetes_for(cluster).let_in()
    except ProviderError as error:
        cluster_observations.cluster_unreachable(cluster, str(error))
        return again(UNREACHABLE_S)
    except BaseException:
        # What the memory holds may not be what the database holds.
        _memories.pop(uid, None)
        raise
    if cluster.phase == ClusterPhase.UNREACHABLE:
        intent_ask("cluster.connect", cluster.uid)
    WRITTEN.labels("slurm_queue").inc(written)
    reading = _reading(cluster.queue_reading, read, written)
    reading["left_over"] = read.left_over
    reading["period_s"] = round(_queue_period(reading, read, attempts), 2)
    # What was not looked at yet must be found by the next read, which therefore asks from the same instant.
    cluster_observations.queue_was_read(cluster, cluster.queue_as_of if skipped else read.as_of, reading)
    return again(reading["period_s"])


def _compare(
    cluster: Cluster,
    scheduler: Scheduler,
    memory: _Memory,
    read: v.QueueRead,
    attempts: Sequence[Attempt],
) -> tuple[int, bool]:
    """Bring mirror and attempts up to a read; rows written, and whether something is left for the next read."""
    listed = read.jobs or ()
    jobs = {job.scheduler_id: job for job in listed}
    changes = mirrors.entries_observe(cluster, memory.mirror, jobs)
    written = changes.created + changes.updated + mirrors.entries_link(cluster, memory.mirror, attempts)
    left = changes.left[:ENDS_PER_TICK]
    missing = [
        a.scheduler_id
        for a in attempts
        if a.scheduler_id and not a.array and _ours(jobs.get(a.scheduler_id), a) is None
    ]
    # Where details wait for the next read, nobody can say that nothing of an array is left.
    unseen = [] if read.left_over else _arrays_unseen(attempts, listed)
    missing += [a.scheduler_id for a in unseen]
    without_end = [key for key in left if not mirrors.has_ended(memory.mirror.rows[key])]
    asked = list(dict.fromkeys([*missing, *without_end]))[:ENDS_PER_TICK]
    ends = _ends(scheduler, memory, asked)
    arrays: list[Attempt] = []
    for attempt in attempts:
        if not attempt.scheduler_id:
            continue
        if attempt.array:
            # What an array comes to is told by all its tasks: it is looked at where any entry moved.
            if changes.created or changes.updated or left or not attempt.observed_state:
                arrays.append(attempt)
            continue
        known: Mapping[str, v.SchedulerJob] = jobs
        job = _ours(jobs.get(attempt.scheduler_id), attempt)
        if job is None and ends is not None and attempt.scheduler_id in asked:
            known, job = ends, _ours(ends.get(attempt.scheduler_id), attempt)
            if job is None:
                attempt_unseen(attempt)
        if job is not None:
            parts = _parts_of(job, known) if attempt.job.parts else ()
            written += attempt_observe(attempt, seen_of(job, parts))
    told = [a for a in unseen if ends is not None and a.scheduler_id in asked]
    if left or told:
        # In one commit: between the two a row could speak for tasks that it does not know.
        with transaction.atomic():
            written += mirrors.entries_gone(cluster, memory.mirror, left, ends or {}, asked=ends is not None)
            written += sum(tasks_observe(attempt, (ends or {}).values()) for attempt in told)
    arrays += [attempt for attempt in told if attempt not in arrays]
    written += sum(array_observe(attempt) for attempt in arrays)
    skipped = len(left) < len(changes.left) or len(missing) > ENDS_PER_TICK or (bool(missing) and ends is None)
    return written, skipped


def _arrays_unseen(attempts: Sequence[Attempt], listed: Sequence[v.SchedulerJob]) -> list[Attempt]:
    """Arrays of which the queue holds nothing that waits or runs, and of some of whose tasks nothing is known."""
    arrays = [a for a in attempts if a.array and a.scheduler_id and not is_final_state(a.observed_state)]
    if not arrays:
        return []
    live = {job.array_id or job.scheduler_id for job in listed if not is_final_state(job.state)}
    return [attempt for attempt in arrays if attempt.scheduler_id not in live and lacks_tasks(attempt)]


def _ours(job: v.SchedulerJob | None, attempt: Attempt) -> v.SchedulerJob | None:
    """A job under the attempt's number, unless it is another cluster's life under the same number."""
    return job if job is not None and job.comment in ("", attempt.uid) else None


def _ends(scheduler: Scheduler, memory: _Memory, keys: Sequence[str]) -> dict[str, v.SchedulerJob] | None:
    """These jobs as accounting knows them, in one call; None where it does not answer now."""
    if not keys:
        return {}
    if time.monotonic() < memory.accounting_after:
        return None
    try:
        found = scheduler.accounted(keys)
    except ProviderError:
        memory.accounting_after = time.monotonic() + ACCOUNTING_REST_S
        return None
    return {job.scheduler_id: job for job in found}


def _settle(cluster: Cluster, scheduler: Scheduler, memory: _Memory) -> int:
    """Ask again for the ends that accounting did not know when their jobs left the queue."""
    if time.monotonic() < memory.settle_after:
        return 0
    memory.settle_after = time.monotonic() + SETTLE_EVERY_S
    rows = mirrors.entries_without_end(cluster, ENDS_PER_TICK)
    ends = _ends(scheduler, memory, [row.scheduler_id for row in rows])
    if not rows or ends is None:
        return 0
    # A row may have stood for several tasks.
    single, shared = mirrors.shared_apart(rows)
    arrays = {row.attempt for row in single if row.array_pending and row.attempt is not None}
    with transaction.atomic():
        settled = mirrors.entries_settle(single, ends)
        settled += shares_settle(cluster, shared, ends.values(), mirrors.named_of)
        return settled + sum(tasks_observe(attempt, ends.values()) for attempt in arrays)


def _reading(before: Mapping[str, Any], read: v.QueueRead | v.NodeRead, written: int) -> dict[str, Any]:
    now = clock.now()
    changed_at = clock.iso(now) if written or not before.get("changed_at") else before["changed_at"]
    return {
        **before,
        "read_s": round(read.read_s, 4),
        "bytes": read.size_bytes,
        "calls": read.calls,
        "written": written,
        "changed_at": changed_at,
    }


def _quiet_s(reading: Mapping[str, Any]) -> float:
    changed_at = datetime.fromisoformat(str(reading["changed_at"]).replace("Z", "+00:00"))
    return (clock.now() - changed_at.astimezone(UTC)).total_seconds()


def _queue_period(reading: Mapping[str, Any], read: v.QueueRead, attempts: Sequence[Attempt]) -> float:
    config = settings.CONFIG
    soon = clock.now() + _SOON
    nearest: float | None = None
    for attempt in attempts:
        if read.left_over or not attempt.observed_state or attempt.phase == AttemptPhase.STOPPING:
            wait = 0.0
        elif attempt.observed_state != "PENDING":
            wait = RUNNING_S
        else:
            starts = attempt.expected_start_at
            wait = 0.0 if starts is not None and starts < soon else WAITING_S
        nearest = wait if nearest is None else min(nearest, wait)
    return next_period(
        base_s=config.collect_queue_s,
        most_s=config.collect_queue_most_s,
        share=max(config.collect_share, CATCHING_UP_SHARE) if read.left_over else config.collect_share,
        quiet_s=0.0 if read.left_over else _quiet_s(reading),
        read_s=read.read_s,
        nearest_s=nearest,
    )


def _gpu_type(instance_type: str) -> str:
    """The word for a node's GPUs by the type of its machine, where the scheduler has none."""
    known = type_by_name(instance_type.removeprefix("ml.")) if instance_type else None
    return known.gpu_type if known is not None else ""


def nodes(uid: str) -> Outcome:
    """Read all nodes and write those that differ."""
    cluster = _open(uid)
    if cluster is None:
        return DONE
    config = settings.CONFIG
    told: Mapping[str, Any] = cluster.nodes_reading
    early = too_early_s(cluster.nodes_read_at, float(told.get("read_s") or 0), config.collect_share, clock.now())
    if early > 0 and cluster.phase == ClusterPhase.READY:
        return again(early)
    try:
        read = doors.scheduler_for(cluster).node_read()
    except ProviderError as error:
        cluster_observations.cluster_unreachable(cluster, str(error))
        return again(UNREACHABLE_S)
    READ.labels("slurm_nodes").inc(len(read.nodes))
    changed = cluster_observations.cluster_nodes_observe(
        cluster,
        [
            SeenNode(
                name=n.name,
                state=n.state,
                flags=n.flags,
                gpu_type=n.gpu_type or _gpu_type(n.instance_type),
                gpus=n.gpus,
                gpus_used=n.gpus_used,
                cpus=n.cpus,
                memory_mib=n.memory_mib,
                reason=n.reason,
                partitions=n.partitions,
                address=n.address,
                provider_id=n.instance_id,
                instance_type=n.instance_type.removeprefix("ml."),
                labels=dict(n.labels),
            )
            for n in read.nodes
        ],
    )
    WRITTEN.labels("slurm_nodes").inc(changed)
    reading = _reading(told, read, changed)
    period = next_period(
        base_s=config.collect_health_s,
        most_s=config.collect_nodes_most_s,
        share=config.collect_share,
        quiet_s=_quiet_s(reading),
        read_s=read.read_s,
    )
    reading["period_s"] = round(period, 2)
    cluster_observations.nodes_were_read(cluster, reading)
    return again(period)
