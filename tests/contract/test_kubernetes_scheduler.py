"""The contract of a scheduler on Kubernetes' API, on the pretend server or on any by QD_TEST_KUBECONFIG."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.kube_site import KubeSite, kube_site, now, running_job, seen_in, until_state
from tests.kubernetes_site import until
from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.kubernetes.calls import Caller
from worker.providers.kubernetes.names import object_name
from worker.providers.kubernetes.resources import EVENTS, JOBS, PODS, Resource
from worker.providers.workload_values import INDEXED_JOB, KINDS, TRAINJOB

JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
RUNTIMES = Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[KubeSite]:
    with kube_site(tmp_path) as made:
        yield made


# --- submitting


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_made_once_however_often_it_is_asked(site: KubeSite, kind: str) -> None:
    scheduler = site.scheduler()
    served = scheduler.served()
    named = {"indexed_job": "Job", "jobset": "JobSet", "pytorchjob": "PyTorchJob", "trainjob": "TrainJob"}[kind]
    if served.by_kind(named) is None:
        pytest.skip(f"the server serves no {named}")
    request = site.request(kind=kind, nodes=2, gpus_per_node=8, secret_environment={"QD_INGEST_TOKEN": "t"})
    first = scheduler.submit(request)
    second = scheduler.submit(request)
    assert first == second
    assert first.scheduler_id == f"{site.namespace}/{named}/{object_name(request.uid)}"
    job = until_state(scheduler, first.scheduler_id, "PENDING")
    assert (job.comment, job.name, job.account, job.node_count) == (request.uid, "pretrain", site.namespace, 2)
    assert job.gpus == 16
    resource = served.by_kind(named)
    assert resource is not None
    assert len(site.things(resource)) == 1
    maps = [m for m in site.things(MAPS) if m["metadata"]["name"].startswith("qd-")]
    assert len(maps) == 1
    assert maps[0]["metadata"]["ownerReferences"][0]["kind"] == named
    if kind == TRAINJOB:
        (runtime,) = site.things(RUNTIMES)
        assert runtime["metadata"]["ownerReferences"][0]["kind"] == "TrainJob"


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("after", range(4))
def test_killed_after_any_call_the_next_completes_it(
    site: KubeSite, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    scheduler = site.scheduler()
    scheduler.queue()
    request = site.request(nodes=2, secret_environment={"QD_INGEST_TOKEN": "t"}, kind=INDEXED_JOB)
    real, calls = Caller.create, 0

    def create(self: Caller, path: str, body: Any, **more: Any) -> Any:
        nonlocal calls
        made = real(self, path, body, **more)
        calls += 1
        if calls == after + 1:
            raise _Killed
        return made

    monkeypatch.setattr(Caller, "create", create)
    with pytest.raises(_Killed):
        scheduler.submit(request)
    monkeypatch.setattr(Caller, "create", real)
    scheduler.submit(request)
    assert len(site.things(JOBS)) == 1
    assert len([m for m in site.things(MAPS) if m["metadata"]["name"].startswith("qd-")]) == 1
    assert len([s for s in site.things(SECRETS) if s["metadata"]["name"].startswith("qd-")]) == 1
    (found,) = scheduler.jobs_by_comment(request.uid)
    assert found.comment == request.uid


def test_a_name_that_is_anothers_is_refused_and_left_alone(site: KubeSite) -> None:
    scheduler = site.scheduler()
    request = site.request(kind=INDEXED_JOB)
    other = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": object_name(request.uid)},
        "data": {"mine": "1"},
    }
    site.caller.create(MAPS.path(site.namespace), other)
    with pytest.raises(e.ProviderError):
        scheduler.submit(request)
    assert site.caller.get(MAPS.path(site.namespace, object_name(request.uid)))["data"] == {"mine": "1"}


def test_a_namespace_that_is_not_there_is_named(site: KubeSite) -> None:
    scheduler = site.scheduler()
    request = site.request(kind=INDEXED_JOB)
    assert request.spec is not None
    lost = replace(request, namespace="qd-nowhere", spec=replace(request.spec, namespace="qd-nowhere"))
    with pytest.raises(e.InvalidRequest, match="qd-nowhere"):
        scheduler.submit(lost)


OWN = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: "1"}
---
apiVersion: batch/v1
kind: Job
metadata: {name: mine}
spec:
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: local/test:1
        resources: {limits: {nvidia.com/gpu: "2"}}
"""


def test_a_manifest_is_made_once_and_is_one_job(site: KubeSite) -> None:
    scheduler = site.scheduler()
    request = site.manifest(OWN)
    receipt = scheduler.submit(request)
    assert scheduler.submit(request) == receipt
    assert receipt.scheduler_id == f"{site.namespace}/Manifest/{object_name(request.uid)}"
    job = until_state(scheduler, receipt.scheduler_id, "PENDING")
    assert (job.comment, job.gpus) == (request.uid, 2)
    assert [j["metadata"]["name"] for j in site.things(JOBS)] == ["mine"]
    (found,) = scheduler.jobs_by_comment(request.uid)
    assert found.scheduler_id == receipt.scheduler_id
    scheduler.cancel(receipt.scheduler_id)
    until("all of it is gone", lambda: not site.things(JOBS))
    assert "settings" not in [m["metadata"]["name"] for m in site.things(MAPS)]


def test_a_manifest_that_is_refused_in_part_leaves_nothing(site: KubeSite) -> None:
    scheduler = site.scheduler()
    bad = OWN.replace("restartPolicy: Never", "restartPolicy: Sometimes")
    with pytest.raises(e.InvalidRequest, match="document 2"):
        scheduler.submit(site.manifest(bad))
    assert "settings" not in [m["metadata"]["name"] for m in site.things(MAPS)]
    assert not site.things(JOBS)


def test_a_manifest_that_would_take_anothers_object_leaves_it_alone(site: KubeSite) -> None:
    scheduler = site.scheduler()
    taken = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"theirs": "1"}}
    site.caller.create(MAPS.path(site.namespace), taken)
    with pytest.raises(e.ProviderError, match="settings"):
        scheduler.submit(site.manifest(OWN))
    assert site.caller.get(MAPS.path(site.namespace, "settings"))["data"] == {"theirs": "1"}
    assert not site.things(JOBS)


# --- following


def test_nothing_changed_asks_nothing_and_tells_nothing(site: KubeSite) -> None:
    scheduler = site.scheduler()
    scheduler.submit(site.request(kind=INDEXED_JOB))
    until("it is seen", lambda: scheduler.queue().jobs)
    first = scheduler.queue()

    def settled() -> bool:
        nonlocal first
        again = scheduler.queue(first.as_of)
        first = again
        return again.jobs is None

    until("nothing is new", settled)
    asked = scheduler.caller.tally.requests
    again = scheduler.queue(first.as_of)
    assert again.jobs is None
    assert scheduler.caller.tally.requests == asked
    assert again.calls == 0


def test_it_runs_on_its_nodes_and_succeeds(site: KubeSite) -> None:
    scheduler = site.scheduler()
    scheduler_id, job, pods = running_job(site, scheduler)
    seen = seen_in(scheduler, scheduler_id)
    assert seen is not None
    assert (seen.nodes, seen.gpus, seen.node_count) == (tuple(site.nodes), 16, 2)
    assert seen.started_at is not None
    for pod in pods:
        site.pod_status(pod, "Succeeded", containerStatuses=site.ended(0, "Completed"))
    done = {"type": "Complete", "status": "True"}
    criteria = {"type": "SuccessCriteriaMet", "status": "True"}
    more = {"startTime": now(), "completionTime": now(), "succeeded": 2, "completedIndexes": "0,1"}
    site.status(JOBS, job["metadata"]["name"], criteria, done, **more)
    seen = until_state(scheduler, scheduler_id, "COMPLETED")
    assert seen.exit_code == 0
    assert seen.ended_at is not None


def fail(site: KubeSite, job: dict[str, Any], reason: str = "BackoffLimitExceeded") -> None:
    target = {"type": "FailureTarget", "status": "True", "reason": reason}
    failed = {"type": "Failed", "status": "True", "reason": reason}
    site.status(JOBS, job["metadata"]["name"], target, failed, startTime=job["metadata"]["creationTimestamp"], failed=1)


def test_it_fails_with_the_code_of_the_first_that_failed(site: KubeSite) -> None:
    scheduler = site.scheduler()
    scheduler_id, job, pods = running_job(site, scheduler)
    site.pod_status(pods[1], "Failed", containerStatuses=site.ended(3))
    fail(site, job)
    waits = until_state(scheduler, scheduler_id, "COMPLETING")
    assert waits.exit_code is None, "the other pod may say that its node died"
    site.pod_status(pods[0], "Succeeded", containerStatuses=site.ended(0))
    seen = until_state(scheduler, scheduler_id, "FAILED")
    assert (seen.exit_code, seen.signal) == (3, None)
    assert "exit code 3" in str(seen.why)


def test_out_of_memory_names_the_limit(site: KubeSite) -> None:
    scheduler = site.scheduler()
    scheduler_id, job, pods = running_job(site, scheduler)
    site.pod_status(pods[0], "Failed", containerStatuses=site.ended(137, "OOMKilled"))
    fail(site, job)
    seen = until_state(scheduler, scheduler_id, "OUT_OF_MEMORY")
    assert "64 GiB" in str(seen.why)
    assert (seen.exit_code, seen.signal) == (137, 9)


def test_a_lost_node_is_to_blame_and_named_first(site: KubeSite) -> None:
    scheduler = site.scheduler()
    scheduler_id, job, pods = running_job(site, scheduler)
    site.pod_status(pods[1], "Failed", reason="NodeLost", message="Node which was running the pod is unresponsive")
    site.pod_status(pods[0], "Failed", containerStatuses=site.ended(1))
    fail(site, job)
    seen = until_state(scheduler, scheduler_id, "NODE_FAIL")
    assert seen.nodes[0] == site.nodes[1]
    assert site.nodes[1] in str(seen.why)


def test_a_pod_that_was_deleted_with_its_node_is_remembered(site: KubeSite) -> None:
    scheduler = site.scheduler()
    scheduler_id, job, pods = running_job(site, scheduler)
    taken = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    site.pod_status(pods[1], "Failed", conditions=[{**taken, "lastTransitionTime": now()}])
    site.caller.delete(PODS.path(site.namespace, pods[1]["metadata"]["name"]), grace_s=0)
    site.caller.delete(PODS.path(site.namespace, pods[0]["metadata"]["name"]), grace_s=0)
    fail(site, job)
    seen = until_state(scheduler, scheduler_id, "NODE_FAIL")
    assert seen.nodes[0] == site.nodes[1]


def test_the_time_limit_is_a_timeout(site: KubeSite) -> None:
    scheduler = site.scheduler()
    scheduler_id, job, _pods = running_job(site, scheduler)
    fail(site, job, "DeadlineExceeded")
    until_state(scheduler, scheduler_id, "TIMEOUT")


def test_what_cannot_be_placed_waits_with_the_schedulers_reason(site: KubeSite) -> None:
    scheduler = site.scheduler()
    request = site.request(kind=INDEXED_JOB)
    receipt = scheduler.submit(request)
    job = site.begin(JOBS, object_name(request.uid))
    pod = site.pod(job, 0)
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    row = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    site.pod_status(pod, "Pending", conditions=[{**row, "lastTransitionTime": now()}])

    def told() -> v.SchedulerJob | None:
        seen = seen_in(scheduler, receipt.scheduler_id)
        return seen if seen is not None and seen.reason == "UnschedulableInsufficient" else None

    seen = until("the reason is told", told)
    assert seen.state == "PENDING"
    assert "3 have not enough nvidia.com/gpu" in str(seen.why)


def test_what_was_deleted_past_the_portal_is_cancelled(site: KubeSite) -> None:
    scheduler = site.scheduler()
    request = site.request(kind=INDEXED_JOB)
    receipt = scheduler.submit(request)
    until_state(scheduler, receipt.scheduler_id, "PENDING")
    site.caller.delete(JOBS.path(site.namespace, object_name(request.uid)))
    until("it is out of the queue", lambda: seen_in(scheduler, receipt.scheduler_id) is None)
    (ended,) = scheduler.accounted([receipt.scheduler_id])
    assert (ended.state, ended.reason, ended.comment) == ("CANCELLED", "Deleted", request.uid)
    # A process that never saw it says the same.
    (ended,) = site.scheduler().accounted([receipt.scheduler_id])
    assert (ended.state, ended.reason) == ("CANCELLED", "Deleted")


def test_a_job_that_somebody_else_made_is_seen_too(site: KubeSite) -> None:
    scheduler = site.scheduler()
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "by-hand"},
        "spec": {
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "local/test:1"}]}},
        },
    }
    site.caller.create(JOBS.path(site.namespace), job)
    seen = until_state(scheduler, f"{site.namespace}/Job/by-hand", "PENDING")
    assert (seen.comment, seen.account) == ("", site.namespace)


def test_a_node_that_was_lost_before_anyone_looked_is_known_by_its_events(site: KubeSite) -> None:
    request = site.request(kind=INDEXED_JOB)
    receipt = site.scheduler().submit(request)
    name = object_name(request.uid)
    job = site.begin(JOBS, name)
    fail(site, job)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}-0-abcde.1", "namespace": site.namespace},
        "involvedObject": {"kind": "Pod", "namespace": site.namespace, "name": f"{name}-0-abcde", "apiVersion": "v1"},
        "reason": "TaintManagerEviction",
        "message": f"Marking for deletion Pod {site.namespace}/{name}-0-abcde",
        "type": "Normal",
        "firstTimestamp": now(),
        "lastTimestamp": now(),
        "count": 1,
        "source": {"component": "taint-eviction-controller"},
    }
    site.caller.create(EVENTS.path(site.namespace), event)
    seen = until_state(site.scheduler(), receipt.scheduler_id, "NODE_FAIL")
    assert seen.reason == "NodeLost"
