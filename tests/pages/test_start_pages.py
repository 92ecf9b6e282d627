"""When will it start: the panel of a waiting job, "what if" as one types, and the list."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import clock
from apps.jobs.models import Attempt, Job
from apps.jobs.start_models import StartPrediction
from tests.demo_rows import DemoRows
from tests.demo_starts import demo_starts

SignIn = Callable[..., Client]
pytestmark = pytest.mark.django_db


@pytest.fixture
def waiting(site: DemoRows, db: None) -> Job:
    demo_starts(site)
    return Job.objects.filter(phase="QUEUED", team=site.teams["nlp"], attempts__predictions__isnull=False).distinct()[0]


def ask(client: Client, job: Job, **values: Any) -> str:
    names = {f"what-if-{name}": value for name, value in values.items()}
    answer = client.get(reverse("job-what-if", args=[job.uid]), names)
    assert answer.status_code == 200
    return str(answer.content.decode())


def test_a_waiting_job_says_what_it_waits_for_and_when_it_starts(sign_in: SignIn, waiting: Job) -> None:
    text = sign_in("owner").get(reverse("job", args=[waiting.uid])).content.decode()
    for words in ("When will it start?", "3 jobs are ahead", "jobs 812 and 815 end about", "of the last"):
        assert words in text
    korean = sign_in("owner", "ko").get(reverse("job", args=[waiting.uid])).content.decode()
    assert "언제 시작합니까?" in korean
    live = sign_in("owner").get(reverse("job", args=[waiting.uid]), headers={"HX-Request": "true"}).content.decode()
    assert 'id="expected-start"' in live
    assert "what-if-nodes" not in live, "what someone types is not swapped away"
    assert "starts in" in sign_in("owner").get(reverse("jobs")).content.decode()


def test_what_is_said_of_the_start_follows_the_job(sign_in: SignIn, waiting: Job) -> None:
    address, poll = reverse("job", args=[waiting.uid]), {"HX-Request": "true"}
    StartPrediction.objects.all().delete()
    client = sign_in("owner")
    assert "It has just joined the queue" in client.get(address).content.decode()
    assert 'id="expected-start"' in client.get(address, headers=poll).content.decode()
    Attempt.objects.filter(job=waiting).update(phase="RUNNING", started_at=clock.now())
    Job.objects.filter(pk=waiting.pk).update(phase="RUNNING")
    live = client.get(address, headers=poll).content.decode()
    assert '<div id="job-start" hx-swap-oob="true"></div>' in live
    assert "It does not wait any more." in ask(client, waiting, nodes=1, time_limit="60", partition="")


def test_what_if_is_answered_at_once_and_nonsense_is_told(sign_in: SignIn, waiting: Job) -> None:
    client = sign_in("owner")
    began = time.monotonic()
    answer = ask(client, waiting, nodes=1, time_limit="0:10:00", partition="")
    assert time.monotonic() - began < 1.5
    assert "start" in answer
    assert "Nodes:" in ask(client, waiting, nodes=0, time_limit="1:00:00", partition="")
    assert "Time limit:" in ask(client, waiting, nodes=1, time_limit="soon", partition="")
    assert "Partition:" in ask(client, waiting, nodes=1, time_limit="60", partition="nowhere")


def test_another_team_s_job_answers_nothing(sign_in: SignIn, waiting: Job) -> None:
    assert sign_in("outsider").get(reverse("job-what-if", args=[waiting.uid])).status_code == 404


def test_a_running_job_has_no_such_panel(sign_in: SignIn, site: DemoRows) -> None:
    running = site.jobs["llama-70b-pretrain"]
    client = sign_in("owner")
    assert "When will it start?" not in client.get(reverse("job", args=[running.uid])).content.decode()
    assert "does not wait any more" in ask(client, running, nodes=1, time_limit="60")
