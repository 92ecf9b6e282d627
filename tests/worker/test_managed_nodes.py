"""Machines of node groups: two sources of truth, names that pass on, wishes that do not, requests and answers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from apps.audit.models import Event
from apps.clusters.group_models import NodeAction, NodeGroup
from apps.clusters.group_services import nodes_ask
from apps.clusters.member_observations import SeenMachine, members_observe
from apps.clusters.models import Cluster, Node
from apps.clusters.observations import SeenNode, cluster_nodes_observe
from apps.clusters.services import node_drain
from apps.connections.models import CloudAccount
from apps.core import clock
from sandbox.aws import AwsServer
from sandbox.world import World
from tests import cluster_site
from tests.chaos import Plan
from tests.conftest import actor_of
from tests.worker import managed_site as at
from worker.providers import cluster_values as kv
from worker.providers import errors
from worker.reconcilers import node_actions

pytestmark = [pytest.mark.django_db]


@pytest.fixture
def kept() -> Cluster:
    """A PCS cluster with a group, whose scheduler is asked too."""
    where = CloudAccount.objects.create(name="a", region="us-east-2", phase="CONNECTED")
    cluster = Cluster.objects.create(
        name="lab", kind="pcs", account=where, phase="READY", user_name="qd", token_ref="env:T", working_root="/s"
    )
    NodeGroup.objects.create(
        cluster=cluster, name="p5en", instance_type=at.TYPE, nodes=2, phase="ACTIVE", provider_id="pcs_1"
    )
    return cluster


def machine(cluster: Cluster, number: int, state: str = "running", **changes: Any) -> SeenMachine:
    facts: dict[str, Any] = {
        "provider_id": f"i-{number:017x}",
        "name": f"ip-10-0-0-{number}",
        "group": NodeGroup.objects.get(cluster=cluster),
        "state": state,
        "word": state,
        "instance_type": at.TYPE,
        "private_ip": f"10.0.0.{number}",
    }
    return SeenMachine(**{**facts, **changes})


def slurm(name: str, number: int, state: str = "IDLE", *flags: str, **more: Any) -> SeenNode:
    told = {"address": f"10.0.0.{number}" if number else "", **more}
    return SeenNode(name, state, flags, "h200", 8, 0, 192, 2_000_000, "", ("train",), **told)


def rows(cluster: Cluster) -> list[tuple[str, str, str]]:
    return sorted((n.name, n.provider_id[-2:], n.phase) for n in Node.objects.filter(cluster=cluster))


def living(cluster: Cluster) -> list[tuple[str, str, str]]:
    return [r for r in rows(cluster) if r[2] != "GONE"]


@pytest.mark.parametrize("first", ["the machines", "the scheduler"])
def test_one_machine_is_one_row_whoever_tells_of_it_first(first: str, kept: Cluster) -> None:
    looks = [
        lambda: members_observe(kept, [machine(kept, 1)]),
        lambda: cluster_nodes_observe(kept, [slurm("p5en-1", 1)]),
    ]
    for look in looks if first == "the machines" else reversed(looks):
        look()
    for look in looks:
        look()
    (name, _id, phase) = living(kept)[0]
    assert (len(rows(kept)), phase) == (1, "READY")
    # The scheduler's name is the one that jobs and drains go by.
    assert name == "p5en-1"
    node = Node.objects.get(cluster=kept)
    assert (node.provider_id, node.private_ip, node.gpus) == (f"i-{1:017x}", "10.0.0.1", 8)
    assert NodeGroup.objects.get(cluster=kept).observed_nodes == 1


def test_slurm_tells_the_instance_where_it_can(kept: Cluster) -> None:
    members_observe(kept, [machine(kept, 1), machine(kept, 2)])
    cluster_nodes_observe(kept, [slurm("p5en-1", 0, provider_id=f"i-{2:017x}")])
    assert [r[:2] for r in living(kept)] == [("ip-10-0-0-1", "01"), ("p5en-1", "02")]


def test_a_new_machine_under_an_old_slurm_name_is_a_new_row_without_the_old_ones_drain(
    kept: Cluster, operator: Any
) -> None:
    members_observe(kept, [machine(kept, 1)])
    cluster_nodes_observe(kept, [slurm("p5en-1", 1)])
    old = Node.objects.get(name="p5en-1")
    node_drain(actor=actor_of(operator), node=old, reason="XID 79")
    # The scheduler already speaks of the successor while AWS still lists both machines.
    members_observe(kept, [machine(kept, 1), machine(kept, 2, "pending")])
    cluster_nodes_observe(kept, [slurm("p5en-1", 2)])
    assert living(kept) == [("p5en-1", "02", "READY")]
    old.refresh_from_db()
    assert (old.phase, old.drain_reason, old.provider_id[-1]) == ("GONE", "XID 79", "1")
    new = Node.objects.get(provider_id=f"i-{2:017x}")
    assert (new.drain_requested_at, new.drain_reason) == (None, "")
    assert Event.objects.filter(object_uid=old.uid, kind="DrainRequested").exists()
    members_observe(kept, [machine(kept, 2)])
    assert len(living(kept)) == 1


def test_a_hyperpod_replacement_keeps_the_name_and_is_another_row(kept: Cluster, operator: Any) -> None:
    Cluster.objects.filter(pk=kept.pk).update(kind="hyperpod-slurm")
    kept.refresh_from_db()
    members_observe(kept, [machine(kept, 1)])
    cluster_nodes_observe(kept, [slurm("ip-10-0-0-1", 0)])
    old = Node.objects.get(cluster=kept)
    node_drain(actor=actor_of(operator), node=old, reason="XID 79")
    # The new instance has the old one's name and address.
    members_observe(kept, [machine(kept, 7, "pending", name="ip-10-0-0-1", private_ip="10.0.0.1")])
    assert rows(kept) == [("ip-10-0-0-1", "01", "GONE"), ("ip-10-0-0-1", "07", "BOOTING")]
    cluster_nodes_observe(kept, [slurm("ip-10-0-0-1", 0)])
    new = Node.objects.get(provider_id=f"i-{7:017x}")
    assert (new.phase, new.drain_requested_at) == ("READY", None)
    assert new.uid != old.uid


def test_what_the_service_calls_broken_the_scheduler_does_not_make_usable(kept: Cluster) -> None:
    members_observe(kept, [machine(kept, 1)])
    cluster_nodes_observe(kept, [slurm("p5en-1", 1)])
    members_observe(kept, [machine(kept, 1, "failing", message="EFA health check failed")])
    cluster_nodes_observe(kept, [slurm("p5en-1", 1)])
    node = Node.objects.get(cluster=kept)
    assert (node.phase, str(node.observed_reason)) == ("DOWN", "EFA health check failed")
    members_observe(kept, [machine(kept, 1, "failing", message="EFA health check failed")])
    assert Event.objects.filter(object_uid=node.uid, kind="NodePhase", data__phase="DOWN").count() == 1
    members_observe(kept, [machine(kept, 1)])
    node.refresh_from_db()
    assert (node.phase, str(node.observed_reason)) == ("READY", "")
    # A drain of the scheduler's own is not undone by a machine that runs.
    cluster_nodes_observe(kept, [slurm("p5en-1", 1, "IDLE", "DRAIN")])
    members_observe(kept, [machine(kept, 1)])
    node.refresh_from_db()
    assert node.phase == "DRAINED"


def test_names_without_machines_are_no_nodes_and_machines_without_names_no_dead_ones(kept: Cluster) -> None:
    members_observe(kept, [machine(kept, 1), machine(kept, 2)])
    cluster_nodes_observe(kept, [slurm("p5en-1", 1), slurm("p5en-3", 0, "IDLE", "CLOUD", "POWERED_DOWN")])
    # A controller or login node is in no scheduler's list.
    assert living(kept) == [("ip-10-0-0-2", "02", "READY"), ("p5en-1", "01", "READY")]
    cluster_nodes_observe(kept, [])
    assert living(kept) == [("ip-10-0-0-2", "02", "READY"), ("p5en-1", "01", "DOWN")]
    members_observe(kept, [machine(kept, 1, "ending")])
    assert living(kept) == [("p5en-1", "01", "DOWN")]
    assert NodeGroup.objects.get(cluster=kept).observed_nodes == 0
    members_observe(kept, [])
    assert living(kept) == []


# --- requests about nodes


@pytest.fixture
def server(tmp_path: Any) -> Iterator[AwsServer]:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, cluster_site.OPTIONS)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def pod(server: AwsServer, monkeypatch: pytest.MonkeyPatch, work: Any, operator: Any) -> Cluster:
    """A HyperPod cluster with two nodes, ready."""
    monkeypatch.setenv("TEST_AWS", at.KEYS)
    cluster = at.make(operator, at.account(server), "hyperpod-slurm")
    at.drive(work, Plan(), lambda: at.all_settled(cluster))
    return cluster


def nodes_of(cluster: Cluster) -> list[Node]:
    return list(Node.objects.filter(cluster=cluster, group__name="p5en").exclude(phase="GONE").order_by("name"))


def settled(action: NodeAction) -> bool:
    action.refresh_from_db()
    return action.phase in ("TAKEN", "REFUSED")


def test_each_node_of_a_batch_has_its_answer(pod: Cluster, server: AwsServer, work: Any, operator: Any) -> None:
    actor, (one, other) = actor_of(operator), nodes_of(pod)
    refused = nodes_ask(actor=actor, cluster=pod, nodes=[one], verb="replace", reason="XID 79")[0]
    at.drive(work, Plan(), lambda: settled(refused))
    assert refused.phase == "REFUSED"
    assert "UpdateClusterSoftware" in refused.message
    assert "30 to 60 minutes" in refused.message
    client = cluster_site.aws(server, "sagemaker")
    client.update_cluster_software(ClusterName=pod.name_at_provider)
    cluster_site.eventually(
        lambda: client.describe_cluster(ClusterName=pod.name_at_provider)["ClusterStatus"] == "InService"
    )
    # One of them left meanwhile.
    Node.objects.filter(pk=other.pk).update(provider_id="i-0123456789abcdef0")
    other.refresh_from_db()
    actions = nodes_ask(actor=actor, cluster=pod, nodes=[one, other], verb="replace", reason="XID 79")
    at.drive(work, Plan(), lambda: all(settled(a) for a in actions), kinds=("node.act",))
    assert [a.phase for a in actions] == ["TAKEN", "REFUSED"]
    assert "InstanceIdNotFound" in actions[1].message
    at.drive(work, Plan(), lambda: at.all_settled(pod) and {n.phase for n in nodes_of(pod)} == {"READY"})
    one.refresh_from_db()
    successor = next(n for n in nodes_of(pod) if n.name == one.name)
    assert one.phase == "GONE"
    assert successor.provider_id != one.provider_id
    assert Event.objects.filter(object_uid=one.uid, kind="NodeActionTaken").exists()


def test_no_more_than_25_go_in_one_call(
    pod: Cluster, operator: Any, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, int]] = []

    def nodes_act(self: Any, seen: kv.SeenCluster, verb: str, ids: list[str]) -> tuple[kv.NodeAnswer, ...]:
        sent.append((verb, len(ids)))
        return tuple(kv.NodeAnswer(i) for i in ids)

    monkeypatch.setattr("worker.providers.aws.hyperpod.HyperPod.nodes_act", nodes_act)
    group = at.group_of(pod)
    many = [
        Node.objects.create(cluster=pod, group=group, name=f"n{i}", provider_id=f"i-{i:017x}", phase="READY")
        for i in range(60)
    ]
    nodes_ask(actor=actor_of(operator), cluster=pod, nodes=many[:55], verb="reboot", reason="stuck")
    nodes_ask(actor=actor_of(operator), cluster=pod, nodes=many[55:], verb="replace", reason="XID 79")
    at.drive(work, Plan(), lambda: not NodeAction.objects.exclude(phase="TAKEN").exists(), kinds=("node.act",))
    assert sent == [("reboot", 25), ("reboot", 25), ("reboot", 5), ("replace", 5)]


@pytest.mark.parametrize(
    ("verb", "state", "age_s", "phase"),
    [
        ("replace", "running", 600, "ASKED"),
        ("replace", None, 600, "TAKEN"),
        ("replace", "pending", 600, "TAKEN"),
        ("reboot", "updating", 600, "TAKEN"),
        ("reboot", "running", 10, "ASKED"),
        ("reboot", "running", 600, "REFUSED"),
        ("reboot", None, 600, "REFUSED"),
    ],
)
def test_a_doubt_is_settled_by_a_look(verb: str, state: str | None, age_s: int, phase: str, kept: Cluster) -> None:
    node = Node.objects.create(cluster=kept, name="n", provider_id="i-1", phase="READY")
    action = NodeAction.objects.create(
        node=node,
        provider_id="i-1",
        verb=verb,
        reason="why",
        asked_by="operator",
        phase="SENDING",
        attempted_at=clock.now() - timedelta(seconds=age_s),
    )
    seen = {} if state is None else {"i-1": kv.SeenMember("i-1", "n", "p5en", state, state, at.TYPE)}
    node_actions._resolve([action], seen)
    action.refresh_from_db()
    assert action.phase == phase
    assert action.message


def test_a_throttled_batch_is_sent_again_and_a_lost_one_looked_for(
    pod: Cluster, server: AwsServer, operator: Any, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: list[Exception] = [errors.Throttled("slow down"), errors.Unavailable("no answer")]
    sent: list[str] = []

    def nodes_act(self: Any, seen: kv.SeenCluster, verb: str, ids: list[str]) -> tuple[kv.NodeAnswer, ...]:
        sent.append(verb)
        if replies:
            raise replies.pop(0)
        return tuple(kv.NodeAnswer(i) for i in ids)

    monkeypatch.setattr("worker.providers.aws.hyperpod.HyperPod.nodes_act", nodes_act)
    action = nodes_ask(actor=actor_of(operator), cluster=pod, nodes=nodes_of(pod)[:1], verb="replace", reason="x")[0]
    at.drive(work, Plan(), lambda: settled(action), kinds=("node.act",))
    assert (action.phase, sent) == ("TAKEN", ["replace"] * 3)
    at.remove(operator, pod)
    open_one = NodeAction.objects.create(
        node=nodes_of(pod)[1], provider_id="i-2", verb="reboot", reason="x", asked_by="operator"
    )
    at.to_phase(work, Plan(), pod, "DELETED")
    open_one.refresh_from_db()
    assert open_one.phase == "REFUSED"
