"""The dialog that asks something of jobs in Slurm, and the same by the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apps.jobs.action_models import JobAction
from apps.jobs.selectors import current_attempt
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]
HTMX = {"HTTP_HX_REQUEST": "true"}


def test_the_menu_offers_what_makes_sense(sign_in: SignIn, site: DemoRows) -> None:
    running = sign_in("owner").get(f"/jobs/{site.jobs['moe-8x7b-ablation'].uid}").content.decode()
    assert "kind=SIGNAL" in running
    assert "kind=HOLD" not in running
    waiting = sign_in("owner").get(f"/jobs/{site.jobs['tokenizer-sweep'].uid}").content.decode()
    assert "kind=HOLD" in waiting
    assert "kind=SIGNAL" not in waiting
    assert "kind=HOLD" not in sign_in("member").get(f"/jobs/{site.jobs['tokenizer-sweep'].uid}").content.decode()
    ended = sign_in("owner").get(f"/jobs/{site.jobs['sft-instruct-v3'].uid}").content.decode()
    assert "ask-act" not in ended


def test_the_dialog_says_what_it_costs_and_follows_what_is_typed(sign_in: SignIn, site: DemoRows) -> None:
    job = site.jobs["tokenizer-sweep"]
    client = sign_in("owner")
    text = client.get(f"/jobs/act?kind=TIME_LIMIT&uid={job.uid}", **HTMX).content.decode()
    assert "has this limit already" in text
    text = client.get(f"/jobs/act?kind=TIME_LIMIT&uid={job.uid}&value=24:00:00", **HTMX).content.decode()
    assert "more held" in text
    assert "<form" not in text
    text = client.get(f"/jobs/act?kind=TIME_LIMIT&uid={job.uid}&value=soon", **HTMX).content.decode()
    assert "is not a time" in text
    assert 'type="submit"' not in text
    assert client.get(f"/jobs/act?kind=FLY&uid={job.uid}").status_code == 400


def test_several_at_once_each_with_its_result(sign_in: SignIn, site: DemoRows) -> None:
    waiting, running = site.jobs["tokenizer-sweep"], site.jobs["moe-8x7b-ablation"]
    client = sign_in("owner")
    query = f"kind=HOLD&uid={waiting.uid}&uid={running.uid}"
    text = client.get(f"/jobs/act?{query}", **HTMX).content.decode()
    assert "only a job that waits can be held" in text
    answer = client.post("/jobs/act", {"kind": "HOLD", "uid": [waiting.uid, running.uid]}, **HTMX)
    assert "Asked for 1 job: Hold" in answer.content.decode()
    action = JobAction.objects.get()
    assert (action.kind, action.job, action.asked_by, action.phase) == ("HOLD", waiting, "owner", "ASKED")
    page = client.get(f"/jobs/{waiting.uid}").content.decode()
    assert "Asked of Slurm" in page
    assert "hold it" in page
    assert "owner asked: hold it" in client.get(f"/jobs/{waiting.uid}/timeline").content.decode()


def test_without_script_it_goes_back_to_the_job(sign_in: SignIn, site: DemoRows) -> None:
    job = site.jobs["moe-8x7b-ablation"]
    answer = sign_in("owner").post("/jobs/act", {"kind": "SIGNAL", "value": "USR1", "uid": job.uid})
    assert (answer.status_code, answer["Location"]) == (302, f"/jobs/{job.uid}")
    assert JobAction.objects.get().parameters == {"signal": "USR1"}


@pytest.mark.parametrize("who", ["member", "outsider"])
def test_who_may_not(sign_in: SignIn, site: DemoRows, who: str) -> None:
    job = site.jobs["tokenizer-sweep"]
    sign_in(who).post("/jobs/act", {"kind": "HOLD", "uid": job.uid})
    assert not JobAction.objects.exists()
    assert sign_in("anonymous").post("/jobs/act", {"kind": "HOLD", "uid": job.uid}).status_code == 302


def test_the_api_of_one_and_of_many(client: Client, site: DemoRows) -> None:
    from apps.teams.models import User

    client.force_login(User.objects.get(username="owner"))
    job = site.jobs["tokenizer-sweep"]
    assert current_attempt(job) is not None

    def post(path: str, body: Any, **headers: Any) -> Any:
        return client.post(f"/api/v1/{path}", body, content_type="application/json", **headers)

    path = f"jobs/{job.uid}/actions"
    assert post(path, {"kind": "HOLD"}).status_code == 400
    first = post(path, {"kind": "HOLD"}, HTTP_IDEMPOTENCY_KEY="a")
    assert first.status_code == 202, first.content
    assert post(path, {"kind": "HOLD"}, HTTP_IDEMPOTENCY_KEY="a")["Idempotent-Replayed"] == "true"
    assert JobAction.objects.count() == 1
    assert post(path, {"kind": "SIGNAL"}, HTTP_IDEMPOTENCY_KEY="b").status_code == 422
    assert post(path, {"kind": "SIGNAL", "signal": "USR1"}, HTTP_IDEMPOTENCY_KEY="c").status_code == 409
    found = client.get(f"/api/v1/{path}").json()["results"]
    assert [(one["kind"], one["phase"]) for one in found] == [("HOLD", "ASKED")]
    answer = post("jobs/act", {"kind": "PRIORITY", "nice": 5, "filter": {"team": "nlp"}, "dry_run": True})
    assert answer.status_code == 200, answer.content
    lines = {line["name"]: line for line in answer.json()["results"]}
    assert lines["tokenizer-sweep"]["is_asked"]
    assert "runs already" in lines["moe-8x7b-ablation"]["problem"]
    assert JobAction.objects.count() == 1


def test_the_tasks_of_an_array(sign_in: SignIn, site: DemoRows) -> None:
    from tests.demo_jobs import _array

    job = _array(site)
    client = sign_in("owner")
    text = client.get(f"/jobs/{job.uid}/tasks").content.decode()
    assert "40 tasks" in text
    assert "JobArrayTaskLimit" in text
    assert f"kind=CANCEL_TASK&amp;value=9&amp;uid={job.uid}" in text
    assert f"kind=CANCEL_TASK&amp;value=5&amp;uid={job.uid}" not in text
    assert f"kind=REQUEUE_TASK&amp;value=5&amp;uid={job.uid}" in text
    assert f"kind=REQUEUE_TASK&amp;value=6&amp;uid={job.uid}" not in text
    shown = client.get(f"/jobs/act?kind=REQUEUE_TASK&value=9&uid={job.uid}").content.decode()
    assert "task 9 is ended and runs again when the others of this attempt have ended" in shown
    failed = client.get(f"/jobs/{job.uid}/tasks?state=FAILED").content.decode()
    assert "1 task" in failed
    # Only some of what Unicode calls a digit is a number.
    for wrong in ("tasks?page=x", "tasks?page=²", "metrics?task=²"):
        assert client.get(f"/jobs/{job.uid}/{wrong}").status_code == 400, wrong
    for wrong in ("tasks?limit=²", f"tasks?limit={'9' * 5000}", "tasks?after=--5", "logs?from=²", "progress?task=²"):
        assert client.get(f"/api/v1/jobs/{job.uid}/{wrong}").status_code == 400, wrong
    # Each task's last step stands in the table and leads to its curves.
    assert f'/jobs/{job.uid}/metrics?task=9">1,000</a>' in text
    page = client.get(f"/jobs/{job.uid}/metrics?task=9").content.decode()
    assert f'data-curves="/jobs/{job.uid}/curve.json?task=9"' in page
    assert '<option value="9" selected>' in page
    curve = client.get(f"/jobs/{job.uid}/curve.json?task=9").json()
    assert (curve["steps"][-1], len(curve["loss"])) == (1000, 20)
    assert client.get(f"/jobs/{job.uid}/curve.json?task=3").json()["steps"][-1] == 1600
    assert client.get(f"/jobs/{job.uid}/metrics?task=x").status_code == 400
    told = client.get(f"/api/v1/jobs/{job.uid}/progress?task=9").json()["results"]
    assert (told[-1]["step"], len(told)) == (1000, 20)
    assert client.get(f"/api/v1/jobs/{job.uid}/progress?task=x").status_code == 400
    lines = client.get(f"/jobs/{job.uid}/tasks.csv").content.decode().splitlines()
    assert len(lines) == 41
    assert lines[6].startswith("5,1,7106,FAILED")
    assert "kind=REQUEUE_TASK" not in sign_in("member").get(f"/jobs/{job.uid}/tasks").content.decode()
    assert "kind=CANCEL_TASK" not in sign_in("member").get(f"/jobs/{job.uid}/tasks").content.decode()
    assert sign_in("outsider").get(f"/jobs/{job.uid}/tasks").status_code == 404
    assert sign_in("outsider").get(f"/jobs/{job.uid}/tasks.csv").status_code == 404
    found = client.get(f"/api/v1/jobs/{job.uid}/tasks?limit=10&state=completed").json()
    assert [task["number"] for task in found["results"]] == [0, 1, 2, 3, 4, 6, 7]
    assert client.get(f"/api/v1/jobs/{job.uid}/tasks?limit=5").json()["next"].endswith("?after=4&limit=5")
    client.post("/jobs/act", {"kind": "CANCEL_TASK", "value": "9", "uid": job.uid})
    assert JobAction.objects.get().parameters == {"task": 9}


def test_a_past_job_as_a_submit(sign_in: SignIn, site: DemoRows) -> None:
    job = site.jobs["sft-instruct-v3"]
    client = sign_in("owner")
    body = client.get(f"/api/v1/jobs/{job.uid}/spec").json()
    assert (body["name"], body["nodes"], body["script"]) == (job.name, job.nodes, job.script)
    answer = client.post("/api/v1/jobs/preview", body, content_type="application/json")
    assert answer.status_code == 200, answer.content
