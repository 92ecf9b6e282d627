"""A task of an array that a person wants to run again, and one that somebody ended on the cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine

from apps.core import clock
from apps.core.errors import TransitionConflict
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.states import Unit
from apps.health.models import Finding
from apps.intents.models import Intent
from apps.jobs import action_services
from apps.jobs.action_models import JobAction
from apps.jobs.action_rules import wish_of
from apps.jobs.action_services import job_act
from apps.jobs.array_selectors import tasks_of
from apps.jobs.models import Attempt, Job
from apps.jobs.observations import attempt_stop, attempts_evict
from apps.jobs.queue_models import QueueEntry
from apps.jobs.selectors import job_sums
from tests.chaos import WHEN, Crashing, Plan, visit
from tests.conftest import actor_of
from tests.worker.fakes import FakeScheduler
from tests.worker.test_arrays import array, fresh, last, look, show
from worker import doors

pytestmark = pytest.mark.django_db
__all__ = ["array"]


def ask(job: Job, owner: Any, task: int, kind: str = "REQUEUE_TASK") -> JobAction:
    return job_act(actor=actor_of(owner), job=fresh(job), wish=wish_of(kind, {"task": task}))


def end(scheduler: FakeScheduler, task: int, state: str = "CANCELLED") -> None:
    key = next(key for key, one in scheduler.jobs.items() if one.array_task == task)
    scheduler.jobs[key] = replace(scheduler.jobs[key], state=state, ended_at=clock.now())


def test_it_is_ended_and_runs_again_after_the_others(
    array: Job, owner: Any, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    each = Decimal(8) * array.usd_per_gpu_hour
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        show(scheduler, array, t0="RUNNING", t1="RUNNING", t2="RUNNING", t3="RUNNING")
        look(array, tick)
        clockwork.shift(timedelta(minutes=15))
        ask(array, owner, 2)
        work("job.act")
        assert scheduler.calls.counts["cancel"] == 1
        assert JobAction.objects.get().phase == "DONE"
        end(scheduler, 2)
        look(array, tick)
        assert fresh(array).phase == "RUNNING"
        clockwork.shift(timedelta(minutes=15))
        for task in (0, 1, 3):
            end(scheduler, task, "COMPLETED")
        look(array, tick)
        look(array, tick)
        again = last(array)
        assert (again.number, again.array, again.tasks) == (2, "2%2", 1)
        assert (fresh(array).phase, fresh(array).recoveries) == ("QUEUED", 0)
        # 3 tasks of half an hour, one of a quarter; of the hold only that of the next attempt stands.
        assert abs(job_sums(array).charged / each - Decimal("1.75")) < Decimal("0.01")
        assert standing_of(array.team, Unit.USD).held == each
        key = last(array).scheduler_id
        base = scheduler.jobs[key]
        scheduler.jobs = {key: replace(base, array_id=key, array_task=2, array_pending="", state="RUNNING")}
        scheduler.jobs[key] = replace(scheduler.jobs[key], nodes=("p5-2",), started_at=clock.now())
        look(array, tick)
        clockwork.shift(timedelta(minutes=30))
        end(scheduler, 2, "COMPLETED")
        look(array, tick)
        look(array, tick)
    assert fresh(array).phase == "SUCCEEDED"
    assert abs(job_sums(array).charged / each - Decimal("2.25")) < Decimal("0.01")
    assert standing_of(array.team, Unit.USD).held == 0
    assert standing_of(array.team, Unit.GPUS).held == 0
    assert ledger_check().is_balanced


def test_one_that_failed_already_needs_no_end(
    array: Job, owner: Any, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    show(scheduler, array, t0="FAILED", t1="COMPLETED", t2="RUNNING", t3="RUNNING")
    look(array, tick)
    with pytest.raises(TransitionConflict, match="success already"):
        ask(array, owner, 1)
    with pytest.raises(TransitionConflict, match="no task 9"):
        ask(array, owner, 9)
    ask(array, owner, 0)
    # All ends before the wish is even looked at: the next attempt has the task all the same.
    for task in (2, 3):
        end(scheduler, task, "COMPLETED")
    look(array, tick)
    assert (last(array).number, last(array).array) == (2, "0%2")
    work("job.act")
    assert JobAction.objects.get().phase == "DONE"


def test_one_asked_after_the_next_attempt_was_made_without_it_is_too_late(
    array: Job, owner: Any, scheduler: FakeScheduler, tick: Any, work: Any, monkeypatch: Any
) -> None:
    show(scheduler, array, t0="FAILED", t1="RUNNING", t2="RUNNING", t3="RUNNING")
    look(array, tick)
    look_at = action_services.action_lines

    def looked(*given: Any) -> Any:
        lines = look_at(*given)
        # Between its look and its commit a node fails, and the next attempt is made without task 0.
        for task, state in ((1, "NODE_FAIL"), (2, "COMPLETED"), (3, "COMPLETED")):
            end(scheduler, task, state)
        for _ in range(3):
            look(array, tick)
        assert (last(array).number, last(array).array) == (2, "1%2")
        return lines

    monkeypatch.setattr(action_services, "action_lines", looked)
    ask(array, owner, 0)
    work("job.act")
    action = JobAction.objects.get()
    assert (action.phase, "too late" in str(action.answer)) == ("REFUSED", True)


def test_one_asked_as_the_attempt_ends_waits_for_what_comes_next(
    array: Job, owner: Any, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    show(scheduler, array, t0="FAILED", t1="COMPLETED", t2="COMPLETED", t3="RUNNING")
    look(array, tick)
    ask(array, owner, 0)
    Attempt.objects.filter(pk=last(array).pk).update(phase="FAILED", ended_at=clock.now())
    work("job.act")
    assert JobAction.objects.get().phase == "ASKED"
    end(scheduler, 3, "COMPLETED")
    with time_machine.travel(clock.now() + timedelta(minutes=1), tick=False):
        look(array, tick)
        work("job.act")
    assert (last(array).number, last(array).array) == (2, "0%2")
    assert JobAction.objects.get().phase == "DONE"


def test_the_last_word_about_a_task_counts(
    array: Job, owner: Any, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    show(scheduler, array, t0="RUNNING", t1="RUNNING", t2="RUNNING", t3="RUNNING")
    look(array, tick)
    ask(array, owner, 0)
    ask(array, owner, 0, "CANCEL_TASK")
    ask(array, owner, 1, "CANCEL_TASK")
    ask(array, owner, 1)
    for _ in range(4):
        work("job.act")
    for task, state in ((0, "CANCELLED"), (1, "CANCELLED"), (2, "COMPLETED"), (3, "COMPLETED")):
        end(scheduler, task, state)
    look(array, tick)
    assert (last(array).number, last(array).array) == (2, "1%2")


def test_what_finished_in_spite_of_it_is_not_run_again(
    array: Job, owner: Any, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    show(scheduler, array, t0="RUNNING", t1="COMPLETED", t2="COMPLETED", t3="COMPLETED")
    look(array, tick)
    ask(array, owner, 0)
    end(scheduler, 0, "COMPLETED")
    look(array, tick)
    assert (fresh(array).phase, last(array).number) == ("SUCCEEDED", 1)
    assert [task.state for task in tasks_of(array)] == ["COMPLETED"] * 4


def test_a_cancel_of_the_whole_ends_it(array: Job, owner: Any, scheduler: FakeScheduler, tick: Any, work: Any) -> None:
    from apps.jobs.services import job_stop

    show(scheduler, array, t0="RUNNING", t1="COMPLETED", t2="COMPLETED", t3="COMPLETED")
    look(array, tick)
    ask(array, owner, 0)
    work("job.act")
    job_stop(actor=actor_of(owner), job=fresh(array), kind="cancel")
    work("job.reconcile")
    end(scheduler, 0)
    look(array, tick)
    assert (fresh(array).phase, last(array).number) == ("CANCELLED", 1)


def test_what_was_cancelled_on_the_cluster_does_not_come_back(
    array: Job, owner: Any, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        show(scheduler, array, t0="RUNNING", t1="RUNNING", t2="RUNNING", t3="RUNNING")
        look(array, tick)
        # Somebody's scancel, past the portal.
        end(scheduler, 1)
        look(array, tick)
        clockwork.shift(timedelta(minutes=5))
        attempt_stop(last(array), "NodeFailure", "p5-4")
        clockwork.shift(timedelta(seconds=1))
        for task in (0, 2, 3):
            end(scheduler, task)
        look(array, tick)
        work("job.reconcile")
    assert (last(array).number, last(array).array) == (2, "0,2-3%2")


@pytest.fixture
def faulty(array: Job) -> Finding:
    """A fatal finding on p5-3, where task 2 runs."""
    from apps.clusters.models import Node

    node = Node.objects.get(cluster=array.cluster, name="p5-3")
    found = {"severity": "FATAL", "phase": "OPEN", "title": "XID 79 on GPU 3", "rule": "xid-79", "subject": "gpu3"}
    known = {field.name for field in Finding._meta.fields}
    return Finding.objects.create(node=node, **{k: v for k, v in found.items() if k in known})


def test_a_fault_of_one_node_ends_the_task_there_alone(
    array: Job, faulty: Finding, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    show(scheduler, array, t0="RUNNING", t1="RUNNING", t2="RUNNING", t3="RUNNING")
    look(array, tick)
    for _ in range(2):
        # Said twice, as by a worker that died in between, it is asked once.
        attempts_evict(faulty.node, faulty)
    action = JobAction.objects.get()
    assert (action.kind, action.parameters, action.asked_by) == ("REQUEUE_TASK", {"task": 2, "node": "p5-3"}, "health")
    work("job.act")
    assert (last(array).stop_reason, scheduler.calls.counts["cancel"]) == ("", 1)
    for task, state in ((2, "CANCELLED"), (0, "COMPLETED"), (1, "COMPLETED"), (3, "COMPLETED")):
        end(scheduler, task, state)
    look(array, tick)
    assert (last(array).number, last(array).array, last(array).excluded_nodes) == (2, "2%2", ["p5-3"])
    assert fresh(array).excluded_nodes == ["p5-3"]


def test_where_nothing_is_known_of_its_tasks_the_whole_attempt_ends(
    array: Job, faulty: Finding, scheduler: FakeScheduler, tick: Any
) -> None:
    show(scheduler, array, t0="RUNNING", t1="RUNNING", t2="RUNNING", t3="RUNNING")
    look(array, tick)
    QueueEntry.objects.update(nodes=[])
    assert [attempt.pk for attempt in attempts_evict(faulty.node, faulty)] == [last(array).pk]
    assert (last(array).stop_reason, last(array).stop_node) == ("NodeFailure", "p5-3")
    assert not JobAction.objects.exists()


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("kind", ["CANCEL_TASK", "REQUEUE_TASK"])
def test_a_killed_worker_ends_one_task_once(
    array: Job, owner: Any, scheduler: FakeScheduler, tick: Any, work: Any, monkeypatch: Any, when: str, kind: str
) -> None:
    show(scheduler, array, t0="RUNNING", t1="RUNNING", t2="RUNNING", t3="RUNNING")
    look(array, tick)
    ask(array, owner, 1, kind)
    plan = Plan("cancel", when)
    ended: list[str] = []
    monkeypatch.setattr(scheduler, "cancel", ended.append)
    crashing = Crashing(scheduler, plan, ["cancel"])
    monkeypatch.setattr(doors, "scheduler_for", lambda cluster, as_user="": crashing)
    for _ in range(5):
        visit(work, "job.act", plan)
    assert plan.done
    assert set(ended) == {f"{last(array).scheduler_id}_1"}
    assert JobAction.objects.get().phase == "DONE"
    assert not Intent.objects.filter(kind="job.act").exists()
    for task, state in ((1, "CANCELLED"), (0, "COMPLETED"), (2, "COMPLETED"), (3, "COMPLETED")):
        end(scheduler, task, state)
    look(array, tick)
    look(array, tick)
    if kind == "REQUEUE_TASK":
        assert (last(array).number, last(array).array) == (2, "1%2")
    else:
        assert last(array).number == 1
        assert fresh(array).has_ended
    assert ledger_check().is_balanced
