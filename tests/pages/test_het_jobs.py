"""Heterogeneous jobs on the pages and in the API, and the exact request of a dry run."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from apps.clusters.models import Cluster
from apps.jobs.models import Job
from tests.demo_jobs import _parts
from tests.demo_rows import DemoRows
from tests.pages.test_new_job import filled, filling
from worker.exact_request import exact_request as told
from worker.jobscript import submit_request
from worker.providers.slurm import encode

__all__ = ["filled"]
SignIn = Callable[..., Client]
SCRIPT = """#!/bin/bash
#SBATCH --job-name=rl --nodes=1 --gpus-per-node=h100:4 --time=90 --mem=64G
#SBATCH hetjob
#SBATCH --nodes=1 --gpus-per-node=h100:2 --ntasks-per-node=16 --constraint=fast
srun ./learn : ./act
"""
LINE = "--nodes=1 --gpus-per-node=h100:2 --ntasks-per-node=16 --mem=65536M --constraint=fast"


def body(site: DemoRows, **changes: Any) -> dict[str, Any]:
    known = {"team": "nlp", "cluster": site.clusters["ada"].uid, "name": "rl", "script": "#!/bin/bash\ntrue\n"}
    size = {"nodes": 1, "gpus_per_node": 4, "gpu_type": "h100", "time_limit_min": 90}
    return {**known, **size, **changes}


def post(client: Client, path: str, data: dict[str, Any]) -> Any:
    return client.post(f"/api/v1/{path}", json.dumps(data), content_type="application/json")


def test_an_import_fills_the_parts_and_a_submit_keeps_them(
    sign_in: SignIn, site: DemoRows, filled: dict[str, str]
) -> None:
    client = sign_in("owner")
    values = filling(client.post("/jobs/new/read", {**filled, "script": SCRIPT, "what": "script", "seen": "{}"}))
    assert values["parts"] == LINE
    sent = {**filled, "script": SCRIPT, "name": "rl", "gpus_per_node": "4", "time_limit": "1:30:00", "parts": LINE}
    shown = client.post("/jobs/new/preview", sent).content.decode()
    assert "Job parts" in shown
    assert 'id="exact-in"' in shown
    answer = client.post("/jobs/new", sent)
    assert answer.status_code == 302, answer.content.decode()
    job = Job.objects.get(name="rl")
    assert (job.gpus, job.nodes_in_all) == (6, 2)
    assert job.parts[0]["slurm_options"] == ["--constraint=fast"]
    assert Decimal(job.parts[0]["usd_per_gpu_hour"]) > 0
    again = client.get(f"/jobs/new?from={job.uid}").content.decode()
    assert "--constraint=fast" in again
    spec = client.get(f"/api/v1/jobs/{job.uid}/spec").json()
    assert spec["parts"][0]["tasks_per_node"] == 16
    assert "usd_per_gpu_hour" not in spec["parts"][0]


def test_a_script_without_parts_takes_them_out_again(sign_in: SignIn, site: DemoRows, filled: dict[str, str]) -> None:
    sent = {**filled, "parts": LINE, "what": "script", "seen": json.dumps({"parts": LINE})}
    assert filling(sign_in("owner").post("/jobs/new/read", sent))["parts"] == ""
    untouched = {**sent, "seen": "{}"}
    assert "parts" not in filling(sign_in("owner").post("/jobs/new/read", untouched)), "typed by hand"


def test_a_line_that_is_no_part_is_told_at_the_field(sign_in: SignIn, site: DemoRows, filled: dict[str, str]) -> None:
    answer = sign_in("owner").post("/jobs/new", {**filled, "parts": f"{LINE}\n--nodes=none"})
    assert answer.status_code == 422
    text = answer.content.decode()
    assert "part 2:" in text
    assert "--nodes" in text
    answer = sign_in("owner").post("/jobs/new", {**filled, "parts": "--nodes=77"})
    assert "part 1: 77 nodes asked for" in answer.content.decode()
    assert not Job.objects.filter(name="try-it").exists()


def test_the_table_of_parts(sign_in: SignIn, site: DemoRows) -> None:
    job = _parts(site)
    text = sign_in("owner").get(f"/jobs/{job.uid}/parts").content.decode()
    assert "7300" in text
    assert "7301" in text
    assert "actors" in text
    assert "Job parts" in sign_in("owner").get(f"/jobs/{job.uid}").content.decode()
    assert "--job-name=actors" in sign_in("owner").get(f"/jobs/{job.uid}/config").content.decode()
    rows = sign_in("owner").get(f"/api/v1/jobs/{job.uid}/parts").json()["results"]
    assert [(r["offset"], r["gpus"], r["state"], r["scheduler_id"]) for r in rows] == [
        (0, 4, "RUNNING", "7300"),
        (1, 2, "RUNNING", "7301"),
    ]
    first, second = (Decimal(row["usd"]) for row in rows)
    assert second > 0
    assert abs(first - 2 * second) < Decimal("0.01"), "twice the GPUs, twice the money"
    plain = Job.objects.exclude(pk=job.pk).filter(team__slug="nlp").first()
    assert plain is not None
    assert sign_in("owner").get(f"/api/v1/jobs/{plain.uid}/parts").json()["results"] == []
    assert "Job parts" not in sign_in("owner").get(f"/jobs/{plain.uid}").content.decode()


def test_only_who_sees_the_job_sees_its_parts(sign_in: SignIn, site: DemoRows) -> None:
    job = _parts(site)
    assert sign_in("outsider").get(f"/jobs/{job.uid}/parts").status_code == 404
    assert sign_in("outsider").get(f"/api/v1/jobs/{job.uid}/parts").status_code == 404
    assert Client().get(f"/api/v1/jobs/{job.uid}/parts").status_code in (401, 403)


def test_parts_by_the_api_are_checked_by_name(sign_in: SignIn, site: DemoRows) -> None:
    client = sign_in("owner")
    shown = post(client, "jobs/preview", body(site, parts=[{"gpus_per_node": 2}])).json()
    assert shown["accepted"], shown["problems"]
    assert (shown["gpus"], shown["parts"][0]["gpus_per_node"]) == (6, 2)
    refused = post(client, "jobs/preview", body(site, parts=[{"nodes": 99}])).json()
    assert [p["pointer"] for p in refused["problems"]] == ["/parts/0/nodes"]
    assert refused["request"] is None
    wrong = post(client, "jobs/preview", body(site, parts=[{"nodes": "many"}]))
    assert wrong.status_code == 422
    assert "parts" in wrong.content.decode()
    read = post(client, "jobs/import", {"script": SCRIPT}).json()
    assert read["problems"] == []
    assert read["members"]["parts"][0]["gpu_type"] == "h100"


@pytest.mark.parametrize("version", ["v0.0.38", "v0.0.42", "v0.0.45", ""])
@pytest.mark.parametrize("more", [{}, {"array": "0-3%2"}, {"parts": [{"gpus_per_node": 2}]}])
def test_the_dry_run_shows_what_would_be_sent(
    sign_in: SignIn, site: DemoRows, version: str, more: dict[str, Any]
) -> None:
    Cluster.objects.filter(pk=site.clusters["ada"].pk).update(observed_api_version=version)
    client = sign_in("owner")
    shown = post(client, "jobs/preview", body(site, **more)).json()["request"]
    assert (shown["method"], shown["is_seen"]) == ("POST", bool(version))
    assert shown["path"] == f"/slurm/{version or 'v0.0.45'}/job/submit"
    assert shown["headers"]["X-SLURM-USER-TOKEN"] == "…"
    assert Job.objects.filter(name="rl").count() == 0
    # The same job, submitted, is sent as was shown but for the numbers that it then has.
    made = client.post(
        "/api/v1/jobs",
        json.dumps(body(site, **more)),
        content_type="application/json",
        headers={"Idempotency-Key": "k1"},
    )
    assert made.status_code == 202, made.content.decode()
    job = Job.objects.select_related("cluster", "team").get(name="rl")
    attempt = job.attempts.get()
    sent = encode.submit(submit_request(job, attempt), version or "v0.0.45")
    text = json.dumps(sent, ensure_ascii=False)
    token = submit_request(job, attempt).environment["QD_INGEST_TOKEN"]
    text = text.replace(token, "…").replace(attempt.uid, "NEW").replace(job.uid, "NEW")
    assert json.loads(text) == shown["body"]
    assert token not in json.dumps(told(job, attempt))


def test_the_page_shows_the_request_when_it_is_opened(sign_in: SignIn, site: DemoRows, filled: dict[str, str]) -> None:
    client = sign_in("owner")
    text = client.post("/jobs/new/request", filled).content.decode()
    assert "/job/submit" in text
    assert "X-SLURM-USER-TOKEN: …" in text
    assert "&quot;script&quot;" in text
    assert "There is none" in client.post("/jobs/new/request", {**filled, "nodes": "99"}).content.decode()
    assert Client().post("/jobs/new/request", filled).status_code in (302, 403)
    Cluster.objects.update(observed_api_version="v0.0.38")
    odd = client.post("/jobs/new/request", {**filled, "slurm_options": "--tres-bind=gres/gpu:none"}).content.decode()
    assert "REST cannot do --tres-bind" in odd or "/slurm/v0.0.38/job/submit" in odd
