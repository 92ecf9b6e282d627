"""The page of teams in a cluster's Kubernetes: its forms, what they refuse, what it shows of Kueue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.test import Client

from apps.clusters.kube_forms import KubernetesForm
from apps.clusters.kube_models import KubernetesSettings, TeamNamespace, TeamShare
from apps.clusters.models import Cluster, Node
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]


def kept() -> Cluster:
    return Cluster.objects.select_related("kubernetes").get(name="babbage")


def posted(cluster: Cluster, **changes: Any) -> dict[str, Any]:
    """What the form of settings sends as it stands."""
    initial = KubernetesForm.initial_of(cluster, cluster.kubernetes)
    body = {name: value for name, value in initial.items() if value not in (None, False)}
    return {"what": "settings", "version": cluster.kubernetes.version, **body, **changes}


def test_shares_queues_and_drift_are_shown(sign_in: SignIn, more: DemoRows) -> None:
    text = sign_in("operator").get(f"/clusters/{kept().uid}/kubernetes").content.decode()
    assert "nominalQuota is 12; wanted is 16" in text
    assert "hyperpod-ns-vision-clusterqueue" in text
    assert "teams have 40 GPUs of their own and the cluster has 32" in text
    assert sign_in("member").get(f"/clusters/{kept().uid}/kubernetes").status_code == 403


def test_a_share_and_a_namespace_are_entered_and_taken_away(sign_in: SignIn, more: DemoRows) -> None:
    client, url = sign_in("operator"), f"/clusters/{kept().uid}/kubernetes"
    share = {"what": "share", "share_team": "speech", "instance_type": "p5.48xlarge", "gpus": "8"}
    assert client.post(url, share).status_code == 302
    row = TeamShare.objects.get(team__slug="speech")
    assert (row.gpus, row.borrowing_gpus) == (8, None)
    refused = client.post(url, {**share, "lending_gpus": "9"})
    assert refused.status_code == 422
    assert "lend its own 8 at most" in refused.content.decode()
    assert client.post(f"/team-shares/{row.uid}/remove").status_code == 302
    taken = {"what": "namespace", "team": "speech", "namespace": "ml-nlp", "queue": "", "weight": "1"}
    assert client.post(url, taken).status_code == 422
    assert client.post(url, {**taken, "namespace": "ml-speech-2"}).status_code == 302
    row = TeamNamespace.objects.get(team__slug="speech")
    assert client.post(f"/team-namespaces/{row.uid}/remove").status_code == 302


def test_settings_are_changed_with_the_version_seen(sign_in: SignIn, more: DemoRows) -> None:
    cluster = kept()
    client, url = sign_in("operator"), f"/clusters/{cluster.uid}/kubernetes"
    body = posted(cluster, mounts="fsx /fsx\ndata /data sub ro", allowances=["host_network"])
    assert client.post(url, body).status_code == 302, client.post(url, body).content.decode()[:2000]
    row = KubernetesSettings.objects.get(cluster=cluster)
    assert row.mounts[1] == {"claim": "data", "path": "/data", "sub_path": "sub", "read_only": True}
    assert row.allowances == ["host_network"]
    assert client.post(url, posted(kept(), mounts="fsx fsx")).status_code == 422
    assert client.post(url, {**body, "context": "other"}).status_code in (409, 412, 422), "the version is an old one"


def test_a_cluster_that_is_only_watched_lets_jobs_in(sign_in: SignIn, more: DemoRows) -> None:
    cluster = more.clusters["hamilton"]
    client, url = sign_in("operator"), f"/clusters/{cluster.uid}/kubernetes"
    assert "Let jobs in" in client.get(url).content.decode()
    body = {"what": "settings", "auth": "eks", "scheduler": "plain", "limits_mode": "off", "cohort": "quarterdeck"}
    assert client.post(url, body).status_code == 302
    assert Cluster.objects.select_related("kubernetes").get(pk=cluster.pk).takes_jobs


def test_a_node_is_drained_with_its_pods(sign_in: SignIn, more: DemoRows) -> None:
    node = Node.objects.get(name="ip-10-2-0-13.ec2.internal")
    client = sign_in("operator")
    page = client.get(f"/nodes/{node.uid}").content.decode()
    assert "End the pods on it, too" in page
    body = {"reason": "hot", "evict": "1", "evict_grace_s": "60"}
    assert client.post(f"/nodes/{node.uid}/drain", body).status_code == 302
    node.refresh_from_db()
    assert (node.evict_grace_s, node.evict_requested_at is not None) == (60, True)
    assert client.post(f"/nodes/{node.uid}/drain", {**body, "evict_grace_s": "soon"}).status_code == 422
