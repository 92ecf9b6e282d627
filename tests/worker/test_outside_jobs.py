"""Jobs submitted past the portal: taken in once, followed, charged once, never started again, whatever dies when."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction
from django.urls import reverse

from apps.audit.models import Event
from apps.clusters.models import Cluster
from apps.clusters.slurm_services import slurm_account_put, slurm_user_put
from apps.core import clock, units
from apps.costs.models import Posting
from apps.costs.selectors import standing_of
from apps.costs.services import hold_more, month_open
from apps.costs.states import Unit
from apps.jobs import outside_observations as obs
from apps.jobs.action_rules import wish_of
from apps.jobs.action_services import jobs_act
from apps.jobs.models import Attempt, Job
from apps.jobs.outside_selectors import waste_of
from apps.jobs.queue_models import QueueEntry
from apps.jobs.services import job_stop
from tests.conftest import actor_of
from worker.collectors import outside


@pytest.fixture
def place(cluster: Any, team: Any, operator: Any) -> Cluster:
    """A cluster on which account nlp-lab belongs to team nlp."""
    slurm_account_put(actor=actor_of(operator), cluster=cluster, account="nlp-lab", team=team)
    Cluster.objects.filter(pk=cluster.pk).update(queue_read_at=clock.now())
    cluster.refresh_from_db()
    return Cluster.objects.get(pk=cluster.pk)


def row(cluster: Cluster, number: int, **columns: Any) -> QueueEntry:
    """A job of the queue as the collector mirrored it."""
    told: dict[str, Any] = {
        "scheduler_id": str(number),
        "name": f"ssh-{number}",
        "user_name": "u1",
        "account": "nlp-lab",
        "partition": "gpu",
        "state": "PENDING",
        "node_count": 2,
        "gpus": 16,
        "time_limit_min": 600,
        "submitted_at": clock.now() - timedelta(hours=3),
    }
    return QueueEntry.objects.create(cluster=cluster, **told | columns)


def run(cluster: Cluster, row: QueueEntry, hours: float = 2, **columns: Any) -> None:
    """It runs since so many hours."""
    told: dict[str, Any] = {"state": "RUNNING", "nodes": ["p5-1", "p5-2"]}
    told["started_at"] = clock.now() - timedelta(hours=hours)
    QueueEntry.objects.filter(pk=row.pk).update(**told | columns)


def spent(team: Any) -> Decimal:
    return standing_of(team, Unit.USD).spent


def test_one_is_taken_in_followed_and_charged(place: Cluster, team: Any, operator: Any, owner: Any) -> None:
    slurm_user_put(actor=actor_of(operator), cluster=place, user_name="u1", user=owner)
    entry = row(place, 7, reason="Priority")
    outside.follow(place.uid)
    job = Job.objects.get()
    assert (job.origin, job.phase, job.team, job.owner, job.slurm_user) == ("outside", "QUEUED", team, owner, "u1")
    assert (job.nodes, job.gpus_per_node, job.script) == (2, 8, "")
    assert Event.objects.filter(kind="JobAdopted").count() == 1
    run(place, entry)
    outside.follow(place.uid)
    job.refresh_from_db()
    assert job.phase == "RUNNING"
    usd = spent(team)
    assert usd == pytest.approx(Decimal(32) * job.usd_per_gpu_hour, rel=Decimal("0.01"))
    outside.follow(place.uid)
    assert spent(team) == usd, "the same span is charged once"
    ended = clock.now() + timedelta(minutes=30)
    QueueEntry.objects.filter(pk=entry.pk).update(state="FAILED", exit_code=3, ended_at=ended, gone_at=ended)
    outside.follow(place.uid)
    job.refresh_from_db()
    assert (job.phase, job.exit_code) == ("FAILED", 3)
    assert spent(team) == pytest.approx(Decimal("40") * job.usd_per_gpu_hour, rel=Decimal("0.01"))
    again = spent(team)
    outside.follow(place.uid)
    assert spent(team) == again
    assert job.attempts.count() == 1, "it is never started again from here"


def test_a_short_one_that_came_and_went_between_two_reads_is_charged(place: Cluster, team: Any) -> None:
    now = clock.now()
    row(place, 8, state="COMPLETED", started_at=now - timedelta(minutes=30), ended_at=now, gone_at=now, exit_code=0)
    outside.follow(place.uid)
    job = Job.objects.get()
    assert job.phase == "SUCCEEDED"
    assert spent(team) == pytest.approx(Decimal(8) * job.usd_per_gpu_hour, rel=Decimal("0.01"))


def test_an_array_is_one_job(place: Cluster, team: Any) -> None:
    waiting = row(place, 20, array_id="20", array_pending="1-9%2")
    outside.follow(place.uid)
    tasks = [row(place, 21 + n, array_id="20", array_task=n) for n in range(2)]
    for one in tasks:
        run(place, one, hours=1)
    outside.follow(place.uid)
    job = Job.objects.get()
    assert job.phase == "RUNNING"
    assert Attempt.objects.get().scheduler_id == "20"
    now = clock.now()
    QueueEntry.objects.filter(pk__in=[t.pk for t in tasks]).update(state="COMPLETED", ended_at=now, gone_at=now)
    outside.follow(place.uid)
    job.refresh_from_db()
    assert job.phase == "RUNNING", "tasks wait yet"
    assert spent(team) == pytest.approx(Decimal(32) * job.usd_per_gpu_hour, rel=Decimal("0.01"))
    QueueEntry.objects.filter(pk=waiting.pk).update(state="CANCELLED", ended_at=now, gone_at=now)
    outside.follow(place.uid)
    job.refresh_from_db()
    assert job.phase == "CANCELLED"


def test_ours_is_ours_before_its_number_is_known(place: Cluster, job: Any) -> None:
    attempt = job.attempts.get()
    Attempt.objects.filter(pk=attempt.pk).update(phase="SUBMITTING")
    row(place, 30, comment=attempt.uid, user_name="qd")
    row(place, 31, comment=attempt.uid, user_name="thief")
    outside.follow(place.uid)
    found = Job.objects.filter(origin="outside")
    assert [j.slurm_user for j in found] == ["thief"], "a comment that another wrote hides nothing"


@pytest.mark.parametrize("phase", ["RUNNING", "SUCCEEDED", "PENDING"])
def test_a_copied_comment_hides_nothing(place: Cluster, job: Any, team: Any, phase: str) -> None:
    attempt = job.attempts.get()
    number = "" if phase == "PENDING" else "5"
    Attempt.objects.filter(pk=attempt.pk).update(slurm_user="u1", scheduler_id=number, phase=phase)
    run(place, row(place, 77, comment=attempt.uid), hours=5)
    if number:
        row(place, 5, comment=attempt.uid)
        row(place, 78, comment=attempt.uid, array_id="5", array_task=1)
        row(place, 79, comment=attempt.uid, het_id="5")
    outside.follow(place.uid)
    found = Attempt.objects.filter(job__origin="outside")
    assert [a.scheduler_id for a in found] == ["77"], "its own number, tasks and parts are ours"
    assert spent(team) > 0


@pytest.mark.parametrize("kind", ["TIME_LIMIT", "PARTITION"])
def test_nothing_is_held_for_a_change(place: Cluster, team: Any, operator: Any, scheduler: Any, kind: str) -> None:
    row(place, 7, partition="slow")
    outside.follow(place.uid)
    job = Job.objects.get()
    Job.objects.filter(pk=job.pk).update(usd_per_gpu_hour=Decimal(1))
    job.refresh_from_db()
    given = {"time_limit_min": 1200} if kind == "TIME_LIMIT" else {"partition": "gpu"}
    (line,) = jobs_act(actor=actor_of(operator), jobs=[job], wish=wish_of(kind, given))
    assert (line.problem, line.usd, line.gpu_hours) == ("", 0, 0)
    assert "nothing is held" in line.outcome
    assert not Posting.objects.filter(subject_uid=job.uid).exists()


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_held_for_one_goes_back_at_its_end(
    place: Cluster, team: Any, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    entry = row(place, 7)
    outside.follow(place.uid)
    job, attempt = Job.objects.get(), Attempt.objects.get()
    with transaction.atomic():
        month_open(team)
        hold_more(team, Decimal(90), Decimal(9), key="k", subject=job.uid, detail=attempt.uid, memo="a longer limit")
    now = clock.now()
    QueueEntry.objects.filter(pk=entry.pk).update(state="CANCELLED", ended_at=now, gone_at=now)
    if killed:

        def die(*_args: Any, **_kwargs: Any) -> None:
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(obs, "job_end", die)
            with pytest.raises(Killed):
                outside.follow(place.uid)
        assert standing_of(team, Unit.USD).held == 90, "what is released and that it ended is one commit"
    outside.follow(place.uid)
    job.refresh_from_db()
    assert (job.phase, standing_of(team, Unit.USD).held, standing_of(team, Unit.GPU_HOURS).held) == ("CANCELLED", 0, 0)


@pytest.mark.parametrize("case", ["account", "user's team", "only team", "same names", "outside team", "nobody"])
def test_whose_it_is(place: Cluster, team: Any, owner: Any, outsider: Any, operator: Any, case: str) -> None:
    actor, vision = actor_of(operator), outsider.memberships.get().team
    account = "nlp-lab" if case == "account" else "other"
    name = "outsider" if case == "same names" else "u1"
    if case == "user's team":
        slurm_user_put(actor=actor, cluster=place, user_name="u1", team=vision)
    elif case == "only team":
        slurm_user_put(actor=actor, cluster=place, user_name="u1", user=outsider)
    elif case == "same names":
        Cluster.objects.filter(pk=place.pk).update(same_names=True)
    elif case == "outside team":
        Cluster.objects.filter(pk=place.pk).update(outside_team=vision)
    row(place, 40, user_name=name, account=account)
    outside.follow(place.uid)
    place.refresh_from_db()
    if case == "nobody":
        assert not Job.objects.exists()
        assert [(w.user_name, w.account, w.jobs) for w in waste_of(place)] == [("u1", "other", 1)]
        return
    assert Job.objects.get().team == (team if case == "account" else vision)
    assert not waste_of(place)


@pytest.mark.parametrize("name", ["root", "qd"])
def test_nobody_is_root_by_their_name(place: Cluster, outsider: Any, name: str) -> None:
    assert place.user_name == "qd"
    Cluster.objects.filter(pk=place.pk).update(same_names=True)
    type(outsider).objects.filter(pk=outsider.pk).update(username=name)
    row(place, 41, user_name=name, account="other")
    outside.follow(place.uid)
    assert not Job.objects.exists()


def test_the_budget_can_fall_below_nothing_and_says_so_once(
    place: Cluster, team: Any, admin: Any, outsider: Any, client: Any
) -> None:
    from apps.costs.models import Budget
    from apps.costs.services import budget_set

    had = Budget.objects.filter(team=team).first()
    version = had.version if had else None
    budget_set(actor=actor_of(admin), team=team, usd_per_month=Decimal(10), expected_version=version)
    for number in (50, 51):
        run(place, row(place, number), hours=3)
    outside.follow(place.uid)
    assert standing_of(team, Unit.USD).free < 0
    assert Event.objects.filter(kind="BudgetOverdrawn", object_type="team").count() == 1
    client.force_login(admin, backend="django.contrib.auth.backends.ModelBackend")
    over = units.usd(standing_of(team, Unit.USD).free)
    assert over.startswith(("-", "−"))
    for address in (reverse("team-costs", args=[team.slug]), reverse("costs"), reverse("quotas")):
        assert over in client.get(address).content.decode(), address
    told = "over its budget for this month; no job of it is accepted now"
    assert told in client.get("/").content.decode()
    client.force_login(outsider, backend="django.contrib.auth.backends.ModelBackend")
    assert told not in client.get("/").content.decode()


def test_a_cancel_goes_to_slurm_and_the_queue_tells_the_end(
    place: Cluster, operator: Any, scheduler: Any, work: Any
) -> None:
    entry = row(place, 60)
    run(place, entry)
    outside.follow(place.uid)
    job = Job.objects.get()
    cancelled = []
    scheduler.cancel = cancelled.append
    job_stop(actor=actor_of(operator), job=job, kind="cancel")
    work("job.reconcile", most=1)
    assert cancelled == ["60"]
    now = clock.now()
    QueueEntry.objects.filter(pk=entry.pk).update(state="CANCELLED", ended_at=now, gone_at=now)
    outside.follow(place.uid)
    job.refresh_from_db()
    assert job.phase == "CANCELLED"


def test_many_are_taken_in_by_few_statements(place: Cluster, django_assert_max_num_queries: Any) -> None:
    QueueEntry.objects.bulk_create(
        QueueEntry(
            cluster=place, scheduler_id=str(n), name="n", user_name="u1", account="nlp-lab", state="PENDING", gpus=8,
            node_count=1, time_limit_min=60,
        )
        for n in range(1000, 2100)
    )  # fmt: skip
    with django_assert_max_num_queries(600):
        assert outside.follow(place.uid).again_in_s == 0
    assert Job.objects.count() == 500
    while outside.follow(place.uid).again_in_s == 0:
        pass
    assert Job.objects.count() == 1100
    with django_assert_max_num_queries(12):
        outside.follow(place.uid)


class Killed(BaseException):
    """kill -9."""


@pytest.mark.parametrize("where", ["Job", "Attempt", "tie", "events", "after"])
def test_killed_while_taking_in_none_is_there_twice(
    place: Cluster, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    for number in range(70, 75):
        row(place, number)

    def die(*_args: Any, **_kwargs: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        match where:
            case "Job":
                patch.setattr(Job.objects, "bulk_create", die)
            case "Attempt":
                patch.setattr(Attempt.objects, "bulk_create", die)
            case "tie":
                patch.setattr(obs.QueueEntry.objects, "filter", die)
            case "events":
                patch.setattr(obs, "events", die)
            case _:
                patch.setattr(outside, "_move", die)
        with pytest.raises(Killed):
            outside.follow(place.uid)
    for _n in range(2):
        outside.follow(place.uid)
    assert Job.objects.count() == Attempt.objects.count() == 5
    assert not QueueEntry.objects.filter(attempt__isnull=True).exists()
    assert Event.objects.filter(kind="JobAdopted").count() == 5


@pytest.mark.parametrize("where", ["month_open", "charge", "second charge", "after"])
def test_killed_while_charging_none_is_charged_twice(
    place: Cluster, team: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    run(place, row(place, 80), hours=2)
    real = obs.ledger.charge
    calls = []

    def die(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        if where == "second charge" and len(calls) == 1:
            return real(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        if where == "after":
            patch.setattr(outside, "again", die)
        else:
            patch.setattr(obs.ledger, "month_open" if where == "month_open" else "charge", die)
        with pytest.raises(Killed):
            outside.follow(place.uid)
    for _n in range(2):
        outside.follow(place.uid)
    hours = sum(p.amount for p in Posting.objects.filter(unit=Unit.GPU_HOURS, key__startswith="outside:"))
    assert float(hours) == pytest.approx(32, rel=0.01)
    assert float(spent(team)) == pytest.approx(32 * float(Job.objects.get().usd_per_gpu_hour), rel=0.01)


def test_a_job_that_slurm_starts_again_after_its_end_is_another_one(place: Cluster, team: Any) -> None:
    now = clock.now()
    entry = row(place, 90, state="COMPLETED", started_at=now - timedelta(hours=1), ended_at=now, exit_code=0)
    outside.follow(place.uid)
    assert Job.objects.get().phase == "SUCCEEDED"
    before = spent(team)
    began = now + timedelta(minutes=1)
    QueueEntry.objects.filter(pk=entry.pk).update(state="RUNNING", started_at=began, ended_at=None, exit_code=None)
    Cluster.objects.filter(pk=place.pk).update(queue_read_at=None)
    outside.follow(place.uid)
    assert [j.phase for j in Job.objects.order_by("pk")] == ["SUCCEEDED", "RUNNING"]
    assert spent(team) == before, "what ran before is not charged again"
