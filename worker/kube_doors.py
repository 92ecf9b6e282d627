"""Opens Kubernetes clusters as schedulers: one watching scheduler a cluster and process."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from apps.clusters.models import Cluster

if TYPE_CHECKING:
    from worker.providers.kubernetes.client import KubernetesAccess
    from worker.providers.kubernetes.kueue import KueueKeeper
    from worker.providers.kubernetes.scheduler import KubernetesScheduler, KubernetesSite

_open: dict[tuple[int, str], tuple[KubernetesAccess, KubernetesSite, KubernetesScheduler]] = {}


def kubernetes_for(cluster: Cluster) -> KubernetesScheduler:
    """The scheduler of a cluster that runs Kubernetes. Raises InvalidRequest without settings, AccessDenied."""
    # Only here: a worker without such clusters need not load the official client.
    from worker.kube_access import kubernetes_access, settings_of
    from worker.providers.kubernetes.scheduler import KubernetesScheduler, KubernetesSite

    site = KubernetesSite(name=cluster.name, scheduler=settings_of(cluster).scheduler)
    access = kubernetes_access(cluster)
    # A forked process has neither the threads nor the connections of the one that it came from.
    place = (os.getpid(), cluster.uid)
    known = _open.get(place)
    if known is not None and (known[0], known[1]) != (access, site):
        if (replace(known[0], token=""), known[1]) == (replace(access, token=""), site):
            known[2].renew(access.token)
            known = (access, site, known[2])
        else:
            known[2].close()
            known = None
    if known is None:
        known = (access, site, KubernetesScheduler(access, site))
    _open[place] = known
    return known[2]


def close(uid: str) -> None:
    """End the watches of a cluster that is no more."""
    known = _open.pop((os.getpid(), uid), None)
    if known is not None:
        known[2].close()


def close_all() -> None:
    """End every watch of this process: at its end, and between tests."""
    for _pid, uid in [place for place in _open if place[0] == os.getpid()]:
        close(uid)


def queue_keeper_for(cluster: Cluster) -> KueueKeeper:
    """Kueue of a cluster, by the same connection. Raises as ``kubernetes_for``."""
    from worker.providers.kubernetes.kueue import KueueKeeper

    return KueueKeeper(kubernetes_for(cluster).caller, cluster.uid)
