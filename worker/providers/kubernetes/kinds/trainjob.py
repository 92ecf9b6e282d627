"""A workload as a TrainJob of Kubeflow Trainer (v2), with a runtime of its own or a cluster's."""

from __future__ import annotations

from typing import Any

from worker.providers.kubernetes import pods, queueing, rendezvous
from worker.providers.kubernetes.kinds import jobset
from worker.providers.kubernetes.names import object_name
from worker.providers.kubernetes.start import metadata
from worker.providers.workload_values import WorkloadSpec

API = "trainer.kubeflow.org/v1alpha1"
#: Marks the replicated Job that trains.
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
#: Who the patches of a cluster's runtime are by.
MANAGER = "quarterdeck.dev/portal"


def objects(spec: WorkloadSpec) -> tuple[dict[str, Any], ...]:
    """The TrainJob; before it the TrainingRuntime it refers to, unless the cluster has the runtime."""
    name = object_name(spec.uid)
    meeting = rendezvous.by_trainer(spec, jobset.master(name))
    body: dict[str, Any] = {
        "suspend": queueing.starts_suspended(spec),
        "activeDeadlineSeconds": spec.time_limit_min * 60,
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": name},
        "trainer": {
            "numNodes": spec.nodes,
            "numProcPerNode": spec.processes,
            "image": spec.image,
            "command": pods.command(spec),
            "resourcesPerNode": pods.resources(spec),
        },
    }
    found = {"apiVersion": API, "kind": "TrainJob", "metadata": queueing.workload_metadata(spec), "spec": body}
    if spec.runtime:
        body["runtimeRef"] |= {"kind": "ClusterTrainingRuntime", "name": spec.runtime}
        body["trainer"]["env"] = pods.environment(spec, meeting)
        body["runtimePatches"] = [_patch(spec)]
        return (found,)
    runtime = {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        "metadata": metadata(spec, labels={"trainer.kubeflow.org/framework": "torch"}),
        "spec": {
            "mlPolicy": {"numNodes": spec.nodes, "torch": {}},
            "template": {"spec": jobset.body(spec, meeting, STEP, is_runtime=True)},
        },
    }
    return (runtime, found)


def _patch(spec: WorkloadSpec) -> dict[str, Any]:
    """What a cluster's runtime does not know: labels, places, volumes, the time for a checkpoint."""
    whole = pods.pod_template(spec, [], name=jobset.NODE)
    kept = ("affinity", "imagePullSecrets", "nodeSelector", "serviceAccountName", "tolerations", "volumes")
    inner: dict[str, Any] = {key: whole["spec"][key] for key in kept if key in whole["spec"]}
    inner["terminationGracePeriodSeconds"] = spec.grace_s
    if mounts := whole["spec"]["containers"][0].get("volumeMounts"):
        inner["containers"] = [{"name": jobset.NODE, "volumeMounts": mounts}]
    job = {"name": jobset.NODE, "template": {"spec": {"template": {"metadata": whole["metadata"], "spec": inner}}}}
    return {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}
