"""Jobs of the demo site that Slurm runs as arrays, holds, or was asked about."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from apps.core import clock
from apps.core.said import said
from tests.demo_site import DemoRows


def demo_jobs(rows: DemoRows) -> None:
    """A sweep of forty tasks in the middle of it, and what was asked of a waiting job."""
    from apps.jobs.action_models import JobAction
    from apps.jobs.dependency_models import JobDependency
    from apps.jobs.models import Job
    from apps.jobs.selectors import current_attempt

    sweep = _array(rows)
    _parts(rows)
    waiting = Job.objects.get(name="tokenizer-sweep")
    waiting.slurm_options = ["--constraint='h100&efa'", "--qos=high", "--begin=now+10minutes", "--wckey=tokens"]
    waiting.slurm_options += ["--container-image=nvcr.io#nvidia/pytorch:25.10-py3"]
    waiting.save(update_fields=["slurm_options"])
    for needs, kind in ((sweep, "afterok"), (Job.objects.get(name="moe-8x7b-ablation"), "afterany")):
        JobDependency.objects.create(job=waiting, needs=needs, kind=kind)
    now = clock.now()
    for kind, parameters, phase, answer, ago in (
        ("TIME_LIMIT", {"time_limit_min": 1200}, "REFUSED", said("too late: %(error)s", error="slurm 2084"), 14),
        ("PRIORITY", {"nice": 50}, "DONE", "", 9),
        ("HOLD", {}, "ASKED", "", 0.2),
    ):
        at = now - timedelta(minutes=ago)
        JobAction.objects.create(
            job=waiting,
            attempt=current_attempt(waiting),
            kind=kind,
            parameters=parameters,
            asked_by="owner",
            asked_at=at,
            phase=phase,
            answer=answer,
            settled_at=None if phase == "ASKED" else at,
        )


def _array(rows: DemoRows) -> Any:
    from apps.jobs.models import ProgressPoint
    from apps.jobs.observations import array_observe, attempt_running, attempt_submitted, attempt_submitting
    from apps.jobs.queue_models import QueueEntry
    from apps.jobs.selectors import current_attempt
    from apps.jobs.services import JobSpec, job_submit
    from tests.conftest import actor_of

    spec = JobSpec(
        name="lr-sweep",
        nodes=1,
        gpus_per_node=1,
        gpu_type="h100",
        time_limit_min=90,
        script="#!/bin/bash\npython sweep.py --index $SLURM_ARRAY_TASK_ID\n",
        array="0-39%4",
    )
    job = job_submit(
        actor=actor_of(rows.users["owner"]), team=rows.teams["nlp"], cluster=rows.clusters["ada"], spec=spec
    )
    attempt = current_attempt(job)
    assert attempt is not None
    attempt.job = job
    attempt_submitting(attempt)
    attempt_submitted(attempt, "7100")
    now = clock.now()
    nodes = [node.name for node in rows.clusters["ada"].nodes.order_by("name")[:4]] or ["p5-main-1"]
    for task in range(12):
        state, code = ("RUNNING", None) if task >= 8 else ("FAILED", 1) if task == 5 else ("COMPLETED", 0)
        began = now - timedelta(minutes=70 - 5 * task)
        QueueEntry.objects.create(
            cluster=job.cluster,
            scheduler_id=str(7101 + task),
            attempt=attempt,
            comment=attempt.uid,
            array_id="7100",
            array_task=task,
            name=job.name,
            user_name="qd",
            state=state,
            nodes=[nodes[task % len(nodes)]],
            node_count=1,
            gpus=1,
            started_at=began,
            ended_at=None if state == "RUNNING" else began + timedelta(minutes=19 + task),
            exit_code=code,
            time_limit_min=90,
        )
    ProgressPoint.objects.bulk_create(
        ProgressPoint(
            attempt=attempt,
            task=task,
            step=step,
            total_steps=2000,
            loss=round(2.1 + 0.04 * (task % 5) + 3.4 / (1 + step / 160), 4),
            tokens_per_s=41_000 - 300 * task + step % 400,
            at=now - timedelta(minutes=70 - 5 * task) + timedelta(seconds=step * 0.7),
        )
        for task in range(12)
        for step in range(50, 1001 if task >= 8 else 1601, 50)
    )
    QueueEntry.objects.create(
        cluster=job.cluster,
        scheduler_id="7100",
        attempt=attempt,
        comment=attempt.uid,
        array_id="7100",
        array_pending="12-39%4",
        name=job.name,
        user_name="qd",
        state="PENDING",
        reason="JobArrayTaskLimit",
        node_count=1,
        gpus=1,
        time_limit_min=90,
    )
    array_observe(attempt)
    attempt_running(attempt)
    rows.jobs["lr-sweep"] = job
    return job


def _parts(rows: DemoRows) -> Any:
    """A learner on whole nodes with its actors on a share of another: a heterogeneous job that runs."""
    from apps.jobs.observations import attempt_running, attempt_submitted, attempt_submitting
    from apps.jobs.queue_models import QueueEntry
    from apps.jobs.selectors import current_attempt
    from apps.jobs.services import JobSpec, job_submit
    from tests.conftest import actor_of

    spec = JobSpec(
        name="actor-learner",
        nodes=1,
        gpus_per_node=4,
        gpu_type="h100",
        time_limit_min=120,
        script="#!/bin/bash\nsrun --het-group=0 ./learn : --het-group=1 ./act\n",
        parts=[{"nodes": 1, "gpus_per_node": 2, "tasks_per_node": 16, "name": "actors"}],
    )
    job = job_submit(
        actor=actor_of(rows.users["owner"]), team=rows.teams["nlp"], cluster=rows.clusters["ada"], spec=spec
    )
    attempt = current_attempt(job)
    assert attempt is not None
    attempt.job = job
    attempt_submitting(attempt)
    attempt_submitted(attempt, "7300")
    began = clock.now() - timedelta(minutes=12)
    nodes = [node.name for node in rows.clusters["ada"].nodes.filter(phase="READY").order_by("name")[:2]]
    for offset, (node, gpus) in enumerate(zip(nodes, (4, 2), strict=True)):
        QueueEntry.objects.create(
            cluster=job.cluster,
            scheduler_id=str(7300 + offset),
            attempt=attempt,
            comment=attempt.uid,
            het_id="7300",
            het_offset=offset,
            name=job.name,
            user_name="qd",
            state="RUNNING",
            nodes=[node],
            node_count=1,
            gpus=gpus,
            started_at=began,
            time_limit_min=120,
        )
    attempt.nodes, attempt.started_at, attempt.observed_state = nodes, began, "RUNNING"
    attempt.charged_until_at = clock.now()
    attempt.save()
    attempt_running(attempt)
    return job
