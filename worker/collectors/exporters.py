"""DCGM exporters: read every node's page, store readings, report faults."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from django.conf import settings

from apps.clusters import observations
from apps.clusters.models import Node
from apps.clusters.selectors import cluster_by_uid, live_nodes
from apps.clusters.states import ClusterPhase, NodePhase
from apps.health.rules import Reading, faults_on
from apps.health.services import faults_report, gpus_observe
from worker import doors
from worker.collectors import READ
from worker.engine import DONE, Outcome, again
from worker.providers import values as v
from worker.providers.errors import ProviderError

#: Pages are fetched side by side; the threads touch no database.
THREADS = 16
ROUND_LIMIT_S = 40.0


def read_all(uid: str) -> Outcome:
    """One round over the nodes of a cluster; a silent exporter is noted on its node and stops nothing else."""
    cluster = cluster_by_uid(uid)
    if cluster is None or cluster.delete_requested_at is not None or not cluster.exporter_url:
        return DONE
    if cluster.phase not in (ClusterPhase.READY, ClusterPhase.UNREACHABLE):
        return DONE
    period = settings.CONFIG.collect_health_s
    nodes = [n for n in live_nodes(cluster).values() if n.phase not in (NodePhase.PENDING, NodePhase.BOOTING)]
    if not nodes:
        return again(period)
    door = doors.exporter()
    began = time.monotonic()

    def fetch(node: Node) -> v.ExporterPage | ProviderError:
        if time.monotonic() - began > ROUND_LIMIT_S:
            return ProviderError("the round took too long; this node is read next time", source="exporter")
        try:
            return door.read(cluster.exporter_url.replace("{node}", node.name), node.name)
        except ProviderError as error:
            return error

    with ThreadPoolExecutor(max_workers=min(THREADS, len(nodes))) as pool:
        pages = list(pool.map(fetch, nodes))
    for node, page in zip(nodes, pages, strict=True):
        if isinstance(page, ProviderError):
            observations.exporter_observed(node, error=str(page))
            continue
        READ.labels("exporters").inc(len(page.gpus))
        gpus_observe(node, [_columns(g) for g in page.gpus])
        faults_report(node, faults_on([reading_of(g) for g in page.gpus], expected_gpus=node.gpus))
        # Last: whoever sees this instant may rely on the findings of this reading.
        observations.exporter_observed(node, missing=page.missing)
    observations.exporters_were_read(cluster)
    return again(period)


def reading_of(gpu: v.GpuSample) -> Reading:
    """The provider's value as the domain's."""
    facts = {"job_id": gpu.job_id, "model": gpu.model}
    return Reading(
        index=gpu.index,
        uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        has_gauges=gpu.temperature_c is not None,
        xid_counts=gpu.xid_counts,
        xid_last=gpu.xid_last,
        row_remap_pending=gpu.row_remap_pending,
        row_remap_failure=gpu.row_remap_failure,
        ecc_dbe_volatile=gpu.ecc_dbe_volatile,
        uncorrectable_remapped_rows=gpu.uncorrectable_remapped_rows,
        facts={k: value for k, value in facts.items() if value},
    )


def _columns(gpu: v.GpuSample) -> dict[str, object]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "pci_bus_id": gpu.pci_bus_id,
        "is_on_bus": gpu.temperature_c is not None,
        "temperature_c": gpu.temperature_c,
        "power_w": gpu.power_w,
        "sm_active": gpu.sm_active,
        "tensor_active": gpu.tensor_active,
        "memory_used_mib": gpu.memory_used_mib,
        "xid_last": gpu.xid_last,
        "row_remap_pending": gpu.row_remap_pending,
        "row_remap_failure": gpu.row_remap_failure,
        "ecc_dbe_volatile": gpu.ecc_dbe_volatile,
    }
