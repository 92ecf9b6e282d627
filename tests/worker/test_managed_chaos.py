"""A worker killed around every call that changes something, for every kind of cluster that AWS keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from apps.clusters.group_models import NodeAction
from apps.clusters.group_services import nodes_ask
from apps.clusters.models import Cluster, Node
from apps.connections.models import CloudAccount
from sandbox.aws import AwsOptions, AwsServer
from sandbox.world import World
from tests import cluster_site
from tests.chaos import WHEN, Crashing, Plan, point
from tests.conftest import actor_of
from tests.worker import managed_site as at
from worker import doors

pytestmark = [pytest.mark.django_db, pytest.mark.chaos, pytest.mark.any_database]

ENDING = ("group_delete", "cluster_delete")
#: Of each kind, the calls of its life; a verb stands for the batch call that carries it.
CALLS: dict[str, tuple[str, ...]] = {
    "pcs": (
        "cluster_ensure",
        "template_ensure",
        "group_ensure",
        "queue_ensure",
        "group_resize",
        "queue_delete",
        "template_delete",
        *ENDING,
    ),
    "eks": (
        "cluster_ensure",
        "prepare",
        "template_ensure",
        "group_ensure",
        "group_resize",
        "template_delete",
        *ENDING,
    ),
    "hyperpod-slurm": ("cluster_ensure", "group_ensure", "group_resize", "replace", "reboot", *ENDING),
    "hyperpod-eks": ("cluster_ensure", "group_ensure", "group_resize", "replace", "reboot", *ENDING),
    "parallelcluster": ("cluster_ensure", "cluster_delete"),
}
POINTS = [(kind, call, when) for kind, calls in CALLS.items() for call in calls for when in WHEN]
CHANGING = sorted({c for calls in CALLS.values() for c in calls} - {"replace", "reboot"} | {"nodes_act"})
#: What exists once it is made, resized to three and has another group of one.
THERE: dict[str, dict[str, int]] = {
    "pcs": {
        "pcs_clusters": 1,
        "pcs_groups": 2,
        "pcs_queues": 2,
        "secrets": 1,
        "launch_templates": 2,
        "instances": 2,
        "network_interfaces": 2,
    },
    "eks": {
        "eks_clusters": 1,
        "eks_nodegroups": 2,
        "eks_addons": 2,
        "eks_access_entries": 1,
        "launch_templates": 2,
        "instances": 4,
        "network_interfaces": 4,
    },
    "hyperpod-slurm": {"hyperpod_clusters": 1, "hyperpod_nodes": 5},
    "hyperpod-eks": {"hyperpod_clusters": 1, "hyperpod_nodes": 4},
    "parallelcluster": {"stacks": 1, "instances": 3, "network_interfaces": 3},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    # A reboot lasts longer than a worker is away: its traces are what the next one goes by.
    options = AwsOptions(cluster_create_s=0.12, cluster_delete_s=0.05, node_reboot_s=0.8, boot_s=0.05, shutdown_s=0.05)
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path_factory.mktemp("aws"), options)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    plan = Plan()
    real = doors.cluster_service_for
    monkeypatch.setattr(doors, "cluster_service_for", lambda cluster: Crashing(real(cluster), plan, CHANGING))
    monkeypatch.setenv("TEST_AWS", at.KEYS)
    return plan


@pytest.fixture
def account(server: AwsServer, plan: Plan) -> CloudAccount:
    return at.account(server)


def ask(operator: Any, cluster: Cluster, verb: str) -> list[str]:
    """Replace or reboot every node of the group; their machines."""
    nodes = list(Node.objects.filter(cluster=cluster, group=at.group_of(cluster)).exclude(phase="GONE"))
    cluster.refresh_from_db()
    nodes_ask(actor=actor_of(operator), cluster=cluster, nodes=nodes, verb=verb, reason="XID 79")
    return [n.provider_id for n in nodes]


def acted(server: AwsServer, work: Any, plan: Plan, operator: Any, cluster: Cluster, verb: str) -> str:
    """Ask for it, wait, and say what came of it: "" for exactly what was asked."""
    client = cluster_site.aws(server, "sagemaker")
    client.update_cluster_software(ClusterName=cluster.name_at_provider)
    at.drive(work, plan, lambda: at.all_settled(cluster))
    kept = server.services["sagemaker"].rows("clusters")[cluster.name_at_provider]
    at.drive(work, plan, lambda: kept["status"] == "InService")
    before = ask(operator, cluster, verb)
    at.drive(work, plan, lambda: not NodeAction.objects.filter(phase__in=["ASKED", "SENDING"]).exists())
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.group_of(cluster).observed_nodes == len(before))
    rows = Node.objects.filter(cluster=cluster, group=at.group_of(cluster)).exclude(phase="GONE")
    after = set(rows.values_list("provider_id", flat=True))
    taken = set(NodeAction.objects.values_list("phase", flat=True)) == {"TAKEN"}
    if verb == "replace":
        return "" if taken and not after & set(before) and len(after) == len(before) else f"{before} became {after}"
    return "" if taken and after == set(before) and kept["reboots"] == len(before) else f"{kept['reboots']} reboots"


@pytest.mark.parametrize(("kind", "call", "when"), POINTS)
def test_a_worker_killed_at_any_point_makes_what_was_asked_and_leaves_none(
    kind: str,
    call: str,
    when: str,
    account: CloudAccount,
    server: AwsServer,
    work: Any,
    plan: Plan,
    operator: Any,
) -> None:
    verb = call if call in ("replace", "reboot") else ""
    plan.call, plan.when = "nodes_act" if verb else call, when
    cluster = at.make(operator, account, kind)
    at.to_phase(work, plan, cluster, "READY")
    wrong = acted(server, work, plan, operator, cluster, verb) if verb else ""
    more = None
    # ParallelCluster's groups stand in its configuration.
    if kind != "parallelcluster":
        at.resize(operator, cluster, 3)
        more = at.add(operator, cluster, nodes=1, **({"min_nodes": 0} if kind == "pcs" else {}))
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.counts(server) == THERE[kind])
    there = at.counts(server)
    if more is not None:
        at.drop(operator, more)
        at.to_phase(work, plan, more, "DELETED")
    at.remove(operator, cluster)
    at.to_phase(work, plan, cluster, "DELETED")
    left = at.counts(server)
    holds = plan.done and not wrong and there == THERE[kind] and not left
    point(kind, call, when, "as asked, then none" if holds else f"{wrong} {there}, then {left}")
    assert plan.done
    assert not wrong
    assert there == THERE[kind]
    assert left == {}
    assert not Node.objects.exclude(phase="GONE").exists()
