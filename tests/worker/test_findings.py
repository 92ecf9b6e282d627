"""From an exporter's page to a drained node and a restarted job."""

from __future__ import annotations

from typing import Any

import pytest

from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.models import Cluster, Node
from apps.core import clock
from apps.health.models import Finding
from apps.health.selectors import finding_sentence
from apps.health.services import finding_acknowledge, finding_resolve
from apps.jobs.models import Job
from tests.conftest import actor_of
from tests.worker.fakes import Crash, FakeExporter, FakeScheduler, page
from worker.collectors import exporters

pytestmark = pytest.mark.django_db


@pytest.fixture
def watched(cluster: Cluster) -> Cluster:
    Cluster.objects.filter(pk=cluster.pk).update(exporter_url="http://127.0.0.1:9/{node}")
    return Cluster.objects.get(pk=cluster.pk)


def start(job: Job, scheduler: FakeScheduler, work: Any, tick: Any) -> None:
    work("job.reconcile")
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)


def test_xid_79_drains_the_node_and_restarts_the_job(
    watched: Cluster, job: Job, scheduler: FakeScheduler, exporter: FakeExporter, work: Any, tick: Any
) -> None:
    start(job, scheduler, work, tick)
    exporter.pages["p5-2"] = page("p5-2", {3: {79: 1}}, off_bus=[3])
    exporters.read_all(watched.uid)
    finding = Finding.objects.get(source="xid")
    assert finding.title == "XID 79 GPU_HAS_FALLEN_OFF_THE_BUS"
    assert finding.severity == "reboot"
    assert finding.evidence["pci_bus_id"] == "00000000:33:00.0"
    assert not Finding.objects.filter(code="GpuMissing").exists()
    finding.refresh_from_db()
    assert (finding.evidence["gpus_expected"], finding.evidence["gpus_visible"]) == (8, 7)
    work("finding.respond", "node.drain", "job.reconcile")
    assert scheduler.drained == {"p5-2": "XID 79 GPU_HAS_FALLEN_OFF_THE_BUS"}
    tick(job.cluster)
    first, second = job.attempts.order_by("number")
    assert (first.phase, first.stop_node, second.excluded_nodes) == ("NODE_FAILED", "p5-2", ["p5-2"])
    finding.refresh_from_db()
    assert finding.response == "drained p5-2, restarting train"
    assert "drained p5-2" in finding_sentence(finding)


def test_a_gpu_that_was_missed_before_its_xid_joins_it(
    watched: Cluster, scheduler: FakeScheduler, exporter: FakeExporter
) -> None:
    exporter.pages["p5-2"] = page("p5-2", {}, off_bus=[3])
    exporters.read_all(watched.uid)
    missing = Finding.objects.get(code="GpuMissing")
    exporter.pages["p5-2"] = page("p5-2", {3: {79: 1}}, off_bus=[3])
    for _ in range(2):
        exporters.read_all(watched.uid)
    live = Finding.objects.get(phase="OPEN")
    assert live.code == "79"
    assert live.evidence["joined_finding"] == missing.uid
    missing.refresh_from_db()
    assert (missing.phase, missing.resolved_by) == ("RESOLVED", "health")
    assert live.evidence["missing_since"] == clock.iso(missing.first_seen_at)
    # What the GPU did is still its finding's news: it was seen to be gone just now.
    assert live.last_seen_at >= missing.first_seen_at
    assert live.node.health_events.filter(code="GpuMissing").count() == 2


def test_a_second_missing_gpu_is_not_explained_by_the_first_ones_xid(
    watched: Cluster, scheduler: FakeScheduler, exporter: FakeExporter
) -> None:
    exporter.pages["p5-2"] = page("p5-2", {3: {79: 1}}, off_bus=[3, 5])
    exporters.read_all(watched.uid)
    assert sorted(Finding.objects.values_list("code", flat=True)) == ["79", "GpuMissing"]
    # Another GPU's XID explains nothing while that GPU still answers.
    exporter.pages["p5-1"] = page("p5-1", {2: {79: 1}}, off_bus=[6])
    exporters.read_all(watched.uid)
    assert Finding.objects.filter(node__name="p5-1").count() == 2


def test_the_same_window_read_again_is_one_finding(
    watched: Cluster, scheduler: FakeScheduler, exporter: FakeExporter
) -> None:
    exporter.pages["p5-2"] = page("p5-2", {3: {79: 1}})
    for _ in range(4):
        exporters.read_all(watched.uid)
    assert Finding.objects.get().count == 1


@pytest.mark.parametrize(("code", "severity"), [(63, "watch"), (94, "watch"), (43, "info"), (64, "reset")])
def test_severity_is_nvidias_not_folklore(
    watched: Cluster, exporter: FakeExporter, scheduler: FakeScheduler, work: Any, code: int, severity: str
) -> None:
    exporter.pages["p5-1"] = page("p5-1", {0: {code: 1}})
    exporters.read_all(watched.uid)
    assert Finding.objects.get().severity == severity
    work("finding.respond", "node.drain")
    assert bool(scheduler.drained) is (severity == "reset")


def test_a_sticky_last_value_alone_is_no_finding(watched: Cluster, exporter: FakeExporter) -> None:
    from dataclasses import replace

    old = page("p5-1")
    exporter.pages["p5-1"] = replace(old, gpus=tuple(replace(g, xid_last=79) for g in old.gpus))
    exporters.read_all(watched.uid)
    assert Finding.objects.count() == 0


def test_many_nodes_at_once_trip_the_breaker(
    watched: Cluster, scheduler: FakeScheduler, exporter: FakeExporter, work: Any
) -> None:
    for number in range(1, 5):
        exporter.pages[f"p5-{number}"] = page(f"p5-{number}", {0: {79: 1}})
    exporters.read_all(watched.uid)
    work("finding.respond", "node.drain")
    assert scheduler.drained == {}
    assert "too many nodes" in Finding.objects.first().response


def test_a_cluster_that_only_reports_is_left_alone(
    watched: Cluster, scheduler: FakeScheduler, exporter: FakeExporter, work: Any
) -> None:
    Cluster.objects.filter(pk=watched.pk).update(responds_to_findings=False)
    exporter.pages["p5-1"] = page("p5-1", {0: {79: 1}})
    exporters.read_all(watched.uid)
    work("finding.respond", "node.drain")
    assert scheduler.drained == {}
    assert Finding.objects.get().response == "nothing: this cluster only reports"


def test_a_node_that_hyperpod_repairs_itself_is_only_watched(
    watched: Cluster, scheduler: FakeScheduler, exporter: FakeExporter, work: Any
) -> None:
    Cluster.objects.filter(pk=watched.pk).update(kind="hyperpod-eks", settings={"recovers": True})
    KubernetesSettings.objects.create(cluster=watched)
    exporter.pages["p5-1"] = page("p5-1", {0: {79: 1}})
    exporters.read_all(watched.uid)
    work("finding.respond", "node.drain")
    assert scheduler.drained == {}
    assert "HyperPod repairs its nodes itself" in Finding.objects.get().response
    assert Node.objects.get(name="p5-1").drain_requested_at is None


def test_killed_after_the_drain_call_drains_once_more_and_ends_the_same(
    watched: Cluster, scheduler: FakeScheduler, exporter: FakeExporter, work: Any
) -> None:
    exporter.pages["p5-1"] = page("p5-1", {0: {79: 1}})
    exporters.read_all(watched.uid)
    work("finding.respond")
    scheduler.calls.crash_after["node_drain"] = Crash()
    with pytest.raises(Crash):
        work("node.drain")
    from apps.core import clock
    from apps.intents.models import Intent

    Intent.objects.update(due_at=clock.now(), leased_until=None)
    work("node.drain")
    assert scheduler.drained == {"p5-1": "XID 79 GPU_HAS_FALLEN_OFF_THE_BUS"}
    assert Node.objects.get(name="p5-1").phase == "DRAINING"


def test_people_answer_findings(watched: Cluster, exporter: FakeExporter, operator: Any) -> None:
    exporter.pages["p5-1"] = page("p5-1", {0: {79: 1}})
    exporters.read_all(watched.uid)
    finding = Finding.objects.get()
    finding_acknowledge(actor=actor_of(operator), finding=finding)
    finding_resolve(actor=actor_of(operator), finding=finding)
    exporters.read_all(watched.uid)
    assert list(Finding.objects.values_list("phase", flat=True)) == ["RESOLVED"]


def test_a_silent_exporter_is_noted_and_stops_nobody(
    watched: Cluster, exporter: FakeExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker.providers.errors import Unavailable

    read = exporter.read

    def some(url: str, node: str) -> Any:
        if node == "p5-1":
            raise Unavailable("connection refused", source="exporter")
        return read(url, node)

    monkeypatch.setattr(exporter, "read", some)
    exporters.read_all(watched.uid)
    rows = {n.name: n for n in Node.objects.filter(cluster=watched)}
    assert "connection refused" in rows["p5-1"].exporter_error
    assert rows["p5-2"].gpu_rows.count() == 8
    assert rows["p5-2"].exporter_error == ""
