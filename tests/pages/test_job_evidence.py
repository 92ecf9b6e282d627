"""Metrics, events and "Why slow?" of a job: what they show, in whose time, and that the API says the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.audit.models import Event
from apps.checkpoints.models import Checkpoint
from apps.core import clock
from apps.health.models import Finding, Gpu, HealthEvent
from apps.jobs.evidence import happenings_of, slow_reasons_of, step_times
from apps.jobs.models import ProgressPoint
from apps.jobs.selectors import attempts_of, current_attempt, nodes_of
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]


@pytest.fixture
def running(site: DemoRows, db: None) -> Any:
    """A job on four nodes that recovered once and runs at its usual pace."""
    job = site.jobs["llama-70b-pretrain"]
    attempt = current_attempt(job)
    Checkpoint.objects.filter(attempt_uid=attempt.uid).update(first_seen_at=clock.now(), changed_at=clock.now())
    Finding.objects.filter(node__in=nodes_of(job, attempt)).update(phase="RESOLVED")
    ProgressPoint.objects.filter(attempt=attempt, pk=attempt.progress_points.last().pk).update(at=clock.now())
    return job


def page(client: Client, job: Any, name: str = "job", query: str = "") -> str:
    answer = client.get(reverse(name, args=[job.uid]) + query)
    assert answer.status_code == 200
    return str(answer.content.decode())


def test_why_slow_is_shown_only_when_there_is_something_to_say(sign_in: SignIn, running: Any) -> None:
    assert slow_reasons_of(running) == []
    assert "Why slow?" not in page(sign_in("owner"), running)
    node = nodes_of(running, current_attempt(running))[0]
    Finding.objects.create(node=node, source="xid", code="63", title="XID 63", severity="watch")
    Gpu.objects.filter(node__in=nodes_of(running, current_attempt(running))).delete()
    for index in range(8):
        Gpu.objects.create(
            node=node, index=index, uuid=f"u{index}", sm_active=0.2 if index == 5 else 0.9, temperature_c=60
        )
    attempt = current_attempt(running)
    late = attempt.progress_points.order_by("-id").values_list("pk", flat=True)[:10]
    ProgressPoint.objects.filter(pk__in=list(late)).update(tokens_per_s=200_000)
    text = page(sign_in("owner"), running)
    assert "Why slow?" in text
    assert f"XID 63 is open on {node.name}" in text
    assert re.search(rf"GPU 5 of {node.name} works at 20%, the others at \d\d%", text)
    assert "200,000 tokens/s now" in text
    assert "왜 느린가?" in page(sign_in("owner", "ko"), running)
    from apps.jobs.api import JobDetailSerializer

    told = JobDetailSerializer(running).data["slow"]
    assert [reason["code"] for reason in told] == ["Finding", "BelowMedian", "IdleGpu"]


def test_a_job_that_does_not_run_is_not_slow(site: DemoRows, db: None) -> None:
    for name in ("baseline-1b", "tokenizer-sweep", "sft-instruct-v3"):
        assert slow_reasons_of(site.jobs[name]) == []


def test_step_times_are_within_one_attempt(running: Any) -> None:
    points = list(ProgressPoint.objects.filter(attempt__job=running).order_by("id"))
    took = step_times(points)
    first = attempts_of(running)[1].progress_points.first()
    assert first.step not in took
    assert min(took.values()) > 0
    a, b = points[0], points[1]
    assert took[b.step] == pytest.approx((b.at - a.at).total_seconds() / (b.step - a.step))


def test_metrics_show_curves_readings_and_the_table(sign_in: SignIn, running: Any, site: DemoRows) -> None:
    text = page(sign_in("owner"), running, "job-metrics")
    for plot in ("loss", "tokens_per_s", "step_s"):
        assert f'data-plot="{plot}"' in text
    for node in nodes_of(running, current_attempt(running)):
        assert node.name in text
    curve = sign_in("owner").get(reverse("job-curve", args=[running.uid])).json()
    assert len(curve["step_s"]) == len(curve["steps"])
    assert any(curve["step_s"])
    ended = page(sign_in("owner"), site.jobs["baseline-1b"], "job-metrics")
    assert "is not this job" in ended


def test_events_are_those_of_its_time_and_can_be_filtered(sign_in: SignIn, running: Any) -> None:
    node = nodes_of(running, current_attempt(running))[0]
    inside, before = clock.now() - timedelta(minutes=3), running.created_at - timedelta(days=2)
    for at, word in ((inside, "within"), (before, "before")):
        Event.objects.create(object_type="node", object_uid=node.uid, kind="Odd", text=f"node-{word}", at=at)
        Event.objects.create(
            object_type="cluster", object_uid=running.cluster.uid, kind="Odd", text=f"cluster-{word}", at=at
        )
        HealthEvent.objects.create(node=node, gpu_index=2, source="xid", code="31", text=f"fault-{word}", at=at)
    Event.objects.create(object_type="node", object_uid="node_other", kind="Odd", text="node-foreign", at=inside)
    text = page(sign_in("owner"), running, "job-events")
    for word in ("node-within", "cluster-within", "fault-within", "job.submit"):
        assert word in text
    for word in ("node-before", "cluster-before", "fault-before", "node-foreign"):
        assert word not in text
    only = page(sign_in("owner"), running, "job-events", "?source=health")
    assert "fault-within" in only
    assert "node-within" not in only
    assert "source=health&quot;" in only or 'events?source=health"' in only
    times = [h.at for h in happenings_of(running, attempts_of(running))]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("query", ["?source=gossip", "?colour=red"])
def test_what_events_do_not_know_is_refused(sign_in: SignIn, running: Any, query: str) -> None:
    assert sign_in("owner").get(reverse("job-events", args=[running.uid]) + query).status_code == 400


@pytest.mark.parametrize("name", ["job-metrics", "job-events"])
def test_who_may_look(sign_in: SignIn, running: Any, name: str) -> None:
    assert sign_in("member").get(reverse(name, args=[running.uid])).status_code == 200
    assert sign_in("outsider").get(reverse(name, args=[running.uid])).status_code == 404


def test_the_ledger_is_asked_once_a_page(sign_in: SignIn, running: Any, django_assert_max_num_queries: Any) -> None:
    client = sign_in("owner")
    for name, most in (("job", 27), ("job-metrics", 24), ("job-events", 26)):
        with django_assert_max_num_queries(most) as seen:
            page(client, running, name)
        asked = [q for q in seen.captured_queries if '"costs_posting"' in q["sql"] and "SUM(" in q["sql"].upper()]
        assert len([q for q in asked if running.uid in q["sql"]]) == 1, name
