"""The list of jobs: filters, order, pages, CSV, live rows, bulk stop, and its number of queries."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apps.core.lists import guarded
from apps.jobs.models import Job
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]

#: Queries of a page, sign-in and frame included. Home writes up to 8 sentences of 4 queries each.
LEDGER = {"/jobs": 14, "/": 45, "/tokens": 10}


def names(text: str) -> list[str]:
    return re.findall(r'id="link-job_\w+" href="[^"]+">([^<]+)<', text)


def test_newest_first_and_every_filter(sign_in: SignIn) -> None:
    client = sign_in("owner")
    shown = names(client.get("/jobs").content.decode())
    assert shown[0] == "tokenizer-sweep"
    assert "baseline-1b" in shown
    assert "speech-encoder-large" not in shown
    assert names(client.get("/jobs?phase=RUNNING").content.decode()) == ["moe-8x7b-ablation", "llama-70b-pretrain"]
    assert set(names(client.get("/jobs?phase=RUNNING,FAILED").content.decode())) == {
        "moe-8x7b-ablation",
        "llama-70b-pretrain",
        "sft-instruct-v3",
    }
    assert names(client.get("/jobs?q=LLAMA").content.decode()) == ["llama-70b-pretrain"]
    assert names(client.get("/jobs?cluster=hopper").content.decode()) == []
    assert names(sign_in("operator").get("/jobs?team=speech").content.decode()) == [
        "speech-encoder-large",
        "reward-model",
    ]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("colour=red", "colour"),
        ("phase=FLYING", "FLYING"),
        ("phase=RUNNING,FLYING", "FLYING"),
        ("sort=loss", "loss"),
        ("cursor=abc", "cursor"),
    ],
)
def test_what_it_does_not_know_is_refused_by_name(sign_in: SignIn, query: str, words: str) -> None:
    client = sign_in("owner")
    answer = client.get(f"/jobs?{query}")
    assert answer.status_code == 400
    assert words in answer.content.decode()
    if "sort" not in query and "cursor" not in query:
        assert client.get(f"/jobs/export.csv?{query}").status_code == 400
        assert client.get(f"/jobs/rows?{query}").status_code == 400


def test_chips_take_away_one_filter_at_a_time(sign_in: SignIn) -> None:
    text = sign_in("owner").get("/jobs?phase=RUNNING,FAILED&q=a").content.decode()
    assert 'href="/jobs?phase=FAILED&amp;q=a"' in text
    assert 'href="/jobs?phase=RUNNING%2CFAILED"' in text
    assert 'class="chip-clear" href="/jobs"' in text


def test_the_three_empty_states(sign_in: SignIn, db: None) -> None:
    assert "No job matches" in sign_in("owner").get("/jobs?q=zzz").content.decode()
    nothing = sign_in("outsider").get("/jobs").content.decode()
    assert "No jobs yet" in nothing
    assert "Submit a job" in nothing
    Job.objects.all().delete()
    assert "A team lead can change that" in sign_in("member").get("/jobs").content.decode()


def test_pages_follow_each_other_without_gap_or_repeat(sign_in: SignIn, site: DemoRows, monkeypatch: Any) -> None:
    from apps.jobs import views

    whole = views.listing
    monkeypatch.setattr(views, "listing", lambda *a, **k: whole(*a, **{**k, "limit": 3}))
    client, seen, address = sign_in("operator"), [], "/jobs?sort=name"
    for _page in range(10):
        text = client.get(address).content.decode()
        seen += names(text)
        found = re.search(r'rel="next"\s+href="([^"]+)"', text)
        if not found:
            break
        address = "/jobs" + found[1].replace("&amp;", "&")
    assert seen == sorted(site.jobs)
    foreign = address.split("cursor=")[1]
    assert client.get(f"/jobs?cursor={foreign}").status_code == 400


def test_csv_holds_the_filtered_set_and_runs_in_no_spreadsheet(sign_in: SignIn, site: DemoRows) -> None:
    Job.objects.filter(pk=site.jobs["eval-harness"].pk).update(name='=HYPERLINK("http://x")', owner_name="@cmd")
    answer = sign_in("owner").get("/jobs/export.csv?phase=TIMED_OUT,SUCCEEDED")
    assert answer["Content-Type"].startswith("text/csv")
    assert 'filename="jobs.csv"' in answer["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert [row["phase"] for row in rows] == ["TIMED_OUT", "SUCCEEDED"]
    assert rows[0]["name"] == '\'=HYPERLINK("http://x")'
    assert rows[0]["owner"] == "'@cmd"
    assert float(rows[1]["usd_charged"]) > 400
    assert rows[1]["ended_at"].endswith("Z")


def test_a_csv_that_cannot_hold_all_says_so_in_the_file_and_on_the_page(sign_in: SignIn, monkeypatch: Any) -> None:
    from apps.core import lists
    from apps.jobs import views

    client = sign_in("owner")
    assert "the newest" not in client.get("/jobs").content.decode()
    for module in (lists, views):
        monkeypatch.setattr(module, "MAX_CSV_ROWS", 3)
    assert "the newest 3" in client.get("/jobs").content.decode()
    lines = client.get("/jobs/export.csv").content.decode().splitlines()
    assert len(lines) == 5
    assert lines[-1].startswith("cut after 3 rows")


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "\tx", "\rx"])
def test_formula_guard(text: str) -> None:
    assert guarded(text) == f"'{text}"
    assert guarded("plain") == "plain"
    assert guarded(-5) == "-5"
    assert guarded(None) == ""


def test_live_rows_are_polled_and_settled_ones_are_not(sign_in: SignIn, site: DemoRows) -> None:
    client = sign_in("owner")
    text = client.get("/jobs").content.decode()
    poll = re.search(r'id="jobs-poll"\s+hx-get="([^"]+)"', text)
    assert poll
    address = poll[1].replace("&amp;", "&")
    assert site.jobs["llama-70b-pretrain"].uid in address
    assert site.jobs["baseline-1b"].uid not in address
    answer = client.get(address).content.decode()
    assert "<template>" in answer
    assert answer.count('hx-swap-oob="true"') == 6
    Job.objects.filter(phase="RUNNING").update(phase="SUCCEEDED")
    again = client.get(address).content.decode()
    settled = re.search(r'id="jobs-poll"\s+hx-get="([^"]+)"', again)
    assert settled
    assert site.jobs["llama-70b-pretrain"].uid not in settled[1]


def test_a_list_without_live_rows_looks_only_for_new_ones(sign_in: SignIn) -> None:
    text = sign_in("owner").get("/jobs?phase=SUCCEEDED").content.decode()
    assert 'hx-trigger="every 15s"' in text
    older = sign_in("owner").get("/jobs?phase=SUCCEEDED&sort=name").content.decode()
    assert 'hx-trigger="every' not in older.split('id="jobs-poll"')[1].split("</div>")[0]


def test_new_jobs_come_as_a_pill_not_as_moved_rows(sign_in: SignIn, site: DemoRows) -> None:
    client = sign_in("owner")
    old = site.jobs["llama-70b-pretrain"].uid
    text = client.get(f"/jobs/rows?newest={old}").content.decode()
    assert "5 new jobs" in text
    assert "1 new job" in client.get(f"/jobs/rows?newest={old}&phase=RUNNING").content.decode()
    newest = site.jobs["tokenizer-sweep"].uid
    assert "new job" not in client.get(f"/jobs/rows?newest={newest}").content.decode()


def test_bulk_stop_previews_then_stops_what_may_be_stopped(sign_in: SignIn, site: DemoRows) -> None:
    client = sign_in("owner")
    uids = [site.jobs[n].uid for n in ("moe-8x7b-ablation", "tokenizer-sweep", "baseline-1b")]
    preview = client.get("/jobs/stop", {"uid": uids, "kind": "cancel"}).content.decode()
    assert "Cancel 2 jobs" in preview
    assert "24 GPUs become free" in preview
    lines = re.findall(r"<b>([^<]+)</b></span>.*?<span>([^<]+)</span>\s*</li>", preview, re.DOTALL)
    told = {name: text.strip() for name, text in lines}
    assert told["baseline-1b"] == "has already ended"
    assert re.fullmatch(r"ends and keeps step [\d,]+; \$[\d,.]+ goes back to the team", told["moe-8x7b-ablation"])
    assert told["tokenizer-sweep"].startswith("leaves the queue")
    foreign = site.jobs["speech-encoder-large"].uid
    answer = client.post("/jobs/stop", {"uid": [*uids, foreign], "kind": "cancel"}, follow=True)
    text = answer.content.decode()
    assert "2 jobs are being cancelled." in text
    assert "Left alone: baseline-1b has already ended" in text
    stopped = Job.objects.filter(stop_kind="cancel", ended_at__isnull=True).values_list("name", flat=True)
    assert set(stopped) == {"moe-8x7b-ablation", "tokenizer-sweep"}
    assert client.get("/jobs/stop?kind=explode").status_code == 400


def test_all_that_match_is_resolved_by_the_filter_and_confirmed_by_name(
    sign_in: SignIn, site: DemoRows, monkeypatch: Any
) -> None:
    client = sign_in("owner")
    preview = client.get("/jobs/stop?kind=requeue&all=1&phase=RUNNING,SUCCEEDED").content.decode()
    assert "Start 2 jobs again" in preview
    assert "starts again from step" in preview
    assert "have already ended" in preview or "has already ended" in preview
    uids = re.findall(r'name="uid" value="([^"]+)"', preview)
    assert set(uids) == {site.jobs[n].uid for n in ("moe-8x7b-ablation", "llama-70b-pretrain")}
    answer = client.post("/jobs/stop", {"uid": uids, "kind": "requeue"}, headers={"HX-Request": "true"})
    assert "2 jobs start again" in answer.content.decode()
    assert Job.objects.filter(stop_kind="requeue").count() == 2
    assert client.get("/jobs/stop?kind=requeue&all=1&colour=red").status_code == 400
    from apps.jobs import selectors

    monkeypatch.setattr(selectors, "MAX_BULK", 1)
    answer = client.get("/jobs/stop?kind=cancel&all=1&phase=RUNNING")
    assert answer.status_code == 400
    assert "more than 1 jobs match" in answer.content.decode()


def test_bulk_stop_needs_the_right_and_leaves_others_jobs_alone(sign_in: SignIn, site: DemoRows) -> None:
    uid = site.jobs["llama-70b-pretrain"].uid
    assert sign_in("member").post("/jobs/stop", {"uid": uid, "kind": "cancel"}).status_code in (302, 403)
    sign_in("outsider").post("/jobs/stop", {"uid": uid, "kind": "cancel"})
    site.jobs["llama-70b-pretrain"].refresh_from_db()
    assert site.jobs["llama-70b-pretrain"].stop_kind != "cancel"


def test_a_bad_filter_is_refused_in_the_words_of_the_page(sign_in: SignIn) -> None:
    text = sign_in("owner").get("/jobs?phase=FLYING").content.decode()
    assert "State: &#x27;FLYING&#x27; is not known here; choose from: Accepted, Waiting, Running" in text
    assert "WAITING_BUDGET" not in text
    for query in ("team=nope", "team=speech", "cluster=nope"):
        answer = sign_in("owner").get(f"/jobs?{query}")
        assert answer.status_code == 400, query
        assert "that you may see" in answer.content.decode()


def test_requests_do_not_grow_with_the_rows(
    sign_in: SignIn, site: DemoRows, django_assert_max_num_queries: Any, django_assert_num_queries: Any
) -> None:
    client = sign_in("operator")
    client.get("/jobs")
    with django_assert_max_num_queries(LEDGER["/jobs"]) as few:
        client.get("/jobs?phase=RUNNING")
    with django_assert_num_queries(len(few.captured_queries)):
        client.get("/jobs")
    for address in ("/", "/tokens"):
        client = sign_in("owner")
        with django_assert_max_num_queries(LEDGER[address]):
            assert client.get(address).status_code == 200
