"""A paused account: no call leaves for AWS, the clock of a block goes on for its jobs, and resuming goes on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.httpsession import URLLib3Session

from apps.capacity.models import OfferingSearch, Purchase, Reservation
from apps.clusters.fleet_services import fleet_delete
from apps.clusters.models import Cluster, Fleet, Node, PreflightRun
from apps.connections.models import CloudAccount
from apps.connections.selectors import account_sentence
from apps.connections.services import account_pause
from apps.core import clock
from apps.intents.models import Intent
from apps.intents.services import intent_ask
from apps.jobs.models import Attempt
from apps.storage.models import FileSystem
from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import IMAGE_ID, SECURITY_GROUP_ID, SUBNET_ID
from sandbox.world import World
from tests.chaos import Plan
from tests.conftest import actor_of
from tests.worker import fleet_site as at
from worker import doors, engine
from worker.providers.errors import Unavailable
from worker.reconcilers import RECONCILERS, reservations

pytestmark = [pytest.mark.django_db]
P5 = "p5.48xlarge"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsServer]:
    monkeypatch.setenv("TEST_AWS", at.KEYS)
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, AwsOptions(boot_s=0.1, join_s=0.1, shutdown_s=0.05))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every request that botocore sends, whatever the client."""
    found: list[str] = []
    real = URLLib3Session.send

    def send(self: Any, request: Any) -> Any:
        found.append(str(request.url))
        return real(self, request)

    monkeypatch.setattr(URLLib3Session, "send", send)
    return found


@pytest.fixture
def fleet(server: AwsServer, work: Any, operator: Any, scheduler: Any) -> Fleet:
    """Four machines that run in a block."""
    cluster = at.site(server)
    Cluster.objects.filter(pk=cluster.pk).update(name="aws")
    row = at.block(server, cluster, P5, 4)
    fleet = at.make(operator, cluster, source="capacity-block", reservation=row)
    at.drive(fleet, work, Plan(), "READY")
    return fleet


def pause(account: CloudAccount, admin: Any, *, is_paused: bool) -> None:
    account.refresh_from_db()
    account_pause(actor=actor_of(admin), account=account, is_paused=is_paused, expected_version=account.version)
    account.refresh_from_db()


def visit_all(rounds: int = 3) -> None:
    """Everything the worker could be asked to look at in an account, due now."""
    for _round in range(rounds):
        Intent.objects.update(due_at=clock.now(), leased_until=None, lease="")
        engine.drain(RECONCILERS, most=60)


def everything(account: CloudAccount, cluster: Cluster, block: Reservation) -> None:
    """One row of each kind that is looked after in an account, each asked for."""
    common = {"account": account, "name": "x", "instance_type": P5, "instances": 2, "requested_by": "user:1"}
    decided = {"decided_by": "user:2", "decided_at": clock.now(), "attempted_at": clock.now()}
    for kind, phase in (("capacity-block", "UNKNOWN"), ("extension", "PAYING"), ("odcr", "BUYING")):
        extends = block if kind == "extension" else None
        row = Purchase.objects.create(
            kind=kind, phase=phase, key=uuid.uuid4().hex, extends=extends, **common, **decided
        )
        intent_ask("purchase.buy", row.uid)
    search = OfferingSearch.objects.create(
        account=account,
        kind="capacity-block",
        asked_by="user:1",
        criteria={"instance_type": P5, "instances": 2, "hours": 24},
    )
    intent_ask("offering.search", search.uid)
    spec = {"instance_type": P5, "nodes": 1, "subnet_id": SUBNET_ID, "image_id": IMAGE_ID}
    run = PreflightRun.objects.create(cluster=cluster, spec=spec | {"security_group_ids": [SECURITY_GROUP_ID]})
    intent_ask("preflight.run", run.uid)
    files = FileSystem.objects.create(account=account, name="fs", kind="fsx-lustre", phase="AVAILABLE")
    intent_ask("file_system.reconcile", files.uid)
    intent_ask("reservation.watch", block.uid)
    for kind in ("account.check", "account.sweep", "account.reservations"):
        intent_ask(kind, account.uid)


def test_nothing_is_sent_and_jobs_are_still_warned_asked_and_drained(
    fleet: Fleet, admin: Any, sent: list[str], scheduler: Any, job: Any
) -> None:
    account, block = fleet.cluster.account, fleet.reservation
    assert account is not None
    assert block is not None
    names = sorted(Node.objects.filter(fleet=fleet).values_list("name", flat=True))
    job.environment, job.cluster = {"CHECKPOINT_SIGNAL": "USR1"}, fleet.cluster
    job.save()
    scheduler.jobs["7"] = None
    Attempt.objects.update(phase="RUNNING", scheduler_id="7", nodes=names[:1], observed_state="RUNNING")
    everything(account, fleet.cluster, block)
    pause(account, admin, is_paused=True)
    sent.clear()
    for minutes, column in ((74, "checkpoint_asked_at"), (44, "drain_asked_at")):
        Reservation.objects.update(end_at=clock.now() + timedelta(minutes=minutes))
        visit_all(1)
        block.refresh_from_db()
        assert getattr(block, column) is not None, column
    assert ("7", "USR1") in scheduler.signals
    assert not Node.objects.filter(fleet=fleet, drain_requested_at__isnull=True).exists()
    Reservation.objects.update(end_at=clock.now() + timedelta(minutes=35))
    visit_all()
    fleet.refresh_from_db()
    block.refresh_from_db()
    assert sent == []
    assert (fleet.delete_requested_at, block.terminate_asked_at) == (None, None)
    assert "EC2 takes them at the end" in block.message
    assert Attempt.objects.get().stop_reason == "Requeued", "its jobs go on elsewhere all the same"
    assert {p.phase for p in Purchase.objects.all()} == {"UNKNOWN", "PAYING"}


def test_the_door_is_shut_whoever_knocks(fleet: Fleet, admin: Any, sent: list[str]) -> None:
    account = fleet.cluster.account
    assert account is not None
    pause(account, admin, is_paused=True)
    sent.clear()
    for door in (doors.compute_for, doors.capacity_for, doors.storage_for):
        with pytest.raises(Unavailable, match="is paused"):
            door(account)
    assert sent == []


def test_a_person_sees_since_when_and_resuming_asks_who_it_is_before_anything(
    fleet: Fleet, admin: Any, operator: Any, work: Any
) -> None:
    account = fleet.cluster.account
    assert account is not None
    pause(account, admin, is_paused=True)
    since = account.paused_at
    assert since is not None
    assert account_sentence(account).startswith("Paused for ")
    pause(account, admin, is_paused=True)
    assert account.paused_at == since, "pausing twice is one pause"
    fleet_delete(actor=actor_of(operator), fleet=fleet, expected_version=Fleet.objects.get(pk=fleet.pk).version)
    visit_all(1)
    fleet.refresh_from_db()
    assert (fleet.phase, "is paused" in fleet.message) == ("READY", True)
    pause(account, admin, is_paused=False)
    assert (account.paused_at, account.is_trusted) == (None, False)
    work("account.check")
    account.refresh_from_db()
    assert account.is_trusted
    at.drive(fleet, work, Plan(), "DELETED")


def test_a_block_that_starts_while_its_account_is_paused_is_read_when_it_is_resumed(
    fleet: Fleet, admin: Any, work: Any
) -> None:
    account, block = fleet.cluster.account, fleet.reservation
    assert account is not None
    assert block is not None
    Reservation.objects.update(phase="SCHEDULED", start_at=clock.now() - timedelta(minutes=1))
    pause(account, admin, is_paused=True)
    Intent.objects.filter(kind="account.reservations").delete()
    reservations.watch(block.uid)
    assert not Intent.objects.filter(kind="account.reservations").exists()
    pause(account, admin, is_paused=False)
    work("account.check", "account.reservations")
    block.refresh_from_db()
    assert block.phase == "ACTIVE"
