"""Costs, ledger, quotas and the audit trail: figures that add up, edits that cannot be lost, proofs on the page."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal

import pytest
from django.test import Client

from apps.audit.models import ChainMark, Entry
from apps.audit.observations import WHOLE_EVERY, chain_observe
from apps.core import clock
from apps.costs.charts import nice_step, stacked_days
from apps.costs.models import Budget, Posting
from apps.costs.selectors import name_in_memo, standing_of
from apps.costs.states import Unit
from apps.quotas.models import Quota
from apps.teams.models import Team
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]


@pytest.mark.parametrize(
    ("memo", "name"),
    [
        ("pretrain, attempt 2", "pretrain"),
        ("a, attempt 1, attempt 3: 7 min × 16 GPUs", "a, attempt 1"),
        ("monthly budget", ""),
        ("", ""),
    ],
)
def test_the_name_in_a_memo(memo: str, name: str) -> None:
    assert name_in_memo(memo) == name


@pytest.mark.parametrize(("top", "step"), [(0, 1), (1766, 1000), (2.9, 1), (301, 200), (45_000, 20_000)])
def test_the_axis_has_round_steps(top: float, step: float) -> None:
    assert nice_step(Decimal(str(top))) == Decimal(str(step))


def test_stacked_days_lose_no_cent_and_fill_the_height() -> None:
    names = {"a": "A", "b": "B", "c": "C", "d": "D", "e": "E", "": "others"}
    amounts = {(k, f"2026-11-{d:02d}"): Decimal(10 * d + i) for i, k in enumerate("abcde") for d in (1, 15, 30)}
    amounts[("a", "2026-10-01")] = Decimal(999)
    chart = stacked_days(amounts, until=date(2026, 11, 30), days=30, names=names)
    assert len(chart.days) == 30
    assert chart.total == sum(v for (_k, d), v in amounts.items() if d.startswith("2026-11"))
    assert [n for _c, n in chart.series] == ["E", "D", "C", "others"]
    last = chart.days[-1].parts
    assert sum(p.height for p in last) == pytest.approx(160 - min(p.y for p in last), abs=0.1)
    assert all(0 <= p.y <= 160 for d in chart.days for p in d.parts)
    assert stacked_days({}, until=date(2026, 11, 30), names={"": "x"}).total == 0


def test_costs_name_burn_month_and_budget(sign_in: SignIn, more: DemoRows) -> None:
    text = sign_in("admin").get("/costs").content.decode()
    assert "burns now" in text
    for team in ("Language models", "Speech", "Vision", "Robotics"):
        assert team in text
    assert text.count('class="seg-s1"') > 5
    mine = sign_in("member").get("/costs").content.decode()
    assert "Language models" in mine
    assert "Vision" not in mine
    fleets = sign_in("admin").get("/fleets/burn").content.decode()
    assert "ada/p5-main" in fleets
    assert "hopper/p4d" not in sign_in("member").get("/fleets/burn").content.decode()


def test_a_teams_page_adds_up_to_its_ledger(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("member")
    text = client.get("/costs/teams/nlp").content.decode()
    assert "llama-70b-pretrain" in text
    assert more.jobs["llama-70b-pretrain"].uid in text
    spent = standing_of(more.teams["nlp"], Unit.USD).spent
    assert f"${spent:,.2f} charged" in text
    foot = text[text.index("<tfoot>") : text.index("</tfoot>")]
    assert f"${spent:,.2f}" in foot
    assert client.get("/costs/teams/vision").status_code == 404
    assert "Nobody has set a budget" in sign_in("admin").get("/costs/teams/robotics").content.decode()


def test_the_ledger_shows_both_legs_and_its_sum(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("member")
    text = client.get("/costs/ledger?unit=USD&kind=CHARGE").content.decode()
    assert "Balanced" in text
    assert re.search(r"sum of all postings: <b>0\.000000</b>", text)
    minus = re.findall(r'data-label="−">\s*−([\d,.]+)', text)
    plus = re.findall(r'data-label="\+">\s*\+([\d,.]+)', text)
    assert minus == plus
    assert len(plus) == 50
    assert "speech-run" not in text
    job = more.jobs["llama-70b-pretrain"].uid
    rows = list(csv.DictReader(io.StringIO(client.get(f"/costs/ledger.csv?job={job}&unit=USD").content.decode())))
    assert {r["kind"] for r in rows} == {"HOLD", "CHARGE", "RELEASE"}
    assert len(rows) == Posting.objects.filter(subject_uid=job, unit="USD").count()
    assert client.get("/costs/ledger?team=vision").content.decode().count("data-label") == 0


def limits(team: str = "nlp", **changes: object) -> dict[str, object]:
    found = Team.objects.get(slug=team)
    quota, budget = Quota.objects.filter(team=found).first(), Budget.objects.filter(team=found).first()
    return {
        "gpus": quota.gpus if quota else "",
        "usd_per_month": budget.usd_per_month if budget else "",
        "gpus_version": quota.version if quota else 0,
        "usd_version": budget.version if budget else 0,
        **changes,
    }


def test_an_administrator_edits_a_row_and_the_ledger_follows(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("admin")
    row = client.get("/quotas?edit=nlp").content.decode()
    assert 'name="gpus"' in row
    assert 'value="144"' in row
    assert client.post("/quotas/nlp", limits(gpus=160, usd_per_month="80000.50")).status_code == 302
    team = more.teams["nlp"]
    assert standing_of(team, Unit.GPUS).limit == 160
    assert standing_of(team, Unit.USD).limit == Decimal("80000.50")
    history = sign_in("member").get("/quotas/nlp/history").content.decode()
    assert ">144<" in re.sub(r"\s", "", history)
    assert "$80,000.50" in history
    assert "admin" in history
    verbs = list(Entry.objects.order_by("-id").values_list("verb", flat=True)[:2])
    assert sorted(verbs) == ["budget.set", "quota.set"]


def test_a_stale_edit_changes_nothing_and_says_so(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("admin")
    old = limits(gpus=999, usd_per_month=1)
    client.post("/quotas/nlp", limits(usd_per_month=70_000))
    answer = client.post("/quotas/nlp", old)
    assert answer.status_code == 412
    text = answer.content.decode()
    assert "Someone else changed the limits of nlp meanwhile" in text
    assert 'value="70000.00"' in text, "the row shows what is now"
    assert Quota.objects.get(team=more.teams["nlp"]).gpus == 144, "both or neither"
    again = client.post("/quotas/nlp", limits(gpus=150))
    assert again.status_code == 302


def test_first_limits_of_a_team_race_safely(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("admin")
    first = limits("robotics", gpus=8, usd_per_month=500)
    assert client.post("/quotas/robotics", first).status_code == 302
    assert client.post("/quotas/robotics", {**first, "gpus": 16}).status_code == 412
    assert Quota.objects.get(team__slug="robotics").gpus == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"gpus": "-1"}, "greater than or equal to 0"), ({"usd_per_month": "lots"}, "Enter a number")],
)
def test_a_bad_limit_is_refused_in_its_row(
    sign_in: SignIn, more: DemoRows, changes: dict[str, object], words: str
) -> None:
    answer = sign_in("admin").post("/quotas/nlp", limits(**changes))
    assert answer.status_code == 422
    assert words in answer.content.decode()


def test_only_administrators_edit(sign_in: SignIn, more: DemoRows) -> None:
    for who in ("member", "lead", "operator"):
        client = sign_in(who)
        assert "Edit the limits" not in client.get("/quotas").content.decode()
        assert client.get("/quotas?edit=nlp").status_code == 400
        assert client.post("/quotas/nlp", limits(gpus=1)).status_code == 403
    assert "vision" not in sign_in("member").get("/quotas").content.decode()


def test_the_audit_trail_tells_who_what_and_the_difference(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("admin")
    text = client.get("/audit?verb=quota.set&who=admin").content.decode()
    assert re.search(r"<del>\d+</del>\s*→\s*<ins>144</ins>", text)
    assert "job.submit" not in text[text.index("<tbody>") :]
    rows = list(csv.DictReader(io.StringIO(client.get("/audit/export.csv?verb=quota.set").content.decode())))
    assert json.loads(rows[0]["after"]) == {"gpus": 144}
    assert client.get("/audit?since=2999-01-01").content.decode().count("<del>") == 0
    assert "No entry matches" in client.get("/audit?q=zzz").content.decode()


def test_an_edited_entry_breaks_the_chain_and_is_named(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("admin")
    assert "The chain is whole" in client.get("/audit/chain").content.decode()
    entry = Entry.objects.filter(verb="quota.set", sequence__isnull=False).order_by("sequence")[0]
    Entry.objects.filter(pk=entry.pk).update(after={"gpus": 100_000})
    ChainMark.objects.filter(name=ChainMark.WHOLE).update(ended_at=clock.now() - WHOLE_EVERY)
    chain_observe()
    text = client.get("/audit/chain").content.decode()
    assert "The chain is broken" in text
    assert entry.uid in text


def test_what_people_typed_is_shown_as_text(sign_in: SignIn, more: DemoRows) -> None:
    entry = Entry.objects.order_by("-id")[0]
    Entry.objects.filter(pk=entry.pk).update(after={"name": "<script>alert(1)</script>"}, actor_name="=cmd()")
    text = sign_in("admin").get("/audit").content.decode()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "'=cmd()" in sign_in("admin").get("/audit/export.csv").content.decode()
