"""Jobs submitted past the portal: taken in from the mirrored queue, followed and charged; no call leaves for it."""

from __future__ import annotations

import structlog
from django.conf import settings

from apps.clusters.models import Cluster
from apps.clusters.selectors import cluster_by_uid
from apps.clusters.states import ClusterPhase
from apps.core import clock
from apps.core.errors import TransitionConflict
from apps.jobs import outside_observations as obs
from apps.jobs import outside_selectors as sel
from apps.jobs.queue_observations import UNFINISHED
from worker.engine import DONE, Outcome, again

log = structlog.get_logger(__name__)
#: Rows taken in, moved and charged a visit; the rest the next, at once.
ADOPTED, MOVED, CHARGED = 500, 200, 300
PERIOD_S = 5.0


def follow(uid: str) -> Outcome:
    """One bounded round over a cluster's jobs from outside."""
    cluster = cluster_by_uid(uid)
    if cluster is None or cluster.delete_requested_at is not None:
        return DONE
    if cluster.phase not in (ClusterPhase.READY, ClusterPhase.UNREACHABLE) or not cluster.takes_jobs:
        return DONE
    full = _take_in(cluster)
    full |= _move(cluster)
    full |= _charge(cluster)
    return again(0.0 if full else PERIOD_S)


def _take_in(cluster: Cluster) -> bool:
    """Make jobs of rows that have an owner; whether there may be more."""
    again_alive = list(sel.rows_of_ended(cluster)[:ADOPTED])
    if again_alive:
        obs.rows_free(again_alive)
    found = sel.owned_strangers(cluster, ADOPTED)
    if found:
        try:
            made = obs.outsiders_adopt(cluster, found)
        except obs.Outrun:
            return True
        log.info("jobs from outside taken in", cluster=cluster.name, jobs=made, rows=len(found))
    return len(found) == ADOPTED


def _move(cluster: Cluster) -> bool:
    """Bring phases up to the queue; whether there may be more."""
    full = False
    for rows, step in (
        (sel.outsiders_started(cluster, MOVED), obs.outsider_running),
        (sel.outsiders_requeued(cluster, MOVED), obs.outsider_requeued),
        (sel.outsiders_ended(cluster, MOVED), obs.outsider_end),
    ):
        for attempt in rows:
            try:
                step(attempt)
            except TransitionConflict:
                continue
        full |= len(rows) == MOVED
    waiting = sel.rows_waiting_otherwise(cluster, MOVED)
    obs.outsiders_wait(waiting)
    return full or len(waiting) == MOVED


def _charge(cluster: Cluster) -> bool:
    """Charge what ran; whether there may be more. Only what was seen is charged: nobody knows what runs meanwhile."""
    until = min(clock.now(), cluster.queue_read_at) if cluster.queue_read_at is not None else clock.now()
    rows = sel.rows_to_charge(cluster, until, settings.CONFIG.charge_every_s, CHARGED)
    for row in rows:
        over = row.state not in UNFINISHED or row.gone_at is not None
        # A job whose nodes are still being cleaned has ended, too.
        end = (row.ended_at or row.gone_at or until) if over else min(until, row.ended_at or until)
        obs.outsider_charge(row, end)
    return len(rows) == CHARGED
