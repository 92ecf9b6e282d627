"""Clusters: connect to the scheduler, read its partitions, start the collectors; take a cluster out again."""

from __future__ import annotations

import time

from apps.clusters import observations
from apps.clusters.kube_observations import kubernetes_observed
from apps.clusters.kube_selectors import kubernetes_of
from apps.clusters.models import Cluster
from apps.clusters.selectors import cluster_by_uid
from apps.clusters.states import ClusterPhase
from apps.intents.services import intent_ask
from worker import doors, kube_doors
from worker.engine import DONE, Outcome, again
from worker.providers.errors import ProviderError

RECHECK_S = 120.0
RETRY_S = 10.0
_USED = (ClusterPhase.READY, ClusterPhase.UNREACHABLE)
COLLECTORS = ("cluster.queue", "cluster.nodes", "cluster.exporters", "cluster.starts")
#: Beside these on clusters that run Kubernetes: what it tells of jobs, their pods' output, what is left of ended ones.
KUBERNETES_COLLECTORS = ("cluster.happenings", "cluster.pod_logs", "cluster.sweep")
#: What the portal needs to be allowed, as (verb, resource, group); the page shows what is missing.
NEEDED: tuple[tuple[str, str, str], ...] = (
    ("list", "pods", ""),
    ("watch", "pods", ""),
    ("get", "pods/log", ""),
    ("create", "pods/eviction", ""),
    ("patch", "nodes", ""),
    ("list", "events", ""),
    ("create", "configmaps", ""),
    ("create", "secrets", ""),
    ("create", "services", ""),
    ("create", "jobs", "batch"),
    ("patch", "jobs", "batch"),
    ("delete", "jobs", "batch"),
)
#: For the kinds that not every server has.
_NEEDED_OF_KINDS = (
    *(("jobsets", "JobSet"), ("pytorchjobs", "PyTorchJob"), ("trainjobs", "TrainJob")),
    *(("hyperpodpytorchjobs", "HyperPodPyTorchJob"), ("leaderworkersets", "LeaderWorkerSet")),
)
_RIGHTS_S = 600.0
_rights_read: dict[str, float] = {}


def _kubernetes(cluster: Cluster) -> None:
    """Store what the server is and serves, and now and then what it lets us do."""
    settings = kubernetes_of(cluster)
    if settings is None:
        return
    scheduler = kube_doors.kubernetes_for(cluster)
    served = scheduler.served()
    kueue = served.by_kind("Workload", "kueue.x-k8s.io")
    may = settings.observed.get("may")
    if not may or time.monotonic() - _rights_read.get(cluster.uid, float("-inf")) > _RIGHTS_S:
        wanted = list(NEEDED)
        for plural, kind in _NEEDED_OF_KINDS:
            resource = served.by_kind(kind)
            if resource is not None:
                wanted += [(verb, plural, resource.group) for verb in ("create", "patch", "delete")]
        may = scheduler.rights(wanted)
        _rights_read[cluster.uid] = time.monotonic()
    observed = {
        "version": served.version,
        "kinds": sorted(served.kinds),
        "kueue": kueue.version if kueue is not None else "",
        "may": may,
    }
    kubernetes_observed(settings, observed)


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
        if cluster.is_kubernetes:
            kube_doors.close(cluster.uid)
        observations.cluster_removed(cluster)
        return DONE
    try:
        scheduler = doors.scheduler_for(cluster)
        info = scheduler.info()
        partitions = scheduler.partitions()
        if cluster.is_kubernetes:
            _kubernetes(cluster)
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
    if cluster.is_kubernetes:
        for kind in KUBERNETES_COLLECTORS:
            intent_ask(kind, cluster.uid)
    # It goes on by itself; asked again, it is soon there on a cluster that was connected before it existed.
    intent_ask("cluster.outside", cluster.uid)
    return again(RECHECK_S)
