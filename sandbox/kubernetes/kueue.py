"""The pretend Kueue: a Workload for each queued job, admitted by quota, borrowed or preempted for where allowed."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sandbox.kubernetes.actors import Actor, is_true, owner_of, with_condition
from sandbox.kubernetes.conversion import converted
from sandbox.kubernetes.kueue_flavors import laid, placed, unsuited
from sandbox.kubernetes.placing import requests_of
from sandbox.kubernetes.quantities import quantity, written
from sandbox.kubernetes.status import Object
from sandbox.kubernetes.store import Key, Store
from sandbox.kubernetes.trainers import jobset_of, runtime_of

GROUP: Final = "kueue.x-k8s.io"
QUEUE: Final = f"{GROUP}/queue-name"
_WORKLOADS: Final = f"workloads.{GROUP}"
Amounts = dict[tuple[str, str], Decimal]


def _job_sets(job: Object, _: Store) -> list[tuple[str, int, Object]]:
    return [("main", int(job["spec"].get("parallelism", 1)), job["spec"]["template"])]


def _jobset_sets(thing: Object, _: Store) -> list[tuple[str, int, Object]]:
    found = []
    for one in thing["spec"]["replicatedJobs"]:
        inner = one["template"]["spec"]
        count = int(one.get("replicas", 1)) * int(inner.get("parallelism", 1))
        found.append((one["name"], count, inner["template"]))
    return found


def _pytorch_sets(thing: Object, _: Store) -> list[tuple[str, int, Object]]:
    replicas = thing["spec"]["pytorchReplicaSpecs"]
    return [(role.lower(), int(one.get("replicas", 1)), one["template"]) for role, one in sorted(replicas.items())]


def _train_sets(job: Object, store: Store) -> list[tuple[str, int, Object]]:
    runtime = runtime_of(job, store)
    return [] if runtime is None else _jobset_sets(jobset_of(job, runtime), store)


@dataclass(frozen=True)
class Queued:
    """A kind that Kueue holds back: its pod sets, where it says ``suspend``, and the conditions that end it."""

    resource: str
    short: str
    pod_sets: Callable[[Object, Store], list[tuple[str, int, Object]]]
    suspend: tuple[str, ...]
    done: str
    failed: str


KINDS: Final = (
    Queued("jobs.batch", "job", _job_sets, ("suspend",), "Complete", "Failed"),
    Queued("jobsets.jobset.x-k8s.io", "jobset", _jobset_sets, ("suspend",), "Completed", "Failed"),
    Queued("pytorchjobs.kubeflow.org", "pytorchjob", _pytorch_sets, ("runPolicy", "suspend"), "Succeeded", "Failed"),
    Queued("trainjobs.trainer.kubeflow.org", "trainjob", _train_sets, ("suspend",), "Complete", "Failed"),
)


@dataclass
class _Share:
    """One flavor of one resource in a ClusterQueue: nominal, and how much more and how much of it may be lent."""

    nominal: Decimal
    borrowing: Decimal | None
    lending: Decimal | None


class Kueue(Actor):
    """Admission in the order of priority and age; a workload that does not fit does not hold up those behind it."""

    name = "kueue-admission"

    def tick(self) -> None:
        """Keep workloads in step with their jobs, then admit, pre-empt and tell."""
        kind = self.kind(_WORKLOADS)
        if kind is None:
            return
        for queued in KINDS:
            if self.kind(queued.resource) is not None:
                for job in self.store.scan(queued.resource):
                    if (job["metadata"].get("labels") or {}).get(QUEUE) and not job["metadata"].get(
                        "deletionTimestamp"
                    ):
                        self._follow(queued, job)
        workloads = [converted(one, kind) for one in self.store.scan(_WORKLOADS)]
        self._admit([one for one in workloads if not is_true(one, "Finished")])

    # --- workloads of jobs

    def _follow(self, queued: Queued, job: Object) -> None:
        metadata = job["metadata"]
        mark = hashlib.sha256(metadata["uid"].encode()).hexdigest()[:5]
        key = Key(_WORKLOADS, metadata["namespace"], f"{queued.short}-{metadata['name']}"[:57] + f"-{mark}")
        workload = self.store.get(key)
        suspended = _at(job["spec"], queued.suspend)
        if workload is None:
            if not is_true(job, queued.done) and not is_true(job, queued.failed):
                self._make(queued, job, key.name)
                if not suspended:
                    self._suspend(queued, job, suspend=True)
            return
        if is_true(workload, "Finished"):
            return
        for kind, reason in ((queued.done, "Succeeded"), (queued.failed, "Failed")):
            if is_true(job, kind):
                said = "Job finished successfully" if reason == "Succeeded" else "Job failed"
                status = with_condition(workload["status"], "Finished", "True", reason, said, self.now())
                self.status(_WORKLOADS, workload, status)
                return
        admitted = is_true(workload, "Admitted") and workload["spec"].get("active", True)
        if admitted == bool(suspended):
            self._suspend(queued, job, suspend=not admitted, places=placed(self.store, workload) if admitted else {})

    def _make(self, queued: Queued, job: Object, name: str) -> None:
        metadata = job["metadata"]
        labels = metadata.get("labels") or {}
        sets, pod_class = [], ""
        for set_name, count, template in queued.pod_sets(job, self.store):
            inner = copy.deepcopy(template)
            pod_class = pod_class or str(inner["spec"].get("priorityClassName") or "")
            sets.append({"name": set_name, "count": count, "template": inner})
        if not sets:
            return
        spec: Object = {"queueName": labels[QUEUE], "podSets": sets, "active": True, "priority": 0}
        chosen = labels.get(f"{GROUP}/priority-class")
        for class_name, group, kind, resource in (
            (chosen, GROUP, "WorkloadPriorityClass", f"workloadpriorityclasses.{GROUP}"),
            (pod_class, "scheduling.k8s.io", "PriorityClass", "priorityclasses.scheduling.k8s.io"),
        ):
            found = self.store.get(Key(resource, "", class_name or ""))
            if found is not None:
                spec["priority"] = found["value"]
                spec["priorityClassRef"] = {"group": group, "kind": kind, "name": class_name}
                break
        self.create(
            {
                "apiVersion": f"{GROUP}/v1beta2",
                "kind": "Workload",
                "metadata": {
                    "name": name,
                    "namespace": metadata["namespace"],
                    "labels": {f"{GROUP}/job-uid": metadata["uid"]},
                    "ownerReferences": owner_of(job),
                },
                "spec": spec,
            }
        )

    def _suspend(
        self, queued: Queued, job: Object, *, suspend: bool, places: Mapping[str, Object] | None = None
    ) -> None:
        first, *rest = queued.suspend
        change: Any = {**(job["spec"].get(first) or {}), rest[0]: suspend} if rest else suspend
        self.edit(queued.resource, job, **{**laid(queued.short, job["spec"], places or {}), first: change})
        word = "Stopped" if suspend else "Started"
        self.event(job, "Normal", word, f"{word} by the queue {job['metadata']['labels'][QUEUE]}")

    # --- admission

    def _admit(self, workloads: list[Object]) -> None:
        queues = self._queues()
        place = {_uid(one): self._queue_of(one) for one in workloads}
        held = [one for one in workloads if is_true(one, "QuotaReserved")]
        for one in list(held):
            if not one["spec"].get("active", True):
                self._evict(one, "Deactivated", "The workload is deactivated")
                held.remove(one)
        waiting = [one for one in workloads if not is_true(one, "QuotaReserved") and one["spec"].get("active", True)]
        waiting.sort(key=lambda one: (-_priority(one), one["metadata"]["creationTimestamp"], one["metadata"]["name"]))
        for one in waiting:
            name, why = place[_uid(one)]
            queue = queues.get(name)
            if queue is None or why:
                self._pending(one, "Inadmissible", why or f"ClusterQueue {name} doesn't exist")
                continue
            if (queue["spec"].get("stopPolicy") or "None") != "None":
                self._pending(one, "Inadmissible", f"ClusterQueue {name} is stopped")
                continue
            flavors, why = self._fit(one, queue, queues, held, place)
            if flavors is None:
                victims = self._victims(one, queue, queues, held, place)
                for victim in victims:
                    scope = "InClusterQueue" if place[_uid(victim)][0] == name else "InCohortReclamation"
                    self._preempt(victim, one, scope)
                if victims:
                    why = f"{why}. Pending the preemption of {len(victims)} workload(s)"
                self._pending(one, "Pending", f"couldn't assign flavors to pod set main: {why}")
                if victims:
                    # What they held is free only from the next look on, when they have stopped.
                    return
                continue
            held.append(self._reserve(one, name, flavors))
        self._tell_queues(queues, workloads, held, place)

    def _queues(self) -> dict[str, Object]:
        kind = self.kind(f"clusterqueues.{GROUP}")
        if kind is None:
            return {}
        return {one["metadata"]["name"]: converted(one, kind) for one in self.store.scan(kind.resource)}

    def _cohorts(self, name: str | None) -> list[Object]:
        """A cohort and those above it: what is written on them is lent to all and used by none."""
        found: list[Object] = []
        while name and len(found) < 8:
            one = self.store.get(Key(f"cohorts.{GROUP}", "", name))
            if one is None:
                break
            found.append({"metadata": {"name": f"cohort/{name}"}, "spec": one.get("spec") or {}})
            name = found[-1]["spec"].get("parentName")
        return found

    def _queue_of(self, workload: Object) -> tuple[str, str]:
        """The ClusterQueue, and why there is none."""
        name = workload["spec"].get("queueName", "")
        found = self.store.get(Key(f"localqueues.{GROUP}", workload["metadata"]["namespace"], name))
        if found is None:
            return "", f"LocalQueue {name} doesn't exist"
        if (found["spec"].get("stopPolicy") or "None") != "None":
            return found["spec"]["clusterQueue"], f"LocalQueue {name} is stopped"
        return found["spec"]["clusterQueue"], ""

    def _fit(
        self,
        workload: Object,
        queue: Object,
        queues: Mapping[str, Object],
        held: Iterable[Object],
        place: Mapping[str, tuple[str, str]],
    ) -> tuple[dict[str, str] | None, str]:
        """A flavor for each resource, or None and why not, in Kueue's words."""
        wanted, name = _wanted(workload), queue["metadata"]["name"]
        mine = _used(one for one in held if place.get(_uid(one), ("", ""))[0] == name)
        cohort = queue["spec"].get("cohortName")
        family = [one for one in queues.values() if cohort and one["spec"].get("cohortName") == cohort] or [queue]
        family += self._cohorts(cohort)
        chosen: dict[str, str] = {}
        reasons: list[str] = []
        for group in queue["spec"].get("resourceGroups") or ():
            asked = {resource: wanted[resource] for resource in group["coveredResources"] if resource in wanted}
            if not asked:
                continue
            for flavor in group["flavors"]:
                among = [one["name"] for one in group["flavors"]]
                specs = [one["template"]["spec"] for one in workload["spec"]["podSets"]]
                if why := unsuited(self.store, flavor["name"], among, specs):
                    reasons.append(why)
                    continue
                shares = _shares(queue)
                why = ""
                for resource, amount in asked.items():
                    at = (flavor["name"], resource)
                    own, used = shares[at], mine.get(at, Decimal(0))
                    over = used + amount - own.nominal
                    if over <= 0 and self._rest(at, family, held, place, queue) >= amount:
                        continue
                    if over > 0 and (not cohort or (own.borrowing is not None and over > own.borrowing)):
                        more = max(Decimal(0), amount - (own.nominal + (own.borrowing or Decimal(0)) - used))
                        why = f"insufficient unused quota for {resource} in flavor {at[0]}, {written(more)} more needed"
                        if amount > own.nominal + (own.borrowing or Decimal(0)):
                            why = (
                                f"insufficient quota for {resource} in flavor {at[0]}, request > maximum capacity "
                                f"({written(amount)} > {written(own.nominal + (own.borrowing or Decimal(0)))})"
                            )
                    elif (rest := self._rest(at, family, held, place, queue)) < amount:
                        more = amount - max(Decimal(0), rest)
                        why = f"insufficient unused quota for {resource} in flavor {at[0]}, {written(more)} more needed"
                    if why:
                        break
                if why:
                    reasons.append(why)
                    continue
                chosen |= dict.fromkeys(asked, flavor["name"])
                break
        covered = {name for group in queue["spec"].get("resourceGroups") or () for name in group["coveredResources"]}
        unknown = sorted(set(wanted) - covered)
        if unknown:
            return None, f"resource {unknown[0]} unavailable in ClusterQueue"
        return (None, ", ".join(reasons)) if set(chosen) != set(wanted) else (chosen, "")

    def _rest(
        self,
        at: tuple[str, str],
        family: Iterable[Object],
        held: Iterable[Object],
        place: Mapping[str, tuple[str, str]],
        queue: Object,
    ) -> Decimal:
        """What the whole cohort has left of a flavor, less what its other members do not lend."""
        left = Decimal(0)
        for member in family:
            name = member["metadata"]["name"]
            share = _shares(member).get(at)
            used = _used(one for one in held if place.get(_uid(one), ("", ""))[0] == name).get(at, Decimal(0))
            nominal = share.nominal if share is not None else Decimal(0)
            free = nominal - used
            if share is not None and share.lending is not None and name != queue["metadata"]["name"] and free > 0:
                free = min(free, share.lending)
            left += free
        return left

    def _victims(
        self,
        workload: Object,
        queue: Object,
        queues: Mapping[str, Object],
        held: list[Object],
        place: Mapping[str, tuple[str, str]],
    ) -> list[Object]:
        """The fewest of the least important that have to go; none where that would not help or is not allowed."""
        rules, name = queue["spec"].get("preemption") or {}, queue["metadata"]["name"]
        within, reclaim = rules.get("withinClusterQueue", "Never"), rules.get("reclaimWithinCohort", "Never")
        cohort, candidates = queue["spec"].get("cohortName"), []
        for one in held:
            theirs = place[_uid(one)][0]
            lower = _priority(one) < _priority(workload)
            if theirs == name:
                if lower and within in ("LowerPriority", "LowerOrNewerEqualPriority"):
                    candidates.append(one)
                continue
            other = queues.get(theirs)
            if other is None or not cohort or other["spec"].get("cohortName") != cohort:
                continue
            borrows = any(
                amount > (share.nominal if (share := _shares(other).get(at)) else Decimal(0))
                for at, amount in _used(each for each in held if place[_uid(each)][0] == theirs).items()
            )
            if borrows and (reclaim == "Any" or (reclaim == "LowerPriority" and lower)):
                candidates.append(one)
        candidates.sort(key=lambda one: one["metadata"]["creationTimestamp"], reverse=True)
        candidates.sort(key=_priority)
        taken: list[Object] = []
        for one in candidates:
            taken.append(one)
            left = [each for each in held if each not in taken]
            if self._fit(workload, queue, queues, left, place)[0] is not None:
                return taken
        return []

    # --- what is told

    def _reserve(self, workload: Object, queue: str, flavors: Mapping[str, str]) -> Object:
        now = self.now()
        assignments = []
        for one in workload["spec"]["podSets"]:
            usage = {
                name: written(value * one["count"]) for name, value in requests_of(one["template"]["spec"]).items()
            }
            assigned = {name: flavors[name] for name in usage}
            entry = {"name": one["name"], "count": one["count"], "flavors": assigned, "resourceUsage": usage}
            assignments.append(entry)
        status = {**(workload.get("status") or {})}
        status["admission"] = {"clusterQueue": queue, "podSetAssignments": assignments}
        said = f"Quota reserved in ClusterQueue {queue}"
        status = with_condition(status, "QuotaReserved", "True", "QuotaReserved", said, now)
        for kind in ("Evicted", "Preempted"):
            if is_true(workload, kind):
                status = with_condition(status, kind, "False", "QuotaReserved", "Previously: " + kind, now)
        status = with_condition(status, "Admitted", "True", "Admitted", "The workload is admitted", now)
        self.status(_WORKLOADS, workload, status)
        self.event(workload, "Normal", "Admitted", f"Admitted by ClusterQueue {queue}")
        return {**workload, "status": status}

    def _pending(self, workload: Object, reason: str, message: str) -> None:
        status = workload.get("status") or {}
        new = with_condition(status, "QuotaReserved", "False", reason, message, self.now())
        if new is not status:
            self.status(_WORKLOADS, workload, new)
            self.event(workload, "Warning", "Pending", message)

    def _preempt(self, victim: Object, by: Object, reason: str) -> None:
        words = {
            "InClusterQueue": "prioritization in the ClusterQueue",
            "InCohortReclamation": "reclamation within the cohort",
        }
        job_uid = (by["metadata"].get("labels") or {}).get(f"{GROUP}/job-uid", "UNKNOWN")
        whom = f"(UID: {by['metadata']['uid']}, JobUID: {job_uid})"
        said = f"Preempted to accommodate a workload {whom} due to {words[reason]}"
        status = with_condition(victim["status"], "Preempted", "True", reason, said, self.now())
        self._evict({**victim, "status": status}, "Preempted", said)
        self.event(victim, "Normal", "Preempted", said)

    def _evict(self, workload: Object, reason: str, message: str) -> None:
        now = self.now()
        status = with_condition(workload["status"], "Evicted", "True", reason, message, now)
        status = with_condition(status, "QuotaReserved", "False", "Pending", message, now)
        status = with_condition(status, "Admitted", "False", "NoReservation", "The workload has no reservation", now)
        status.pop("admission", None)
        self.status(_WORKLOADS, workload, status)

    def _tell_queues(
        self,
        queues: Mapping[str, Object],
        workloads: list[Object],
        held: list[Object],
        place: Mapping[str, tuple[str, str]],
    ) -> None:
        for name, queue in queues.items():
            mine = [one for one in held if place[_uid(one)][0] == name]
            waits = sum(place[_uid(one)][0] == name for one in workloads) - len(mine)
            used = _used(mine)
            usage: dict[str, list[Object]] = {}
            for (flavor, resource), share in _shares(queue).items():
                total = used.get((flavor, resource), Decimal(0))
                borrowed = written(max(Decimal(0), total - share.nominal))
                usage.setdefault(flavor, []).append({"name": resource, "total": written(total), "borrowed": borrowed})
            told = [{"name": flavor, "resources": resources} for flavor, resources in usage.items()]
            status = {
                **(queue.get("status") or {}),
                "pendingWorkloads": waits,
                "reservingWorkloads": len(mine),
                "admittedWorkloads": len(mine),
                "flavorsReservation": told,
                "flavorsUsage": told,
            }
            status = with_condition(status, "Active", "True", "Ready", "Can admit new workloads", self.now())
            if status != (queue.get("status") or {}):
                self.status(f"clusterqueues.{GROUP}", queue, status)


def _uid(thing: Object) -> str:
    return str(thing["metadata"]["uid"])


def _priority(workload: Object) -> int:
    return int(workload["spec"].get("priority") or 0)


def _at(spec: Object, path: tuple[str, ...]) -> Any:
    found: Any = spec
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _wanted(workload: Object) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for one in workload["spec"]["podSets"]:
        for name, value in requests_of(one["template"]["spec"]).items():
            total[name] = total.get(name, Decimal(0)) + value * one["count"]
    return total


def _shares(queue: Object) -> dict[tuple[str, str], _Share]:
    found = {}
    for group in queue["spec"].get("resourceGroups") or ():
        for flavor in group["flavors"]:
            for one in flavor["resources"]:
                limits = [
                    None if one.get(key) is None else quantity(one[key]) for key in ("borrowingLimit", "lendingLimit")
                ]
                found[flavor["name"], one["name"]] = _Share(quantity(one["nominalQuota"]), limits[0], limits[1])
    return found


def _used(workloads: Iterable[Object]) -> Amounts:
    total: Amounts = {}
    for workload in workloads:
        for one in ((workload.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ():
            for name, value in (one.get("resourceUsage") or {}).items():
                at = (one["flavors"][name], name)
                total[at] = total.get(at, Decimal(0)) + quantity(value)
    return total
