"""One module a noun; RECONCILERS is the whole table of what the worker can be asked to look at."""

from __future__ import annotations

from collections.abc import Mapping

from worker.collectors import ec2, exporters, happenings, kube_sweep, outside, pod_logs, slurm, starts
from worker.collectors import reservations as reserved
from worker.engine import Reconciler
from worker.reconcilers import (
    accounts,
    clusters,
    file_systems,
    findings,
    fleets,
    groups,
    job_actions,
    jobs,
    kueue,
    limits,
    log_files,
    logs,
    managed,
    node_actions,
    nodes,
    preflights,
    purchases,
    reservations,
)

RECONCILERS: Mapping[str, Reconciler] = {
    "account.check": accounts.check,
    "account.sweep": ec2.sweep,
    "account.reservations": reserved.read,
    "offering.search": purchases.search,
    "purchase.buy": purchases.buy,
    "reservation.cancel": purchases.cancel,
    "reservation.watch": reservations.watch,
    "cluster.connect": clusters.connect,
    "cluster.queue": slurm.queue,
    "cluster.nodes": slurm.nodes,
    "cluster.outside": outside.follow,
    "cluster.starts": starts.predict,
    "cluster.happenings": happenings.tell,
    "cluster.pod_logs": pod_logs.read,
    "cluster.sweep": kube_sweep.sweep,
    "cluster.exporters": exporters.read_all,
    "cluster.queues": kueue.reconcile,
    "cluster.reconcile": managed.reconcile,
    "group.reconcile": groups.reconcile,
    "node.act": node_actions.act,
    "fleet.reconcile": fleets.reconcile,
    "preflight.run": preflights.run,
    "file_system.reconcile": file_systems.reconcile,
    "node.drain": nodes.drain,
    "finding.respond": findings.respond,
    "job.reconcile": jobs.reconcile,
    "limits.reconcile": limits.reconcile,
    "log.read": log_files.read,
    "log.roll": logs.roll,
    "job.act": job_actions.act,
}
