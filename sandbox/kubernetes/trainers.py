"""The pretend controllers of Kubeflow: PyTorchJobs as pods with their rendezvous, TrainJobs as JobSets of a runtime."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from sandbox.kubernetes.actors import Actor, condition, finished, is_true, owner_of, with_condition
from sandbox.kubernetes.meeting import has_service, service_of
from sandbox.kubernetes.status import Object
from sandbox.kubernetes.store import Key, Store

_PYTORCH: Final = "pytorchjobs.kubeflow.org"
_TRAIN: Final = "trainjobs.trainer.kubeflow.org"
_MARK: Final = "training.kubeflow.org"
_PORT: Final = 23456


class PyTorchController(Actor):
    """One pod a replica, ranks from the master on; the job ends as its master does."""

    name = "pytorchjob-controller"

    def tick(self) -> None:
        """Visit every job that is not over."""
        for job in self.store.scan(_PYTORCH):
            over = is_true(job, "Succeeded") or is_true(job, "Failed")
            if not over and not job["metadata"].get("deletionTimestamp"):
                self._visit(job)

    def _visit(self, job: Object) -> None:
        metadata, spec, now = job["metadata"], job["spec"], self.now()
        status = with_condition(job.get("status") or {}, "Created", "True", "PyTorchJobCreated", "created", now)
        wanted = _replicas(job)
        found = {name: self.store.get(Key("pods", metadata["namespace"], name)) for name in wanted}
        pods = {name: pod for name, pod in found.items() if pod is not None}
        policy = spec.get("runPolicy") or {}
        limit, begun = policy.get("activeDeadlineSeconds"), status.get("startTime")
        if not policy.get("suspend"):
            status = {"startTime": now, **status}
        if limit is not None and begun and not policy.get("suspend") and self._age_s(begun) >= limit:
            said = f"PyTorchJob {metadata['name']} has failed because it was active longer than specified deadline"
            for pod in pods.values():
                self.delete("pods", pod)
            status = with_condition(status, "Running", "False", "PyTorchJobFailed", said, now)
            status = with_condition(status, "Failed", "True", "PyTorchJobFailed", said, now)
        elif policy.get("suspend"):
            for pod in pods.values():
                self.delete("pods", pod)
            status = with_condition(status, "Suspended", "True", "PyTorchJobSuspended", "suspended", now)
            status = with_condition(status, "Running", "False", "PyTorchJobSuspended", "suspended", now)
            status.pop("startTime", None)
        else:
            if is_true(job, "Suspended"):
                status = with_condition(status, "Suspended", "False", "PyTorchJobResumed", "resumed", now)
            status = self._step(job, status, wanted, pods)
        if status != (job.get("status") or {}):
            self.status(_PYTORCH, job, status)

    def _age_s(self, begun: str) -> float:
        return self.cluster.writer.clock() - datetime.fromisoformat(begun).timestamp()

    def _step(
        self, job: Object, status: Object, wanted: dict[str, tuple[str, Object]], pods: dict[str, Object]
    ) -> Object:
        now, most = self.now(), int((job["spec"].get("runPolicy") or {}).get("backoffLimit", 0))
        for name, (_, body) in wanted.items():
            pod = pods.get(name)
            if pod is None:
                namespace = job["metadata"]["namespace"]
                if not has_service(self.store, namespace, name):
                    self.create(service_of(namespace, name, owner_of(job), body["metadata"]["labels"]))
                self.create(body)
            elif pod["status"].get("phase") == "Failed" and int(status.get("restarts", 0)) < most:
                self.delete("pods", pod, grace_s=0)
                status = {**status, "restarts": int(status.get("restarts", 0)) + 1}
            elif pod["status"].get("phase") == "Failed":
                said = f"PyTorchJob {job['metadata']['name']} is failed because {name} failed"
                status = with_condition(status, "Running", "False", "PyTorchJobFailed", said, now)
                for other in pods.values():
                    if not finished(other):
                        self.delete("pods", other)
                return with_condition(status, "Failed", "True", "PyTorchJobFailed", said, now)
        first = pods.get(next(iter(wanted)))
        if first is not None and first["status"].get("phase") == "Succeeded":
            status = with_condition(status, "Running", "False", "PyTorchJobSucceeded", "succeeded", now)
            if (job["spec"].get("runPolicy") or {}).get("cleanPodPolicy", "None") != "None":
                for other in pods.values():
                    if not finished(other):
                        self.delete("pods", other)
            status = {**status, "completionTime": now}
            return with_condition(status, "Succeeded", "True", "PyTorchJobSucceeded", "succeeded", now)
        if first is not None and first["status"].get("phase") == "Running":
            status = with_condition(status, "Running", "True", "PyTorchJobRunning", "running", now)
        counts: dict[str, dict[str, int]] = {}
        for name, (role, _) in wanted.items():
            phase = (pods.get(name) or {}).get("status", {}).get("phase")
            key = {"Succeeded": "succeeded", "Failed": "failed"}.get(str(phase), "active")
            each = counts.setdefault(role, {})
            each[key] = each.get(key, 0) + 1
        return {**status, "replicaStatuses": counts}


def _replicas(job: Object) -> dict[str, tuple[str, Object]]:
    """The pods by name, the master's first, with the environment of their rank."""
    metadata, specs = job["metadata"], job["spec"]["pytorchReplicaSpecs"]
    roles = [(role, specs[role]) for role in ("Master", "Worker") if role in specs]
    world = sum(int(one.get("replicas", 1)) for _, one in roles)
    specs_of, first = job["spec"], roles[0][0].lower() if roles else "master"
    processes = int(specs_of["nprocPerNode"]) if str(specs_of.get("nprocPerNode", "")).isdigit() else 1
    made: dict[str, tuple[str, Object]] = {}
    for role, one in roles:
        for index in range(int(one.get("replicas", 1))):
            name = f"{metadata['name']}-{role.lower()}-{index}"
            rendezvous = {
                "PYTHONUNBUFFERED": "1",
                "MASTER_ADDR": f"{metadata['name']}-{first}-0",
                "MASTER_PORT": str(_PORT),
                "WORLD_SIZE": str(world * processes),
                "RANK": str(len(made)),
                "PET_MASTER_ADDR": f"{metadata['name']}-{first}-0",
                "PET_MASTER_PORT": str(_PORT),
                "PET_NPROC_PER_NODE": str(specs_of.get("nprocPerNode") or "auto"),
                "PET_NNODES": str(world),
                "PET_NODE_RANK": str(len(made)),
            }
            marks = {
                f"{_MARK}/job-name": metadata["name"],
                f"{_MARK}/replica-type": role.lower(),
                f"{_MARK}/replica-index": str(index),
            }
            body = copy.deepcopy(one["template"])
            head = body.get("metadata") or {}
            told = one.get("restartPolicy", "OnFailure")
            body["spec"]["restartPolicy"] = "Never" if told == "ExitCode" else told
            for container in body["spec"]["containers"]:
                named = {each["name"] for each in container.get("env") or ()}
                more = [{"name": key, "value": value} for key, value in rendezvous.items() if key not in named]
                # Behind the container's own, which therefore cannot refer to them.
                container["env"] = [*(container.get("env") or ()), *more]
            made[name] = (
                role,
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {
                        "name": name,
                        "namespace": metadata["namespace"],
                        "labels": {**(head.get("labels") or {}), **marks},
                        "annotations": head.get("annotations") or {},
                        "ownerReferences": owner_of(job),
                    },
                    "spec": body["spec"],
                },
            )
    return made


class TrainController(Actor):
    """One JobSet of the same name a TrainJob, from its runtime's template with the trainer's wishes laid over it."""

    name = "trainjob-controller"

    def tick(self) -> None:
        """Visit every job that is not over."""
        for job in self.store.scan(_TRAIN):
            over = is_true(job, "Complete") or is_true(job, "Failed")
            if not over and not job["metadata"].get("deletionTimestamp"):
                self._visit(job)

    def _visit(self, job: Object) -> None:
        metadata, now = job["metadata"], self.now()
        status = dict(job.get("status") or {})
        suspend = bool(job["spec"].get("suspend"))
        found = self.store.get(Key("jobsets.jobset.x-k8s.io", metadata["namespace"], metadata["name"]))
        if found is None:
            runtime = runtime_of(job, self.store)
            if runtime is None:
                said = f"the runtime {job['spec']['runtimeRef']['name']} does not exist"
                status = with_condition(status, "Failed", "True", "TrainingRuntimeNotSupported", said, now)
            else:
                self.create(jobset_of(job, runtime))
        elif bool(found["spec"].get("suspend")) != suspend:
            runtime = None if suspend else runtime_of(job, self.store)
            more = {} if runtime is None else {"replicatedJobs": jobset_of(job, runtime)["spec"]["replicatedJobs"]}
            self.edit("jobsets.jobset.x-k8s.io", found, suspend=suspend, **more)
        if suspend:
            status = with_condition(status, "Suspended", "True", "Suspended", "TrainJob is suspended", now)
        elif is_true(job, "Suspended"):
            status = with_condition(status, "Suspended", "False", "Resumed", "TrainJob is resumed", now)
        limit, resumed = job["spec"].get("activeDeadlineSeconds"), condition(status, "Suspended")
        if not suspend and limit is not None:
            begun = metadata["creationTimestamp"] if resumed is None else resumed["lastTransitionTime"]
            age_s = self.cluster.writer.clock() - datetime.fromisoformat(begun).timestamp()
            if age_s >= limit:
                said = "TrainJob exceeded its active deadline"
                status = with_condition(status, "Failed", "True", "DeadlineExceeded", said, now)
                if found is not None:
                    self.delete("jobsets.jobset.x-k8s.io", found)
                self.status(_TRAIN, job, status)
                return
        if found is not None and is_true(found, "Completed"):
            status = with_condition(status, "Complete", "True", "AllJobsCompleted", "completed successfully", now)
        elif found is not None and is_true(found, "Failed"):
            status = with_condition(status, "Failed", "True", "FailedJobs", "failed due to its jobs", now)
        if status != (job.get("status") or {}):
            self.status(_TRAIN, job, status)


def runtime_of(job: Object, store: Store) -> Object | None:
    """The runtime that a TrainJob names, None where there is none."""
    reference = job["spec"]["runtimeRef"]
    if reference.get("kind", "ClusterTrainingRuntime") == "TrainingRuntime":
        namespace = job["metadata"]["namespace"]
        return store.get(Key("trainingruntimes.trainer.kubeflow.org", namespace, reference["name"]))
    return store.get(Key("clustertrainingruntimes.trainer.kubeflow.org", "", reference["name"]))


def jobset_of(job: Object, runtime: Object) -> Object:
    """The JobSet that a TrainJob stands for."""
    metadata, template = job["metadata"], copy.deepcopy(runtime["spec"]["template"])
    trainer = job["spec"].get("trainer") or {}
    patch(template, job["spec"].get("runtimePatches") or ())
    policy = runtime["spec"].get("mlPolicy") or {}
    nodes = int(trainer.get("numNodes") or policy.get("numNodes") or 1)
    for replicated in template["spec"]["replicatedJobs"]:
        head = replicated["template"].get("metadata") or {}
        step = (head.get("labels") or {}).get("trainer.kubeflow.org/trainjob-ancestor-step")
        if step != "trainer" and replicated["name"] != "node":
            continue
        inner = replicated["template"]["spec"]
        inner |= {"completionMode": "Indexed", "parallelism": nodes, "completions": nodes}
        for container in inner["template"]["spec"]["containers"]:
            if container["name"] == "node" or len(inner["template"]["spec"]["containers"]) == 1:
                _lay(container, trainer, nodes, f"{metadata['name']}-{replicated['name']}-0-0.{metadata['name']}")
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {**(job["spec"].get("labels") or {})},
            "annotations": {**(job["spec"].get("annotations") or {})},
            "ownerReferences": owner_of(job),
        },
        "spec": {**template["spec"], "suspend": bool(job["spec"].get("suspend"))},
    }


def patch(template: Object, patches: Iterable[Object]) -> None:
    """Lay the runtimePatches of a TrainJob over its runtime's template, in place; lists of names are merged by name."""
    for one in patches:
        wished = ((one.get("trainingRuntimeSpec") or {}).get("template") or {}).get("spec") or {}
        for replicated in wished.get("replicatedJobs") or ():
            for own in template["spec"]["replicatedJobs"]:
                if own["name"] == replicated["name"]:
                    _merge(own, replicated)


def _merge(old: Object, new: Object) -> None:
    for key, value in new.items():
        here = old.get(key)
        if isinstance(value, dict) and isinstance(here, dict):
            _merge(here, value)
        elif isinstance(value, list) and isinstance(here, list) and all(_named(each) for each in [*value, *here]):
            for each in value:
                same = next((one for one in here if one["name"] == each["name"]), None)
                if same is None:
                    here.append(copy.deepcopy(each))
                else:
                    _merge(same, each)
        else:
            old[key] = copy.deepcopy(value)


def _named(thing: Any) -> bool:
    return isinstance(thing, dict) and "name" in thing


def _lay(container: Object, trainer: Object, nodes: int, master: str) -> None:
    for name in ("image", "command", "args"):
        if name in trainer:
            container[name] = trainer[name]
    if "resourcesPerNode" in trainer:
        container["resources"] = trainer["resourcesPerNode"]
    rank: Any = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    told = [
        {"name": "PET_NNODES", "value": str(nodes)},
        {"name": "PET_NPROC_PER_NODE", "value": str(trainer.get("numProcPerNode") or "auto")},
        {"name": "PET_NODE_RANK", "valueFrom": rank},
        {"name": "PET_MASTER_ADDR", "value": master},
        {"name": "PET_MASTER_PORT", "value": "29500"},
    ]
    own = trainer.get("env") or []
    taken = {one["name"] for one in own}
    before = [one for one in container.get("env") or () if one["name"] not in taken]
    container["env"] = [*before, *told, *own]
