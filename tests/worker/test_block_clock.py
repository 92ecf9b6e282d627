"""The end of a block by our own clock: warned, asked, drained, given back, each once; its cost hour by hour."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine

from apps.audit.models import Event
from apps.capacity.models import Purchase, Reservation
from apps.clusters.models import Fleet, Node
from apps.core import clock
from apps.core.errors import InvalidInput
from apps.costs.models import Posting
from apps.jobs.block_charges import charge_hours
from apps.jobs.models import Attempt
from apps.jobs.services import JobSpec, job_preview, job_submit
from tests.blocks import END, at
from tests.conftest import actor_of
from worker.reconcilers import reservations

pytestmark = pytest.mark.django_db


def run_job(job: Any, scheduler: Any, nodes: list[str], **environment: str) -> Attempt:
    attempt = job.attempts.first()
    attempt.job.environment = environment
    attempt.job.save()
    scheduler.jobs["7"] = None
    Attempt.objects.filter(pk=attempt.pk).update(
        phase="RUNNING", scheduler_id="7", nodes=nodes, started_at=END - timedelta(hours=5), observed_state="RUNNING"
    )
    attempt.refresh_from_db()
    return attempt


def kinds(block: Reservation) -> list[str]:
    return list(Event.objects.filter(object_uid=block.uid).order_by("id").values_list("kind", flat=True))


def test_each_mark_is_made_once_and_in_time(block: Any, job: Any, scheduler: Any) -> None:
    nodes = sorted(Node.objects.values_list("name", flat=True))
    attempt = run_job(job, scheduler, nodes[:1], CHECKPOINT_SIGNAL="USR1")
    for before, expected in (
        (24 * 60 + 1, []),
        (24 * 60 - 1, ["BlockEndsSoon"]),
        (76, ["BlockEndsSoon"]),
        (74, ["BlockEndsSoon", "BlockCheckpointAsked"]),
        (46, ["BlockEndsSoon", "BlockCheckpointAsked"]),
        (44, ["BlockEndsSoon", "BlockCheckpointAsked", "BlockDrained"]),
        (39, ["BlockEndsSoon", "BlockCheckpointAsked", "BlockDrained", "BlockGivenBack"]),
    ):
        with at(before):
            for _redelivered in range(2):
                reservations.watch(block.uid)
        assert kinds(block) == expected, before
        if before == 74:
            assert scheduler.signals == [("7", "USR1")]
        if before == 46:
            assert not Node.objects.filter(drain_requested_at__isnull=False).exists()
        if before == 44:
            assert not Node.objects.filter(drain_requested_at__isnull=True).exists()
            assert Attempt.objects.get(pk=attempt.pk).stop_reason == ""
    assert Attempt.objects.get(pk=attempt.pk).stop_reason == "Requeued"
    assert Fleet.objects.get().delete_requested_at is not None


def test_a_busy_fleet_has_a_grace_and_then_goes(block: Any, job: Any, scheduler: Any) -> None:
    Node.objects.update(gpus_used=8)
    with at(40):
        reservations.watch(block.uid)
    assert Fleet.objects.get().delete_requested_at is None
    with at(38):
        reservations.watch(block.uid)
    assert Fleet.objects.get().delete_requested_at is not None


def test_an_ultraserver_block_is_thirty_minutes_earlier(block: Any, job: Any, scheduler: Any) -> None:
    Reservation.objects.update(kind="ultraserver-block")
    with at(71):
        reservations.watch(block.uid)
    assert kinds(block) == ["BlockEndsSoon", "BlockCheckpointAsked", "BlockDrained"]
    with at(69):
        reservations.watch(block.uid)
    assert kinds(block)[-1] == "BlockGivenBack"


def test_a_job_that_takes_no_signal_is_told_of_but_not_signalled(block: Any, job: Any, scheduler: Any) -> None:
    run_job(job, scheduler, list(Node.objects.values_list("name", flat=True)))
    with at(70):
        reservations.watch(block.uid)
    assert scheduler.signals == []
    told = Event.objects.get(object_uid=block.uid, kind="BlockCheckpointAsked")
    assert told.data == {"asked": [], "cannot_be_asked": [job.uid]}


def test_a_job_that_cannot_end_in_time_is_refused_with_what_fits(
    block: Any, cluster: Any, team: Any, owner: Any
) -> None:
    spec = JobSpec(name="late", nodes=1, gpus_per_node=8, time_limit_min=600, script="#!/bin/sh\ntrue\n")
    with at(300):
        found = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
        problem = next(p for p in found.problems if p.code == "block-ends")
        assert problem.pointer == "/time_limit_min"
        assert "at most 250 min" in problem.detail
        with pytest.raises(InvalidInput):
            job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
    with at(30):
        found = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
        assert any("ends before a job could" in p.detail for p in found.problems)
    with at(24 * 60):
        found = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
        assert not found.problems
        assert found.usd_per_gpu_hour == Decimal("5.97")
        assert "train-64" in str(found.price_source)


def test_what_no_job_used_is_charged_to_the_owner_once_an_hour(block: Any, job: Any, scheduler: Any, team: Any) -> None:
    Reservation.objects.update(start_at=END - timedelta(hours=24))
    nodes = sorted(Node.objects.values_list("name", flat=True))
    attempt = run_job(job, scheduler, nodes[:1])
    Attempt.objects.filter(pk=attempt.pk).update(
        started_at=END - timedelta(hours=24), ended_at=END - timedelta(hours=22, minutes=30), phase="SUCCEEDED"
    )
    with at(24 * 60 - 125):
        row = Reservation.objects.select_related("team", "account").get()
        assert charge_hours(row) == 1
        row.refresh_from_db()
        Reservation.objects.update(charged_until=None)
        assert charge_hours(Reservation.objects.select_related("team").get()) == 1
    with at(24 * 60 - 135):
        assert charge_hours(Reservation.objects.select_related("team").get()) == 1
    amounts = [p.amount for p in Posting.objects.filter(subject_uid=block.uid).order_by("id")]
    # Two machines: one hour with one used, then one with one used for half of it.
    assert amounts == [Decimal("47.76"), Decimal("71.64")]
    with time_machine.travel(END + timedelta(hours=1), tick=False):
        charge_hours(Reservation.objects.select_related("team").get())
        total = sum(p.amount for p in Posting.objects.filter(subject_uid=block.uid))
    assert total == Decimal("47.76") * 48 - Decimal("47.76") * Decimal("1.5")


def test_a_scheduled_block_is_looked_at_when_it_begins(block: Any) -> None:
    from apps.intents.models import Intent

    Reservation.objects.update(phase="SCHEDULED")
    with time_machine.travel(END - timedelta(days=1, minutes=2), tick=False):
        assert reservations.watch(block.uid).again_in_s == 120
        assert not Intent.objects.filter(kind="account.reservations").exists()
    with time_machine.travel(END - timedelta(days=1), tick=False):
        reservations.watch(block.uid)
        assert Intent.objects.filter(kind="account.reservations").exists()
    assert clock.now()


def test_the_last_hour_of_a_block_is_charged_after_its_end(block: Any, job: Any, scheduler: Any) -> None:
    Reservation.objects.update(charged_until=END - timedelta(hours=1), phase="EXPIRED")
    with time_machine.travel(END + timedelta(minutes=1), tick=False):
        assert reservations.watch(block.uid).again_in_s is not None
        assert not Posting.objects.filter(subject_uid=block.uid).exists()
    with time_machine.travel(END + timedelta(minutes=11), tick=False):
        assert reservations.watch(block.uid).again_in_s is None
    assert [p.amount for p in Posting.objects.filter(subject_uid=block.uid)] == [Decimal("95.52")]


def test_whoever_is_given_a_block_pays_from_then_on(block: Any, job: Any, scheduler: Any, team: Any) -> None:
    Reservation.objects.update(team=None)
    with at(60):
        charge_hours(Reservation.objects.get())
        assert not Posting.objects.filter(subject_uid=block.uid).exists()
    Reservation.objects.update(team=team)
    with time_machine.travel(END + timedelta(hours=1), tick=False):
        charge_hours(Reservation.objects.select_related("team").get())
    # All but the last two hours were nobody's (the one that was not settled yet belongs to the new owner).
    assert [p.amount for p in Posting.objects.filter(subject_uid=block.uid)] == [Decimal("95.52")] * 2


def test_an_extension_that_is_paid_for_keeps_its_machines_and_frees_its_nodes(
    block: Any, job: Any, scheduler: Any
) -> None:
    with at(44):
        reservations.watch(block.uid)
    assert not Node.objects.filter(fleet__reservation=block, drain_requested_at__isnull=True).exists()
    more = Purchase.objects.create(
        account=block.account,
        kind="extension",
        extends=block,
        name="more",
        instance_type="p5.48xlarge",
        instances=2,
        key="k",
        requested_by="user:1",
        decided_by="user:2",
        decided_at=END - timedelta(hours=1),
        attempted_at=END - timedelta(minutes=50),
        end_at=END + timedelta(days=1),
        phase="BOUGHT",
    )
    with at(39):
        # AWS's list does not show the new end yet: nothing is given back meanwhile.
        reservations.watch(block.uid)
    assert not Fleet.objects.filter(reservation=block, delete_requested_at__isnull=False).exists()
    Reservation.objects.filter(pk=block.pk).update(end_at=more.end_at, drain_asked_at=None, warned_at=None)
    with at(38):
        reservations.watch(block.uid)
    assert not Node.objects.filter(fleet__reservation=block, drain_requested_at__isnull=False).exists()
