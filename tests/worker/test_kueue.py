"""Teams' shares in Kueue: written from rows, compared, repaired, and never taken from somebody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.utils import translation

from apps.audit.models import Event
from apps.clusters import kube_services as services
from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.models import Cluster, Node
from apps.intents.services import intent_ask
from apps.quotas.services import quota_set
from apps.teams.permissions import system_actor
from sandbox.kubernetes import ClusterApi
from tests.kubernetes_site import ask
from worker import doors, kube_doors
from worker.arrangement import arrangement_of
from worker.providers.kubernetes.kueue import KueueKeeper

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
GPU = "nvidia.com/gpu"
Work = Callable[..., int]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ClusterApi]:
    made = ClusterApi(tmp_path / "api", name="pods")
    made.serve(0)
    yield made
    made.stop()


@pytest.fixture
def pods(db: Any, api: ClusterApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A Kubernetes cluster of four p5 in the portal, reached by a kubeconfig."""
    monkeypatch.setattr(doors, "secret", lambda reference, account=None: yaml.safe_dump(api.kubeconfig()))
    cluster = Cluster.objects.create(name="pods", kind="kubernetes", phase="READY", limits_mode="enforce")
    KubernetesSettings.objects.create(
        cluster=cluster, auth="kubeconfig", kubeconfig_ref="file:kubeconfig", namespace_prefix="ml-"
    )
    for i in range(4):
        Node.objects.create(
            cluster=cluster,
            name=f"n{i}",
            instance_type="p5.48xlarge",
            gpu_type="h100",
            gpus=8,
            cpus=192,
            memory_mib=2_000_000,
            phase="READY",
        )
    yield cluster
    kube_doors.close_all()


def settings_now(cluster: Cluster) -> KubernetesSettings:
    return KubernetesSettings.objects.get(cluster=cluster)


def queue(api: ClusterApi, name: str) -> dict[str, Any]:
    status, found = ask(api, "GET", f"{KUEUE}/clusterqueues/{name}")
    assert status == 200, found
    return dict(found)


def quota_of(thing: dict[str, Any], resource: str = GPU) -> dict[str, Any]:
    flavors = thing["spec"]["resourceGroups"][0]["flavors"]
    return next(dict(row) for row in flavors[0]["resources"] if row["name"] == resource)


def share(cluster: Cluster, team: Any, **numbers: Any) -> None:
    services.team_share_put(
        actor=system_actor(), cluster=cluster, team=team, instance_type="p5.48xlarge", **{"gpus": 16, **numbers}
    )


def test_shares_and_quotas_become_queues_and_the_rest_is_the_cohort_s(
    api: ClusterApi, pods: Cluster, team: Any, work: Work
) -> None:
    quota_set(actor=system_actor(), team=team, gpus=24)
    share(pods, team, lending_gpus=8)

    work("cluster.queues")

    found = queue(api, team.slug)
    assert quota_of(found) == {"name": GPU, "nominalQuota": "16", "borrowingLimit": "8", "lendingLimit": "8"}
    assert quota_of(found, "cpu")["nominalQuota"] == "384"
    assert quota_of(found, "vpc.amazonaws.com/efa")["nominalQuota"] == "64"
    assert found["spec"]["cohortName"] == "quarterdeck"
    status, local = ask(api, "GET", f"{KUEUE}/namespaces/ml-{team.slug}/localqueues/{team.slug}")
    assert status == 200
    assert local["spec"]["clusterQueue"] == team.slug
    status, cohort = ask(api, "GET", f"{KUEUE}/cohorts/quarterdeck")
    rest = next(r for r in cohort["spec"]["resourceGroups"][0]["flavors"][0]["resources"] if r["name"] == GPU)
    assert rest["nominalQuota"] == "16"
    status, flavor = ask(api, "GET", f"{KUEUE}/resourceflavors/p5.48xlarge")
    assert flavor["spec"]["nodeLabels"] == {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    row = settings_now(pods)
    assert row.drift == []
    assert row.queues_written_at is not None
    assert [q["name"] for q in row.observed_queues] == [team.slug]


def test_what_somebody_changes_is_told_and_put_back(api: ClusterApi, pods: Cluster, team: Any, work: Work) -> None:
    share(pods, team)
    work("cluster.queues")
    found = queue(api, team.slug)
    found["spec"]["resourceGroups"][0]["flavors"][0]["resources"][2]["nominalQuota"] = "4"
    assert found["spec"]["resourceGroups"][0]["flavors"][0]["resources"][2]["name"] == GPU
    assert ask(api, "PUT", f"{KUEUE}/clusterqueues/{team.slug}", found)[0] == 200

    intent_ask("cluster.queues", pods.uid)
    work("cluster.queues")

    assert quota_of(queue(api, team.slug))["nominalQuota"] == "16"
    assert settings_now(pods).drift == []
    told = Event.objects.get(object_uid=pods.uid, kind="QueuesRepaired")
    assert "nominalQuota is 4; wanted is 16" in str(told.text)
    assert Event.objects.filter(object_uid=pods.uid, kind="QueuesWritten").count() == 1


def test_compare_only_writes_nothing_and_shows_the_field(api: ClusterApi, pods: Cluster, team: Any, work: Work) -> None:
    share(pods, team)
    work("cluster.queues")
    Cluster.objects.filter(pk=pods.pk).update(limits_mode="watch")
    share(pods, team, gpus=24)

    work("cluster.queues")

    assert quota_of(queue(api, team.slug))["nominalQuota"] == "16"
    row = settings_now(pods)
    texts = [str(place["text"]) for place in row.drift]
    assert any("nominalQuota is 16; wanted is 24" in text for text in texts)
    with translation.override("ko"):
        assert not any("wanted is" in str(place["text"]) for place in settings_now(pods).drift)


def test_a_queue_of_somebody_else_with_the_same_name_is_left_alone(
    api: ClusterApi, pods: Cluster, team: Any, work: Work
) -> None:
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": team.slug},
        "spec": {"namespaceSelector": {}},
    }
    assert ask(api, "POST", f"{KUEUE}/clusterqueues", body)[0] == 201
    share(pods, team)

    work("cluster.queues")

    assert "resourceGroups" not in queue(api, team.slug)["spec"]
    assert any("made by somebody else" in str(place["text"]) for place in settings_now(pods).drift)


def test_a_share_that_is_taken_away_goes_with_what_was_made_for_it(
    api: ClusterApi, pods: Cluster, team: Any, outsider: Any, work: Work
) -> None:
    share(pods, team)
    work("cluster.queues")
    row = services.team_namespace_put(
        actor=system_actor(), cluster=pods, team=team, namespace="elsewhere", queue="their-queue"
    )

    work("cluster.queues")

    assert ask(api, "GET", f"{KUEUE}/clusterqueues/{team.slug}")[0] == 404, "its queue is somebody else's now"
    assert ask(api, "GET", f"/api/v1/namespaces/ml-{team.slug}")[0] == 200, "a namespace is never taken away"
    assert row.queue == "their-queue"


def test_without_kueue_the_page_says_so(pods: Cluster, team: Any, work: Work, tmp_path: Path, monkeypatch: Any) -> None:
    bare = ClusterApi(tmp_path / "bare", name="bare", crds=())
    bare.serve(0)
    try:
        monkeypatch.setattr(doors, "secret", lambda reference, account=None: yaml.safe_dump(bare.kubeconfig()))
        share(pods, team)
        work("cluster.queues")
        assert "no Kueue" in str(settings_now(pods).queues_message)
    finally:
        bare.stop()


def test_a_worker_that_dies_at_any_call_ends_at_the_same_queues(
    api: ClusterApi, pods: Cluster, team: Any, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apps.core import clock
    from apps.intents.models import Intent
    from tests.chaos import Crash
    from worker.providers.kubernetes.calls import Caller

    real, deaths = Caller.patch, 0
    left = {"calls": 0}

    def dying(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal deaths
        left["calls"] -= 1
        if left["calls"] == 0:
            deaths += 1
            real(self, *args, **kwargs)
            raise Crash
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Caller, "patch", dying)
    share(pods, team)
    for number in range(1, 8):
        left["calls"] = number
        try:
            work("cluster.queues", most=1)
        except Crash:
            Intent.objects.update(leased_until=None, lease="")
        Intent.objects.update(due_at=clock.now())
    left["calls"] = -1
    work("cluster.queues")

    assert deaths, "no call was interrupted"
    assert quota_of(queue(api, team.slug))["nominalQuota"] == "16"
    assert settings_now(pods).drift == []
    status, found = ask(api, "GET", f"{KUEUE}/clusterqueues")
    assert [q["metadata"]["name"] for q in found["items"]] == [team.slug]


def test_two_portals_on_one_server_leave_each_other_s_queues_alone(
    api: ClusterApi, pods: Cluster, team: Any, outsider: Any, work: Work
) -> None:
    share(pods, team)
    work("cluster.queues")
    other = KueueKeeper(kube_doors.kubernetes_for(pods).caller, "clu_of_another_portal")

    compared = other.compare(replace(arrangement_of(pods, settings_now(pods)), teams=()))
    other.write(compared)

    assert quota_of(queue(api, team.slug))["nominalQuota"] == "16"
    assert {one.name for one in compared.foreign} == {"p5.48xlarge", "quarterdeck"}
    intent_ask("cluster.queues", pods.uid)
    work("cluster.queues")
    assert settings_now(pods).drift == []


def test_a_cluster_scaled_to_nothing_keeps_its_queues(api: ClusterApi, pods: Cluster, team: Any, work: Work) -> None:
    quota_set(actor=system_actor(), team=team, gpus=24)
    intent_ask("cluster.queues", pods.uid)
    work("cluster.queues")
    assert quota_of(queue(api, team.slug))["borrowingLimit"] == "24"
    Node.objects.filter(cluster=pods).update(phase="GONE")
    intent_ask("cluster.queues", pods.uid)
    work("cluster.queues")

    assert quota_of(queue(api, team.slug))["borrowingLimit"] == "24"
    cohort = ask(api, "GET", f"{KUEUE}/cohorts/quarterdeck")[1]
    rest = next(r for r in cohort["spec"]["resourceGroups"][0]["flavors"][0]["resources"] if r["name"] == GPU)
    assert rest["nominalQuota"] == "0"
