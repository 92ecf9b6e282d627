"""How a workload waits for its turn: by Kueue, by the portal itself, or as a pod group of another scheduler."""

from __future__ import annotations

from typing import Any

from worker.providers.kubernetes.names import object_name
from worker.providers.kubernetes.pods import HYPERPOD_RESUME, HYPERPOD_RETRIES, KAI_QUEUE, SCHEDULER_NAMES
from worker.providers.kubernetes.start import metadata
from worker.providers.workload_values import KAI, KUEUE, PLAIN, VOLCANO, WorkloadSpec

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
MAX_SECONDS = "kueue.x-k8s.io/max-exec-time-seconds"


def starts_suspended(spec: WorkloadSpec) -> bool:
    """Under Kueue and under the portal itself nothing begins before all of it may; other schedulers hold pods back."""
    return spec.scheduler in (KUEUE, PLAIN)


def workload_metadata(spec: WorkloadSpec) -> dict[str, Any]:
    """Metadata of the object that is the workload: with its queue, priority and time, and HyperPod's wishes."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    if spec.scheduler == KUEUE and spec.queue:
        labels[QUEUE] = spec.queue
        labels[MAX_SECONDS] = str(spec.time_limit_min * 60)
        if spec.priority_class:
            labels[PRIORITY] = spec.priority_class
    if spec.auto_resume_retries:
        annotations[HYPERPOD_RESUME] = "true"
        annotations[HYPERPOD_RETRIES] = str(spec.auto_resume_retries)
    return metadata(spec, labels=labels, annotations=annotations)


def pods_in_queue(scheduler: str, queue: str) -> dict[str, Any]:
    """What a template of pods says so that a scheduler other than the server's takes them, from the team's queue."""
    if scheduler not in SCHEDULER_NAMES:
        return {}
    found: dict[str, Any] = {"spec": {"schedulerName": SCHEDULER_NAMES[scheduler]}}
    if queue and scheduler == KAI:
        found["metadata"] = {"labels": {KAI_QUEUE: queue}}
    if queue and scheduler == VOLCANO:
        found["metadata"] = {"annotations": {VOLCANO_QUEUE: queue}}
    return found


def pod_group(spec: WorkloadSpec) -> dict[str, Any] | None:
    """The gang as Volcano or KAI knows it; None under Kueue and the portal itself."""
    if spec.scheduler not in SCHEDULER_NAMES:
        return None
    gang = 1 if spec.array else spec.nodes
    wishes: dict[str, Any] = {"minMember": gang, "queue": spec.queue or "default"}
    if spec.pod_priority_class:
        wishes["priorityClassName"] = spec.pod_priority_class
    versions = {VOLCANO: "scheduling.volcano.sh/v1beta1", KAI: "scheduling.run.ai/v2alpha2"}
    return {
        "apiVersion": versions[spec.scheduler],
        "kind": "PodGroup",
        "metadata": {**metadata(spec), "name": object_name(spec.uid)},
        "spec": wishes,
    }
