"""A whole pretend cluster on the world's machines, and Kubeflow's two kinds of training job on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from sandbox.kubernetes import Cluster
from sandbox.world import World
from tests.kubernetes_site import connect, pod, until


def join(world: World, name: str, cluster: str = "eks") -> None:
    world.node_join(
        name=name,
        instance_id=f"i-{name}",
        instance_type="p5.48xlarge",
        cluster=cluster,
        partition="gpu",
        gpu_type="h100",
        gpu_count=8,
        cpus=192,
        memory_mib=2048 * 1024,
    )


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def cluster(tmp_path: Path, world: World) -> Iterator[Cluster]:
    join(world, "early")
    join(world, "elsewhere", "another")
    made = Cluster(world, tmp_path / "state", name="eks", eviction_s=0.5, restart_s=0.1)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def core(cluster: Cluster) -> client.CoreV1Api:
    return client.CoreV1Api(connect(cluster.api))


def test_machines_come_and_go_as_nodes(cluster: Cluster, world: World, core: client.CoreV1Api) -> None:
    join(world, "late")
    nodes = {one.metadata.name: one for one in core.list_node().items}
    assert set(nodes) == {"early", "late"}
    assert nodes["late"].status.allocatable["nvidia.com/gpu"] == "8"
    world.node_lose("late")
    ready = [one.status for one in core.read_node("late").status.conditions if one.type == "Ready"]
    assert ready == ["Unknown"]
    world.node_leave("early")
    until("early is gone", lambda: {one.metadata.name for one in core.list_node().items} == {"late"})


def test_a_pytorch_job_gives_each_pod_its_rank(cluster: Cluster, core: client.CoreV1Api) -> None:
    script = {"command": ["sh", "-c", "echo $RANK of $WORLD_SIZE"]}
    replica = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": pod("x", container=script)["spec"]}}
    custom = client.CustomObjectsApi(core.api_client)
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "pt"},
        "spec": {
            "runPolicy": {"suspend": True},
            "pytorchReplicaSpecs": {"Master": replica, "Worker": {**replica, "replicas": 2}},
        },
    }
    where = ("kubeflow.org", "v1", "default", "pytorchjobs")
    custom.create_namespaced_custom_object(*where, body)
    until("suspended", lambda: held(custom.get_namespaced_custom_object(*where, "pt"), "Suspended"))
    assert not core.list_namespaced_pod("default").items
    custom.patch_namespaced_custom_object(*where, "pt", {"spec": {"runPolicy": {"suspend": False}}})
    until("succeeded", lambda: held(custom.get_namespaced_custom_object(*where, "pt"), "Succeeded"))
    until(
        "the last worker is over",
        lambda: core.read_namespaced_pod("pt-worker-1", "default").status.phase == "Succeeded",
    )
    assert core.read_namespaced_pod_log("pt-worker-1", "default") == "2 of 3\n"


def test_a_train_job_runs_its_runtime(cluster: Cluster, core: client.CoreV1Api) -> None:
    custom = client.CustomObjectsApi(core.api_client)
    container = {"name": "node", "image": "local/torch:1", "command": ["false"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    replicated = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"template": template},
        },
    }
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch"},
        "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": [replicated]}}},
    }
    group = ("trainer.kubeflow.org", "v1alpha1")
    custom.create_cluster_custom_object(*group, "clustertrainingruntimes", runtime)
    body = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "tj"},
        "spec": {
            "runtimeRef": {"name": "torch"},
            "trainer": {"numNodes": 2, "command": ["sh", "-c", "echo node $PET_NODE_RANK of $PET_NNODES"]},
        },
    }
    custom.create_namespaced_custom_object(*group, "default", "trainjobs", body)
    until(
        "complete", lambda: held(custom.get_namespaced_custom_object(*group, "default", "trainjobs", "tj"), "Complete")
    )
    logs = {
        core.read_namespaced_pod_log(one.metadata.name, "default") for one in core.list_namespaced_pod("default").items
    }
    assert logs == {"node 0 of 2\n", "node 1 of 2\n"}


def held(thing: dict[str, Any], kind: str) -> bool:
    found = (thing.get("status") or {}).get("conditions") or ()
    return any(one["type"] == kind and one["status"] == "True" for one in found)


def test_no_component_had_trouble(cluster: Cluster, core: client.CoreV1Api) -> None:
    core.create_namespaced_pod("default", pod("p"))
    until("it is over", lambda: core.read_namespaced_pod("p", "default").status.phase == "Succeeded")
    assert cluster.trouble() == {}


def test_pods_that_ran_under_an_earlier_sandbox_have_failed_and_their_logs_are_left(tmp_path: Path) -> None:
    world = World()
    join(world, "n1")
    first = Cluster(world, tmp_path / "kept", name="eks", restart_s=0.1)
    first.start()
    try:
        core = client.CoreV1Api(connect(first.api))
        body = pod("p", container={"command": ["sh", "-c", "echo begun; sleep 60"]})
        core.create_namespaced_pod("default", body)
        until("it has spoken", lambda: "begun" in log_of(core, "p"))
    finally:
        first.stop()
    second = Cluster(world, tmp_path / "kept", name="eks", restart_s=0.1)
    second.start()
    try:
        core = client.CoreV1Api(connect(second.api))
        until("it has failed", lambda: core.read_namespaced_pod("p", "default").status.phase == "Failed")
        ended = core.read_namespaced_pod("p", "default").status.container_statuses[0].state.terminated
        assert (ended.exit_code, log_of(core, "p")) == (137, "begun\n")
    finally:
        second.stop()


def log_of(core: client.CoreV1Api, name: str) -> str:
    try:
        return core.read_namespaced_pod_log(name, "default")
    except client.ApiException:
        return ""


def test_a_namespace_has_its_quota(cluster: Cluster, core: client.CoreV1Api) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"requests.nvidia.com/gpu": "6"}}}
    core.create_namespaced_resource_quota("default", quota)
    gpus = {"resources": {"limits": {"nvidia.com/gpu": "4"}}, "command": ["sleep", "60"]}
    core.create_namespaced_pod("default", pod("one", container=gpus))
    with pytest.raises(client.ApiException) as caught:
        core.create_namespaced_pod("default", pod("two", container=gpus))
    assert caught.value.status == 403
    assert (
        "exceeded quota: q, requested: requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=4" in caught.value.body
    )
    wanted = {"requests.nvidia.com/gpu": "4"}
    until("it is told", lambda: core.read_namespaced_resource_quota("q", "default").status.used == wanted)
