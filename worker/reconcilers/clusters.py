"""Clusters: connect to the scheduler, read its partitions, start the collectors; take a cluster out again."""

from __future__ import annotations

from apps.clusters import observations
from apps.clusters.selectors import cluster_by_uid
from apps.clusters.states import ClusterPhase
from apps.intents.services import intent_ask
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.providers.errors import ProviderError

RECHECK_S = 120.0
RETRY_S = 10.0
_USED = (ClusterPhase.READY, ClusterPhase.UNREACHABLE)
COLLECTORS = ("cluster.queue", "cluster.nodes", "cluster.exporters", "cluster.starts")


def connect(uid: str) -> Outcome:
    """Ping, negotiate, read partitions."""
    cluster = cluster_by_uid(uid)
    if cluster is None or cluster.phase == ClusterPhase.DELETED:
        return DONE
    is_scheduler = cluster.takes_jobs and cluster.phase in _USED and cluster.delete_requested_at is None
    if cluster.is_managed and not is_scheduler:
        # What AWS keeps is made and taken away by its own reconciler; here it is only asked as a scheduler.
        return DONE
    if cluster.delete_requested_at is not None:
        observations.cluster_removed(cluster)
        return DONE
    try:
        scheduler = doors.scheduler_for(cluster)
        info = scheduler.info()
        partitions = scheduler.partitions()
    except ProviderError as error:
        observations.cluster_unreachable(cluster, str(error))
        return again(RETRY_S)
    chosen = [p for p in partitions if p.name == cluster.partition] or [p for p in partitions if p.is_default]
    chosen = chosen or list(partitions[:1])
    first = cluster.phase != ClusterPhase.READY or not cluster.observed_api_version
    observations.cluster_reached(
        cluster,
        version=info.version,
        api_version=info.api_version,
        partitions=[{"name": p.name, "max_time_min": p.max_time_min, "nodes": len(p.nodes)} for p in partitions],
        max_time_min=chosen[0].max_time_min if chosen else None,
    )
    if first:
        for kind in COLLECTORS:
            intent_ask(kind, cluster.uid)
    # It goes on by itself; asked again, it is soon there on a cluster that was connected before it existed.
    intent_ask("cluster.outside", cluster.uid)
    return again(RECHECK_S)
