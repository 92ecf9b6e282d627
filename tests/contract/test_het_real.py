"""A script with hetjob from import to its end, through the portal's worker, on each real Slurm."""

from __future__ import annotations

import time
from typing import Any

import pytest

from apps.core import clock
from apps.intents.models import Intent
from apps.jobs.models import Job
from apps.jobs.part_selectors import parts_shown
from apps.jobs.sbatch import read_sbatch
from apps.jobs.sbatch_shape import completed
from apps.jobs.selectors import job_sums
from apps.jobs.services import JobSpec, job_stop, job_submit
from tests.conftest import actor_of
from tests.contract.test_sbatch_scripts_real import cluster_of
from tests.contract.test_scheduler_real import needs
from tests.labs import real_slurm_lab

pytestmark = [pytest.mark.contract, pytest.mark.real_slurm, pytest.mark.django_db, pytest.mark.any_database]
SCRIPT = """#!/bin/bash
#SBATCH --job-name=rl --nodes=1 --gpus-per-node=8 --mem=1G --time=5
#SBATCH hetjob
#SBATCH --nodes=2 --gpus-per-node=2 --ntasks-per-node=2
test "$SLURM_HET_SIZE" = 2 || exit 7
sleep ${NAP:-3}
"""


def follow(job: Job, wanted: set[str], timeout_s: float = 60) -> Job:
    """Collector and reconciler, as the worker runs them, until the job is in one of these phases."""
    from apps.clusters.models import Cluster
    from worker import engine
    from worker.collectors import slurm
    from worker.reconcilers import RECONCILERS

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        Intent.objects.update(due_at=clock.now(), leased_until=None)
        engine.drain({"job.reconcile": RECONCILERS["job.reconcile"]}, most=5)
        Cluster.objects.update(queue_read_at=None)
        slurm.queue(job.cluster.uid)
        found = Job.objects.get(pk=job.pk)
        if found.phase in wanted:
            return found
        time.sleep(0.3)
    raise AssertionError(f"{found.phase} {found.reason} {found.message}")


@pytest.mark.parametrize("release", [pytest.param(one, marks=needs(one)) for one in ("22.05", "24.11", "26.05")])
def test_parts_run_and_end_through_the_worker(
    release: str, owner: Any, team: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker import doors

    with real_slurm_lab(release=release, user="games" if release == "26.05" else "nobody") as lab:
        scheduler = lab.scheduler()
        monkeypatch.setattr(doors, "scheduler_for", lambda cluster, as_user="": scheduler)
        cluster = cluster_of(lab)
        reading = completed(read_sbatch(SCRIPT))
        assert reading.problems == []
        actor = actor_of(owner)
        spec = JobSpec(script=SCRIPT, slurm_options=reading.options, **reading.fields)
        job = job_submit(actor=actor, team=team, cluster=cluster, spec=spec)
        found = follow(job, {"RUNNING"})
        parts = parts_shown(found)
        assert [(p.offset, p.nodes, p.gpus, p.state) for p in parts] == [(0, 1, 8, "RUNNING"), (1, 2, 4, "RUNNING")]
        assert found.attempts.get().nodes == sorted({name for p in parts for name in p.node_names})
        assert follow(job, {"SUCCEEDED", "FAILED"}).phase == "SUCCEEDED"
        assert job_sums(job).charged > 0
        long = JobSpec(script=SCRIPT, slurm_options=reading.options, environment={"NAP": "300"}, **reading.fields)
        other = job_submit(actor=actor, team=team, cluster=cluster, spec=long)
        follow(other, {"RUNNING"})
        job_stop(actor=actor, job=Job.objects.get(pk=other.pk), kind="cancel")
        assert follow(other, {"CANCELLED"}).phase == "CANCELLED"
        left = [one for one in scheduler.queue().jobs or () if one.state in ("PENDING", "RUNNING")]
        assert left == []
