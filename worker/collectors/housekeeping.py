"""Housekeeping: seal the audit chain, judge quiet checkpoints, restart forgotten collectors, drop old keys."""

from __future__ import annotations

import time
from datetime import timedelta

from apps.audit.services import seal
from apps.checkpoints.models import Checkpoint, CheckpointSeries
from apps.checkpoints.services import series_rejudge
from apps.checkpoints.states import CheckpointState
from apps.clusters.services import clusters_connected
from apps.core import clock
from apps.core.models import Heartbeat, IdempotencyRecord
from apps.intents.models import Intent
from apps.intents.services import intent_ask
from apps.jobs.models import Attempt, Job
from apps.jobs.services import INTENT
from apps.jobs.states import ATTEMPT_LIVE, JOB_LIVE
from worker.reconcilers.clusters import COLLECTORS

KEEP_KEYS = timedelta(hours=24)
NAME = "housekeeping"


def keep_house() -> None:
    """One round; every part may be repeated or skipped without harm."""
    began = time.monotonic()
    seal()
    _judge_quiet_checkpoints()
    _wake_forgotten()
    IdempotencyRecord.objects.filter(created_at__lt=clock.now() - KEEP_KEYS).delete()
    Heartbeat.objects.update_or_create(
        name=NAME, defaults={"beat_at": clock.now(), "took_s": time.monotonic() - began, "error": ""}
    )


def _judge_quiet_checkpoints() -> None:
    waiting = (
        Checkpoint.objects.filter(state=CheckpointState.IN_PROGRESS).values_list("series_id", flat=True).distinct()
    )
    for series in CheckpointSeries.objects.filter(pk__in=list(waiting)[:50]):
        alive = frozenset(
            Attempt.objects.filter(job__uid=series.job_uid, phase__in=ATTEMPT_LIVE).values_list("uid", flat=True)
        )
        series_rejudge(series, alive_attempts=alive)


def _wake_forgotten() -> None:
    """Whatever is alive has an intent; a row that lost its own (a restored backup, say) gets it back."""
    asked = set(Intent.objects.values_list("kind", "key"))
    for cluster in clusters_connected():
        for kind in (*COLLECTORS, "cluster.connect"):
            if (kind, cluster.uid) not in asked:
                intent_ask(kind, cluster.uid)
    for uid in Job.objects.filter(phase__in=JOB_LIVE).values_list("uid", flat=True):
        if (INTENT, uid) not in asked:
            intent_ask(INTENT, uid)
