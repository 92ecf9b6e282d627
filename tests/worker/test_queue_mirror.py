"""The mirror of the queue: written only where it differs, by whichever process, and ended by accounting."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import time_machine

from apps.clusters.models import Cluster
from apps.core import clock
from apps.jobs.models import Job, QueueEntry
from apps.jobs.queue_observations import entries_forget, entries_of
from tests.worker.fakes import FakeScheduler
from worker.collectors import slurm
from worker.providers import values as v
from worker.providers.errors import Unavailable

pytestmark = pytest.mark.django_db


def outside(key: str, **changes: Any) -> v.SchedulerJob:
    """A job that somebody submitted by ssh."""
    job = v.SchedulerJob(
        scheduler_id=key,
        name="train",
        comment="",
        user_name="outsider",
        account="nlp",
        partition="gpu",
        state="PENDING",
        reason="Priority",
        nodes=(),
        node_count=2,
        gpus=16,
        submitted_at=clock.now().replace(microsecond=0),
        started_at=None,
        ended_at=None,
        expected_start_at=None,
        time_limit_min=60,
        exit_code=None,
        signal=None,
        priority=10,
    )
    return replace(job, **changes)


def read(cluster: Cluster) -> Cluster:
    slurm.queue(cluster.uid)
    return Cluster.objects.get(pk=cluster.pk)


def test_every_job_of_the_queue_is_mirrored_ours_with_their_attempt(
    job: Job, scheduler: FakeScheduler, work: Any, cluster: Cluster
) -> None:
    work("job.reconcile")
    scheduler.jobs["7"] = outside("7", features="p5", qos="high", eligible_at=clock.now())
    scheduler.jobs["8_"] = outside("8", array_id="8", array_pending="0-9%2")
    scheduler.jobs["8"] = scheduler.jobs.pop("8_")
    # Anybody may write our uid into a comment: the number must be ours too.
    attempt = job.attempts.get()
    scheduler.jobs["9"] = outside("9", comment=attempt.uid)
    read(cluster)
    rows = {row.scheduler_id: row for row in QueueEntry.objects.all()}
    assert set(rows) == {"100", "7", "8", "9"}
    assert rows["100"].attempt == attempt
    assert {rows[key].attempt for key in ("7", "8", "9")} == {None}
    assert (rows["7"].features, rows["7"].qos, rows["8"].array_pending) == ("p5", "high", "0-9%2")
    assert entries_of(attempt) == [rows["100"]]


def test_an_unchanged_queue_writes_no_row_and_a_change_writes_one(
    scheduler: FakeScheduler, cluster: Cluster, django_assert_max_num_queries: Any
) -> None:
    scheduler.jobs |= {str(key): outside(str(key)) for key in range(1, 301)}
    read(cluster)
    epoch = read(cluster).queue_reading["epoch"]
    with django_assert_max_num_queries(4):
        slurm.queue(cluster.uid)
    assert read(cluster).queue_reading["epoch"] == epoch
    scheduler.jobs["17"] = replace(scheduler.jobs["17"], reason="Resources")
    with django_assert_max_num_queries(8):
        slurm.queue(cluster.uid)
    told = Cluster.objects.get(pk=cluster.pk).queue_reading
    assert (told["written"], told["epoch"] != epoch) == (1, True)
    assert QueueEntry.objects.get(scheduler_id="17").reason == "Resources"


def test_a_process_that_knows_nothing_reads_the_mirror_and_writes_nothing(
    scheduler: FakeScheduler, cluster: Cluster
) -> None:
    scheduler.jobs |= {"1": outside("1"), "2": outside("2", nodes=("p5-1", "p5-2"), state="RUNNING")}
    epoch = read(cluster).queue_reading["epoch"]
    slurm._memories.clear()
    assert read(cluster).queue_reading["epoch"] == epoch
    assert QueueEntry.objects.count() == 2


def test_what_leaves_the_queue_gets_its_end_from_accounting_in_one_call(
    scheduler: FakeScheduler, cluster: Cluster
) -> None:
    began = clock.now().replace(microsecond=0)
    for key in ("1", "2", "3"):
        scheduler.jobs[key] = outside(key, state="RUNNING", nodes=("p5-1",), started_at=began)
    read(cluster)
    for key in ("1", "2", "3"):
        job = scheduler.jobs.pop(key)
        scheduler.accounting[key] = replace(
            job, state="FAILED", exit_code=3, ended_at=began + timedelta(minutes=2), comment=""
        )
    # An earlier life of the number is none of this job's.
    scheduler.accounting["3"] = replace(scheduler.accounting["3"], ended_at=began - timedelta(days=9))
    read(cluster)
    rows = {row.scheduler_id: row for row in QueueEntry.objects.all()}
    assert scheduler.calls.counts["accounted"] == 1
    assert [(rows[key].state, rows[key].exit_code) for key in ("1", "2")] == [("FAILED", 3)] * 2
    assert all(row.gone_at for row in rows.values())
    assert rows["3"].state == "RUNNING", "its end is not known, and none is made up"
    assert rows["3"].final_tries == 1


def test_an_end_seen_in_the_queue_asks_accounting_nothing(scheduler: FakeScheduler, cluster: Cluster) -> None:
    scheduler.jobs["1"] = outside("1", state="COMPLETED", ended_at=clock.now(), exit_code=0)
    read(cluster)
    scheduler.jobs.clear()
    read(cluster)
    assert scheduler.calls.counts["accounted"] == 0
    row = QueueEntry.objects.get()
    assert (row.state, row.exit_code, row.gone_at is None) == ("COMPLETED", 0, False)


def test_ends_come_later_where_accounting_is_away_and_the_cluster_stays_reachable(
    scheduler: FakeScheduler, cluster: Cluster
) -> None:
    scheduler.jobs["1"] = outside("1", state="RUNNING", nodes=("p5-1",))
    read(cluster)
    job = scheduler.jobs.pop("1")
    scheduler.calls.fail_next["accounted"] = Unavailable("slurmdbd is away", source="slurm")
    assert read(cluster).phase == "READY"
    row = QueueEntry.objects.get()
    assert (row.state, row.gone_at is None, row.final_tries) == ("RUNNING", False, 0)
    scheduler.accounting["1"] = replace(job, state="COMPLETED", ended_at=clock.now(), exit_code=0)
    slurm._memories.clear()
    read(cluster)
    row.refresh_from_db()
    assert (row.state, row.exit_code) == ("COMPLETED", 0)


def test_accounting_is_not_asked_for_ever(scheduler: FakeScheduler, cluster: Cluster) -> None:
    scheduler.jobs["1"] = outside("1", state="RUNNING", nodes=("p5-1",))
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        read(cluster)
        scheduler.jobs.clear()
        for _ in range(60):
            slurm._memories.clear()
            read(cluster)
            clockwork.shift(timedelta(minutes=20))
    assert QueueEntry.objects.get().final_tries == 10
    assert scheduler.calls.counts["accounted"] == 10


def test_a_number_that_means_another_job_ends_the_old_row(scheduler: FakeScheduler, cluster: Cluster) -> None:
    scheduler.jobs["1"] = outside("1")
    read(cluster)
    # A requeue gives a job a new time of submit and leaves it the same job.
    scheduler.jobs["1"] = replace(scheduler.jobs["1"], submitted_at=clock.now() + timedelta(seconds=5))
    read(cluster)
    assert QueueEntry.objects.count() == 1
    later = clock.now() + timedelta(minutes=5)
    scheduler.jobs["1"] = outside("1", user_name="member", submitted_at=later)
    read(cluster)
    old, new = QueueEntry.objects.order_by("pk")
    assert (old.user_name, old.gone_at is None) == ("outsider", False)
    assert (new.user_name, new.gone_at) == ("member", None)


def test_a_row_made_before_the_answer_to_the_submit_was_saved_is_tied_later(
    job: Job, scheduler: FakeScheduler, work: Any, cluster: Cluster
) -> None:
    attempt = job.attempts.get()
    scheduler.jobs["100"] = outside("100", comment=attempt.uid)
    read(cluster)
    assert QueueEntry.objects.get().attempt is None
    type(attempt).objects.filter(pk=attempt.pk).update(phase="QUEUED", scheduler_id="100")
    read(cluster)
    assert QueueEntry.objects.get().attempt == attempt


def test_a_process_killed_between_read_and_write_loses_nothing(
    scheduler: FakeScheduler, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apps.jobs import queue_observations

    scheduler.jobs |= {"1": outside("1"), "2": outside("2")}
    read(cluster)
    scheduler.jobs["1"] = replace(scheduler.jobs["1"], state="RUNNING")
    scheduler.jobs.pop("2")

    def die(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(queue_observations, "_turn_epoch", die)
        with pytest.raises(KeyboardInterrupt):
            read(cluster)
    assert set(QueueEntry.objects.values_list("state", "gone_at")) == {("PENDING", None)}
    read(cluster)
    assert QueueEntry.objects.get(scheduler_id="1").state == "RUNNING"
    assert QueueEntry.objects.get(scheduler_id="2").gone_at is not None


def test_rows_gone_for_a_month_are_forgotten(scheduler: FakeScheduler, cluster: Cluster) -> None:
    scheduler.jobs |= {"1": outside("1"), "2": outside("2")}
    read(cluster)
    QueueEntry.objects.filter(scheduler_id="1").update(gone_at=clock.now() - timedelta(days=31))
    QueueEntry.objects.filter(scheduler_id="2").update(gone_at=clock.now() - timedelta(days=29))
    entries_forget()
    assert QueueEntry.objects.get().scheduler_id == "2"


# --- the pace ------------------------------------------------------------------------------------------


def test_the_period_stretches_while_nothing_happens_and_returns_at_a_change(
    scheduler: FakeScheduler, cluster: Cluster
) -> None:
    scheduler.jobs["1"] = outside("1")
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        periods = []
        for shift in (0, 20, 60, 300):
            clockwork.shift(timedelta(seconds=shift))
            periods.append(slurm.queue(cluster.uid).again_in_s)
        assert periods == [2.0, 5.0, 20.0, 30.0]
        scheduler.jobs["1"] = replace(scheduler.jobs["1"], reason="Resources")
        assert slurm.queue(cluster.uid).again_in_s == 2.0


def test_a_slow_controller_is_read_less_often_even_when_someone_asks(
    scheduler: FakeScheduler, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(since: Any = None, watch: Any = ()) -> v.QueueRead:
        scheduler.calls.before("queue")
        return v.QueueRead(clock.now(), tuple(scheduler.jobs.values()), read_s=5.0)

    monkeypatch.setattr(scheduler, "queue", slow)
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        assert slurm.queue(cluster.uid).again_in_s == pytest.approx(45.0)
        clockwork.shift(timedelta(seconds=10))
        assert slurm.queue(cluster.uid).again_in_s == pytest.approx(35.0)
        assert scheduler.calls.counts["queue"] == 1
        clockwork.shift(timedelta(seconds=36))
        slurm.queue(cluster.uid)
        assert scheduler.calls.counts["queue"] == 2


def test_a_portal_job_that_waits_keeps_the_period_short(
    job: Job, scheduler: FakeScheduler, work: Any, cluster: Cluster
) -> None:
    work("job.reconcile")
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        slurm.queue(cluster.uid)
        clockwork.shift(timedelta(minutes=10))
        assert slurm.queue(cluster.uid).again_in_s == slurm.WAITING_S
