"""Charging an attempt for the time that it, or each task of its array, was seen running."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from django.db import transaction
from django.db.models import F, Q

from apps.core import units
from apps.costs import services as ledger
from apps.costs.states import Unit
from apps.jobs.models import Attempt, Job
from apps.jobs.part_rules import parts_of
from apps.jobs.pricing import cost_of
from apps.jobs.queue_models import QueueEntry
from apps.jobs.rules import is_final_state

#: How long after its time limit Slurm may take to end a job (KillWait and the epilog).
LIMIT_GRACE = timedelta(minutes=5)


def attempt_charge(attempt: Attempt, until: datetime) -> Decimal:
    """Charge an attempt up to an instant; the USD charged. A second call for the same span charges nothing."""
    if attempt.started_at is None:
        return Decimal(0)
    if attempt.array:
        return _charge_tasks(attempt, until)
    if attempt.job.parts:
        return _charge_parts(attempt, until)
    job = attempt.job
    start = max(attempt.started_at, attempt.charged_until_at or attempt.started_at)
    row = QueueEntry.objects.filter(attempt=attempt, scheduler_id=attempt.scheduler_id).order_by("pk").last()
    most = attempt.started_at + _longest(job)
    # The end that Slurm tells of what was shown running past its limit is believed.
    is_told = start > most and attempt.ended_at is not None and is_final_state(attempt.observed_state)
    if not is_told and not (row is not None and _is_shown(job, row.state, row.gone_at, until)):
        until = min(until, most)
    if until <= start:
        return Decimal(0)
    seconds = (until - start).total_seconds()
    # Options of its script may have given it more than the form tells of.
    gpus = max(job.gpus, row.gpus) if row is not None else job.gpus
    with transaction.atomic():
        if not _reach(attempt, until):
            return Decimal(0)
        hours, usd = cost_of(job, gpus, seconds)
        usd = _post(attempt, until, hours, f"{units.duration(seconds)} × {_what(job, gpus)}", usd)
    attempt.charged_until_at = until
    return usd


def _charge_parts(attempt: Attempt, until: datetime) -> Decimal:
    """One posting for all parts of a heterogeneous job: each by its own time, GPUs and price.

    All parts start together. One that was ended by itself is charged to its end, told by its own entry.
    """
    job = attempt.job
    assert attempt.started_at is not None
    start = max(attempt.started_at, attempt.charged_until_at or attempt.started_at)
    rows = {row.het_offset: row for row in QueueEntry.objects.filter(attempt=attempt).order_by("pk")}
    hours = usd = Decimal(0)
    words: list[str] = []
    for offset, part in enumerate(parts_of(job)):
        row = rows.get(offset)
        end = until
        if row is not None and row.ended_at is not None and row.ended_at >= attempt.started_at:
            end = min(end, row.ended_at)
        elif row is None or not _is_shown(job, row.state, row.gone_at, until):
            end = min(end, attempt.started_at + timedelta(minutes=part.time_limit_min) + LIMIT_GRACE)
        if end <= start:
            continue
        gpus = max(part.gpus, row.gpus) if row is not None else part.gpus
        seconds = (end - start).total_seconds()
        more = part.cost(gpus, seconds)
        hours, usd = hours + more[0], usd + ledger.exact(more[1])
        what = f"{gpus} GPUs" if gpus else f"{part.nodes} nodes at {units.usd(part.usd_per_node_hour)}/h"
        words.append(f"{units.duration(seconds)} × {what}")
    if not words:
        return Decimal(0)
    with transaction.atomic():
        if not _reach(attempt, until):
            return Decimal(0)
        _post(attempt, until, hours, " + ".join(words) if len(words) < 5 else f"{len(words)} parts", usd)
    attempt.charged_until_at = until
    return usd


def _longest(job: Job) -> timedelta:
    """Slurm ends a job at its limit: what was never shown to run longer has not, whatever the clock."""
    return timedelta(minutes=job.time_limit_min) + LIMIT_GRACE


def _is_shown(job: Job, state: str, gone_at: datetime | None, until: datetime) -> bool:
    """Whether the queue was read at an instant or later and still showed it running, past its limit or not."""
    read_at = job.cluster.queue_read_at
    is_running = gone_at is None and state != "PENDING" and not is_final_state(state)
    return is_running and read_at is not None and until <= read_at


def _reach(attempt: Attempt, until: datetime) -> bool:
    """Remember how far it is charged, in the commit of the postings: a crash repeats neither."""
    rows = Attempt.objects.filter(pk=attempt.pk, charged_until_at=attempt.charged_until_at)
    return rows.update(charged_until_at=until) == 1


def _what(job: Job, gpus: int) -> str:
    """What was used, for the memo: GPUs, or a share of nodes."""
    return f"{gpus} GPUs" if gpus else f"{job.nodes} nodes at {units.usd(job.usd_per_node_hour)}/h"


def _post(attempt: Attempt, until: datetime, hours: Decimal, what: str, usd: Decimal) -> Decimal:
    job = attempt.job
    usd = ledger.exact(usd)
    key = f"charge:{attempt.uid}:{until.timestamp():.3f}"
    memo = f"{job.name}, attempt {attempt.number}: {what}"
    for unit, amount in ((Unit.USD, usd), (Unit.GPU_HOURS, hours)):
        ledger.charge(job.team, unit, amount, key=f"{key}:{unit}", subject=job.uid, detail=attempt.uid, memo=memo)
    return usd


def _charge_tasks(attempt: Attempt, until: datetime) -> Decimal:
    """One posting for all tasks: each by the time it ran since it was charged last, kept on its own entry."""
    job = attempt.job
    due = QueueEntry.objects.filter(attempt=attempt, started_at__isnull=False).exclude(state="PENDING")
    is_open = Q(ended_at__isnull=True) | Q(charged_until_at__isnull=True) | Q(charged_until_at__lt=F("ended_at"))
    due = due.filter(is_open)
    with transaction.atomic():
        if not _reach(attempt, until):
            return Decimal(0)
        seconds, tasks = 0.0, 0
        columns = ("started_at", "ended_at", "charged_until_at", "gone_at", "state")
        for started, ended, charged, gone, state in due.values_list(*columns):
            if started is None:
                continue
            begin = max(started, charged or started)
            # One that left the queue ran no longer than that, until accounting tells its end.
            end = min(ended or gone or until, until)
            most = started + _longest(job)
            if not (ended is not None and begin > most) and not _is_shown(job, state, gone, until):
                end = min(end, most)
            if end > begin:
                seconds += (end - begin).total_seconds()
                tasks += 1
        without_end = due.filter(ended_at__isnull=True)
        without_end.exclude(gone_at__lte=until).update(charged_until_at=until)
        without_end.filter(gone_at__lte=until).update(charged_until_at=F("gone_at"))
        due.filter(ended_at__isnull=False).update(charged_until_at=F("ended_at"))
        usd = Decimal(0)
        if seconds > 0:
            what = f"{units.duration(seconds)} of {tasks} tasks × {_what(job, job.gpus_per_task)}"
            hours, usd = cost_of(job, job.gpus_per_task, seconds)
            usd = _post(attempt, until, hours, what, usd)
    attempt.charged_until_at = until
    return usd
