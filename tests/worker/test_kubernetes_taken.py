"""Pods taken from under a job on Kubernetes: the whole is ended and goes on from its newest checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.jobs.models import Job
from apps.jobs.services import JobSpec, job_submit
from tests.conftest import actor_of
from tests.kube_lab import KubeLab, kube_lab
from worker.providers.kubernetes import access
from worker.providers.kubernetes.actions import evict
from worker.providers.kubernetes.calls import Caller

SLEEP = "#!/bin/bash\ntrap 'exit 143' TERM\nsleep 300 & wait\n"
KINDS = ["indexed_job", "jobset", "pytorchjob", "trainjob"]


@pytest.fixture
def lab(tmp_path: Path, work: Any, team: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeLab]:
    with kube_lab(tmp_path, work, monkeypatch, team=team) as made:
        yield made


def submit(lab: KubeLab, owner: Any, team: Any, **more: Any) -> Job:
    values = {"gpus_per_node": 8, "gpu_type": "h100", "time_limit_min": 60, "workload_kind": "jobset", **more}
    return job_submit(
        actor=actor_of(owner), team=team, cluster=lab.cluster, spec=JobSpec(name="train", script=SLEEP, **values)
    )


def runs_on(lab: KubeLab, job: Job, count: int, number: int = 1) -> list[str]:
    def nodes() -> list[str]:
        found = job.attempts.filter(number=number, phase="RUNNING").first()
        return list(found.nodes) if found is not None and len(found.nodes) == count else []

    return list(lab.until(f"attempt {number} runs on {count}", nodes))


def drain(lab: KubeLab, node: str) -> None:
    """As the portal drains: no new pods on it, and those there are asked to go."""
    caller = Caller(access.of_kubeconfig(json.dumps(lab.pretend.api.kubeconfig())))
    caller.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    for pod in lab.objects("pods"):
        if pod["spec"].get("nodeName") == node:
            evict(caller, pod, 5)
    caller.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_drain_ends_the_whole_and_the_next_attempt_follows(
    lab: KubeLab, owner: Any, team: Any, kind: str, nodes: int
) -> None:
    job = submit(lab, owner, team, nodes=nodes, workload_kind=kind)
    left = runs_on(lab, job, nodes)[0]
    drain(lab, left)
    assert left not in runs_on(lab, job, nodes, number=2)
    first = job.attempts.get(number=1)
    assert (first.phase, first.reason, first.stop_node) == ("REQUEUED", "Preempted", "")
    assert job.attempts.get(number=2).excluded_nodes == []
