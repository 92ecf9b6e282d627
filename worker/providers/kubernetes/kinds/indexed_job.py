"""A workload as an Indexed Job: one pod a node, or one a task of an array."""

from __future__ import annotations

from typing import Any

from worker.providers.kubernetes import queueing, rendezvous, start
from worker.providers.kubernetes.names import object_name
from worker.providers.kubernetes.pods import pod_template
from worker.providers.workload_values import WorkloadSpec

#: The label by which the Job's own pods are found.
JOB_NAME = "batch.kubernetes.io/job-name"


def objects(spec: WorkloadSpec) -> tuple[dict[str, Any], ...]:
    """The Job, and for several nodes the Service that gives the pods their names."""
    name = object_name(spec.uid)
    is_gang = spec.nodes > 1
    found: list[dict[str, Any]] = []
    meeting: list[dict[str, Any]] = []
    if not spec.array:
        meeting = rendezvous.by_index(spec, f"{name}-0.{name}" if is_gang else "localhost")
    body: dict[str, Any] = {
        "suspend": queueing.starts_suspended(spec),
        "completionMode": "Indexed",
        "completions": len(spec.array) or spec.nodes,
        "parallelism": spec.pods,
        **_failures(spec),
        "podReplacementPolicy": "Failed",
        "template": pod_template(spec, meeting, subdomain=name if is_gang else ""),
    }
    if not spec.array:
        body["activeDeadlineSeconds"] = spec.time_limit_min * 60
    else:
        # Each task has its own time, as in Slurm; the Job as a whole waits for all its rounds.
        body["template"]["spec"]["activeDeadlineSeconds"] = spec.time_limit_min * 60
    found.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": queueing.workload_metadata(spec), "spec": body})
    if spec.array:
        # Kueue's limit is the whole Job's, an array's is each task's.
        found[0]["metadata"]["labels"].pop(queueing.MAX_SECONDS, None)
    if is_gang:
        found.append(start.service(spec, {JOB_NAME: name}))
    return tuple(found)


def _failures(spec: WorkloadSpec) -> dict[str, Any]:
    """A gang fails with its first pod; a task of an array alone."""
    if spec.array:
        return {"backoffLimitPerIndex": spec.max_restarts, "maxFailedIndexes": len(spec.array)}
    return {"backoffLimit": spec.max_restarts}
