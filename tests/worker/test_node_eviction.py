"""Draining a node of Kubernetes with what runs on it: asked until nothing is left, once more after a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.models import Cluster, Node
from apps.clusters.services import node_drain, node_resume
from apps.core import clock
from apps.core.errors import InvalidInput
from apps.intents.models import Intent
from apps.teams.permissions import system_actor
from sandbox.kubernetes import ClusterApi
from tests.kubernetes_site import ask, pod
from worker import doors
from worker.providers.kubernetes.access import of_kubeconfig
from worker.providers.kubernetes.scheduler import KubernetesScheduler, KubernetesSite

Work = Callable[..., int]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ClusterApi]:
    made = ClusterApi(tmp_path / "api", name="pods")
    made.serve(0)
    yield made
    made.stop()


@pytest.fixture
def node(db: Any, api: ClusterApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    import yaml

    opened = KubernetesScheduler(of_kubeconfig(yaml.safe_dump(api.kubeconfig())), KubernetesSite("pods"))
    monkeypatch.setattr(doors, "scheduler_for", lambda cluster, as_user="": opened)
    cluster = Cluster.objects.create(name="pods", kind="kubernetes", phase="READY")
    KubernetesSettings.objects.create(cluster=cluster, auth="kubeconfig", kubeconfig_ref="file:kubeconfig")
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    assert ask(api, "POST", "/api/v1/nodes", body)[0] == 201
    for name in ("a", "b"):
        thing = pod(name, nodeName="n1")
        assert ask(api, "POST", "/api/v1/namespaces/default/pods", thing)[0] == 201
    yield Node.objects.create(cluster=cluster, name="n1", gpus=8, phase="READY")
    opened.close()


def due() -> None:
    Intent.objects.update(due_at=clock.now())


def test_a_node_is_cordoned_and_its_pods_end_with_their_grace(api: ClusterApi, node: Node, work: Work) -> None:
    node_drain(actor=system_actor(), node=node, reason="it gets hot", evict_grace_s=300)
    work("node.drain")

    there = ask(api, "GET", "/api/v1/nodes/n1")[1]
    assert there["spec"]["unschedulable"] is True
    pods = ask(api, "GET", "/api/v1/namespaces/default/pods")[1]["items"]
    assert [p["metadata"]["deletionGracePeriodSeconds"] for p in pods] == [300, 300]
    node.refresh_from_db()
    assert node.evicted_at is None, "they are still there"
    for one in pods:
        path = f"/api/v1/namespaces/default/pods/{one['metadata']['name']}"
        ask(api, "DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
    due()
    work("node.drain")
    node.refresh_from_db()
    assert node.evicted_at is not None

    node_resume(actor=system_actor(), node=node)
    work("node.drain")
    assert not ask(api, "GET", "/api/v1/nodes/n1")[1]["spec"].get("unschedulable")
    node.refresh_from_db()
    assert node.evict_requested_at is None


def test_only_kubernetes_ends_what_runs_on_a_node(cluster: Any) -> None:
    slurm = Node.objects.filter(cluster=cluster).first()
    assert slurm is not None
    with pytest.raises(InvalidInput, match="only Kubernetes"):
        node_drain(actor=system_actor(), node=slurm, reason="x", evict_grace_s=10)


def test_a_grace_beyond_an_hour_is_refused(node: Node) -> None:
    with pytest.raises(InvalidInput, match="3,600"):
        node_drain(actor=system_actor(), node=node, reason="x", evict_grace_s=4000)
