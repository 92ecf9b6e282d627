"""Changes to workloads that are there: holding, letting begin, longer limits, ending; pods asked to leave a node."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from worker.providers import values as v
from worker.providers.errors import Conflict, NotFound, Throttled, Unavailable, Unsupported
from worker.providers.kubernetes.calls import Caller, path_of
from worker.providers.kubernetes.decode import HELD, index_of
from worker.providers.kubernetes.ends import is_live
from worker.providers.kubernetes.errors import SOURCE
from worker.providers.kubernetes.many import index_of_task
from worker.providers.kubernetes.pod_sets import at
from worker.providers.kubernetes.queueing import MAX_SECONDS, PRIORITY, QUEUE
from worker.providers.kubernetes.resources import JOBS, PODS, Served
from worker.providers.kubernetes.submit import Submitter
from worker.providers.kubernetes.works import Thing, Work

_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"})


def _path(served: Served, thing: Thing) -> str:
    resource = served.by_kind(str(thing["kind"]))
    if resource is None:
        raise NotFound(f"the cluster serves no {thing['kind']} any more", source=SOURCE)
    return path_of(resource, thing)


def cancel(caller: Caller, submitter: Submitter, work: Work | None, task: str, jobs: Sequence[v.SchedulerJob]) -> None:
    """End a workload, or one task of an array. ``NotFound`` for one that has ended."""
    if work is None:
        return
    if task:
        _cancel_task(caller, work, task, jobs)
        return
    if jobs and all(job.state in _ENDED for job in jobs):
        raise NotFound(f"{work.id} has ended", source=SOURCE)
    if work.parts:
        submitter.delete_all(work.namespace, work.attempt)
        return
    root = work.root
    if root is None:
        # What made its pods is gone or of a kind that we do not know: the pods are what can be ended.
        for pod in work.pods:
            with suppress(NotFound):
                caller.delete(PODS.path(work.namespace, str(pod["metadata"]["name"])))
        return
    resource = submitter.resource(root)
    caller.delete(path_of(resource, root), uid=str(root["metadata"]["uid"]))
    if root["metadata"].get("deletionTimestamp"):
        # Asked before, and something holds its deletion back: its pods need not wait for that.
        for pod in work.pods:
            if is_live(pod) and not pod["metadata"].get("deletionTimestamp"):
                with suppress(NotFound):
                    caller.delete(PODS.path(work.namespace, str(pod["metadata"]["name"])))


def _cancel_task(caller: Caller, work: Work, task: str, jobs: Sequence[v.SchedulerJob]) -> None:
    row = next((job for job in jobs if str(job.array_task) == task), None)
    if row is not None and row.state in _ENDED:
        raise NotFound(f"task {task} of {work.id} has ended", source=SOURCE)
    index = index_of_task(work, int(task)) if task.isdigit() else None
    pods = [pod for pod in work.pods if index is not None and index_of(pod) == index and is_live(pod)]
    if not pods:
        raise Unsupported(
            "Kubernetes takes no single task out of an array before it has begun: cancel it once it runs, or all of it",
            source=SOURCE,
        )
    for pod in pods:
        with suppress(NotFound):
            caller.delete(PODS.path(work.namespace, str(pod["metadata"]["name"])), uid=str(pod["metadata"]["uid"]))


def hold(caller: Caller, served: Served, work: Work, *, held: bool) -> None:
    """Set a workload aside, or let it be considered again; what is so already stays so."""
    for part in work.parts or [work]:
        if part.root is None:
            continue
        if part.queued is not None:
            caller.patch(_path(served, part.queued), {"spec": {"active": not held}})
        elif at(part.root, "metadata", "labels", QUEUE):
            raise Unavailable("Kueue has not taken the job up yet; asked again", source=SOURCE, code="connect")
        else:
            caller.patch(_path(served, part.root), {"metadata": {"annotations": {HELD: "true" if held else None}}})


def unsuspend(caller: Caller, served: Served, work: Work) -> None:
    """Let a workload begin, unless it changed since it was looked at."""
    root = work.root
    assert root is not None
    change: dict[str, Any] = {"suspend": False}
    if work.kind == "PyTorchJob":
        change = {"runPolicy": change}
    head = {"resourceVersion": root["metadata"]["resourceVersion"]}
    # Changed or gone meanwhile: the next look decides afresh.
    with suppress(Conflict, NotFound):
        caller.patch(_path(served, root), {"metadata": head, "spec": change})


def update(caller: Caller, served: Served, work: Work, change: v.JobChange) -> None:
    """What can be different about a workload that waits or runs."""
    if change.nice is not None:
        raise Unsupported("Kueue orders jobs by their priority class: choose another one", source=SOURCE)
    root = work.root
    if root is None or work.parts:
        raise Unsupported("what a manifest brought is changed in the manifest", source=SOURCE)
    labels: dict[str, str] = {}
    if change.priority_class is not None:
        labels[PRIORITY] = change.priority_class
    if change.partition is not None:
        if work.queued is not None and at(work.queued, "status", "admission"):
            raise Conflict("it has begun; a queue is changed before", source=SOURCE, code="started")
        labels[QUEUE] = change.partition
    if labels:
        caller.patch(_path(served, root), {"metadata": {"labels": labels}})
    if change.time_limit_min is not None:
        _limit(caller, served, work, root, change.time_limit_min * 60)


def _limit(caller: Caller, served: Served, work: Work, root: Thing, seconds: int) -> None:
    body: dict[str, Any] = {}
    if work.kind == "Job":
        body = {"spec": {"activeDeadlineSeconds": seconds}}
        if at(root, "spec", "template", "spec", "activeDeadlineSeconds"):
            raise Unsupported("the time of an array's tasks is fixed when it is submitted", source=SOURCE)
    elif work.kind == "PyTorchJob":
        body = {"spec": {"runPolicy": {"activeDeadlineSeconds": seconds}}}
    elif work.kind == "TrainJob" or not work.jobs:
        raise Unsupported(
            f"the time limit of a {work.kind} that has not begun is fixed: submit it again with another", source=SOURCE
        )
    if at(root, "metadata", "labels", MAX_SECONDS):
        body["metadata"] = {"labels": {MAX_SECONDS: str(seconds)}}
    if body:
        caller.patch(_path(served, root), body)
    for job in work.jobs:
        caller.patch(path_of(JOBS, job), {"spec": {"activeDeadlineSeconds": seconds}})


def evict(caller: Caller, pod: Thing, grace_s: int) -> None:
    """Ask a pod to go; kept by a budget for now, or gone already, is no error."""
    head = pod["metadata"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": head["name"], "namespace": head["namespace"]},
        "deleteOptions": {"gracePeriodSeconds": grace_s, "preconditions": {"uid": head["uid"]}},
    }
    with suppress(NotFound, Conflict, Throttled):
        caller.post(PODS.path(str(head["namespace"]), str(head["name"]), "eviction"), body)
