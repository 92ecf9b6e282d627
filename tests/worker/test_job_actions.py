"""Wishes about jobs in the scheduler: sent in order, never twice where that hurts, and the money follows."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from apps.audit.models import Event
from apps.clusters.models import Node
from apps.core import clock
from apps.core.errors import InvalidInput, TransitionConflict
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.services import BudgetExhausted, budget_set
from apps.costs.states import Unit
from apps.intents.models import Intent
from apps.jobs.action_models import JobAction
from apps.jobs.action_rules import wish_of
from apps.jobs.action_selectors import action_lines
from apps.jobs.action_services import job_act, jobs_act
from apps.jobs.models import Attempt, Job, JobTemplate
from apps.jobs.selectors import job_sums
from apps.jobs.sentences import job_sentence
from apps.teams.permissions import system_actor
from tests.chaos import WHEN, Crashing, Plan, visit
from tests.conftest import actor_of
from tests.worker.fakes import FakeScheduler
from worker import doors
from worker.providers.errors import AccessDenied, InvalidRequest, Unavailable

pytestmark = pytest.mark.django_db


def fresh(job: Job) -> Job:
    return Job.objects.select_related("team", "cluster").get(pk=job.pk)


def ask(job: Job, who: Any, kind: str, **given: Any) -> JobAction:
    return job_act(actor=actor_of(who), job=fresh(job), wish=wish_of(kind, given))


def settled(job: Job) -> JobAction:
    return JobAction.objects.filter(job=job).latest("id")


def usd_for(job: Job, minutes: int) -> Decimal:
    return (Decimal(job.gpus * minutes) / 60 * job.usd_per_gpu_hour).quantize(Decimal("0.000001"))


@pytest.fixture
def waiting(job: Job, work: Any, tick: Any, scheduler: FakeScheduler) -> Job:
    """A job in Slurm's queue."""
    work()
    tick(job.cluster)
    return job


@pytest.fixture
def running(waiting: Job, tick: Any, scheduler: FakeScheduler) -> Job:
    """A job that runs."""
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(waiting.cluster)
    return waiting


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_what_a_template_fixes_stays_after_the_submit(
    request: Any, cluster: Any, team: Any, owner: Any, operator: Any, state: str
) -> None:
    job = request.getfixturevalue(state)
    cluster.observed_partitions = [{"name": name, "max_time_min": 10080, "nodes": 4} for name in ("gpu", "big")]
    cluster.save()
    Node.objects.update(partitions=["gpu", "big"])
    defaults = {"time_limit_min": 120, "partition": "gpu"}
    template = JobTemplate.objects.create(name="sweep", title="Sweep", defaults=defaults, locked=["time_limit_min"])
    Job.objects.filter(pk=job.pk).update(template=template, partition="gpu")
    for who in (owner, operator):
        with pytest.raises(TransitionConflict, match="is from template sweep, which fixes Time limit to 2:00:00"):
            ask(job, who, "TIME_LIMIT", time_limit_min=240)
    (line,) = action_lines(actor_of(owner), [fresh(job)], wish_of("TIME_LIMIT", {"time_limit_min": 30}))
    assert line.problem
    # To the value itself it may go.
    assert fresh(job).time_limit_min != 120
    ask(job, owner, "TIME_LIMIT", time_limit_min=120)
    JobAction.objects.all().delete()
    if state == "running":
        return
    JobTemplate.objects.update(locked=["partition"])
    with pytest.raises(TransitionConflict, match="which fixes Partition to gpu"):
        ask(job, owner, "PARTITION", partition="big")
    JobTemplate.objects.update(locked=[])
    assert ask(job, owner, "PARTITION", partition="big")


def test_hold_and_release(waiting: Job, owner: Any, work: Any, tick: Any, scheduler: FakeScheduler) -> None:
    ask(waiting, owner, "HOLD")
    work("job.act")
    assert settled(waiting).phase == "DONE"
    tick(waiting.cluster)
    assert job_sentence(fresh(waiting)).startswith("Held: it keeps its place")
    with pytest.raises(TransitionConflict, match="is held already"):
        ask(waiting, owner, "HOLD")
    # Slurm forgets the hold of a job whose nice changes.
    with pytest.raises(TransitionConflict, match="release it first"):
        ask(waiting, owner, "PRIORITY", nice=10)
    ask(waiting, owner, "RELEASE")
    work("job.act")
    tick(waiting.cluster)
    assert "Held" not in job_sentence(fresh(waiting))
    kinds = list(Event.objects.filter(object_uid=waiting.uid, kind__startswith="Action").values_list("kind", flat=True))
    assert kinds == ["ActionAsked", "ActionDone", "ActionAsked", "ActionDone"]


def test_what_makes_no_sense_is_refused_in_words(running: Job, owner: Any) -> None:
    for kind, given, words in (
        ("HOLD", {}, "only a job that waits"),
        ("RELEASE", {}, "is not held"),
        ("PRIORITY", {"nice": 5}, "runs already"),
        ("PARTITION", {"partition": "gpu"}, "runs already"),
        ("TIME_LIMIT", {"time_limit_min": running.time_limit_min}, "has this limit already"),
        ("TIME_LIMIT", {"time_limit_min": 20_000}, "the cluster allows 10080 min"),
    ):
        with pytest.raises(TransitionConflict, match=words):
            ask(running, owner, kind, **given)
    for kind, given in (
        ("SIGNAL", {"signal": "KILL"}),
        ("SIGNAL", {}),
        ("PRIORITY", {"nice": "soon"}),
        ("TIME_LIMIT", {"time_limit_min": 0}),
        ("PARTITION", {}),
        ("EXPLODE", {}),
    ):
        with pytest.raises(InvalidInput):
            wish_of(kind, given)
    assert not JobAction.objects.exists()


def test_others_may_not(waiting: Job, member: Any, outsider: Any) -> None:
    for who in (member, outsider):
        (line,) = jobs_act(actor=actor_of(who), jobs=[fresh(waiting)], wish=wish_of("HOLD", {}))
        assert "not yours" in line.problem
    assert not JobAction.objects.exists()


def test_only_operators_let_a_job_pass_others(waiting: Job, owner: Any, operator: Any, work: Any) -> None:
    with pytest.raises(TransitionConflict, match="only operators"):
        ask(waiting, owner, "PRIORITY", nice=-10)
    ask(waiting, operator, "PRIORITY", nice=-10)
    work("job.act")
    assert settled(waiting).phase == "DONE"
    assert fresh(waiting).slurm_options == ["--nice=-10"]


def test_a_longer_limit_holds_the_difference_before_it_is_asked(waiting: Job, owner: Any, work: Any) -> None:
    before = job_sums(waiting).open_hold
    assert before == usd_for(waiting, waiting.time_limit_min)
    longer = waiting.time_limit_min + 60
    ask(waiting, owner, "TIME_LIMIT", time_limit_min=longer)
    assert job_sums(waiting).open_hold == usd_for(waiting, longer)
    with pytest.raises(TransitionConflict, match="under way"):
        ask(waiting, owner, "TIME_LIMIT", time_limit_min=longer + 60)
    assert fresh(waiting).time_limit_min == waiting.time_limit_min
    work("job.act")
    assert fresh(waiting).time_limit_min == longer
    assert ledger_check().is_balanced


def test_a_shorter_limit_gives_back_when_slurm_took_it(waiting: Job, owner: Any, work: Any) -> None:
    ask(waiting, owner, "TIME_LIMIT", time_limit_min=10)
    assert job_sums(waiting).open_hold == usd_for(waiting, waiting.time_limit_min)
    work("job.act")
    assert abs(job_sums(waiting).open_hold - usd_for(waiting, 10)) < Decimal("0.0001")
    hours = standing_of(waiting.team, Unit.GPU_HOURS).held
    assert abs(hours - Decimal(waiting.gpus * 10) / 60) < Decimal("0.0001")
    assert ledger_check().is_balanced


def test_a_refused_limit_gives_the_difference_back(running: Job, owner: Any, work: Any) -> None:
    held = job_sums(running).open_hold
    ask(running, owner, "TIME_LIMIT", time_limit_min=running.time_limit_min + 60)
    work("job.act")
    action = settled(running)
    assert action.phase == "REFUSED"
    assert "operators alone" in str(action.answer)
    assert job_sums(running).open_hold == held
    assert fresh(running).time_limit_min == running.time_limit_min
    assert ledger_check().is_balanced


def test_an_operator_gives_a_running_job_more_time(running: Job, operator: Any, work: Any) -> None:
    ask(running, operator, "TIME_LIMIT", time_limit_min=running.time_limit_min + 60)
    work("job.act")
    assert settled(running).phase == "DONE"
    assert fresh(running).time_limit_min == running.time_limit_min + 60


def test_a_limit_the_budget_does_not_cover_is_not_asked(waiting: Job, owner: Any) -> None:
    used = standing_of(waiting.team, Unit.USD)
    budget_set(actor=system_actor(), team=waiting.team, usd_per_month=used.held + 1)
    with pytest.raises(BudgetExhausted, match="more held"):
        ask(waiting, owner, "TIME_LIMIT", time_limit_min=waiting.time_limit_min + 60)
    assert not JobAction.objects.exists()


def test_another_partition_is_priced_again(waiting: Job, owner: Any, work: Any) -> None:
    from apps.clusters.models import Cluster, Node

    Cluster.objects.update(observed_partitions=[{"name": "gpu"}, {"name": "big"}, {"name": "none"}])
    Node.objects.update(partitions=["gpu", "big"])
    with pytest.raises(TransitionConflict, match="has 0 nodes that fit"):
        ask(waiting, owner, "PARTITION", partition="none")
    with pytest.raises(TransitionConflict, match="no partition nosuch"):
        ask(waiting, owner, "PARTITION", partition="nosuch")
    Job.objects.filter(pk=waiting.pk).update(usd_per_gpu_hour=waiting.usd_per_gpu_hour / 2)
    ask(waiting, owner, "PARTITION", partition="big")
    work("job.act")
    moved = fresh(waiting)
    assert (moved.partition, moved.usd_per_gpu_hour) == ("big", waiting.usd_per_gpu_hour)
    assert ledger_check().is_balanced


def test_a_limit_changed_by_hand_is_followed(running: Job, tick: Any, scheduler: FakeScheduler) -> None:
    scheduler.jobs["100"] = replace(scheduler.jobs["100"], time_limit_min=running.time_limit_min + 30)
    tick(running.cluster)
    assert fresh(running).time_limit_min == running.time_limit_min + 30
    assert job_sums(running).open_hold == usd_for(running, running.time_limit_min + 30)
    scheduler.jobs["100"] = replace(scheduler.jobs["100"], time_limit_min=20)
    tick(running.cluster)
    assert abs(job_sums(running).open_hold - usd_for(running, 20)) < Decimal("0.0001")
    used = standing_of(running.team, Unit.USD)
    budget_set(actor=system_actor(), team=running.team, usd_per_month=used.held + 1)
    scheduler.jobs["100"] = replace(scheduler.jobs["100"], time_limit_min=5000)
    tick(running.cluster)
    assert fresh(running).time_limit_min == 5000
    assert "does not cover" in str(Event.objects.filter(kind="LimitChanged").latest("id").text)
    assert ledger_check().is_balanced


def test_a_stale_bulk_read_does_not_undo_our_own_change(
    waiting: Job, owner: Any, work: Any, scheduler: FakeScheduler
) -> None:
    old = waiting.time_limit_min
    ask(waiting, owner, "TIME_LIMIT", time_limit_min=old + 60)
    work("job.act")
    Attempt.objects.filter(job=waiting).update(observed_limit_min=old)
    Intent.objects.update(due_at=clock.now())
    work("job.reconcile", most=2)
    assert fresh(waiting).time_limit_min == old + 60


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("kind", ["HOLD", "TIME_LIMIT", "PRIORITY", "SIGNAL"])
def test_a_killed_worker(
    waiting: Job, tick: Any, owner: Any, work: Any, scheduler: FakeScheduler, monkeypatch: Any, when: str, kind: str
) -> None:
    call = {"HOLD": "hold", "SIGNAL": "signal"}.get(kind, "update")
    if kind == "SIGNAL":
        scheduler.run("100", ["p5-1", "p5-2"])
        tick(waiting.cluster)
    given = {"TIME_LIMIT": {"time_limit_min": 10}, "PRIORITY": {"nice": 7}, "SIGNAL": {"signal": "USR1"}}.get(kind, {})
    ask(waiting, owner, kind, **given)
    plan = Plan(call, when)
    crashing = Crashing(scheduler, plan, ["hold", "update", "signal", "release"])
    monkeypatch.setattr(doors, "scheduler_for", lambda cluster, as_user="": crashing)
    for _ in range(6):
        visit(work, "job.act", plan)
    assert plan.done
    action = settled(waiting)
    if kind == "SIGNAL":
        assert action.phase == "UNKNOWN"
        assert len(scheduler.signals) == (0 if when == "before the call" else 1)
    else:
        assert action.phase == "DONE"
    assert not Intent.objects.filter(kind="job.act").exists()
    assert ledger_check().is_balanced


@pytest.mark.parametrize("when", WHEN)
def test_a_killed_worker_releases_once(
    waiting: Job, tick: Any, owner: Any, work: Any, scheduler: FakeScheduler, monkeypatch: Any, when: str
) -> None:
    ask(waiting, owner, "HOLD")
    work("job.act")
    Attempt.objects.filter(job=waiting).update(observed_state="PENDING", observed_reason="JobHeldUser")
    JobAction.objects.all().delete()
    ask(waiting, owner, "RELEASE")
    plan = Plan("release", when)
    crashing = Crashing(scheduler, plan, ["release"])
    monkeypatch.setattr(doors, "scheduler_for", lambda cluster, as_user="": crashing)
    for _ in range(6):
        visit(work, "job.act", plan)
    assert plan.done
    assert settled(waiting).phase == "DONE"
    assert not scheduler.jobs["100"].reason.startswith("JobHeld")
    assert not Intent.objects.filter(kind="job.act").exists()
    assert ledger_check().is_balanced


def test_while_slurm_is_away_it_waits_and_a_signal_is_not_repeated(
    running: Job, owner: Any, work: Any, scheduler: FakeScheduler
) -> None:
    scheduler.calls.fail_next["signal"] = Unavailable("cannot connect", source="slurm", code="connect")
    ask(running, owner, "SIGNAL", signal="USR1")
    work("job.act")
    assert settled(running).phase == "ASKED"
    scheduler.calls.fail_next["signal"] = Unavailable("no answer", source="slurm", code="timeout")
    Intent.objects.update(due_at=clock.now())
    work("job.act")
    assert settled(running).phase == "UNKNOWN"
    assert scheduler.signals == []


def test_a_job_that_started_meanwhile_is_not_held(
    waiting: Job, owner: Any, work: Any, scheduler: FakeScheduler
) -> None:
    ask(waiting, owner, "HOLD")
    scheduler.run("100", ["p5-1", "p5-2"])
    work("job.act")
    assert settled(waiting).phase == "REFUSED"
    assert "started meanwhile" in str(settled(waiting).answer)
    assert scheduler.calls.counts["hold"] == 0


def test_wishes_go_in_order_and_end_with_the_attempt(
    waiting: Job, owner: Any, work: Any, scheduler: FakeScheduler
) -> None:
    ask(waiting, owner, "PRIORITY", nice=5)
    ask(waiting, owner, "PRIORITY", nice=9)
    work("job.act")
    assert fresh(waiting).slurm_options == ["--nice=9"]
    scheduler.calls.fail_next["hold"] = InvalidRequest("no", source="slurm")
    ask(waiting, owner, "HOLD")
    work("job.act")
    assert settled(waiting).phase == "REFUSED"
    Attempt.objects.filter(job=waiting).update(phase="NODE_FAILED")
    JobAction.objects.create(job=waiting, attempt=waiting.attempts.get(), kind="HOLD", asked_by="owner")
    Intent.objects.create(kind="job.act", key=waiting.uid, due_at=clock.now())
    work("job.act")
    assert "ended before" in str(settled(waiting).answer)


def test_a_refused_token_is_no_answer_about_the_job(
    waiting: Job, owner: Any, work: Any, scheduler: FakeScheduler
) -> None:
    scheduler.calls.fail_next["hold"] = AccessDenied("the token expired", source="slurm", code="token")
    ask(waiting, owner, "HOLD")
    work("job.act")
    assert settled(waiting).phase == "ASKED"
