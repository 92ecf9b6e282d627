"""Two hundred submits at once against room for a hundred: exactly a hundred pass."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, connections

from apps.core.errors import Refusal
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.services import budget_set
from apps.costs.states import Unit
from apps.jobs.models import Job
from apps.jobs.services import JobSpec, job_submit
from apps.quotas.services import quota_set
from apps.teams.permissions import system_actor
from tests.conftest import actor_of

pytestmark = pytest.mark.django_db(transaction=True)

SPEC = JobSpec(name="one", script="true", nodes=1, gpus_per_node=1, gpu_type="h100", time_limit_min=60)


def submit_many(team: Any, owner: Any, cluster: Any, count: int) -> list[str]:
    """The code of each refusal, or "" for each that passed; 20 at a time, each with its own connection."""
    actor = actor_of(owner)

    def one(_number: int) -> str:
        try:
            job_submit(actor=actor, team=team, cluster=cluster, spec=SPEC)
        except Refusal as refusal:
            return refusal.code
        finally:
            connections.close_all()
        return ""

    with ThreadPoolExecutor(max_workers=20 if connection.vendor == "postgresql" else 8) as pool:
        return list(pool.map(one, range(count)))


def test_the_quota_lets_exactly_a_hundred_pass(team: Any, owner: Any, cluster: Any) -> None:
    quota_set(actor=system_actor(), team=team, gpus=100)
    answers = submit_many(team, owner, cluster, 200)
    assert answers.count("") == 100
    assert answers.count("QuotaExceeded") == 100
    assert Job.objects.count() == 100
    assert standing_of(team, Unit.GPUS).held == 100
    assert ledger_check().is_balanced


def test_the_budget_lets_exactly_a_hundred_pass(team: Any, owner: Any, cluster: Any) -> None:
    quota_set(actor=system_actor(), team=team, gpus=1000)
    budget_set(actor=system_actor(), team=team, usd_per_month=Decimal("6.88") * 100)
    answers = submit_many(team, owner, cluster, 200)
    assert answers.count("") == 100
    assert answers.count("BudgetExhausted") == 100
    assert standing_of(team, Unit.USD).free == 0
    assert standing_of(team, Unit.GPUS).held == 100
    assert ledger_check().is_balanced
