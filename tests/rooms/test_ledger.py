"""The books balance, whoever writes and however many at once."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from apps.core import clock
from apps.costs import observations
from apps.costs import services as ledger
from apps.costs.models import Account, LedgerMark, Posting
from apps.costs.observations import DOUBT_EVERY, SETTLED_AFTER, WHOLE_EVERY, ledger_observe
from apps.costs.selectors import books, ledger_check, ledger_standing, standing_of, sums_of
from apps.costs.states import Unit
from apps.jobs import observations as obs
from apps.jobs.charges import attempt_charge
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
    assert attempt_charge(attempt, start + timedelta(minutes=6)) == Decimal("11.008")
    assert attempt_charge(attempt, start + timedelta(minutes=6)) == 0
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


def post(team: Any, number: int, start: int = 0) -> None:
    """So many holds of a dollar, each given back."""
    for each in range(start, start + number):
        with transaction.atomic():
            ledger.hold(team, Unit.USD, Decimal(1), key=f"h{each}", subject=f"job_{each}", detail=f"att_{each}")
            ledger.release(team, Unit.USD, key=f"r{each}", subject=f"job_{each}", detail=f"att_{each}")


def past_the_ledger(sql: str) -> None:
    """Write as someone would who owns the database: with its triggers out of the way."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("DROP TRIGGER costs_posting_no_update")
            cursor.execute("DROP TRIGGER costs_balance_follows")
        else:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            for table in ("costs_posting", "costs_account"):
                cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        cursor.execute(sql)


@pytest.fixture
def marked(team: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A ledger whose first postings are behind the mark; the day's whole sum is done."""
    monkeypatch.setattr(observations, "STEP", 5)
    post(team, 5)
    later = clock.now() + SETTLED_AFTER + SETTLED_AFTER
    monkeypatch.setattr(clock, "now", lambda: later)
    ledger_observe()
    assert ledger_standing().posting_id == Posting.objects.order_by("-id").values_list("id", flat=True)[0]
    return team


def test_only_what_is_new_is_summed_again(marked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    all_of_them = Posting.objects.count()
    post(marked, 2, start=5)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(observations, "books", lambda *a: asked.append((a[0], len(a))) or books(*a))
    ledger_observe()
    mark = ledger_standing()
    assert asked == [(mark.posting_id, 2)], "once, from the mark on"
    assert (mark.is_balanced, mark.checked_postings, mark.whole_postings) == (True, all_of_them + 4, all_of_them)
    assert mark.sums == {k: v for k, v in books(0, {}, mark.posting_id).sums.items() if k in mark.sums}


def test_what_is_young_stays_before_the_mark(team: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observations, "STEP", 5)
    post(team, 5)
    ledger_observe()
    mark = ledger_standing()
    assert (mark.posting_id, mark.checked_postings, mark.is_balanced) == (0, Posting.objects.count(), True)


def test_an_old_posting_that_was_edited_is_found_by_the_daily_sum(marked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    past_the_ledger("UPDATE costs_posting SET amount = amount + 1 WHERE key = 'h2'")
    ledger_observe()
    assert ledger_standing().is_balanced, "it lies behind the mark"
    tomorrow = clock.now() + WHOLE_EVERY
    monkeypatch.setattr(clock, "now", lambda: tomorrow)
    ledger_observe()
    mark = ledger_standing()
    assert (mark.is_balanced, mark.off) == (False, 2)
    ledger_observe()
    assert not ledger_standing().is_balanced, "a look at what is new does not clear it"
    past = "UPDATE costs_posting SET amount = amount - 1 WHERE key = 'h2'"
    with connection.cursor() as cursor:
        cursor.execute(past)
    soon = clock.now() + DOUBT_EVERY
    monkeypatch.setattr(clock, "now", lambda: soon)
    ledger_observe()
    assert ledger_standing().is_balanced


def test_a_balance_that_was_edited_is_found_at_once(marked: Any) -> None:
    past_the_ledger("UPDATE costs_account SET balance = balance + 7 WHERE kind = 'FREE' AND unit = 'USD'")
    ledger_observe()
    mark = ledger_standing()
    assert (mark.is_balanced, mark.accounts_off, mark.sum_of_balances) == (False, 1, Decimal("0.000007"))


def test_a_posting_that_committed_late_is_no_difference_for_long(marked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    LedgerMark.objects.update(posting_id=10**6)
    with transaction.atomic():
        ledger.hold(marked, Unit.USD, Decimal(1), key="late", subject="job_late", detail="att_late")
    soon = clock.now() + DOUBT_EVERY
    monkeypatch.setattr(clock, "now", lambda: soon)
    ledger_observe()
    mark = ledger_standing()
    assert (mark.is_balanced, mark.checked_postings) == (True, Posting.objects.count())
