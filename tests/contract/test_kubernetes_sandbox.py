"""The portal's scheduler on the sandbox's whole cluster: jobs of every kind run as processes, and end in every way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.control.faults import inject
from sandbox.control.stack import Stack
from sandbox.kubernetes.estate import Estate
from sandbox.world import World
from tests.kubernetes_site import until
from worker.providers import values as v
from worker.providers.kubernetes import access
from worker.providers.kubernetes.scheduler import KubernetesScheduler, KubernetesSite
from worker.providers.workload_values import INDEXED_JOB, JOBSET, KINDS, KUEUE, PYTORCHJOB, WorkloadSpec, WorkloadSubmit

COVERED = ("cpu", "memory", "nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi")
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"})


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Stack]:
    world = World()
    estate = Estate(world, None, tmp_path)
    estate.start()
    api = estate.clusters["kube"].api

    def put(version: str, kind: str, name: str, spec: Any = None, namespace: str = "") -> None:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        api.apply({"apiVersion": version, "kind": kind, "metadata": metadata, **({"spec": spec} if spec else {})})

    put("v1", "Namespace", "vision")
    kueue = "kueue.x-k8s.io/v1beta2"
    put(kueue, "ResourceFlavor", "p5", {"nodeLabels": {"node.kubernetes.io/instance-type": "p5.48xlarge"}})
    resources = [{"name": one, "nominalQuota": 16 if one.startswith("nvidia") else "10Ti"} for one in COVERED]
    group = {"coveredResources": list(COVERED), "flavors": [{"name": "p5", "resources": resources}]}
    queue = {"namespaceSelector": {}, "resourceGroups": [group], "preemption": {"withinClusterQueue": "LowerPriority"}}
    put(kueue, "ClusterQueue", "all", queue)
    put(kueue, "LocalQueue", "vision", {"clusterQueue": "all"}, "vision")
    yield Stack(world, None, None, None, estate)  # type: ignore[arg-type]
    estate.stop()


@pytest.fixture
def scheduler(desk: Stack) -> Iterator[KubernetesScheduler]:
    assert desk.kubernetes is not None
    found = json.dumps(desk.kubernetes.kubeconfig())
    site = KubernetesSite(name="kube", scheduler=KUEUE)
    made = KubernetesScheduler(access.of_kubeconfig(found), site)
    yield made
    made.close()


def submit(scheduler: KubernetesScheduler, kind: str, script: str, **values: Any) -> str:
    uid = f"att_01j9zq4k3v9n8w7x6y5t4s{len(scheduler.queue().jobs):04d}"
    spec = WorkloadSpec(
        name="train",
        uid=uid,
        job_uid="job_01j9zq4k3v9n8w7x6y5t4s3r2q",
        team="vision",
        owner="owner@example.org",
        namespace="vision",
        image="registry.example.org/train:1",
        nodes=2,
        time_limit_min=10,
        gpus_per_node=8,
        instance_types=("p5.48xlarge",),
        script=f"#!/bin/bash\n{script}\n",
        scheduler=KUEUE,
        queue="vision",
        grace_s=2,
    )
    spec = replace(spec, **values)
    request = WorkloadSubmit(
        uid=uid,
        job_uid=spec.job_uid,
        name=spec.name,
        team=spec.team,
        owner=spec.owner,
        namespace="vision",
        queue="vision",
        kind=kind,
        spec=spec,
    )
    return scheduler.submit(request).scheduler_id


def reaches(scheduler: KubernetesScheduler, job: str, *states: str) -> v.SchedulerJob:
    seen: list[str] = []

    def look() -> v.SchedulerJob | None:
        found = scheduler.job(job)
        if not seen or seen[-1] != found.state:
            seen.append(found.state)
        return found if found.state in states or found.state in ENDED else None

    found = until(f"{job} is {states}", look, 25)
    assert found.state in states, (seen, str(found.why), found)
    return found


def pods(desk: Stack) -> list[str]:
    (cluster,) = desk.clusters()
    return [f"{one['namespace']}/{one['name']}" for one in cluster["pods"] if one["phase"] == "Running"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_of_each_kind_runs_on_two_nodes_and_completes(scheduler: KubernetesScheduler, kind: str) -> None:
    job = submit(scheduler, kind, 'sleep 2; [ "$NODE_RANK" = 1 ] || sleep 1')
    running = reaches(scheduler, job, "RUNNING")
    assert set(running.nodes) <= {"kube-1", "kube-2"}
    ended = reaches(scheduler, job, "COMPLETED")
    assert set(ended.nodes) == {"kube-1", "kube-2"}
    assert ended.ended_at is not None


@pytest.mark.parametrize("kind", [INDEXED_JOB, JOBSET, PYTORCHJOB])
def test_a_job_whose_script_fails_has_its_exit_code(scheduler: KubernetesScheduler, kind: str) -> None:
    ended = reaches(scheduler, submit(scheduler, kind, "sleep 1; exit 3"), "FAILED")
    assert ended.exit_code == 3


@pytest.mark.parametrize("kind", [INDEXED_JOB, JOBSET, PYTORCHJOB])
def test_what_happens_to_a_running_job_is_told(desk: Stack, scheduler: KubernetesScheduler, kind: str) -> None:
    job = submit(scheduler, kind, "sleep 100")
    reaches(scheduler, job, "RUNNING")
    until("both pods run", lambda: len(pods(desk)) == 2)
    inject(desk, {"kind": "pod-oom", "pod": pods(desk)[0]})
    ended = reaches(scheduler, job, "OUT_OF_MEMORY")
    assert "memory" in str(ended.why).lower()


def test_a_lost_node_ends_its_job(desk: Stack, scheduler: KubernetesScheduler) -> None:
    job = submit(scheduler, JOBSET, "sleep 100")
    reaches(scheduler, job, "RUNNING")
    until("both pods run", lambda: len(pods(desk)) == 2)
    inject(desk, {"kind": "node-loss", "node": "kube-2"})
    reaches(scheduler, job, "NODE_FAIL")


def test_a_job_past_its_time_is_a_timeout(desk: Stack, scheduler: KubernetesScheduler) -> None:
    job = submit(scheduler, INDEXED_JOB, "sleep 100")
    reaches(scheduler, job, "RUNNING")
    inject(desk, {"kind": "clock-skew", "ahead": "700"})
    reaches(scheduler, job, "TIMEOUT")


def test_a_cancelled_job_leaves_nothing_running(desk: Stack, scheduler: KubernetesScheduler) -> None:
    job = submit(scheduler, JOBSET, "sleep 100")
    reaches(scheduler, job, "RUNNING")
    scheduler.cancel(job)
    until("no pod is left", lambda: not pods(desk))


def test_a_job_waits_for_quota_and_gives_way_to_something_urgent(desk: Stack, scheduler: KubernetesScheduler) -> None:
    first = submit(scheduler, JOBSET, "sleep 100")
    reaches(scheduler, first, "RUNNING")
    second = submit(scheduler, JOBSET, "sleep 100")
    waits = until("it says why", lambda: (one := scheduler.job(second)).why and one)
    assert waits.state == "PENDING"
    until("both pods run", lambda: len(pods(desk)) == 2)
    inject(desk, {"kind": "pod-preempt", "pod": pods(desk)[0], "lasts": "3"})
    pushed = reaches(scheduler, first, "PENDING", "PREEMPTED")
    assert str(pushed.why)
