"""All that the portal does in a cluster, with the rights of deploy/kubernetes/rbac.yaml and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sandbox.kubernetes import ClusterApi
from sandbox.kubernetes.access import User
from sandbox.world import World
from tests import kubernetes_site
from tests.contract.kube_site import KubeSite, running_job, until_state
from worker.providers.kubernetes.client import KubernetesAccess
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
