"""Idempotency, ETags, cursors, filters, problem+json and the refusals of bad input."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from apps.core import clock
from apps.jobs.ingest import ingest_token
from apps.jobs.models import Attempt, Job, LogChunk, ProgressPoint
from tests.blocks import at, make_block

pytestmark = pytest.mark.django_db

SUBMIT = {
    "team": "nlp",
    "cluster": "lab",
    "name": "train",
    "script": "#!/bin/bash\ntrue\n",
    "nodes": 2,
    "gpus_per_node": 8,
    "gpu_type": "h100",
    "time_limit_min": 60,
}


def problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The body of a problem answer, checked for its shape."""
    body = dict(json.loads(answer.content))
    assert answer["Content-Type"] == "application/problem+json"
    assert (answer.status_code, body["status"], body["code"]) == (status, status, code), body
    assert body["request_id"] == answer["X-Request-Id"]
    assert body["detail"]
    return body


# --- idempotency -----------------------------------------------------------------------------------


def test_a_repeated_submit_is_one_job(as_user: Any, owner: Any, cluster: Any) -> None:
    client = as_user(owner)
    first = client.send("POST", "jobs", SUBMIT, Idempotency_Key="k1")
    again = client.send("POST", "jobs", SUBMIT, Idempotency_Key="k1")
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    assert "Idempotent-Replayed" not in first
    assert again["Idempotent-Replayed"] == "true"
    assert first["Location"] == f"/api/v1/jobs/{first.json()['uid']}"
    assert Job.objects.count() == 1


def test_the_same_key_with_another_body_is_refused(as_user: Any, owner: Any, cluster: Any) -> None:
    client = as_user(owner)
    client.send("POST", "jobs", SUBMIT, Idempotency_Key="k1")
    problem(client.send("POST", "jobs", {**SUBMIT, "nodes": 1}, Idempotency_Key="k1"), 422, "KeyReused")
    assert Job.objects.count() == 1


def test_a_refused_request_leaves_the_key_free(as_user: Any, owner: Any, cluster: Any) -> None:
    client = as_user(owner)
    problem(client.send("POST", "jobs", {**SUBMIT, "nodes": 99}, Idempotency_Key="k1"), 422, "InvalidInput")
    assert client.send("POST", "jobs", SUBMIT, Idempotency_Key="k1").status_code == 202


def test_another_persons_key_is_another_key(as_user: Any, owner: Any, admin: Any, cluster: Any) -> None:
    as_user(owner).send("POST", "jobs", SUBMIT, Idempotency_Key="k1")
    as_user(admin).send("POST", "jobs", SUBMIT, Idempotency_Key="k1")
    assert Job.objects.count() == 2


def test_spending_needs_a_key(as_user: Any, owner: Any, cluster: Any) -> None:
    problem(as_user(owner).send("POST", "jobs", SUBMIT), 400, "KeyRequired")


# --- versions --------------------------------------------------------------------------------------


def test_a_stale_if_match_changes_nothing(as_user: Any, admin: Any, team: Any) -> None:
    client = as_user(admin)
    tag = client.send("GET", "teams/nlp/quota")["ETag"]
    problem(client.send("PUT", "teams/nlp/quota", {"gpus": 1}), 428, "VersionRequired")
    assert client.send("PUT", "teams/nlp/quota", {"gpus": 128}, If_Match=tag).json()["gpus"] == 128
    problem(client.send("PUT", "teams/nlp/quota", {"gpus": 5}, If_Match=tag), 412, "StaleVersion")
    problem(client.send("PUT", "teams/nlp/quota", {"gpus": 5}, If_Match='"abc"'), 412, "StaleVersion")
    now = client.send("GET", "teams/nlp/quota").json()
    assert (now["gpus"], now["gpus_free"], now["version"]) == (128, 128, 2)


# --- lists -----------------------------------------------------------------------------------------


@pytest.fixture
def five(as_user: Any, owner: Any, cluster: Any, team: Any) -> Any:
    client = as_user(owner)
    for number in range(5):
        body = {**SUBMIT, "name": f"job-{number}", "nodes": 1, "gpus_per_node": 1}
        assert client.send("POST", "jobs", body, Idempotency_Key=f"k{number}").status_code == 202
    return client


def test_cursor_pages_walk_forward_and_back(five: Any) -> None:
    names: list[str] = []
    path = "jobs?limit=2"
    pages = []
    while path:
        body = five.send("GET", path).json()
        names += [j["name"] for j in body["results"]]
        pages.append(body)
        path = (body["next"] or "").removeprefix("/api/v1/")
    assert names == ["job-4", "job-3", "job-2", "job-1", "job-0"]
    back = five.send("GET", pages[-1]["previous"].removeprefix("/api/v1/")).json()
    assert [j["name"] for j in back["results"]] == ["job-2", "job-1"]
    assert five.send("GET", "jobs?with_count=1").json()["count"] == 5


def test_a_row_that_arrives_does_not_shift_the_pages(five: Any) -> None:
    first = five.send("GET", "jobs?limit=2").json()
    five.send("POST", "jobs", {**SUBMIT, "name": "late", "nodes": 1, "gpus_per_node": 1}, Idempotency_Key="late")
    second = five.send("GET", first["next"].removeprefix("/api/v1/")).json()
    assert [j["name"] for j in second["results"]] == ["job-2", "job-1"]


def test_a_cursor_of_another_list_is_refused(five: Any) -> None:
    cursor = five.send("GET", "jobs?limit=2").json()["next"].split("cursor=")[1].split("&")[0]
    for path in (
        f"jobs?limit=2&cursor={cursor}&phase=RUNNING",
        f"jobs?limit=2&sort=name&cursor={cursor}",
        f"findings?cursor={cursor}",
        "jobs?cursor=nonsense",
    ):
        assert "cursor" in problem(five.send("GET", path), 400, "BadQuery")["detail"]


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("phase=SLEEPING", "SLEEPING"),
        ("phase=RUNNING,SLEEPING", "SLEEPING"),
        ("colour=red", "colour"),
        ("sort=price", "price"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=ten", "limit"),
    ],
)
def test_an_unknown_parameter_or_value_is_a_400_that_names_it(five: Any, query: str, word: str) -> None:
    assert word in problem(five.send("GET", f"jobs?{query}"), 400, "BadQuery")["detail"]


def test_filters_narrow(five: Any) -> None:
    assert len(five.send("GET", "jobs?phase=PENDING,QUEUED&q=job-3").json()["results"]) == 1
    assert five.send("GET", "jobs?phase=RUNNING").json()["results"] == []


# --- bad input of a submit ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "pointer", "word"),
    [
        ({"nodes": 5}, "/nodes", "has 4 that fit"),
        ({"nodes": 0}, "/nodes", "from 1"),
        ({"nodes": "two"}, "/nodes", "valid integer"),
        ({"gpu_type": "b200"}, "/gpu_type", "has no b200; it has h100"),
        ({"gpus_per_node": 9}, "/gpus_per_node", "largest has 8"),
        ({"time_limit_min": 20_000}, "/time_limit_min", "allows 10080 min"),
        ({"time_limit_min": 0}, "/time_limit_min", "from 1"),
        ({"script": "x" * (1024 * 1024 + 1)}, "/script", "at most 1,048,576"),
        ({"script": ""}, "/script", "empty"),
        ({"script": "a\x00b"}, "/script", "Null characters"),
        ({"name": "a\nb"}, "/name", "one line of text"),
        ({"partition": "none"}, "/partition", "no partition none"),
        ({"environment": {"1X": "y"}}, "/environment/1X", "not a name"),
        ({"environment": {"QD_INGEST_TOKEN": "y"}}, "/environment/QD_INGEST_TOKEN", "not a name"),
        ({"environment": {"A": "x\ny"}}, "/environment/A", "one line"),
        ({"surprise": 1}, "/surprise", "unknown member"),
    ],
)
def test_a_bad_submit_names_the_field_and_changes_nothing(
    as_user: Any, owner: Any, cluster: Any, change: dict[str, Any], pointer: str, word: str
) -> None:
    body = problem(as_user(owner).send("POST", "jobs", {**SUBMIT, **change}, Idempotency_Key="k"), 422, "InvalidInput")
    assert pointer in [e["pointer"] for e in body["errors"]]
    assert word in json.dumps(body["errors"])
    assert Job.objects.count() == 0


def test_a_template_parameter_of_the_wrong_type(as_user: Any, owner: Any, cluster: Any) -> None:
    body = {**SUBMIT, "script": "", "template": "charlm"}
    for values, word in (
        ({"steps": "many"}, "whole number"),
        ({"steps": 10**9}, "from 1 to"),
        ({"steps": True}, "whole number"),
        ({"program": "a; rm -rf /"}, "path"),
        ({"nothing": 1}, "no parameter nothing"),
    ):
        answer = as_user(owner).send("POST", "jobs", {**body, "template_parameters": values}, Idempotency_Key="k")
        assert word in json.dumps(problem(answer, 422, "InvalidInput")["errors"])


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [(b"{", 400, "MalformedRequest"), (b"[]", 422, "InvalidInput"), (b"\xff", 400, "MalformedRequest")],
)
def test_a_body_that_is_not_an_object(as_user: Any, owner: Any, raw: bytes, status: int, code: str) -> None:
    answer = as_user(owner).post("/api/v1/jobs", raw, content_type="application/json")
    problem(answer, status, code)


def test_the_wrong_content_type_and_unknown_addresses_are_problems(as_user: Any, owner: Any) -> None:
    client = as_user(owner)
    problem(client.post("/api/v1/jobs", "x", content_type="text/plain"), 415, "UnsupportedMediaType")
    problem(client.send("GET", "no/such/place"), 404, "NotFound")
    problem(client.send("DELETE", "jobs"), 403, "Forbidden")


def test_rate_limits_tell_how_long_to_wait(as_user: Any, owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.core.cache import cache
    from rest_framework.settings import api_settings

    cache.clear()
    monkeypatch.setitem(api_settings.DEFAULT_THROTTLE_RATES, "read", "3/min")
    client = as_user(owner)
    answers = [client.send("GET", "whoami") for _ in range(4)]
    assert [a.status_code for a in answers] == [200, 200, 200, 429]
    assert answers[0]["RateLimit-Remaining"] == "2"
    assert int(answers[3]["Retry-After"]) >= 1
    problem(answers[3], 429, "TooManyRequests")
    cache.clear()


# --- ingest ------------------------------------------------------------------------------------------


def batch(*events: dict[str, Any], runner: str = "r1", clock_text: str = "") -> dict[str, Any]:
    return {
        "runner": {
            "id": runner,
            "version": "1",
            "node": "p5-1",
            "role": "batch",
            "clock": clock_text or clock.iso(clock.now()),
        },
        "events": [{"seq": i + 1, "at": clock.iso(clock.now()), **e} for i, e in enumerate(events)],
    }


def log(text: str, offset: int = 0) -> dict[str, Any]:
    return {"kind": "log", "data": {"stream": "stdout", "offset": offset, "size": len(text.encode()), "text": text}}


@pytest.fixture
def post(client: Any, job: Job) -> Any:
    attempt = job.attempts.get()

    def send(body: Any, token: str = "", uid: str = "") -> Any:
        return client.post(
            f"/api/v1/ingest/attempts/{uid or attempt.uid}/events",
            json.dumps(body),
            content_type="application/json",
            headers={"Authorization": f"Bearer {token or ingest_token(attempt.uid)}"},
        )

    return send


def test_a_batch_delivered_twice_is_stored_once(post: Any) -> None:
    body = batch(log("hello\n"), {"kind": "progress", "data": {"step": 1, "loss": 2.5}})
    for _ in range(2):
        assert post(body).json()["acknowledged_seq"] == 2
    assert LogChunk.objects.count() == 1
    assert ProgressPoint.objects.count() == 1


def test_two_runners_of_one_attempt_do_not_mix(post: Any) -> None:
    post(batch(log("a"), runner="r1"))
    assert post(batch(log("b"), runner="r2")).json()["acknowledged_seq"] == 1
    assert LogChunk.objects.count() == 2


def test_a_foreign_or_old_token_opens_nothing(post: Any, job: Job) -> None:
    problem(post(batch(log("x")), token="qdi_wrong"), 403, "IngestDenied")
    problem(post(batch(log("x")), token=ingest_token("att_other")), 403, "IngestDenied")
    problem(post(batch(log("x")), uid="att_other"), 403, "IngestDenied")
    Attempt.objects.update(phase="SUCCEEDED", ended_at=clock.now() - timedelta(hours=25))
    problem(post(batch(log("x"))), 410, "IngestExpired")
    assert LogChunk.objects.count() == 0


def test_the_ingest_token_opens_nothing_else(client: Any, job: Job) -> None:
    token = ingest_token(job.attempts.get().uid)
    assert client.get("/api/v1/whoami", headers={"Authorization": f"Bearer {token}"}).status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"runner": {}, "events": []},
        {"runner": {"id": 5}, "events": []},
        {"runner": {"id": "r"}, "events": "x"},
        {"runner": {"id": "r"}, "events": [{"seq": "1"}]},
        {"runner": {"id": "r"}, "events": [{"seq": 0}]},
        {"runner": {"id": "r"}, "events": [5]},
    ],
)
def test_a_batch_that_makes_no_sense_is_refused_whole(post: Any, body: Any) -> None:
    problem(post(body), 422, "IngestMalformed")


def test_one_unreadable_event_does_not_hold_up_the_others(post: Any) -> None:
    answer = post(
        batch(
            {"kind": "progress", "data": {"step": "x"}},
            {"kind": "surprise", "data": {}},
            {"kind": "log", "data": {"stream": "stdlog"}},
            {"kind": "checkpoint", "data": {"path": "/c", "files": 5}},
            log("fine"),
        )
    ).json()
    assert (answer["acknowledged_seq"], answer["rejected"]) == (5, [1, 2, 3, 4])
    assert LogChunk.objects.get().text == "fine"


def test_a_body_over_four_mib_is_refused_unread(client: Any, job: Job) -> None:
    answer = client.post("/api/v1/jobs", b"x" * (4 * 1024 * 1024 + 1), content_type="application/json")
    problem(answer, 413, "BodyTooLarge")


def test_bombs_are_stored_as_text(post: Any, job: Job) -> None:
    bomb = "<script>alert(1)</script>\x1b[31m\x1b]0;x\x07" + "A" * 30_000
    assert post(batch(log(bomb))).status_code == 200
    assert LogChunk.objects.get().text == bomb


def test_a_clock_that_is_off_is_corrected(post: Any, job: Job) -> None:
    off = clock.now() - timedelta(hours=3)
    event = {"kind": "progress", "data": {"step": 1, "loss": 1.0}, "at": clock.iso(off)}
    body = batch(event, clock_text=clock.iso(off) or "")
    assert post(body).status_code == 200
    assert abs((ProgressPoint.objects.get().at - clock.now()).total_seconds()) < 30
    ahead = clock.now() + timedelta(hours=3)
    event = {"kind": "progress", "data": {"step": 2, "loss": 1.0}, "at": clock.iso(ahead)}
    post(batch(event, runner="r9", clock_text=clock.iso(ahead) or ""))
    assert abs((ProgressPoint.objects.get(step=2).at - clock.now()).total_seconds()) < 30


def test_progress_moves_the_job_and_gives_an_eta(post: Any, job: Job) -> None:
    now = clock.now()
    events = [
        {
            "kind": "progress",
            "data": {"step": step, "total_steps": 100, "loss": 5 / step, "tokens_per_s": 10.0},
            "at": clock.iso(now - timedelta(seconds=(10 - step))),
        }
        for step in range(1, 11)
    ]
    post(batch(*events))
    job.refresh_from_db()
    assert (job.step, job.total_steps, job.tokens_per_s) == (10, 100, 10.0)
    assert job.eta_s == pytest.approx(90, abs=2)


def test_nan_and_infinity_are_not_numbers(post: Any, job: Job) -> None:
    body = json.dumps(batch({"kind": "progress", "data": {"step": 1, "loss": 1.0}})).replace("1.0", "NaN")
    answer = post(json.loads(body))
    assert answer.status_code in (200, 400)
    assert not ProgressPoint.objects.exclude(loss=None).exists()


def test_checkpoints_complete_in_progress_and_torn(post: Any, job: Job) -> None:
    def event(step: int, names: list[str]) -> dict[str, Any]:
        files = [{"name": n, "size": 10, "mtime": clock.iso(clock.now())} for n in names]
        return {"kind": "checkpoint", "data": {"path": f"/c/step-{step}", "step": step, "files": files, "facts": {}}}

    post(
        batch(
            event(1, ["__0_0.distcp", ".metadata"]),
            event(2, ["__0_0.distcp"]),
            event(3, ["__0_0.distcp", ".metadata"]),
            event(3, ["__0_0.distcp"]),
        )
    )
    found = {c.step: (c.state, c.reason) for c in job.series.checkpoints.all()}
    assert found[1][0] == "COMPLETE"
    assert found[2] == ("IN_PROGRESS", "1 shards but no .metadata")
    assert found[3][0] == "TORN"
    assert "it was complete and now" in found[3][1]


def test_a_limit_beyond_its_block_is_refused_with_what_fits_and_cut_on_request(
    as_user: Any, owner: Any, cluster: Any, team: Any
) -> None:
    make_block(cluster, team)
    body = {**SUBMIT, "time_limit_min": 600}
    with at(300):
        client = as_user(owner)
        shown = client.send("POST", "jobs/preview", body).json()
        assert (shown["accepted"], shown["time_limit_min"], shown["offered_limit_min"]) == (False, 600, 250)
        refused = problem(client.send("POST", "jobs", body, Idempotency_Key="k1"), 422, "InvalidInput")
        assert [(e["pointer"], e["code"]) for e in refused["errors"]] == [("/time_limit_min", "block-ends")]
        assert "at most 250 min fit from now" in refused["errors"][0]["detail"]
        taken = client.send("POST", "jobs", {**body, "trim": True}, Idempotency_Key="k2")
    assert (taken.status_code, taken.json()["time_limit_min"]) == (202, 250)


@pytest.mark.parametrize("option", ["--ntasks=²", "--mincpus=²", "--nodelist=p5-[1-²]"])
def test_a_digit_that_is_no_number_is_answered(as_user: Any, owner: Any, cluster: Any, option: str) -> None:
    whole = {**SUBMIT, "nodes": 1, "gpus_per_node": 0, "gpu_type": "", "slurm_options": [option]}
    assert as_user(owner).send("POST", "jobs/preview", whole).status_code in (200, 422)


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize("member", ["nodes", "gpus_per_node", "time_limit_min", "cpus_per_task", "memory_per_node_mib"])
def test_a_size_of_any_length_is_refused_by_its_name(
    as_user: Any, owner: Any, cluster: Any, member: str, gpus: int
) -> None:
    client = as_user(owner)
    whole = {**SUBMIT, "nodes": 1, "gpus_per_node": gpus}
    told = client.send("POST", "jobs/preview", {**whole, member: 10**30}).json()
    assert f"/{member}" in [p["pointer"] for p in told["problems"]]
    told = client.send("POST", "jobs/preview", {**whole, "parts": [{"gpus_per_node": gpus, member: 10**30}]}).json()
    assert f"/parts/0/{member}" in [p["pointer"] for p in told["problems"]]
    answer = client.send("POST", "jobs", {**whole, member: 10**30}, Idempotency_Key="long")
    assert f"/{member}" in [e["pointer"] for e in problem(answer, 422, "InvalidInput")["errors"]]


def test_a_script_is_read_without_being_submitted(as_user: Any, owner: Any) -> None:
    script = "#!/bin/bash\r\n#SBATCH -N 2 -C h100\r\n#SBATCH --array=1-9\r\ntrue\r\n"
    answer = as_user(owner).send("POST", "jobs/import", {"script": script})
    assert answer.status_code == 200
    body = answer.json()
    wanted = {"name": "job", "nodes": 2, "gpus_per_node": 0, "time_limit_min": 1440, "array": "1-9"}
    assert (body["members"], body["slurm_options"]) == (wanted, ["--constraint=h100"])
    assert (body["problems"], len(body["remarks"])) == ([], 2)
    refused = as_user(owner).send("POST", "jobs/import", {"script": script.replace("--array=1-9", "--uid=0")}).json()
    assert "line 3" in refused["problems"][0]["detail"]
    assert Job.objects.count() == 0


def test_a_member_is_another_way_to_write_an_option(as_user: Any, owner: Any, cluster: Any) -> None:
    client = as_user(owner)
    body = {**SUBMIT, "constraint": "h100&ib", "begin": "tomorrow", "slurm_options": ["--qos=high"]}
    answer = client.send("POST", "jobs", body, Idempotency_Key="k1")
    assert answer.json()["slurm_options"] == ["--qos=high", "--constraint='h100&ib'", "--begin=tomorrow"]
    found = problem(client.send("POST", "jobs/preview", {**body, "qos": "low", "nodelist": "a b"}), 422, "InvalidInput")
    assert [one["pointer"] for one in found["errors"]] == ["/qos", "/nodelist"]
    # What an option of the list says wrong is told by its member too.
    wrong = {**SUBMIT, "slurm_options": ["--licenses=matlab:many"]}
    found = problem(client.send("POST", "jobs", wrong, Idempotency_Key="k2"), 422, "InvalidInput")
    assert [one["pointer"] for one in found["errors"]][:1] == ["/licenses"]
