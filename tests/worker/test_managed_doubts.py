"""Clusters and groups of AWS's where a careless look would make, take or lose machines that nobody asked for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from apps.clusters import managed_observations as observations
from apps.clusters.group_models import REMOVED, ClusterStep, NodeGroup
from apps.clusters.managed_services import cluster_adopt, cluster_retry
from apps.clusters.models import Cluster, Node
from apps.connections.models import CloudAccount
from apps.core import clock
from sandbox.aws import AwsServer
from sandbox.world import World
from tests import cluster_site
from tests.chaos import Plan
from tests.conftest import actor_of
from tests.worker import managed_site as at
from worker import doors
from worker.engine import DONE
from worker.providers import cluster_values as kv
from worker.reconcilers import groups as group_visits
from worker.reconcilers import managed
from worker.reconcilers.managed_parts import CAPACITY_WAIT, cluster_spec

pytestmark = [pytest.mark.django_db]


@pytest.fixture
def server(tmp_path: Any) -> Iterator[AwsServer]:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, cluster_site.OPTIONS)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def plan() -> Plan:
    return Plan()


@pytest.fixture
def account(server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> CloudAccount:
    monkeypatch.setenv("TEST_AWS", at.KEYS)
    return at.account(server)


@pytest.mark.parametrize(
    ("is_adopted", "mark", "phase"),
    [
        (False, {}, "FAILED"),
        (True, {}, "DELETED"),
        (True, {REMOVED: True}, "DELETED"),
        (False, {REMOVED: True}, "PENDING"),
    ],
)
def test_only_what_was_taken_away_from_here_is_made_again(is_adopted: bool, mark: dict[str, bool], phase: str) -> None:
    where = CloudAccount.objects.create(name="a", region="us-east-2", phase="CONNECTED")
    cluster = Cluster.objects.create(name="lab", kind="eks", account=where, phase="READY", is_adopted=is_adopted)
    issue = {"code": "AsgInstanceLaunchFailures", "message": "no machines", "advice": "", **mark}
    group = NodeGroup.objects.create(
        cluster=cluster,
        name="p5en",
        instance_type=at.TYPE,
        nodes=2,
        phase="DEGRADED",
        provider_id="p5en",
        is_adopted=is_adopted,
        health=[issue],
    )
    NodeGroup.objects.filter(pk=group.pk).update(phase_since=clock.now() - CAPACITY_WAIT)
    group.refresh_from_db()
    group_visits._missing(group)
    assert at.phase_of(group) == phase
    if phase == "PENDING":
        # What is said of it stays; what was done is done.
        assert group.health == [{k: v for k, v in issue.items() if k != REMOVED}]


def test_a_group_without_machines_that_its_owner_deletes_stays_deleted(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_visits, "CAPACITY_WAIT", timedelta(0))
    server.world.fault_add("group-no-capacity")
    cluster = at.make(operator, account, "pcs", groups=[{**at.GROUPS["pcs"][0], "queue": ""}])
    at.drive(work, plan, lambda: at.phase_of(at.group_of(cluster)) == "DEGRADED")
    group = at.group_of(cluster)
    cluster.refresh_from_db()
    client = cluster_site.aws(server, "pcs")
    asked = {"clusterIdentifier": cluster.name_at_provider, "computeNodeGroupIdentifier": group.provider_id}
    client.delete_compute_node_group(**asked)
    at.to_phase(work, plan, group, "FAILED")
    assert "somebody deleted it there" in group.message
    assert (at.counts(server).get("pcs_groups"), group.create_attempt) == (None, 1)


def test_a_group_of_others_in_an_adopted_hyperpod_is_neither_taken_nor_deleted(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    theirs = doors.cluster_service_for(Cluster(kind="hyperpod-slurm", account=account))
    seen = cluster_site.active(theirs, cluster_site.POD)
    cluster = cluster_adopt(
        actor=actor_of(operator), account=account, kind="hyperpod-slurm", name="theirs", name_at_provider="lab"
    )
    at.drive(work, plan, lambda: at.all_settled(cluster))
    group = at.add(operator, cluster, name="same", nodes=3)
    theirs.group_ensure(seen, cluster_site.replace(cluster_site.POD_GROUP, name="same", nodes=1), "token-of-theirs")
    at.to_phase(work, plan, group, "FAILED")
    assert "not ours" in group.message
    at.drive(work, plan, lambda: cluster_site.group(theirs, seen, "same").current_nodes == 1)
    for _round in range(5):
        at.ready_at_once()
        work(*at.KINDS)
    assert (at.phase_of(group), group.create_attempt, group.observed_nodes) == ("FAILED", 0, 0)
    at.drop(operator, group)
    at.to_phase(work, plan, group, "DELETED")
    left = cluster_site.group(theirs, seen, "same")
    assert (left.state != kv.DELETING, left.target_nodes) == (True, 1)


def test_a_group_made_by_others_under_the_name_of_one_that_vanished_is_left_alone(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    cluster = at.make(operator, account, "eks")
    at.drive(work, plan, lambda: at.all_settled(cluster))
    group, theirs = at.group_of(cluster), doors.cluster_service_for(cluster)
    cluster_site.aws(server, "eks").delete_nodegroup(clusterName=cluster.name_at_provider, nodegroupName="p5en")
    at.to_phase(work, plan, group, "FAILED")
    seen = theirs.cluster(cluster.name_at_provider)
    spec = cluster_site.replace(
        cluster_site.GROUP, uid="grp_theirs", role_arn=cluster_site.ROLE, nodes=1, tags={"who": "they"}
    )
    theirs.group_ensure(seen, cluster_site.with_template(theirs, seen, spec), "token-of-theirs")
    cluster_site.in_state(theirs, seen, kv.ACTIVE)
    at.drive(work, plan, lambda: Node.objects.filter(cluster=cluster).exclude(phase="GONE").count() == 1)
    assert at.phase_of(group) == "FAILED"
    at.drop(operator, group)
    at.to_phase(work, plan, group, "DELETED")
    assert cluster_site.group(theirs, seen).state == kv.ACTIVE
    # From now on it is a row of its own, with its machine.
    at.drive(work, plan, lambda: NodeGroup.objects.filter(is_adopted=True, observed_nodes=1).exists())


def test_a_failed_cluster_with_a_control_plane_is_looked_at_emptied_and_gone_on_with(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    cluster = at.make(operator, account, "eks")
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.group_of(cluster).observed_nodes == 2)
    waiting = at.add(operator, cluster, nodes=1)
    ClusterStep.objects.filter(cluster=cluster, name="GROUPS").update(state="RUNNING")
    assert managed._fail(cluster, "a later step failed") != DONE
    client = cluster_site.aws(server, "eks")
    scaling = {"minSize": 0, "maxSize": 3, "desiredSize": 3}
    client.update_nodegroup_config(
        clusterName=cluster.name_at_provider, nodegroupName="p5en", scalingConfig=scaling, clientRequestToken="t" * 33
    )
    at.drive(work, plan, lambda: at.group_of(cluster).observed_nodes == 3)
    group = at.group_of(cluster)
    at.drop(operator, group)
    at.to_phase(work, plan, group, "DELETED")
    assert (at.phase_of(cluster), cluster.message) == ("FAILED", "a later step failed")
    # Nothing is made in it, until a person wants it to go on.
    assert at.phase_of(waiting) == "PENDING"
    assert "the cluster failed" in waiting.message
    assert "eks_nodegroups" not in at.counts(server)
    cluster_retry(actor=actor_of(operator), cluster=cluster, expected_version=cluster.version)
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.phase_of(waiting) == "ACTIVE")


def test_a_creation_in_doubt_is_waited_for_before_the_cluster_counts_as_gone(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = at.make(operator, account, "eks", groups=[])
    observations.cluster_attempt(cluster, "lab-late")
    at.remove(operator, cluster)
    for _round in range(5):
        at.ready_at_once()
        work(*at.KINDS)
    assert at.phase_of(cluster) == "DELETING"
    # The call whose answer was lost takes effect only now.
    doors.cluster_service_for(cluster).cluster_ensure(cluster_spec(cluster), cluster.client_token)
    at.to_phase(work, plan, cluster, "DELETED")
    assert at.counts(server) == {}
    monkeypatch.setattr(managed, "LISTED_WITHIN", timedelta(0))
    another = at.make(operator, account, "eks", groups=[])
    observations.cluster_attempt(another, "lab-never")
    at.remove(operator, another)
    at.to_phase(work, plan, another, "DELETED")


def test_a_queue_that_aws_could_not_make_fails_its_group_in_aws_words(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    cluster = at.make(operator, account, "pcs", groups=[])
    at.to_phase(work, plan, cluster, "READY")
    server.world.fault_add("cluster-fails", left=1, what="pcs-queue")
    group = at.add(operator, cluster, min_nodes=0)
    at.to_phase(work, plan, group, "FAILED")
    assert "told to fail" in group.message
    at.drop(operator, group)
    at.to_phase(work, plan, group, "DELETED")
    assert "pcs_queues" not in at.counts(server)
