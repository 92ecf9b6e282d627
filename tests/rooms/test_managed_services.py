"""What people do with clusters that AWS keeps: rows, audit and intents in one commit, or a refusal and nothing."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from apps.audit.models import Entry
from apps.capacity.models import Reservation
from apps.clusters import group_services, managed_services
from apps.clusters.group_models import ClusterStep, NodeAction, NodeGroup
from apps.clusters.models import Cluster, Node
from apps.clusters.services import ClusterInUse
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.core.errors import Forbidden, InvalidInput, StaleVersion, TransitionConflict
from apps.intents.models import Intent
from tests.conftest import actor_of
from tests.rules.test_managed_rules import SETTINGS, WISHES

pytestmark = pytest.mark.django_db


@pytest.fixture
def account() -> CloudAccount:
    return CloudAccount.objects.create(
        name="research", region="us-east-2", phase="CONNECTED", observed_account_id="123456789012"
    )


def group(kind: str, **changes: Any) -> dict[str, Any]:
    wish = WISHES[kind]
    columns = ("name", "instance_type", "nodes", "subnet_ids", "security_group_ids", "image_id", "role_arn", "queue")
    return {c: getattr(wish, c) for c in columns} | {"settings": dict(wish.settings)} | changes


def make(operator: Any, account: CloudAccount, kind: str, groups: Any = None, **more: Any) -> Cluster:
    if groups is None:
        groups = [group(kind)]
        if kind == "hyperpod-slurm":
            head = {**group(kind)["settings"], "node_type": "Controller"}
            groups.append(group(kind, name="controller", instance_type="m5.xlarge", nodes=1, queue="", settings=head))
    wanted = {"name": "lab", "settings": SETTINGS[kind], **more}
    return managed_services.cluster_create(
        actor=actor_of(operator), account=account, kind=kind, groups=groups, **wanted
    )


def asked(kind: str, key: str) -> bool:
    return Intent.objects.filter(kind=kind, key=key).exists()


@pytest.mark.parametrize("kind", sorted(SETTINGS))
def test_a_cluster_is_recorded_whole(operator: Any, account: CloudAccount, kind: str) -> None:
    cluster = make(operator, account, kind)
    cluster.refresh_from_db()
    assert (cluster.phase, cluster.is_adopted, cluster.name_at_provider) == ("PENDING", False, "")
    assert cluster.settings == SETTINGS[kind]
    steps = list(ClusterStep.objects.filter(cluster=cluster))
    assert [s.ordinal for s in steps] == list(range(len(steps)))
    assert {"CONTROL", "USE"} < {s.name for s in steps}
    train = NodeGroup.objects.get(cluster=cluster, name="train")
    assert (train.phase, train.nodes, train.usd_per_hour) == ("PENDING", 4, Decimal("63.296"))
    assert asked("cluster.reconcile", cluster.uid)
    assert asked("group.reconcile", train.uid)
    assert Entry.objects.filter(verb="cluster.create", object_uid=cluster.uid).count() == 1
    assert Entry.objects.filter(verb="group.create").count() == NodeGroup.objects.count()


def test_groups_of_hyperpod_stand_where_the_cluster_stands(operator: Any, account: CloudAccount) -> None:
    settled = group("hyperpod-eks", subnet_ids=["subnet-0a1b"], security_group_ids=["sg-0a1b"])
    cluster = make(operator, account, "hyperpod-eks", [settled])
    assert cluster.groups.get().subnet_ids == []


def test_an_eks_cluster_under_a_hyperpod_cluster_is_not_deleted(operator: Any, account: CloudAccount) -> None:
    arn = SETTINGS["hyperpod-eks"]["eks_cluster_arn"]
    below = make(operator, account, "eks", [])
    Cluster.objects.filter(pk=below.pk).update(provider_id=arn, phase="READY")
    above = make(operator, account, "hyperpod-eks", [group("hyperpod-eks")], name="above")
    below.refresh_from_db()
    with pytest.raises(ClusterInUse, match="above stands on it"):
        managed_services.cluster_delete(actor=actor_of(operator), cluster=below, expected_version=below.version)
    Cluster.objects.filter(pk=above.pk).update(phase="DELETED")
    managed_services.cluster_delete(actor=actor_of(operator), cluster=below, expected_version=below.version)


def test_bad_input_is_named_at_its_group_and_nothing_is_written(operator: Any, account: CloudAccount) -> None:
    with pytest.raises(InvalidInput) as refused:
        make(
            operator,
            account,
            "pcs",
            [group("pcs", nodes=30), group("pcs", name="bbb", queue="bbb", nodes=30, instance_type="p99.huge")],
            settings={**SETTINGS["pcs"], "version": "9"},
        )
    assert [p.pointer for p in refused.value.problems] == ["/version", "/groups/1/instance_type", "/size"]
    assert "smallest that fits is MEDIUM" in refused.value.problems[-1].detail
    assert not Cluster.objects.exists()
    assert not Intent.objects.exists()
    assert not Entry.objects.filter(verb="cluster.create").exists()


def test_only_operators_and_only_usable_accounts(operator: Any, owner: Any, account: CloudAccount) -> None:
    with pytest.raises(Forbidden):
        make(owner, account, "pcs")
    account.is_paused = True
    account.save()
    with pytest.raises(TransitionConflict, match="paused"):
        make(operator, account, "pcs")
    account.is_paused, account.phase = False, "FAILED"
    account.save()
    with pytest.raises(TransitionConflict, match="not connected"):
        make(operator, account, "pcs")
    assert not Cluster.objects.exists()


def test_a_taken_name_is_refused_at_its_field(operator: Any, account: CloudAccount) -> None:
    make(operator, account, "pcs")
    with pytest.raises(InvalidInput) as refused:
        make(operator, account, "eks")
    assert refused.value.problems[0].pointer == "/name"
    assert NodeGroup.objects.count() == 1


def test_a_cluster_is_adopted_once(operator: Any, account: CloudAccount) -> None:
    def adopt(name: str) -> Cluster:
        return managed_services.cluster_adopt(
            actor=actor_of(operator), account=account, kind="parallelcluster", name=name, name_at_provider="hpc"
        )

    cluster = adopt("hpc")
    assert cluster.is_adopted
    assert [s.name for s in ClusterStep.objects.filter(cluster=cluster)] == ["FIND", "GROUPS", "USE"]
    assert asked("cluster.reconcile", cluster.uid)
    with pytest.raises(InvalidInput, match="already, as hpc"):
        adopt("hpc-again")
    cluster.phase = "DELETED"
    cluster.save()
    assert adopt("hpc-again").pk != cluster.pk


def test_how_jobs_are_submitted_is_all_or_nothing(operator: Any, account: CloudAccount) -> None:
    with pytest.raises(InvalidInput) as refused:
        make(operator, account, "pcs", user_name="train", api_url="slurm")
    assert sorted(p.pointer for p in refused.value.problems) == ["/api_url", "/working_root"]
    with pytest.raises(InvalidInput, match="Kubernetes"):
        make(operator, account, "eks", user_name="train", token_ref="env:T", working_root="/fsx")
    cluster = make(operator, account, "pcs", user_name="train", token_ref="env:T", working_root="/fsx/")
    assert cluster.working_root == "/fsx"
    assert not cluster.takes_jobs, "its address is not known yet"


def test_correcting_a_cluster_keeps_what_is_not_named(operator: Any, account: CloudAccount) -> None:
    cluster = make(operator, account, "pcs", user_name="train", token_ref="env:T", working_root="/fsx")
    Intent.objects.all().delete()
    actor = actor_of(operator)
    managed_services.cluster_update(actor=actor, cluster=cluster, expected_version=1, working_root="/fsx/jobs/")
    cluster.refresh_from_db()
    assert (cluster.user_name, cluster.working_root, cluster.version) == ("train", "/fsx/jobs", 2)
    assert asked("cluster.reconcile", cluster.uid)
    assert asked("cluster.connect", cluster.uid)
    with pytest.raises(StaleVersion):
        managed_services.cluster_update(actor=actor, cluster=cluster, expected_version=1, name="other")
    with pytest.raises(InvalidInput, match="go together"):
        managed_services.cluster_update(actor=actor, cluster=cluster, expected_version=2, user_name="")


def test_a_failed_cluster_is_tried_again_once(operator: Any, account: CloudAccount) -> None:
    cluster, actor = make(operator, account, "eks"), actor_of(operator)
    with pytest.raises(TransitionConflict, match="only a cluster that failed"):
        managed_services.cluster_retry(actor=actor, cluster=cluster, expected_version=1)
    Cluster.objects.filter(pk=cluster.pk).update(phase="FAILED", observed_generation=1, client_token="kept")
    Intent.objects.all().delete()
    cluster.refresh_from_db()
    managed_services.cluster_retry(actor=actor, cluster=cluster, expected_version=1)
    cluster.refresh_from_db()
    assert (cluster.generation, cluster.client_token) == (2, "kept"), "the same try by the same token"
    assert asked("cluster.reconcile", cluster.uid)
    managed_services.cluster_retry(actor=actor, cluster=cluster, expected_version=2)
    cluster.refresh_from_db()
    assert cluster.generation == 2, "a second click asks for nothing more"
    assert Entry.objects.filter(verb="cluster.retry").count() == 1


def test_deleting_a_cluster_waits_for_its_jobs(operator: Any, account: CloudAccount) -> None:
    cluster, actor = make(operator, account, "pcs"), actor_of(operator)
    node = Node.objects.create(cluster=cluster, name="ip-1", provider_id="i-1", gpus=8, gpus_used=8, phase="READY")
    with pytest.raises(ClusterInUse, match="ip-1"):
        managed_services.cluster_delete(actor=actor, cluster=cluster, expected_version=1)
    Node.objects.filter(pk=node.pk).update(gpus_used=0)
    managed_services.cluster_delete(actor=actor, cluster=cluster, expected_version=1)
    cluster.refresh_from_db()
    assert cluster.delete_requested_at is not None
    managed_services.cluster_delete(actor=actor, cluster=cluster, expected_version=2)
    assert Entry.objects.filter(verb="cluster.delete").count() == 1
    with pytest.raises(TransitionConflict, match="being removed"):
        group_services.group_add(actor=actor, cluster=cluster, **group("pcs", name="b", queue="b"))


def test_a_group_is_added_where_it_fits(operator: Any, account: CloudAccount) -> None:
    cluster, actor = make(operator, account, "pcs"), actor_of(operator)

    def add(**changes: Any) -> NodeGroup:
        return group_services.group_add(actor=actor, cluster=cluster, **group("pcs", **changes))

    found = add(name="eval", queue="eval", nodes=28)
    assert asked("group.reconcile", found.uid)
    with pytest.raises(InvalidInput) as refused:
        add(name="more", queue="more", nodes=1)
    assert refused.value.problems[0].pointer == "/nodes"
    assert "make a new cluster of size MEDIUM" in refused.value.detail
    with pytest.raises(InvalidInput) as refused:
        add(nodes=0)
    assert {p.pointer for p in refused.value.problems} == {"/name", "/queue"}
    Cluster.objects.filter(pk=cluster.pk).update(phase="FAILED")
    cluster.refresh_from_db()
    with pytest.raises(TransitionConflict, match="takes no groups now"):
        add(name="more", queue="more", nodes=0)


def test_a_group_grows_and_shrinks(operator: Any, account: CloudAccount) -> None:
    cluster, actor = make(operator, account, "pcs"), actor_of(operator)
    train = cluster.groups.get()
    NodeGroup.objects.filter(pk=train.pk).update(phase="ACTIVE", min_nodes=3)
    train.refresh_from_db()
    group_services.group_resize(actor=actor, group=train, nodes=2, expected_version=1)
    train.refresh_from_db()
    assert (train.nodes, train.min_nodes, train.generation) == (2, 2, 2)
    with pytest.raises(InvalidInput, match="MEDIUM"):
        group_services.group_resize(actor=actor, group=train, nodes=40, expected_version=2)
    with pytest.raises(InvalidInput) as refused:
        group_services.group_resize(actor=actor, group=train, nodes=4, min_nodes=5, expected_version=2)
    assert refused.value.problems[0].pointer == "/min_nodes"
    with pytest.raises(StaleVersion):
        group_services.group_resize(actor=actor, group=train, nodes=3, expected_version=1)
    NodeGroup.objects.filter(pk=train.pk).update(phase="FAILED")
    train.refresh_from_db()
    with pytest.raises(TransitionConflict, match="delete it and add it again"):
        group_services.group_resize(actor=actor, group=train, nodes=3, expected_version=2)


def test_a_block_is_not_given_away_twice(operator: Any, account: CloudAccount) -> None:
    block = Reservation.objects.create(
        account=account,
        kind="capacity-block",
        name="w48",
        instance_type="p5en.48xlarge",
        instances=8,
        phase="ACTIVE",
        provider_id="cr-1",
        usd_per_hour=Decimal("41"),
        end_at=clock.now() + timedelta(days=3),
    )
    other = CloudAccount.objects.create(name="other", region="us-east-2", phase="CONNECTED")
    wanted = {"source": "capacity-block", "reservation": block}
    cluster, actor = make(operator, account, "eks", [group("eks", nodes=6, **wanted)]), actor_of(operator)
    assert cluster.groups.get().usd_per_hour == Decimal("41"), "spread over its hours"
    with pytest.raises(InvalidInput, match="6 are meant for train"):
        group_services.group_add(actor=actor, cluster=cluster, **group("eks", name="b", nodes=4, **wanted))
    with pytest.raises(InvalidInput, match="has 8 machines"):
        group_services.group_resize(actor=actor, group=cluster.groups.get(), nodes=9, expected_version=1)
    Reservation.objects.filter(pk=block.pk).update(end_at=clock.now())
    block.refresh_from_db()
    with pytest.raises(InvalidInput, match="is over"):
        group_services.group_add(actor=actor, cluster=cluster, **group("eks", name="c", nodes=1, **wanted))
    with pytest.raises(InvalidInput, match="is over"):
        group_services.group_resize(actor=actor, group=cluster.groups.get(), nodes=5, expected_version=1)
    Reservation.objects.filter(pk=block.pk).update(account=other, end_at=None)
    block.refresh_from_db()
    with pytest.raises(InvalidInput, match="another account"):
        group_services.group_add(actor=actor, cluster=cluster, **group("eks", name="d", nodes=1, **wanted))


def test_groups_go_but_not_the_controller_and_not_the_last(operator: Any, account: CloudAccount) -> None:
    cluster, actor = make(operator, account, "hyperpod-slurm"), actor_of(operator)
    head, train = cluster.groups.get(name="controller"), cluster.groups.get(name="train")
    with pytest.raises(TransitionConflict, match="goes only with its cluster"):
        group_services.group_delete(actor=actor, group=head, expected_version=1)
    group_services.group_delete(actor=actor, group=train, expected_version=1)
    train.refresh_from_db()
    assert train.delete_requested_at is not None
    lone = make(operator, account, "hyperpod-eks", name="lone").groups.get()
    with pytest.raises(TransitionConflict, match="delete the cluster instead"):
        group_services.group_delete(actor=actor, group=lone, expected_version=1)
    busy = make(operator, account, "pcs", name="busy").groups.get()
    Node.objects.create(cluster=busy.cluster, group=busy, name="ip-1", gpus_used=1, phase="READY")
    with pytest.raises(group_services.GroupInUse, match="ip-1"):
        group_services.group_delete(actor=actor, group=busy, expected_version=1)


def test_a_group_that_was_found_is_resized_but_never_deleted(operator: Any, account: CloudAccount) -> None:
    cluster, actor = make(operator, account, "eks"), actor_of(operator)
    found = NodeGroup.objects.create(
        cluster=cluster, name="by-hand", instance_type="p5.48xlarge", nodes=1, phase="ACTIVE", is_adopted=True
    )
    group_services.group_resize(actor=actor, group=found, nodes=3, expected_version=1)
    with pytest.raises(TransitionConflict, match="never deleted from here"):
        group_services.group_delete(actor=actor, group=found, expected_version=2)
    found.refresh_from_db()
    assert (found.nodes, found.delete_requested_at) == (3, None)


def test_a_login_group_takes_a_machine_without_gpus(operator: Any, account: CloudAccount) -> None:
    cluster = make(operator, account, "hyperpod-slurm")
    login = {**group("hyperpod-slurm")["settings"], "node_type": "Login"}
    wanted = group("hyperpod-slurm", name="login", instance_type="m5.xlarge", nodes=1, queue="", settings=login)
    made = group_services.group_add(actor=actor_of(operator), cluster=cluster, **wanted)
    assert made.usd_per_hour is None, "no price of it is known"


def test_groups_of_parallelcluster_are_not_changed_here(operator: Any, account: CloudAccount) -> None:
    cluster = managed_services.cluster_adopt(
        actor=actor_of(operator), account=account, kind="parallelcluster", name="hpc", name_at_provider="hpc"
    )
    with pytest.raises(TransitionConflict, match="in its configuration"):
        group_services.group_add(actor=actor_of(operator), cluster=cluster, **group("pcs"))
    seen = NodeGroup.objects.create(cluster=cluster, name="q1", instance_type="p5.48xlarge", is_adopted=True)
    with pytest.raises(TransitionConflict, match="in its configuration"):
        group_services.group_delete(actor=actor_of(operator), group=seen, expected_version=1)


def nodes_of(cluster: Cluster, count: int) -> list[Node]:
    return [
        Node.objects.create(cluster=cluster, name=f"ip-{i}", provider_id=f"i-{i:017}", phase="READY", gpus=8)
        for i in range(count)
    ]


def test_any_number_of_nodes_is_asked_for_in_one_go(operator: Any, account: CloudAccount) -> None:
    cluster, actor = make(operator, account, "hyperpod-eks"), actor_of(operator)
    nodes = nodes_of(cluster, 30)

    def ask(chosen: Any, **changes: Any) -> list[NodeAction]:
        return group_services.nodes_ask(
            actor=actor, cluster=cluster, nodes=chosen, **{"verb": "replace", "reason": "XID 79", **changes}
        )

    with pytest.raises(TransitionConflict, match="not ready"):
        ask(nodes)
    Cluster.objects.filter(pk=cluster.pk).update(phase="READY")
    cluster.refresh_from_db()
    Intent.objects.all().delete()
    assert len(ask([*nodes, nodes[0]])) == 30, "once each"
    assert asked("node.act", cluster.uid)
    assert Intent.objects.count() == 1
    with pytest.raises(InvalidInput, match="ip-3: an earlier request"):
        ask([nodes[3]], verb="reboot")
    NodeAction.objects.update(phase="TAKEN")
    assert ask([nodes[3]], verb="reboot")[0].verb == "reboot"


def test_a_bad_request_about_nodes_is_named_by_field(operator: Any, account: CloudAccount) -> None:
    cluster, actor = make(operator, account, "hyperpod-eks"), actor_of(operator)
    Cluster.objects.filter(pk=cluster.pk).update(phase="READY")
    cluster.refresh_from_db()
    with pytest.raises(InvalidInput) as refused:
        group_services.nodes_ask(actor=actor, cluster=cluster, nodes=[], verb="burn", reason=" ")
    assert [p.pointer for p in refused.value.problems] == ["/verb", "/reason", "/nodes"]
    other = nodes_of(make(operator, account, "pcs", name="pcs"), 1)
    with pytest.raises(InvalidInput, match="ip-0: not a machine"):
        group_services.nodes_ask(actor=actor, cluster=cluster, nodes=other, verb="reboot", reason="x")
    with pytest.raises(TransitionConflict, match="repairs them itself"):
        group_services.nodes_ask(actor=actor, cluster=other[0].cluster, nodes=other, verb="reboot", reason="x")
    assert not NodeAction.objects.exists()


def test_a_fleet_is_not_launched_for_a_cluster_of_groups(operator: Any, account: CloudAccount) -> None:
    from apps.clusters.fleet_services import fleet_create

    cluster = make(operator, account, "pcs")
    with pytest.raises(TransitionConflict, match="node groups"):
        fleet_create(
            actor=actor_of(operator),
            cluster=cluster,
            name="f",
            instance_type="p5.48xlarge",
            nodes=1,
            subnet_id="subnet-0a1b",
            security_group_ids=["sg-0a1b"],
            image_id="ami-0a1b",
        )
