"""What is asked of a Kubernetes cluster beside submitting, and Kueue's and the portal's own reasons for waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.kube_site import WORKLOADS, KubeSite, kube_site, now, running_job, seen_in, until_state
from tests.kubernetes_site import until
from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.kubernetes.names import object_name
from worker.providers.kubernetes.resources import JOBS, NODES, PODS, Resource
from worker.providers.kubernetes.scheduler import KubernetesScheduler
from worker.providers.workload_values import INDEXED_JOB, JOBSET, PLAIN

JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[KubeSite]:
    with kube_site(tmp_path) as made:
        yield made


# --- Kueue's words


def _queued(site: KubeSite, scheduler: KubernetesScheduler, name: str = "pretrain") -> tuple[str, str, dict[str, Any]]:
    request = site.request(kind=INDEXED_JOB, name=name)
    receipt = scheduler.submit(request)
    job = site.caller.get(JOBS.path(site.namespace, object_name(request.uid)))
    job = {**job, "apiVersion": "batch/v1", "kind": "Job"}
    return receipt.scheduler_id, site.workload(job, priority=10), job


def test_kueue_says_why_it_waits(site: KubeSite) -> None:
    scheduler = site.scheduler()
    scheduler_id, workload, _job = _queued(site, scheduler)
    said = (
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor p5en, "
        "16 more needed"
    )
    site.status(WORKLOADS, workload, {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": said})

    def told() -> v.SchedulerJob | None:
        seen = seen_in(scheduler, scheduler_id)
        return seen if seen is not None and seen.reason == "QuotaInUse" else None

    seen = until("the reason is told", told)
    assert (seen.state, seen.priority) == ("PENDING", 10)
    assert "16 more of nvidia.com/gpu" in str(seen.why)


def test_who_took_its_place_is_named(site: KubeSite) -> None:
    scheduler = site.scheduler()
    scheduler_id, workload, _job = _queued(site, scheduler)
    _other, rival, rival_job = _queued(site, scheduler, "urgent-fix")
    uids = [
        site.caller.get(WORKLOADS.path(site.namespace, rival))["metadata"]["uid"],
        rival_job["metadata"]["uid"],
    ]
    said = (
        f"Preempted to accommodate a workload (UID: {uids[0]}, JobUID: {uids[1]}) due to prioritization in the "
        "ClusterQueue"
    )
    site.status(
        WORKLOADS,
        workload,
        {"type": "Evicted", "status": "True", "reason": "Preempted", "message": said},
        {"type": "Preempted", "status": "True", "reason": "InClusterQueue", "message": said},
        {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": said},
    )

    def told() -> str:
        seen = seen_in(scheduler, scheduler_id)
        return str(seen.why) if seen is not None and "urgent-fix" in str(seen.why) else ""

    assert "urgent-fix of vision took its place" in until("the rival is named", told)


def test_holding_sets_the_workload_aside_and_releasing_brings_it_back(site: KubeSite) -> None:
    scheduler = site.scheduler()
    scheduler_id, workload, _job = _queued(site, scheduler)
    until("it is seen", lambda: seen_in(scheduler, scheduler_id))

    def reason() -> str:
        seen = seen_in(scheduler, scheduler_id)
        return seen.reason if seen is not None else ""

    def queued() -> bool:
        work = scheduler._known_work(scheduler_id)
        return work is not None and work.queued is not None

    until("Kueue's word is seen", queued)
    scheduler.hold(scheduler_id)
    scheduler.hold(scheduler_id)
    until("it is held", lambda: reason() == "JobHeldUser")
    assert site.caller.get(WORKLOADS.path(site.namespace, workload))["spec"]["active"] is False
    scheduler.release(scheduler_id)
    until("it is released", lambda: reason() != "JobHeldUser")


# --- changing and ending


def test_cancelling_deletes_and_a_second_time_finds_nothing(site: KubeSite) -> None:
    scheduler = site.scheduler()
    request = site.request(kind=JOBSET, nodes=2)
    receipt = scheduler.submit(request)
    until_state(scheduler, receipt.scheduler_id, "PENDING")
    scheduler.cancel(receipt.scheduler_id)
    until("it is gone", lambda: not site.things(JOBSETS))
    until("memory has heard of it", lambda: seen_in(scheduler, receipt.scheduler_id) is None)
    with pytest.raises(e.NotFound):
        scheduler.cancel(receipt.scheduler_id)


def test_what_was_never_there_is_not_found(site: KubeSite) -> None:
    scheduler = site.scheduler()
    with pytest.raises(e.NotFound):
        scheduler.job(f"{site.namespace}/Job/never")
    with pytest.raises(e.NotFound):
        scheduler.cancel(f"{site.namespace}/Job/never")
    with pytest.raises(e.InvalidRequest):
        scheduler.cancel("12345")


def test_the_time_limit_can_be_changed(site: KubeSite) -> None:
    scheduler = site.scheduler()
    request = site.request(kind=INDEXED_JOB, time_limit_min=60)
    receipt = scheduler.submit(request)
    assert until_state(scheduler, receipt.scheduler_id, "PENDING").time_limit_min == 60
    scheduler.update(receipt.scheduler_id, v.JobChange(time_limit_min=90))

    def changed() -> bool:
        seen = seen_in(scheduler, receipt.scheduler_id)
        return seen is not None and seen.time_limit_min == 90

    until("it is longer", changed)
    with pytest.raises(e.Unsupported):
        scheduler.update(receipt.scheduler_id, v.JobChange(nice=5))
    with pytest.raises(e.Unsupported):
        scheduler.signal(receipt.scheduler_id, "USR1")


def test_an_array_is_told_task_by_task(site: KubeSite) -> None:
    scheduler = site.scheduler()
    request = site.request(
        kind=INDEXED_JOB, array=(3, 4, 7), array_at_once=2, annotations={"quarterdeck.dev/array": "3-4,7%2"}
    )
    receipt = scheduler.submit(request)
    until_state(scheduler, receipt.scheduler_id, "PENDING")
    job = site.begin(JOBS, object_name(request.uid))
    node = site.node()
    pods = [site.pod(job, index, node) for index in range(2)]
    site.pod_status(pods[0], "Running")
    site.pod_status(pods[1], "Failed", containerStatuses=site.ended(5))
    site.status(JOBS, object_name(request.uid), failedIndexes="1", failed=1, active=1)

    def states() -> dict[str, str]:
        rows = scheduler.queue().jobs or ()
        return {r.scheduler_id.removeprefix(receipt.scheduler_id): r.state for r in rows if r.comment == request.uid}

    until("the tasks are told", lambda: states() == {"_3": "RUNNING", "_4": "FAILED", "": "PENDING"})
    rest = seen_in(scheduler, receipt.scheduler_id)
    assert rest is not None
    assert (rest.array_id, rest.array_pending) == (receipt.scheduler_id, "7%2")


# --- without Kueue


def test_a_gang_begins_as_a_whole_or_not_at_all(site: KubeSite) -> None:
    scheduler = site.scheduler(PLAIN)
    site.node()
    values = {"scheduler": PLAIN, "queue": "", "gpus_per_node": 8, "cpus_per_node": 8}
    first = scheduler.submit(site.request(kind=INDEXED_JOB, nodes=2, name="first", **values))
    until_state(scheduler, first.scheduler_id, "PENDING")
    assert scheduler.let_in() == 0
    # The server tells times by whole seconds; who came first is told by them.
    time.sleep(1.1)
    second = scheduler.submit(site.request(kind=INDEXED_JOB, nodes=1, name="second", **values))
    until_state(scheduler, second.scheduler_id, "PENDING")
    seen = seen_in(scheduler, first.scheduler_id)
    assert seen is not None
    assert "there is room for 1 now" in str(seen.why)
    assert scheduler.let_in() == 0
    behind = seen_in(scheduler, second.scheduler_id)
    assert behind is not None
    assert "waits behind first" in str(behind.why)
    site.node()
    until("both nodes are seen", lambda: len(scheduler.nodes()) >= 2)
    assert scheduler.let_in() == 1
    name = first.scheduler_id.rpartition("/")[2]
    assert site.caller.get(JOBS.path(site.namespace, name))["spec"]["suspend"] is False
    # What has ended holds no room.
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    target = {"type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded"}
    site.status(JOBS, name, target, failed, startTime=now(), failed=1)
    until_state(scheduler, first.scheduler_id, "FAILED")
    assert scheduler.let_in() == 1


# --- nodes


def test_nodes_are_told_with_what_their_pods_take(site: KubeSite) -> None:
    scheduler = site.scheduler()
    running_job(site, scheduler, nodes=1)
    (node,) = [n for n in scheduler.nodes() if n.name in site.nodes]
    assert (node.state, node.gpus, node.gpus_used, node.flags) == ("ALLOCATED", 8, 8, ())
    assert node.instance_id.startswith("i-")
    assert node.instance_type == "p5en.48xlarge"


def test_a_node_is_cordoned_with_its_reason_and_uncordoned(site: KubeSite) -> None:
    scheduler = site.scheduler()
    name = site.node()

    def seen() -> v.SchedulerNode | None:
        return next((n for n in scheduler.nodes() if n.name == name), None)

    until("the node is seen", seen)
    scheduler.node_drain(name, "GPU 3 fell off the bus")
    scheduler.node_drain(name, "GPU 3 fell off the bus")
    found = until("it is cordoned", lambda: (n := seen()) is not None and n.flags == ("DRAIN",) and n)
    assert found.reason == "GPU 3 fell off the bus"
    scheduler.node_resume(name)
    until("it is uncordoned", lambda: (n := seen()) is not None and n.flags == ())
    assert "quarterdeck.dev/drain-reason" not in site.caller.get(NODES.path("", name))["metadata"].get(
        "annotations", {}
    )
    with pytest.raises(e.NotFound):
        scheduler.node_drain(f"{name}-never", "x")


def test_pods_are_asked_to_leave_a_node(site: KubeSite) -> None:
    scheduler = site.scheduler()
    _scheduler_id, _job, pods = running_job(site, scheduler, nodes=1)
    assert scheduler.node_evict(site.nodes[0], 30) == 1
    path = PODS.path(site.namespace, pods[0]["metadata"]["name"])

    def leaves() -> bool:
        try:
            return bool(site.caller.get(path)["metadata"].get("deletionTimestamp"))
        except e.NotFound:
            return True

    until("it is leaving", leaves)


def test_the_server_is_told_apart(site: KubeSite) -> None:
    info = site.scheduler().info()
    assert info.version.startswith("v1.")
    assert info.api_version


def test_what_hyperpod_says_of_a_node_is_told(site: KubeSite) -> None:
    scheduler = site.scheduler()
    health = {"sagemaker.amazonaws.com/node-health-status": "UnschedulablePendingReplacement"}
    name = site.node(**health, **{"sagemaker.amazonaws.com/fault-types": "NvidiaErrorXID"})
    node = until("the node is seen", lambda: next((n for n in scheduler.nodes() if n.name == name), None))
    assert node.flags == ("DRAIN",)
    assert "UnschedulablePendingReplacement" in node.reason
    assert "NvidiaErrorXID" in node.reason
    assert node.labels["sagemaker.amazonaws.com/node-health-status"] == "UnschedulablePendingReplacement"
