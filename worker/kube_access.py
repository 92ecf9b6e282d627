"""How a cluster's Kubernetes is reached, from the rows that describe it; secrets resolved at the last moment."""

from __future__ import annotations

import time
from dataclasses import replace

from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.kube_selectors import kubernetes_of
from apps.clusters.kube_states import KubeAuth
from apps.clusters.models import Cluster
from apps.clusters.states import ClusterKind
from worker import doors
from worker.providers.aws.eks_tokens import EksTokens
from worker.providers.errors import InvalidRequest
from worker.providers.kubernetes import access as ways
from worker.providers.kubernetes.client import KubernetesAccess

#: Address and authority of an EKS cluster that another service's cluster stands on are asked again after this.
FACTS_KEPT_S = 300.0

_tokens = EksTokens()
_eks_facts: dict[tuple[int, str], tuple[float, str, str]] = {}


def settings_of(cluster: Cluster) -> KubernetesSettings:
    """How jobs reach a cluster's Kubernetes. Raises InvalidRequest where nobody said so."""
    settings = kubernetes_of(cluster)
    if settings is None:
        raise InvalidRequest(f"nobody said how jobs reach the Kubernetes of {cluster.name}", source="portal")
    return settings


def kubernetes_access(cluster: Cluster) -> KubernetesAccess:
    """Address, trust and identity, the token fresh. Raises AccessDenied, InvalidRequest, Unavailable (paused)."""
    settings = settings_of(cluster)
    match settings.auth:
        case KubeAuth.KUBECONFIG:
            found = ways.of_kubeconfig(doors.secret(settings.kubeconfig_ref, cluster.account), settings.context)
        case KubeAuth.IN_CLUSTER:
            found = ways.in_cluster()
        case _:
            found = _of_eks(cluster)
    return replace(found, timeout_s=doors.CALL_TIMEOUT_S)


def _of_eks(cluster: Cluster) -> KubernetesAccess:
    if cluster.account is None:
        raise InvalidRequest(f"cluster {cluster.name} has no cloud account, whose identity EKS takes", source="portal")
    cloud = doors.access_of(cluster.account)
    if cluster.kind == ClusterKind.HYPERPOD_EKS:
        name = str(cluster.settings.get("eks_cluster_arn") or cluster.provider_facts.get("eks_cluster_arn") or "")
        name = name.rpartition("/")[2]
        endpoint, authority = _facts_of(cluster, name)
    else:
        name = cluster.name_at_provider or cluster.name
        endpoint = str(cluster.provider_facts.get("endpoint") or "")
        authority = str(cluster.provider_facts.get("certificate_authority") or "")
    return ways.of_eks(endpoint, authority, _tokens.token(cloud, name))


def _facts_of(cluster: Cluster, name: str) -> tuple[str, str]:
    """Address and authority of the EKS cluster under a HyperPod cluster, as EKS tells them."""
    from worker.providers.aws.eks import Eks

    account = cluster.account
    if not name or account is None:
        raise InvalidRequest(f"cluster {cluster.name} does not say which EKS cluster it stands on", source="portal")
    kept = _eks_facts.get((account.pk, name))
    if kept is None or time.monotonic() - kept[0] > FACTS_KEPT_S:
        facts = Eks(doors.access_of(account)).cluster(name).facts
        kept = (time.monotonic(), str(facts.get("endpoint") or ""), str(facts.get("certificate_authority") or ""))
        _eks_facts[account.pk, name] = kept
    return kept[1], kept[2]
