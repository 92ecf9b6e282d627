"""Jobs that wait beside the end of a block: told in time, held back where they could not end, let go when they can."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from apps.audit.models import Event
from apps.capacity.models import Reservation
from apps.clusters.models import Fleet, Node
from apps.core.errors import InvalidInput
from apps.intents.models import Intent
from apps.jobs.models import Attempt, Job
from apps.jobs.sentences import job_sentence
from apps.jobs.services import job_preview, job_stop, job_submit
from tests.blocks import END, at
from tests.conftest import actor_of
from tests.worker.fakes import Crash, FakeScheduler

pytestmark = pytest.mark.django_db


def kinds(job: Job) -> list[str]:
    return list(Event.objects.filter(object_uid=job.uid).order_by("id").values_list("kind", flat=True))


def submit(minutes_before: float, owner: Any, team: Any, cluster: Any, spec: Any, **columns: Any) -> Job:
    with at(minutes_before):
        return job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=replace(spec, **columns))


@pytest.fixture
def look(cluster: Any, scheduler: FakeScheduler, tick: Any, work: Any) -> Any:
    """Everything that is due, with the clock so long before the block's end."""

    def run(minutes_before: float) -> None:
        with at(minutes_before):
            Intent.objects.update(due_at=END - timedelta(days=2), leased_until=None, lease="")
            work("job.reconcile")
            cluster.refresh_from_db()
            tick(cluster)
            work("job.reconcile")

    return run


def live(scheduler: FakeScheduler) -> list[str]:
    return [uid for uid, job in scheduler.jobs.items() if job.state in ("PENDING", "RUNNING")]


def test_a_job_that_waited_too_long_is_told_and_held_back_and_let_go(
    block: Reservation, owner: Any, team: Any, cluster: Any, spec: Any, scheduler: FakeScheduler, look: Any
) -> None:
    job = submit(300, owner, team, cluster, spec)
    look(299)
    assert len(live(scheduler)) == 1
    with at(120):
        assert "It must start within 15 min: train-64 ends." in job_sentence(job)
    look(106)
    assert len(live(scheduler)) == 1, "it still fits: nothing is taken out of the queue"
    look(104)
    assert live(scheduler) == []
    look(103)
    job.refresh_from_db()
    assert (job.phase, job.reason) == ("QUEUED", "HeldBack")
    assert kinds(job).count("Withdrawn") == kinds(job).count("HeldBack") == 1
    with at(103):
        sentence = job_sentence(job)
    assert "held back: train-64 ends at 2026-12-03 11:30 UTC, before a run of 60 min could" in sentence
    assert "at most 58 min fit from now" in sentence
    look(60)
    assert scheduler.calls.counts["submit"] == 1
    Reservation.objects.update(end_at=END + timedelta(days=1))
    look(59)
    job.refresh_from_db()
    assert (job.phase, job.reason, len(live(scheduler))) == ("QUEUED", "", 1)
    assert list(job.attempts.values_list("phase", flat=True)) == ["REQUEUED", "QUEUED"]


def test_a_held_back_job_is_cancelled_like_any_other(
    block: Reservation, owner: Any, team: Any, cluster: Any, spec: Any, scheduler: FakeScheduler, look: Any
) -> None:
    job = submit(106, owner, team, cluster, spec)
    look(104)
    assert (kinds(job)[-1], scheduler.calls.counts["submit"]) == ("HeldBack", 0)
    job_stop(actor=actor_of(owner), job=job, kind="cancel")
    look(103)
    job.refresh_from_db()
    assert job.phase == "CANCELLED"


def test_a_job_that_saves_when_asked_may_start_until_an_hour_before_the_drain(
    block: Reservation, owner: Any, team: Any, cluster: Any, spec: Any, scheduler: FakeScheduler, look: Any
) -> None:
    job = submit(300, owner, team, cluster, spec, time_limit_min=200, environment={"CHECKPOINT_SIGNAL": "USR1"})
    look(299)
    look(106)
    assert len(live(scheduler)) == 1
    look(104)
    look(103)
    job.refresh_from_db()
    assert (job.reason, live(scheduler)) == ("HeldBack", [])


def test_other_nodes_are_used_where_there_are_enough(
    block: Reservation, owner: Any, team: Any, cluster: Any, spec: Any, scheduler: FakeScheduler, look: Any
) -> None:
    Node.objects.filter(name__in=["p5-1", "p5-2"]).update(fleet=None)
    submit(300, owner, team, cluster, spec)
    look(299)
    assert [r.excluded_nodes for r in scheduler.requests.values()] == [()]
    look(104)
    look(103)
    assert len(live(scheduler)) == 1
    assert scheduler.requests[live(scheduler)[0]].excluded_nodes == ("p5-3", "p5-4")
    look(60)
    assert scheduler.calls.counts["submit"] == 2, "kept from those nodes it is left in peace"


def test_killed_after_the_cancel_it_is_still_submitted_once(
    block: Reservation, owner: Any, team: Any, cluster: Any, spec: Any, scheduler: FakeScheduler, look: Any
) -> None:
    Node.objects.filter(name__in=["p5-1", "p5-2"]).update(fleet=None)
    submit(300, owner, team, cluster, spec)
    look(299)
    scheduler.calls.crash_after["cancel"] = Crash("kill -9")
    with pytest.raises(Crash):
        look(104)
    look(103)
    look(102)
    assert len(live(scheduler)) == 1
    assert [a.stop_reason for a in Attempt.objects.order_by("number")] == ["BlockEnds", ""]


def test_after_the_block_a_stopped_job_waits_for_nodes_instead_of_being_refused(
    block: Reservation, owner: Any, team: Any, cluster: Any, spec: Any, scheduler: FakeScheduler, look: Any
) -> None:
    job = submit(300, owner, team, cluster, spec)
    look(299)
    with at(298):
        scheduler.run(live(scheduler)[0], ["p5-1", "p5-2"])
    look(297)
    Attempt.objects.update(stop_reason="Requeued")
    Fleet.objects.update(delete_requested_at=END)
    look(38)
    look(37)
    job.refresh_from_db()
    assert (job.phase, job.reason, live(scheduler)) == ("QUEUED", "HeldBack", [])
    with at(37):
        assert "held back until 2 nodes are there that it fits on; there are 0" in job_sentence(job)


def test_a_limit_beyond_the_block_is_cut_when_asked(
    block: Reservation, owner: Any, team: Any, cluster: Any, spec: Any
) -> None:
    late = replace(spec, time_limit_min=600)
    with at(300):
        found = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=late)
        assert (found.offered_limit_min, found.time_limit_min) == (250, 600)
        with pytest.raises(InvalidInput):
            job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=late)
        cut = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=replace(late, trim=True))
        assert (cut.problems, cut.offered_limit_min, cut.time_limit_min) == ((), None, 250)
        assert cut.warnings == ("time limit cut from 600 to 250 min: the block that its nodes belong to ends",)
        assert round(cut.gpu_hours * 60) == 16 * 250, "what is held is for the shorter limit"
        job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=replace(late, trim=True))
    assert job.time_limit_min == 250
    with at(45):
        none = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=replace(late, trim=True))
        assert [p.code for p in none.problems] == ["block-ends"]


def test_a_limit_that_fits_is_left_alone_by_trim(
    block: Reservation, owner: Any, team: Any, cluster: Any, spec: Any
) -> None:
    with at(300):
        found = job_preview(
            actor=actor_of(owner), team=team, cluster=cluster, spec=replace(spec, time_limit_min=255, trim=True)
        )
    assert (found.time_limit_min, found.warnings, found.problems) == (255, (), ())
