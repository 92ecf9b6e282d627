"""A job array through the portal: one attempt, many tasks, charged by task, repeated only where a node failed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine

from apps.clusters.models import Cluster
from apps.core import clock
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.states import Unit
from apps.intents.models import Intent
from apps.jobs.action_models import JobAction
from apps.jobs.action_rules import wish_of
from apps.jobs.action_services import job_act
from apps.jobs.array_selectors import tasks_of, tasks_to_run_again
from apps.jobs.models import Attempt, Job
from apps.jobs.observations import attempt_stop
from apps.jobs.queue_models import QueueEntry
from apps.jobs.selectors import job_sums
from apps.jobs.services import job_preview, job_submit
from tests.conftest import actor_of
from tests.worker.fakes import FakeScheduler
from worker.jobscript import submit_request

pytestmark = pytest.mark.django_db


def fresh(job: Job) -> Job:
    return Job.objects.select_related("team", "cluster").get(pk=job.pk)


def last(job: Job) -> Attempt:
    return Attempt.objects.filter(job=job).latest("number")


@pytest.fixture
def array(team: Any, owner: Any, cluster: Any, spec: Any, work: Any, scheduler: FakeScheduler) -> Job:
    """Four tasks, two at once, each of one node with 8 GPUs for an hour."""
    given = replace(spec, array="0-3%2", nodes=1, gpus_per_node=8, time_limit_min=60)
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    work("job.reconcile")
    return job


def show(scheduler: FakeScheduler, job: Job, **states: str) -> None:
    """Slurm's records of the array: t0="RUNNING" …, and one record for those that wait."""
    attempt = last(job)
    base = scheduler.jobs[attempt.scheduler_id]
    array_id = attempt.scheduler_id
    for name, state in states.items():
        task = int(name.removeprefix("t"))
        began = scheduler.jobs.get(f"{array_id}{task:02d}")
        started = (began.started_at if began else None) or clock.now()
        scheduler.jobs[f"{array_id}{task:02d}"] = replace(
            base,
            scheduler_id=f"{array_id}{task:02d}",
            array_id=array_id,
            array_task=task,
            array_pending="",
            state=state,
            reason="",
            nodes=(f"p5-{task + 1}",),
            started_at=started,
            ended_at=None if state == "RUNNING" else clock.now(),
            exit_code=None if state == "RUNNING" else 0 if state == "COMPLETED" else 1,
        )
    known = {one.array_task for one in scheduler.jobs.values() if one.array_id == array_id}
    waiting = [t for t in range(4) if t not in known]
    if waiting:
        text = ",".join(map(str, waiting)) + "%2"
        scheduler.jobs[array_id] = replace(base, array_id=array_id, array_pending=text, state="PENDING")
    elif scheduler.jobs[array_id].array_task is None:
        # The array's own number stays with the task that began last.
        final = max(key for key in scheduler.jobs if key != array_id and key.startswith(array_id))
        scheduler.jobs[array_id] = replace(scheduler.jobs.pop(final), scheduler_id=array_id)


def look(job: Job, tick: Any) -> None:
    Cluster.objects.update(queue_read_at=None)
    Intent.objects.update(due_at=clock.now(), leased_until=None)
    tick(job.cluster)


def test_held_for_all_tasks_and_counted_at_once(array: Job, scheduler: FakeScheduler) -> None:
    assert (array.tasks, array.tasks_at_once, array.gpus) == (4, 2, 16)
    assert standing_of(array.team, Unit.GPUS).held == 16
    assert job_sums(array).held == Decimal(8 * 4) * array.usd_per_gpu_hour
    request = scheduler.requests["100"]
    assert request.array == "0-3%2"
    assert request.stdout_path.endswith("_%a.out")
    script = submit_request(fresh(array), last(array)).script
    assert 'exec >> "attempt-1_$SLURM_ARRAY_TASK_ID.out"' in script
    assert scheduler.calls.counts["submit"] == 1


def test_the_attempt_is_what_its_tasks_are(array: Job, scheduler: FakeScheduler, tick: Any) -> None:
    show(scheduler, array)
    look(array, tick)
    assert (fresh(array).phase, last(array).observed_state) == ("QUEUED", "PENDING")
    show(scheduler, array, t0="RUNNING", t1="RUNNING")
    look(array, tick)
    assert fresh(array).phase == "RUNNING"
    assert [task.state for task in tasks_of(array)] == ["RUNNING", "RUNNING", "PENDING", "PENDING"]
    show(scheduler, array, t0="COMPLETED", t1="COMPLETED")
    look(array, tick)
    assert fresh(array).phase == "RUNNING"
    show(scheduler, array, t2="COMPLETED", t3="COMPLETED")
    look(array, tick)
    assert fresh(array).phase == "SUCCEEDED"
    assert standing_of(array.team, Unit.GPUS).held == 0
    assert standing_of(array.team, Unit.USD).held == 0
    assert ledger_check().is_balanced


def test_each_task_is_charged_for_its_own_time(array: Job, scheduler: FakeScheduler, tick: Any) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        show(scheduler, array, t0="RUNNING", t1="RUNNING")
        look(array, tick)
        clockwork.shift(timedelta(minutes=15))
        show(scheduler, array, t0="COMPLETED")
        look(array, tick)
        look(array, tick)
        clockwork.shift(timedelta(minutes=15))
        show(scheduler, array, t1="COMPLETED", t2="COMPLETED", t3="COMPLETED")
        look(array, tick)
    assert fresh(array).phase == "SUCCEEDED"
    wanted = Decimal(8) * Decimal("0.75") * array.usd_per_gpu_hour
    assert abs(job_sums(array).charged - wanted) < Decimal("0.05")
    assert ledger_check().is_balanced


def test_only_what_a_node_took_down_runs_again(array: Job, scheduler: FakeScheduler, tick: Any, work: Any) -> None:
    show(scheduler, array, t0="COMPLETED", t1="FAILED", t2="NODE_FAIL", t3="COMPLETED")
    look(array, tick)
    work("job.reconcile")
    second = last(array)
    assert (second.number, second.array, second.tasks) == (2, "2%2", 1)
    assert scheduler.requests[second.scheduler_id].array == "2%2"
    assert [task.attempt for task in tasks_of(array)] == [1, 1, 2, 1]
    assert job_sums(array).open_hold == Decimal(8) * array.usd_per_gpu_hour
    base = scheduler.jobs[second.scheduler_id]
    scheduler.jobs[second.scheduler_id] = replace(
        base,
        array_id=second.scheduler_id,
        array_task=2,
        state="COMPLETED",
        nodes=("p5-1",),
        started_at=clock.now(),
        ended_at=clock.now(),
        exit_code=0,
    )
    look(array, tick)
    ended = fresh(array)
    # Task 1 had failed by itself and was not repeated.
    assert (ended.phase, ended.reason, ended.exit_code) == ("FAILED", "ArrayTasks", 1)


def test_a_failed_task_fails_the_job_in_words(array: Job, scheduler: FakeScheduler, tick: Any) -> None:
    show(scheduler, array, t0="COMPLETED", t1="FAILED", t2="COMPLETED", t3="FAILED")
    look(array, tick)
    ended = fresh(array)
    assert ended.phase == "FAILED"
    assert "2 of 4 tasks did not succeed: 2 FAILED" in str(ended.message)


def test_ten_thousand_tasks_write_few_rows(
    team: Any, owner: Any, cluster: Any, spec: Any, work: Any, tick: Any, scheduler: FakeScheduler
) -> None:
    from apps.costs.services import budget_set
    from apps.teams.permissions import system_actor

    budget_set(actor=system_actor(), team=team, usd_per_month=Decimal(10_000_000))
    given = replace(spec, array="0-9999%4", nodes=1, gpus_per_node=8, time_limit_min=60)
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert preview.problems == ()
    assert (preview.gpus, preview.gpu_hours) == (32, Decimal(80_000))
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    work("job.reconcile")
    base = scheduler.jobs["100"]
    scheduler.jobs["100"] = replace(base, array_id="100", array_pending="0-9999%4")
    look(job, tick)
    assert QueueEntry.objects.count() == 1
    assert len(tasks_of(job)) == 10_000
    bad = replace(given, array="0-9999999")
    problems = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=bad).problems
    assert [p.pointer for p in problems] == ["/array"]


def test_a_task_that_failed_on_the_blamed_node_runs_again(
    array: Job, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    show(scheduler, array, t0="COMPLETED", t1="FAILED", t2="COMPLETED", t3="RUNNING")
    look(array, tick)
    attempt_stop(last(array), "NodeFailure", "p5-4")
    scheduler.jobs["100"] = replace(scheduler.jobs["100"], state="FAILED", exit_code=1, ended_at=clock.now())
    look(array, tick)
    work("job.reconcile")
    # Task 1 failed on another node: by itself.
    assert (last(array).number, last(array).array, last(array).tasks) == (2, "3%2", 1)
    assert last(array).excluded_nodes == ["p5-4"]


def _cancel_task(job: Job, owner: Any, scheduler: FakeScheduler, task: int, work: Any) -> None:
    job_act(actor=actor_of(owner), job=fresh(job), wish=wish_of("CANCEL_TASK", {"task": task}))
    work("job.act")
    assert JobAction.objects.get(job=job).phase == "DONE"
    key = next(key for key, one in scheduler.jobs.items() if one.array_task == task)
    scheduler.jobs[key] = replace(scheduler.jobs[key], state="CANCELLED", ended_at=clock.now())


def test_a_cancelled_task_does_not_come_back(
    array: Job, owner: Any, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    show(scheduler, array, t0="COMPLETED", t1="COMPLETED", t2="RUNNING", t3="RUNNING")
    look(array, tick)
    _cancel_task(array, owner, scheduler, 2, work)
    attempt_stop(last(array), "NodeFailure", "p5-4")
    scheduler.jobs["100"] = replace(scheduler.jobs["100"], state="CANCELLED", ended_at=clock.now())
    look(array, tick)
    work("job.reconcile")
    assert (last(array).number, last(array).array, last(array).tasks) == (2, "3%2", 1)


def test_the_job_ends_where_no_task_is_left_to_repeat(
    array: Job, owner: Any, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    show(scheduler, array, t0="COMPLETED", t1="COMPLETED", t2="RUNNING", t3="COMPLETED")
    look(array, tick)
    _cancel_task(array, owner, scheduler, 2, work)
    attempt_stop(last(array), "NodeFailure", "p5-3")
    look(array, tick)
    work("job.reconcile")
    ended = fresh(array)
    assert last(array).number == 1
    assert (ended.phase, ended.reason) == ("FAILED", "ArrayTasks")
    assert "task 2: CANCELLED" in str(ended.message)
    assert standing_of(array.team, Unit.USD).held == standing_of(array.team, Unit.GPUS).held == 0
    assert ledger_check().is_balanced


def test_an_array_of_which_nothing_is_known_runs_again_whole(array: Job) -> None:
    QueueEntry.objects.all().delete()
    attempt_stop(last(array), "NodeFailure", "p5-4")
    assert tasks_to_run_again(array, last(array), "p5-4") == (0, 1, 2, 3)


def test_what_a_task_reports_is_its_own(array: Job, scheduler: FakeScheduler, tick: Any) -> None:
    from apps.jobs.ingest import events_take
    from apps.jobs.progress_selectors import last_of_tasks, task_asked, tasks_reporting
    from apps.jobs.selectors import progress_of

    show(scheduler, array, t0="RUNNING", t1="RUNNING")
    look(array, tick)
    for task, loss in ((0, 3.0), (1, 2.0)):
        events = [
            {"seq": seq, "kind": "progress", "data": {"step": seq, "loss": loss - seq / 10, "tokens_per_gpu_s": 10}}
            for seq in (1, 2)
        ]
        events_take(last(array), {"id": f"r{task}", "role": "batch", "task": task}, events)
    assert tasks_reporting(array) == [0, 1]
    assert [point.loss for point in progress_of(array, task=1)] == [1.9, 1.8]
    assert progress_of(array) == []
    newest = last_of_tasks(array, [0, 1, 2])
    assert {task: (point.step, point.tokens_per_s) for task, point in newest.items()} == {0: (2, 80.0), 1: (2, 80.0)}
    assert (task_asked(array, ""), task_asked(array, "1")) == (0, 1)
    job = fresh(array)
    assert (job.step, job.loss) == (None, None)
    assert job.progress_at is not None
