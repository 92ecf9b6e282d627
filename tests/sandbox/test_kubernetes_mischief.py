"""Faults that the control desk puts into pretend clusters: pods, nodes, images, the API server and its clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import urllib3
from kubernetes import client, config

from sandbox.control.faults import BadFault, NoSuchThing, clear, inject
from sandbox.control.stack import Stack
from sandbox.kubernetes.estate import Estate
from sandbox.world import World
from tests.kubernetes_site import pod, until
from tests.sandbox.test_kubernetes_running import shell


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Stack]:
    world = World()
    estate = Estate(world, None, tmp_path)
    estate.start()
    yield Stack(world, None, None, None, estate)  # type: ignore[arg-type]
    estate.stop()


@pytest.fixture
def core(desk: Stack) -> client.CoreV1Api:
    assert desk.kubernetes is not None
    found = desk.kubernetes.kubeconfig()
    assert found is not None
    return client.CoreV1Api(config.new_client_from_config_dict(found))


def told(core: client.CoreV1Api, name: str = "p") -> Any:
    return core.read_namespaced_pod(name, "default").status


def running(core: client.CoreV1Api, **more: Any) -> None:
    core.create_namespaced_pod("default", pod("p", container=shell("sleep 60"), **more))
    until("it runs", lambda: told(core).phase == "Running")


def test_a_pod_is_killed_for_memory(desk: Stack, core: client.CoreV1Api) -> None:
    running(core)
    assert inject(desk, {"kind": "pod-oom", "pod": "default/p"}).sentence.startswith("A container of default/p")
    until("it failed", lambda: told(core).phase == "Failed")
    assert told(core).container_statuses[0].state.terminated.reason == "OOMKilled"
    with pytest.raises(NoSuchThing, match="runs now"):
        inject(desk, {"kind": "pod-oom", "pod": "default/p"})
    with pytest.raises(NoSuchThing, match="default/p"):
        inject(desk, {"kind": "pod-oom", "pod": "nobody"})
    for wrong in ({"pod": "a/b/c"}, {}, {"pod": "p", "node": "kube-1"}):
        with pytest.raises(BadFault):
            inject(desk, {"kind": "pod-oom", **wrong})


def test_a_pod_is_evicted(desk: Stack, core: client.CoreV1Api) -> None:
    running(core)
    inject(desk, {"kind": "pod-evict", "pod": "p"})
    until("it is evicted", lambda: told(core).reason == "Evicted")
    assert "low on resource: memory" in told(core).message


def test_an_image_that_cannot_be_pulled_keeps_a_pod_waiting_until_it_can(desk: Stack, core: client.CoreV1Api) -> None:
    done = inject(desk, {"kind": "image-pull", "image": "local/test:1"})
    core.create_namespaced_pod("default", pod("p", container=shell("true")))

    def waits() -> str:
        found = told(core).container_statuses
        return found[0].state.waiting.reason if found and found[0].state.waiting else ""

    assert until("it waits", waits) == "ImagePullBackOff"
    clear(desk, str(done.uid))
    until("it ran", lambda: told(core).phase == "Succeeded")


def test_a_node_is_cut_off_and_answers_again(desk: Stack, core: client.CoreV1Api) -> None:
    def ready() -> str:
        found = core.read_node("kube-1").status.conditions
        return next(str(one.status) for one in found if one.type == "Ready")

    inject(desk, {"kind": "node-loss", "node": "kube-1"})
    assert ready() == "Unknown"
    inject(desk, {"kind": "node-back", "node": "kube-1"})
    assert ready() == "True"
    assert not core.read_node("kube-1").spec.taints


def test_the_api_server_is_away_for_a_while_and_its_watches_end(desk: Stack, core: client.CoreV1Api) -> None:
    began = time.monotonic()
    stream = core.list_node(watch=True, timeout_seconds=60, _preload_content=False)
    assert stream.readline()
    done = inject(desk, {"kind": "api-away", "cluster": "kube", "seconds": "3"})
    assert done.sentence == "The API server of kube is away, for 3 s."
    assert not answers(core)
    stream.read()
    assert time.monotonic() - began < 15
    until("it answers again", lambda: answers(core))


def answers(core: client.CoreV1Api) -> bool:
    """Whether it does, without a second try."""
    core.api_client.rest_client.pool_manager.connection_pool_kw["retries"] = False
    try:
        return len(core.list_node(_request_timeout=5).items) == 2
    except urllib3.exceptions.HTTPError:
        return False


def test_the_clock_of_the_api_server_is_wrong(desk: Stack, core: client.CoreV1Api) -> None:
    inject(desk, {"kind": "clock-skew", "ahead": "-600"})
    core.create_namespaced_pod("default", pod("p"))
    made = core.read_namespaced_pod("p", "default").metadata.creation_timestamp
    assert 590 < (datetime.now(UTC) - made).total_seconds() < 610
    with pytest.raises(BadFault, match="ahead"):
        inject(desk, {"kind": "clock-skew", "ahead": "soon"})


def test_something_urgent_takes_the_place_of_a_queued_job(desk: Stack, core: client.CoreV1Api) -> None:
    custom = client.CustomObjectsApi(core.api_client)

    def make(plural: str, kind: str, body: dict[str, Any], namespace: str = "") -> None:
        thing = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, **body}
        if namespace:
            custom.create_namespaced_custom_object("kueue.x-k8s.io", "v1beta2", namespace, plural, thing)
        else:
            custom.create_cluster_custom_object("kueue.x-k8s.io", "v1beta2", plural, thing)

    covered = {
        "coveredResources": ["cpu"],
        "flavors": [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": 4}]}],
    }
    preemption = {"withinClusterQueue": "LowerPriority"}
    make("resourceflavors", "ResourceFlavor", {"metadata": {"name": "any"}, "spec": {}})
    spec = {"namespaceSelector": {}, "resourceGroups": [covered], "preemption": preemption}
    make("clusterqueues", "ClusterQueue", {"metadata": {"name": "all"}, "spec": spec})
    queue = {"metadata": {"name": "q"}, "spec": {"clusterQueue": "all"}}
    make("localqueues", "LocalQueue", queue, "default")
    template = {"spec": pod("x", container=shell("sleep 60", resources={"requests": {"cpu": "3"}}))["spec"]}
    metadata = {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"suspend": True, "template": template},
    }
    client.BatchV1Api(core.api_client).create_namespaced_job("default", body)

    def pods(prefix: str) -> list[str]:
        found = core.list_namespaced_pod("default").items
        return [
            one.metadata.name for one in found if one.status.phase == "Running" and one.metadata.name.startswith(prefix)
        ]

    name = until("the job runs", lambda: pods("train"))[0]
    done = inject(desk, {"kind": "pod-preempt", "pod": name, "lasts": "2"})
    assert "in the queue q" in done.sentence
    until("the urgent one runs", lambda: pods("urgent"))
    until("the job runs again", lambda: pods("train"), 20)


def test_the_desk_lists_clusters_nodes_and_pods(desk: Stack, core: client.CoreV1Api) -> None:
    running(core)
    (found,) = desk.clusters()
    assert found["name"] == "kube"
    assert [(one["name"], one["ready"], one["gpus"]) for one in found["nodes"]] == [
        ("kube-1", True, "8"),
        ("kube-2", True, "8"),
    ]
    assert [(one["name"], one["phase"]) for one in found["pods"]] == [("p", "Running")]
    assert found["trouble"] == {}
