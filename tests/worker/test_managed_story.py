"""A story of pages, worker and fake AWS together: a cluster is made, watched, grown and deleted by an operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client

from apps.clusters.group_models import NodeGroup
from apps.clusters.models import Cluster
from apps.connections.models import CloudAccount
from sandbox.aws import AwsServer
from sandbox.aws.options import IMAGE_ID, SECURITY_GROUP_ID, SUBNET_ID
from sandbox.world import World
from tests import cluster_site
from tests.chaos import Plan
from tests.cluster_site import PROFILE, ROLE
from tests.worker import managed_site as at

pytestmark = [pytest.mark.django_db]


@pytest.fixture
def server(tmp_path: Any) -> Iterator[AwsServer]:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, cluster_site.OPTIONS)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def account(server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> CloudAccount:
    monkeypatch.setenv("TEST_AWS", at.KEYS)
    return at.account(server)


@pytest.fixture
def page(operator: Any) -> Callable[..., str]:
    """Open an address as the operator, or post to it; the text of where it leads."""
    client = Client()
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")

    def go(where: str, body: dict[str, Any] | None = None) -> str:
        answer = client.get(where) if body is None else client.post(where, body)
        if answer.status_code == 302:
            return go(answer["Location"])
        assert answer.status_code == 200, (
            where,
            answer.status_code,
            re.findall(r'problem"[^>]*>[^<]+', answer.content.decode()),
        )
        return str(answer.content.decode())

    return go


def test_pcs_from_the_form_to_nothing(
    page: Callable[..., str], account: CloudAccount, server: AwsServer, work: Any
) -> None:
    key = re.search(r'name="key" value="(\w+)"', page("/clusters/new/pcs"))
    assert key is not None
    text = page(
        "/clusters/new/pcs",
        {
            "key": key[1],
            "name": "lab",
            "account": account.uid,
            "version": "25.05",
            "size": "SMALL",
            "subnet_ids": SUBNET_ID,
            "security_group_ids": SECURITY_GROUP_ID,
            "idle_s": "600",
            "group-name": "p5en",
            "group-instance_type": "p5en.48xlarge",
            "group-nodes": "4",
            "group-min_nodes": "2",
            "group-source": "on-demand",
            "group-queue": "train",
            "group-subnet_ids": SUBNET_ID,
            "group-security_group_ids": SECURITY_GROUP_ID,
            "group-role_arn": PROFILE,
            "group-image_id": IMAGE_ID,
        },
    )
    assert "Accepted" in text
    cluster, plan = Cluster.objects.get(name="lab"), Plan()
    where = f"/clusters/{cluster.uid}"
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.counts(server).get("instances") == 2)
    at.drive(work, plan, lambda: cluster.nodes.exclude(phase="GONE").count() == 2)
    text = page(where)
    assert "Ready: 2 nodes in one node group." in text
    assert "SMALL: up to 32 nodes and 256 jobs" in text
    assert "secretsmanager" in text
    assert "step-waiting" not in text
    group = NodeGroup.objects.get(cluster=cluster)
    text = page(f"/groups/{group.uid}/resize", {"version": group.version, "nodes": "6", "min_nodes": "3"})
    at.drive(work, plan, lambda: at.counts(server).get("instances") == 3)
    at.drive(work, plan, lambda: cluster.nodes.exclude(phase="GONE").count() == 3)
    assert "Active: 3 nodes now" in page(f"/groups/{group.uid}")
    cluster.refresh_from_db()
    text = page(f"{where}/delete", {"version": cluster.version, "typed": "lab"})
    assert "Being deleted: queues, then groups" in text
    at.to_phase(work, plan, cluster, "DELETED")
    assert at.counts(server) == {}
    text = page(where)
    assert "AWS holds nothing of it any more." in text
    assert "ask-delete" not in text


def test_hyperpod_nodes_are_replaced_from_the_page(
    page: Callable[..., str], account: CloudAccount, server: AwsServer, work: Any
) -> None:
    page(
        "/clusters/new/hyperpod-slurm",
        {
            "key": "one",
            "name": "lab",
            "account": account.uid,
            "subnet_ids": SUBNET_ID,
            "security_group_ids": SECURITY_GROUP_ID,
            "recovers": "on",
            "role_arn": ROLE,
            "lifecycle_s3": "s3://sagemaker-lab/scripts/",
            "on_create": "on_create.sh",
            "controller_type": "m5.2xlarge",
            "group-name": "train",
            "group-instance_type": "p5en.48xlarge",
            "group-nodes": "3",
            "group-source": "on-demand",
            "group-queue": "train",
        },
    )
    cluster, plan = Cluster.objects.get(name="lab"), Plan()
    at.drive(work, plan, lambda: at.all_settled(cluster) and cluster.nodes.exclude(phase="GONE").count() == 4)
    cluster_site.aws(server, "sagemaker").update_cluster_software(ClusterName=cluster.name_at_provider)
    at.drive(work, plan, lambda: at.all_settled(cluster))
    chosen = list(cluster.nodes.filter(group__name="train", phase="READY").order_by("name")[:2])
    where = f"/clusters/{cluster.uid}/nodes/ask"
    text = page(where, {"review": "1", "verb": "replace", "node": [n.uid for n in chosen]})
    assert "Replace 2 nodes" in text
    body = {"key": "two", "verb": "replace", "reason": "XID 79", "node": [n.uid for n in chosen]}
    assert "Requests about nodes" in page(where, body)
    ids = {n.provider_id for n in chosen}

    def replaced() -> bool:
        here = set(cluster.nodes.exclude(phase="GONE").values_list("provider_id", flat=True))
        return not ids & here and len(here) == 4

    at.drive(work, plan, replaced)
    text = page(f"/clusters/{cluster.uid}")
    assert "Accepted by AWS" in text
    assert "XID 79" in text
