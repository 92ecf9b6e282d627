"""Expected starts: the queue is played forward every minute for the attempts that wait, from what is stored."""

from __future__ import annotations

from django.conf import settings

from apps.clusters.selectors import cluster_by_uid
from apps.clusters.states import ClusterPhase
from apps.jobs.start_observations import history_observe, predictions_settle, starts_observe
from worker.collectors import WRITTEN
from worker.engine import DONE, Outcome, again

CATCHING_UP_S = 5.0


def predict(uid: str) -> Outcome:
    """History, expectations and how earlier ones turned out; no call leaves the building."""
    cluster = cluster_by_uid(uid)
    if cluster is None or cluster.delete_requested_at is not None:
        return DONE
    if cluster.phase not in (ClusterPhase.READY, ClusterPhase.UNREACHABLE):
        return DONE
    predictions_settle(cluster)
    history_observe(cluster)
    # While the scheduler is away its queue is not known: what was said stays, with its age.
    # While part of the queue is not read yet, nobody knows who is ahead.
    if cluster.queue_reading.get("left_over"):
        return again(CATCHING_UP_S)
    if cluster.phase == ClusterPhase.READY and cluster.queue_read_at is not None:
        WRITTEN.labels("starts").inc(starts_observe(cluster))
    return again(settings.CONFIG.predict_every_s)
