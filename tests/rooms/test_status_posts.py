"""Status posts of training programs: Kubeflow's shape, one token one attempt, and figures that make no sense."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import clock
from apps.jobs.ingest import events_take, ingest_token
from apps.jobs.models import Attempt, Job, ProgressPoint
from apps.jobs.progress_selectors import job_utilisation

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(job: Job) -> Attempt:
    attempt: Attempt = job.attempts.get()
    return attempt


def post(client: Client, attempt: Attempt, body: Any, token: str = "") -> Any:
    return client.post(
        f"/api/v1/ingest/attempts/{attempt.uid}/status",
        body,
        content_type="application/json",
        headers={"Authorization": f"Bearer {token or ingest_token(attempt.uid)}"},
    )


def status(**members: Any) -> dict[str, Any]:
    return {"trainerStatus": members}


def metrics(**named: Any) -> list[dict[str, str]]:
    return [{"name": name, "value": str(value)} for name, value in named.items()]


def test_a_status_becomes_step_curve_and_time_left(client: Client, job: Job, attempt: Attempt) -> None:
    answer = post(
        client,
        attempt,
        status(
            progressPercentage=45,
            estimatedRemainingSeconds=7200,
            metrics=metrics(global_step=4500, max_steps=10_000, train_loss=2.31, lr=3e-4, accuracy=0.71, phase="x"),
            lastUpdatedTime=clock.iso(clock.now()),
        ),
    )
    assert answer.status_code == 200
    job.refresh_from_db()
    assert (job.percent, job.step, job.total_steps, job.loss, job.eta_s) == (45, 4500, 10_000, 2.31, 7200.0)
    point = ProgressPoint.objects.get()
    assert (point.learning_rate, point.metrics) == (3e-4, {"accuracy": 0.71})


def test_a_percentage_alone_is_enough(client: Client, job: Job, attempt: Attempt) -> None:
    assert post(client, attempt, status(progressPercentage=7)).status_code == 200
    job.refresh_from_db()
    assert (job.percent, job.step) == (7, None)
    assert not ProgressPoint.objects.exists()


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/trainerStatus"),
        ([1], "/trainerStatus"),
        (status(progressPercentage=101), "/trainerStatus/progressPercentage"),
        (status(progressPercentage="45"), "/trainerStatus/progressPercentage"),
        (status(estimatedRemainingSeconds=-1), "/trainerStatus/estimatedRemainingSeconds"),
        (status(metrics="loss=1"), "/trainerStatus/metrics"),
        (status(metrics=[{"value": "1"}]), "/trainerStatus/metrics/0/name"),
    ],
)
def test_what_makes_no_sense_is_named(client: Client, job: Job, attempt: Attempt, body: Any, pointer: str) -> None:
    answer = post(client, attempt, body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == pointer
    job.refresh_from_db()
    assert job.progress_at is None


def test_odd_figures_are_passed_over(client: Client, job: Job, attempt: Attempt) -> None:
    odd = metrics(loss="NaN", grad_norm="inf", step="4.5", total_steps="1e30")
    assert post(client, attempt, status(metrics=metrics(step="1e30"))).status_code == 200
    assert post(client, attempt, status(progressPercentage=3, metrics=odd)).status_code == 200
    assert not ProgressPoint.objects.exists()


def test_the_token_of_another_attempt_opens_nothing(client: Client, attempt: Attempt) -> None:
    assert post(client, attempt, status(progressPercentage=3), token=ingest_token("att_other")).status_code == 403


def test_the_time_left_counts_pauses_once(job: Job, attempt: Attempt) -> None:
    now = clock.now() - timedelta(hours=1)
    events, at = [], 0.0
    for step in range(1, 51):
        at += 10 + (100 if step % 10 == 0 else 0)
        data = {"step": step, "total_steps": 100, "loss": 1.0}
        events.append({"seq": step, "kind": "progress", "at": clock.iso(now + timedelta(seconds=at)), "data": data})
    events_take(attempt, {"id": "r1", "role": "batch"}, events)
    job.refresh_from_db()
    assert job.eta_s == pytest.approx(50 * 10 + 5 * 100, rel=0.05)


def test_figures_of_one_gpu_count_for_all_and_make_the_utilisation(job: Job, attempt: Attempt) -> None:
    data = {"step": 1, "tokens_per_gpu_s": 5000.0, "model": {"parameters": 7e9}, "grad_norm": 0.5}
    events_take(attempt, {"id": "r1", "role": "batch"}, [{"seq": 1, "kind": "progress", "data": data}])
    Job.objects.filter(pk=job.pk).update(gpu_type="h100")
    job.refresh_from_db()
    assert job.tokens_per_s == 5000.0 * job.gpus
    use = job_utilisation(job)
    assert use is not None
    assert use.mfu == pytest.approx(5000 * 42e9 / 989e12)


def test_the_size_of_a_model_is_said_on_the_page_and_by_the_api(client: Client, job: Job, owner: Any) -> None:
    client.force_login(owner)
    form = {"billions": "7", "layers": "32", "hidden": "4096", "sequence": "4096", "precision": "bf16"}
    assert client.post(reverse("job-model", args=[job.uid]), form).status_code == 302
    job.refresh_from_db()
    assert job.model_facts == {"parameters": 7e9, "layers": 32, "hidden": 4096, "sequence": 4096, "precision": "bf16"}
    address = f"/api/v1/jobs/{job.uid}/model"
    assert client.get(address).json()["flops_per_token"] == 42e9 + 12 * 32 * 4096 * 4096
    answer = client.put(address, {"parameters": -1}, content_type="application/json")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/parameters"
    assert client.put(address, {"parameters": 1e9}, content_type="application/json").json()["flops_per_token"] == 6e9


def test_half_a_character_loses_no_batch(job: Job, attempt: Attempt) -> None:
    data = {"stream": "stdout", "offset": 0, "size": 3, "text": "a\ud800b"}
    receipt = events_take(attempt, {"id": "r1", "role": "batch"}, [{"seq": 1, "kind": "log", "data": data}])
    assert receipt.acknowledged_seq == 1
    assert attempt.log_chunks.get().text == "a?b"
