"""What is left in a cluster of Kubernetes of attempts that are over: ended where it runs, deleted where it lies."""

from __future__ import annotations

from contextlib import suppress

from apps.clusters.kube_selectors import place_of
from apps.core import clock
from apps.jobs.charges import attempt_charge
from apps.jobs.models import Attempt, Job
from worker import kube_doors
from worker.providers.errors import AccessDenied, InvalidRequest


def rest_runs(job: Job, attempt: Attempt) -> bool:
    """Whether something of a manifest that is over still ran: it is ended, and charged until it is gone."""
    if not (job.manifest and job.cluster.is_kubernetes and attempt.scheduler_id):
        return False
    try:
        runs = kube_doors.kubernetes_for(job.cluster).end_rest(attempt.scheduler_id)
    except (AccessDenied, InvalidRequest):
        # Nobody lets us look any more: what was seen has to do.
        return False
    if runs:
        attempt_charge(attempt, clock.now())
    return runs


def forget_half_made(job: Job, attempt: Attempt) -> None:
    """Delete what a submit made whose end nobody saw: a manifest's settings, a runtime, no workload yet."""
    if job.cluster.is_kubernetes:
        with suppress(AccessDenied, InvalidRequest):
            kube_doors.kubernetes_for(job.cluster).forget(place_of(job.cluster, job.team).namespace, attempt.uid)
