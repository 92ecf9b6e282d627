"""The page of one job: its tabs, what polls and what does not, curves, logs, ledger and timeline."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from django.urls import reverse

from apps.audit.models import Event
from apps.core import clock
from apps.costs.states import Unit
from apps.jobs.history import curve_of, ledger_of, moments_of, spans_of, time_use
from apps.jobs.models import Attempt, Job, LogChunk, ProgressPoint
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]
HTMX = {"HX-Request": "true"}


@pytest.fixture
def running(site: DemoRows) -> Any:
    """A job that recovered once and runs."""
    return site.jobs["llama-70b-pretrain"]


def page(client: Client, job: Any, name: str = "job", **options: Any) -> str:
    answer = client.get(reverse(name, args=[job.uid]), **options)
    assert answer.status_code == 200
    return str(answer.content.decode())


def test_it_opens_with_the_sentence_of_the_api(sign_in: SignIn, running: Any) -> None:
    client = sign_in("owner")
    text = page(client, running)
    assert re.search(
        r"Running on 4 nodes for 2 h 2\d min; attempt 2, resumed from step [\d,]+; step 19,300 of 50,000;", text
    )
    assert "p5-main-8" in text.split("Left out")[1]
    korean = page(sign_in("owner", "ko"), running)
    assert "노드 4개에서 2시간" in korean


def test_it_polls_until_settled_and_then_stops(sign_in: SignIn, running: Any, site: DemoRows) -> None:
    client = sign_in("owner")
    for name in (
        "job",
        "job-metrics",
        "job-events",
        "job-checkpoints",
        "job-timeline",
        "job-cost",
        "job-logs",
        "job-config",
    ):
        address = reverse(name, args=[running.uid])
        assert f'hx-get="{address}" hx-trigger="every 3s"' in page(client, running, name), name
        live = page(client, running, name, headers=HTMX)
        assert "<html" not in live, name
        assert 'id="job-poll"' in live, name
        assert live.count('hx-swap-oob="true"') >= 3, name
        settled = page(client, site.jobs["baseline-1b"], name)
        assert "every 3s" not in settled, name
    assert "data-dialog" not in page(client, site.jobs["baseline-1b"]).split('id="job-actions"')[1].split("</span>")[0]


def test_stale_data_is_shown_with_its_age(sign_in: SignIn, running: Any) -> None:
    client = sign_in("owner")
    type(running.cluster).objects.filter(pk=running.cluster_id).update(queue_read_at=clock.now())
    assert "from slurm" not in page(client, running).split('id="job-poll"')[1].split("</div>")[0]
    type(running.cluster).objects.filter(pk=running.cluster_id).update(queue_read_at=clock.now() - timedelta(minutes=5))
    text = page(client, running)
    assert "as of" in text
    assert "from slurm" in text
    assert "step 19,300" in text


def test_a_viewer_may_look_but_not_stop(sign_in: SignIn, running: Any) -> None:
    text = page(sign_in("member"), running)
    assert "ask-cancel" not in text
    assert "Copy and edit" not in text
    assert "ask-cancel" in page(sign_in("lead"), running)


def test_dialogs_name_the_consequence_and_the_money(sign_in: SignIn, running: Any) -> None:
    text = page(sign_in("owner"), running)
    dialog = text.split('id="ask-cancel"')[1].split("</dialog>")[0]
    assert "Cancel llama-70b-pretrain?" in dialog
    assert "32 GPUs become free" in dialog
    assert re.search(r"\$2,1\d\d\.\d\d of the hold goes back", dialog)


def test_cancelling_an_ended_job_is_refused_in_words(sign_in: SignIn, site: DemoRows) -> None:
    answer = sign_in("owner").post(reverse("job-cancel", args=[site.jobs["baseline-1b"].uid]))
    assert answer.status_code == 409
    assert "has already ended" in answer.content.decode()


# --- curve ---------------------------------------------------------------------------------------


def point(attempt: Attempt, step: int, loss: float, minute: int = 0) -> ProgressPoint:
    return ProgressPoint(
        attempt=attempt, step=step, loss=loss, tokens_per_s=100.0, at=clock.now() + timedelta(minutes=minute)
    )


def test_the_curve_joins_attempts_and_keeps_what_was_done_twice() -> None:
    first, second = Attempt(number=1), Attempt(number=2)
    points = [point(first, s, 10 - s / 10) for s in (10, 20, 30, 40)] + [
        point(second, s, 9 - s / 10) for s in (25, 35, 45)
    ]
    curve = curve_of(points)
    assert curve.steps == [10, 20, 25, 30, 35, 40, 45]
    assert curve.loss == [9.0, 8.0, 6.5, None, 5.5, None, 4.5]
    assert curve.lost_loss == [None, None, None, 7.0, 6.5, 6.0, None]
    assert curve.joins == [(25, 2)]
    assert curve_of([]).steps == []


def test_the_curve_answers_as_json(sign_in: SignIn, running: Any) -> None:
    data = sign_in("owner").get(reverse("job-curve", args=[running.uid])).json()
    assert data["joins"] == [[12000, 2]]
    assert data["steps"] == sorted(set(data["steps"]))
    assert len(data["steps"]) == len(data["loss"]) == len(data["lost_loss"]) == len(data["tokens_per_s"])
    assert data["is_open"] is True
    assert any(v is not None for v in data["lost_loss"])


def test_where_the_time_went(running: Any) -> None:
    attempts = list(Attempt.objects.filter(job=running).order_by("number"))
    points = list(ProgressPoint.objects.filter(attempt__job=running).select_related("attempt").order_by("id"))
    uses = {u.kind: u.length.total_seconds() / 60 for u in time_use(spans_of(running, attempts, points))}
    assert set(uses) == {"waiting", "starting", "training", "lost"}
    assert uses["lost"] == pytest.approx(10, abs=3)
    assert sum(uses.values()) == pytest.approx(400, abs=2)


# --- ledger --------------------------------------------------------------------------------------


def test_the_ledger_shows_both_legs_and_sums_to_zero(sign_in: SignIn, running: Any, site: DemoRows) -> None:
    attempts = list(Attempt.objects.filter(job=running).order_by("number"))
    ledger = ledger_of(running, Unit.USD, attempts)
    assert [(line.kind, line.attempt) for line in ledger.lines] == [
        ("HOLD", 1),
        ("CHARGE", 1),
        ("RELEASE", 1),
        ("HOLD", 2),
        ("CHARGE", 2),
    ]
    assert all(line.sum == 0 and len(line.legs) == 2 for line in ledger.lines)
    assert ledger.sum == Decimal(0)
    text = page(sign_in("owner"), running, "job-cost")
    assert "Hold" in text
    assert re.search(r"<tfoot>.*\$0\.00.*</tfoot>", text, re.DOTALL)
    settled = ledger_of(site.jobs["baseline-1b"], Unit.USD, list(site.jobs["baseline-1b"].attempts.all()))
    assert settled.totals["HELD"] == 0
    assert settled.totals["SPENT"] == -settled.totals["FREE"]


# --- timeline ------------------------------------------------------------------------------------


def test_the_timeline_is_told_in_both_languages(sign_in: SignIn, running: Any) -> None:
    english = page(sign_in("owner"), running, "job-timeline")
    for words in (
        "Accepted: 32 GPUs for at most 12 h, $2,641.92 held",
        "Attempt 1 runs on 4 nodes",
        "XID 79 GPU_HAS_FALLEN_OFF_THE_BUS on p5-main-8",
        "Attempt 1 ended: Node failure",
        "Attempt 2 starts from step 12,000 without p5-main-8",
        "Checkpoint at step 12,300 is torn",
    ):
        assert words in english, words
    korean = page(sign_in("owner", "ko"), running, "job-timeline")
    assert "시도 2: p5-main-8 제외, 스텝 12,000부터 시작" in korean
    assert "Attempt 2" not in korean


def test_every_kind_of_event_the_domain_writes_has_words() -> None:
    import ast
    from pathlib import Path

    kinds = set()
    for name in ("services", "observations"):
        tree = ast.parse(Path(f"apps/jobs/{name}.py").read_text())
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("event", "_job_event"):
                kinds |= {a.value for a in call.args[1:3] if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    known = Path("apps/jobs/history.py").read_text()
    assert kinds
    assert {k for k in kinds if k[:1].isupper() and f'"{k}"' not in known} == set()
    (moment,) = moments_of([Event(kind="SomethingNew", text="in plain English", data={})])
    assert moment.text == "in plain English"


# --- logs ----------------------------------------------------------------------------------------


def test_log_data_is_json_and_never_markup(sign_in: SignIn, running: Any) -> None:
    client = sign_in("owner")
    first = client.get(reverse("job-logs-data", args=[running.uid]))
    assert first["Content-Type"] == "application/json"
    page_one = first.json()
    assert page_one["is_open"] is True
    assert any("<script>alert" in c["text"] for c in page_one["chunks"])
    after = client.get(reverse("job-logs-data", args=[running.uid]), {"after": page_one["next_after"]}).json()
    assert after["chunks"] == []
    one = client.get(reverse("job-logs-data", args=[running.uid]), {"attempt": 1}).json()
    assert {c["attempt"] for c in one["chunks"]} == {1}
    middle = page_one["chunks"][10]["id"]
    before = client.get(reverse("job-logs-data", args=[running.uid]), {"before": middle}).json()
    assert [c["id"] for c in before["chunks"]] == [c["id"] for c in page_one["chunks"][:10]]
    for bad in ("after=x", "before=-1", "attempt=1.5", "after=" + "9" * 30):
        assert client.get(reverse("job-logs-data", args=[running.uid]) + f"?{bad}").status_code == 400
    assert "<script>alert" not in page(client, running, "job-logs")


def test_the_download_is_plain_text_to_save(sign_in: SignIn, running: Any, monkeypatch: Any) -> None:
    client = sign_in("owner")
    answer = client.get(reverse("job-logs-text", args=[running.uid]))
    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    assert answer["Content-Disposition"].startswith("attachment;")
    assert answer["X-Content-Type-Options"] == "nosniff"
    text = whole(answer)
    assert text.index("starting from scratch") < text.index("step  19300")
    from apps.jobs import log_views

    monkeypatch.setattr(log_views, "_DOWNLOAD_STEP", 2)
    assert whole(client.get(reverse("job-logs-text", args=[running.uid]))) == text


def whole(answer: Any) -> str:
    """All of an answer that is sent piece by piece."""

    async def read() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return async_to_sync(read)().decode()


def test_a_job_without_output_or_steps_says_so(sign_in: SignIn, site: DemoRows) -> None:
    job = site.jobs["tokenizer-sweep"]
    client = sign_in("owner")
    assert "No step reported yet" in page(client, job)
    assert "No checkpoint yet" in page(client, job, "job-checkpoints")
    assert client.get(reverse("job-logs-data", args=[job.uid])).json()["chunks"] == []
    assert LogChunk.objects.filter(attempt__job=job).count() == 0


def test_an_unknown_job_is_not_found(sign_in: SignIn) -> None:
    assert sign_in("admin").get("/jobs/job_nope").status_code == 404
    assert Job.objects.filter(uid="job_nope").count() == 0
