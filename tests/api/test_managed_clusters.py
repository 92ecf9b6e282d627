"""API of clusters that AWS keeps: made, adopted, resized, deleted, nodes asked for; every refusal at its field."""

from __future__ import annotations

from typing import Any

import pytest

from apps.clusters.group_models import ClusterEvent, NodeAction, NodeGroup
from apps.clusters.models import Cluster, Node
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.intents.models import Intent
from tests.api.test_behaviour import problem
from tests.rules.test_managed_rules import SETTINGS, WISHES

pytestmark = pytest.mark.django_db


@pytest.fixture
def account() -> CloudAccount:
    return CloudAccount.objects.create(
        name="research", region="us-east-2", phase="CONNECTED", observed_account_id="123456789012"
    )


def group(kind: str, **changes: Any) -> dict[str, Any]:
    wish = WISHES[kind]
    body = {"name": wish.name, "instance_type": wish.instance_type, "nodes": wish.nodes, "role_arn": wish.role_arn}
    body |= {"subnet_ids": list(wish.subnet_ids), "security_group_ids": list(wish.security_group_ids)}
    return body | {"image_id": wish.image_id, "queue": wish.queue} | dict(wish.settings) | changes


def body_of(kind: str, **changes: Any) -> dict[str, Any]:
    return {"kind": kind, "name": "lab", "account": "research", "groups": [group(kind)], **SETTINGS[kind], **changes}


def make(client: Any, kind: str, key: str = "k1", **changes: Any) -> Any:
    return client.send("POST", "managed-clusters", body_of(kind, **changes), Idempotency_Key=key)


@pytest.mark.parametrize("kind", ["pcs", "eks", "hyperpod-eks"])
def test_a_cluster_is_made_once(as_user: Any, operator: Any, account: CloudAccount, kind: str) -> None:
    client = as_user(operator)
    first, again = make(client, kind), make(client, kind)
    assert (first.status_code, again.status_code) == (202, 202), first.content
    body = first.json()
    assert body["uid"] == again.json()["uid"]
    assert Cluster.objects.count() == NodeGroup.objects.count() == 1
    assert body["settings"] == SETTINGS[kind]
    assert body["groups"][0]["usd_per_hour"] == "63.296000"
    assert body["groups"][0]["price_source"]
    assert [s["state"] for s in body["steps"]] == ["WAITING"] * len(body["steps"])
    assert body["sentence"].startswith("Accepted")
    assert Intent.objects.filter(kind="cluster.reconcile", key=body["uid"]).exists()
    read = client.send("GET", f"managed-clusters/{body['uid']}")
    assert read.json()["uid"] == body["uid"]
    assert read["ETag"] == '"1"'
    listed = client.send("GET", "managed-clusters").json()
    assert [row["uid"] for row in listed["results"]] == [body["uid"]]


@pytest.mark.parametrize(
    ("kind", "changes", "pointer", "words"),
    [
        ("pcs", {"size": "SMALL", "groups": [group("pcs", nodes=64)]}, "/size", "smallest that fits is MEDIUM"),
        ("pcs", {"subnet_ids": ["subnet-0a1b", "subnet-0a1c"]}, "/subnet_ids", "exactly one"),
        ("pcs", {"addons": ["vpc-cni"]}, "/addons", "not a setting of this kind"),
        ("pcs", {"groups": [group("pcs", instance_type="p99.huge")]}, "/groups/0/instance_type", "not in the catalog"),
        ("pcs", {"groups": [group("pcs", team="nobody")]}, "/groups/0/team", "nobody"),
        ("pcs", {"groups": [group("pcs", reservation="rsv_none")]}, "/groups/0/reservation", "rsv_none"),
        ("eks", {"subnet_ids": ["subnet-0a1b"]}, "/subnet_ids", "two subnets"),
        ("eks", {"groups": [group("eks", source="training-plan", queue="")]}, "/groups/0/source", "on-demand"),
        ("hyperpod-eks", {"groups": [group("hyperpod-eks", source="odcr")]}, "/groups/0/source", "training plan"),
        ("hyperpod-eks", {"groups": []}, "/groups", "only with its first group"),
        ("hyperpod-eks", {"eks_cluster_arn": "x"}, "/eks_cluster_arn", "ARN of an EKS cluster"),
        (
            "hyperpod-eks",
            {"groups": [group("hyperpod-eks", lifecycle_s3="s3://mine/")]},
            "/groups/0/lifecycle_s3",
            "s3://sagemaker-",
        ),
        ("hyperpod-slurm", {}, "/groups", "exactly one group must be the controller"),
        ("hyperpod-slurm", {"user_name": "train"}, "/token_ref", "go together"),
    ],
)
def test_bad_input_is_named_at_its_field(
    as_user: Any, operator: Any, account: CloudAccount, kind: str, changes: dict[str, Any], pointer: str, words: str
) -> None:
    answer = make(as_user(operator), kind, **changes)
    body = problem(answer, 422, "InvalidInput")
    found = {e["pointer"]: e["detail"] for e in body["errors"]}
    assert pointer in found, found
    assert words in found[pointer]
    assert not Cluster.objects.exists()


def test_making_spends_money_and_needs_a_key(as_user: Any, operator: Any, account: CloudAccount) -> None:
    answer = as_user(operator).send("POST", "managed-clusters", body_of("pcs"))
    problem(answer, 400, "KeyRequired")


def test_a_cluster_is_adopted_and_corrected_and_let_go(as_user: Any, operator: Any, account: CloudAccount) -> None:
    client = as_user(operator)
    body = {"kind": "parallelcluster", "name": "hpc", "account": "research", "name_at_provider": "hpc-prod"}
    made = client.send("POST", "cluster-adoptions", body)
    assert made.status_code == 202, made.content
    assert made.json()["is_adopted"] is True
    again = client.send("POST", "cluster-adoptions", {**body, "name": "other"})
    assert problem(again, 422, "InvalidInput")["errors"][0]["pointer"] == "/name_at_provider"
    where = f"clusters/{made.json()['uid']}"
    reach = {"user_name": "train", "token_ref": "env:SLURM", "working_root": "/fsx", "api_url": "http://head:6820"}
    patched = client.send("PATCH", where, reach, If_Match='"1"')
    assert patched.status_code == 200, patched.content
    assert patched.json()["takes_jobs"] is True
    moved = client.send("PATCH", where, {"account": "research"}, If_Match='"2"')
    assert problem(moved, 422, "InvalidInput")["errors"][0]["pointer"] == "/account"
    assert problem(client.send("PATCH", where, {"name": "x"}), 428, "VersionRequired")
    gone = client.send("DELETE", where, If_Match='"2"')
    assert gone.status_code == 202, gone.content
    assert Cluster.objects.get().delete_requested_at is not None


def test_a_group_is_added_resized_and_deleted(as_user: Any, operator: Any, account: CloudAccount) -> None:
    client = as_user(operator)
    cluster = make(client, "pcs").json()["uid"]
    wanted = group("pcs", name="eval", queue="eval", nodes=8, min_nodes=1)
    added = client.send("POST", f"clusters/{cluster}/groups", wanted, Idempotency_Key="g1")
    assert added.status_code == 202, added.content
    uid = added.json()["uid"]
    assert len(client.send("GET", f"clusters/{cluster}/groups").json()["results"]) == 2
    resized = client.send("PATCH", f"groups/{uid}", {"nodes": 28}, If_Match='"1"')
    assert (resized.status_code, resized.json()["nodes"], resized["ETag"]) == (202, 28, '"2"')
    over = client.send("PATCH", f"groups/{uid}", {"nodes": 29}, If_Match='"2"')
    assert "MEDIUM" in problem(over, 422, "InvalidInput")["errors"][0]["detail"]
    stale = client.send("PATCH", f"groups/{uid}", {"nodes": 3}, If_Match='"1"')
    problem(stale, 412, "StaleVersion")
    gone = client.send("DELETE", f"groups/{uid}", If_Match='"2"')
    assert gone.status_code == 202
    assert NodeGroup.objects.get(uid=uid).delete_requested_at is not None


def test_a_failed_cluster_is_tried_again(as_user: Any, operator: Any, account: CloudAccount) -> None:
    client = as_user(operator)
    uid = make(client, "eks").json()["uid"]
    problem(client.send("POST", f"clusters/{uid}/retry", {}, If_Match='"1"'), 409, "TransitionConflict")
    Cluster.objects.update(phase="FAILED", observed_generation=1)
    answer = client.send("POST", f"clusters/{uid}/retry", {}, If_Match='"1"')
    assert (answer.status_code, answer.json()["generation"]) == (202, 2)


def test_nodes_are_asked_for_by_name_or_uid(as_user: Any, operator: Any, account: CloudAccount) -> None:
    client = as_user(operator)
    uid = make(client, "hyperpod-eks").json()["uid"]
    cluster = Cluster.objects.get(uid=uid)
    Cluster.objects.update(phase="READY")
    nodes = [Node.objects.create(cluster=cluster, name=f"n{i}", provider_id=f"i-{i}", phase="READY") for i in range(3)]
    where = f"clusters/{uid}/node-actions"
    body = {"verb": "replace", "nodes": ["n0", nodes[1].uid], "reason": "XID 79"}
    made = client.send("POST", where, body, Idempotency_Key="a1")
    assert made.status_code == 202, made.content
    assert [a["node"] for a in made.json()["actions"]] == ["n0", "n1"]
    assert Intent.objects.filter(kind="node.act", key=uid).exists()
    taken = client.send("POST", where, {**body, "nodes": ["n0"]}, Idempotency_Key="a2")
    assert "n0: an earlier request" in problem(taken, 422, "InvalidInput")["detail"]
    strange = client.send("POST", where, {**body, "nodes": ["n9"]}, Idempotency_Key="a3")
    assert problem(strange, 422, "InvalidInput")["errors"][0]["pointer"] == "/nodes"
    assert len(client.send("GET", where).json()["results"]) == 2
    assert NodeAction.objects.count() == 2


def test_events_and_health_are_read(as_user: Any, member: Any, operator: Any, account: CloudAccount) -> None:
    uid = make(as_user(operator), "hyperpod-eks").json()["uid"]
    cluster = Cluster.objects.get(uid=uid)
    ClusterEvent.objects.create(cluster=cluster, provider_id="e1", at=clock.now(), text="a node came", level="Info")
    NodeGroup.objects.update(phase="DEGRADED", health=[{"code": "X", "message": "y", "advice": "z"}])
    client = as_user(member)
    events = client.send("GET", f"clusters/{uid}/provider-events").json()["results"]
    assert [e["text"] for e in events] == ["a node came"]
    read = client.send("GET", f"managed-clusters/{uid}").json()
    assert read["groups"][0]["health"] == [{"code": "X", "message": "y", "advice": "z"}]
    assert read["jobs"].startswith("Watched and resized here")


def test_a_slurm_of_ones_own_is_not_among_them(as_user: Any, operator: Any, cluster: Any) -> None:
    client = as_user(operator)
    assert client.send("GET", "managed-clusters").json()["results"] == []
    problem(client.send("GET", f"managed-clusters/{cluster.uid}"), 404, "NotFound")


def test_lists_are_filtered_and_an_unknown_value_is_refused(as_user: Any, operator: Any, account: CloudAccount) -> None:
    client = as_user(operator)
    uid = make(client, "pcs").json()["uid"]
    make(client, "eks", key="k2", name="pods")

    def names(query: str) -> list[str]:
        return [row["name"] for row in client.send("GET", f"managed-clusters?{query}").json()["results"]]

    assert names("kind=pcs") == ["lab"]
    assert names("q=pod") == ["pods"]
    assert names("phase=FAILED") == []
    assert client.send("GET", f"clusters/{uid}/groups?phase=PENDING").json()["results"]
    assert client.send("GET", f"clusters/{uid}/groups?phase=ACTIVE").json()["results"] == []
    problem(client.send("GET", "managed-clusters?kind=nomad"), 400, "BadQuery")
    problem(client.send("GET", "managed-clusters?nope=1"), 400, "BadQuery")
