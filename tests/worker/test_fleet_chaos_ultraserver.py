"""A worker killed around every call that changes something, for machines of an UltraServer block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from apps.clusters.fleet_services import fleet_delete
from apps.clusters.models import Node
from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import ARM_IMAGE_ID
from sandbox.world import World
from tests.chaos import WHEN, Crashing, Plan, point
from tests.conftest import actor_of
from tests.worker import fleet_site as at
from worker import doors
from worker.reconcilers import fleet_launch

pytestmark = [pytest.mark.django_db, pytest.mark.chaos, pytest.mark.any_database]

GB200 = "p6e-gb200.36xlarge"
ULTRASERVER = "u-p6e-gb200x36"
#: Machines of one, and interfaces of a machine: one for addresses, and EFA on cards 1, 5, 9 and 13.
MACHINES, INTERFACES = 9, 5
CALLS = (*at.CREATING[1:], *at.DELETING[:2])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    options = AwsOptions(
        region="us-east-1", zone="us-east-1-dfw-2a", boot_s=0.1, join_s=0.1, shutdown_s=0.05, block_clean_s=0.05
    )
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path_factory.mktemp("aws"), options)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, server: AwsServer) -> Iterator[Plan]:
    plan = Plan()
    real, changing = doors.compute_for, ("placement_group_ensure", *CALLS)
    monkeypatch.setattr(doors, "compute_for", lambda account: Crashing(real(account), plan, changing))
    monkeypatch.setenv("TEST_AWS", at.KEYS)
    monkeypatch.setattr(fleet_launch, "POLL_S", 0.1)
    yield plan
    server.world.faults.clear()
    with server.cloud.lock:
        server.cloud.book.rows("reservations").clear()


@pytest.mark.parametrize(("call", "when"), [(call, when) for call in CALLS for when in WHEN])
def test_a_worker_killed_at_any_point_fills_one_ultraserver_and_leaves_nothing(
    call: str, when: str, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    cluster = at.site(server)
    row = at.block(server, cluster, GB200, MACHINES, ULTRASERVER)
    plan.call, plan.when = call, when
    fleet = at.make(
        operator,
        cluster,
        instance_type=GB200,
        nodes=MACHINES,
        source="ultraserver-block",
        reservation=row,
        image_id=ARM_IMAGE_ID,
    )
    at.drive(fleet, work, plan, "READY")
    there = at.counts(server)
    held = set(Node.objects.filter(fleet=fleet).exclude(phase="GONE").values_list("reservation_id", flat=True))
    fleet_delete(actor=actor_of(operator), fleet=fleet, expected_version=fleet.version)
    at.drive(fleet, work, plan, "DELETED")
    left = at.counts(server)
    one = {
        "instances": MACHINES,
        "placement_groups": 0,
        "launch_templates": 1,
        "network_interfaces": MACHINES * INTERFACES,
    }
    holds = plan.done and (there, left, held) == (one, at.EMPTY, {row.provider_id})
    point("fleet, UltraServer block", call, when, "one, then none" if holds else f"{there}, then {left}")
    assert plan.done
    assert there == one
    assert held == {row.provider_id}
    assert left == at.EMPTY
    assert "placement_group_ensure" not in plan.seen
