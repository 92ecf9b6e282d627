"""A job's life through the reconciler: submitted once, followed, charged, ended, restarted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import time_machine

from apps.audit.models import Event
from apps.checkpoints.services import checkpoint_report
from apps.clusters.models import Cluster, Node
from apps.core import clock
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.services import budget_set
from apps.costs.states import Unit
from apps.health.models import Finding
from apps.intents.models import Intent
from apps.jobs.models import Attempt, Job
from apps.jobs.observations import attempt_stop
from apps.jobs.sentences import job_sentence
from apps.jobs.services import job_stop
from apps.teams.permissions import system_actor
from tests.conftest import actor_of
from tests.worker.fakes import Crash, FakeScheduler
from worker.providers.errors import InvalidRequest, Unavailable

pytestmark = pytest.mark.django_db


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def last(job: Job) -> Attempt:
    return Attempt.objects.filter(job=job).order_by("-number").first()  # type: ignore[return-value]


def make_due() -> None:
    Intent.objects.update(due_at=clock.now(), leased_until=None, lease="")


def test_submit_run_succeed(job: Job, scheduler: FakeScheduler, work: Any, tick: Any) -> None:
    work()
    assert fresh(job).phase == "QUEUED"
    assert scheduler.requests["100"].comment == last(job).uid
    tick(job.cluster)
    assert job_sentence(fresh(job)).startswith("Waiting: number 1 of team nlp on lab; not enough free GPUs or nodes")
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    assert fresh(job).phase == "RUNNING"
    assert last(job).nodes == ["p5-1", "p5-2"]
    scheduler.end("100", "COMPLETED", 0)
    tick(job.cluster)
    ended = fresh(job)
    assert (ended.phase, ended.exit_code) == ("SUCCEEDED", 0)
    assert standing_of(job.team, Unit.USD).held == 0
    assert standing_of(job.team, Unit.GPUS).held == 0
    assert ledger_check().is_balanced
    assert not Intent.objects.filter(kind="job.reconcile").exists()


def test_killed_between_submit_and_save_runs_once(job: Job, scheduler: FakeScheduler, work: Any, tick: Any) -> None:
    scheduler.calls.crash_after["submit"] = Crash()
    with pytest.raises(Crash):
        work()
    assert last(job).phase == "SUBMITTING"
    assert len(scheduler.jobs) == 1
    make_due()
    work()
    assert last(job).phase == "QUEUED"
    assert last(job).scheduler_id == "100"
    assert scheduler.calls.counts["submit"] == 1


def test_a_timed_out_submit_that_made_nothing_is_sent_again_after_the_doubt(
    job: Job, scheduler: FakeScheduler, work: Any
) -> None:
    scheduler.calls.fail_next["submit"] = Unavailable("no answer", source="slurm")
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        work()
        assert last(job).phase == "SUBMITTING"
        for _ in range(4):
            clockwork.shift(timedelta(seconds=5))
            make_due()
            work()
        assert scheduler.calls.counts["submit"] == 1
        clockwork.shift(timedelta(seconds=10))
        make_due()
        work()
    assert scheduler.calls.counts["submit"] == 2
    assert last(job).phase == "QUEUED"
    assert len(scheduler.jobs) == 1


def test_a_duplicate_of_one_attempt_is_cancelled(job: Job, scheduler: FakeScheduler, work: Any) -> None:
    scheduler.calls.crash_after["submit"] = Crash()
    with pytest.raises(Crash):
        work()
    scheduler.submit(scheduler.requests["100"])
    make_due()
    work()
    assert last(job).scheduler_id == "100"
    assert scheduler.jobs["101"].state == "CANCELLED"


def test_a_refusal_ends_the_job_with_slurms_words(job: Job, scheduler: FakeScheduler, work: Any) -> None:
    scheduler.calls.fail_next["submit"] = InvalidRequest("Invalid account", source="slurm")
    work()
    ended = fresh(job)
    assert (ended.phase, ended.reason) == ("FAILED", "Refused")
    assert "Invalid account" in job_sentence(ended)
    assert standing_of(job.team, Unit.USD).held == 0


def test_a_failed_script_is_not_retried(job: Job, scheduler: FakeScheduler, work: Any, tick: Any) -> None:
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    scheduler.end("100", "FAILED", 3)
    tick(job.cluster)
    ended = fresh(job)
    assert (ended.phase, ended.reason, ended.exit_code) == ("FAILED", "ExitCode", 3)
    assert "exit code 3" in job_sentence(ended)
    assert job.attempts.count() == 1


@pytest.mark.parametrize("code", [137, 1])
def test_a_killed_program_waits_for_the_gpus_of_its_nodes(
    job: Job, scheduler: FakeScheduler, work: Any, tick: Any, code: int
) -> None:
    """The fault that killed it shows only at the exporters' next round: until then it is not called failed."""
    Cluster.objects.update(exporter_url="http://{node}:9400/metrics")
    Node.objects.update(exporter_read_at=clock.now())
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    began = clock.now() - timedelta(minutes=5)
    scheduler.jobs["100"] = replace(scheduler.jobs["100"], started_at=began)
    Attempt.objects.update(started_at=began)
    scheduler.end("100", "FAILED", code)
    tick(job.cluster)
    waiting = fresh(job)
    assert waiting.phase == "RUNNING"
    assert "read once more" in job_sentence(waiting)
    node = Node.objects.get(name="p5-2")
    Finding.objects.create(node=node, source="xid", code="79", title="XID 79", severity="reboot")
    # Read, but not since the exporters can have known: the finding alone decides.
    Intent.objects.update(due_at=clock.now())
    work()
    first, second = job.attempts.order_by("number")
    assert (first.phase, first.stop_node) == ("NODE_FAILED", "p5-2")
    assert second.excluded_nodes == ["p5-2"]


def test_a_program_that_failed_on_healthy_gpus_is_called_failed_after_the_reading(
    job: Job, scheduler: FakeScheduler, work: Any, tick: Any
) -> None:
    Cluster.objects.update(exporter_url="http://{node}:9400/metrics")
    Node.objects.update(exporter_read_at=clock.now())
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    scheduler.end("100", "FAILED", 139)
    tick(job.cluster)
    assert fresh(job).phase == "RUNNING"
    Node.objects.filter(name="p5-1").update(exporter_read_at=clock.now() + timedelta(minutes=1))
    Intent.objects.update(due_at=clock.now())
    work()
    assert fresh(job).phase == "RUNNING"
    Node.objects.update(exporter_read_at=clock.now() + timedelta(minutes=1))
    Intent.objects.update(due_at=clock.now())
    work()
    assert fresh(job).phase == "FAILED"


def test_a_silent_exporter_is_not_waited_for_for_ever(job: Job, scheduler: FakeScheduler, work: Any, tick: Any) -> None:
    Cluster.objects.update(exporter_url="http://{node}:9400/metrics")
    Node.objects.update(exporter_read_at=clock.now())
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    scheduler.end("100", "FAILED", 137)
    tick(job.cluster)
    assert fresh(job).phase == "RUNNING"
    Attempt.objects.update(ended_at=clock.now() - timedelta(minutes=3))
    Intent.objects.update(due_at=clock.now())
    work()
    assert fresh(job).phase == "FAILED"


def _write_checkpoint(job: Job, step: int) -> None:
    checkpoint_report(
        job.series,
        attempt_uid=last(job).uid,
        path=f"/shared/checkpoints/step-{step}",
        step=step,
        files=[{"name": "__0_0.distcp", "size": 10}, {"name": ".metadata", "size": 5}],
        facts={},
        changed_at=clock.now(),
        writer_is_alive=True,
    )


def test_a_node_failure_starts_again_without_the_node_from_the_newest_complete_checkpoint(
    job: Job, scheduler: FakeScheduler, work: Any, tick: Any
) -> None:
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    _write_checkpoint(job, 20)
    _write_checkpoint(job, 40)
    assert attempt_stop(last(job), "NodeFailure", "p5-2")
    work()
    assert scheduler.jobs["100"].state == "CANCELLED"
    tick(job.cluster)
    first, second = job.attempts.order_by("number")
    assert (first.phase, first.stop_node) == ("NODE_FAILED", "p5-2")
    assert (second.resume_step, second.resume_from) == (40, "/shared/checkpoints/step-40")
    assert second.excluded_nodes == ["p5-2"]
    request = scheduler.requests["101"]
    assert request.environment["QD_RESUME_FROM"] == "/shared/checkpoints/step-40"
    assert request.excluded_nodes == ("p5-2",)
    scheduler.run("101", ["p5-1", "p5-3"])
    tick(job.cluster)
    scheduler.end("101", "COMPLETED", 0)
    tick(job.cluster)
    assert fresh(job).phase == "SUCCEEDED"
    assert standing_of(job.team, Unit.USD).held == 0
    assert ledger_check().is_balanced


def test_recovery_without_money_waits_and_goes_on_when_there_is_some(
    job: Job, scheduler: FakeScheduler, work: Any, tick: Any
) -> None:
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    budget_set(actor=system_actor(), team=job.team, usd_per_month=1)
    attempt_stop(last(job), "NodeFailure", "p5-2")
    work()
    tick(job.cluster)
    assert fresh(job).phase == "WAITING_BUDGET"
    assert "budget" in job_sentence(fresh(job))
    budget_set(actor=system_actor(), team=job.team, usd_per_month=5000)
    make_due()
    work()
    assert fresh(job).phase == "QUEUED"
    assert len(scheduler.jobs) == 2


def test_three_restarts_a_day_in_vain_stop(job: Job, scheduler: FakeScheduler, work: Any, tick: Any) -> None:
    Job.objects.filter(pk=job.pk).update(max_recoveries=10)
    for number in range(100, 110):
        work()
        if fresh(job).has_ended:
            break
        scheduler.run(str(number), ["p5-1", "p5-2"])
        tick(job.cluster)
        attempt_stop(last(job), "NodeFailure", "")
        work()
        tick(job.cluster)
    assert (fresh(job).phase, fresh(job).reason) == ("FAILED", "NoProgress")
    assert job.attempts.count() == 4
    assert standing_of(job.team, Unit.GPUS).held == 0


def test_cancel_before_submit_never_reaches_slurm(job: Job, owner: Any, scheduler: FakeScheduler, work: Any) -> None:
    job_stop(actor=actor_of(owner), job=job, kind="cancel")
    work()
    assert fresh(job).phase == "CANCELLED"
    assert scheduler.calls.counts["submit"] == 0
    assert standing_of(job.team, Unit.USD).held == 0


def test_cancel_a_running_job(job: Job, owner: Any, scheduler: FakeScheduler, work: Any, tick: Any) -> None:
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    job_stop(actor=actor_of(owner), job=job, kind="cancel")
    job_stop(actor=actor_of(owner), job=job, kind="cancel")
    work()
    tick(job.cluster)
    assert fresh(job).phase == "CANCELLED"
    assert fresh(job).stop_by == "owner"
    assert scheduler.calls.counts["cancel"] == 1


def test_requeue_starts_a_new_attempt_and_keeps_the_node(
    job: Job, owner: Any, scheduler: FakeScheduler, work: Any, tick: Any
) -> None:
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    job_stop(actor=actor_of(owner), job=job, kind="requeue")
    work()
    tick(job.cluster)
    assert [a.phase for a in job.attempts.order_by("number")] == ["REQUEUED", "QUEUED"]
    assert fresh(job).excluded_nodes == []
    assert fresh(job).recoveries == 0


def test_a_job_that_slurm_forgot_is_judged_by_its_runner(
    job: Job, scheduler: FakeScheduler, work: Any, tick: Any
) -> None:
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    Attempt.objects.update(runner_exit_code=0)
    scheduler.jobs.clear()
    make_due()
    work()
    assert fresh(job).phase == "SUCCEEDED"


def test_the_collector_writes_nothing_when_nothing_changed(
    job: Job, scheduler: FakeScheduler, work: Any, tick: Any, django_assert_max_num_queries: Any
) -> None:
    from worker.collectors import slurm

    work()
    tick(job.cluster)
    events = Event.objects.count()
    before = last(job).observed_at
    with django_assert_max_num_queries(4):
        slurm.queue(job.cluster.uid)
    assert last(job).observed_at == before
    assert Event.objects.count() == events
    assert scheduler.calls.counts["job"] == 0


def test_a_seen_attempt_that_everyone_forgot_is_given_up(
    job: Job, scheduler: FakeScheduler, work: Any, tick: Any
) -> None:
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    scheduler.jobs.clear()
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        for _ in range(8):
            clockwork.shift(timedelta(seconds=31))
            make_due()
            tick(job.cluster)
    assert job.attempts.order_by("number").first().phase == "LOST"
    assert fresh(job).phase in ("RECOVERING", "QUEUED")


def test_nothing_is_charged_while_the_scheduler_is_away(
    job: Job, scheduler: FakeScheduler, work: Any, tick: Any
) -> None:
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        for _ in range(5):
            clockwork.shift(timedelta(hours=2))
            make_due()
            work("job.reconcile")
    assert standing_of(job.team, Unit.USD).spent < 1


def test_never_more_is_charged_than_the_time_limit_allows(
    job: Job, scheduler: FakeScheduler, work: Any, tick: Any
) -> None:
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    with time_machine.travel(clock.now() + timedelta(hours=9), tick=False):
        scheduler.end("100", "TIMEOUT")
        tick(job.cluster)
    assert fresh(job).phase == "TIMED_OUT"
    assert standing_of(job.team, Unit.USD).spent <= 16 * 6.88 * 65 / 60 + 0.01


def test_waiting_after_a_requeue_inside_slurm_is_not_charged(
    job: Job, scheduler: FakeScheduler, work: Any, tick: Any
) -> None:
    work()
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        scheduler.run("100", ["p5-1", "p5-2"])
        tick(job.cluster)
        clockwork.shift(timedelta(minutes=1))
        scheduler._set("100", state="PENDING", reason="Resources", nodes=(), started_at=None)
        tick(job.cluster)
        clockwork.shift(timedelta(hours=5))
        scheduler.run("100", ["p5-1", "p5-2"])
        tick(job.cluster)
        clockwork.shift(timedelta(minutes=1))
        scheduler.end("100", "COMPLETED", 0)
        tick(job.cluster)
    assert fresh(job).phase == "SUCCEEDED"
    assert standing_of(job.team, Unit.USD).spent < 4


def test_a_stop_that_slurm_is_slow_with_is_not_sent_on_every_visit(
    job: Job, owner: Any, scheduler: FakeScheduler, work: Any, tick: Any
) -> None:
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    job_stop(actor=actor_of(owner), job=job, kind="cancel")
    scheduler.end = lambda *a, **k: None  # type: ignore[method-assign] - it hangs in COMPLETING
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        for _ in range(30):
            clockwork.shift(timedelta(seconds=3))
            make_due()
            work("job.reconcile")
    assert 2 <= scheduler.calls.counts["cancel"] <= 4


def test_a_slow_failed_submit_is_doubted_from_its_end(job: Job, scheduler: FakeScheduler, work: Any) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:

        def slow(request: Any) -> Any:
            scheduler.calls.counts["submit"] += 1
            clockwork.shift(timedelta(seconds=40))
            raise Unavailable("timed out", source="slurm")

        scheduler.submit = slow  # type: ignore[method-assign]
        work()
        clockwork.shift(timedelta(seconds=3))
        make_due()
        work()
    assert scheduler.calls.counts["submit"] == 1


def test_a_rule_starts_a_failed_job_again_and_says_so(job: Job, scheduler: FakeScheduler, work: Any, tick: Any) -> None:
    Job.objects.filter(pk=job.pk).update(retry_rules=["retry exit 75"])
    work()
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    scheduler.end("100", "FAILED", 75)
    tick(job.cluster)
    assert [a.phase for a in job.attempts.order_by("number")] == ["FAILED", "QUEUED"]
    told = Event.objects.get(object_uid=job.uid, kind="RetryDecided")
    assert (told.data["verb"], told.data["rule"]) == ("retry", "retry exit 75")
    scheduler.run("101", ["p5-1", "p5-2"])
    tick(job.cluster)
    scheduler.end("101", "FAILED", 1)
    tick(job.cluster)
    assert (fresh(job).phase, fresh(job).exit_code) == ("FAILED", 1)
    assert standing_of(job.team, Unit.USD).held == 0
    assert ledger_check().is_balanced


def test_the_same_step_on_other_nodes_stops(job: Job, scheduler: FakeScheduler, work: Any, tick: Any) -> None:
    from apps.jobs.models import ProgressPoint

    for number, nodes in ((100, ["p5-1", "p5-2"]), (101, ["p5-3", "p5-4"])):
        work()
        scheduler.run(str(number), nodes)
        tick(job.cluster)
        ProgressPoint.objects.create(attempt=last(job), step=42, at=clock.now())
        scheduler.end(str(number), "NODE_FAIL")
        tick(job.cluster)
    ended = fresh(job)
    assert (ended.phase, ended.reason) == ("FAILED", "SameStep")
    assert "step 42 failed twice" in job_sentence(ended)
