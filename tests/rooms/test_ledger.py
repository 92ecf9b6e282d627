"""The books balance, whoever writes and however many at once."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from apps.costs import services as ledger
from apps.costs.models import Account, Posting
from apps.costs.selectors import ledger_check, standing_of, sums_of
from apps.costs.states import Unit
from apps.jobs import observations as obs
from apps.jobs.models import Attempt, Job
from apps.jobs.services import JobSpec, job_submit
from apps.quotas.services import QuotaExceeded, quota_set
from apps.teams.permissions import system_actor
from tests.conftest import actor_of

pytestmark = pytest.mark.django_db


def test_a_hold_takes_from_free_and_a_release_gives_it_back(team: Any) -> None:
    with transaction.atomic():
        assert ledger.hold(team, Unit.USD, Decimal("100.25"), key="h1", subject="job_a", detail="att_a")
    now = standing_of(team, Unit.USD)
    assert (now.free, now.held, now.spent) == (Decimal("49899.75"), Decimal("100.25"), 0)
    with transaction.atomic():
        ledger.charge(team, Unit.USD, Decimal("40.10"), key="c1", subject="job_a", detail="att_a")
        given = ledger.release(team, Unit.USD, key="r1", subject="job_a", detail="att_a")
    assert given == Decimal("60.15")
    now = standing_of(team, Unit.USD)
    assert (now.free, now.held, now.spent) == (Decimal("49959.90"), 0, Decimal("40.10"))
    assert ledger_check().is_balanced


def test_the_same_key_posts_once(team: Any) -> None:
    with transaction.atomic():
        for _ in range(3):
            assert ledger.hold(team, Unit.USD, Decimal(7), key="h1", subject="job_a", detail="att_a")
            ledger.charge(team, Unit.USD, Decimal(2), key="c1", subject="job_a", detail="att_a")
    assert standing_of(team, Unit.USD).spent == 2
    assert Posting.objects.filter(subject_uid="job_a").count() == 2


def test_what_exceeds_the_hold_is_taken_from_free_and_told(team: Any) -> None:
    with transaction.atomic():
        ledger.hold(team, Unit.USD, Decimal(5), key="h1", subject="job_a", detail="att_a")
        ledger.charge(team, Unit.USD, Decimal(8), key="c1", subject="job_a", detail="att_a")
    now = standing_of(team, Unit.USD)
    assert (now.held, now.spent, now.free) == (0, 8, 50_000 - 8)
    assert Posting.objects.filter(memo__contains="beyond the hold").count() == 1


def test_a_thousand_cents_are_ten_dollars(team: Any) -> None:
    with transaction.atomic():
        ledger.hold(team, Unit.USD, Decimal(10), key="h", subject="job_a", detail="att_a")
        for number in range(1000):
            ledger.charge(team, Unit.USD, Decimal("0.01"), key=f"c{number}", subject="job_a", detail="att_a")
    now = standing_of(team, Unit.USD)
    assert (now.held, now.spent) == (Decimal(0), Decimal(10))
    assert sums_of(["job_a"])["job_a"].charged == Decimal(10)


def test_the_database_refuses_to_change_a_posting_or_a_balance(team: Any) -> None:
    with transaction.atomic():
        ledger.hold(team, Unit.USD, Decimal(5), key="h1", subject="job_a", detail="att_a")
    for attempt in (
        lambda: Posting.objects.filter(key="h1").update(amount=Decimal(1)),
        lambda: Posting.objects.filter(key="h1").delete(),
        lambda: Account.objects.filter(kind="FREE", unit="USD").update(balance=Decimal(10**6)),
        lambda: Account.objects.create(team=team, kind="SPENT", unit="GPU", balance=Decimal(3)),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            attempt()
    assert ledger_check().is_balanced


def test_a_posting_joins_accounts_of_one_team_and_unit(team: Any) -> None:
    dollars = Account.objects.get(team=team, kind="FREE", unit="USD")
    gpus = Account.objects.get(team=team, kind="FREE", unit="GPU")
    with pytest.raises(DatabaseError), transaction.atomic():
        Posting.objects.create(key="x", kind="HOLD", unit="USD", source=dollars, target=gpus, amount=Decimal(1))


def test_lowering_a_budget_below_what_is_held_stops_holds_not_charges(team: Any) -> None:
    with transaction.atomic():
        ledger.hold(team, Unit.USD, Decimal(900), key="h1", subject="job_a", detail="att_a")
    ledger.budget_set(actor=system_actor(), team=team, usd_per_month=Decimal(500))
    assert standing_of(team, Unit.USD).free == -400
    with transaction.atomic():
        assert not ledger.hold(team, Unit.USD, Decimal(1), key="h2", subject="job_b", detail="att_b")
        ledger.charge(team, Unit.USD, Decimal(900), key="c1", subject="job_a", detail="att_a")
    assert ledger_check().is_balanced


def test_a_submit_beyond_the_quota_is_refused_whole(team: Any, owner: Any, cluster: Any) -> None:
    quota_set(actor=system_actor(), team=team, gpus=8)
    spec = JobSpec(name="big", script="true", nodes=2, gpus_per_node=8, gpu_type="h100", time_limit_min=10)
    with pytest.raises(QuotaExceeded, match="may hold 8 GPUs at once and holds 0; this needs 16"):
        job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
    assert Job.objects.count() == 0
    assert standing_of(team, Unit.USD).held == 0


def test_a_submit_beyond_the_budget_gives_the_gpus_back(team: Any, owner: Any, cluster: Any, spec: Any) -> None:
    ledger.budget_set(actor=system_actor(), team=team, usd_per_month=Decimal(100))
    with pytest.raises(ledger.BudgetExhausted, match=r"\$100.00 left of this month's budget and this needs \$110.08"):
        job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
    assert standing_of(team, Unit.GPUS).held == 0
    assert Attempt.objects.count() == 0


def test_a_job_settles_to_what_it_used(job: Any, team: Any) -> None:
    from datetime import timedelta

    attempt = job.attempts.get()
    start = job.created_at
    obs.attempt_submitting(attempt)
    obs.attempt_submitted(attempt, "41")
    seen = obs.Seen("RUNNING", "", ("p5-1", "p5-2"), start, None, None, None, None)
    assert obs.attempt_observe(attempt, seen)
    obs.attempt_running(attempt)
    assert obs.attempt_charge(attempt, start + timedelta(minutes=6)) == Decimal("11.008")
    assert obs.attempt_charge(attempt, start + timedelta(minutes=6)) == 0
    attempt.ended_at = start + timedelta(minutes=30)
    obs.attempt_end(attempt, "SUCCEEDED", "")
    obs.job_end(job, "SUCCEEDED")
    now = standing_of(team, Unit.USD)
    assert (now.held, now.spent) == (0, Decimal("55.04"))
    assert standing_of(team, Unit.GPUS).held == 0
    assert standing_of(team, Unit.GPU_HOURS).spent == 8
    assert ledger_check().is_balanced
    kinds = list(Posting.objects.filter(subject_uid=job.uid, unit="USD").order_by("id").values_list("kind", flat=True))
    assert kinds == ["HOLD", "CHARGE", "CHARGE", "RELEASE"]
