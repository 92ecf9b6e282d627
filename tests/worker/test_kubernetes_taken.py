"""Pods taken from under a job on Kubernetes: the whole is ended and goes on from its newest checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apps.jobs.models import Job
from apps.jobs.services import JobSpec, job_submit
from tests.conftest import actor_of
from tests.kube_lab import KubeLab, kube_lab
from worker.providers.kubernetes import access, names
from worker.providers.kubernetes.actions import evict
from worker.providers.kubernetes.calls import Caller
from worker.providers.kubernetes.decode import decoded
from worker.providers.kubernetes.ends import Scene
from worker.providers.kubernetes.works import Work

ATTEMPT = "att_01half"
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


def test_a_node_that_is_back_takes_the_job_that_cannot_do_without_it(
    tmp_path: Path, work: Any, team: Any, owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kube_lab(tmp_path, work, monkeypatch, team=team, nodes=2) as lab:
        job = submit(lab, owner, team, nodes=2)
        lost = runs_on(lab, job, 2)[0]
        lab.pretend.world.node_lose(lost)
        lab.until("the next attempt waits", job.attempts.filter(number=2, phase="QUEUED").exists)
        second = job.attempts.get(number=2)
        assert second.excluded_nodes == [lost]
        assert job.attempts.get(number=1).phase == "NODE_FAILED"
        lab.pretend.kubelets.recover_node(lost)
        assert lost in runs_on(lab, job, 2, number=2)


def test_any_gpu_on_two_nodes_gets_the_network_that_all_of_them_have(lab: KubeLab, owner: Any, team: Any) -> None:
    job = submit(lab, owner, team, nodes=2, gpu_type="")
    runs_on(lab, job, 2)
    container = lab.objects("pods")[0]["spec"]["containers"][0]
    assert container["resources"]["limits"]["vpc.amazonaws.com/efa"] == "32"
    assert {"name": "FI_PROVIDER", "value": "efa"} in container["env"]


def _pod(index: int, phase: str) -> dict[str, Any]:
    head = {"namespace": "nlp", "name": f"p-{index}", "uid": f"p-{index}", "creationTimestamp": "2026-11-30T10:00:01Z"}
    head["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
    spec = {"nodeName": f"n{index}" if phase == "Running" else "", "containers": [{"name": "main"}]}
    return {"metadata": head, "spec": spec, "status": {"phase": phase, "startTime": f"2026-11-30T10:0{index}:00Z"}}


@pytest.mark.parametrize(("other", "state", "started"), [("Pending", "PENDING", None), ("Running", "RUNNING", 1)])
def test_a_gang_runs_and_is_charged_once_all_its_pods_do(other: str, state: str, started: int | None) -> None:
    name = names.object_name(ATTEMPT)
    head = {"namespace": "nlp", "name": name, "uid": "u", "labels": {names.LABEL_ATTEMPT: ATTEMPT}}
    spec = {"parallelism": 2, "completions": 2, "template": {"spec": {"containers": [{"name": "main"}]}}}
    root = {"kind": "Job", "metadata": head, "spec": spec, "status": {"startTime": "2026-11-30T10:00:00Z"}}
    work = Work("nlp", "Job", name, root, pods=[_pod(0, "Running"), _pod(1, other)])
    told = decoded(work, Scene(datetime(2026, 11, 30, 11, tzinfo=UTC)))
    assert told.state == state
    assert (told.started_at.minute if told.started_at else None) == started
