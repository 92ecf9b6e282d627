"""Stopping many jobs by the API: by name, by filter, dry, bounded, each with its own result."""

from __future__ import annotations

from typing import Any

import pytest

from apps.jobs.models import Job
from apps.jobs.services import job_submit
from tests.api.test_behaviour import SUBMIT, problem
from tests.conftest import actor_of

pytestmark = pytest.mark.django_db


def test_a_dry_run_tells_and_does_nothing(as_user: Any, owner: Any, job: Any) -> None:
    answer = as_user(owner).send("POST", "jobs/stop", {"kind": "cancel", "uids": [job.uid], "dry_run": True})
    assert answer.status_code == 200
    line = answer.json()["results"][0]
    assert (line["uid"], line["is_stopped"], line["problem"]) == (job.uid, True, "")
    assert "leaves the queue" in line["outcome"]
    job.refresh_from_db()
    assert job.stop_kind == ""


def test_each_job_has_its_own_result(as_user: Any, owner: Any, job: Any, team: Any, cluster: Any, spec: Any) -> None:
    other = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
    Job.objects.filter(pk=other.pk).update(phase="FAILED")
    body = {"kind": "cancel", "filter": {"team": "nlp"}}
    first = as_user(owner).send("POST", "jobs/stop", body)
    assert [(r["uid"], r["is_stopped"]) for r in first.json()["results"]] == [(job.uid, True)]
    again = as_user(owner).send("POST", "jobs/stop", {"kind": "requeue", "uids": [other.uid, job.uid, "job_unknown"]})
    assert [(r["is_stopped"], r["problem"]) for r in again.json()["results"]] == [
        (False, "has already ended"),
        (False, "is already being stopped"),
    ]


def test_only_a_running_job_starts_again(as_user: Any, owner: Any, job: Any) -> None:
    body = {"kind": "requeue", "uids": [job.uid]}
    told = as_user(owner).send("POST", "jobs/stop", body).json()["results"]
    assert told[0]["problem"] == "does not run: there is nothing to start again"
    Job.objects.filter(pk=job.pk).update(phase="RUNNING")
    told = as_user(owner).send("POST", "jobs/stop", body).json()["results"]
    assert (told[0]["is_stopped"], told[0]["problem"]) == (True, "")
    assert "from the beginning" in told[0]["outcome"]
    job.refresh_from_db()
    assert job.stop_kind == "requeue"


def test_a_repeated_request_stops_once(as_user: Any, owner: Any, job: Any) -> None:
    client = as_user(owner)
    first = client.send("POST", "jobs/stop", {"kind": "cancel", "uids": [job.uid]}, Idempotency_Key="s1")
    again = client.send("POST", "jobs/stop", {"kind": "cancel", "uids": [job.uid]}, Idempotency_Key="s1")
    assert first.json() == again.json()
    assert again["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"kind": "cancel"}, 422, "either"),
        ({"kind": "explode", "uids": []}, 422, "explode"),
        ({"kind": "cancel", "filter": {}}, 422, "at least one"),
        ({"kind": "cancel", "filter": {"colour": "red"}}, 422, "colour"),
        ({"kind": "cancel", "filter": {"phase": "FLYING"}}, 400, "FLYING"),
        ({"kind": "cancel", "filter": {"team": "nope"}}, 400, "nope"),
        ({"kind": "cancel", "uids": ["x"] * 501}, 422, "500"),
    ],
)
def test_bad_input_is_refused_by_name(as_user: Any, owner: Any, job: Any, body: Any, status: int, word: str) -> None:
    answer = as_user(owner).send("POST", "jobs/stop", body)
    assert answer.status_code == status
    assert word in answer.json()["detail"]
    job.refresh_from_db()
    assert job.stop_kind == ""


def test_others_jobs_stay(as_user: Any, member: Any, outsider: Any, job: Any) -> None:
    told = as_user(outsider).send("POST", "jobs/stop", {"kind": "cancel", "uids": [job.uid]})
    assert told.status_code in (200, 403)
    assert told.json().get("results", []) == []
    as_user(member).send("POST", "jobs/stop", {"kind": "cancel", "uids": [job.uid]})
    job.refresh_from_db()
    assert job.stop_kind == ""


def test_an_unknown_team_is_an_error_and_no_empty_list(as_user: Any, owner: Any, job: Any) -> None:
    assert "nope" in problem(as_user(owner).send("GET", "jobs?team=nope"), 400, "BadQuery")["detail"]
    assert len(as_user(owner).send("GET", "jobs?team=nlp").json()["results"]) == 1


def test_a_bound_that_is_crossed_names_its_field(as_user: Any, owner: Any, cluster: Any) -> None:
    body = {**SUBMIT, "name": "x" * 130}
    found = problem(as_user(owner).send("POST", "jobs", body, Idempotency_Key="k"), 422, "InvalidInput")
    assert found["errors"][0]["detail"].startswith("name: Ensure")
