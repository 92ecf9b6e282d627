"""Tasks on a faulty node: asked for until they end, never past the job's recoveries or a person's cancel."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine

from apps.audit.models import Event
from apps.core import clock
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.states import Unit
from apps.health.models import Finding
from apps.intents.services import intent_ask
from apps.jobs.action_models import JobAction
from apps.jobs.action_rules import wish_of
from apps.jobs.action_services import job_act
from apps.jobs.models import Job
from apps.jobs.observations import attempts_evict
from tests.conftest import actor_of
from tests.worker.fakes import FakeScheduler
from tests.worker.test_arrays import array, fresh, last, look, show
from tests.worker.test_tasks_again import ask, end, faulty
from worker.providers.errors import AccessDenied

pytestmark = pytest.mark.django_db
__all__ = ["array", "faulty"]
DENIED = AccessDenied("Access/permission denied", source="slurm", code="2002")
REFUSED_TOKEN = AccessDenied("Protocol authentication error", source="slurm", code="1007")


@pytest.fixture
def running(array: Job, scheduler: FakeScheduler, tick: Any) -> Job:
    """Every task runs, task 2 on p5-3."""
    show(scheduler, array, t0="RUNNING", t1="RUNNING", t2="RUNNING", t3="RUNNING")
    look(array, tick)
    return array


def finish(job: Job, scheduler: FakeScheduler, tick: Any, **others: str) -> None:
    """Task 2 was ended; the others end as named, t0= and so on, or with success."""
    end(scheduler, 2)
    for task in (0, 1, 3):
        end(scheduler, task, others.get(f"t{task}", "COMPLETED"))
    look(job, tick)
    look(job, tick)


@pytest.mark.parametrize("refusal", [DENIED, REFUSED_TOKEN])
def test_a_refused_end_is_asked_again_until_it_is_taken(
    running: Job, faulty: Finding, scheduler: FakeScheduler, work: Any, refusal: AccessDenied
) -> None:
    attempts_evict(faulty.node, faulty)
    scheduler.calls.fail_next["cancel"] = refusal
    work("job.act")
    action = JobAction.objects.get()
    assert action.phase == "ASKED"
    assert "enied" in str(action.answer) or "authentication" in str(action.answer)
    with time_machine.travel(clock.now() + timedelta(minutes=30), tick=False):
        work("job.act")
    assert scheduler.calls.counts["cancel"] == 2
    assert JobAction.objects.get().phase == "DONE"


def test_what_is_refused_so_far_keeps_nobody_waiting(
    running: Job, owner: Any, faulty: Finding, scheduler: FakeScheduler, work: Any, monkeypatch: Any
) -> None:
    attempts_evict(faulty.node, faulty)
    ended = []

    def cancel(key: str) -> None:
        if key.endswith("_2"):
            raise DENIED
        ended.append(key)

    monkeypatch.setattr(scheduler, "cancel", cancel)
    work("job.act")
    ask(running, owner, 0, "CANCEL_TASK")
    intent_ask("job.act", running.uid)
    work("job.act")
    assert [key.rpartition("_")[2] for key in ended] == ["0"]
    assert dict(JobAction.objects.values_list("asked_by", "phase")) == {"health": "ASKED", owner.username: "DONE"}


@pytest.mark.parametrize("kind", ["SIGNAL", "CANCEL_TASK"])
def test_a_persons_wish_outlives_a_refused_token(
    running: Job, owner: Any, scheduler: FakeScheduler, work: Any, kind: str
) -> None:
    call = "signal" if kind == "SIGNAL" else "cancel"
    wish = wish_of(kind, {"task": 1, "signal": "USR1"})
    job_act(actor=actor_of(owner), job=fresh(running), wish=wish)
    scheduler.calls.fail_next[call] = REFUSED_TOKEN
    work("job.act")
    assert JobAction.objects.get().phase == "ASKED"
    with time_machine.travel(clock.now() + timedelta(minutes=1), tick=False):
        work("job.act")
    assert (JobAction.objects.get().phase, scheduler.calls.counts[call]) == ("DONE", 2)


def test_it_counts_as_a_recovery(running: Job, faulty: Finding, scheduler: FakeScheduler, tick: Any, work: Any) -> None:
    attempts_evict(faulty.node, faulty)
    work("job.act")
    finish(running, scheduler, tick)
    assert (last(running).number, last(running).array, fresh(running).recoveries) == (2, "2%2", 1)
    decided = Event.objects.get(object_uid=running.uid, kind="RetryDecided")
    assert decided.data["rule"] == "node"
    assert "p5-3" in str(decided.text)


def test_a_job_that_may_not_recover_ends_without_the_task(
    running: Job, faulty: Finding, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    Job.objects.filter(pk=running.pk).update(max_recoveries=0)
    attempts_evict(faulty.node, faulty)
    work("job.act")
    finish(running, scheduler, tick)
    assert (fresh(running).phase, fresh(running).reason, last(running).number) == ("FAILED", "NodeFailure", 1)
    assert standing_of(running.team, Unit.USD).held == 0
    assert ledger_check().is_balanced


def test_what_a_person_wants_again_runs_where_the_fault_may_not_recover(
    running: Job, owner: Any, faulty: Finding, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    Job.objects.filter(pk=running.pk).update(max_recoveries=0)
    attempts_evict(faulty.node, faulty)
    ask(running, owner, 1)
    for _ in range(2):
        work("job.act")
    finish(running, scheduler, tick, t1="CANCELLED")
    assert (last(running).number, last(running).array, fresh(running).recoveries) == (2, "1%2", 0)


def test_both_run_again_where_it_may_recover(
    running: Job, owner: Any, faulty: Finding, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    attempts_evict(faulty.node, faulty)
    ask(running, owner, 1)
    for _ in range(2):
        work("job.act")
    finish(running, scheduler, tick, t1="CANCELLED")
    assert (last(running).number, last(running).array, fresh(running).recoveries) == (2, "1-2%2", 1)


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_task_that_a_person_cancelled_does_not_come_back_by_a_fault(
    running: Job, owner: Any, faulty: Finding, scheduler: FakeScheduler, tick: Any, work: Any, is_sent: bool
) -> None:
    ask(running, owner, 2, "CANCEL_TASK")
    if is_sent:
        work("job.act")
    # Slurm is still ending it when the finding comes.
    assert attempts_evict(faulty.node, faulty) == []
    work("job.act")
    assert JobAction.objects.get().phase == "DONE"
    finish(running, scheduler, tick)
    assert last(running).number == 1
    assert fresh(running).has_ended
