"""Flavors of the pretend Kueue: which one a job takes, and that its pods stand on nodes of that flavor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from sandbox.kubernetes import Cluster
from sandbox.world import World
from tests.kubernetes_site import connect, until
from worker.providers.kubernetes.render import owned, render, workload_of
from worker.providers.workload_values import KINDS, KUEUE, WorkloadSpec

TYPE = "node.kubernetes.io/instance-type"
COVERED = ("cpu", "memory", "nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    world = World()
    made = Cluster(world, tmp_path / "state", name="eks", eviction_s=0.5, restart_s=0.1)
    made.start()
    for name, kind in (("a", "p5.48xlarge"), ("b", "p5en.48xlarge")):
        world.node_join(
            name=name,
            instance_id=f"i-{name}",
            instance_type=kind,
            cluster="eks",
            partition="gpu",
            gpu_type="h100",
            gpu_count=8,
            cpus=192,
            memory_mib=2048 * 1024,
            is_kubernetes=True,
            efa=16,
        )
    put(made, "v1", "Namespace", "vision")
    flavors = []
    for name, kind in (("p5", "p5.48xlarge"), ("p5en", "p5en.48xlarge")):
        put(made, "kueue.x-k8s.io/v1beta2", "ResourceFlavor", name, {"nodeLabels": {TYPE: kind}})
        flavors.append({"name": name, "resources": [{"name": each, "nominalQuota": "10Ti"} for each in COVERED]})
    groups = [{"coveredResources": list(COVERED), "flavors": flavors}]
    put(made, "kueue.x-k8s.io/v1beta2", "ClusterQueue", "all", {"namespaceSelector": {}, "resourceGroups": groups})
    put(made, "kueue.x-k8s.io/v1beta2", "LocalQueue", "vision", {"clusterQueue": "all"}, namespace="vision")
    yield made
    made.stop()


def put(cluster: Cluster, api: str, kind: str, name: str, spec: Any = None, namespace: str = "") -> None:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    cluster.api.apply({"apiVersion": api, "kind": kind, "metadata": metadata, **({"spec": spec} if spec else {})})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("asked", "node"), [((), "a"), (("p5en.48xlarge",), "b"), (("p5en.48xlarge", "p4d.24xlarge"), "b")]
)
def test_pods_stand_on_nodes_of_the_flavor(cluster: Cluster, kind: str, asked: tuple[str, ...], node: str) -> None:
    spec = WorkloadSpec(
        name="one node",
        uid="att_01j9zq4k3v9n8w7x6y5t4s3r2q",
        job_uid="job_01j9zq4k3v9n8w7x6y5t4s3r2q",
        team="vision",
        owner="owner@example.org",
        namespace="vision",
        image="registry.example.org/train:1",
        nodes=1,
        time_limit_min=10,
        gpus_per_node=8,
        instance_types=asked,
        command=("sleep", "60"),
        scheduler=KUEUE,
        queue="vision",
    )
    objects, made = render(spec, kind), None
    for one in objects:
        if one is workload_of(objects):
            made = cluster.api.apply(one)
        else:
            cluster.api.apply(owned(one, made) if made else one)
    core = client.CoreV1Api(connect(cluster.api))

    def on() -> str:
        running = [one for one in core.list_namespaced_pod("vision").items if one.status.phase == "Running"]
        return running[0].spec.node_name if running else ""

    assert until("it runs", on) == node
    (pod,) = core.list_namespaced_pod("vision").items
    assert pod.spec.node_selector[TYPE] == ("p5.48xlarge" if node == "a" else "p5en.48xlarge")


def test_a_type_that_no_flavor_has_is_said(cluster: Cluster) -> None:
    template = {
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {TYPE: "p4d.24xlarge"},
            "containers": [{"name": "a", "image": "x:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
        }
    }
    metadata = {"name": "p4", "labels": {"kueue.x-k8s.io/queue-name": "vision"}}
    body = {"metadata": metadata, "spec": {"suspend": True, "template": template}}
    client.BatchV1Api(connect(cluster.api)).create_namespaced_job("vision", body)

    def why() -> str:
        for one in cluster.api.store.scan("workloads.kueue.x-k8s.io"):
            for each in (one.get("status") or {}).get("conditions") or ():
                if each["type"] == "QuotaReserved":
                    return str(each["message"])
        return ""

    said = until("it says why", why)
    assert "flavor p5 doesn't match node affinity, flavor p5en doesn't match node affinity" in said
