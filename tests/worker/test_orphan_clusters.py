"""Clusters and node groups of AWS's services with our tag: found by the sweep with their price, removed with care."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from django.test import override_settings

from apps.capacity.orphan_models import Orphan
from apps.capacity.orphan_selectors import orphans_usd_per_hour
from apps.capacity.orphan_services import orphan_remove
from apps.clusters.group_models import NodeGroup
from apps.clusters.managed_services import cluster_adopt
from apps.clusters.models import Cluster, Fleet, Node
from apps.clusters.selectors import burn_usd_per_hour
from apps.connections.models import CloudAccount
from apps.teams.models import Team
from portal.settings import CONFIG
from sandbox.aws import AwsServer
from sandbox.world import World
from tests import cluster_site as site
from tests.chaos import Plan
from tests.conftest import actor_of
from tests.worker import managed_site as at
from worker import doors
from worker.collectors import ec2
from worker.providers import values as v

pytestmark = pytest.mark.django_db
P5EN = Decimal("63.296")


@pytest.fixture
def server(tmp_path: Any) -> Iterator[AwsServer]:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, site.OPTIONS)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def account(server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> CloudAccount:
    monkeypatch.setenv("TEST_AWS", at.KEYS)
    return at.account(server)


def service(account: CloudAccount, kind: str) -> Any:
    return doors.cluster_service_for(Cluster(kind=kind, account=account))


def lost(account: CloudAccount, kind: str, *, group_uid: str = "grp_lost", tagged: bool = True) -> str:
    """A cluster with machines that someone made with our tag, past the portal; its name."""
    found = service(account, kind)
    tags = {v.TAG_UID: "clu_lost"} if tagged else {"who": "they"}
    if kind.startswith("hyperpod"):
        site.active(found, replace(site.POD, tags=tags))
        return "lab"
    spec = replace(site.PCS if kind == "pcs" else site.EKS, tags=tags)
    seen = site.active(found, spec)
    role = site.PROFILE if kind == "pcs" else site.ROLE
    group = replace(site.GROUP, uid=group_uid, tags={v.TAG_UID: group_uid}, nodes=2, min_nodes=2, role_arn=role)
    made = found.group_ensure(seen, site.with_template(found, seen, group), "token-of-group")
    site.in_state(found, seen, "ACTIVE")
    if kind == "pcs":
        site.eventually(lambda: found.queue_ensure(seen, group, made.provider_id, "token-of-queue"))
    site.eventually(lambda: found.groups(seen) and len(found.members(seen)) == 2)
    return "lab"


def no_grace() -> Any:
    return override_settings(CONFIG=CONFIG.model_copy(update={"sweep_grace_s": 0}))


def kinds() -> list[str]:
    return sorted(Orphan.objects.exclude(phase="GONE").values_list("kind", flat=True))


@pytest.mark.parametrize("kind", ["pcs", "eks"])
def test_groups_and_their_machines_are_found_and_no_dollar_is_counted_twice(
    kind: str, account: CloudAccount, server: AwsServer, operator: Any
) -> None:
    lost(account, kind)
    with no_grace():
        ec2.sweep(account.uid)
        ec2.sweep(account.uid)
    pieces = ["instance", "instance", "network-interface", "network-interface", "launch-template"]
    assert kinds() == sorted([f"{kind}-cluster", f"{kind}-group", *pieces])
    assert orphans_usd_per_hour(actor_of(operator)) == 2 * P5EN
    before = at.counts(server)
    # Nobody here ever had them: only a person takes them away, the group first, machines with it.
    group = Orphan.objects.get(kind=f"{kind}-group")
    orphan_remove(actor=actor_of(operator), orphan=group)
    machine = Orphan.objects.filter(kind="instance").first()
    assert machine is not None
    orphan_remove(actor=actor_of(operator), orphan=machine)
    assert at.counts(server) == before

    def swept(wanted: str) -> bool:
        ec2.sweep(account.uid)
        return wanted not in kinds()

    site.eventually(lambda: swept(f"{kind}-group") and swept("instance"))
    orphan_remove(actor=actor_of(operator), orphan=Orphan.objects.get(kind=f"{kind}-cluster"))
    site.eventually(lambda: swept(f"{kind}-cluster"))
    assert at.counts(server) == {"launch_templates": 1}


def test_hyperpod_is_found_with_the_price_of_its_nodes(account: CloudAccount, server: AwsServer, operator: Any) -> None:
    lost(account, "hyperpod-slurm")
    ec2.sweep(account.uid)
    orphan = Orphan.objects.get()
    assert (orphan.kind, orphan.provider_id, orphan.usd_per_hour) == ("hyperpod-cluster", "lab", 2 * P5EN)
    assert orphan.instance_type == "1 × m5.2xlarge, 2 × p5en.48xlarge"
    orphan_remove(actor=actor_of(operator), orphan=orphan)

    def gone() -> bool:
        ec2.sweep(account.uid)
        orphan.refresh_from_db()
        return orphan.phase == "GONE"

    site.eventually(gone)
    assert at.counts(server) == {}


def test_what_the_portal_deleted_goes_by_itself_but_clusters_never(account: CloudAccount, server: AwsServer) -> None:
    cluster = Cluster.objects.create(name="old", kind="eks", account=account, uid="clu_lost", phase="DELETED")
    NodeGroup.objects.create(cluster=cluster, name="p5en", instance_type=at.TYPE, uid="grp_lost", phase="DELETED")
    lost(account, "eks")
    with no_grace():
        ec2.sweep(account.uid)
        assert set(Orphan.objects.values_list("has_row", flat=True)) == {True}

        def group_gone() -> bool:
            ec2.sweep(account.uid)
            return kinds() == ["eks-cluster"]

        site.eventually(group_gone)
        ec2.sweep(account.uid)
    left = at.counts(server)
    assert left == {"eks_clusters": 1}


def test_what_is_owned_or_watched_is_no_orphan(
    account: CloudAccount, server: AwsServer, work: Any, operator: Any
) -> None:
    lost(account, "eks")
    cluster = cluster_adopt(
        actor=actor_of(operator), account=account, kind="eks", name="theirs", name_at_provider="lab"
    )
    at.drive(work, Plan(), lambda: at.all_settled(cluster))
    own = at.add(operator, cluster, name="own")
    at.to_phase(work, Plan(), own, "ACTIVE")
    ec2.sweep(account.uid)
    # Their group carries a uid that nobody here gave, but cluster, group and machines have their rows.
    assert set(kinds()) == {"launch-template", "network-interface"}
    assert not Orphan.objects.filter(tagged_uid=own.uid).exists()
    at.remove(operator, cluster)
    at.to_phase(work, Plan(), cluster, "DELETED")
    with no_grace():
        for _time in range(3):
            ec2.sweep(account.uid)
    # It only left the portal: what the portal made there stays until a person says otherwise.
    mine = Orphan.objects.filter(tagged_uid=own.uid)
    assert {(o.kind, o.has_row, o.phase) for o in mine} == {
        ("eks-group", False, "FOUND"),
        ("instance", False, "FOUND"),
        ("launch-template", False, "FOUND"),
        ("network-interface", False, "FOUND"),
    }
    assert at.counts(server)["eks_nodegroups"] == 2


@pytest.mark.parametrize(
    ("kind", "is_hidden"), [("eks", False), ("pcs", False), ("hyperpod-slurm", True), ("hyperpod-eks", True)]
)
def test_only_a_cluster_of_its_own_service_hides_an_orphan_of_its_name(
    kind: str, is_hidden: bool, account: CloudAccount
) -> None:
    lost(account, "hyperpod-slurm")
    Cluster.objects.create(
        name="lab",
        kind=kind,
        account=account,
        is_adopted=True,
        name_at_provider="lab",
        provider_id="lab",
        phase="READY",
    )
    ec2.sweep(account.uid)
    assert kinds() == ([] if is_hidden else ["hyperpod-cluster"])


def test_a_service_that_cannot_be_asked_makes_nothing_vanish(account: CloudAccount, server: AwsServer) -> None:
    lost(account, "hyperpod-slurm")
    ec2.sweep(account.uid)
    server.world.fault_add("access-denied", service="aws", operation="ListClusters")
    ec2.sweep(account.uid)
    assert kinds() == ["hyperpod-cluster"]


def test_machines_of_groups_burn_once(account: CloudAccount, operator: Any, owner: Any) -> None:
    cluster = Cluster.objects.create(name="lab", kind="pcs", account=account, phase="READY")
    team = Team.objects.get(slug="nlp")
    common = {"cluster": cluster, "instance_type": at.TYPE, "nodes": 4, "usd_per_hour": P5EN}
    group = NodeGroup.objects.create(name="a", observed_nodes=2, team=team, phase="ACTIVE", **common)
    NodeGroup.objects.create(name="b", observed_nodes=1, phase="DEGRADED", **common)
    NodeGroup.objects.create(name="c", observed_nodes=0, phase="ACTIVE", **common)
    NodeGroup.objects.create(name="d", observed_nodes=3, phase="DELETED", **common)
    for number in range(2):
        Node.objects.create(cluster=cluster, group=group, name=f"n{number}", provider_id=f"i-{number}", phase="READY")
    slurm = Cluster.objects.create(name="ec2", account=account, phase="READY")
    Fleet.objects.create(
        cluster=slurm,
        name="f",
        instance_type=at.TYPE,
        nodes=1,
        observed_nodes=1,
        subnet_id="s",
        image_id="a",
        phase="READY",
        usd_per_hour=P5EN,
    )
    assert burn_usd_per_hour(actor_of(operator)) == 4 * P5EN
    assert burn_usd_per_hour(actor_of(owner)) in (Decimal(0), 2 * P5EN)


def test_the_page_of_burn_names_groups(account: CloudAccount, operator: Any, client: Any) -> None:
    cluster = Cluster.objects.create(name="lab", kind="pcs", account=account, phase="READY")
    NodeGroup.objects.create(
        cluster=cluster,
        name="p5en",
        instance_type=at.TYPE,
        nodes=4,
        observed_nodes=2,
        usd_per_hour=P5EN,
        phase="ACTIVE",
    )
    client.force_login(operator)
    page = client.get("/fleets/burn").content.decode()
    assert "lab/p5en" in page
    assert "$126.59/h" in page
