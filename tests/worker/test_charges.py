"""What a running attempt is charged for: the time that Slurm shows or tells, on the GPUs that it really has."""

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
from apps.jobs.models import Job
from apps.jobs.selectors import job_sums
from apps.jobs.services import job_submit
from tests.conftest import actor_of
from tests.worker.fakes import FakeScheduler
from tests.worker.test_arrays import array, fresh, last, look, show
from worker.providers.errors import Unavailable

pytestmark = pytest.mark.django_db
__all__ = ["array"]


def gpu_hours(job: Job) -> Decimal:
    return job_sums(job).charged / job.usd_per_gpu_hour


def test_a_task_that_left_without_an_end_is_charged_no_further(array: Job, scheduler: FakeScheduler, tick: Any) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        show(scheduler, array, t0="RUNNING", t1="RUNNING")
        look(array, tick)
        clockwork.shift(timedelta(minutes=3))
        gone = scheduler.jobs.pop("10000")
        for minutes in (0, 27, 3):
            clockwork.shift(timedelta(minutes=minutes))
            look(array, tick)
            look(array, tick)
        assert abs(gpu_hours(array) - Decimal(8) * (3 + 33) / 60) < Decimal("0.01")
        # Accounting tells its end at last, a minute before it was missed: nothing more, nothing twice.
        ended_at = clock.now() - timedelta(minutes=31)
        scheduler.accounting["10000"] = replace(gone, state="COMPLETED", ended_at=ended_at, exit_code=0)
        clockwork.shift(timedelta(minutes=6))
        look(array, tick)
        look(array, tick)
    assert abs(gpu_hours(array) - Decimal(8) * (3 + 39) / 60) < Decimal("0.01")
    assert ledger_check().is_balanced


def test_what_runs_past_its_limit_is_charged_while_it_is_shown(
    job: Job, scheduler: FakeScheduler, work: Any, tick: Any
) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        work("job.reconcile")
        key = last(job).scheduler_id
        scheduler.run(key, ["p5-1", "p5-2"])
        look(job, tick)
        scheduler._set(key, time_limit_min=None)
        for _ in range(10):
            clockwork.shift(timedelta(hours=1))
            look(job, tick)
            look(job, tick)
        assert abs(gpu_hours(job) - 160) < Decimal("0.1")
        # Slurm is away: what nobody sees is not charged.
        scheduler.calls.fail_next["queue"] = Unavailable("away", source="slurm")
        clockwork.shift(timedelta(hours=1))
        look(job, tick)
        assert abs(gpu_hours(job) - 160) < Decimal("0.1")
        # The end that Slurm tells is believed.
        scheduler._set(key, state="COMPLETED", ended_at=clock.now() - timedelta(minutes=30), exit_code=0)
        look(job, tick)
    assert fresh(job).phase == "SUCCEEDED"
    assert abs(gpu_hours(job) - 168) < Decimal("0.1")
    assert ledger_check().is_balanced


def test_a_task_past_its_limit_is_charged_while_it_is_shown(array: Job, scheduler: FakeScheduler, tick: Any) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        show(scheduler, array, t0="RUNNING")
        look(array, tick)
        for _ in range(3):
            clockwork.shift(timedelta(hours=1))
            look(array, tick)
            look(array, tick)
    assert abs(gpu_hours(array) - 24) < Decimal("0.1")


def test_more_gpus_than_asked_for_are_charged(
    team: Any, owner: Any, cluster: Cluster, spec: Any, scheduler: FakeScheduler, work: Any, tick: Any
) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        given = replace(spec, nodes=2, gpus_per_node=4)
        job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
        work("job.reconcile")
        scheduler.run(last(job).scheduler_id, ["p5-1", "p5-2"])
        scheduler._set(last(job).scheduler_id, gpus=16)
        look(job, tick)
        clockwork.shift(timedelta(minutes=30))
        look(job, tick)
        look(job, tick)
    assert abs(gpu_hours(job) - 8) < Decimal("0.01")
