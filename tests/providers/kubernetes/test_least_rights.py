"""All that the portal does in a cluster, with the rights of deploy/kubernetes/rbac.yaml and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox.kubernetes import ClusterApi
from sandbox.kubernetes.access import User
from sandbox.world import World
from tests import kubernetes_site
from tests.contract.kube_site import KubeSite, running_job, until_state
from worker.providers.kubernetes.client import KubernetesAccess
from worker.providers.kubernetes.made_kinds import DELETED_KINDS
from worker.providers.kubernetes.pod_sets import SHAPES
from worker.providers.kubernetes.scheduler import KubernetesScheduler, KubernetesSite
from worker.providers.workload_values import KINDS
from worker.reconcilers.clusters import NEEDED

RULES = Path(__file__).parents[3] / "deploy" / "kubernetes" / "rbac.yaml"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterApi]:
    with kubernetes_site.cluster(tmp_path, world=World()) as made:
        for thing in yaml.safe_load_all(RULES.read_text()):
            if thing and thing["kind"] in ("ClusterRole", "ClusterRoleBinding"):
                made.apply(thing)
        made.access.users["least"] = User(
            "system:serviceaccount:quarterdeck:quarterdeck", ("quarterdeck", "system:authenticated")
        )
        yield made


@pytest.fixture
def site(cluster: ClusterApi) -> Iterator[KubeSite]:
    with KubeSite(KubernetesAccess(cluster.url, token=cluster.token)) as made:
        yield made


@pytest.fixture
def scheduler(cluster: ClusterApi, site: KubeSite) -> Iterator[KubernetesScheduler]:
    made = KubernetesScheduler(KubernetesAccess(cluster.url, token="least"), KubernetesSite(name="least"))
    yield made
    made.close()


def test_nothing_that_is_asked_for_is_missing(scheduler: KubernetesScheduler) -> None:
    assert scheduler.queue().jobs is not None
    assert scheduler.informer.look().problems == {}
    told = scheduler.rights(NEEDED)
    assert {what for what, allowed in told.items() if not allowed} == set()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_submitted_again_and_cancelled(site: KubeSite, scheduler: KubernetesScheduler, kind: str) -> None:
    request = site.request(kind=kind, nodes=2, secret_environment={"QD_INGEST_TOKEN": "t"})
    receipt = scheduler.submit(request)
    assert scheduler.submit(request) == receipt
    until_state(scheduler, receipt.scheduler_id, "PENDING")
    (found,) = scheduler.jobs_by_comment(request.uid)
    assert found.scheduler_id == receipt.scheduler_id
    scheduler.cancel(receipt.scheduler_id)


OWN = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
---
apiVersion: batch/v1
kind: Job
metadata: {name: mine}
spec:
  suspend: true
  template:
    spec: {restartPolicy: Never, containers: [{name: a, image: "local/test:1"}]}
"""


def test_a_manifest_is_submitted_replaced_and_cancelled(site: KubeSite, scheduler: KubernetesScheduler) -> None:
    first = site.manifest(OWN)
    receipt = scheduler.submit(first)
    until_state(scheduler, receipt.scheduler_id, "PENDING")
    second = site.manifest(OWN)
    from dataclasses import replace

    receipt = scheduler.submit(replace(second, replaces=frozenset({first.uid})))
    until_state(scheduler, receipt.scheduler_id, "PENDING")
    scheduler.cancel(receipt.scheduler_id)
    assert "settings" not in kubernetes_names(site)


POD = {"restartPolicy": "Always", "containers": [{"name": "a", "image": "local/test:1"}]}
ENDING = {**POD, "restartPolicy": "Never"}
REPLICAS = {"selector": {"matchLabels": {"app": "a"}}}
REPLICAS |= {"replicas": 1, "template": {"metadata": {"labels": {"app": "a"}}, "spec": POD}}
JOB = {"suspend": True, "template": {"spec": ENDING}}
#: By kind: an object that makes pods, and how its API group and version are called.
MADE: dict[str, tuple[str, Any]] = {
    "Pod": ("v1", POD),
    "Job": ("batch/v1", JOB),
    "Deployment": ("apps/v1", REPLICAS),
    "ReplicaSet": ("apps/v1", REPLICAS),
    "StatefulSet": ("apps/v1", {**REPLICAS, "serviceName": "a"}),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", {"replicatedJobs": [{"name": "a", "template": {"spec": JOB}}]}),
    "PyTorchJob": (
        "kubeflow.org/v1",
        {"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": ENDING}}}},
    ),
    "HyperPodPyTorchJob": (
        "sagemaker.amazonaws.com/v1",
        {"replicaSpecs": [{"name": "pods", "replicas": 1, "template": {"spec": ENDING}}]},
    ),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", {"runtimeRef": {"name": "a", "kind": "TrainingRuntime"}}),
    "LeaderWorkerSet": (
        "leaderworkerset.x-k8s.io/v1",
        {"replicas": 1, "leaderWorkerTemplate": {"size": 1, "workerTemplate": {"spec": POD}}},
    ),
}
RUNTIME = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainingRuntime",
    "metadata": {"name": "a"},
    "spec": {"template": {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": JOB}}]}}},
}


def serve(cluster: ClusterApi, version: str, kind: str) -> None:
    """A kind whose definition the pretend server does not bring."""
    group, _sep, number = version.partition("/")
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": number, "served": True, "storage": True, "schema": schema}],
        },
    }
    cluster.apply(crd)


@pytest.mark.parametrize(("group", "kind"), sorted(SHAPES))
def test_every_kind_of_a_manifest_is_found_and_cancelled(
    cluster: ClusterApi, site: KubeSite, scheduler: KubernetesScheduler, group: str, kind: str
) -> None:
    if kind == "TrainingRuntime":
        assert kind in DELETED_KINDS, "it goes with its TrainJob"
        return
    version, spec = MADE[kind]
    assert version.rpartition("/")[0] == group
    if site.caller.served().by_kind(kind, group) is None:
        serve(cluster, version, kind)
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    thing = {"apiVersion": version, "kind": kind, "metadata": {"name": "a", "labels": labels}, "spec": spec}
    things = [RUNTIME, thing] if kind == "TrainJob" else [thing]
    request = site.manifest(yaml.safe_dump_all(things))
    receipt = scheduler.submit(request)
    assert scheduler.submit(request) == receipt
    (found,) = scheduler.jobs_by_comment(request.uid)
    assert found.scheduler_id == receipt.scheduler_id
    scheduler.cancel(receipt.scheduler_id)
    for one in things:
        resource = scheduler.served().by_kind(one["kind"])
        left = [row["metadata"] for row in site.things(resource)]
        assert [head["name"] for head in left if not head.get("deletionTimestamp")] == []


def kubernetes_names(site: KubeSite) -> list[str]:
    from worker.providers.kubernetes.resources import Resource

    return [m["metadata"]["name"] for m in site.things(Resource("", "v1", "configmaps", "ConfigMap"))]


def test_nodes_are_drained_and_emptied(site: KubeSite, scheduler: KubernetesScheduler) -> None:
    running_job(site, site.scheduler(), nodes=1)
    scheduler.node_drain(site.nodes[0], "for repair")
    assert scheduler.node_evict(site.nodes[0], 10) == 1
    scheduler.node_resume(site.nodes[0])


def test_what_ended_is_swept(site: KubeSite, scheduler: KubernetesScheduler) -> None:
    assert scheduler.sweep(lambda attempt: True) == 0
