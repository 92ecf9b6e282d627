"""The pod template that all kinds share: devices, memory, environment, where the pods may stand and when they end."""

from __future__ import annotations

from typing import Any

from worker.providers.kubernetes import efa, start
from worker.providers.kubernetes.names import annotations_of, labels_of, object_name
from worker.providers.kubernetes.rendezvous import field, plain
from worker.providers.workload_values import KAI, VOLCANO, WorkloadSpec

#: HyperPod's label of nodes on which work may be put.
HYPERPOD_HEALTH = "sagemaker.amazonaws.com/node-health-status"
HYPERPOD_RESUME = "sagemaker.amazonaws.com/enable-job-auto-resume"
HYPERPOD_RETRIES = "sagemaker.amazonaws.com/job-max-retry-count"
TOPOLOGY_REQUIRED = "kueue.x-k8s.io/podset-required-topology"
TOPOLOGY_PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"
TOPOLOGY_GROUP = "kueue.x-k8s.io/podset-group-name"
KAI_QUEUE = "kai.scheduler/queue"
VOLCANO_GROUP, KAI_GROUP = "scheduling.k8s.io/group-name", "pod-group-name"
SCHEDULER_NAMES = {VOLCANO: "volcano", KAI: "kai-scheduler"}
#: Nodes with GPUs are kept for those who ask for them.
GPU_TAINT = {"key": efa.GPU, "operator": "Exists", "effect": "NoSchedule"}
_SHM, _FILES = "shm", "quarterdeck"


def efa_count(spec: WorkloadSpec) -> int:
    """EFA devices of each pod: as asked, else all of the node's, where several nodes talk to each other."""
    if spec.efa_per_node is not None:
        return spec.efa_per_node
    return efa.efa_of(spec.instance_types) if spec.nodes > 1 and not spec.array else 0


def resources(spec: WorkloadSpec) -> dict[str, Any]:
    """Requests and limits of a pod. The CPU has no limit, for a limit throttles even on an idle node."""
    count = efa_count(spec)
    pages = spec.hugepages_mib if spec.hugepages_mib is not None else (efa.HUGEPAGES_MIB if count else 0)
    same: dict[str, str] = {}
    if spec.memory_mib:
        same["memory"] = f"{spec.memory_mib}Mi"
    if spec.gpus_per_node:
        same[efa.GPU] = str(spec.gpus_per_node)
    if count:
        same[efa.EFA] = str(count)
    if pages:
        same[efa.HUGEPAGES] = f"{pages}Mi"
    found: dict[str, Any] = {"requests": {"cpu": str(spec.cpus_per_node), **same}}
    return {**found, "limits": dict(same)} if same else found


def _shm(spec: WorkloadSpec) -> dict[str, Any] | None:
    """The pod's shared memory: what it holds counts as the pod's memory, so half unless asked otherwise."""
    size = spec.shm_mib
    if size is None:
        size = spec.memory_mib // 2 if spec.gpus_per_node else 0
        if not size and not spec.gpus_per_node:
            return None
    elif not size:
        return None
    return {"name": _SHM, "emptyDir": {"medium": "Memory", **({"sizeLimit": f"{size}Mi"} if size else {})}}


def volumes(spec: WorkloadSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The pod's volumes, and where the container has them."""
    found: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if shm := _shm(spec):
        found.append(shm)
        mounts.append({"name": _SHM, "mountPath": "/dev/shm"})  # noqa: S108
    if start.needs_files(spec):
        found.append({"name": _FILES, "configMap": {"name": object_name(spec.uid), "defaultMode": 0o555}})
        mounts.append({"name": _FILES, "mountPath": start.FOLDER, "readOnly": True})
    for number, mount in enumerate(spec.mounts):
        # A volume each, for in a TrainJob's patches the mounts are told apart by their volume.
        name = f"claim-{number}"
        found.append({"name": name, "persistentVolumeClaim": {"claimName": mount.claim}})
        row: dict[str, Any] = {"name": name, "mountPath": mount.path}
        if mount.sub_path:
            row["subPath"] = mount.sub_path
        if mount.is_read_only:
            row["readOnly"] = True
        mounts.append(row)
    return found, mounts


def environment(spec: WorkloadSpec, rendezvous: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All variables: the network's defaults, then the person's, then ours, which no one can set otherwise."""
    network = efa.network_environment(efa_count(spec), spec.instance_types, spec.nodes)
    clear: dict[str, str] = {"PYTHONUNBUFFERED": "1", **network, **spec.environment}
    ours = {"QD_JOB": spec.job_uid, "QD_ATTEMPT": spec.uid}
    if spec.array:
        ours["QD_ARRAY_TASKS"] = " ".join(str(number) for number in spec.array)
    reserved = {row["name"] for row in rendezvous} | set(ours) | set(spec.secret_environment) | {"QD_NODE_NAME"}
    found = plain({name: value for name, value in clear.items() if name not in reserved})
    found += plain(ours)
    found.append({"name": "QD_NODE_NAME", **field("spec.nodeName")})
    for name in spec.secret_environment:
        reference = {"name": object_name(spec.uid), "key": name}
        found.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    return found + rendezvous


def command(spec: WorkloadSpec) -> list[str]:
    """What the container starts."""
    return ["/bin/sh", f"{start.FOLDER}/start"] if start.needs_files(spec) else list(spec.command)


def container(spec: WorkloadSpec, name: str, rendezvous: list[dict[str, Any]]) -> dict[str, Any]:
    """The one container of a pod."""
    found: dict[str, Any] = {
        "name": name,
        "image": spec.image,
        "command": command(spec),
        "env": environment(spec, rendezvous),
        "resources": resources(spec),
    }
    if mounts := volumes(spec)[1]:
        found["volumeMounts"] = mounts
    return found


def tolerations(spec: WorkloadSpec) -> list[dict[str, Any]]:
    """The taints of GPU nodes, and those of the queue's or the person's choice."""
    found: list[dict[str, Any]] = [dict(GPU_TAINT)] if spec.gpus_per_node else []
    for wish in spec.tolerations:
        row = {"key": wish.key, "operator": "Equal", "value": wish.value} if wish.value else None
        row = row or {"key": wish.key, "operator": "Exists"}
        if wish.effect:
            row["effect"] = wish.effect
        if row not in found:
            found.append(row)
    return found


def placement(spec: WorkloadSpec) -> dict[str, Any]:
    """Which nodes: by type, never those that failed this job, and on HyperPod only healthy ones."""
    found: dict[str, Any] = {}
    selector: dict[str, str] = {}
    terms: list[dict[str, Any]] = []
    if len(spec.instance_types) == 1:
        selector["node.kubernetes.io/instance-type"] = spec.instance_types[0]
    elif spec.instance_types:
        terms.append(_among("node.kubernetes.io/instance-type", "In", spec.instance_types))
    if spec.excluded_nodes:
        terms.append(_among("kubernetes.io/hostname", "NotIn", spec.excluded_nodes))
    if spec.auto_resume_retries:
        selector[HYPERPOD_HEALTH] = "Schedulable"
    if selector:
        found["nodeSelector"] = selector
    if terms:
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        found["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    if taints := tolerations(spec):
        found["tolerations"] = taints
    return found


def _among(key: str, operator: str, values: tuple[str, ...]) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def pod_annotations(spec: WorkloadSpec, *, grouped: bool = False) -> dict[str, str]:
    """Annotations of the pods; ``grouped``: the kind has two sets of pods, which belong into one domain together."""
    found = annotations_of(spec)
    if spec.topology and not spec.array:
        found[TOPOLOGY_REQUIRED if spec.topology.is_required else TOPOLOGY_PREFERRED] = spec.topology.level
        if grouped:
            found[TOPOLOGY_GROUP] = object_name(spec.uid)
    if spec.scheduler == VOLCANO:
        found[VOLCANO_GROUP] = object_name(spec.uid)
    if spec.scheduler == KAI:
        found[KAI_GROUP] = object_name(spec.uid)
    return found


def pod_labels(spec: WorkloadSpec) -> dict[str, str]:
    """Labels of the pods."""
    return labels_of(spec) | ({KAI_QUEUE: spec.queue} if spec.scheduler == KAI and spec.queue else {})


def pod_spec(spec: WorkloadSpec, rendezvous: list[dict[str, Any]], *, name: str, subdomain: str = "") -> dict[str, Any]:
    """The pod's spec. Nothing is started again in place: a rank alone cannot rejoin its gang."""
    found: dict[str, Any] = {"restartPolicy": "Never"}
    if subdomain:
        found["subdomain"] = subdomain
    if spec.scheduler in SCHEDULER_NAMES:
        found["schedulerName"] = SCHEDULER_NAMES[spec.scheduler]
    if spec.pod_priority_class:
        found["priorityClassName"] = spec.pod_priority_class
    if spec.service_account:
        found["serviceAccountName"] = spec.service_account
    if spec.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": secret} for secret in spec.image_pull_secrets]
    found |= {"automountServiceAccountToken": bool(spec.service_account), "terminationGracePeriodSeconds": spec.grace_s}
    found |= placement(spec)
    found["containers"] = [container(spec, name, rendezvous)]
    if kept := volumes(spec)[0]:
        found["volumes"] = kept
    return found


def pod_template(
    spec: WorkloadSpec,
    rendezvous: list[dict[str, Any]],
    *,
    name: str = "main",
    subdomain: str = "",
    grouped: bool = False,
) -> dict[str, Any]:
    """The whole template."""
    return {
        "metadata": {"labels": pod_labels(spec), "annotations": pod_annotations(spec, grouped=grouped)},
        "spec": pod_spec(spec, rendezvous, name=name, subdomain=subdomain),
    }
