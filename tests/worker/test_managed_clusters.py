"""Clusters that AWS keeps, against the sandbox's PCS, EKS and HyperPod: made, followed, resized, degraded, deleted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from apps.audit.models import Event
from apps.clusters.group_models import ClusterEvent, ClusterStep, NodeGroup
from apps.clusters.managed_services import cluster_adopt, cluster_retry
from apps.clusters.models import Cluster, Node
from apps.connections.models import CloudAccount
from apps.intents.models import Intent
from sandbox.aws import AwsServer
from sandbox.world import World
from tests import cluster_site
from tests.chaos import Plan
from tests.conftest import actor_of
from tests.worker import managed_site as at
from worker import doors
from worker.providers import cluster_values as kv
from worker.reconcilers import groups as group_visits
from worker.reconcilers import managed, managed_parts

pytestmark = [pytest.mark.django_db]

#: What exists of each kind once it is made.
MADE: dict[str, dict[str, int]] = {
    "pcs": {
        "pcs_clusters": 1,
        "pcs_groups": 1,
        "pcs_queues": 1,
        "secrets": 1,
        "launch_templates": 1,
        "instances": 2,
        "network_interfaces": 2,
    },
    "eks": {
        "eks_clusters": 1,
        "eks_nodegroups": 1,
        "eks_addons": 2,
        "eks_access_entries": 1,
        "launch_templates": 1,
        "instances": 2,
        "network_interfaces": 2,
    },
    "hyperpod-slurm": {"hyperpod_clusters": 1, "hyperpod_nodes": 3},
    "hyperpod-eks": {"hyperpod_clusters": 1, "hyperpod_nodes": 2},
}


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


@pytest.mark.parametrize("kind", sorted(MADE))
def test_a_whole_life(
    kind: str, account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    cluster = at.make(operator, account, kind)
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.counts(server) == MADE[kind])
    assert cluster.name_at_provider.startswith("lab-")
    assert {s.state for s in ClusterStep.objects.filter(cluster=cluster)} == {"DONE"}
    assert all(s.started_at and s.ended_at for s in ClusterStep.objects.filter(cluster=cluster))
    group = at.group_of(cluster)
    assert (group.observed_nodes, group.observed_generation, str(group.message)) == (2, group.generation, "")
    nodes = list(Node.objects.filter(cluster=cluster, group=group))
    assert {(n.phase, n.instance_type, n.gpus, n.gpu_type) for n in nodes} == {("READY", at.TYPE, 8, "h200")}
    at.resize(operator, cluster, 5)
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.group_of(cluster).target_nodes == 5)
    if kind != "pcs":
        at.drive(work, plan, lambda: at.group_of(cluster).observed_nodes == 5)
    more = at.add(operator, cluster, **({"min_nodes": 0} if kind == "pcs" else {}))
    at.to_phase(work, plan, more, "ACTIVE")
    at.drop(operator, more)
    at.to_phase(work, plan, more, "DELETED")
    assert not Node.objects.filter(group=more).exclude(phase="GONE").exists()
    at.remove(operator, cluster)
    at.to_phase(work, plan, cluster, "DELETED")
    assert at.counts(server) == {}
    assert set(NodeGroup.objects.values_list("phase", flat=True)) == {"DELETED"}
    assert set(Node.objects.values_list("phase", flat=True)) == {"GONE"}
    phases = [e.data["phase"] for e in Event.objects.filter(object_uid=cluster.uid, kind="ClusterPhase").order_by("id")]
    assert phases == ["CREATING", "READY", "DELETING", "DELETED"]
    # Nothing is left to be looked at.
    at.ready_at_once()
    work(*at.KINDS)
    assert not Intent.objects.filter(kind__in=at.KINDS).exists()


def test_slurm_of_pcs_is_connected_to_where_jobs_can_be_submitted(
    account: CloudAccount, work: Any, plan: Plan, operator: Any
) -> None:
    reach = {"user_name": "qd", "token_ref": "env:T", "working_root": "/shared/qd"}
    cluster = at.make(operator, account, "pcs", **reach)
    at.to_phase(work, plan, cluster, "READY")
    assert cluster.scheduler_url.startswith("http://10.0.9.")
    assert cluster.observed_version == "25.05"
    assert cluster.provider_facts["size"] == "SMALL"
    assert Intent.objects.filter(kind="cluster.connect", key=cluster.uid).exists()


def test_only_its_own_visit_takes_a_cluster_of_aws_away(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    reach = {"user_name": "qd", "token_ref": "env:T", "working_root": "/shared/qd"}
    cluster = at.make(operator, account, "pcs", **reach)
    at.to_phase(work, plan, cluster, "READY")
    at.remove(operator, cluster)
    # The scheduler's own visit comes first: it must not take what is asked away for what is gone.
    at.ready_at_once()
    work("cluster.connect")
    assert at.phase_of(cluster) == "READY"
    at.to_phase(work, plan, cluster, "DELETED")
    assert at.counts(server) == {}


def test_an_adopted_cluster_is_watched_resized_and_only_forgotten(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    theirs = doors.cluster_service_for(Cluster(kind="eks", account=account))
    theirs.cluster_ensure(cluster_site.EKS, "token-of-theirs")
    seen = cluster_site.active(theirs, cluster_site.EKS, "token-of-theirs")
    spec = cluster_site.replace(cluster_site.GROUP, role_arn=cluster_site.ROLE, nodes=2)
    theirs.group_ensure(seen, cluster_site.with_template(theirs, seen, spec), "token-of-their-group")
    cluster = cluster_adopt(
        actor=actor_of(operator), account=account, kind="eks", name="theirs", name_at_provider="lab"
    )
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.group_of(cluster).observed_nodes == 2)
    group = at.group_of(cluster)
    assert (group.is_adopted, group.nodes, group.source) == (True, 2, "on-demand")
    at.resize(operator, cluster, 3)
    at.drive(work, plan, lambda: at.group_of(cluster).observed_nodes == 3 and at.all_settled(cluster))
    at.remove(operator, cluster)
    at.to_phase(work, plan, cluster, "DELETED")
    left = at.counts(server)
    assert (left["eks_clusters"], left["eks_nodegroups"], left["instances"]) == (1, 1, 3)
    missing = cluster_adopt(
        actor=actor_of(operator), account=account, kind="eks", name="missing", name_at_provider="nowhere"
    )
    at.to_phase(work, plan, missing, "FAILED")
    assert "no cluster named nowhere" in missing.message


def test_what_aws_cannot_make_is_failed_in_its_words_and_tried_again(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    server.world.fault_add("cluster-fails", left=1, what="pcs-cluster")
    cluster = at.make(operator, account, "pcs")
    at.to_phase(work, plan, cluster, "FAILED")
    assert "told to fail" in cluster.message
    assert ClusterStep.objects.get(cluster=cluster, name="CONTROL").state == "FAILED"
    first = cluster.provider_id
    cluster_retry(actor=actor_of(operator), cluster=cluster, expected_version=cluster.version)
    at.drive(work, plan, lambda: at.all_settled(cluster))
    assert cluster.provider_id != first
    assert cluster.create_attempt == 2
    assert at.counts(server)["pcs_clusters"] == 1
    server.world.fault_add("access-denied", service="aws", operation="CreateComputeNodeGroup")
    more = at.add(operator, cluster)
    at.to_phase(work, plan, more, "FAILED")
    assert "not authorized to perform: pcs:CreateComputeNodeGroup" in more.message
    assert "docs/iam" in more.message


def test_groups_without_machines_are_degraded_and_tried_again(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_visits, "CAPACITY_WAIT", timedelta(seconds=0.3))
    fault = server.world.fault_add("group-no-capacity")
    cluster = at.make(operator, account, "eks")
    at.drive(work, plan, lambda: at.phase_of(at.group_of(cluster)) == "DEGRADED")
    group = at.group_of(cluster)
    assert group.health[0]["code"] == "AsgInstanceLaunchFailures"
    assert "reservation" in group.health[0]["advice"]
    # What waits for machines holds nothing up.
    at.to_phase(work, plan, cluster, "READY")
    at.drive(work, plan, lambda: at.group_of(cluster).create_attempt >= 2)
    server.world.fault_clear(fault.uid)
    at.drive(work, plan, lambda: at.all_settled(cluster))
    assert at.counts(server)["eks_nodegroups"] == 1
    assert at.group_of(cluster).health == []
    at.drive(work, plan, lambda: at.group_of(cluster).observed_nodes == 2)


def test_a_group_that_got_some_of_its_machines_keeps_them(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apps.capacity.models import Reservation

    monkeypatch.setattr(group_visits, "CAPACITY_WAIT", timedelta(seconds=0.1))
    row = Reservation.objects.create(
        account=account,
        kind="odcr",
        provider_id=cluster_site.odcr(server),
        name="three",
        instance_type=at.TYPE,
        instances=4,
        phase="ACTIVE",
        zone_id="use2-az1",
    )
    asked = [{**at.GROUPS["eks"][0], "nodes": 4, "source": "odcr", "reservation": row}]
    cluster = at.make(operator, account, "eks", groups=asked)
    at.drive(work, plan, lambda: at.phase_of(at.group_of(cluster)) == "DEGRADED" and at.phase_of(cluster) == "READY")
    before = set(Node.objects.values_list("provider_id", flat=True))
    for _round in range(20):
        at.ready_at_once()
        work(*at.KINDS)
    group = at.group_of(cluster)
    assert (group.phase, group.observed_nodes, group.create_attempt) == ("DEGRADED", 3, 1)
    assert "only 3 of 4 machines" in group.message
    assert set(Node.objects.exclude(phase="GONE").values_list("provider_id", flat=True)) == before


@pytest.mark.parametrize("kind", ["pcs", "hyperpod-eks"])
def test_services_that_try_on_by_themselves_are_shown_degraded(
    kind: str, account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    fault = server.world.fault_add("group-no-capacity")
    cluster = at.make(operator, account, kind)
    at.drive(work, plan, lambda: at.phase_of(at.group_of(cluster)) == "DEGRADED" and at.phase_of(cluster) == "READY")
    assert "apacity" in at.group_of(cluster).health[0]["message"]
    server.world.fault_clear(fault.uid)
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.group_of(cluster).observed_nodes == 2)
    if kind == "hyperpod-eks":
        errors = ClusterEvent.objects.filter(cluster=cluster, level="Error")
        assert errors.exists()
        assert not errors.filter(reason="").exists()
        assert len(set(errors.values_list("at", flat=True))) == errors.count()


def test_a_group_waits_for_its_block_and_is_scaled_in_with_it(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    from apps.capacity.models import Reservation
    from apps.core import clock

    provider_id = cluster_site.block(server, hours_until=1)
    block = Reservation.objects.create(
        account=account,
        kind="capacity-block",
        provider_id=provider_id,
        name="block",
        instance_type=at.TYPE,
        instances=4,
        phase="SCHEDULED",
        zone_id="use2-az1",
        start_at=clock.now() + timedelta(hours=20),
        end_at=clock.now() + timedelta(hours=44),
    )
    asked = [{**at.GROUPS["eks"][0], "nodes": 3, "source": "capacity-block", "reservation": block}]
    cluster = at.make(operator, account, "eks", groups=asked)
    at.drive(work, plan, lambda: at.all_settled(cluster))
    group = at.group_of(cluster)
    assert group.target_nodes == 0
    assert "begins on" in group.message
    assert group.observed_generation < group.generation
    cluster_site.begin(server)
    Reservation.objects.filter(pk=block.pk).update(phase="ACTIVE", start_at=clock.now())
    at.drive(work, plan, lambda: at.group_of(cluster).observed_nodes == 3 and at.all_settled(cluster))
    assert at.group_of(cluster).observed_generation == group.generation
    held = {server.cloud.book.reservation_of(n.provider_id) for n in Node.objects.exclude(phase="GONE")}
    assert held == {provider_id}
    end = server.cloud.book.rows("reservations")[provider_id]["end"]
    server.world.advance(end - cluster_site.time.time() - 39 * 60)
    Reservation.objects.filter(pk=block.pk).update(end_at=clock.now() + timedelta(minutes=39))
    at.drive(work, plan, lambda: "scaled in" in at.group_of(cluster).message)
    # It is EKS's doing, and nothing is started against it.
    at.drive(work, plan, lambda: not Node.objects.exclude(phase="GONE").exists())
    at.remove(operator, cluster)
    at.to_phase(work, plan, cluster, "DELETED")


def test_a_training_plan_is_waited_for_and_used(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    from apps.capacity.models import Reservation
    from apps.core import clock

    arn = cluster_site.plan(server, 2)
    row = Reservation.objects.create(
        account=account,
        kind="training-plan",
        provider_id=arn,
        name="plan",
        instance_type=at.TYPE,
        instances=2,
        phase="SCHEDULED",
        start_at=clock.now() + timedelta(hours=20),
        end_at=clock.now() + timedelta(hours=44),
    )
    head, compute = at.GROUPS["hyperpod-slurm"]
    asked = [head, {**compute, "source": "training-plan", "reservation": row}]
    cluster = at.make(operator, account, "hyperpod-slurm", groups=asked)
    # The controller need not wait.
    at.to_phase(work, plan, cluster, "READY")
    group = at.group_of(cluster)
    assert group.phase == "PENDING"
    assert "begins on" in group.message
    start = server.services["sagemaker"].rows("plans")["plan"]["start"]
    server.world.advance(start - cluster_site.time.time() + 2)
    Reservation.objects.filter(pk=row.pk).update(phase="ACTIVE", start_at=clock.now())
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.group_of(cluster).observed_nodes == 2)
    client = cluster_site.aws(server, "sagemaker")
    assert client.describe_training_plan(TrainingPlanName="plan")["InUseInstanceCount"] == 2


def test_a_paused_or_unknown_account_is_not_asked(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = at.make(operator, account, "eks")
    at.drive(work, plan, lambda: at.all_settled(cluster))
    at.resize(operator, cluster, 3)

    def never(_cluster: Cluster) -> Any:
        raise AssertionError("AWS was asked")

    monkeypatch.setattr(doors, "cluster_service_for", never)
    for change, words in (({"is_paused": True}, "paused"), ({"is_paused": False, "phase": "FAILED"}, "checked")):
        CloudAccount.objects.filter(pk=account.pk).update(**change)
        at.drive(work, plan, lambda words=words: words in at.group_of(cluster).message)  # type: ignore[misc]
        cluster.refresh_from_db()
        assert words in cluster.message


def test_what_vanishes_in_aws_is_told_and_not_made_again(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    cluster = at.make(operator, account, "eks")
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.group_of(cluster).observed_nodes == 2)
    client = cluster_site.aws(server, "eks")
    client.delete_nodegroup(clusterName=cluster.name_at_provider, nodegroupName="p5en")
    at.drive(work, plan, lambda: at.phase_of(at.group_of(cluster)) == "FAILED")
    assert "no longer in the cluster" in at.group_of(cluster).message
    at.drive(work, plan, lambda: not Node.objects.exclude(phase="GONE").exists())
    client.delete_cluster(name=cluster.name_at_provider)
    at.to_phase(work, plan, cluster, "FAILED")
    assert "no longer in the account" in cluster.message
    at.remove(operator, cluster)
    at.to_phase(work, plan, cluster, "DELETED")
    assert at.counts(server) == {}


def test_names_in_aws_are_derived_once() -> None:
    uid = "clu_01jd0000000000000000abcdef"
    for kind, most in managed_parts._LONGEST_NAME.items():
        name = managed_parts.derived_name(Cluster(name="9-" + "x" * 57, kind=kind, uid=uid))
        assert len(name) <= most
        assert name.startswith("c-9-xxx")
        assert name.endswith("-" + uid[-8:])
    assert at.KINDS[0] == managed.KIND


def test_a_foreign_group_of_the_same_name_is_left_alone(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    cluster = at.make(operator, account, "pcs", groups=[])
    at.to_phase(work, plan, cluster, "READY")
    theirs = doors.cluster_service_for(cluster)
    seen = theirs.cluster(cluster.name_at_provider)
    group = at.add(operator, cluster, name="same")
    spec = cluster_site.replace(cluster_site.GROUP, name="same", uid="grp_theirs", tags={"who": "they"})
    theirs.group_ensure(seen, cluster_site.with_template(theirs, seen, spec), "token-of-theirs")
    at.to_phase(work, plan, group, "FAILED")
    assert "not ours" in group.message
    at.drop(operator, group)
    at.to_phase(work, plan, group, "DELETED")
    assert [g.state != kv.DELETING for g in theirs.groups(seen)] == [True]


def test_parallelcluster_is_made_by_its_api_and_read(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    cluster = at.make(operator, account, "parallelcluster")
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.group_of(cluster, "train/p5en").observed_nodes == 2)
    group = at.group_of(cluster, "train/p5en")
    assert (group.is_adopted, group.nodes, group.min_nodes, group.queue) == (True, 8, 2, "train")
    assert group.usd_per_hour is not None
    assert at.counts(server)["instances"] == 3
    at.remove(operator, cluster)
    at.to_phase(work, plan, cluster, "DELETED")
    assert at.counts(server) == {}


def test_what_cannot_be_read_any_more_is_said_and_kept(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    cluster = at.make(operator, account, "eks")
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.group_of(cluster).observed_nodes == 2)
    fault = server.world.fault_add("access-denied", service="aws", operation="DescribeCluster")
    at.resize(operator, cluster, 3)
    at.drive(work, plan, lambda: "not authorized" in at.group_of(cluster).message)
    cluster.refresh_from_db()
    assert "eks:DescribeCluster" in cluster.message
    assert cluster.phase == "READY"
    server.world.fault_clear(fault.uid)
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.group_of(cluster).observed_nodes == 3)
    assert cluster.message == ""


def test_an_adopted_group_keeps_its_room_to_scale_and_goes_when_it_went(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    theirs = doors.cluster_service_for(Cluster(kind="eks", account=account))
    seen = cluster_site.active(theirs, cluster_site.EKS)
    spec = cluster_site.replace(cluster_site.GROUP, role_arn=cluster_site.ROLE, nodes=9, desired_nodes=1)
    theirs.group_ensure(seen, cluster_site.with_template(theirs, seen, spec), "token-of-their-group")
    cluster = cluster_adopt(
        actor=actor_of(operator), account=account, kind="eks", name="theirs", name_at_provider="lab"
    )
    at.drive(work, plan, lambda: at.all_settled(cluster) and at.group_of(cluster).observed_nodes == 1)
    at.resize(operator, cluster, 2)
    at.drive(work, plan, lambda: at.group_of(cluster).observed_nodes == 2 and at.all_settled(cluster))
    client = cluster_site.aws(server, "eks")
    scaling = client.describe_nodegroup(clusterName="lab", nodegroupName="p5en")["nodegroup"]["scalingConfig"]
    assert scaling == {"minSize": 0, "maxSize": 9, "desiredSize": 2}
    group = at.group_of(cluster)
    client.delete_nodegroup(clusterName="lab", nodegroupName="p5en")
    at.to_phase(work, plan, group, "DELETED")
    assert "somebody deleted it there" in group.message


def test_a_foreign_queue_of_the_same_name_is_left_alone(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    cluster = at.make(operator, account, "pcs", groups=[])
    at.to_phase(work, plan, cluster, "READY")
    client = cluster_site.aws(server, "pcs")
    name = cluster.name_at_provider
    client.create_queue(clusterIdentifier=name, queueName="train", tags={"who": "they"})
    group = at.add(operator, cluster, queue="train", min_nodes=0)
    at.to_phase(work, plan, group, "FAILED")
    assert "a queue named train that is not ours" in group.message
    at.drop(operator, group)
    at.to_phase(work, plan, group, "DELETED")
    assert [q["name"] for q in client.list_queues(clusterIdentifier=name)["queues"]] == ["train"]
    at.remove(operator, cluster)
    at.drive(work, plan, lambda: "queues" in Cluster.objects.get(pk=cluster.pk).message)
    client.delete_queue(clusterIdentifier=name, queueIdentifier="train")
    at.to_phase(work, plan, cluster, "DELETED")
    assert at.counts(server) == {}
