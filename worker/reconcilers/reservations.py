"""The clock of a reservation: fleets begin when it does, and before a block ends its jobs save, stop and give back.

EC2 takes a block's machines back from 30 minutes before its end. Our own marks come before that, each written once:
a person is warned, jobs that can are asked for a checkpoint, nodes take no more work, and the machines go.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import structlog
from django.db.models import F, QuerySet
from django.utils.translation import gettext_noop as _

from apps.capacity import observations as obs
from apps.capacity import rules
from apps.capacity.models import Reservation
from apps.capacity.selectors import reservation_by_uid
from apps.capacity.states import BLOCKS, LIVE, PREPAID, PurchasePhase, ReservationPhase
from apps.clusters.fleet_services import FLEET_INTENT, fleet_end
from apps.clusters.group_models import NodeGroup
from apps.clusters.group_services import group_end
from apps.clusters.managed_services import GROUP_INTENT
from apps.clusters.models import Fleet, Node
from apps.clusters.selectors import nodes_reserved
from apps.clusters.services import node_drain, node_resume
from apps.clusters.states import FleetPhase, GroupPhase, NodePhase
from apps.core import clock
from apps.core.said import said
from apps.intents.services import intent_ask
from apps.jobs import block_charges
from apps.jobs.models import Attempt
from apps.jobs.observations import attempt_stop
from apps.jobs.rules import checkpoint_signal
from apps.jobs.selectors import attempts_on_nodes
from apps.teams.permissions import system_actor
from worker import doors
from worker.collectors.reservations import KIND as READ_KIND
from worker.engine import DONE, Outcome, again
from worker.providers.errors import ProviderError

log = structlog.get_logger(__name__)
#: No visit of an active block is farther off than this: its end can move.
TICK_S = 300.0
#: After they were asked to stop, jobs have this long to write what they can.
STOP_GRACE = timedelta(seconds=90)
#: Who drains and resumes for a block's end.
BLOCK_CLOCK = "block clock"


def watch(uid: str) -> Outcome:
    """Do what is due at one reservation."""
    row = reservation_by_uid(uid)
    if row is None:
        return DONE
    if row.kind in PREPAID:
        block_charges.charge_hours(row)
    if row.phase not in LIVE:
        # The last hour is charged only when what ran in it is known.
        return again(TICK_S) if row.phase == ReservationPhase.EXPIRED and block_charges.owes(row) else DONE
    now = clock.now()
    if row.phase == ReservationPhase.SCHEDULED and row.start_at is not None:
        # At its start it is looked at at once, so that fleets waiting for it begin.
        if now >= row.start_at:
            if row.account.is_paused:
                return again(30)
            intent_ask(READ_KIND, row.account.uid)
            return again(15)
        return again(min(TICK_S, max(1.0, (row.start_at - now).total_seconds())))
    if row.phase != ReservationPhase.ACTIVE:
        return again(TICK_S)
    for fleet in fleets_in(row).filter(capacity_refusals=0, launched_at__isnull=True):
        intent_ask(FLEET_INTENT, fleet.uid)
    for group in groups_in(row).filter(generation__gt=F("observed_generation")):
        # Made without nodes, or not at all, until it begins.
        intent_ask(GROUP_INTENT, group.uid)
    if row.kind in BLOCKS and row.end_at is not None:
        return _before_the_end(row)
    return again(TICK_S)


def fleets_in(row: Reservation) -> QuerySet[Fleet]:
    """Fleets that were launched into it and exist."""
    return Fleet.objects.filter(reservation=row).exclude(phase=FleetPhase.DELETED).select_related("cluster")


def groups_in(row: Reservation) -> QuerySet[NodeGroup]:
    """Node groups of AWS's services that take their machines from it and exist."""
    return NodeGroup.objects.filter(reservation=row).exclude(phase=GroupPhase.DELETED).select_related("cluster")


def attempts_in(row: Reservation) -> list[Attempt]:
    """Attempts that run on its machines."""
    found: dict[int, Attempt] = {}
    nodes = nodes_reserved([row]).exclude(phase=NodePhase.GONE).select_related("cluster")
    by_cluster: dict[int, list[Node]] = {}
    for node in nodes:
        by_cluster.setdefault(node.cluster_id, []).append(node)
    for group in by_cluster.values():
        for attempt in attempts_on_nodes(group[0].cluster, [n.name for n in group]):
            found[attempt.pk] = attempt
    return list(found.values())


def _before_the_end(row: Reservation) -> Outcome:
    assert row.end_at is not None
    now, marks = clock.now(), rules.end_marks(row.kind, row.end_at)
    if row.drain_asked_at is None and now < marks.drain_at:
        _take_up_again(row)
    facts = {"name": str(row), "end": f"{row.end_at:%Y-%m-%d %H:%M} UTC"}
    if now >= marks.warn_at and row.warned_at is None:
        obs.mark_once(row, "warned_at", "BlockEndsSoon", said(_("%(name)s ends at %(end)s"), **facts))
    if now >= marks.checkpoint_at and row.checkpoint_asked_at is None:
        asked, silent = _ask_for_checkpoints(attempts_in(row))
        text = said(_("%(n)s jobs were asked for a checkpoint before %(name)s ends"), n=len(asked), name=str(row))
        obs.mark_once(
            row, "checkpoint_asked_at", "BlockCheckpointAsked", text, {"asked": asked, "cannot_be_asked": silent}
        )
    if now >= marks.drain_at and row.drain_asked_at is None:
        _drain(row)
        obs.mark_once(row, "drain_asked_at", "BlockDrained", said(_("its nodes take no new jobs"), **facts))
    if now >= marks.terminate_at:
        return _give_back(row)
    following = [m for m in (marks.warn_at, marks.checkpoint_at, marks.drain_at, marks.terminate_at) if m > now]
    wait_s = min((m - now).total_seconds() for m in following) if following else TICK_S
    return again(min(TICK_S, max(1.0, wait_s)))


def _ask_for_checkpoints(attempts: Sequence[Attempt]) -> tuple[list[str], list[str]]:
    """Signal the jobs that said they take one: (asked, those that cannot be asked), by job uid."""
    asked, silent = [], []
    for attempt in attempts:
        signal = checkpoint_signal(attempt.job.environment)
        if not signal or not attempt.scheduler_id:
            silent.append(attempt.job.uid)
            continue
        try:
            doors.scheduler_for(attempt.job.cluster, attempt.job.slurm_user).signal(attempt.scheduler_id, signal)
        except ProviderError as error:
            log.warning("job not asked for a checkpoint", job=attempt.job.uid, error=str(error))
            silent.append(attempt.job.uid)
            continue
        asked.append(attempt.job.uid)
    return asked, silent


def _drain_words(row: Reservation) -> str:
    return f"{row} ends at"


def _drain(row: Reservation) -> None:
    actor = system_actor(BLOCK_CLOCK)
    nodes = nodes_reserved([row]).exclude(phase=NodePhase.GONE)
    for node in nodes.filter(drain_requested_at__isnull=True):
        node_drain(actor=actor, node=node, reason=f"{_drain_words(row)} {row.end_at:%Y-%m-%d %H:%M} UTC")


def _take_up_again(row: Reservation) -> None:
    """Nodes that were drained for an end which an extension has moved take jobs again."""
    actor = system_actor(BLOCK_CLOCK)
    drained = nodes_reserved([row]).filter(drain_reason__startswith=_drain_words(row))
    for node in drained.filter(drain_requested_at__isnull=False).exclude(phase=NodePhase.GONE):
        node_resume(actor=actor, node=node)


def _give_back(row: Reservation) -> Outcome:
    """Jobs that still run are stopped so that they start again elsewhere; then the machines go."""
    if row.extensions.filter(phase=PurchasePhase.BOUGHT, end_at__gt=row.end_at).exists():
        # Paid for, and AWS's list does not show the new end yet.
        intent_ask(READ_KIND, row.account.uid)
        return again(10)
    for attempt in attempts_in(row):
        attempt_stop(attempt, "Requeued")
    if row.account.is_paused:
        # Its jobs had to go; the machines are EC2's to take while nothing is changed there.
        observed = _("account %(name)s is paused: its machines are not terminated here, EC2 takes them at the end")
        obs.reservation_say(row, said(observed, name=row.account.name))
        return again(30)
    text = said(_("its machines are given back before EC2 takes them"))
    if row.extensions.filter(phase=PurchasePhase.PAYING).exists():
        text = said(_("its machines are given back before EC2 takes them: its extension is not paid yet"))
    obs.mark_once(row, "terminate_asked_at", "BlockGivenBack", text)
    left = [f for f in fleets_in(row) if f.delete_requested_at is None]
    assert row.terminate_asked_at is not None
    graced = clock.now() >= row.terminate_asked_at + STOP_GRACE
    for fleet in left:
        busy = Node.objects.filter(fleet=fleet, gpus_used__gt=0).exclude(phase=NodePhase.GONE).exists()
        if graced or not busy:
            fleet_end(fleet, f"{row} ends")
    emptied = groups_in(row).filter(delete_requested_at__isnull=True, nodes__gt=0)
    for group in emptied:
        busy = Node.objects.filter(group=group, gpus_used__gt=0).exclude(phase=NodePhase.GONE).exists()
        if graced or not busy:
            group_end(group, f"{row} ends")
    return again(10 if left or emptied else TICK_S)
