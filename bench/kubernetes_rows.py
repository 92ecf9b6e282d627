"""What the worker's visits to a cluster of 5,000 pods and 500 nodes write: rows and seconds, first, unchanged, changed.

    .venv/bin/python -m bench.kubernetes_rows [--pods 5000] [--nodes 500]

The API server is that of bench.kubernetes_reads, in a process of its own; the portal's tables are a fresh SQLite.
Prints a table and ends with 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.kubernetes_reads import CHANGES, PODS_A_JOB, Server
from bench.slurm_queue import portal

#: The bounds: what a visit may take when all is new, when nothing changed and after so many changes of pods.
FIRST_S = 60.0
UNCHANGED_S = 0.5
CHANGED_S = 1.0


def measure(pods: int, nodes: int) -> dict[str, Any]:
    """``{"rows": [[what, rows written, seconds, bound, holds]…], "ok": bool}``."""
    from apps.clusters.kube_models import KubernetesSettings
    from apps.clusters.models import Cluster, Node
    from apps.jobs.models import QueueEntry
    from worker import kube_doors
    from worker.collectors import WRITTEN, slurm

    rows: list[list[Any]] = []
    server = Server()
    try:
        server.ask("fill", pods=pods, nodes=nodes)
        os.environ["BENCH_KUBECONFIG"] = json.dumps(server.kubeconfig)
        cluster = Cluster.objects.create(name="bench", kind="kubernetes", phase="READY", observed_api_version="v1")
        KubernetesSettings.objects.create(cluster=cluster, auth="kubeconfig", kubeconfig_ref="env:BENCH_KUBECONFIG")

        def visits() -> tuple[int, float]:
            Cluster.objects.filter(pk=cluster.pk).update(queue_read_at=None, nodes_read_at=None)
            before, began = _written(WRITTEN), time.monotonic()
            slurm.queue(cluster.uid)
            slurm.nodes(cluster.uid)
            return _written(WRITTEN) - before, time.monotonic() - began

        def row(what: str, found: tuple[int, float], bound: str, holds: bool) -> None:
            rows.append([what, found[0], round(found[1], 3), bound, holds])

        wanted = pods // PODS_A_JOB + nodes
        first = visits()
        there = QueueEntry.objects.filter(cluster=cluster).count() + Node.objects.filter(cluster=cluster).count()
        text = f"{wanted} rows: jobs and nodes, ≤ {FIRST_S:g} s"
        row("first visit: queue and nodes", first, text, there == wanted and first[1] <= FIRST_S)
        time.sleep(1)
        quiet = visits()
        row("unchanged", quiet, f"0 rows, ≤ {UNCHANGED_S:g} s", quiet[0] == 0 and quiet[1] <= UNCHANGED_S)
        server.ask("change", count=CHANGES, mark=1)
        time.sleep(1)
        changed = visits()
        bound = f"≤ {CHANGES} rows, ≤ {CHANGED_S:g} s"
        row(f"{CHANGES} pods changed", changed, bound, changed[0] <= CHANGES and changed[1] <= CHANGED_S)
    finally:
        kube_doors.close_all()
        server.stop()
    return {"rows": rows, "ok": all(one[-1] for one in rows)}


def _written(counter: Any) -> int:
    return int(sum(s.value for metric in counter.collect() for s in metric.samples if s.name.endswith("_total")))


def main(arguments: list[str] | None = None) -> int:
    """0 where every bound holds, 1 where one does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=500)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="quarterdeck-bench-") as folder, portal(Path(folder)):
        found = measure(options.pods, options.nodes)
    head = ("what", "rows", "seconds", "bound", "")
    lines = [head, *((r[0], r[1], r[2], r[3], "holds" if r[4] else "MISSED") for r in found["rows"])]
    widths = [max(len(str(line[at])) for line in lines) for at in range(len(head))]
    for line in lines:
        print("  ".join(f"{cell!s:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
