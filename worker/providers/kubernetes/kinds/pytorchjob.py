"""A workload as a PyTorchJob of Kubeflow's training operator (v1): a master and its workers."""

from __future__ import annotations

from typing import Any

from worker.providers.kubernetes import queueing, rendezvous
from worker.providers.kubernetes.pods import pod_template
from worker.providers.workload_values import WorkloadSpec

#: The operator looks for a container of this name and gives it the rendezvous.
CONTAINER = "pytorch"


def objects(spec: WorkloadSpec) -> tuple[dict[str, Any], ...]:
    """The PyTorchJob; the operator makes a Service for each pod."""
    retries = spec.auto_resume_retries or spec.max_restarts
    policy = "OnFailure" if retries else "Never"

    def replicas(count: int) -> dict[str, Any]:
        template = pod_template(spec, rendezvous.by_operator(spec), name=CONTAINER, grouped=spec.nodes > 1)
        # The operator sets the pods' policy from the replica's and warns of another.
        template["spec"].pop("restartPolicy")
        return {"replicas": count, "restartPolicy": policy, "template": template}

    roles = {"Master": replicas(1)}
    if spec.nodes > 1:
        roles["Worker"] = replicas(spec.nodes - 1)
    found = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": queueing.workload_metadata(spec),
        "spec": {
            "nprocPerNode": str(spec.processes),
            "runPolicy": {
                "suspend": queueing.starts_suspended(spec),
                "activeDeadlineSeconds": spec.time_limit_min * 60,
                "backoffLimit": retries,
                # The pods stay until the portal has read their ends and logs; the sweep deletes the whole.
                "cleanPodPolicy": "Running",
            },
            "pytorchReplicaSpecs": roles,
        },
    }
    return (found,)
