"""Tasks of an array from outside that began and ended unseen: each gets its row and is charged once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine

from apps.clusters.models import Cluster
from apps.core import clock
from apps.costs.selectors import ledger_check
from apps.jobs.models import Job, QueueEntry
from tests.worker.fakes import FakeScheduler
from tests.worker.test_outside_jobs import place, spent
from tests.worker.test_queue_mirror import outside as by_ssh
from tests.worker.test_queue_mirror import read
from worker.collectors import outside, slurm
from worker.providers import values as v
from worker.providers.errors import Unavailable

pytestmark = pytest.mark.django_db
__all__ = ["place"]


@pytest.fixture
def waiting(place: Cluster, scheduler: FakeScheduler, monkeypatch: Any) -> v.SchedulerJob:
    """Four tasks of an hour each on two nodes wait, and the portal has taken them in."""
    monkeypatch.setattr(slurm, "SETTLE_EVERY_S", 0.0)
    at = (clock.now() - timedelta(hours=5)).replace(microsecond=0)
    job = by_ssh("20", array_id="20", array_pending="0-3", account="nlp-lab", submitted_at=at)
    scheduler.jobs["20"] = job
    look(place)
    assert Job.objects.get().phase == "QUEUED"
    return job


def look(place: Cluster, times: int = 1) -> None:
    for _ in range(times):
        read(place)
        outside.follow(place.uid)


def ended(base: v.SchedulerJob, task: int, key: str, state: str = "COMPLETED") -> v.SchedulerJob:
    """A task that ran for an hour."""
    at = clock.now() - timedelta(hours=1, minutes=task)
    told = {"nodes": ("p5-1", "p5-2"), "started_at": at - timedelta(hours=1), "ended_at": at, "exit_code": 0}
    return replace(base, scheduler_id=key, array_task=task, array_pending="", state=state, **told)


def checked(team: Any, tasks: int) -> None:
    job = Job.objects.get()
    assert job.phase == "SUCCEEDED"
    rows = QueueEntry.objects.filter(attempt__job=job)
    assert sorted(rows.values_list("array_task", flat=True)) == list(range(tasks))
    each = Decimal(16) * job.usd_per_gpu_hour
    assert spent(team) == pytest.approx(tasks * each, rel=Decimal("0.001"))
    assert ledger_check().is_balanced


def test_all_but_the_last_went_by(place: Cluster, team: Any, scheduler: FakeScheduler, waiting: v.SchedulerJob) -> None:
    for task, key in ((0, "21"), (1, "22"), (2, "23")):
        scheduler.accounting[key] = ended(waiting, task, key)
    # The array's own number is that of the task that began last.
    scheduler.jobs["20"] = ended(waiting, 3, "20")
    look(place, 3)
    del scheduler.jobs["20"]
    look(place, 3)
    checked(team, 4)
    look(place, 2)
    checked(team, 4)


def test_all_went_by(place: Cluster, team: Any, scheduler: FakeScheduler, waiting: v.SchedulerJob) -> None:
    del scheduler.jobs["20"]
    for task, key in ((0, "21"), (1, "22"), (2, "23"), (3, "20")):
        scheduler.accounting[key] = ended(waiting, task, key)
    look(place, 3)
    checked(team, 4)


def test_accounting_that_is_away_is_asked_again(
    place: Cluster, team: Any, scheduler: FakeScheduler, waiting: v.SchedulerJob, monkeypatch: Any
) -> None:
    del scheduler.jobs["20"]
    for task, key in ((0, "21"), (1, "22"), (2, "23"), (3, "20")):
        scheduler.accounting[key] = ended(waiting, task, key)
    monkeypatch.setattr(slurm, "ACCOUNTING_REST_S", 0.0)
    for _ in range(2):
        scheduler.calls.fail_next["accounted"] = Unavailable("away", source="slurm", code="7000")
        look(place)
    scheduler.calls.fail_next.clear()
    look(place, 3)
    checked(team, 4)


def test_one_whose_details_come_a_read_later_is_not_counted_twice(
    place: Cluster, team: Any, scheduler: FakeScheduler, waiting: v.SchedulerJob
) -> None:
    scheduler.jobs["20"] = replace(waiting, array_pending="1-3")
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        look(place)
        began = clock.now() - timedelta(minutes=1)
        first = replace(waiting, scheduler_id="21", array_task=0, array_pending="", state="RUNNING", started_at=began)
        scheduler.jobs["21"] = replace(first, nodes=("p5-1", "p5-2"))
        look(place)
        clockwork.shift(timedelta(minutes=1))
        look(place)
        rows = QueueEntry.objects.filter(array_id="20").order_by("pk")
        assert [(row.array_task, row.array_pending) for row in rows] == [(None, "1-3"), (0, "")]
        scheduler.accounting["21"] = replace(scheduler.jobs["21"], state="COMPLETED", ended_at=clock.now(), exit_code=0)
        for task, key in ((1, "22"), (2, "23"), (3, "20")):
            scheduler.accounting[key] = ended(waiting, task, key)
        scheduler.jobs.clear()
        for _ in range(3):
            clockwork.shift(timedelta(minutes=1))
            look(place)
        job = Job.objects.get()
        assert job.phase == "SUCCEEDED"
        assert sorted(rows.values_list("array_task", flat=True)) == [0, 1, 2, 3]
        # Three of an hour, and two minutes of the first.
        wanted = Decimal(16) * job.usd_per_gpu_hour * (3 + Decimal(2) / 60)
        assert spent(team) == pytest.approx(wanted, rel=Decimal("0.001"))
