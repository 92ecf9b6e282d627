"""Opens Kubernetes clusters: who we are there, whom to trust, and one watching scheduler a cluster and process."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.kube_selectors import kubernetes_of
from apps.clusters.kube_states import KubeAuth
from apps.clusters.models import Cluster
from apps.clusters.states import ClusterKind
from worker import doors
from worker.providers.errors import InvalidRequest

if TYPE_CHECKING:
    from worker.providers.kubernetes.client import KubernetesAccess
    from worker.providers.kubernetes.scheduler import KubernetesScheduler, KubernetesSite

#: What DescribeCluster said is kept so long: an address changes with its cluster only.
SERVER_KEPT_S = 300.0

_open: dict[tuple[int, str], tuple[KubernetesAccess, KubernetesSite, KubernetesScheduler]] = {}
_servers: dict[tuple[int, str], tuple[float, str, str]] = {}
_tokens: list[object] = []


def kubernetes_for(cluster: Cluster) -> KubernetesScheduler:
    """The scheduler of a cluster that runs Kubernetes. Raises InvalidRequest without settings, AccessDenied."""
    from worker.providers.kubernetes.scheduler import KubernetesScheduler, KubernetesSite

    settings = kubernetes_of(cluster)
    if settings is None:
        raise InvalidRequest(f"nobody said how to reach the Kubernetes of cluster {cluster.name}", source="portal")
    access = access_for(cluster, settings)
    site = KubernetesSite(name=cluster.name, scheduler=settings.scheduler)
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


def close_all() -> None:
    """End every watch of this process: at its end, and between tests."""
    for place in [place for place in _open if place[0] == os.getpid()]:
        _open.pop(place)[2].close()


def access_for(cluster: Cluster, settings: KubernetesSettings) -> KubernetesAccess:
    """How to reach a cluster now, with a token that is good for minutes yet."""
    from worker.providers.kubernetes import access

    match settings.auth:
        case KubeAuth.KUBECONFIG:
            text = access.text_of(doors.secret(settings.kubeconfig_ref, cluster.account))
            found = access.of_kubeconfig(text, settings.context)
        case KubeAuth.IN_CLUSTER:
            found = access.in_cluster()
        case _:
            found = _eks(cluster)
    return replace(found, timeout_s=doors.CALL_TIMEOUT_S)


def eks_name(cluster: Cluster) -> str:
    """The name of the EKS cluster whose API is meant: its own, or the one that HyperPod's nodes join."""
    if cluster.kind == ClusterKind.HYPERPOD_EKS:
        arn = cluster.provider_facts.get("eks_cluster_arn") or cluster.settings.get("eks_cluster_arn") or ""
        return str(arn).rpartition("/")[2]
    if cluster.kind == ClusterKind.EKS:
        return cluster.name_at_provider or cluster.provider_id.rpartition("/")[2]
    return cluster.name


def _eks(cluster: Cluster) -> KubernetesAccess:
    from worker.providers.aws.eks_tokens import EksTokens, eks_server
    from worker.providers.kubernetes import access

    if cluster.account is None:
        raise InvalidRequest(f"cluster {cluster.name} has no cloud account to make tokens with", source="portal")
    account = doors.access_of(cluster.account)
    name = eks_name(cluster)
    if not name:
        raise InvalidRequest(f"it is not known which EKS cluster {cluster.name} runs on", source="portal")
    kept = _servers.get((cluster.account.pk, name))
    if kept is None or time.monotonic() - kept[0] > SERVER_KEPT_S:
        kept = _servers[cluster.account.pk, name] = (time.monotonic(), *eks_server(account, name))
    if not _tokens:
        _tokens.append(EksTokens())
    mill = _tokens[0]
    assert isinstance(mill, EksTokens)
    return access.of_eks(kept[1], kept[2], mill.token(account, name))
