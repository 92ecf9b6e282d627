"""Jobs that are a person's manifest, on a pretend Kubernetes: run, settled, and ended at what was held for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.costs.selectors import ledger_check, standing_of
from apps.costs.states import Unit
from apps.jobs.models import Attempt, Job
from apps.jobs.sentences import job_sentence
from apps.jobs.services import job_submit
from tests.conftest import actor_of
from tests.worker.kube_world import KubeWorld, kube_world
from worker.reconcilers import jobs as reconciler

pytestmark = pytest.mark.django_db(transaction=True)
MANIFEST = """# kept to the letter
apiVersion: batch/v1
kind: Job
metadata:
  name: mine
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: registry.example/one:1
          command: [sleep, "{seconds}"]
          resources:
            limits: {{nvidia.com/gpu: 8}}
"""


@pytest.fixture
def world(tmp_path: Path, cluster: Any, team: Any, work: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeWorld]:
    with kube_world(tmp_path, cluster, team, work, monkeypatch) as made:
        yield made


def submit(world: KubeWorld, team: Any, owner: Any, spec: Any, seconds: int) -> Job:
    asked = replace(
        spec,
        **{"nodes": 1, "gpus_per_node": 0, "gpu_type": "", "script": "", "time_limit_min": 1, "environment": {}},
        manifest=MANIFEST.format(seconds=seconds),
    )
    return job_submit(actor=actor_of(owner), team=team, cluster=world.row, spec=asked)


def phase(job: Job) -> str:
    return Job.objects.get(pk=job.pk).phase


def test_a_manifest_runs_and_is_settled(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    job = submit(world, team, owner, spec, 1)
    assert standing_of(team, Unit.GPUS).held == 8
    world.until("it ends", lambda: phase(job) == "SUCCEEDED")
    attempt = Attempt.objects.get(job=job)
    assert attempt.scheduler_id.startswith("nlp/Manifest/")
    assert attempt.nodes == ["n1"]
    assert standing_of(team, Unit.GPUS).held == 0
    assert standing_of(team, Unit.USD).held == 0
    assert ledger_check().is_balanced


def test_one_that_does_not_end_is_ended_at_its_limit(
    world: KubeWorld, team: Any, owner: Any, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.node("n1")
    job = submit(world, team, owner, spec, 600)
    world.until("it runs", lambda: phase(job) == "RUNNING")
    assert Attempt.objects.get(job=job).stop_reason == "", "there is time left"
    monkeypatch.setattr(reconciler, "LIMIT_GRACE", timedelta(minutes=-1))
    world.until("it is ended", lambda: phase(job) == "TIMED_OUT")
    done = Job.objects.get(pk=job.pk)
    assert "time limit" in job_sentence(done)
    assert world.count("pods") == 0
    assert Attempt.objects.filter(job=job).count() == 1, "no second attempt at a manifest"
    assert standing_of(team, Unit.USD).held == 0


def test_objects_of_a_chart_stay_the_job_s_own(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    text = MANIFEST.replace("  name: mine\n", "  name: mine\n  labels: {{app.kubernetes.io/managed-by: Helm}}\n")
    asked = replace(
        spec,
        **{"nodes": 1, "gpus_per_node": 0, "gpu_type": "", "script": "", "time_limit_min": 1, "environment": {}},
        manifest=text.format(seconds=2),
    )
    job = job_submit(actor=actor_of(owner), team=team, cluster=world.row, spec=asked)
    world.until("it ends", lambda: phase(job) in ("SUCCEEDED", "CANCELLED", "FAILED"))
    assert phase(job) == "SUCCEEDED"
    assert Job.objects.count() == 1, "it is nobody else's job, too"
    assert standing_of(team, Unit.USD).held == 0
