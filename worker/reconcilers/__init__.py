"""One module a noun; RECONCILERS is the whole table of what the worker can be asked to look at."""

from __future__ import annotations

from collections.abc import Mapping

from worker.collectors import ec2, exporters, slurm
from worker.engine import Reconciler
from worker.reconcilers import accounts, clusters, file_systems, findings, fleets, jobs, nodes

RECONCILERS: Mapping[str, Reconciler] = {
    "account.check": accounts.check,
    "account.sweep": ec2.sweep,
    "cluster.connect": clusters.connect,
    "cluster.queue": slurm.queue,
    "cluster.nodes": slurm.nodes,
    "cluster.exporters": exporters.read_all,
    "fleet.reconcile": fleets.reconcile,
    "file_system.reconcile": file_systems.reconcile,
    "node.drain": nodes.drain,
    "finding.respond": findings.respond,
    "job.reconcile": jobs.reconcile,
}
