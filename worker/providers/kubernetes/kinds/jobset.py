"""A workload as a JobSet: one replicated Job of indexed pods, started again as a whole."""

from __future__ import annotations

from typing import Any

from worker.providers.kubernetes import queueing, rendezvous
from worker.providers.kubernetes.names import object_name
from worker.providers.kubernetes.pods import pod_template
from worker.providers.workload_values import WorkloadSpec

#: The replicated Job's name, also its container's for a TrainJob.
NODE = "node"


def objects(spec: WorkloadSpec) -> tuple[dict[str, Any], ...]:
    """The JobSet; it makes its own headless Service."""
    name = object_name(spec.uid)
    meeting = [] if spec.array else rendezvous.by_index(spec, master(name))
    found = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": queueing.workload_metadata(spec),
        "spec": {"suspend": queueing.starts_suspended(spec), **body(spec, meeting)},
    }
    return (found,)


def master(name: str) -> str:
    """Where the first pod of the replicated Job answers."""
    return f"{name}-{NODE}-0-0.{name}"


def body(
    spec: WorkloadSpec,
    meeting: list[dict[str, Any]],
    job_labels: dict[str, str] | None = None,
    *,
    is_runtime: bool = False,
) -> dict[str, Any]:
    """The JobSet's spec without ``suspend``. ``is_runtime``: as the template of a TrainJob, which brings the nodes."""
    job: dict[str, Any] = {
        "backoffLimit": 0,
        "completionMode": "Indexed",
        "podReplacementPolicy": "Failed",
        "template": pod_template(spec, meeting, name=NODE),
    }
    if not is_runtime:
        job |= {"completions": spec.nodes, "parallelism": spec.nodes, "activeDeadlineSeconds": spec.time_limit_min * 60}
    template: dict[str, Any] = {"spec": job}
    if job_labels:
        template["metadata"] = {"labels": job_labels}
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        # The pods of a gang are remade only when all old ones are gone, so no rank meets one of the past.
        "failurePolicy": {"maxRestarts": spec.max_restarts, "restartStrategy": "BlockingRecreate"},
        "successPolicy": {"operator": "All"},
        "replicatedJobs": [{"name": NODE, "replicas": 1, "template": template}],
    }
