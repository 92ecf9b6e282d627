"""A stop that Slurm does not let the cluster's own user make ends with a sentence, and is not asked for ever."""

from __future__ import annotations

import base64
import secrets
from typing import Any

import pytest

from apps.audit.models import Event
from apps.clusters.models import Cluster
from apps.clusters.slurm_services import slurm_user_put
from apps.core import clock
from apps.costs.selectors import ledger_check
from apps.jobs.action_models import JobAction
from apps.jobs.action_rules import wish_of
from apps.jobs.action_services import job_act
from apps.jobs.models import Attempt, Job
from apps.jobs.queue_models import QueueEntry
from apps.jobs.selectors import current_attempt
from apps.jobs.sentences import job_sentence
from apps.jobs.services import job_stop, job_submit
from tests.chaos import WHEN, Crashing, Plan, visit
from tests.conftest import actor_of
from tests.worker.fakes import FakeScheduler
from tests.worker.test_arrays import fresh, look
from tests.worker.test_outside_jobs import place, row, run
from worker import doors
from worker.collectors import outside
from worker.providers.errors import AccessDenied

pytestmark = pytest.mark.django_db
__all__ = ["place"]
COMMAND = "sacctmgr modify user qd set adminlevel=operator"


@pytest.fixture
def running(
    cluster: Any,
    team: Any,
    owner: Any,
    operator: Any,
    spec: Any,
    monkeypatch: Any,
    scheduler: Any,
    work: Any,
    tick: Any,
) -> Job:
    """A job of the owner, who has a Slurm user of their own."""
    monkeypatch.setenv("TEST_KEY", base64.b64encode(secrets.token_bytes(32)).decode())
    Cluster.objects.filter(pk=cluster.pk).update(jwt_key_ref="env:TEST_KEY", token_ref="")
    cluster.refresh_from_db()
    slurm_user_put(actor=actor_of(operator), cluster=cluster, user_name="u7", user=owner)
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
    work("job.reconcile")
    scheduler.run("100", ["p5-1", "p5-2"])
    look(job, tick)
    assert fresh(job).phase == "RUNNING"
    return job


def denied() -> AccessDenied:
    return AccessDenied("Access/permission denied", source="slurm", code="2002")


@pytest.mark.parametrize("kind", ["cancel", "requeue"])
def test_the_wish_ends_and_the_job_goes_on(
    running: Job, operator: Any, scheduler: FakeScheduler, work: Any, kind: str
) -> None:
    job_stop(actor=actor_of(operator), job=fresh(running), kind=kind)
    scheduler.calls.fail_next["cancel"] = denied()
    for _ in range(3):
        work("job.reconcile")
    job = fresh(running)
    assert (job.phase, job.stop_kind, job.stop_requested_at) == ("RUNNING", "", None)
    assert current_attempt(job).stop_reason == ""
    assert scheduler.calls.counts["cancel"] == 1
    assert COMMAND in str(job.message)
    assert COMMAND in job_sentence(job)
    assert Event.objects.filter(object_uid=job.uid, kind="StopDenied").count() == 1
    assert Cluster.objects.get(pk=job.cluster_id).operator_missing_at is not None
    assert Event.objects.filter(kind="OperatorMissing").count() == 1
    # Once it has the right the same wish does it, and what was said is past.
    job_stop(actor=actor_of(operator), job=job, kind=kind)
    work("job.reconcile")
    assert scheduler.calls.counts["cancel"] == 2
    assert (Attempt.objects.get(job=job, number=1).phase, fresh(job).reason) == ("STOPPING", "")
    assert Cluster.objects.get(pk=job.cluster_id).operator_missing_at is None


@pytest.mark.parametrize("kind", ["cancel", "requeue"])
def test_a_cancel_that_the_owner_asks_for_meanwhile_is_kept(
    running: Job, owner: Any, operator: Any, scheduler: FakeScheduler, work: Any, monkeypatch: Any, kind: str
) -> None:
    """Slurm refuses the operator's stop while the owner, whose page is as old as the operator's, cancels the job."""
    page = fresh(running)
    job_stop(actor=actor_of(operator), job=fresh(running), kind=kind)
    real = scheduler.cancel
    sent: list[str] = []

    def cancel(number: str) -> None:
        sent.append(fresh(running).stop_as)
        if len(sent) == 1:
            job_stop(actor=actor_of(owner), job=page, kind="cancel")
            raise denied()
        real(number)

    monkeypatch.setattr(scheduler, "cancel", cancel)
    for _visit in range(2):
        work("job.reconcile")
    job, attempt = fresh(running), current_attempt(fresh(running))
    assert (job.phase, job.stop_kind, job.reason) == ("CANCELLING", "cancel", "")
    assert (attempt.phase, attempt.stop_reason) == ("STOPPING", "Cancelled")
    assert sent == ["", "u7"]
    # That the operator's was refused is told all the same.
    assert Event.objects.filter(object_uid=job.uid, kind="StopDenied").count() == 1
    assert Cluster.objects.get(pk=job.cluster_id).operator_missing_at is not None


def test_a_second_cancel_of_one_person_is_one(running: Job, owner: Any, operator: Any) -> None:
    for who in (owner, owner, operator):
        job_stop(actor=actor_of(who), job=fresh(running), kind="cancel")
    assert Event.objects.filter(object_uid=running.uid, kind="CancelRequested").count() == 1
    assert fresh(running).stop_as == "u7"


def test_a_token_that_is_refused_is_no_answer(running: Job, operator: Any, scheduler: FakeScheduler, work: Any) -> None:
    job_stop(actor=actor_of(operator), job=fresh(running), kind="cancel")
    scheduler.calls.fail_next["cancel"] = AccessDenied("Protocol authentication error", source="slurm", code="1007")
    work("job.reconcile")
    assert (fresh(running).phase, fresh(running).stop_kind) == ("CANCELLING", "cancel")
    assert Cluster.objects.get().operator_missing_at is None


def test_an_action_says_the_same(running: Job, operator: Any, scheduler: FakeScheduler, work: Any) -> None:
    job_act(actor=actor_of(operator), job=fresh(running), wish=wish_of("TIME_LIMIT", {"time_limit_min": 50}))
    scheduler.calls.fail_next["update"] = denied()
    work("job.act")
    action = JobAction.objects.get()
    assert action.phase == "REFUSED"
    assert COMMAND in str(action.answer)
    assert Cluster.objects.get().operator_missing_at is not None


def test_one_from_outside_goes_on(place: Cluster, operator: Any, scheduler: FakeScheduler, work: Any) -> None:
    entry = row(place, 7)
    outside.follow(place.uid)
    run(place, entry)
    outside.follow(place.uid)
    job = Job.objects.get()
    job_stop(actor=actor_of(operator), job=job, kind="cancel")
    scheduler.calls.fail_next["cancel"] = denied()
    for _ in range(3):
        work("job.reconcile")
    job = fresh(job)
    assert (job.phase, job.stop_kind) == ("RUNNING", "")
    assert COMMAND in job_sentence(job)
    assert scheduler.calls.counts["cancel"] == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("when", WHEN)
def test_a_killed_worker_cancels_one_from_outside(
    place: Cluster, operator: Any, scheduler: FakeScheduler, work: Any, monkeypatch: Any, when: str
) -> None:
    entry = row(place, 7)
    outside.follow(place.uid)
    run(place, entry)
    outside.follow(place.uid)
    job = Job.objects.get()
    job_stop(actor=actor_of(operator), job=job, kind="cancel")
    plan = Plan("cancel", when)

    class Queue:
        """Only what a cancel needs: the row is the whole queue."""

        def cancel(self, scheduler_id: str) -> None:
            live = QueueEntry.objects.filter(scheduler_id=scheduler_id, state="RUNNING")
            ended.append(scheduler_id)
            later.append(live.get().pk)

    ended: list[str] = []
    later: list[int] = []
    crashing = Crashing(Queue(), plan, ["cancel"])
    monkeypatch.setattr(doors, "scheduler_for", lambda cluster, as_user="": crashing)
    for _ in range(3):
        visit(work, "job.reconcile", plan)
    assert plan.done
    assert set(ended) == {"7"}
    now = clock.now()
    QueueEntry.objects.filter(pk__in=later).update(state="CANCELLED", ended_at=now, gone_at=now)
    outside.follow(place.uid)
    job = fresh(job)
    assert (job.phase, Attempt.objects.get(job=job).stop_reason) == ("CANCELLED", "Cancelled")
    assert Attempt.objects.filter(job=job).count() == 1
    assert ledger_check().is_balanced
