"""Pods that really run, jobs and JobSets over them, and what happens to them when things go wrong."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from sandbox.kubernetes import ClusterApi
from sandbox.kubernetes.jobs import JobController, JobSetController, ranges
from sandbox.kubernetes.kubelet import Kubelets
from sandbox.kubernetes.scheduler import Scheduler
from tests.kubernetes_site import cluster, config_map, connect, pod, until


@pytest.fixture
def made(tmp_path: Path) -> Iterator[ClusterApi]:
    with cluster(tmp_path / "state") as served:
        yield served


@pytest.fixture
def kubelets(made: ClusterApi) -> Iterator[Kubelets]:
    nodes = Kubelets(made, eviction_s=0.5, restart_s=0.1)
    actors = [nodes, Scheduler(made), JobController(made), JobSetController(made)]
    for name in ("n1", "n2"):
        nodes.add_node(name, {"nvidia.com/gpu": "8"}, {"node.kubernetes.io/instance-type": "p5.48xlarge"})
    for actor in actors:
        actor.start()
    yield nodes
    for actor in reversed(actors):
        actor.stop()


@pytest.fixture
def core(made: ClusterApi) -> client.CoreV1Api:
    return client.CoreV1Api(connect(made))


def shell(script: str, **more: Any) -> dict[str, Any]:
    return {"command": ["sh", "-c", script], **more}


def phase(core: client.CoreV1Api, name: str) -> str:
    return core.read_namespaced_pod(name, "default").status.phase


def job(name: str, script: str, **spec: Any) -> dict[str, Any]:
    template = {"spec": pod("x", container=shell(script))["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template, **spec},
    }


def conditions(thing: Any) -> set[str]:
    return {one.type for one in thing.status.conditions or () if one.status == "True"}


def test_a_command_runs_with_its_environment_and_its_log_is_kept(kubelets: Kubelets, core: client.CoreV1Api) -> None:
    core.create_namespaced_config_map("default", config_map("settings"))
    env = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}},
        {"name": "B", "value": "$(A)2"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    core.create_namespaced_pod("default", pod("p", container=shell("echo $A $B $NODE; exit 3", env=env)))
    until("it failed", lambda: phase(core, "p") == "Failed")
    ended = core.read_namespaced_pod("p", "default").status.container_statuses[0].state.terminated
    assert (ended.exit_code, ended.reason) == (3, "Error")
    assert core.read_namespaced_pod_log("p", "default") == "1 12 n1\n"


def test_a_pod_that_fits_nowhere_says_why(kubelets: Kubelets, core: client.CoreV1Api) -> None:
    core.create_namespaced_pod("default", pod("p", container={"resources": {"limits": {"nvidia.com/gpu": "9"}}}))

    def why() -> str:
        told = core.read_namespaced_pod("p", "default").status.conditions or ()
        return next((one.message for one in told if one.reason == "Unschedulable"), "")

    assert until("unschedulable", why) == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    events = core.list_namespaced_event("default", field_selector="involvedObject.name=p,reason=FailedScheduling")
    assert events.items[0].message == why()


def test_a_container_is_restarted_killed_for_memory_and_told_to_end(kubelets: Kubelets, core: client.CoreV1Api) -> None:
    core.create_namespaced_pod(
        "default", pod("again", restartPolicy="OnFailure", container=shell("test -e x || { touch x; exit 1; }"))
    )
    until("it succeeded", lambda: phase(core, "again") == "Succeeded")
    assert core.read_namespaced_pod("again", "default").status.container_statuses[0].restart_count == 1
    core.create_namespaced_pod("default", pod("greedy", container=shell("sleep 60")))
    until("it runs", lambda: phase(core, "greedy") == "Running")
    kubelets.oom("default", "greedy")
    until("it failed", lambda: phase(core, "greedy") == "Failed")
    ended = core.read_namespaced_pod("greedy", "default").status.container_statuses[0].state.terminated
    assert (ended.exit_code, ended.reason) == (137, "OOMKilled")
    core.create_namespaced_pod("default", pod("full", container=shell("sleep 60")))
    until("it runs", lambda: phase(core, "full") == "Running")
    kubelets.evict("default", "full")
    until("it is evicted", lambda: core.read_namespaced_pod("full", "default").status.reason == "Evicted")
    core.create_namespaced_pod("default", pod("polite", container=shell("trap 'exit 0' TERM; sleep 60 & wait")))
    until("it runs", lambda: phase(core, "polite") == "Running")
    core.delete_namespaced_pod("polite", "default")
    until(
        "it is gone", lambda: "polite" not in [one.metadata.name for one in core.list_namespaced_pod("default").items]
    )


def test_an_indexed_job_completes_and_one_that_fails_too_often_fails(
    made: ClusterApi, kubelets: Kubelets, core: client.CoreV1Api
) -> None:
    batch = client.BatchV1Api(core.api_client)
    batch.create_namespaced_job("default", job("good", "echo rank $JOB_COMPLETION_INDEX", suspend=True))
    until("suspended", lambda: "Suspended" in conditions(batch.read_namespaced_job("good", "default")))
    assert not core.list_namespaced_pod("default").items
    batch.patch_namespaced_job("good", "default", {"spec": {"suspend": False}})
    until("complete", lambda: "Complete" in conditions(batch.read_namespaced_job("good", "default")))
    told = batch.read_namespaced_job("good", "default").status
    assert (told.succeeded, told.completed_indexes) == (2, "0,1")
    logs = {
        core.read_namespaced_pod_log(one.metadata.name, "default") for one in core.list_namespaced_pod("default").items
    }
    assert logs == {"rank 0\n", "rank 1\n"}
    batch.create_namespaced_job("default", job("bad", "exit 1", backoffLimit=1))
    until("failed", lambda: "Failed" in conditions(batch.read_namespaced_job("bad", "default")))
    reasons = {one.reason for one in batch.read_namespaced_job("bad", "default").status.conditions}
    assert "BackoffLimitExceeded" in reasons


def test_a_lost_node_takes_its_pods_and_the_job_replaces_them(kubelets: Kubelets, core: client.CoreV1Api) -> None:
    batch = client.BatchV1Api(core.api_client)
    batch.create_namespaced_job("default", job("long", "sleep 60", completions=1, parallelism=1))

    def on() -> str:
        running = [one for one in core.list_namespaced_pod("default").items if one.status.phase == "Running"]
        return running[0].spec.node_name if running else ""

    first = until("it runs", on)
    kubelets.lose_node(first)
    until("it runs elsewhere", lambda: on() not in ("", first))
    ready = [one.status for one in core.read_node(first).status.conditions if one.type == "Ready"]
    assert ready == ["Unknown"]


def test_a_jobset_restarts_once_and_then_completes(made: ClusterApi, kubelets: Kubelets, tmp_path: Path) -> None:
    custom = client.CustomObjectsApi(connect(made))
    mark = tmp_path / "mark"
    spec = copy.deepcopy(
        job("x", f"test -e {mark} || {{ touch {mark}; exit 1; }}", backoffLimit=0, completions=1, parallelism=1)["spec"]
    )
    body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "set"},
        "spec": {
            "failurePolicy": {"maxRestarts": 1},
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": spec}}],
        },
    }
    where = ("jobset.x-k8s.io", "v1alpha2", "default", "jobsets")
    custom.create_namespaced_custom_object(*where, body)

    def state() -> Any:
        return custom.get_namespaced_custom_object(*where, "set").get("status", {}).get("terminalState")

    assert until("it ended", state) == "Completed"
    assert custom.get_namespaced_custom_object(*where, "set")["status"]["restarts"] == 1


def test_indexes_are_written_in_ranges() -> None:
    assert ranges({0, 1, 2, 5, 7, 8}) == "0-2,5,7,8"
    assert ranges(set()) == ""
