"""A person's manifest as the pages and the API are told of it: what is wrong and where, and what it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from apps.clusters.kube_selectors import kubernetes_of, place_of
from apps.clusters.kube_states import Allowance
from apps.clusters.models import Cluster, Node
from apps.clusters.states import NodePhase
from apps.jobs.exact_request import HIDDEN
from apps.jobs.kube_rules import class_names
from apps.teams.models import Team
from worker.providers.kubernetes.manifest import (
    Document,
    Manifest,
    ManifestPolicy,
    NodeSize,
    check_manifest,
    counted,
    prepared,
    read_manifest,
)
from worker.providers.kubernetes.pod_rules import PodPolicy
from worker.providers.kubernetes.pod_sets import BadValue, Demand, as_list, as_map, at
from worker.providers.kubernetes.pods import SCHEDULER_NAMES
from worker.providers.kubernetes.shown import without_secrets
from worker.providers.kubernetes.yaml_text import Unreadable
from worker.providers.workload_values import KUEUE
from worker.reconcilers.fleet_parts import said_text

#: Where a kind says how long it may run, besides its Jobs' and pods' own.
_DEADLINES = (
    ("spec", "activeDeadlineSeconds"),
    ("spec", "runPolicy", "activeDeadlineSeconds"),
    ("spec", "template", "spec", "activeDeadlineSeconds"),
)
#: What every Kubernetes has, asked or not.
_EVERYWHERE = frozenset(
    (
        *("v1 ConfigMap", "v1 PersistentVolumeClaim", "v1 Pod", "v1 Secret", "v1 Service"),
        "batch/v1 Job",
        *("apps/v1 Deployment", "apps/v1 ReplicaSet", "apps/v1 StatefulSet"),
    )
)


def policy_of(cluster: Cluster, team: Team) -> ManifestPolicy:
    """What this cluster takes from this team."""
    settings = kubernetes_of(cluster)
    place = place_of(cluster, team)
    if settings is None:
        return ManifestPolicy(namespace=place.namespace)
    allows = frozenset(settings.allowances)
    pods = PodPolicy(
        host_paths=tuple(settings.host_paths),
        allows_privileged=Allowance.PRIVILEGED in allows,
        allows_host_network=Allowance.HOST_NETWORK in allows,
        allows_host_pid=Allowance.HOST_PID in allows,
        allows_host_ipc=Allowance.HOST_IPC in allows,
        allows_proc_mount=Allowance.PROC_MOUNT in allows,
        allows_unconfined=Allowance.UNCONFINED in allows,
        priority_classes=frozenset({settings.pod_priority_class, *class_names(settings.priority_classes)} - {""}),
        service_accounts=frozenset({"", "default", settings.service_account}),
        schedulers=_schedulers(settings.scheduler),
    )
    kinds = settings.observed.get("kinds")
    priorities = class_names(settings.priority_classes)
    return ManifestPolicy(
        namespace=place.namespace,
        pods=pods,
        nodes=_sizes(cluster),
        served=_EVERYWHERE | frozenset(map(str, kinds)) if isinstance(kinds, list) else None,
        queues=frozenset({place.queue}),
        priorities=frozenset(priorities) if priorities else None,
        allows_external_services=Allowance.EXTERNAL_SERVICES in allows,
        hidden=HIDDEN,
    )


def _schedulers(chosen: str) -> frozenset[str]:
    """Those that pods may name: past one that lets jobs begin, the server's own would pass by its queues."""
    own = SCHEDULER_NAMES.get(chosen)
    return frozenset({own}) if own else frozenset({"", "default-scheduler"})


def _sizes(cluster: Cluster) -> tuple[NodeSize, ...]:
    rows = Node.objects.filter(cluster=cluster, cpus__gt=0, memory_mib__gt=0).exclude(phase=NodePhase.GONE)
    seen = rows.order_by().values_list("instance_type", "gpus", "cpus", "memory_mib", "labels__capacity:efa").distinct()
    return tuple(
        NodeSize(name or "node", gpus, cpus * 1000, memory, int(efa or 0)) for name, gpus, cpus, memory, efa in seen
    )


def check(text: str, cluster: Cluster, team: Team) -> dict[str, Any]:
    """Members of apps.jobs.manifests.ManifestRead; nothing of it is counted while there are problems."""
    manifest = read_manifest(text)
    problems = [
        {"code": p.code, "text": said_text(p.text), "document": p.document, "path": p.path, "line": p.line}
        for p in check_manifest(manifest, policy_of(cluster, team))
    ]
    objects = [f"{doc.kind}/{doc.name}" if doc.name else doc.kind for doc in manifest.documents]
    found: dict[str, Any] = {"problems": problems, "objects": objects}
    if problems:
        return found
    sizes: list[tuple[int, Demand]] = []
    limits: list[int | None] = []
    name = ""
    for doc in manifest.documents:
        try:
            own = [(pods.count, one) for pods, one in counted(doc, manifest) if pods.count]
        except BadValue:
            # The check above has told it already where it matters.
            own = []
        if own:
            name = name or doc.name
            limits.append(_deadline_s(doc))
        sizes += own
    gpus = sum(count * one.gpus for count, one in sizes)
    heavy = [(count, one) for count, one in sizes if one.gpus or not gpus]
    limit_s = (
        None if any(limit is None for limit in limits) else max((s for s in limits if s is not None), default=None)
    )
    return found | {
        "name": name,
        "pods": sum(count for count, _one in sizes),
        "nodes": sum(count for count, _one in heavy),
        "gpus": gpus,
        "gpus_per_node": max((one.gpus for _count, one in heavy), default=0),
        "cpus_per_node": max((ceil(one.cpu_milli / 1000) for _count, one in heavy), default=0),
        "memory_per_node_mib": max((one.memory_mib for _count, one in heavy), default=0),
        "time_limit_min": None if limit_s is None else max(1, ceil(limit_s / 60)),
    }


def _deadline_s(doc: Document) -> int | None:
    """How long the object lets its pods run; None where nothing ends them."""
    values = [at(doc.value, *keys) for keys in _DEADLINES]
    told = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    if told:
        return min(told)
    jobs = [as_map(at(row, "template", "spec")) for row in as_list(at(doc.value, "spec", "replicatedJobs"))]
    inner = [_of_job(job) for job in jobs]
    if not inner or any(value is None for value in inner):
        return None
    return max(value for value in inner if value is not None)


def _of_job(job: Mapping[str, Any]) -> int | None:
    value = job.get("activeDeadlineSeconds")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def shown(text: str) -> str:
    """The manifest for those who may only look: without what its Secrets hold."""
    return without_secrets(text, hidden=HIDDEN)


def marked(text: str, *, job: str, attempt: str, team: str, owner: str, queue: str = "", scheduler: str = KUEUE) -> str:
    """The manifest as it is sent, with the labels of its owner; as it stands where they cannot be added."""
    manifest: Manifest = read_manifest(text)
    if manifest.problem is not None:
        return text
    try:
        names = {"job": job, "attempt": attempt, "team": team, "owner": owner}
        return prepared(manifest, **names, queue=queue, scheduler=scheduler).text
    except Unreadable:
        return text
