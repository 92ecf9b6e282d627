"""A worker killed around every call that changes something, for every source; and faults of a launch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from apps.audit.models import Event
from apps.clusters.fleet_services import fleet_create, fleet_delete, fleet_replace
from apps.clusters.models import Cluster, Fleet, Node
from apps.core import clock
from apps.core.errors import InvalidInput
from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import IMAGE_ID, SECOND_SUBNET_ID, SECURITY_GROUP_ID, SUBNET_ID
from sandbox.world import World
from tests.chaos import WHEN, Crashing, Plan, point
from tests.conftest import actor_of
from tests.worker import fleet_site as at
from worker import doors
from worker.providers import values as v
from worker.reconcilers import fleet_launch

pytestmark = [pytest.mark.django_db, pytest.mark.chaos]

CHANGING = ("placement_group_ensure", "launch_template_ensure", "launch", "launch_choice", *at.DELETING)
P4D = "p4d.24xlarge"
#: Source: which of the calls its life makes.
SOURCES: dict[str, tuple[str, ...]] = {
    "on demand": (*at.CREATING, *at.DELETING),
    "spot": (*at.CREATING, *at.DELETING),
    "ODCR": (*at.CREATING[1:], *at.DELETING[:2]),
    "open ODCR": (*at.CREATING[1:], *at.DELETING[:2]),
    "Capacity Block": (*at.CREATING[1:], *at.DELETING[:2]),
    "batches": (*at.CREATING, *at.DELETING),
    "refused batch": ("launch", "terminate"),
    "several choices": ("placement_group_ensure", "launch_template_ensure", "launch_choice", *at.DELETING),
    "several zones": ("placement_group_ensure", "launch_template_ensure", "launch_choice", *at.DELETING),
}
POINTS = [(source, call, when) for source, calls in SOURCES.items() for call in calls for when in WHEN]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    options = AwsOptions(boot_s=0.1, join_s=0.1, shutdown_s=0.05, block_clean_s=0.05, pools={P4D: 12})
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path_factory.mktemp("aws"), options)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, server: AwsServer) -> Iterator[Plan]:
    plan = Plan()
    real = doors.compute_for
    monkeypatch.setattr(doors, "compute_for", lambda account: Crashing(real(account), plan, CHANGING))
    monkeypatch.setenv("TEST_AWS", at.KEYS)
    monkeypatch.setattr(fleet_launch, "POLL_S", 0.1)
    yield plan
    server.world.faults.clear()
    # Reservations would keep machines from the next test.
    with server.cloud.lock:
        server.cloud.book.rows("reservations").clear()


@pytest.fixture
def cluster(server: AwsServer, plan: Plan) -> Cluster:
    return at.site(server)


def asked(source: str, server: AwsServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    match source:
        case "spot":
            return {"source": "spot"}
        case "ODCR":
            return {"source": "odcr-targeted", "reservation": at.odcr(server, cluster, P4D, 4)}
        case "open ODCR":
            return {"source": "odcr-open", "reservation": at.odcr(server, cluster, P4D, 4, match="open")}
        case "Capacity Block":
            return {"source": "capacity-block", "reservation": at.block(server, cluster, P4D, 4)}
        case "batches" | "refused batch":
            monkeypatch.setattr(fleet_launch, "BATCH_NODES", 2)
            return {}
        case "several choices":
            return {"other_instance_types": ["p5en.48xlarge"]}
        case "several zones":
            # The first zone is sold out: the machines come from the second, all of them.
            server.world.fault_add("no-capacity", zone=server.options.zone)
            return {"other_subnet_ids": [SECOND_SUBNET_ID]}
        case _:
            return {}


def make(operator: Any, cluster: Cluster, **changes: Any) -> Fleet:
    """A fleet of four machines with few interfaces: what a layout needs is another test's matter."""
    return at.make(operator, cluster, **{"instance_type": P4D, **changes})


def end(fleet: Fleet, work: Any, plan: Plan, operator: Any) -> None:
    fleet.refresh_from_db()
    fleet_delete(actor=actor_of(operator), fleet=fleet, expected_version=fleet.version)
    at.drive(fleet, work, plan, "DELETED")


@pytest.mark.any_database
@pytest.mark.parametrize(("source", "call", "when"), POINTS)
def test_a_worker_killed_at_any_point_makes_one_fleet_and_leaves_none(
    source: str,
    call: str,
    when: str,
    cluster: Cluster,
    server: AwsServer,
    work: Any,
    plan: Plan,
    operator: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = asked(source, server, cluster, monkeypatch)
    plan.call, plan.when = call, when
    fleet = make(operator, cluster, **changes)
    if source == "refused batch":
        refuse_the_second(monkeypatch)
    at.drive(fleet, work, plan, "READY")
    there = at.counts(server)
    grouped = source in ("on demand", "spot", "batches", "refused batch") or source.startswith("several")
    one = {
        "instances": 4,
        "placement_groups": 1 if grouped else 0,
        "launch_templates": 2 if source.startswith("several") else 1,
        "network_interfaces": 4 * 5,
    }
    meant = {fleet.reservation.provider_id} if fleet.reservation else {""}
    held = set(Node.objects.filter(fleet=fleet).exclude(phase="GONE").values_list("reservation_id", flat=True))
    subnets = {m.subnet_id for m in server.cloud.live()}
    end(fleet, work, plan, operator)
    left = at.counts(server)
    holds = plan.done and (there, left, held) == (one, at.EMPTY, meant)
    point(f"fleet, {source}", call, when, "one, then none" if holds else f"{there}, then {left}")
    assert plan.done
    assert there == one
    assert held == meant
    assert subnets == {SECOND_SUBNET_ID if source == "several zones" else SUBNET_ID}
    assert left == at.EMPTY


def refuse_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS has no machine for the second batch, once."""
    from worker.providers.aws.compute import Ec2Compute
    from worker.providers.errors import InsufficientCapacity

    real, state = Ec2Compute.launch, {"made": 0, "refused": False}

    def launch(self: Any, request: v.LaunchRequest) -> Any:
        if state["made"] and not state["refused"]:
            state["refused"] = True
            raise InsufficientCapacity("RunInstances: none left", source="aws", code="InsufficientInstanceCapacity")
        state["made"] += 1
        return real(self, request)

    monkeypatch.setattr(Ec2Compute, "launch", launch)


def test_machines_that_die_pending_are_told_in_words(
    cluster: Cluster, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    server.world.fault_add("partial-start", left=1, count=2, reason="Client.VolumeLimitExceeded")
    fleet = make(operator, cluster)
    at.drive(fleet, work, plan, "FAILED")
    assert "2 of 4 machines died while starting" in fleet.message
    assert "ask AWS for more storage" in fleet.message
    end(fleet, work, plan, operator)
    assert at.counts(server) == at.EMPTY


def test_a_machine_outside_its_reservation_is_told(
    cluster: Cluster, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    row = at.odcr(server, cluster, P4D, 4)
    server.world.fault_add("wrong-reservation", left=1)
    fleet = make(operator, cluster, source="odcr-targeted", reservation=row)
    at.drive(fleet, work, plan, "READY")
    (condition,) = fleet.conditions
    assert condition["kind"] == "WrongReservation"
    assert "you pay for them and for the reservation" in condition["text"]
    assert Event.objects.filter(object_uid=fleet.uid, kind="FleetCondition").count() == 1
    end(fleet, work, plan, operator)


def test_an_expired_reservation_fails_the_fleet_and_not_the_cluster(
    cluster: Cluster, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    row = at.block(server, cluster, P4D, 4)
    fleet = make(operator, cluster, source="capacity-block", reservation=row)
    type(row).objects.filter(pk=row.pk).update(phase="EXPIRED", observed_state="expired")
    other = make(operator, cluster, name="other")
    at.drive(fleet, work, plan, "FAILED")
    assert [c["kind"] for c in fleet.conditions] == ["ReservationEnded"]
    at.drive(other, work, plan, "READY")
    end(other, work, plan, operator)
    end(fleet, work, plan, operator)
    assert at.counts(server) == at.EMPTY


def test_a_role_without_permission_is_told(
    cluster: Cluster, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    fleet = make(operator, cluster)
    server.world.fault_add("access-denied", service="aws", operation="RunInstances")
    at.drive(fleet, work, plan, "FAILED")
    assert "The account's role may not launch" in fleet.message
    assert at.counts(server) == at.EMPTY
    server.world.faults.clear()
    end(fleet, work, plan, operator)


def test_a_lost_machine_is_replaced_when_asked_and_a_block_is_waited_for(
    cluster: Cluster, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    row = at.block(server, cluster, P4D, 4)
    fleet = make(operator, cluster, source="capacity-block", reservation=row)
    at.drive(fleet, work, plan, "READY")
    lost = Node.objects.filter(fleet=fleet).first()
    assert lost is not None
    object.__setattr__(server.options, "block_clean_s", 3600.0)
    try:
        server.terminate_by_hand([lost.provider_id])
        at.drive(fleet, work, plan, "DEGRADED")
        fleet.refresh_from_db()
        fleet_replace(actor=actor_of(operator), fleet=fleet, expected_version=fleet.version)
        for _round in range(3):
            at.visit(work, at.KIND, plan)
        fleet.refresh_from_db()
        assert "the block is still cleaning" in fleet.message
        assert fleet.next_try_at is not None
        assert timedelta(minutes=4) < fleet.next_try_at - clock.now() <= timedelta(minutes=5)
        assert fleet.phase == "DEGRADED"
    finally:
        object.__setattr__(server.options, "block_clean_s", 0.05)
    Fleet.objects.filter(pk=fleet.pk).update(next_try_at=clock.now())
    import time

    deadline = time.monotonic() + 15
    while fleet.phase != "READY" and time.monotonic() < deadline:
        at.visit(work, at.KIND, plan)
        at.join(fleet)
        fleet.refresh_from_db()
    assert fleet.phase == "READY", fleet.message
    assert Node.objects.filter(fleet=fleet, phase="READY").count() == 4
    end(fleet, work, plan, operator)
    assert at.counts(server) == at.EMPTY


def test_terminated_is_written_only_after_aws_says_so(
    cluster: Cluster, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    fleet = make(operator, cluster, nodes=2)
    at.drive(fleet, work, plan, "READY")
    object.__setattr__(server.options, "shutdown_s", 3600.0)
    try:
        fleet_delete(actor=actor_of(operator), fleet=fleet, expected_version=fleet.version)
        for _round in range(4):
            at.visit(work, at.KIND, plan)
        fleet.refresh_from_db()
        assert fleet.phase == "DELETING"
        assert set(Node.objects.filter(fleet=fleet).values_list("phase", flat=True)) == {"DOWN"}
    finally:
        object.__setattr__(server.options, "shutdown_s", 0.05)
    at.drive(fleet, work, plan, "DELETED")
    assert set(Node.objects.filter(fleet=fleet).values_list("phase", flat=True)) == {"GONE"}


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"source": "lottery"}, "/source"),
        ({"source": "capacity-block"}, "/reservation"),
        ({"source": "on-demand", "reservation": "mine"}, "/reservation"),
        ({"source": "odcr-targeted", "reservation": "mine"}, "/reservation"),
        ({"source": "capacity-block", "reservation": "theirs"}, "/reservation"),
        ({"source": "capacity-block", "reservation": "over"}, "/reservation"),
        ({"source": "capacity-block", "reservation": "mine", "instance_type": "p5en.48xlarge"}, "/instance_type"),
        ({"source": "capacity-block", "reservation": "mine", "nodes": 9}, "/nodes"),
        ({"source": "spot", "other_instance_types": ["p5en.48xlarge"]}, "/other_instance_types"),
        ({"other_subnet_ids": ["vpc-1"]}, "/other_subnet_ids"),
        ({"other_instance_types": ["p9.huge"]}, "/other_instance_types"),
    ],
)
def test_what_does_not_go_together_is_refused_by_field(
    change: dict[str, Any], pointer: str, cluster: Cluster, server: AwsServer, operator: Any
) -> None:
    row = at.block(server, cluster, P4D, 4)
    wanted = change.get("reservation")
    if wanted == "theirs":
        account = cluster.account
        assert account is not None
        account.pk, account.uid, account.name = None, "", "another"
        account.save()
        type(row).objects.filter(pk=row.pk).update(account=account)
    elif wanted == "over":
        type(row).objects.filter(pk=row.pk).update(phase="EXPIRED")
    row.refresh_from_db()
    cluster.refresh_from_db()
    values: dict[str, Any] = {
        "name": "train",
        "instance_type": P4D,
        "nodes": 1,
        "subnet_id": SUBNET_ID,
        "security_group_ids": [SECURITY_GROUP_ID],
        "image_id": IMAGE_ID,
        **change,
    }
    if wanted:
        values["reservation"] = row
    with pytest.raises(InvalidInput) as refusal:
        fleet_create(actor=actor_of(operator), cluster=cluster, **values)
    assert [p.pointer for p in refusal.value.problems] == [pointer]


def test_what_aws_plans_for_a_machine_is_on_its_node(
    cluster: Cluster, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    from worker.collectors import planned

    fleet = make(operator, cluster, nodes=2)
    at.drive(fleet, work, plan, "READY")
    node = Node.objects.filter(fleet=fleet).first()
    account = cluster.account
    assert node is not None
    assert account is not None
    server.plan_event(node.provider_id, "instance-retirement", 48)
    planned.read(account, doors.compute_for(account))
    node.refresh_from_db()
    assert [e["code"] for e in node.cloud_events] == ["instance-retirement"]
    assert Node.objects.exclude(cloud_events=[]).count() == 1
    assert Event.objects.filter(object_uid=node.uid, kind="NodePlanned").count() == 1
    end(fleet, work, plan, operator)


@pytest.mark.parametrize("when", WHEN)
def test_a_replacement_in_doubt_among_several_choices_is_made_once(
    cluster: Cluster, server: AwsServer, work: Any, plan: Plan, operator: Any, when: str
) -> None:
    """The first launch's machines must not be taken for the replacement's: both are attempt one of their batch."""
    import time

    fleet = make(operator, cluster, other_instance_types=["p5en.48xlarge"])
    at.drive(fleet, work, plan, "READY")
    lost = Node.objects.filter(fleet=fleet).first()
    assert lost is not None
    server.terminate_by_hand([lost.provider_id])
    at.drive(fleet, work, plan, "DEGRADED")
    plan.call, plan.when = "launch_choice", when
    made = plan.seen.count("launch_choice")
    fleet_replace(actor=actor_of(operator), fleet=fleet, expected_version=fleet.version)
    deadline = time.monotonic() + 20
    while fleet.phase != "READY" and time.monotonic() < deadline:
        at.visit(work, at.KIND, plan)
        at.join(fleet)
        fleet.refresh_from_db()
    assert (fleet.phase, plan.done) == ("READY", True), fleet.message
    there = at.counts(server)["instances"]
    calls = plan.seen.count("launch_choice") - made
    end(fleet, work, plan, operator)
    point("fleet, replacement among choices", "launch_choice", when, "one, then none" if there == 4 else f"{there}")
    assert there == 4
    assert calls == (2 if when == "before the call" else 1)
    assert fleet.batches.count() == 2
    assert at.counts(server) == at.EMPTY


def test_a_reservation_that_is_not_active_is_waited_for_in_minutes_and_its_end_ends_the_fleet(
    cluster: Cluster, server: AwsServer, work: Any, plan: Plan, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker.providers.aws.compute import Ec2Compute
    from worker.providers.errors import Conflict

    def not_active(self: Any, request: Any) -> Any:
        raise Conflict("RunInstances: not active", source="aws", code="InvalidCapacityReservationState")

    monkeypatch.setattr(Ec2Compute, "launch", not_active)
    row = at.block(server, cluster, P4D, 4)
    fleet = make(operator, cluster, source="capacity-block", reservation=row)
    from tests.chaos import visit

    for _round in range(20):
        visit(work, at.KIND, plan)
        fleet.refresh_from_db()
        if fleet.phase == "WAITING_CAPACITY":
            break
    assert fleet.phase == "WAITING_CAPACITY"
    assert plan.seen.count("launch") == 1
    assert fleet.next_try_at is not None
    assert fleet.next_try_at - clock.now() > timedelta(seconds=50)
    type(row).objects.filter(pk=row.pk).update(phase="EXPIRED", observed_state="expired")
    at.drive(fleet, work, plan, "FAILED")
    end(fleet, work, plan, operator)
    assert at.counts(server) == at.EMPTY
