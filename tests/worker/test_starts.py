"""Expected starts of the portal's waiting jobs: made from the mirror, told on pages and in the API, and judged."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import time_machine

from apps.clusters.models import Cluster
from apps.core import clock
from apps.jobs.models import Attempt, Job, StartHistory, StartPrediction
from apps.jobs.sentences import job_sentence
from apps.jobs.start_observations import history_observe, ratios_of, uses_of
from apps.jobs.start_pictures import tasks_in, use_of
from apps.jobs.start_rules import UNKNOWN_USE
from apps.jobs.start_selectors import Asked, accuracy_of, what_if
from tests.worker.fakes import FakeScheduler
from tests.worker.test_queue_mirror import outside
from worker.collectors import slurm, starts

pytestmark = pytest.mark.django_db


@pytest.fixture
def queued(job: Job, scheduler: FakeScheduler, work: Any, tick: Any, cluster: Cluster) -> Job:
    """A job of two nodes that waits behind one of somebody else: all four nodes are taken until then."""
    work("job.reconcile", "cluster.nodes")
    slurm.nodes(cluster.uid)
    began = clock.now().replace(microsecond=0)
    names = ("p5-1", "p5-2", "p5-3", "p5-4")
    scheduler.jobs["7"] = outside(
        "7", state="RUNNING", nodes=names, node_count=4, gpus=32, started_at=began, time_limit_min=120
    )
    scheduler.jobs["8"] = outside("8", priority=99, node_count=4, gpus=32)
    scheduler.jobs["100"] = replace(scheduler.jobs["100"], priority=5)
    tick(cluster)
    return Job.objects.get(pk=job.pk)


def predict(cluster: Cluster) -> StartPrediction:
    starts.predict(cluster.uid)
    return StartPrediction.objects.get(is_first=False)


def test_a_waiting_job_is_told_why_and_when(queued: Job, cluster: Cluster) -> None:
    told = predict(cluster)
    assert told.why["blockers"] == ["7"]
    assert (told.why["ahead"], told.why["missing"], told.why["fitting"]) == (1, 2, 4)
    assert told.low_at is not None
    assert told.p50_at is not None
    assert told.p90_at is not None
    assert told.low_at <= told.p50_at <= told.p90_at
    sentence = job_sentence(queued)
    assert "number 1 of team" in sentence
    assert "1 job is ahead in gpu; waits for 2 more nodes in gpu; job 7 ends about" in sentence
    assert "Expected start: " in sentence
    assert "no start here has been compared" in sentence


def test_what_says_the_same_is_not_written_again_and_the_first_stays(queued: Job, cluster: Cluster) -> None:
    first = predict(cluster)
    with time_machine.travel(clock.now() + timedelta(seconds=20)):
        assert predict(cluster).made_at == first.made_at
    with time_machine.travel(clock.now() + timedelta(minutes=30)):
        assert predict(cluster).made_at > first.made_at
        assert StartPrediction.objects.get(is_first=True).made_at == first.made_at


@pytest.mark.parametrize(("after_s", "inside"), [(2.0, False), (7200.0, True), (90_000.0, False)])
def test_a_start_is_compared_with_what_was_first_told(
    queued: Job, cluster: Cluster, after_s: float, inside: bool
) -> None:
    told = predict(cluster)
    StartPrediction.objects.filter(is_first=True).update(low_at=told.made_at + timedelta(minutes=20))
    Attempt.objects.update(started_at=told.made_at + timedelta(seconds=after_s))
    starts.predict(cluster.uid)
    row = StartPrediction.objects.get(is_first=True)
    assert row.was_inside is inside
    accuracy = accuracy_of(cluster.pk)
    assert (accuracy.starts, accuracy.inside) == (1, int(inside))


def test_what_never_started_is_no_start(queued: Job, cluster: Cluster) -> None:
    predict(cluster)
    Attempt.objects.update(phase="CANCELLED")
    starts.predict(cluster.uid)
    assert not StartPrediction.objects.exists()


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("JobHeldUser", "Held: it keeps its place"),
        ("AssocGrpGRESMinutes", "the minutes that the account was given are used up: GPUs"),
        ("Dependency", "a job it depends on has not finished"),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_a_job_that_waits_for_something_else_has_no_expected_start(
    queued: Job, scheduler: FakeScheduler, tick: Any, cluster: Cluster, reason: str, words: str
) -> None:
    scheduler.jobs["100"] = replace(scheduler.jobs["100"], reason=reason)
    tick(cluster)
    told = predict(cluster)
    assert told.p50_at is None
    assert words in job_sentence(queued)
    assert not StartPrediction.objects.filter(is_first=True).exists()


def test_a_smaller_or_shorter_job_is_told_an_earlier_start(
    queued: Job, scheduler: FakeScheduler, tick: Any, cluster: Cluster
) -> None:
    names = ("p5-1", "p5-2", "p5-3")
    scheduler.jobs["7"] = replace(scheduler.jobs["7"], nodes=names, node_count=3, gpus=24)
    tick(cluster)
    cluster.refresh_from_db()
    asked = Asked(nodes=2, gpus_per_node=8, limit_min=600, partition="gpu")
    later = what_if(cluster, asked, key="100")
    assert later.p50_at is not None
    assert not later.is_now
    assert what_if(cluster, replace(asked, nodes=1, limit_min=10), key="100").is_now
    assert what_if(cluster, replace(asked, nodes=5), key="100").p50_at is None
    # A new job comes last: behind the one that waits for all nodes.
    new = what_if(cluster, replace(asked, nodes=2))
    assert new.why is not None
    assert new.why.ahead == 2


def test_history_tells_what_jobs_of_a_kind_took_of_their_limits(
    scheduler: FakeScheduler, cluster: Cluster, queued: Job
) -> None:
    began = clock.now() - timedelta(hours=2)
    for number in range(6):
        scheduler.jobs[str(200 + number)] = outside(
            str(200 + number),
            name=f"train-{number}",
            state="COMPLETED",
            started_at=began,
            ended_at=began + timedelta(minutes=15),
            nodes=("p5-1",),
            time_limit_min=60,
        )
    slurm.queue(cluster.uid)
    assert history_observe(cluster)
    assert not history_observe(cluster), "every few minutes is enough"
    use = StartHistory.objects.get().use
    assert use_of(use, user_name="outsider", name="train-99", partition="gpu") == (0.25,) * 6
    assert use_of(use, user_name="outsider", name="other", partition="gpu") == (0.25,) * 6
    assert use_of(use, user_name="member", name="other", partition="cpu") == UNKNOWN_USE


def test_uses_are_parts_and_never_above_one() -> None:
    now = clock.now()
    rows = [("u", "n1", "p", now, now + timedelta(minutes=90), 60), ("u", "n2", "p", now, now + timedelta(0, 6), 60)]
    assert uses_of(rows, now)["n:u/n#"] == [0.0017, 1.0]


def test_jobs_that_still_run_keep_the_short_ones_from_speaking_for_all() -> None:
    now = clock.now()
    began = now - timedelta(minutes=30)
    short = [("u", "n", "p", began, began + timedelta(minutes=6), 60) for _ in range(5)]
    long = [("u", "n", "p", began, None, 60) for _ in range(5)]
    assert uses_of([*long, *short], now)["u:u"] == [0.1, 0.1, 0.1, 0.6, 1.0]
    assert uses_of(short, now)["u:u"] == [0.1] * 5
    assert uses_of(long, now) == {}, "nothing is known of a kind of which none has ended"
    # A job that has run for days beside them says nothing of those that begin now.
    old = [("u", "n", "p", now - timedelta(days=3), None, 6000)] * 5
    assert uses_of([*short * 12, *old], now)["u:u"] == [0.1] * 40


@pytest.mark.parametrize(("text", "count"), [("0-20%3", 3), ("0-20", 21), ("1,3,5-9:2", 5), ("7", 1), ("", 1)])
def test_tasks_of_an_array(text: str, count: int) -> None:
    assert tasks_in(text) == count


def test_a_cluster_that_was_never_read_or_is_away_gets_no_new_expectation(queued: Job, cluster: Cluster) -> None:
    Cluster.objects.update(phase="UNREACHABLE")
    assert starts.predict(cluster.uid).again_in_s == 60
    assert not StartPrediction.objects.exists()
    assert starts.predict("clu_nobody").again_in_s is None


def test_earlier_starts_correct_what_is_expected(queued: Job, cluster: Cluster) -> None:
    told = predict(cluster)
    assert told.p50_at is not None
    first = StartPrediction.objects.get(is_first=True)
    played_s = first.why["played_s"]
    assert played_s > 60
    StartHistory.objects.update(use={"ratios": [2.0] * 30})
    StartPrediction.objects.filter(is_first=False).delete()
    later = predict(cluster)
    assert later.p50_at is not None
    assert (later.p50_at - later.made_at).total_seconds() == pytest.approx(2 * played_s, rel=0.02)
    Attempt.objects.update(started_at=first.made_at + timedelta(seconds=3 * played_s))
    starts.predict(cluster.uid)
    assert ratios_of(cluster) == [], "it was told when nothing was known of the jobs' kinds"
    StartPrediction.objects.filter(is_first=True).update(why={**first.why, "is_informed": True})
    assert ratios_of(cluster) == [3.0]


def test_nothing_is_told_while_part_of_the_queue_is_not_known(queued: Job, cluster: Cluster) -> None:
    Cluster.objects.update(queue_reading={"left_over": 7})
    assert starts.predict(cluster.uid).again_in_s == starts.CATCHING_UP_S
    assert not StartPrediction.objects.exists()
