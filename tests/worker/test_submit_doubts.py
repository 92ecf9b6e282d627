"""A submit whose end nobody saw: one copy lives, whatever dies meanwhile, and a cancel is always heard."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import time_machine

from apps.core import clock
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.states import Unit
from apps.intents.models import Intent
from apps.jobs.models import Job
from apps.jobs.services import job_stop, job_submit
from tests.conftest import actor_of
from tests.worker.fakes import Crash, FakeScheduler
from tests.worker.test_arrays import fresh, last, look
from worker import doors
from worker.providers.errors import InvalidRequest, Unavailable

pytestmark = pytest.mark.django_db


def _lose_answer(scheduler: FakeScheduler, work: Any) -> None:
    """The worker dies after Slurm took the job."""
    scheduler.calls.crash_after["submit"] = Crash()
    with pytest.raises(Crash):
        work("job.reconcile")


@pytest.mark.parametrize("waits", [False, True])
def test_an_array_keeps_its_own_tasks(
    team: Any, owner: Any, cluster: Any, spec: Any, work: Any, scheduler: FakeScheduler, tick: Any, waits: bool
) -> None:
    given = replace(spec, array="0-3", nodes=1, gpus_per_node=8, time_limit_min=60)
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
        _lose_answer(scheduler, work)
        clockwork.shift(timedelta(seconds=130))
        base = replace(scheduler.jobs.pop("100"), array_id="100")
        for task in range(3):
            key = f"10{task + 1}"
            scheduler.jobs[key] = replace(
                base, scheduler_id=key, array_task=task, state="RUNNING", nodes=(f"p5-{task + 1}",)
            )
        rest = {"array_pending": "3"} if waits else {"array_task": 3, "state": "RUNNING", "nodes": ("p5-4",)}
        scheduler.jobs["100"] = replace(base, **rest)
        work("job.reconcile")
        look(job, tick)
    assert last(job).scheduler_id == "100"
    assert scheduler.calls.counts["cancel"] == 0
    assert scheduler.calls.counts["submit"] == 1
    assert fresh(job).phase == "RUNNING"


def test_a_second_copy_of_an_array_goes_as_a_whole(
    team: Any, owner: Any, cluster: Any, spec: Any, work: Any, scheduler: FakeScheduler
) -> None:
    given = replace(spec, array="0-1", nodes=1, gpus_per_node=8, time_limit_min=60)
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    _lose_answer(scheduler, work)
    first = replace(scheduler.jobs["100"], array_id="100", array_task=1)
    scheduler.jobs["100"] = first
    scheduler.jobs["101"] = replace(first, scheduler_id="101", array_task=0, state="COMPLETED")
    scheduler.jobs["200"] = replace(first, scheduler_id="200", array_id="200", array_task=None, array_pending="1")
    scheduler.jobs["201"] = replace(first, scheduler_id="201", array_id="200", array_task=0, state="COMPLETED")
    Intent.objects.update(due_at=clock.now(), leased_until=None)
    work("job.reconcile")
    assert last(job).scheduler_id == "100"
    assert scheduler.calls.counts["cancel"] == 1
    assert (scheduler.jobs["100"].state, scheduler.jobs["200"].state) == ("PENDING", "CANCELLED")


@pytest.mark.parametrize("error", [Crash(), Unavailable("away", source="slurm")])
def test_a_second_copy_is_ended_though_its_cancel_was_lost(
    job: Job, scheduler: FakeScheduler, work: Any, tick: Any, error: BaseException
) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        _lose_answer(scheduler, work)
        clockwork.shift(timedelta(seconds=130))
        scheduler.jobs["101"] = replace(scheduler.jobs["100"], scheduler_id="101", state="RUNNING", nodes=("p5-3",))
        scheduler.calls.fail_next["cancel"] = error  # type: ignore[assignment]
        with suppress(Crash):
            work("job.reconcile")
        # Its number is not written while a copy may live: nobody would look for that one again.
        assert last(job).scheduler_id == ""
        clockwork.shift(timedelta(minutes=5))
        look(job, tick)
    assert last(job).scheduler_id == "100"
    assert scheduler.jobs["101"].state == "CANCELLED"
    assert scheduler.jobs["100"].state == "PENDING"


@pytest.mark.parametrize("began", [False, True])
def test_a_cancel_is_heard_though_the_persons_door_is_shut(
    cluster: Any,
    team: Any,
    owner: Any,
    spec: Any,
    scheduler: FakeScheduler,
    work: Any,
    monkeypatch: pytest.MonkeyPatch,
    began: bool,
) -> None:
    def door(cluster: Any, as_user: str = "") -> FakeScheduler:
        if as_user == "u1":
            raise InvalidRequest("Slurm user u1 has no uid and gid", source="portal", code="ids")
        return scheduler

    with time_machine.travel(clock.now(), tick=False) as clockwork:
        job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
        if began:
            # The door was open when the submit began and is shut since; Slurm has nothing.
            scheduler.calls.fail_next["submit"] = Unavailable("no answer", source="slurm")
            work("job.reconcile", most=1)
        Job.objects.filter(pk=job.pk).update(slurm_user="u1")
        monkeypatch.setattr(doors, "scheduler_for", door)
        work("job.reconcile", most=3)
        assert last(job).phase == ("SUBMITTING" if began else "PENDING")
        job_stop(actor=actor_of(owner), job=fresh(job), kind="cancel")
        for _ in range(3):
            clockwork.shift(timedelta(seconds=20))
            Intent.objects.update(due_at=clock.now(), leased_until=None)
            work("job.reconcile", most=3)
    assert fresh(job).phase == "CANCELLED"
    assert standing_of(team, Unit.USD).held == standing_of(team, Unit.GPUS).held == 0
    assert ledger_check().is_balanced
