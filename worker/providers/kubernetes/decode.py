"""A workload as the house sees jobs: its state, why it waits or how it ended, its nodes, GPUs and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from worker.providers import values as v
from worker.providers.kubernetes import names
from worker.providers.kubernetes.ends import (
    LOST,
    Scene,
    end_of,
    exit_of,
    interruption,
    is_live,
    is_ours,
    is_placed,
    lately,
    lost_nodes,
    was_deleted,
)
from worker.providers.kubernetes.kueue_reasons import eviction, is_true, pending_reasons
from worker.providers.kubernetes.pod_sets import BadValue, Demand, PodSet, as_list, as_map, at, demand, pod_sets
from worker.providers.kubernetes.queueing import MAX_SECONDS, PRIORITY, QUEUE
from worker.providers.kubernetes.reason_values import Reason
from worker.providers.kubernetes.reason_values import text as _
from worker.providers.kubernetes.reasons import pod_reason
from worker.providers.kubernetes.resources import WORKLOADS
from worker.providers.kubernetes.works import Thing, Work

_INDEX = "batch.kubernetes.io/job-completion-index"
_RANK = "training.kubeflow.org/replica-index"
HELD = f"{names.PREFIX}/held"
#: Slurm's word for a job that its user holds; the pages know it.
HELD_REASON = "JobHeldUser"
_OPEN = ("PENDING", "RUNNING", "COMPLETING")


def index_of(pod: Thing) -> int:
    """Its place in the gang: what ranks are made from."""
    head = as_map(pod["metadata"])
    labels, notes = as_map(head.get("labels")), as_map(head.get("annotations"))
    told = notes.get(_INDEX, labels.get(_INDEX))
    if told is None and labels.get("training.kubeflow.org/replica-type") == "worker":
        return int(str(labels.get(_RANK) or 0)) + 1 if str(labels.get(_RANK) or "0").isdigit() else 1
    return int(str(told)) if str(told or "").isdigit() else 0


def is_suspended(root: Thing) -> bool:
    """Whether the workload is told not to begin."""
    return bool(at(root, "spec", "suspend") or at(root, "spec", "runPolicy", "suspend"))


def decoded(work: Work, scene: Scene) -> v.SchedulerJob:
    """One workload as a job."""
    head, root = work.head, work.root
    end = end_of(work, scene)
    asked = demand_of_work(work)
    pods = sorted(work.pods, key=index_of)
    placed = pods or sorted(lately(work), key=index_of)
    nodes = tuple(dict.fromkeys(str(p["spec"]["nodeName"]) for p in placed if at(p, "spec", "nodeName")))
    is_over = end is not None and end.state not in ("COMPLETED", "COMPLETING")
    code, signal = exit_of(work) if is_over else (None, None)
    state, why = (end.state, end.why) if end is not None else _now(work, scene)
    lost: list[str] = []
    if why is not None and (state == "NODE_FAIL" or (state == "COMPLETING" and why.code in LOST)):
        lost = [n for n in lost_nodes(work, scene) if n]
        nodes = tuple(dict.fromkeys([*lost, *nodes]))
    created = scene.at(head.get("creationTimestamp"))
    started = _started(work, scene) if state != "PENDING" else None
    labels = as_map(head.get("labels"))
    return v.SchedulerJob(
        scheduler_id=work.id,
        name=str(as_map(head.get("annotations")).get(f"{names.PREFIX}/name") or work.name),
        comment=work.attempt,
        user_name="",
        account=work.namespace,
        partition=str(labels.get(QUEUE) or at(work.queued, "spec", "queueName") or ""),
        state=state,
        reason=why.code if why is not None else "",
        nodes=nodes if state != "PENDING" else (),
        node_count=len(nodes) if state not in ("PENDING",) and nodes else asked.pods,
        gpus=asked.gpus,
        submitted_at=created,
        started_at=started,
        ended_at=end.ended_at if end is not None else None,
        expected_start_at=None,
        time_limit_min=_limit_min(root, labels),
        exit_code=0 if state == "COMPLETED" else code,
        signal=signal,
        priority=_priority(work),
        qos=str(labels.get(PRIORITY) or ""),
        eligible_at=created,
        cpus=-(-asked.cpu_milli // 1000),
        memory_mib=asked.memory_mib,
        why=why.text if why is not None else None,
        failed_node=lost[0] if lost else "",
    )


def deleted(work: Work, scene: Scene) -> v.SchedulerJob:
    """A workload that is gone: as it ended, or ended by being deleted."""
    job = decoded(work, scene)
    if job.state in ("PENDING", "RUNNING", "COMPLETING"):
        end = was_deleted(work, scene)
        code, signal = exit_of(work)
        assert end.why is not None
        job = replace(
            job,
            state=end.state,
            reason=end.why.code,
            why=end.why.text,
            ended_at=end.ended_at,
            exit_code=code,
            signal=signal,
        )
    return job


def forgotten(scheduler_id: str, namespace: str, name: str) -> v.SchedulerJob:
    """A workload of ours of which nothing is left and nothing remembered: somebody deleted it."""
    why = Reason("Deleted", _("It was deleted in the cluster."), is_final=True)
    return v.SchedulerJob(
        scheduler_id=scheduler_id,
        name=name,
        comment="",
        user_name="",
        account=namespace,
        partition="",
        state="CANCELLED",
        reason=why.code,
        nodes=(),
        node_count=0,
        gpus=0,
        submitted_at=None,
        started_at=None,
        ended_at=None,
        expected_start_at=None,
        time_limit_min=None,
        exit_code=None,
        signal=None,
        why=why.text,
    )


def _now(work: Work, scene: Scene) -> tuple[str, Reason | None]:
    root = work.root
    alive = [pod for pod in work.pods if is_placed(pod)]
    if root is None and work.kind in WORKLOADS:
        return "COMPLETING", Reason("Deleted", _("It was deleted; its pods are ending."))
    if root is not None and at(root, "metadata", "deletionTimestamp"):
        return "COMPLETING", Reason("Deleted", _("It was deleted; its pods are ending."))
    if root is not None and is_suspended(root):
        if alive:
            return "COMPLETING", eviction(work.queued, scene.who) if work.queued is not None else None
        return "PENDING", _held_back(work, root, scene)
    begun = [pod for pod in alive if at(pod, "status", "phase") == "Running"]
    if (broken := interruption(work)) is not None:
        return "COMPLETING", broken
    stuck = next((reason for pod in work.pods if is_live(pod) and (reason := pod_reason(pod)) is not None), None)
    ended = sum(not is_live(pod) for pod in work.pods)
    # A gang of ours runs once all its pods do: until then none gets further than its first meeting.
    if (len(begun) + ended >= demand_of_work(work).pods) if is_ours(work) else (begun or ended):
        return "RUNNING", stuck
    if work.queued is not None and not is_true(work.queued, "Admitted"):
        reasons = pending_reasons(work.queued, scene.who)
        return "PENDING", reasons[0] if reasons else stuck
    return "PENDING", stuck or Reason("Starting", _("Its pods are being started."))


def _held_back(work: Work, root: Thing, scene: Scene) -> Reason | None:
    if at(root, "metadata", "annotations", HELD) or at(work.queued, "spec", "active") is False:
        return Reason(HELD_REASON, _("It is held until someone releases it."))
    if work.queued is None:
        queue = at(root, "metadata", "labels", QUEUE)
        if queue:
            return Reason("Queued", _("It waits in its queue; Kueue has not looked at it yet."))
        return scene.waits(work) or Reason("Suspended", _("It is suspended until someone lets it begin."))
    found = pending_reasons(work.queued, scene.who)
    return _joined(found)


def _joined(reasons: Sequence[Reason]) -> Reason | None:
    """Why it came back and what it waits for now, in one."""
    if len(reasons) < 2:
        return reasons[0] if reasons else None
    both = _("%(one)s %(more)s", one=reasons[0].text, more=reasons[1].text)
    return Reason(reasons[1].code, both, is_final=reasons[1].is_final, raw=reasons[1].raw)


def _started(work: Work, scene: Scene) -> datetime | None:
    pods = work.pods or lately(work)
    told = [at(pod, "status", "startTime") for pod in pods if at(pod, "status", "phase") != "Pending"]
    times = [found for one in told if (found := scene.at(one)) is not None]
    if times:
        return max(times) if is_ours(work) else min(times)
    return scene.at(at(work.root, "status", "startTime")) if work.root is not None else None


def _limit_min(root: Thing | None, labels: Mapping[str, Any]) -> int | None:
    seconds = at(root, "spec", "activeDeadlineSeconds") or at(root, "spec", "runPolicy", "activeDeadlineSeconds")
    if not seconds:
        jobs = as_list(at(root, "spec", "replicatedJobs"))
        limits = [at(job, "template", "spec", "activeDeadlineSeconds") for job in jobs]
        seconds = max((limit for limit in limits if isinstance(limit, int)), default=None)
    if not seconds:
        seconds = at(root, "spec", "template", "spec", "activeDeadlineSeconds")
    if not seconds and str(labels.get(MAX_SECONDS) or "").isdigit():
        seconds = int(str(labels[MAX_SECONDS]))
    return -(-seconds // 60) if isinstance(seconds, int) and seconds > 0 else None


def _priority(work: Work) -> int | None:
    found = at(work.queued, "spec", "priority")
    if found is None and work.pods:
        found = at(work.pods[0], "spec", "priority")
    return found if isinstance(found, int) else None


#: What pods ask for, by uid and revision: five thousand of them are looked at whenever one changes.
_demands: dict[tuple[str, str], Demand] = {}
_DEMANDS_KEPT = 20_000


def demand_of_pod(pod: Thing) -> Demand:
    """What one pod asks for; nothing where a number is none."""
    head = pod["metadata"]
    key = (str(head.get("uid") or ""), str(head.get("resourceVersion") or ""))
    found = _demands.get(key)
    if found is None:
        try:
            found = demand(PodSet("", (), pod, 1)).times(1)
        except BadValue:
            found = Demand(1)
        if all(key):
            if len(_demands) >= _DEMANDS_KEPT:
                _demands.clear()
            _demands[key] = found
    return found


def demand_of_work(work: Work) -> Demand:
    """What all its pods ask for: those that are there, else those that it is going to make."""
    total = Demand()
    sets: list[PodSet] = []
    try:
        if work.root is not None and work.kind != "TrainJob":
            sets = pod_sets(work.root)
        elif work.queued is not None:
            rows = [as_map(row) for row in as_list(at(work.queued, "spec", "podSets"))]
            sets = [PodSet("", (), as_map(row.get("template")), int(row.get("count") or 0)) for row in rows]
        elif work.root is not None:
            sets = pod_sets(work.root)
        for one in sets:
            total += demand(one).times(one.count)
    except (BadValue, TypeError, ValueError):
        total = Demand()
    if total.pods and work.kind != "Pod":
        return total
    for pod in work.pods or work.lost:
        total = total + demand_of_pod(pod) if work.kind != "Pod" else demand_of_pod(pod)
    return total


def gpus_of(pod: Thing) -> int:
    """GPUs that a pod asks for."""
    return demand_of_pod(pod).gpus
