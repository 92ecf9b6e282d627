"""Objects of ended attempts: kept in the cluster for a day, for those who look with kubectl, then deleted."""

from __future__ import annotations

from datetime import timedelta

from apps.clusters.selectors import cluster_by_uid
from apps.clusters.states import ClusterPhase
from apps.core import clock
from apps.jobs.models import Attempt
from apps.jobs.states import ATTEMPT_ENDED
from worker import kube_doors
from worker.engine import DONE, Outcome, again

KEPT = timedelta(days=1)
PERIOD_S = 600.0


def sweep(uid: str) -> Outcome:
    """One round over a cluster. What is no attempt of this portal is never touched, whatever its labels say."""
    cluster = cluster_by_uid(uid)
    if cluster is None or cluster.delete_requested_at is not None or not (cluster.is_kubernetes and cluster.takes_jobs):
        return DONE
    if cluster.phase != ClusterPhase.READY:
        return again(PERIOD_S)
    before = clock.now() - KEPT
    mine = Attempt.objects.filter(job__cluster=cluster, phase__in=ATTEMPT_ENDED, ended_at__lt=before)

    def is_due(attempt: str) -> bool:
        return mine.filter(uid=attempt).exists()

    kube_doors.kubernetes_for(cluster).sweep(is_due)
    return again(PERIOD_S)
