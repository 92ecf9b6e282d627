"""The pretend controllers of batch/v1 Jobs, indexed or not, and of JobSets with their restarts."""

from __future__ import annotations

import copy
from collections import Counter
from datetime import datetime
from typing import Any, Final

from sandbox.kubernetes.actors import Actor, finished, is_true, owner_of, with_condition
from sandbox.kubernetes.meeting import has_service, service_of
from sandbox.kubernetes.status import Object
from sandbox.kubernetes.store import Key

_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_JOBSET: Final = "jobsets.jobset.x-k8s.io"
_SET: Final = "jobset.sigs.k8s.io"


def ranges(indexes: set[int]) -> str:
    """Indexes as a job's status writes them: ``0-2,5``."""
    parts: list[str] = []
    begin = end = -2
    for index in [*sorted(indexes), -1]:
        if index == end + 1 and index >= 0:
            end = index
            continue
        if begin >= 0:
            parts.append(str(begin) if begin == end else f"{begin}-{end}" if end > begin + 1 else f"{begin},{end}")
        begin = end = index
    return ",".join(parts)


class JobController(Actor):
    """Makes, replaces and counts the pods of jobs."""

    name = "job-controller"

    def tick(self) -> None:
        """Visit every job that is not over."""
        pods: dict[str, list[Object]] = {}
        for pod in self.store.scan("pods"):
            for owner in pod["metadata"].get("ownerReferences") or ():
                pods.setdefault(owner["uid"], []).append(pod)
        for job in self.store.scan("jobs.batch"):
            if job["metadata"].get("deletionTimestamp") or is_true(job, "Complete") or is_true(job, "Failed"):
                continue
            self._visit(job, pods.get(job["metadata"]["uid"], []))

    def _visit(self, job: Object, pods: list[Object]) -> None:
        spec, status = job["spec"], dict(job.get("status") or {})
        living = [pod for pod in pods if not finished(pod)]
        active = [pod for pod in living if not pod["metadata"].get("deletionTimestamp")]
        # Replaced only once they have ended, or as soon as they are told to.
        busy_pods = living if spec.get("podReplacementPolicy") == "Failed" else active
        if spec.get("suspend"):
            for pod in active:
                self.delete("pods", pod)
            status = with_condition(status, "Suspended", "True", "JobSuspended", "Job suspended", self.now())
            status.pop("startTime", None)
            status = {**status, "active": 0, "ready": 0}
            self._tell(job, status)
            return
        if is_true(job, "Suspended"):
            status = with_condition(status, "Suspended", "False", "JobResumed", "Job resumed", self.now())
        status.setdefault("startTime", self.now())
        failed = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Failed"]
        succeeded = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Succeeded"]
        indexed = spec.get("completionMode") == "Indexed"
        done = {_index(pod) for pod in succeeded} if indexed else set()
        status["failed"] = max(int(status.get("failed", 0)), len(failed))
        status["succeeded"] = len(done) if indexed else len(succeeded)
        status["ready"] = sum((pod.get("status") or {}).get("phase") == "Running" for pod in active)
        if indexed:
            status["completedIndexes"] = ranges(done)
        given_up: set[int] = set()
        if indexed and spec.get("backoffLimitPerIndex") is not None:
            tries = Counter(_index(pod) for pod in failed)
            given_up = {index for index, count in tries.items() if count > spec["backoffLimitPerIndex"]} - done
            status["failedIndexes"] = ranges(given_up)
        wanted = spec.get("completions")
        if self._over(job, status, active, wanted, given_up):
            return
        parallel = int(spec.get("parallelism", 1))
        if wanted is not None:
            parallel = min(parallel, int(wanted) - status["succeeded"] - len(given_up))
        elif succeeded:
            parallel = 0
        if indexed:
            busy = {_index(pod) for pod in busy_pods} | done | given_up
            free = [index for index in range(int(wanted or 0)) if index not in busy]
            for index in free[: max(0, parallel - len(busy_pods))]:
                self.create(self._pod(job, index))
        else:
            for _ in range(max(0, parallel - len(busy_pods))):
                self.create(self._pod(job, None))
        for pod in active[max(0, parallel) :]:
            self.delete("pods", pod)
        status["active"] = max(0, parallel)
        self._tell(job, status)

    def _over(self, job: Object, status: Object, active: list[Object], wanted: Any, given_up: set[int]) -> bool:
        spec, now = job["spec"], self.now()
        reason = ""
        most = spec.get("maxFailedIndexes")
        if status["failed"] > spec.get("backoffLimit", 6):
            reason, said = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        elif (limit := spec.get("activeDeadlineSeconds")) is not None:
            begun = datetime.fromisoformat(status["startTime"]).timestamp()
            if self.cluster.writer.clock() - begun >= limit:
                reason, said = "DeadlineExceeded", "Job was active longer than specified deadline"
        if not reason and most is not None and len(given_up) > most:
            reason, said = "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
        elif not reason and given_up and wanted is not None and len(given_up) + status["succeeded"] >= wanted:
            reason, said = "FailedIndexes", "Job has failed indexes"
        if reason:
            for pod in active:
                self.delete("pods", pod)
            status = with_condition(status, "FailureTarget", "True", reason, said, now)
            self._tell(job, {**with_condition(status, "Failed", "True", reason, said, now), "active": 0, "ready": 0})
            self.event(job, "Warning", reason, said)
            return True
        enough = status["succeeded"] >= wanted if wanted is not None else status["succeeded"] > 0 and not active
        if not enough:
            return False
        said = "Reached expected number of succeeded pods"
        for kind in ("SuccessCriteriaMet", "Complete"):
            status = with_condition(status, kind, "True", "CompletionsReached", said, now)
        self._tell(job, {**status, "active": 0, "ready": 0, "completionTime": now})
        self.event(job, "Normal", "Completed", "Job completed")
        return True

    def _tell(self, job: Object, status: Object) -> None:
        if status != (job.get("status") or {}):
            self.status("jobs.batch", job, status)

    @staticmethod
    def _pod(job: Object, index: int | None) -> Object:
        metadata, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
        spec, head = template["spec"], template.get("metadata") or {}
        labels = dict(head.get("labels") or {})
        annotations = dict(head.get("annotations") or {})
        prefix = metadata["name"]
        if index is not None:
            labels[_INDEX] = annotations[_INDEX] = str(index)
            prefix = f"{prefix}-{index}"
            spec.setdefault("hostname", prefix[:63])
            for container in [*spec["containers"], *(spec.get("initContainers") or ())]:
                container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": f"{prefix[:57]}-",
                "namespace": metadata["namespace"],
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": owner_of(job),
            },
            "spec": spec,
        }


def _index(pod: Object) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(_INDEX, -1))


class JobSetController(Actor):
    """Makes the jobs of JobSets, and makes them anew while restarts are left."""

    name = "jobset-controller"

    def tick(self) -> None:
        """Visit every JobSet that is not over."""
        for thing in self.store.scan(_JOBSET):
            metadata = thing["metadata"]
            if metadata.get("deletionTimestamp") or is_true(thing, "Completed") or is_true(thing, "Failed"):
                continue
            self._visit(thing)

    def _visit(self, thing: Object) -> None:
        metadata, spec = thing["metadata"], thing["spec"]
        status = dict(thing.get("status") or {})
        restarts = int(status.get("restarts", 0))
        wanted = list(self._jobs(thing, restarts))
        jobs: list[Object] = []
        network = spec.get("network") or {}
        if network.get("enableDNSHostnames", True):
            name = network.get("subdomain") or metadata["name"]
            if not has_service(self.store, metadata["namespace"], name):
                selector = {f"{_SET}/jobset-name": metadata["name"]}
                self.create(service_of(metadata["namespace"], name, owner_of(thing), selector))
        blocked = (spec.get("failurePolicy") or {}).get("restartStrategy") == "BlockingRecreate" and restarts > 0
        if blocked and self._of_the_past(thing, restarts):
            return
        for job in wanted:
            name = job["metadata"]["name"]
            found = self.store.get(Key("jobs.batch", metadata["namespace"], name))
            if found is None:
                self.create(job)
            elif (found["metadata"].get("labels") or {}).get(f"{_SET}/restart-attempt") != str(restarts):
                self.delete("jobs.batch", found)
            else:
                jobs.append(found)
                if bool(found["spec"].get("suspend")) != bool(spec.get("suspend")):
                    # Where the pods may stand is known only when the whole is let begin.
                    template = copy.deepcopy(found["spec"]["template"])
                    for field in ("nodeSelector", "tolerations"):
                        value = job["spec"]["template"]["spec"].get(field)
                        template["spec"].pop(field, None)
                        template["spec"] |= {field: value} if value else {}
                    more = {"template": template} if found["spec"].get("suspend") else {}
                    self.edit("jobs.batch", found, suspend=bool(spec.get("suspend")), **more)
        now = self.now()
        broken = next((job for job in jobs if is_true(job, "Failed")), None)
        if broken is not None:
            most = int((spec.get("failurePolicy") or {}).get("maxRestarts", 0))
            if restarts < most:
                status["restarts"] = restarts + 1
            else:
                said = f"jobset failed due to one or more job failures (first failed job: {broken['metadata']['name']})"
                status = with_condition(status, "Failed", "True", "FailedJobs", said, now)
                status["terminalState"] = "Failed"
        elif len(jobs) == len(wanted) and all(is_true(job, "Complete") for job in jobs):
            said = "jobset completed successfully"
            status = with_condition(status, "Completed", "True", "AllJobsCompleted", said, now)
            status["terminalState"] = "Completed"
        elif spec.get("suspend"):
            status = with_condition(status, "Suspended", "True", "SuspendedJobs", "jobset is suspended", now)
        elif is_true(thing, "Suspended"):
            status = with_condition(status, "Suspended", "False", "ResumeJobs", "jobset is resumed", now)
        status.setdefault("restarts", restarts)
        if status != (thing.get("status") or {}):
            self.status(_JOBSET, thing, status)

    def _of_the_past(self, thing: Object, restarts: int) -> bool:
        """Whether jobs or pods of earlier tries are still there; the jobs are told to go."""
        metadata, found = thing["metadata"], False
        for resource in ("jobs.batch", "pods"):
            for one in self.store.scan(resource, metadata["namespace"]):
                labels = one["metadata"].get("labels") or {}
                if labels.get(f"{_SET}/jobset-name") != metadata["name"]:
                    continue
                if labels.get(f"{_SET}/restart-attempt") != str(restarts):
                    found = True
                    if resource == "jobs.batch":
                        self.delete(resource, one)
        return found

    @staticmethod
    def _jobs(thing: Object, restarts: int) -> list[Object]:
        metadata, made = thing["metadata"], []
        for replicated in thing["spec"]["replicatedJobs"]:
            for index in range(int(replicated.get("replicas", 1))):
                name = f"{metadata['name']}-{replicated['name']}-{index}"
                template = copy.deepcopy(replicated["template"])
                marks = {
                    f"{_SET}/jobset-name": metadata["name"],
                    f"{_SET}/replicatedjob-name": replicated["name"],
                    f"{_SET}/job-index": str(index),
                    f"{_SET}/restart-attempt": str(restarts),
                }
                head = template.get("metadata") or {}
                pod = template["spec"]["template"]
                pod.setdefault("metadata", {}).setdefault("labels", {}).update(marks)
                network = thing["spec"].get("network") or {}
                pod["spec"].setdefault("subdomain", network.get("subdomain") or metadata["name"])
                made.append(
                    {
                        "apiVersion": "batch/v1",
                        "kind": "Job",
                        "metadata": {
                            "name": name,
                            "namespace": metadata["namespace"],
                            "labels": {**(head.get("labels") or {}), **marks},
                            "annotations": head.get("annotations") or {},
                            "ownerReferences": owner_of(thing),
                        },
                        "spec": {**template["spec"], "suspend": bool(thing["spec"].get("suspend"))},
                    }
                )
        return made
