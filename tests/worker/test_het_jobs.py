"""A heterogeneous job through the portal: submitted once, followed by its first part, charged for every part."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine

from apps.clusters.models import Cluster
from apps.core import clock
from apps.core.errors import InvalidInput
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.states import Unit
from apps.intents.services import intent_ask
from apps.jobs.action_rules import wish_of
from apps.jobs.action_services import job_act
from apps.jobs.models import Attempt, Job, JobTemplate
from apps.jobs.part_selectors import parts_shown
from apps.jobs.queue_models import QueueEntry
from apps.jobs.selectors import job_sums
from apps.jobs.services import job_preview, job_stop, job_submit
from tests.conftest import actor_of
from tests.worker.fakes import Crash, FakeScheduler
from tests.worker.test_arrays import fresh, last, look
from tests.worker.test_outside_jobs import place, row
from tests.worker.test_outside_jobs import run as run_outside
from worker.collectors import outside
from worker.jobscript import submit_request
from worker.providers.values import SubmitPart

__all__ = ["place"]
pytestmark = pytest.mark.django_db

PART = {"nodes": 1, "gpus_per_node": 2, "tasks_per_node": 16, "slurm_options": ["--constraint=fast"]}


@pytest.fixture
def het(team: Any, owner: Any, cluster: Any, spec: Any, work: Any, scheduler: FakeScheduler) -> Job:
    """A node with 8 GPUs and one with 2, for an hour."""
    given = replace(spec, nodes=1, gpus_per_node=8, time_limit_min=60, parts=[PART])
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    work("job.reconcile")
    return job


def run(scheduler: FakeScheduler) -> None:
    scheduler.run("100", ["p5-1"])
    scheduler.run("101", ["p5-2"])


def test_all_parts_are_held_and_sent_in_one_submit(het: Job, scheduler: FakeScheduler) -> None:
    assert (het.gpus, het.nodes_in_all) == (10, 2)
    assert standing_of(het.team, Unit.GPUS).held == 10
    assert job_sums(het).held == 10 * het.usd_per_gpu_hour
    assert scheduler.calls.counts["submit"] == 1
    assert scheduler.requests["100"].parts == (
        SubmitPart("", het.partition, 1, 2, "", 16, 1, 0, 0, ("--constraint=fast",)),
    )


def test_a_part_is_held_by_its_own_limit_and_price(team: Any, owner: Any, cluster: Any, spec: Any) -> None:
    given = replace(spec, nodes=1, gpus_per_node=8, time_limit_min=60, parts=[{**PART, "time_limit_min": 30}])
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert preview.problems == ()
    assert (preview.gpus, preview.gpu_hours) == (10, Decimal(9))
    assert preview.usd == 9 * preview.usd_per_gpu_hour


def test_it_runs_with_all_its_nodes_and_every_row_is_its_own(het: Job, scheduler: FakeScheduler, tick: Any) -> None:
    run(scheduler)
    look(het, tick)
    assert fresh(het).phase == "RUNNING"
    assert last(het).nodes == ["p5-1", "p5-2"]
    rows = QueueEntry.objects.order_by("het_offset")
    assert [(row.het_offset, row.attempt_id) for row in rows] == [(0, last(het).pk), (1, last(het).pk)]
    assert Job.objects.count() == 1


def test_every_part_is_charged_for_its_time(het: Job, scheduler: FakeScheduler, tick: Any) -> None:
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        run(scheduler)
        look(het, tick)
        clockwork.shift(timedelta(minutes=10))
        # Someone ended the second part alone.
        scheduler.end("101", "CANCELLED")
        look(het, tick)
        clockwork.shift(timedelta(minutes=20))
        scheduler.end("100", "COMPLETED", 0)
        look(het, tick)
    assert fresh(het).phase == "SUCCEEDED"
    hours = Decimal(8 * 30 + 2 * 10) / 60
    assert abs(job_sums(het).charged - hours * het.usd_per_gpu_hour) < Decimal("0.001")
    assert standing_of(het.team, Unit.GPUS).held == 0
    assert standing_of(het.team, Unit.USD).held == 0
    assert ledger_check().is_balanced


def test_killed_between_submit_and_save_there_is_one(het: Job, scheduler: FakeScheduler) -> None:
    assert list(scheduler.jobs) == ["100", "101"]


@pytest.mark.parametrize("after", [False, True])
def test_a_worker_that_dies_around_the_submit_sends_it_once(
    team: Any, owner: Any, cluster: Any, spec: Any, work: Any, scheduler: FakeScheduler, tick: Any, after: bool
) -> None:
    given = replace(spec, nodes=1, gpus_per_node=8, time_limit_min=60, parts=[PART])
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
        (scheduler.calls.crash_after if after else scheduler.calls.fail_next)["submit"] = Crash()
        with pytest.raises(Crash):
            work("job.reconcile")
        clockwork.shift(timedelta(seconds=130))
        work("job.reconcile")
        look(job, tick)
    assert [one.het_id for one in scheduler.jobs.values()] == ["100", "100"]
    assert last(job).scheduler_id == "100"
    assert scheduler.calls.counts["cancel"] == 0
    assert job_sums(job).held == 10 * job.usd_per_gpu_hour


def test_cancel_ends_all_parts(het: Job, owner: Any, scheduler: FakeScheduler, work: Any, tick: Any) -> None:
    run(scheduler)
    look(het, tick)
    job_stop(actor=actor_of(owner), job=het, kind="cancel")
    look(het, tick)
    assert [one.state for one in scheduler.jobs.values()] == ["CANCELLED", "CANCELLED"]
    look(het, tick)
    assert fresh(het).phase == "CANCELLED"


def test_a_part_that_lost_its_node_is_the_reason(het: Job, scheduler: FakeScheduler, tick: Any) -> None:
    run(scheduler)
    look(het, tick)
    scheduler.end("101", "NODE_FAIL")
    scheduler.end("100", "CANCELLED")
    look(het, tick)
    assert het.attempts.get(number=1).phase == "NODE_FAILED"
    assert last(het).number == 2
    assert scheduler.requests["102"].parts


def test_a_part_that_lost_its_node_is_the_reason_when_the_runner_ended_first(
    het: Job, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    run(scheduler)
    look(het, tick)
    scheduler.end("101", "NODE_FAIL")
    scheduler.end("100", "CANCELLED")
    # With the runner's exit code the visit asks for the job itself, before the queue is read again.
    Attempt.objects.filter(job=het).update(runner_exit_code=143)
    for _ in range(3):
        intent_ask("job.reconcile", het.uid)
        work("job.reconcile")
    assert het.attempts.get(number=1).phase == "NODE_FAILED"
    assert (last(het).number, fresh(het).recoveries) == (2, 1)


def test_a_part_that_nobody_knows_any_more_leaves_the_first_to_speak(
    het: Job, scheduler: FakeScheduler, tick: Any, work: Any
) -> None:
    run(scheduler)
    look(het, tick)
    del scheduler.jobs["101"]
    scheduler.end("100", "FAILED", 3)
    Attempt.objects.filter(job=het).update(runner_exit_code=3)
    for _ in range(3):
        intent_ask("job.reconcile", het.uid)
        work("job.reconcile")
    attempt = het.attempts.get(number=1)
    assert (attempt.phase, attempt.exit_code, attempt.nodes) == ("FAILED", 3, ["p5-1", "p5-2"])


def test_a_release_frees_every_part(het: Job, owner: Any, scheduler: FakeScheduler, work: Any, tick: Any) -> None:
    for key in ("100", "101"):
        scheduler.hold(key)
    look(het, tick)
    job_act(actor=actor_of(owner), job=fresh(het), wish=wish_of("RELEASE", ""))
    work("job.act")
    assert not [one.reason for one in scheduler.jobs.values() if one.reason.startswith("JobHeld")]


@pytest.mark.parametrize(
    ("part", "pointer"),
    [
        ({"nodes": 9}, "/parts/0/nodes"),
        ({"gpus_per_node": 99}, "/parts/0/gpus_per_node"),
        ({"gpu_type": "b200", "gpus_per_node": 1}, "/parts/0/gpu_type"),
        ({"slurm_options": ["--nodes=3"]}, "/parts/0/slurm_options/0"),
        ({"slurm_options": ["--account=other"]}, "/parts/0/slurm_options/0"),
        ({"tasks_per_node": 0}, "/parts/0/tasks_per_node"),
        ({"nodes": 10**30, "gpus_per_node": 1}, "/parts/0/nodes"),
        ({"time_limit_min": 10**30}, "/parts/0/time_limit_min"),
        ({"name": "actors\n--nodes=3"}, "/parts/0/name"),
        ({"slurm_options": ["--container-image=other"]}, "/parts/0/slurm_options/0"),
    ],
)
def test_a_part_that_cannot_be_is_named(
    team: Any, owner: Any, cluster: Any, spec: Any, part: dict[str, Any], pointer: str
) -> None:
    given = replace(spec, nodes=1, parts=[part])
    with pytest.raises(InvalidInput) as caught:
        job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert pointer in [p.pointer for p in caught.value.problems]
    assert Job.objects.count() == 0


def test_a_part_may_name_the_container_that_all_steps_run_in(team: Any, owner: Any, cluster: Any, spec: Any) -> None:
    image = "--container-image=nvcr.io#nvidia/pytorch:26.01"
    given = replace(spec, nodes=1, slurm_options=(image,), parts=[{**PART, "slurm_options": [image]}])
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    request = submit_request(job, last(job))
    assert "export PYXIS_CONTAINER_IMAGE=" in request.script
    assert [part.options for part in request.parts] == [()]
    without = replace(given, slurm_options=())
    found = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=without).problems
    assert [(p.pointer, p.code) for p in found] == [("/parts/0/slurm_options/0", "container")]


def test_parts_and_an_array_exclude_each_other(team: Any, owner: Any, cluster: Any, spec: Any) -> None:
    given = replace(spec, nodes=1, array="0-3", parts=[PART])
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert "/array" in [p.pointer for p in preview.problems]


def test_parts_of_a_job_from_outside_are_shown_and_charged_once_each(place: Cluster, team: Any) -> None:
    entries = [row(place, 20 + n, het_id="20", het_offset=n, node_count=1, gpus=8 - 4 * n) for n in range(2)]
    outside.follow(place.uid)
    for entry in entries:
        run_outside(place, entry)
    outside.follow(place.uid)
    job = Job.objects.get()
    found = parts_shown(job)
    assert [(p.offset, p.scheduler_id, p.gpus) for p in found] == [(0, "20", 8), (1, "21", 4)]
    assert abs(sum(p.usd for p in found) - job_sums(job).charged) < Decimal("0.01")
    assert job_sums(job).charged > 0


def test_a_template_that_fixes_a_size_has_jobs_of_one_part(team: Any, owner: Any, cluster: Any, spec: Any) -> None:
    fixed = JobTemplate.objects.create(
        name="one", title="One", script="#!/bin/bash\ntrue\n", defaults={"nodes": 1}, locked=["nodes"]
    )
    given = replace(spec, nodes=1, script="", template=fixed, parts=[PART])
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert ("/parts", "locked") in [(p.pointer, p.code) for p in preview.problems]


def test_a_part_without_gpus_pays_its_share_of_the_nodes(team: Any, owner: Any, cluster: Any, spec: Any) -> None:
    given = replace(spec, nodes=1, parts=[{"nodes": 1, "tasks_per_node": 4, "cpus_per_task": 4}])
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert preview.problems == ()
    (part,) = preview.parts
    assert part.usd_per_node_hour > 0
    assert preview.usd == (8 * preview.usd_per_gpu_hour + part.usd_per_node_hour).quantize(Decimal("0.000001"))
