"""Tasks of an array that nobody saw: they began, ended and left the queue while the worker was away."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine

from apps.core import clock
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.states import Unit
from apps.jobs.array_selectors import tasks_of
from apps.jobs.models import Job
from apps.jobs.queue_models import QueueEntry
from apps.jobs.selectors import job_sums
from apps.jobs.services import job_stop
from tests.conftest import actor_of
from tests.worker.fakes import Crash, FakeScheduler
from tests.worker.test_arrays import array, fresh, last, look, show
from worker.collectors import slurm
from worker.providers.errors import NotFound, Unavailable

pytestmark = pytest.mark.django_db
__all__ = ["array"]


@pytest.fixture(autouse=True)
def by_id(scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """One job by its id comes from accounting, too."""

    def job(key: str) -> Any:
        found = scheduler.jobs.get(key) or scheduler.accounting.get(key)
        if found is None:
            raise NotFound("no such job", source="slurm")
        return found

    monkeypatch.setattr(scheduler, "job", job)


def leave(scheduler: FakeScheduler, *keys: str) -> None:
    """These jobs leave the queue; accounting knows their ends."""
    for key in keys:
        scheduler.accounting[key] = scheduler.jobs.pop(key)


def settled(job: Job) -> None:
    assert standing_of(job.team, Unit.GPUS).held == 0
    assert standing_of(job.team, Unit.USD).held == 0
    assert ledger_check().is_balanced


def ran(scheduler: FakeScheduler, minutes: int) -> None:
    for key, job in scheduler.jobs.items():
        scheduler.jobs[key] = replace(job, started_at=clock.now() - timedelta(minutes=minutes))


def test_all_left_before_any_was_seen(array: Job, scheduler: FakeScheduler, tick: Any) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        clockwork.shift(timedelta(minutes=40))
        show(scheduler, array, t0="COMPLETED", t1="COMPLETED", t2="COMPLETED", t3="FAILED")
        ran(scheduler, 15)
        leave(scheduler, *scheduler.jobs)
        clockwork.shift(timedelta(hours=1))
        look(array, tick)
        look(array, tick)
    assert fresh(array).phase == "FAILED"
    assert [task.state for task in tasks_of(array)] == ["COMPLETED", "COMPLETED", "COMPLETED", "FAILED"]
    assert abs(job_sums(array).charged / array.usd_per_gpu_hour - 8) < Decimal("0.01")
    settled(array)


def test_the_last_task_does_not_speak_for_those_that_waited_with_it(
    array: Job, scheduler: FakeScheduler, tick: Any
) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        show(scheduler, array)
        look(array, tick)
        clockwork.shift(timedelta(minutes=40))
        show(scheduler, array, t0="FAILED", t1="FAILED", t2="FAILED", t3="COMPLETED")
        ran(scheduler, 30)
        leave(scheduler, *scheduler.jobs)
        look(array, tick)
        look(array, tick)
    assert fresh(array).phase == "FAILED"
    assert [task.state for task in tasks_of(array)] == ["FAILED", "FAILED", "FAILED", "COMPLETED"]
    assert QueueEntry.objects.count() == 4
    assert abs(job_sums(array).charged / array.usd_per_gpu_hour - 16) < Decimal("0.01")
    settled(array)


def test_two_left_unseen_and_two_were_seen(array: Job, scheduler: FakeScheduler, tick: Any) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        show(scheduler, array)
        look(array, tick)
        clockwork.shift(timedelta(minutes=40))
        show(scheduler, array, t0="COMPLETED", t1="FAILED")
        leave(scheduler, "10000", "10001")
        scheduler.jobs["100"] = replace(scheduler.jobs["100"], array_pending="2-3%2")
        look(array, tick)
        assert fresh(array).phase == "QUEUED"
        show(scheduler, array, t2="COMPLETED", t3="COMPLETED")
        scheduler.jobs = {key: job for key, job in scheduler.jobs.items() if job.array_task in (2, 3)}
        scheduler.jobs["100"] = replace(scheduler.jobs.pop("10003"), scheduler_id="100")
        look(array, tick)
        look(array, tick)
    assert fresh(array).phase == "FAILED"
    assert [task.state for task in tasks_of(array)] == ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED"]
    settled(array)


def die(*given: Any) -> int:
    raise Crash


def test_some_began_unseen_and_the_rest_was_cancelled_waiting(
    array: Job, scheduler: FakeScheduler, tick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(scheduler, array)
    look(array, tick)
    show(scheduler, array, t0="COMPLETED")
    waiting = scheduler.jobs["100"]
    scheduler.jobs["100"] = replace(waiting, state="CANCELLED", array_pending="", ended_at=clock.now())
    leave(scheduler, *scheduler.jobs)
    with monkeypatch.context() as patched:
        # Killed half-way, nothing is written: the row of all that waited would speak for the one that began.
        patched.setattr(slurm, "tasks_observe", die)
        with pytest.raises(Crash):
            look(array, tick)
    assert QueueEntry.objects.get().gone_at is None
    look(array, tick)
    look(array, tick)
    assert fresh(array).has_ended
    assert [task.state for task in tasks_of(array)] == ["COMPLETED", "CANCELLED", "CANCELLED", "CANCELLED"]
    settled(array)


def test_accounting_is_asked_again_while_it_does_not_know(
    array: Job, scheduler: FakeScheduler, tick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "ACCOUNTING_REST_S", 0.0)
    monkeypatch.setattr(slurm, "SETTLE_EVERY_S", 0.0)
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        show(scheduler, array, t0="COMPLETED")
        look(array, tick)
        show(scheduler, array, t1="COMPLETED", t2="COMPLETED", t3="COMPLETED")
        late = {key: job for key, job in scheduler.jobs.items() if job.array_task in (1, 2)}
        leave(scheduler, *scheduler.jobs)
        for key in late:
            del scheduler.accounting[key]
        scheduler.calls.fail_next["accounted"] = Unavailable("away", source="slurm")
        look(array, tick)
        look(array, tick)
        assert not fresh(array).has_ended
        scheduler.accounting |= late
        for _ in range(3):
            clockwork.shift(timedelta(minutes=1))
            look(array, tick)
    assert fresh(array).phase == "SUCCEEDED"
    assert [task.state for task in tasks_of(array)] == ["COMPLETED"] * 4
    settled(array)


def test_tasks_that_accounting_never_tells_did_not_succeed(
    array: Job, scheduler: FakeScheduler, tick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "SETTLE_EVERY_S", 0.0)
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        show(scheduler, array, t0="COMPLETED", t1="COMPLETED", t2="COMPLETED", t3="COMPLETED")
        scheduler.jobs = {key: job for key, job in scheduler.jobs.items() if job.array_task in (0, 1)}
        look(array, tick)
        row = QueueEntry.objects.get(array_task__isnull=True)
        assert (row.array_pending, row.state) == ("2-3", "PENDING")
        for _ in range(12):
            clockwork.shift(timedelta(hours=1))
            look(array, tick)
        assert QueueEntry.objects.count() == 3
    assert fresh(array).phase == "FAILED"
    settled(array)


def test_a_cancel_ends_it(array: Job, scheduler: FakeScheduler, tick: Any, owner: Any) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        show(scheduler, array)
        look(array, tick)
        show(scheduler, array, t0="COMPLETED", t1="COMPLETED", t2="COMPLETED", t3="COMPLETED")
        scheduler.jobs = {key: job for key, job in scheduler.jobs.items() if job.array_task in (0, 1)}
        look(array, tick)
        assert not fresh(array).has_ended
        job_stop(actor=actor_of(owner), job=fresh(array), kind="cancel")
        for _ in range(5):
            clockwork.shift(timedelta(minutes=1))
            look(array, tick)
    assert fresh(array).phase == "CANCELLED"
    settled(array)


def test_an_earlier_array_under_the_same_number_is_not_taken(array: Job, scheduler: FakeScheduler, tick: Any) -> None:
    show(scheduler, array, t0="FAILED", t1="FAILED", t2="FAILED", t3="FAILED")
    long_ago = clock.now() - timedelta(days=300)
    for key, job in scheduler.jobs.items():
        scheduler.accounting[key] = replace(job, comment="", ended_at=long_ago)
    scheduler.jobs = {}
    look(array, tick)
    assert not QueueEntry.objects.exists()
    assert last(array).observed_state == ""
