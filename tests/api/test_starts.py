"""The expected start of a waiting job by the API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from apps.core import clock
from apps.jobs.models import Attempt, Job, StartPrediction

pytestmark = pytest.mark.django_db


@pytest.fixture
def waiting(job: Job) -> Job:
    """The job waits in the queue, and the worker has said when it starts."""
    now = clock.now()
    Attempt.objects.update(phase="QUEUED", scheduler_id="100", observed_state="PENDING")
    Job.objects.update(phase="QUEUED")
    why = {"reason": "Priority", "partition": "gpu", "ahead": 3, "missing": 2, "unusable": 1, "could_start_with": 1}
    StartPrediction.objects.create(
        cluster=job.cluster,
        attempt=job.attempts.get(),
        low_at=now + timedelta(minutes=10),
        p50_at=now + timedelta(minutes=40),
        p90_at=now + timedelta(minutes=90),
        why={**why, "blockers": ["812", "815"], "freed_in_s": 2400.0},
    )
    return Job.objects.get(pk=job.pk)


def test_a_waiting_job_says_when_it_starts_and_what_it_waits_for(waiting: Job, as_user: Any, owner: Any) -> None:
    for path, pick in ((f"jobs/{waiting.uid}", lambda body: body), ("jobs", lambda body: body["results"][0])):
        told = pick(as_user(owner).send("GET", path).json())["expected_start"]
        assert told["p50_at"] < told["p90_at"]
        assert told["waits_for"][:2] == ["3 jobs are ahead in gpu", "waits for 2 more nodes in gpu"]
        assert told["waits_for"][2].startswith("jobs 812 and 815 end about ")
        assert told["waits_for"][3:] == ["1 node is drained, down or reserved", "would start now with 1 node"]
        assert (told["starts"], told["inside"]) == (0, 0)


def test_a_job_that_runs_expects_no_start(waiting: Job, as_user: Any, owner: Any) -> None:
    Attempt.objects.update(phase="RUNNING", started_at=clock.now())
    Job.objects.update(phase="RUNNING")
    assert as_user(owner).send("GET", f"jobs/{waiting.uid}").json()["expected_start"] is None
    answer = as_user(owner).send("GET", f"jobs/{waiting.uid}/what-if").json()
    assert (answer["p50_at"], answer["sentence"]) == (None, "It does not wait any more.")


def test_what_if_answers_and_refuses_nonsense(waiting: Job, as_user: Any, owner: Any, outsider: Any) -> None:
    answer = as_user(owner).send("GET", f"jobs/{waiting.uid}/what-if?nodes=1&time_limit_min=10")
    assert answer.status_code == 200
    assert answer.json()["sentence"]
    for query in ("nodes=0", "nodes=x", "time_limit_min=99999999", "partition=nowhere", "gpus=4"):
        assert as_user(owner).send("GET", f"jobs/{waiting.uid}/what-if?{query}").status_code == 400
    assert as_user(outsider).send("GET", f"jobs/{waiting.uid}/what-if").status_code == 404
