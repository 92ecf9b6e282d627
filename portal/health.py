"""/healthz, /readyz and /metrics: whether this process lives, whether it can work, and what the portal is doing."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest, multiprocess
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from apps.clusters.models import Cluster, Node
from apps.clusters.states import ClusterPhase, NodePhase
from apps.core import clock
from apps.core.models import Heartbeat
from apps.intents.selectors import intent_depths

#: The worker counts as away when its housekeeping did not finish for this long.
WORKER_AWAY_S = 60


def healthz(request: HttpRequest) -> HttpResponse:
    """200 while the process answers; touches nothing else."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    """200 when the database answers and is migrated; the worker's age is told but does not take the pages down."""
    parts: dict[str, Any] = {}
    try:
        executor = MigrationExecutor(connection)
        pending = executor.migration_plan(executor.loader.graph.leaf_nodes())
        parts["database"] = "ok" if not pending else f"{len(pending)} migrations are missing"
    except Exception as error:  # any trouble with the database means: not ready
        parts["database"] = type(error).__name__
    age = worker_age_s() if parts["database"] == "ok" else None
    parts["worker_age_s"] = None if age is None else round(age, 1)
    parts["worker"] = "ok" if age is not None and age < WORKER_AWAY_S else "away"
    ready = parts["database"] == "ok"
    return JsonResponse({"status": "ok" if ready else "unavailable", **parts}, status=200 if ready else 503)


def worker_age_s() -> float | None:
    """Seconds since the worker last finished its housekeeping; None when it never did."""
    beat = Heartbeat.objects.filter(name="housekeeping").first()
    return None if beat is None else (clock.now() - beat.beat_at).total_seconds()


class StateCollector(Collector):
    """Gauges read from the database at scrape time: queue of intents, age of collectors, worker."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family a figure."""
        due = GaugeMetricFamily("qd_intents_due", "Intents that are due.", labels=["kind"])
        oldest = GaugeMetricFamily("qd_intents_oldest_age_seconds", "Age of the oldest due intent.", labels=["kind"])
        failing = GaugeMetricFamily("qd_intents_failing", "Intents whose last visit failed.", labels=["kind"])
        for depth in intent_depths():
            due.add_metric([depth.kind], depth.due)
            oldest.add_metric([depth.kind], depth.oldest_age_s)
            failing.add_metric([depth.kind], depth.failing)
        yield from (due, oldest, failing)
        lag = GaugeMetricFamily(
            "qd_collector_lag_seconds", "Seconds since a collector last finished.", labels=["cluster", "collector"]
        )
        costs = {
            key: GaugeMetricFamily(f"qd_collector_{name}", text, labels=["cluster", "collector"])
            for key, name, text in (
                ("period_s", "period_seconds", "Seconds between two reads, as they follow each other now."),
                ("read_s", "read_seconds", "Seconds that the last read took."),
                ("bytes", "read_bytes", "Bytes that the last read brought."),
            )
        }
        now = clock.now()
        for cluster in Cluster.objects.filter(phase__in=[ClusterPhase.READY, ClusterPhase.UNREACHABLE]):
            for name, told in (("queue", cluster.queue_reading), ("nodes", cluster.nodes_reading)):
                for key, family in costs.items():
                    if told.get(key) is not None:
                        family.add_metric([cluster.name, name], float(told[key]))
            for name, at in (
                ("queue", cluster.queue_read_at),
                ("nodes", cluster.nodes_read_at),
                ("exporters", cluster.exporters_read_at),
            ):
                if at is not None:
                    lag.add_metric([cluster.name, name], (now - at).total_seconds())
        yield lag
        yield from costs.values()
        gpus = GaugeMetricFamily(
            "qd_node_expected_gpus", "GPUs that a node of this type has when all is well.", labels=["cluster", "node"]
        )
        live = Node.objects.filter(phase__in=[NodePhase.READY, NodePhase.DRAINING, NodePhase.DRAINED], gpus__gt=0)
        for cluster_name, node, count in live.values_list("cluster__name", "name", "gpus"):
            gpus.add_metric([cluster_name, node], count)
        yield gpus
        worker = GaugeMetricFamily("qd_worker_age_seconds", "Seconds since the worker's last housekeeping.")
        age = worker_age_s()
        if age is not None:
            worker.add_metric([], age)
        yield worker


class ProcessesCollector(Collector):
    """What every process counted in its files below ``var/metrics``; containers have folders of their own there."""

    def collect(self) -> Iterator[Metric]:
        """One family a metric, summed over processes."""
        files = [str(path) for path in (Path(settings.VAR_DIR) / "metrics").rglob("*.db")]
        yield from multiprocess.MultiProcessCollector.merge(files, accumulate=True)  # type: ignore[no-untyped-call]


def _may_read(request: HttpRequest) -> bool:
    token = settings.CONFIG.metrics_token.get_secret_value()
    if token:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        return hmac.compare_digest(given.encode(errors="replace"), token.encode())
    return request.META.get("REMOTE_ADDR", "") in ("127.0.0.1", "::1")


def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus' page; with PROMETHEUS_MULTIPROC_DIR set, all processes that share the var folder are summed."""
    if not _may_read(request):
        return HttpResponse("forbidden\n", status=403, content_type="text/plain")
    registry: CollectorRegistry = CollectorRegistry()
    registry.register(StateCollector())
    text = generate_latest(registry)
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        shared: CollectorRegistry = CollectorRegistry()
        shared.register(ProcessesCollector())
        text += generate_latest(shared)
    else:
        text += generate_latest(REGISTRY)
    return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)
