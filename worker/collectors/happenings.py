"""What Kubernetes clusters tell of jobs, pods and nodes, in words, into the timelines of the attempts it is about."""

from __future__ import annotations

from apps.clusters.selectors import cluster_by_uid
from apps.clusters.states import ClusterPhase
from apps.jobs.pod_observations import Happening, attempts_by_scheduler_id, happenings_add
from worker import kube_doors
from worker.collectors import READ, WRITTEN
from worker.engine import DONE, Outcome, again
from worker.providers.errors import ProviderError
from worker.words import said_text

PERIOD_S = 3.0
AWAY_S = 15.0

#: How far this process has told of each cluster's events, and of which watch; a new watch begins from the start, and
#: what was told already is known by its key.
_told: dict[str, tuple[int, int]] = {}


def tell(uid: str) -> Outcome:
    """One round over what is new."""
    cluster = cluster_by_uid(uid)
    if cluster is None or cluster.delete_requested_at is not None or not (cluster.is_kubernetes and cluster.takes_jobs):
        return DONE
    if cluster.phase not in (ClusterPhase.READY, ClusterPhase.UNREACHABLE):
        return again(AWAY_S)
    try:
        scheduler = kube_doors.kubernetes_for(cluster)
        watch, since = _told.get(uid, (0, 0))
        last, found = scheduler.tellings(since if watch == id(scheduler) else 0)
    except ProviderError:
        # That it cannot be reached is said by the queue's collector.
        return again(AWAY_S)
    READ.labels("happenings").inc(len(found))
    attempts = attempts_by_scheduler_id(cluster, {one.scheduler_id for one in found})
    rows = [
        Happening(attempts[one.scheduler_id], one.key, one.code, said_text(one.text), one.is_bad, one.at)
        for one in found
        if one.scheduler_id in attempts
    ]
    WRITTEN.labels("happenings").inc(happenings_add(rows))
    # An attempt gets its id a moment after its objects are made: what nobody is known for yet is looked at again.
    if len(rows) == len(found):
        _told[uid] = (id(scheduler), last)
    else:
        _waits(uid, id(scheduler), last)
    return again(PERIOD_S)


_rounds: dict[str, int] = {}
#: Strangers' events are looked at so often before they are let go.
ROUNDS = 3


def _waits(uid: str, watch: int, last: int) -> None:
    _rounds[uid] = _rounds.get(uid, 0) + 1
    if _rounds[uid] >= ROUNDS:
        _rounds[uid] = 0
        _told[uid] = (watch, last)
