"""Teams' limits in Slurm: written by steps, repaired where someone changed them, only watched where that is asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine
from django.db import transaction

from apps.audit.models import Event
from apps.clusters.models import Cluster, Node
from apps.clusters.slurm_models import SlurmLimit
from apps.clusters.slurm_services import slurm_account_put
from apps.costs.models import Budget
from apps.costs.selectors import standing_of
from apps.costs.services import budget_set, charge, month_open
from apps.costs.states import Unit
from apps.jobs.limit_selectors import allowance_of
from apps.jobs.models import Job
from apps.jobs.selectors import current_attempt, job_sums
from apps.jobs.sentences import waiting_sentence
from apps.jobs.services import job_submit
from tests.conftest import actor_of
from worker import doors
from worker.providers import values as v
from worker.providers.errors import AccessDenied, Unavailable, Unsupported
from worker.reconcilers import limits


class Killed(BaseException):
    """kill -9."""


class FakeAccounting:
    """slurmdbd in memory; ``fail`` is raised before a write takes effect, ``die`` after."""

    def __init__(self) -> None:
        self.accounts: dict[str, list[Any]] = {"nlp-lab": [None, None]}
        self.used = 0
        self.writes: list[tuple[str, int | None, int | None]] = []
        self.fail: BaseException | None = None
        self.die: BaseException | None = None

    def account_limits(self, accounts: Collection[str]) -> Mapping[str, v.AccountLimit]:
        if isinstance(self.fail, Unsupported):
            raise self.fail
        return {n: v.AccountLimit(n, *kept, self.used) for n, kept in self.accounts.items() if n in accounts}

    def account_limit_write(self, account: str, gpus: int | None, gpu_min: int | None) -> None:
        if self.fail is not None:
            raise self.fail
        self.accounts[account] = [gpus, gpu_min]
        self.writes.append((account, gpus, gpu_min))
        if self.die is not None:
            raise self.die


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeAccounting:
    fake = FakeAccounting()
    monkeypatch.setattr(doors, "accounting_for", lambda cluster: fake)
    return fake


@pytest.fixture
def place(cluster: Any, team: Any, operator: Any) -> Cluster:
    slurm_account_put(actor=actor_of(operator), cluster=cluster, account="nlp-lab", team=team, is_default=True)
    Cluster.objects.filter(pk=cluster.pk).update(limits_mode="enforce")
    return Cluster.objects.get(pk=cluster.pk)


def budget(team: Any, admin: Any, usd: int) -> None:
    had = Budget.objects.filter(team=team).first()
    version = had.version if had else None
    budget_set(actor=actor_of(admin), team=team, usd_per_month=Decimal(usd), expected_version=version)


def row() -> SlurmLimit:
    return SlurmLimit.objects.get()


def test_quota_and_budget_are_written_once(place: Cluster, team: Any, slurm: FakeAccounting) -> None:
    limits.reconcile(place.uid)
    wanted = allowance_of(team, place)
    assert slurm.writes == [("nlp-lab", wanted.gpus, wanted.left_gpu_min)]
    assert wanted.gpus
    assert wanted.left_gpu_min
    for _n in range(3):
        limits.reconcile(place.uid)
    assert len(slurm.writes) == 1
    assert not Event.objects.filter(kind__startswith="Limits").exists()


def test_what_was_used_is_added_and_small_steps_wait(
    place: Cluster, team: Any, admin: Any, slurm: FakeAccounting
) -> None:
    slurm.used = 5000
    budget(team, admin, 10_000)
    limits.reconcile(place.uid)
    left = allowance_of(team, place).left_gpu_min
    assert slurm.writes[-1][2] == 5000 + (left or 0)
    slurm.used += 10
    limits.reconcile(place.uid)
    assert len(slurm.writes) == 1, "less than a step"
    slurm.used += 5000
    limits.reconcile(place.uid)
    assert len(slurm.writes) == 2


def test_an_empty_budget_is_written_at_once_and_explained(
    place: Cluster, team: Any, admin: Any, job: Any, slurm: FakeAccounting
) -> None:
    budget(team, admin, 0)
    Cluster.objects.filter(pk=place.pk).update(limits_mode="enforce")
    limits.reconcile(place.uid)
    job.cluster.refresh_from_db()
    attempt = current_attempt(job)
    assert attempt is not None
    attempt.phase, attempt.observed_reason = "QUEUED", "AssocGrpGRESMinutes"
    words = waiting_sentence(job, attempt)
    assert all(word in words for word in ("nlp", "budget", "admin", "raise")), words
    attempt.observed_reason = "AssocGrpGRES"
    assert "GPUs at once" in waiting_sentence(job, attempt)
    attempt.observed_reason = "Priority"
    assert "budget" not in waiting_sentence(job, attempt)


def test_a_new_month_has_its_budget_and_the_old_ones_holds(
    place: Cluster, team: Any, owner: Any, spec: Any, slurm: FakeAccounting
) -> None:
    with time_machine.travel(datetime(2026, 11, 30, 23, 50, tzinfo=UTC), tick=False) as when:
        with transaction.atomic():
            month_open(team)
        had = Budget.objects.get(team=team).usd_per_month
        job_submit(actor=actor_of(owner), team=team, cluster=place, spec=spec)
        slurm.used = 5000
        limits.reconcile(place.uid)
        first = slurm.writes[-1][2]
        when.shift(timedelta(minutes=11))
        assert standing_of(team, Unit.USD).limit == 0, "nobody has opened the month"
        slurm.used = 50_000
        limits.reconcile(place.uid)
        left = slurm.accounts["nlp-lab"][1] - 50_000
        per_min = Job.objects.get().usd_per_gpu_hour / 60
        assert left == int(had / per_min) + 16 * 60, "the whole budget, and what the job of the old month holds"
        assert first is not None
        with transaction.atomic():
            month_open(team)
        assert allowance_of(team, place).left_gpu_min == left, "opening the month changes nothing"


def test_a_job_that_is_paid_for_fits_where_dearer_nodes_join(
    place: Cluster, team: Any, owner: Any, admin: Any, spec: Any
) -> None:
    job = job_submit(actor=actor_of(owner), team=team, cluster=place, spec=replace(spec, nodes=1, time_limit_min=600))
    had = Budget.objects.get(team=team)
    held = job_sums(job).held
    budget_set(actor=actor_of(admin), team=team, usd_per_month=held, expected_version=had.version)
    node = Node.objects.filter(cluster=place)[0]
    node.pk, node.uid, node.name = None, "nod_dearer", "b200-1"
    node.gpu_type, node.instance_type = "b200", "p6-b200.48xlarge"
    node.save()
    assert allowance_of(team, place).left_gpu_min == 8 * 600
    attempt = current_attempt(job)
    assert attempt is not None
    with transaction.atomic():
        charge(team, Unit.GPU_HOURS, Decimal(8), key="some", subject=job.uid, detail=attempt.uid)
    assert allowance_of(team, place).left_gpu_min == 8 * 540, "what was charged is in Slurm's own count"


def test_a_change_by_hand_is_told_and_repaired(place: Cluster, team: Any, slurm: FakeAccounting) -> None:
    limits.reconcile(place.uid)
    wrote = slurm.writes[-1]
    slurm.accounts["nlp-lab"] = [9999, 7]
    limits.reconcile(place.uid)
    assert slurm.accounts["nlp-lab"] == [wrote[1], wrote[2]]
    told = Event.objects.get(kind="LimitsRepaired")
    assert "9,999" in str(told.text)
    limits.reconcile(place.uid)
    assert Event.objects.filter(kind="LimitsRepaired").count() == 1


def test_watching_writes_nothing_and_tells_once(place: Cluster, slurm: FakeAccounting) -> None:
    Cluster.objects.filter(pk=place.pk).update(limits_mode="watch")
    for _n in range(3):
        limits.reconcile(place.uid)
    assert not slurm.writes
    assert row().drift_since is not None
    assert Event.objects.filter(kind="LimitsDiffer").count() == 1


def test_off_looks_at_nothing(place: Cluster, slurm: FakeAccounting) -> None:
    Cluster.objects.filter(pk=place.pk).update(limits_mode="off")
    assert limits.reconcile(place.uid).again_in_s is None
    assert not SlurmLimit.objects.exists()


@pytest.mark.parametrize("when", ["before the call", "after the call", "before the save"])
def test_killed_while_writing_ends_as_it_should_and_is_no_drift(
    place: Cluster, team: Any, slurm: FakeAccounting, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def die(*_args: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if when == "before the call":
            slurm.fail = Killed()
        elif when == "after the call":
            slurm.die = Killed()
        else:
            patch.setattr(limits.obs, "limit_written", die)
        with pytest.raises(Killed):
            limits.reconcile(place.uid)
    slurm.fail = slurm.die = None
    for _n in range(2):
        limits.reconcile(place.uid)
    wanted = allowance_of(team, place)
    assert slurm.accounts["nlp-lab"] == [wanted.gpus, wanted.left_gpu_min]
    assert not Event.objects.filter(kind="LimitsRepaired").exists()
    assert str(row().message) == "as it should be"


def test_refusals_are_told_on_the_page(place: Cluster, slurm: FakeAccounting) -> None:
    slurm.fail = AccessDenied("denied", source="slurm")
    assert limits.reconcile(place.uid).again_in_s == limits.REFUSED_S
    assert "admin level" in str(row().message)
    slurm.fail = Unsupported("v0.0.38 cannot", source="slurm")
    assert limits.reconcile(place.uid).again_in_s == limits.REFUSED_S
    assert "v0.0.38" in str(row().message)
    slurm.fail = Unavailable("away", source="slurm")
    with pytest.raises(Unavailable):
        limits.reconcile(place.uid)
    slurm.fail = None
    slurm.accounts.clear()
    limits.reconcile(place.uid)
    assert "no such account" in str(row().message)
