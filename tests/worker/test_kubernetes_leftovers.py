"""Nothing runs on that nobody pays for, nothing of ours stays, and nothing of others goes: manifests and copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.clusters.kube_models import KubernetesSettings, TeamNamespace
from apps.clusters.models import Cluster
from apps.core import clock
from apps.costs.selectors import standing_of
from apps.costs.states import Unit
from apps.intents.models import Intent
from apps.intents.services import intent_ask
from apps.jobs.models import Attempt, Job
from apps.jobs.queue_models import QueueEntry
from apps.jobs.services import job_stop, job_submit
from apps.jobs.states import JobOrigin
from tests.chaos import Crash
from tests.conftest import actor_of
from tests.worker.kube_world import KubeWorld, kube_world
from worker import kube_doors
from worker.collectors.kube_sweep import sweep
from worker.providers.kubernetes.calls import Caller
from worker.reconcilers import jobs as reconciler

pytestmark = pytest.mark.django_db(transaction=True)
SETTINGS = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: b}\n---\n"


@pytest.fixture
def world(tmp_path: Path, cluster: Any, team: Any, work: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeWorld]:
    with kube_world(tmp_path, cluster, team, work, monkeypatch) as made:
        yield made


def one(name: str, command: str, gpus: int = 8) -> str:
    return f"""apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: registry.example/one:1
          command: {command}
          resources:
            limits: {{nvidia.com/gpu: {gpus}}}
"""


def submit(world: KubeWorld, team: Any, owner: Any, spec: Any, manifest: str = "", script: str = "") -> Job:
    asked = {"nodes": 1, "gpus_per_node": 0, "gpu_type": "", "script": script, "time_limit_min": 60, "environment": {}}
    asked = {**asked, "gpus_per_node": 8, "gpu_type": "h100"} if script else asked
    return job_submit(
        actor=actor_of(owner), team=team, cluster=world.row, spec=replace(spec, **asked, manifest=manifest)
    )


def phase(job: Job) -> str:
    return Job.objects.get(pk=job.pk).phase


def has_ended(job: Job) -> bool:
    return phase(job) in ("FAILED", "SUCCEEDED", "CANCELLED")


def names(world: KubeWorld, resource: str) -> set[str]:
    found = {thing["metadata"]["name"] for thing in world.pretend.api.store.scan(resource, "nlp")}
    return found - {"kube-root-ca.crt"}


def live(world: KubeWorld) -> list[str]:
    pods = world.pretend.api.store.scan("pods", "nlp")
    return [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") in ("Running", "Pending")]


def test_a_part_that_fails_takes_the_others_along(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    text = one("big", '[sleep, "300"]') + "---\n" + one("small", '[sh, -c, "sleep 1; exit 3"]', 0)
    job = submit(world, team, owner, spec, text)
    held: list[tuple[list[str], Any]] = []

    def ends() -> bool:
        held.append((live(world), standing_of(team, Unit.GPUS).held))
        return has_ended(job)

    world.until("it ends", ends)
    assert phase(job) == "FAILED"
    assert Job.objects.get(pk=job.pk).exit_code == 3
    assert live(world) == []
    assert all(gpus == 8 for pods, gpus in held if any(pod.startswith("big") for pod in pods)), "what runs is held"
    assert standing_of(team, Unit.GPUS).held == standing_of(team, Unit.USD).held == 0
    assert names(world, "jobs.batch") == {"small"}, "what failed stays to be looked at"


def test_what_memory_missed_is_ended_before_it_is_settled(
    world: KubeWorld, team: Any, owner: Any, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The big part is there and, for this process, has not been seen yet."""
    from worker.providers.kubernetes import scheduler as module

    world.node("n1")
    real = module.gather

    def partly(*given: Any, **more: Any) -> Any:
        found = real(*given, **more)
        for work in found.values():
            work.parts = [part for part in work.parts if part.name != "big"] if len(work.parts) > 1 else work.parts
        return found

    monkeypatch.setattr(module, "gather", partly)
    text = one("big", '[sleep, "300"]') + "---\n" + one("small", '[sh, -c, "sleep 2"]', 0)
    job = submit(world, team, owner, spec, text)
    world.until("it ends", lambda: has_ended(job))
    assert phase(job) == "SUCCEEDED"
    assert live(world) == []


def test_a_name_that_is_taken_refuses_the_job(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "nlp"}, "data": {}}
    world.pretend.api.apply(other)
    job = submit(world, team, owner, spec, SETTINGS + one("mine", '[sleep, "1"]'))
    world.until("it ends", lambda: has_ended(job), timeout_s=10)
    assert phase(job) == "FAILED"
    assert Attempt.objects.get(job=job).phase == "REFUSED"
    assert "configmaps settings in namespace nlp is there already" in str(Job.objects.get(pk=job.pk).message)
    assert standing_of(team, Unit.GPUS).held == 0
    assert names(world, "configmaps") == {"settings"}, "somebody else's stays"


def test_half_made_and_cancelled_leaves_nothing(
    world: KubeWorld, team: Any, owner: Any, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.node("n1")
    real, dead = Caller.create, []

    def create(self: Caller, path: str, body: Any, **more: Any) -> Any:
        if body.get("kind") == "Job" and not more.get("dry_run") and not dead:
            dead.append(1)
            raise Crash
        return real(self, path, body, **more)

    monkeypatch.setattr(Caller, "create", create)
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: mine}\nstringData: {a: b}\n---\n"
    job = submit(world, team, owner, spec, SETTINGS + secret + one("j", '[sleep, "1"]'))
    with pytest.raises(Crash):
        world.until("the worker dies", lambda: False)
    assert names(world, "configmaps") == {"settings"}
    Intent.objects.update(leased_until=None, lease="")
    kube_doors.close_all()
    monkeypatch.setattr(reconciler, "DOUBT", timedelta(0))
    job_stop(actor=actor_of(owner), job=Job.objects.get(pk=job.pk), kind="cancel")
    world.until("it is cancelled", lambda: phase(job) == "CANCELLED")
    assert names(world, "configmaps") == names(world, "secrets") == set()


def test_the_sweep_finds_what_is_no_workload(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    job = submit(world, team, owner, spec, SETTINGS + one("mine", '[sleep, "1"]', 0))
    world.until("it ends", lambda: phase(job) == "SUCCEEDED")
    (mine,) = world.pretend.api.store.scan("jobs.batch", "nlp")
    caller = kube_doors.kubernetes_for(world.row).caller
    caller.delete(f"/apis/batch/v1/namespaces/nlp/jobs/{mine['metadata']['name']}")
    assert names(world, "configmaps") == {"settings"}
    sweep(world.row.uid)
    assert names(world, "configmaps") == {"settings"}, "kept for a day"
    Attempt.objects.filter(job=job).update(ended_at=clock.now() - timedelta(days=2))
    sweep(world.row.uid)
    assert names(world, "configmaps") == set()


@pytest.mark.parametrize("is_manifest", [False, True])
def test_a_copy_of_ours_is_its_makers(world: KubeWorld, team: Any, owner: Any, spec: Any, *, is_manifest: bool) -> None:
    """``kubectl get -o yaml``, another name, ``kubectl apply``: labels and annotations come along."""
    world.node("n1")
    made = {"manifest": SETTINGS + one("orig", '[sleep, "1"]')} if is_manifest else {"script": "#!/bin/sh\nsleep 1\n"}
    job = submit(world, team, owner, spec, **made)
    world.until("it ends", lambda: phase(job) == "SUCCEEDED")
    (first,) = world.pretend.api.store.scan("jobs.batch", "nlp")
    head = {key: first["metadata"].get(key) or {} for key in ("labels", "annotations")}
    container = {"name": "main", "image": "a/b:1", "command": ["sleep", "300"]}
    body = {"restartPolicy": "Never", "containers": [container]}
    whole = {"backoffLimit": 0, "template": {"metadata": head, "spec": body}}
    copy = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "copy", "namespace": "nlp", **head}}
    world.pretend.api.apply({**copy, "spec": whole})
    notes = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "notes", "namespace": "nlp", **head}}
    world.pretend.api.apply(notes)
    world.until("the copy runs", lambda: any(pod.startswith("copy") for pod in live(world)))
    Attempt.objects.filter(job=job).update(ended_at=clock.now() - timedelta(days=2))

    def swept() -> bool:
        sweep(world.row.uid)
        return names(world, "jobs.batch") == {"copy"}

    world.until("what is ours is gone", swept)
    assert any(pod.startswith("copy") for pod in live(world))
    assert "notes" in names(world, "configmaps")


def test_a_copy_is_not_ended_with_the_job(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    job = submit(world, team, owner, spec, one("orig", '[sleep, "2"]', 0))
    world.until("it runs", lambda: phase(job) == "RUNNING")
    (first,) = world.pretend.api.store.scan("jobs.batch", "nlp")
    head = {key: first["metadata"].get(key) or {} for key in ("labels", "annotations")}
    body = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a/b:1", "command": ["sleep", "300"]}]}
    copy = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "copy", "namespace": "nlp", **head}}
    world.pretend.api.apply({**copy, "spec": {"backoffLimit": 0, "template": {"metadata": head, "spec": body}}})
    world.until("it ends", lambda: has_ended(job))
    assert phase(job) == "SUCCEEDED"
    assert any(pod.startswith("copy") for pod in live(world))


def test_two_rows_of_one_server_count_a_job_once(world: KubeWorld, team: Any, owner: Any, spec: Any) -> None:
    world.node("n1")
    second = Cluster.objects.get(pk=world.row.pk)
    second.pk, second.uid, second.name = None, "clu_second", "second"
    second._state.adding = True
    second.save()
    known = KubernetesSettings.objects.get(cluster=world.row)
    known.pk, known.uid, known.cluster = None, "kst_second", second
    known._state.adding = True
    known.save()
    TeamNamespace.objects.create(cluster=second, team=team, namespace="nlp", queue="nlp")
    job = submit(world, team, owner, spec, script="#!/bin/sh\nsleep 25\n")
    world.until("it runs", lambda: phase(job) == "RUNNING")
    rows = []

    def read() -> bool:
        for kind in ("cluster.queue", "cluster.outside"):
            intent_ask(kind, "clu_second")
        Cluster.objects.update(queue_read_at=None)
        rows.append(1)
        return len(rows) > 8 and QueueEntry.objects.filter(cluster=second, state="RUNNING").exists()

    world.until("the other row read it", read, "cluster.queue", "cluster.outside", "job.reconcile")
    assert not Job.objects.filter(origin=JobOrigin.OUTSIDE).exists()
    assert standing_of(team, Unit.GPUS).held == 8


def test_a_stop_is_charged_as_long_as_its_pods_take(
    world: KubeWorld, team: Any, owner: Any, spec: Any, settings: Any
) -> None:
    world.node("n1")
    settings.CONFIG = settings.CONFIG.model_copy(update={"charge_every_s": 0.5})
    command = '[sh, -c, "trap : TERM; while true; do sleep 0.2; done"]'
    text = one("stubborn", command).replace("PeriodSeconds: 1", "PeriodSeconds: 8")
    job = submit(world, team, owner, spec, text)
    world.until("it runs", lambda: phase(job) == "RUNNING")
    job_stop(actor=actor_of(owner), job=Job.objects.get(pk=job.pk), kind="cancel")
    world.until("it is being stopped", lambda: Attempt.objects.get(job=job).phase == "STOPPING")
    before = Attempt.objects.get(job=job).charged_until_at
    world.until(
        "time was charged", lambda: (Attempt.objects.get(job=job).charged_until_at or before) != before, timeout_s=6
    )
    assert Attempt.objects.get(job=job).phase == "STOPPING"
    assert live(world)


@pytest.mark.parametrize("is_manifest", [False, True])
def test_a_finalizer_does_not_keep_a_job_running(
    world: KubeWorld, team: Any, owner: Any, spec: Any, monkeypatch: pytest.MonkeyPatch, *, is_manifest: bool
) -> None:
    world.node("n1")
    made = {"manifest": one("kept", '[sleep, "300"]')} if is_manifest else {"script": "#!/bin/sh\nexec sleep 300\n"}
    job = submit(world, team, owner, spec, **made)
    world.until("it runs", lambda: phase(job) == "RUNNING")
    (mine,) = world.pretend.api.store.scan("jobs.batch", "nlp")
    caller = kube_doors.kubernetes_for(world.row).caller
    path = f"/apis/batch/v1/namespaces/nlp/jobs/{mine['metadata']['name']}"
    caller.patch(path, {"metadata": {"finalizers": ["example.com/keep"]}})
    monkeypatch.setattr(reconciler, "RESEND_STOP", timedelta(seconds=1))
    job_stop(actor=actor_of(owner), job=Job.objects.get(pk=job.pk), kind="cancel")
    world.until("it is cancelled", lambda: phase(job) == "CANCELLED")
    assert live(world) == []
    assert standing_of(team, Unit.GPUS).held == standing_of(team, Unit.USD).held == 0
