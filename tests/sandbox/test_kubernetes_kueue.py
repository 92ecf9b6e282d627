"""The pretend Kueue: jobs wait for quota, borrow in their cohort, and give way to more important ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from sandbox.kubernetes import ClusterApi
from sandbox.kubernetes.jobs import JobController
from sandbox.kubernetes.kubelet import Kubelets
from sandbox.kubernetes.kueue import Kueue
from sandbox.kubernetes.scheduler import Scheduler
from tests.kubernetes_site import cluster, connect, pod, until

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
QUOTA = {
    "withinClusterQueue": "LowerPriority",
    "reclaimWithinCohort": "Any",
}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[ClusterApi]:
    with cluster(tmp_path / "state") as served:
        nodes = Kubelets(served)
        for name in ("n1", "n2", "n3"):
            nodes.add_node(name, {"nvidia.com/gpu": "8"})
        actors = [nodes, Scheduler(served), JobController(served), Kueue(served)]
        for actor in actors:
            actor.start()
        yield served
        for actor in reversed(actors):
            actor.stop()


@pytest.fixture
def custom(made: ClusterApi) -> client.CustomObjectsApi:
    api = client.CustomObjectsApi(connect(made))

    def put(plural: str, kind: str, name: str, spec: dict[str, Any] | None, **more: Any) -> None:
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name}, **more}
        if spec is not None:
            body["spec"] = spec
        api.create_cluster_custom_object(GROUP, VERSION, plural, body)

    put("resourceflavors", "ResourceFlavor", "h100", {})
    put("workloadpriorityclasses", "WorkloadPriorityClass", "urgent", None, value=100)
    for team, borrowing in (("a", 4), ("b", 8)):
        gpus = {"name": "nvidia.com/gpu", "nominalQuota": 8, "borrowingLimit": borrowing}
        group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "h100", "resources": [gpus]}]}
        spec = {"cohortName": "all", "namespaceSelector": {}, "resourceGroups": [group], "preemption": QUOTA}
        put("clusterqueues", "ClusterQueue", f"team-{team}", spec)
        local = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "LocalQueue",
            "metadata": {"name": f"team-{team}", "namespace": "default"},
            "spec": {"clusterQueue": f"team-{team}"},
        }
        api.create_namespaced_custom_object(GROUP, VERSION, "default", "localqueues", local)
    return api


def submit(made: ClusterApi, name: str, queue: str, gpus: int, *, script: str = "sleep 60", **labels: str) -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}, "command": ["sh", "-c", script]}
    spec = {
        "suspend": True,
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 1,
        "template": {"spec": pod("x", container=limits)["spec"]},
    }
    marks = {"kueue.x-k8s.io/queue-name": queue, **labels}
    client.BatchV1Api(connect(made)).create_namespaced_job(
        "default", {"metadata": {"name": name, "labels": marks}, "spec": spec}
    )


def told(custom: client.CustomObjectsApi, job: str) -> dict[str, dict[str, Any]]:
    listed = custom.list_namespaced_custom_object(GROUP, VERSION, "default", "workloads")["items"]
    for one in listed:
        if one["metadata"]["ownerReferences"][0]["name"] == job:
            return {each["type"]: each for each in one.get("status", {}).get("conditions", ())}
    return {}


def holds(custom: client.CustomObjectsApi, job: str, kind: str) -> bool:
    return told(custom, job).get(kind, {}).get("status") == "True"


def test_a_job_waits_for_quota_and_starts_when_it_is_free(made: ClusterApi, custom: client.CustomObjectsApi) -> None:
    submit(made, "first", "team-a", 8, script="sleep 2")
    until("admitted", lambda: holds(custom, "first", "Admitted"))
    submit(made, "other", "team-b", 8)
    until("admitted", lambda: holds(custom, "other", "Admitted"))
    submit(made, "second", "team-a", 4)
    why = until("told why", lambda: told(custom, "second").get("QuotaReserved"))
    assert why["status"] == "False"
    assert "insufficient unused quota for nvidia.com/gpu in flavor h100, 4 more needed" in why["message"]
    until("first is over", lambda: holds(custom, "first", "Finished"))
    until("second is admitted", lambda: holds(custom, "second", "Admitted"))
    batch = client.BatchV1Api(connect(made))
    assert until("it runs", lambda: batch.read_namespaced_job("second", "default").spec.suspend is False)
    usage = until(
        "usage told",
        lambda: (
            custom.get_cluster_custom_object(GROUP, VERSION, "clusterqueues", "team-a")
            .get("status", {})
            .get("flavorsUsage")
        ),
    )
    assert usage[0]["resources"][0]["total"] == "4"


def test_quota_is_borrowed_and_given_back(made: ClusterApi, custom: client.CustomObjectsApi) -> None:
    submit(made, "one", "team-b", 8)
    submit(made, "two", "team-b", 8)
    until("both run", lambda: holds(custom, "one", "Admitted") and holds(custom, "two", "Admitted"))
    submit(made, "owner", "team-a", 8)
    until("the owner runs", lambda: holds(custom, "owner", "Admitted"))
    gone = [name for name in ("one", "two") if holds(custom, name, "Evicted")]
    assert len(gone) == 1
    assert told(custom, gone[0])["Evicted"]["reason"] == "Preempted"
    assert told(custom, gone[0])["Preempted"]["reason"] == "InCohortReclamation"
    batch = client.BatchV1Api(connect(made))
    until("it is suspended again", lambda: batch.read_namespaced_job(gone[0], "default").spec.suspend)


def test_the_urgent_takes_the_place_of_the_rest(made: ClusterApi, custom: client.CustomObjectsApi) -> None:
    submit(made, "b", "team-b", 8)
    submit(made, "low", "team-a", 8)
    until("low runs", lambda: holds(custom, "low", "Admitted"))
    until("b runs", lambda: holds(custom, "b", "Admitted"))
    submit(made, "high", "team-a", 8, **{"kueue.x-k8s.io/priority-class": "urgent"})
    until("high runs", lambda: holds(custom, "high", "Admitted"))
    evicted = told(custom, "low")["Preempted"]
    assert (evicted["status"], evicted["reason"]) == ("True", "InClusterQueue")
    assert "due to prioritization in the ClusterQueue" in evicted["message"]


def test_what_can_never_run_says_so(made: ClusterApi, custom: client.CustomObjectsApi) -> None:
    submit(made, "huge", "team-a", 16)
    why = until("told why", lambda: told(custom, "huge").get("QuotaReserved"))
    assert "request > maximum capacity (16 > 12)" in why["message"]
    submit(made, "lost", "nowhere", 1)
    why = until("told why", lambda: told(custom, "lost").get("QuotaReserved"))
    assert (why["reason"], why["message"]) == ("Inadmissible", "LocalQueue nowhere doesn't exist")


def test_what_belongs_to_the_cohort_is_lent_to_its_queues(made: ClusterApi, custom: client.CustomObjectsApi) -> None:
    for name in ("busy-a", "busy-b"):
        submit(made, name, f"team-{name[-1]}", 8)
        until("admitted", lambda name=name: holds(custom, name, "Admitted"))
    submit(made, "more", "team-a", 4)
    until("it waits", lambda: told(custom, "more").get("QuotaReserved"))
    assert not holds(custom, "more", "Admitted")
    spare = {"coveredResources": ["nvidia.com/gpu"]}
    spare["flavors"] = [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 4}]}]
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Cohort", "metadata": {"name": "all"}}
    custom.create_cluster_custom_object(GROUP, VERSION, "cohorts", {**body, "spec": {"resourceGroups": [spare]}})
    until("admitted", lambda: holds(custom, "more", "Admitted"))
