"""Housekeeping: seal and check the trail, check the books, judge quiet checkpoints, restart what was forgotten."""

from __future__ import annotations

import time
from datetime import timedelta

from django.conf import settings
from django.db.models import F, Q

from apps.audit.observations import chain_observe
from apps.audit.services import seal
from apps.capacity.models import OfferingSearch, Purchase, Reservation
from apps.capacity.observations import WATCH_INTENT
from apps.capacity.services import PURCHASE_INTENT, SEARCH_INTENT
from apps.capacity.states import LIVE as RESERVATION_LIVE
from apps.capacity.states import PURCHASE_OPEN, ReservationPhase, SearchPhase
from apps.checkpoints.models import Checkpoint, CheckpointSeries
from apps.checkpoints.services import series_rejudge
from apps.checkpoints.states import CheckpointState
from apps.clusters.fleet_services import FLEET_INTENT
from apps.clusters.group_models import NodeGroup
from apps.clusters.group_services import ACT_INTENT
from apps.clusters.managed_services import CLUSTER_INTENT as KEPT_INTENT
from apps.clusters.managed_services import GROUP_INTENT
from apps.clusters.models import Cluster, Fleet
from apps.clusters.services import CLUSTER_INTENT, clusters_connected
from apps.clusters.states import (
    FLEET_WORKING,
    GROUP_WORKING,
    KINDS_MANAGED,
    NODE_ACTION_OPEN,
    ClusterPhase,
    FleetPhase,
    GroupPhase,
)
from apps.connections.models import CloudAccount
from apps.connections.services import INTENT as ACCOUNT_INTENT
from apps.connections.states import AccountPhase
from apps.core import clock
from apps.core.models import Heartbeat, IdempotencyRecord
from apps.costs.observations import ledger_observe
from apps.health.models import Finding
from apps.health.services import RESPOND_INTENT
from apps.health.states import FATAL, LIVE
from apps.intents.models import Intent
from apps.intents.services import intent_ask
from apps.jobs.action_services import ACT_INTENT as JOB_ACT_INTENT
from apps.jobs.action_states import ACTION_OPEN
from apps.jobs.log_services import READ_INTENT, ROLL_INTENT, attempts_to_read, attempts_to_roll
from apps.jobs.models import Attempt, Job
from apps.jobs.queue_observations import entries_forget
from apps.jobs.services import INTENT as JOB_INTENT
from apps.jobs.states import ATTEMPT_LIVE, JOB_LIVE
from apps.storage.models import FileSystem
from apps.storage.services import INTENT as FILE_SYSTEM_INTENT
from apps.storage.states import FileSystemPhase
from worker.reconcilers.clusters import COLLECTORS, KUBERNETES_COLLECTORS

KEEP_KEYS = timedelta(hours=24)
NAME = "housekeeping"


def keep_house() -> None:
    """One round; every part may be repeated or skipped without harm."""
    began = time.monotonic()
    seal()
    chain_observe()
    ledger_observe()
    _judge_quiet_checkpoints()
    _wake_forgotten()
    entries_forget()
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
    wanted = [(kind, cluster.uid) for cluster in clusters_connected() for kind in (*COLLECTORS, CLUSTER_INTENT)]
    wanted += [
        (k, cluster.uid) for cluster in clusters_connected() if cluster.is_kubernetes for k in KUBERNETES_COLLECTORS
    ]
    managed = Q(kind__in=KINDS_MANAGED)
    new_wish = Q(generation__gt=F("observed_generation")) | Q(delete_requested_at__isnull=False)
    moving = Q(phase__in=GROUP_WORKING | {GroupPhase.DEGRADED})
    for kind, rows in (
        (
            CLUSTER_INTENT,
            Cluster.objects.exclude(managed).filter(phase__in=[ClusterPhase.PENDING, ClusterPhase.DELETING]),
        ),
        # A failed one waits for a person, and its sentence stays.
        (
            KEPT_INTENT,
            Cluster.objects.filter(managed)
            .exclude(phase=ClusterPhase.DELETED)
            .filter(new_wish | ~Q(phase=ClusterPhase.FAILED)),
        ),
        (GROUP_INTENT, NodeGroup.objects.filter(moving | new_wish).exclude(phase=GroupPhase.DELETED)),
        (ACT_INTENT, Cluster.objects.filter(nodes__actions__phase__in=NODE_ACTION_OPEN).distinct()),
        (FLEET_INTENT, Fleet.objects.filter(phase__in=FLEET_WORKING | {FleetPhase.READY, FleetPhase.DEGRADED})),
        (FILE_SYSTEM_INTENT, FileSystem.objects.exclude(phase__in=[FileSystemPhase.DELETED, FileSystemPhase.FAILED])),
        (PURCHASE_INTENT, Purchase.objects.filter(phase__in=PURCHASE_OPEN)),
        (SEARCH_INTENT, OfferingSearch.objects.filter(phase=SearchPhase.PENDING)),
        (WATCH_INTENT, Reservation.objects.filter(phase__in=RESERVATION_LIVE)),
        (
            WATCH_INTENT,
            Reservation.objects.filter(phase=ReservationPhase.EXPIRED, usd_per_hour__isnull=False).filter(
                Q(charged_until__isnull=True, end_at__isnull=False, start_at__isnull=False)
                | Q(charged_until__lt=F("end_at"))
            ),
        ),
        (ACCOUNT_INTENT, CloudAccount.objects.exclude(phase=AccountPhase.REMOVED)),
        (RESPOND_INTENT, Finding.objects.filter(phase__in=LIVE, severity__in=FATAL, responded_at__isnull=True)),
        (JOB_INTENT, Job.objects.filter(phase__in=JOB_LIVE)),
        (JOB_ACT_INTENT, Job.objects.filter(actions__phase__in=ACTION_OPEN).distinct()),
    ):
        wanted += [(kind, uid) for uid in rows.values_list("uid", flat=True)]
    wanted += [(ROLL_INTENT, uid) for uid in attempts_to_roll()]
    if settings.CONFIG.shared_folders:
        wanted += [(READ_INTENT, uid) for uid in attempts_to_read()]
    for kind, key in wanted:
        if (kind, key) not in asked:
            intent_ask(kind, key)
