"""Fleets against the sandbox's AWS: launched whole, refused, deleted to nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from apps.audit.models import Event
from apps.clusters.fleet_services import fleet_create, fleet_delete
from apps.clusters.models import Cluster, Fleet, Node
from apps.clusters.observations import SeenNode, cluster_nodes_observe
from apps.clusters.selectors import fleet_sentence
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.core.errors import InvalidInput
from apps.intents.models import Intent
from tests.chaos import Crashing, Plan
from tests.conftest import actor_of
from tests.stack import ROOT, sandbox_stack
from tests.worker.fleet_site import CREATING, DELETING
from worker import doors
from worker.providers import values as v

pytestmark = [pytest.mark.django_db, pytest.mark.chaos]

CHANGING = (*CREATING, *DELETING)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with sandbox_stack(tmp_path_factory.mktemp("sandbox"), without_slurm=True) as facts:
        yield facts


@pytest.fixture
def aws(stack: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Plan:
    """What was called, through the door that notes it."""
    plan = Plan()
    real = doors.compute_for
    monkeypatch.setattr(doors, "compute_for", lambda account: Crashing(real(account), plan, CHANGING))
    monkeypatch.setenv("TEST_AWS", json.dumps({k: stack["aws"][k] for k in ("access_key_id", "secret_access_key")}))
    return plan


@pytest.fixture
def fleet(stack: dict[str, Any], aws: Plan, operator: Any) -> Fleet:
    account = CloudAccount.objects.create(
        name="sandbox",
        region=stack["aws"]["region"],
        endpoint_url=stack["aws"]["endpoint_url"],
        credentials_ref="env:TEST_AWS",
        phase="CONNECTED",
    )
    cluster = Cluster.objects.create(
        name="lab",
        account=account,
        api_url="http://127.0.0.1:9",
        user_name="qd",
        token_ref="env:TEST_TOKEN",
        working_root="/tmp/qd",
        phase="READY",
    )
    return fleet_create(
        actor=actor_of(operator),
        cluster=cluster,
        name="train",
        instance_type="p5.48xlarge",
        nodes=4,
        subnet_id=stack["aws"]["subnet_id"],
        security_group_ids=[stack["aws"]["security_group_id"]],
        image_id=stack["aws"]["image_id"],
    )


def census(stack: dict[str, Any]) -> dict[str, int]:
    url = stack["control"]["url"]
    out = subprocess.run(
        [sys.executable, "-m", "sandbox", "census", "--json", "--control-url", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(out.stdout))


def drive(fleet: Fleet, work: Any, until: tuple[str, ...], seconds: float = 60.0) -> str:
    """Visits until the fleet is in one of these phases; what waits is due at once."""
    import time

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        work("fleet.reconcile", most=3)
        fleet.refresh_from_db()
        if fleet.phase in until:
            return fleet.phase
        if fleet.phase == "JOINING":
            join(fleet)
        Intent.objects.update(due_at=clock.now())
        time.sleep(0.05)
    raise AssertionError(f"still {fleet.phase}: {fleet.message}")


def join(fleet: Fleet) -> None:
    """What the Slurm collector would see."""
    cluster_nodes_observe(
        fleet.cluster,
        [
            SeenNode(n.name, "IDLE", (), "h100", 8, 0, 192, 2_000_000, "", ("gpu",))
            for n in Node.objects.filter(fleet=fleet).exclude(phase="GONE")
        ],
    )


EMPTY = {"instances": 0, "placement_groups": 0, "launch_templates": 0, "network_interfaces": 0}


def counts(found: dict[str, int]) -> dict[str, int]:
    return {k: value for k, value in found.items() if k in EMPTY}


def test_four_nodes_with_all_their_steps_and_back_to_nothing(
    fleet: Fleet, stack: dict[str, Any], work: Any, operator: Any
) -> None:
    drive(fleet, work, ("READY",))
    assert counts(census(stack)) == {
        "instances": 4,
        "placement_groups": 1,
        "launch_templates": 1,
        "network_interfaces": 4 * 33,
    }
    steps = list(fleet.steps.all())
    assert [s.name for s in steps] == [
        "PREFLIGHT",
        "PLACEMENT_GROUP",
        "LAUNCH_TEMPLATE",
        "LAUNCHING",
        "BOOTING",
        "JOINING",
        "READY",
    ]
    assert {s.state for s in steps} == {"DONE"}
    assert all(s.started_at and s.ended_at for s in steps)
    assert len(steps[0].checks) >= 4
    assert "Ready: 4 × p5.48xlarge" in fleet_sentence(fleet)
    fleet_delete(actor=actor_of(operator), fleet=fleet, expected_version=fleet.version)
    drive(fleet, work, ("DELETED",))
    assert counts(census(stack)) == EMPTY
    assert set(Node.objects.values_list("phase", flat=True)) == {"GONE"}


def fault(stack: dict[str, Any], *words: str) -> None:
    url = stack["control"]["url"]
    subprocess.run(
        [sys.executable, "-m", "sandbox", "fault", *words, "--control-url", url],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )


def test_no_capacity_is_a_state_to_wait_in(fleet: Fleet, stack: dict[str, Any], work: Any, operator: Any) -> None:
    fault(stack, "no-capacity", "--times", "1")
    drive(fleet, work, ("WAITING_CAPACITY",))
    assert "no p5.48xlarge capacity now; next try in" in fleet_sentence(fleet)
    assert counts(census(stack))["instances"] == 0
    Fleet.objects.filter(pk=fleet.pk).update(next_try_at=clock.now())
    drive(fleet, work, ("READY",))
    assert (fleet.capacity_refusals, fleet.launch_attempt) == (1, 2)
    fleet_delete(actor=actor_of(operator), fleet=fleet, expected_version=fleet.version)
    drive(fleet, work, ("DELETED",))


def test_a_launch_whose_reply_was_lost_is_not_bought_twice(
    fleet: Fleet, stack: dict[str, Any], work: Any, operator: Any
) -> None:
    fault(
        stack,
        "server-error",
        "--service",
        "aws",
        "--operation",
        "RunInstances",
        "--shape",
        "lost-reply",
        "--times",
        "1",
    )
    drive(fleet, work, ("READY",))
    assert counts(census(stack))["instances"] == 4
    fleet_delete(actor=actor_of(operator), fleet=fleet, expected_version=fleet.version)
    drive(fleet, work, ("DELETED",))
    assert counts(census(stack)) == EMPTY


def test_a_failed_preflight_says_which_check_and_creates_nothing(
    fleet: Fleet, stack: dict[str, Any], work: Any
) -> None:
    Fleet.objects.filter(pk=fleet.pk).update(subnet_id="subnet-0ffffffffffffffff")
    drive(fleet, work, ("FAILED",))
    assert "subnet" in fleet.message
    assert counts(census(stack)) == EMPTY
    assert fleet.steps.get(name="PREFLIGHT").state == "FAILED"


def test_a_paused_account_changes_nothing(fleet: Fleet, stack: dict[str, Any], aws: Plan, work: Any) -> None:
    CloudAccount.objects.update(is_paused=True)
    work("fleet.reconcile")
    fleet.refresh_from_db()
    assert fleet.phase == "PENDING"
    assert aws.seen == []
    assert "paused" in fleet.message


def test_the_sweep_removes_what_a_deleted_fleet_left(
    fleet: Fleet, stack: dict[str, Any], work: Any, operator: Any
) -> None:
    drive(fleet, work, ("READY",))
    # The database believes the fleet is gone for an hour; its machines are still there.
    from datetime import timedelta

    Fleet.objects.filter(pk=fleet.pk).update(phase="DELETED", ended_at=clock.now() - timedelta(hours=2))
    from django.test import override_settings

    from portal.settings import CONFIG
    from worker.collectors import ec2

    account = CloudAccount.objects.get()
    with override_settings(CONFIG=CONFIG.model_copy(update={"sweep_grace_s": 0})):
        import time

        deadline = time.monotonic() + 15
        while counts(census(stack)) != EMPTY and time.monotonic() < deadline:
            ec2.sweep(account.uid)
            time.sleep(0.3)
    assert counts(census(stack)) == EMPTY
    # What AWS no longer lists has gone; an interface goes with its machine.
    ec2.sweep(account.uid)
    assert Event.objects.filter(kind="OrphanRemoved").count() >= 6


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"instance_type": "p9.huge"}, "/instance_type"),
        ({"instance_type": "p6e-gb200.36xlarge"}, "/instance_type"),
        ({"nodes": 0}, "/nodes"),
        ({"nodes": 1001}, "/nodes"),
        ({"name": "Bad Name"}, "/name"),
        ({"subnet_id": "vpc-1"}, "/subnet_id"),
        ({"security_group_ids": []}, "/security_group_ids"),
        ({"image_id": "x"}, "/image_id"),
    ],
)
def test_bad_input_is_refused_by_field(fleet: Fleet, operator: Any, change: dict[str, Any], pointer: str) -> None:
    values: dict[str, Any] = {
        "name": "other",
        "instance_type": "p5.48xlarge",
        "nodes": 1,
        "subnet_id": "subnet-1",
        "security_group_ids": ["sg-1"],
        "image_id": "ami-1",
    }
    with pytest.raises(InvalidInput) as refusal:
        fleet_create(actor=actor_of(operator), cluster=fleet.cluster, **{**values, **change})
    assert pointer in [p.pointer for p in refusal.value.problems]


def test_the_tags_are_on_everything(fleet: Fleet, stack: dict[str, Any], work: Any, operator: Any) -> None:
    drive(fleet, work, ("READY",))
    owned = doors.compute_for(CloudAccount.objects.get()).owned()
    assert {o.uid for o in owned} == {fleet.uid}
    assert {o.kind for o in owned} == {"instance", "placement-group", "launch-template", "network-interface"}
    assert v.TAG_UID == "quarterdeck:uid"
    fleet_delete(actor=actor_of(operator), fleet=fleet, expected_version=fleet.version)
    drive(fleet, work, ("DELETED",))
