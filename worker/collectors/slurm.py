"""Slurm: the whole queue in one read a tick, and all nodes in another; each leased, so never twice at once."""

from __future__ import annotations

from django.conf import settings

from apps.clusters import observations as cluster_observations
from apps.clusters.models import Cluster
from apps.clusters.observations import SeenNode
from apps.clusters.selectors import cluster_by_uid
from apps.clusters.states import ClusterPhase
from apps.jobs.observations import Seen, attempt_observe, attempt_unseen
from apps.jobs.selectors import attempts_placed
from worker import doors
from worker.collectors import READ, WRITTEN
from worker.engine import DONE, Outcome, again
from worker.providers import values as v
from worker.providers.errors import NotFound, ProviderError

UNREACHABLE_S = 10.0
#: Jobs that left the queue are asked one by one; at most so many a tick, the rest next time.
DETAILS_PER_TICK = 20


def _open(uid: str) -> Cluster | None:
    cluster = cluster_by_uid(uid)
    if cluster is None or cluster.delete_requested_at is not None:
        return None
    return cluster if cluster.phase in (ClusterPhase.READY, ClusterPhase.UNREACHABLE) else None


def seen_of(job: v.SchedulerJob) -> Seen:
    """The provider's value as the domain's."""
    return Seen(
        state=job.state,
        reason=job.reason,
        nodes=job.nodes,
        started_at=job.started_at,
        ended_at=job.ended_at,
        expected_start_at=job.expected_start_at,
        exit_code=job.exit_code,
        signal=job.signal,
    )


def queue(uid: str) -> Outcome:
    """Read the queue and tell every attempt that looks different; nothing changed costs one cheap call."""
    cluster = _open(uid)
    if cluster is None:
        return DONE
    period = settings.CONFIG.collect_queue_s
    attempts = attempts_placed(cluster)
    try:
        scheduler = doors.scheduler_for(cluster)
        # An attempt we never saw yet needs a full answer once, however little has changed.
        fresh = any(not a.observed_state and a.scheduler_id for a in attempts)
        read = scheduler.queue(None if fresh else cluster.queue_as_of)
        skipped = False
        jobs = None if read.jobs is None else {j.scheduler_id: j for j in read.jobs}
        if jobs is not None:
            READ.labels("slurm_queue").inc(len(jobs))
            left = DETAILS_PER_TICK
            for attempt in attempts:
                if not attempt.scheduler_id:
                    continue
                job = jobs.get(attempt.scheduler_id)
                if job is not None and job.comment not in ("", attempt.uid):
                    job = None  # another cluster's life under the same number
                if job is None and left > 0:
                    left -= 1
                    job = _elsewhere(scheduler, attempt.scheduler_id)
                    if job is None:
                        attempt_unseen(attempt)
                elif job is None:
                    skipped = True
                if job is not None and attempt_observe(attempt, seen_of(job)):
                    WRITTEN.labels("slurm_queue").inc()
    except ProviderError as error:
        cluster_observations.cluster_unreachable(cluster, str(error))
        return again(UNREACHABLE_S)
    if cluster.phase == ClusterPhase.UNREACHABLE:
        from apps.intents.services import intent_ask

        intent_ask("cluster.connect", cluster.uid)
    # What was not looked at yet must be found by the next read, which therefore asks from the same instant.
    cluster_observations.queue_was_read(cluster, cluster.queue_as_of if skipped else read.as_of)
    return again(period)


def _elsewhere(scheduler: object, scheduler_id: str) -> v.SchedulerJob | None:
    """A job that left the queue, from accounting; None when nobody knows it (the reconciler decides)."""
    try:
        return scheduler.job(scheduler_id)  # type: ignore[attr-defined, no-any-return]
    except NotFound:
        return None


def nodes(uid: str) -> Outcome:
    """Read all nodes and write those that differ."""
    cluster = _open(uid)
    if cluster is None:
        return DONE
    try:
        found = doors.scheduler_for(cluster).nodes()
    except ProviderError as error:
        cluster_observations.cluster_unreachable(cluster, str(error))
        return again(UNREACHABLE_S)
    READ.labels("slurm_nodes").inc(len(found))
    changed = cluster_observations.cluster_nodes_observe(
        cluster,
        [
            SeenNode(
                name=n.name,
                state=n.state,
                flags=n.flags,
                gpu_type=n.gpu_type,
                gpus=n.gpus,
                gpus_used=n.gpus_used,
                cpus=n.cpus,
                memory_mib=n.memory_mib,
                reason=n.reason,
                partitions=n.partitions,
                address=n.address,
                provider_id=n.instance_id,
            )
            for n in found
        ],
    )
    WRITTEN.labels("slurm_nodes").inc(changed)
    cluster_observations.nodes_were_read(cluster)
    return again(settings.CONFIG.collect_health_s)
