"""What serves on the pretend cluster: pods of Deployments and LeaderWorkerSets are made, kept and replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from sandbox.kubernetes import Cluster
from sandbox.world import World
from tests.kubernetes_site import connect, until
from tests.sandbox.test_kubernetes_trainers import join


@pytest.fixture
def core(tmp_path: Path) -> Iterator[client.CoreV1Api]:
    world = World()
    made = Cluster(world, tmp_path / "state", name="eks", eviction_s=0.5, restart_s=0.1)
    made.start()
    join(world, "n1")
    yield client.CoreV1Api(connect(made.api))
    made.stop()


def running(core: client.CoreV1Api) -> dict[str, str]:
    found = core.list_namespaced_pod("default").items
    return {
        one.metadata.name: one.metadata.uid
        for one in found
        if one.status.phase == "Running" and not one.metadata.deletion_timestamp
    }


def template(script: str) -> dict[str, Any]:
    container = {"name": "main", "image": "local/test:1", "command": ["sh", "-c", script]}
    return {
        "metadata": {"labels": {"app": "a"}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }


def test_a_deployment_keeps_its_pods_and_replaces_them_with_its_template(core: client.CoreV1Api) -> None:
    apps = client.AppsV1Api(core.api_client)
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template("sleep 60")}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    apps.create_namespaced_deployment("default", body)
    first = until("two run", lambda: len(found := running(core)) == 2 and found)
    until("it is told", lambda: apps.read_namespaced_deployment("web", "default").status.available_replicas == 2)
    name = next(iter(first))
    core.delete_namespaced_pod(name, "default", grace_period_seconds=0)
    until("it was replaced", lambda: running(core).get(name) not in (None, first[name]))
    apps.patch_namespaced_deployment("web", "default", {"spec": {"replicas": 1, "template": template("sleep 61")}})
    until("one of the new template runs", lambda: len(found := running(core)) == 1 and not set(found) & set(first))


def test_a_leader_and_its_workers_find_each_other(core: client.CoreV1Api) -> None:
    custom = client.CustomObjectsApi(core.api_client)
    script = "echo $LWS_WORKER_INDEX of $LWS_GROUP_SIZE at $LWS_LEADER_ADDRESS; sleep 60"
    body = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template(script)}},
    }
    where = ("leaderworkerset.x-k8s.io", "v1", "default", "leaderworkersets")
    custom.create_namespaced_custom_object(*where, body)
    until("all run", lambda: set(running(core)) == {"serve-0", "serve-0-1", "serve-1", "serve-1-1"})
    until("it is told", lambda: custom.get_namespaced_custom_object(*where, "serve")["status"]["readyReplicas"] == 2)
    assert until("it said so", lambda: core.read_namespaced_pod_log("serve-0-1", "default")) == "1 of 2 at 127.0.0.1\n"
