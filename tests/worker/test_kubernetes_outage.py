"""What breaks while jobs run on Kubernetes: the server away, watches cut, history lost, clocks apart. Nothing twice."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.clusters.models import Cluster
from apps.jobs.models import Job, JobHappening
from apps.jobs.services import JobSpec, job_submit
from tests.conftest import actor_of
from tests.kube_lab import KubeLab, kube_lab
from worker import kube_doors

#: How long the API server is away; make verify-kubernetes asks for ten minutes.
DOWN_S = float(os.environ.get("QD_DOWN_S", "4"))

pytestmark = pytest.mark.timeout(900 + 2 * DOWN_S)


@pytest.fixture
def lab(tmp_path: Path, work: Any, team: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeLab]:
    with kube_lab(tmp_path, work, monkeypatch, team=team) as made:
        yield made


def submit(lab: KubeLab, owner: Any, team: Any, name: str, seconds: float, nodes: int = 1, **more: Any) -> Job:
    values = {"gpus_per_node": 8, "gpu_type": "h100", "time_limit_min": 60, "workload_kind": "jobset", **more}
    script = f"#!/bin/bash\necho begin {name}\nsleep {seconds}\n"
    spec = JobSpec(name=name, script=script, nodes=nodes, **values)
    return job_submit(actor=actor_of(owner), team=team, cluster=lab.cluster, spec=spec)


def all_succeed(lab: KubeLab, jobs: list[Job], timeout_s: float = 90) -> None:
    """Every job ends well, each with one attempt, one object and each of its happenings once."""

    def done() -> bool:
        return all(lab.job_in(job, "SUCCEEDED")() for job in jobs)

    lab.until("all jobs succeeded", done, timeout_s)
    for job in jobs:
        assert job.attempts.count() == 1, "none was lost, so none was started again"
    attempts = [a for job in jobs for a in job.attempts.all()]
    assert len({a.scheduler_id for a in attempts}) == len(jobs)
    for attempt in attempts:
        told = Counter(JobHappening.objects.filter(attempt=attempt).values_list("key", flat=True))
        assert all(count == 1 for count in told.values()), told
        texts = Counter((str(h.text), h.at) for h in JobHappening.objects.filter(attempt=attempt))
        assert all(count == 1 for count in texts.values()), texts


def test_the_server_is_away_while_one_runs_one_waits_and_one_is_submitted(lab: KubeLab, owner: Any, team: Any) -> None:
    runs = submit(lab, owner, team, "runs", 3.0, nodes=2)
    lab.until("it runs", lab.job_in(runs, "RUNNING"))
    waits = submit(lab, owner, team, "waits", 0.5, nodes=2)
    lab.until("it waits", lab.job_in(waits, "QUEUED"))

    lab.pretend.world.fault_add("api-away", seconds=DOWN_S, cluster="pods")
    during = submit(lab, owner, team, "during", 0.5)
    began = time.monotonic()
    while time.monotonic() - began < DOWN_S:
        lab.visit()
        time.sleep(0.5)
    assert Job.objects.get(pk=during.pk).attempts.count() == 1

    all_succeed(lab, [runs, waits, during])
    cluster = Cluster.objects.get(pk=lab.cluster.pk)
    lab.until("the cluster is reachable again", lambda: _phase(cluster) == "READY")


def _phase(cluster: Cluster) -> str:
    return Cluster.objects.get(pk=cluster.pk).phase


def test_watches_are_cut_every_second_and_history_is_lost_again_and_again(lab: KubeLab, owner: Any, team: Any) -> None:
    lab.pretend.world.fault_add("watch-cut", service="kubernetes", every=1)
    kube_doors.close_all()
    jobs = [submit(lab, owner, team, f"j{number}", 0.6, nodes=1 + number % 2) for number in range(5)]
    end = time.monotonic() + 8
    while time.monotonic() < end:
        # A storm: every list and watch is told that its revision is too old.
        lab.pretend.world.fault_add("history-lost", service="kubernetes", left=3)
        lab.visit()
        time.sleep(0.2)
    all_succeed(lab, jobs)


@pytest.mark.parametrize("skew_s", [900, -900])
def test_the_server_s_clock_is_a_quarter_of_an_hour_off(lab: KubeLab, owner: Any, team: Any, skew_s: int) -> None:
    lab.pretend.world.fault_add("clock-skew", cluster="pods", ahead=skew_s)
    jobs = [submit(lab, owner, team, f"j{number}", 1.0) for number in range(2)]
    all_succeed(lab, jobs)
    for job in jobs:
        attempt = job.attempts.get()
        assert attempt.started_at is not None
        assert attempt.ended_at is not None
        assert 0 <= (attempt.ended_at - attempt.started_at).total_seconds() < 60
        assert (
            attempt.charged_until_at is None or abs((attempt.charged_until_at - attempt.ended_at).total_seconds()) < 60
        )
        assert abs((attempt.started_at - attempt.created_at).total_seconds()) < 120, "told by our clock"


def test_refusals_and_slowness_cost_time_and_nothing_else(lab: KubeLab, owner: Any, team: Any) -> None:
    world = lab.pretend.world
    world.fault_add("throttling", service="kubernetes", retry_after=1, left=5)
    world.fault_add("server-error", service="kubernetes", shape="lost-reply", operation="create", left=4)
    world.fault_add("unauthorized", service="kubernetes", left=2)
    jobs = [submit(lab, owner, team, f"j{number}", 0.5) for number in range(3)]
    all_succeed(lab, jobs)
    names = [thing["metadata"]["name"] for thing in lab.objects("jobsets.jobset.x-k8s.io")]
    assert len(names) == len(set(names)) == 3


def test_a_lost_node_is_blamed_once_and_the_job_goes_on_elsewhere(lab: KubeLab, owner: Any, team: Any) -> None:
    job = submit(lab, owner, team, "train", 4.0, nodes=2)
    lab.until("it runs", lab.job_in(job, "RUNNING"))
    lab.until("its nodes are known", lambda: len(job.attempts.get().nodes) == 2)
    lost = job.attempts.get().nodes[0]
    lab.pretend.world.node_lose(lost)
    lab.until("it was started again", lambda: job.attempts.count() == 2)
    first = job.attempts.get(number=1)
    assert (first.phase, first.stop_node) == ("NODE_FAILED", lost)
    lab.until("it succeeded", lab.job_in(job, "SUCCEEDED"))
    second = job.attempts.get(number=2)
    assert lost not in second.nodes
    assert second.excluded_nodes == [lost]


def test_a_rank_that_misses_its_peer_is_not_to_blame_for_the_node_that_died(
    lab: KubeLab, owner: Any, team: Any
) -> None:
    """The other rank ends with code 1 the moment its peer is gone, long before anybody calls the node lost."""
    script = (
        '#!/bin/bash\nmark="$QD_WORKING_DIRECTORY/$QD_ATTEMPT"\nmkdir -p "$QD_WORKING_DIRECTORY"\n'
        'if [ "$RANK" = 1 ]; then touch "$mark"; sleep 600; fi\n'
        'for i in $(seq 300); do [ -e "$QD_WORKING_DIRECTORY/gone" ] && { rm "$QD_WORKING_DIRECTORY/gone"; exit 1; }; '
        "sleep 0.1; done\n"
    )
    spec = JobSpec(
        name="gang", script=script, nodes=2, gpus_per_node=8, gpu_type="h100", time_limit_min=60, workload_kind="jobset"
    )
    job = job_submit(actor=actor_of(owner), team=team, cluster=lab.cluster, spec=spec)
    lab.until("it runs", lab.job_in(job, "RUNNING"))
    lab.until("its nodes are known", lambda: len(job.attempts.get().nodes) == 2)
    attempt = job.attempts.get()
    pods = {p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: p for p in lab.objects("pods")}
    lost = pods["1"]["spec"]["nodeName"]
    folder = next(lab.pretend.api.state_dir.rglob(f"{job.uid}"))
    lab.until("both ranks are there", (folder / attempt.uid).exists)
    lab.pretend.kubelets.eviction_s = 3.0
    lab.pretend.world.node_lose(lost)
    (folder / "gone").touch()
    lab.until("it was started again", lambda: job.attempts.count() == 2)
    first = job.attempts.get(number=1)
    assert (first.phase, first.stop_node) == ("NODE_FAILED", lost), first.message
