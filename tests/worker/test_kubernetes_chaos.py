"""Jobs on Kubernetes while the API server is away, cuts watches, forgets its history or has another clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.clusters.models import Cluster
from apps.core import clock
from apps.costs.selectors import ledger_check
from apps.jobs.models import Attempt, Job, JobHappening
from apps.jobs.services import job_submit
from tests.conftest import actor_of
from tests.worker.kube_world import KubeWorld, kube_world
from worker.providers.kubernetes import informer

pytestmark = pytest.mark.django_db(transaction=True)
ALL = ("job.reconcile", "cluster.queue", "cluster.happenings", "cluster.connect")


@pytest.fixture
def world(tmp_path: Path, cluster: Any, team: Any, work: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeWorld]:
    with kube_world(tmp_path, cluster, team, work, monkeypatch) as made:
        made.node("n1")
        made.node("n2")
        yield made


def submit(world: KubeWorld, team: Any, owner: Any, spec: Any, number: int, script: str) -> Job:
    wanted = replace(spec, name=f"job-{number}", nodes=1, gpus_per_node=4, script=script)
    return job_submit(actor=actor_of(owner), team=team, cluster=world.row, spec=wanted)


def ended(jobs: list[Job], phase: str = "SUCCEEDED") -> bool:
    return Job.objects.filter(pk__in=[job.pk for job in jobs], phase=phase).count() == len(jobs)


def once(world: KubeWorld, jobs: list[Job]) -> None:
    """One attempt and one object a job, no event twice, the books in balance."""
    assert Attempt.objects.filter(job__in=jobs).count() == len(jobs)
    assert world.count("jobs.batch") == len(jobs)
    keys = list(JobHappening.objects.values_list("attempt_id", "key"))
    assert len(keys) == len(set(keys))
    assert ledger_check().is_balanced


@pytest.mark.parametrize(
    "fault",
    [
        ("watch-cut", {"every": 0.4}),
        ("history-lost", {"operation": "watch"}),
        ("throttling", {"retry_after": 1, "left": 12}),
        ("server-error", {"shape": "lost-reply", "operation": "create-jobs", "left": 2}),
        ("server-error", {"shape": "lost-reply", "operation": "create-configmaps", "left": 2}),
        ("slow-api", {"delay": 0.3}),
    ],
    ids=lambda fault: f"{fault[0]}-{fault[1].get('operation', '')}",
)
def test_no_job_is_lost_or_doubled(
    world: KubeWorld, team: Any, owner: Any, spec: Any, fault: tuple[str, dict[str, Any]]
) -> None:
    world.pretend.world.fault_add(fault[0], service="kubernetes", **fault[1])
    jobs = [submit(world, team, owner, spec, n, "#!/bin/bash\nsleep 0.5\n") for n in range(5)]
    world.until("all end", lambda: ended(jobs), *ALL, timeout_s=60)
    once(world, jobs)


def test_away_it_is_unreachable_and_nothing_is_lost(
    world: KubeWorld, team: Any, owner: Any, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer, "STALE_S", 0.3)
    running = [submit(world, team, owner, spec, n, "#!/bin/bash\nsleep 4\n") for n in range(2)]
    world.until("they run", lambda: ended(running, "RUNNING"), *ALL)
    away = world.pretend.world.fault_add("server-error", service="kubernetes", shape="unavailable")
    from worker import kube_doors

    for watch in list(kube_doors.kubernetes_for(world.row).informer._watches.values()):
        watch._answer.shutdown()
    phase = Cluster.objects.filter(pk=world.row.pk, phase="UNREACHABLE")
    world.until("it is said", phase.exists, "cluster.queue")
    late = submit(world, team, owner, spec, 9, "#!/bin/bash\ntrue\n")
    time.sleep(4)
    world.pretend.world.fault_clear(away.uid)
    jobs = [*running, late]
    world.until("all end", lambda: ended(jobs), *ALL, timeout_s=60)
    once(world, jobs)


@pytest.mark.parametrize("hours", [-3, 3])
def test_the_servers_clock_does_not_matter(world: KubeWorld, team: Any, owner: Any, spec: Any, hours: int) -> None:
    world.pretend.api.writer.clock = lambda: time.time() + hours * 3600
    began = clock.now()
    job = submit(world, team, owner, spec, 1, "#!/bin/bash\nsleep 1\n")
    world.until("it ends", lambda: ended([job]), *ALL)
    attempt = Attempt.objects.get(job=job)
    assert attempt.started_at is not None
    assert attempt.ended_at is not None
    assert began - timedelta(seconds=4) <= attempt.started_at <= attempt.ended_at <= clock.now() + timedelta(seconds=1)
    once(world, [job])
