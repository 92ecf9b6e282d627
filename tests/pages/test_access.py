"""Who may open which page of Work: nobody, an outsider, a member, the owner, an operator."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]
LISTS = ["home", "search", "jobs", "jobs-rows", "jobs-csv", "tokens"]
OF_JOB = [
    "job",
    "job-curve",
    "job-logs",
    "job-logs-data",
    "job-logs-text",
    "job-checkpoints",
    "job-timeline",
    "job-config",
    "job-cost",
]


@pytest.mark.parametrize("name", [*LISTS, "jobs-stop", "jobs-act", "job-new"])
def test_nobody_is_sent_to_sign_in(sign_in: SignIn, name: str) -> None:
    answer = sign_in("anonymous").get(reverse(name))
    assert answer.status_code == 302
    assert answer["Location"].startswith("/accounts/login/?next=")


@pytest.mark.parametrize("name", OF_JOB)
def test_the_pages_of_a_job(sign_in: SignIn, site: DemoRows, name: str) -> None:
    address = reverse(name, args=[site.jobs["llama-70b-pretrain"].uid])
    assert sign_in("anonymous").get(address).status_code == 302
    assert sign_in("outsider").get(address).status_code == 404
    for who in ("member", "owner", "lead", "operator", "admin"):
        assert sign_in(who).get(address).status_code == 200, who


@pytest.mark.parametrize("name", LISTS)
def test_lists_open_for_everyone_with_a_role(sign_in: SignIn, name: str) -> None:
    for who in ("outsider", "member", "owner", "operator", "admin"):
        assert sign_in(who).get(reverse(name)).status_code == 200, who


def test_an_outsider_sees_no_foreign_job_anywhere(sign_in: SignIn) -> None:
    client = sign_in("outsider")
    for address in ("/", "/jobs", "/jobs/export.csv", "/search?q=llama", "/jobs/rows?newest=none"):
        text = client.get(address).content.decode()
        assert "llama-70b" not in text, address
        assert "owner" not in re.sub(
            r'aria-label="[^"]*"|placeholder="[^"]*"|sort=-?owner|name="owner"', "", text
        ).replace("Owner", "").replace("owner=outsider", "").replace("usd_held", "").replace(
            "uid,name,phase,team,owner", ""
        )


def test_submitting_takes_the_right(sign_in: SignIn) -> None:
    assert sign_in("owner").get("/jobs/new").status_code == 200
    assert sign_in("member").get("/jobs/new").status_code == 403
    assert sign_in("member").post("/jobs/new/preview", {}).status_code == 403
    assert "New job" not in sign_in("member").get("/jobs").content.decode()


@pytest.mark.parametrize("verb", ["job-cancel", "job-requeue"])
def test_stopping_takes_the_right(sign_in: SignIn, site: DemoRows, verb: str) -> None:
    job = site.jobs["moe-8x7b-ablation"]
    address = reverse(verb, args=[job.uid])
    assert sign_in("anonymous").post(address).status_code == 302
    assert sign_in("outsider").post(address).status_code == 404
    assert sign_in("member").post(address).status_code == 403
    job.refresh_from_db()
    assert job.stop_requested_at is None
    assert sign_in("owner").post(address).status_code == 302
    job.refresh_from_db()
    assert job.stop_kind == verb.removeprefix("job-")


def test_stopping_needs_a_post(sign_in: SignIn, site: DemoRows) -> None:
    assert sign_in("owner").get(reverse("job-cancel", args=[site.jobs["moe-8x7b-ablation"].uid])).status_code == 405


def test_a_fragment_of_a_signed_out_page_sends_the_whole_page_to_sign_in(sign_in: SignIn) -> None:
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/jobs?phase=RUNNING"}
    answer = sign_in("anonymous").get("/jobs/rows", headers=headers)
    assert answer.status_code == 204
    assert answer["HX-Redirect"] == "/accounts/login/?next=/jobs"


def test_an_error_comes_to_htmx_as_a_notice(sign_in: SignIn) -> None:
    answer = sign_in("owner").get("/jobs/job_unknown", headers={"HX-Request": "true"})
    assert answer.status_code == 404
    assert answer["HX-Retarget"] == "#notices"
    assert "<html" not in answer.content.decode()
    assert 'role="alert"' in answer.content.decode()


def test_the_frame_shows_only_what_one_may_open(sign_in: SignIn) -> None:
    owner = sign_in("owner").get("/").content.decode()
    assert 'href="/jobs"' in owner
    assert "/admin/" not in owner
    admin = sign_in("admin").get("/").content.decode()
    assert 'href="/admin/"' in admin


def test_a_broken_portal_answers_without_reading_the_database(db: Any, rf: Any) -> None:
    from django.contrib.auth.models import AnonymousUser

    from apps.core.pages import server_error
    from apps.teams.permissions import ANONYMOUS

    request = rf.get("/")
    request.user, request.actor, request.htmx, request.request_id = AnonymousUser(), ANONYMOUS, False, "req_1"

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("the frame was read")

    request.user = Broken()
    answer = server_error(request)
    assert answer.status_code == 500
    assert "req_1" in answer.content.decode()


def test_the_language_button_sets_a_cookie_and_goes_back(sign_in: SignIn) -> None:
    client = sign_in("owner")
    answer = client.post("/language", {"language": "ko", "next": "/jobs?phase=RUNNING"})
    assert answer["Location"] == "/jobs?phase=RUNNING"
    assert client.cookies["django_language"].value == "ko"
    assert "새 작업" in client.get("/jobs").content.decode()
    assert client.post("/language", {"language": "ko", "next": "https://evil.example/"})["Location"] == "/"
    assert client.post("/language", {"language": "xx"}).status_code == 400


def test_the_closed_sign_up_and_the_sign_in_wear_our_frame(client: Client, db: None) -> None:
    for address, words in (("/accounts/login/", "Sign in"), ("/accounts/signup/", "There is no sign-up")):
        text = client.get(address).content.decode()
        assert words in text
        assert "portal.css" in text
    assert client.get("/accounts/password/reset/").status_code == 404
