"""A worker killed before and after every call of a job's life on Kubernetes: one object, one attempt, nothing held."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from apps.core import clock
from apps.costs.selectors import still_held
from apps.costs.states import Unit
from apps.intents.models import Intent
from apps.jobs.models import Job
from apps.jobs.services import JobSpec, job_stop, job_submit
from tests.chaos import Crash
from tests.conftest import actor_of
from tests.kube_lab import KubeLab, kube_lab
from worker import kube_doors
from worker.providers.kubernetes.calls import Caller

CALLS = ("create", "patch", "delete")
RESOURCE = {"indexed_job": "jobs.batch", "jobset": "jobsets.jobset.x-k8s.io"}


@dataclass
class Reaper:
    """Kills the worker at the n-th changing call, before it is sent or after it was answered."""

    at: int = 0
    when: str = "before"
    seen: int = 0
    died: bool = False

    def wrap(self, real: Any) -> Any:
        def call(caller: Caller, path: str, *args: Any, **kwargs: Any) -> Any:
            if "kueue.x-k8s.io" in path or kwargs.get("dry_run"):
                return real(caller, path, *args, **kwargs)
            self.seen += 1
            mine = not self.died and self.seen == self.at
            if mine and self.when == "before":
                self.died = True
                raise Crash
            answer = real(caller, path, *args, **kwargs)
            if mine:
                self.died = True
                raise Crash
            return answer

        return call


@pytest.fixture
def reaper(monkeypatch: pytest.MonkeyPatch) -> Reaper:
    made = Reaper()
    for name in CALLS:
        monkeypatch.setattr(Caller, name, made.wrap(getattr(Caller, name)))
    return made


@pytest.fixture
def lab(tmp_path: Path, work: Any, team: Any, monkeypatch: pytest.MonkeyPatch, reaper: Reaper) -> Iterator[KubeLab]:
    with kube_lab(tmp_path, work, monkeypatch, team=team) as made:
        reaper.seen = 0
        yield made


def mortal_visit(lab: KubeLab) -> None:
    """One round; a worker that dies leaves its lease, which runs out at once, and a new one with empty memory."""
    try:
        lab.visit()
    except Crash:
        Intent.objects.update(leased_until=None, lease="")
        kube_doors.close_all()


def live(lab: KubeLab, owner: Any, team: Any, kind: str) -> Job:
    """A job that is submitted, begins, and is cancelled once it runs."""
    spec = JobSpec(
        name="train",
        script="#!/bin/bash\nsleep 600\n",
        nodes=2,
        gpus_per_node=8,
        gpu_type="h100",
        time_limit_min=60,
        workload_kind=kind,
    )
    actor = actor_of(owner)
    job = job_submit(actor=actor, team=team, cluster=lab.cluster, spec=spec)

    def until(*phases: str) -> None:
        end = time.monotonic() + 30
        while not lab.job_in(job, *phases)():
            assert time.monotonic() < end, (phases, Job.objects.get(pk=job.pk).phase, lab.pretend.trouble())
            mortal_visit(lab)
            time.sleep(0.05)

    until("RUNNING")
    assert len(lab.objects(RESOURCE[kind])) == 1, "one object, however often the worker died"
    job.refresh_from_db()
    job_stop(actor=actor, job=job, kind="cancel")
    until("CANCELLED")
    job.refresh_from_db()
    return job


def check(lab: KubeLab, job: Job, kind: str) -> None:
    assert job.attempts.count() == 1
    lab.until("its object is gone", lambda: not lab.objects(RESOURCE[kind]), 20)
    for unit in (Unit.USD, Unit.GPUS):
        assert still_held([job.uid], unit) == 0, "nothing is held any more"


@pytest.mark.parametrize("kind", sorted(RESOURCE))
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call(lab: KubeLab, reaper: Reaper, owner: Any, team: Any, kind: str, when: str) -> None:
    reaper.when = when
    calls = 0
    for at in range(1, 12):
        reaper.at, reaper.seen, reaper.died = at, 0, False
        job = live(lab, owner, team, kind)
        check(lab, job, kind)
        if not reaper.died:
            break
        calls += 1
    assert calls >= 4, "a ConfigMap, a Secret, the workload and its end: each was interrupted"
    assert Intent.objects.filter(attempts__gt=20, due_at__gt=clock.now()).count() == 0
