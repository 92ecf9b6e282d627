"""Jobs of every kind that Kueue lets in: why they wait, who takes their place, holding, and what a sweep leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.audit.models import Event
from apps.checkpoints.models import Checkpoint
from apps.core import clock
from apps.jobs.models import Attempt, Job
from apps.jobs.services import job_submit
from tests.conftest import actor_of
from tests.worker.kube_world import KubeWorld, kube_world
from worker import doors
from worker.providers import values as v

pytestmark = pytest.mark.django_db(transaction=True)
KUEUE = "kueue.x-k8s.io/v1beta2"
SLEEP = "#!/bin/bash\nexec sleep 60\n"


@pytest.fixture
def world(tmp_path: Path, cluster: Any, team: Any, work: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeWorld]:
    with kube_world(tmp_path, cluster, team, work, monkeypatch, scheduler="kueue") as made:
        apply = made.pretend.api.apply
        for name, value in (("low", 10), ("high", 1000)):
            apply({"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value})
        apply({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "p5"}, "spec": {}})
        quota = [{"name": "nvidia.com/gpu", "nominalQuota": "8"}, {"name": "cpu", "nominalQuota": "1000"}]
        quota.append({"name": "memory", "nominalQuota": "8000Gi"})
        group = {
            "coveredResources": ["nvidia.com/gpu", "cpu", "memory"],
            "flavors": [{"name": "p5", "resources": quota}],
        }
        spec = {
            "namespaceSelector": {},
            "resourceGroups": [group],
            "preemption": {"withinClusterQueue": "LowerPriority"},
        }
        apply({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "nlp"}, "spec": spec})
        head = {"name": "nlp", "namespace": "nlp"}
        apply({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": head, "spec": {"clusterQueue": "nlp"}})
        made.node("n1")
        made.node("n2")
        yield made


def submit(world: KubeWorld, team: Any, owner: Any, spec: Any, **changes: Any) -> Job:
    whole = {"nodes": 1, "gpus_per_node": 8, "gpu_type": "h100", **changes}
    return job_submit(actor=actor_of(owner), team=team, cluster=world.row, spec=replace(spec, **whole))


def last(job: Job) -> Attempt:
    found = Attempt.objects.filter(job=job).order_by("-number").first()
    assert found is not None
    return found


def phase(job: Job) -> str:
    return Job.objects.get(pk=job.pk).phase


@pytest.mark.parametrize("kind", ["indexed_job", "jobset", "pytorchjob", "trainjob"])
def test_every_kind_runs_on_two_nodes_and_succeeds(
    world: KubeWorld, team: Any, owner: Any, spec: Any, kind: str
) -> None:
    job = submit(world, team, owner, spec, nodes=2, gpus_per_node=4, workload_kind=kind)
    world.until("it ends", lambda: phase(job) == "SUCCEEDED")
    attempt = last(job)
    assert len(attempt.nodes) >= 1
    assert attempt.exit_code == 0
    assert Attempt.objects.filter(job=job).count() == 1


@pytest.mark.parametrize("kind", ["jobset", "pytorchjob", "trainjob"])
def test_every_kind_tells_the_code_that_it_failed_with(
    world: KubeWorld, team: Any, owner: Any, spec: Any, kind: str
) -> None:
    job = submit(world, team, owner, spec, workload_kind=kind, script="#!/bin/bash\nexit 5\n", max_recoveries=0)
    world.until("it ends", lambda: phase(job) == "FAILED")
    assert last(job).exit_code == 5


def test_who_takes_a_place_is_named_and_the_next_attempt_waits_with_the_newest_checkpoint(
    world: KubeWorld, team: Any, owner: Any, spec: Any
) -> None:
    """Let in again, the same attempt would begin where it once began, and write over what it has saved since."""
    low = submit(world, team, owner, spec, name="low-one", script=SLEEP, priority_class="low")
    world.until("it runs", lambda: phase(low) == "RUNNING")
    Checkpoint.objects.create(
        series=low.series, attempt_uid=last(low).uid, path="/ckpt/149", step=149, state="COMPLETE"
    )
    high = submit(world, team, owner, spec, name="urgent", script=SLEEP, priority_class="high")
    world.until("the urgent one runs", lambda: phase(high) == "RUNNING")
    world.until("the next one waits", lambda: last(low).number == 2 and last(low).observed_state == "PENDING")
    first, second = low.attempts.order_by("number")
    assert (first.phase, first.reason) == ("REQUEUED", "Preempted")
    assert (second.resume_from, second.resume_step) == ("/ckpt/149", 149)
    told = Event.objects.get(object_uid=low.uid, kind="AttemptInterrupted")
    assert "urgent of nlp took its place by its priority" in str(told.text)
    assert "1000" in str(told.text)


def test_quota_in_use_is_why_it_waits(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    first = submit(world, team, owner, spec, script=SLEEP)
    world.until("it runs", lambda: phase(first) == "RUNNING")
    second = submit(world, team, owner, spec)
    world.until("it waits", lambda: last(second).observed_reason == "QuotaInUse")
    assert "8 more of nvidia.com/gpu are needed in p5" in str(last(second).observed_words)


def test_more_than_the_quota_is_said_at_once(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    job = submit(world, team, owner, spec, nodes=2)
    world.until("it waits", lambda: last(job).observed_reason == "MoreThanQuota")
    assert "16 of 8" in str(last(job).observed_words)


def test_held_it_does_not_begin(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    first = submit(world, team, owner, spec, script=SLEEP)
    world.until("it runs", lambda: phase(first) == "RUNNING")
    second = submit(world, team, owner, spec)
    world.until("it waits", lambda: last(second).observed_reason == "QuotaInUse")
    scheduler = doors.scheduler_for(world.row)
    scheduler.hold(last(second).scheduler_id)
    world.until("it is held", lambda: last(second).observed_reason == "JobHeldUser")
    scheduler.cancel(last(first).scheduler_id)
    world.until("the first is gone", lambda: phase(first) == "CANCELLED")
    assert last(second).observed_state == "PENDING"
    scheduler.release(last(second).scheduler_id)
    world.until("it ends", lambda: phase(second) == "SUCCEEDED")


def test_ended_ones_are_swept_after_a_day_and_nobody_elses(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    job = submit(world, team, owner, spec)
    world.until("it ends", lambda: phase(job) == "SUCCEEDED")
    world.pretend.api.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": "theirs",
                "namespace": "nlp",
                "labels": {"app.kubernetes.io/managed-by": "quarterdeck", "quarterdeck.dev/attempt": "att_of_another"},
            },
        }
    )
    world.until("a young one stays", lambda: True, "cluster.sweep")
    assert world.count("jobs.batch") == 1
    Attempt.objects.filter(job=job).update(ended_at=clock.now() - timedelta(days=2))
    world.until("it is swept", lambda: world.count("jobs.batch") == 0, "cluster.sweep")
    names = [m["metadata"]["name"] for m in world.pretend.api.store.scan("configmaps", "nlp")]
    assert "theirs" in names
    world.until("its files go with it", lambda: world.count("configmaps") <= 2, "cluster.sweep")


def test_the_priority_class_can_be_changed(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    first = submit(world, team, owner, spec, script=SLEEP, priority_class="high")
    world.until("it runs", lambda: phase(first) == "RUNNING")
    second = submit(world, team, owner, spec, priority_class="low")
    world.until("it waits", lambda: last(second).observed_reason == "QuotaInUse")
    doors.scheduler_for(world.row).update(last(second).scheduler_id, v.JobChange(priority_class="high"))
    name = last(second).scheduler_id.rpartition("/")[2]
    found = [j for j in world.pretend.api.store.scan("jobs.batch", "nlp") if j["metadata"]["name"] == name]
    assert found[0]["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
