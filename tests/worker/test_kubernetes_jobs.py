"""Jobs on a pretend Kubernetes through the same reconciler and collectors as on Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.clusters.models import Node
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.states import Unit
from apps.intents.services import intent_ask
from apps.jobs.models import Attempt, Job, JobHappening, LogChunk, RunnerStream
from apps.jobs.services import job_stop, job_submit
from tests.conftest import actor_of
from tests.worker.kube_world import KubeWorld, kube_world
from worker.providers.kubernetes.calls import Caller

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world(tmp_path: Path, cluster: Any, team: Any, work: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeWorld]:
    with kube_world(tmp_path, cluster, team, work, monkeypatch) as made:
        yield made


def submit(world: KubeWorld, team: Any, owner: Any, spec: Any, **changes: Any) -> Job:
    return job_submit(actor=actor_of(owner), team=team, cluster=world.row, spec=replace(spec, **changes))


def last(job: Job) -> Attempt:
    found = Attempt.objects.filter(job=job).order_by("-number").first()
    assert found is not None
    return found


def phase(job: Job) -> str:
    return Job.objects.get(pk=job.pk).phase


ONE = {"nodes": 1, "gpus_per_node": 8, "gpu_type": "h100"}


def test_a_job_runs_and_is_settled(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    world.node("n2")
    node = Node.objects.get(name="n1")
    assert (node.instance_type, node.gpus, node.phase, node.partitions) == ("p5.48xlarge", 8, "READY", ["p5"])
    job = submit(world, team, owner, spec, script="#!/bin/bash\nsleep 1\necho done\n")
    world.until("it ends", lambda: phase(job) == "SUCCEEDED")
    attempt = last(job)
    assert attempt.scheduler_id.startswith("nlp/Job/qd-att-")
    assert sorted(attempt.nodes) == ["n1", "n2"]
    assert attempt.exit_code == 0
    assert attempt.started_at is not None
    assert attempt.ended_at is not None
    assert standing_of(team, Unit.GPUS).held == 0
    assert standing_of(team, Unit.USD).held == 0
    assert ledger_check().is_balanced


def test_it_waits_as_a_whole_and_says_for_what(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    world.node("n2")
    world.occupy("n2")
    job = submit(world, team, owner, spec)
    world.until("it waits", lambda: last(job).observed_reason == "NoRoom")
    assert "there is room for 1 now" in str(last(job).observed_words)
    assert world.count("pods") == 0
    world.free("n2")
    world.until("it ends", lambda: phase(job) == "SUCCEEDED")


def test_a_failure_says_its_exit_code(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    job = submit(world, team, owner, spec, **ONE, script="#!/bin/bash\nexit 7\n", max_recoveries=0)
    world.until("it ends", lambda: phase(job) == "FAILED")
    assert last(job).exit_code == 7
    assert "exit code 7" in str(last(job).message)


def test_a_cancel_ends_its_pods(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    job = submit(world, team, owner, spec, **ONE, script="#!/bin/bash\nexec sleep 60\n")
    world.until("it runs", lambda: phase(job) == "RUNNING")
    job_stop(actor=actor_of(owner), job=Job.objects.get(pk=job.pk), kind="cancel")
    world.until("it is cancelled", lambda: phase(job) == "CANCELLED")
    world.until("its pods are gone", lambda: world.count("pods") == 0)
    assert world.count("jobs.batch") == 0
    assert ledger_check().is_balanced


def test_a_lost_node_starts_it_again_elsewhere(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    job = submit(world, team, owner, spec, **ONE, script='#!/bin/bash\n[ -n "${QD_TEST:-}" ] || exec sleep 60\n')
    world.until("it runs", lambda: phase(job) == "RUNNING")
    world.node("n2")
    world.pretend.kubelets.lose_node("n1")
    first = last(job)
    world.until("the attempt failed with its node", lambda: Attempt.objects.get(pk=first.pk).phase == "NODE_FAILED")
    world.until("the next one runs", lambda: last(job).number == 2 and last(job).phase == "RUNNING")
    assert last(job).nodes == ["n2"]
    job_stop(actor=actor_of(owner), job=Job.objects.get(pk=job.pk), kind="cancel")
    world.until("it is cancelled", lambda: phase(job) == "CANCELLED")


class _Killed(BaseException):
    pass


def test_killed_between_create_and_save_there_is_one(
    world: KubeWorld, team: Any, owner: Any, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.node("n1")
    real, left = Caller.create, [2]

    def create(self: Caller, path: str, body: Any, **more: Any) -> Any:
        made = real(self, path, body, **more)
        left[0] -= 1
        if left[0] >= 0:
            raise _Killed
        return made

    job = submit(world, team, owner, spec, **ONE)
    monkeypatch.setattr(Caller, "create", create)
    for _ in range(2):
        with pytest.raises(_Killed):
            world.until("killed", lambda: False, "job.reconcile")
        from apps.core import clock
        from apps.intents.models import Intent

        Intent.objects.update(due_at=clock.now(), leased_until=None, lease="")
    world.until("it ends", lambda: phase(job) == "SUCCEEDED")
    assert world.count("jobs.batch") == 1
    assert len([m for m in world.pretend.api.store.scan("configmaps", "nlp") if "qd-" in m["metadata"]["name"]]) == 1
    assert Attempt.objects.filter(job=job).count() == 1


def test_a_refused_job_ends_and_leaves_nothing(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    job = submit(world, team, owner, spec, **ONE)
    Job.objects.filter(pk=job.pk).update(priority_class="no-such", environment={"A-B": "1"}, image="bad\nname")
    world.until("it is refused", lambda: phase(job) == "FAILED")
    assert last(job).phase == "REFUSED"
    assert "no name of an image" in str(last(job).message)
    assert world.count("jobs.batch") == 0


MANIFEST = """\
apiVersion: batch/v1
kind: Job
metadata: {name: mine}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  backoffLimit: 0
  activeDeadlineSeconds: 3600
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: local/test:1
        command: [sh, -c, "for i in 1 2 3; do echo rank $JOB_COMPLETION_INDEX line $i; sleep 0.3; done"]
        resources: {limits: {nvidia.com/gpu: "8"}}
"""


def test_output_of_pods_is_read_by_rank_and_once(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    world.node("n2")
    job = submit(world, team, owner, spec)
    Job.objects.filter(pk=job.pk).update(manifest=MANIFEST, workload_kind="manifest")
    kinds = ("job.reconcile", "cluster.queue", "cluster.pod_logs")
    world.until("it ends", lambda: phase(job) == "SUCCEEDED", *kinds)
    done = RunnerStream.objects.filter(attempt__job=job, role="pod", exit_code=0)
    world.until("all is read", lambda: done.count() == 2, *kinds)
    for rank in range(2):
        stream = done.get(rank=rank)
        text = "".join(LogChunk.objects.filter(runner_id=stream.runner_id).values_list("text", flat=True))
        assert text == "".join(f"rank {rank} line {n}\n" for n in (1, 2, 3))
    world.until("asked again nothing comes", lambda: True, "cluster.pod_logs")
    assert sum(len(c.text) for c in LogChunk.objects.filter(attempt__job=job)) == 2 * 3 * len("rank 0 line 1\n")


def test_what_the_cluster_says_is_told_once(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    job = submit(world, team, owner, spec, **ONE, script="#!/bin/bash\nexec sleep 60\n")
    kinds = ("job.reconcile", "cluster.queue", "cluster.happenings")
    world.until("it runs", lambda: phase(job) == "RUNNING", *kinds)
    world.pretend.kubelets.lose_node("n1")
    rows = JobHappening.objects.filter(attempt__job=job, attempt__number=1, code="NodeTainted")
    world.until("it is told", rows.exists, *kinds)
    from worker.collectors import happenings

    before = JobHappening.objects.count()
    happenings._told.clear()
    happenings.tell(world.row.uid)
    assert JobHappening.objects.count() == before
    assert rows.get().is_bad


def test_a_job_made_with_kubectl_is_its_teams(world: KubeWorld, team: Any) -> None:
    world.node("n1")
    container = {
        "name": "a",
        "image": "local/test:1",
        "command": ["sleep", "30"],
        "resources": {"limits": {"nvidia.com/gpu": "4"}},
    }
    world.pretend.api.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "by-hand", "namespace": "nlp"},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
        }
    )
    found = Job.objects.filter(name="by-hand")
    world.until(
        "it is taken in", lambda: found.exists() and found.get().phase == "RUNNING", "cluster.queue", "cluster.outside"
    )
    assert (found.get().team, found.get().origin) == (team, "outside")


def test_a_cluster_is_connected_and_says_what_it_is(world: KubeWorld) -> None:
    from apps.clusters.kube_models import KubernetesSettings

    intent_ask("cluster.connect", world.row.uid)
    world.work("cluster.connect")
    settings = KubernetesSettings.objects.get(cluster=world.row)
    assert "jobset.x-k8s.io/v1alpha2 JobSet" in settings.observed["kinds"]
    assert settings.observed["kueue"] == "v1beta2"
    assert settings.observed["may"]["create jobs"] is True
    world.row.refresh_from_db()
    assert (world.row.phase, world.row.observed_version[:3]) == ("READY", "v1.")


def test_wishes_about_a_job_are_sent_or_refused_in_words(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    from apps.jobs.action_models import JobAction

    world.node("n1")
    job = submit(world, team, owner, spec, **ONE, script="#!/bin/bash\nexec sleep 60\n", time_limit_min=60)
    world.until("it runs", lambda: phase(job) == "RUNNING")
    common = {"job": job, "attempt": last(job), "asked_by": "owner", "phase": "ASKED"}
    longer = JobAction.objects.create(uid="jac_1", kind="TIME_LIMIT", parameters={"time_limit_min": 90}, **common)
    signal = JobAction.objects.create(uid="jac_2", kind="SIGNAL", parameters={"signal": "USR1"}, **common)
    intent_ask("job.act", job.uid)
    ended = JobAction.objects.filter(job=job).exclude(phase__in=["ASKED", "SENT"])
    world.until("both are settled", lambda: ended.count() == 2)
    longer.refresh_from_db()
    signal.refresh_from_db()
    assert longer.phase == "DONE"
    assert signal.phase == "REFUSED"
    assert "SIGTERM" in str(signal.answer)
    world.until("the limit is followed", lambda: Job.objects.get(pk=job.pk).time_limit_min == 90)
