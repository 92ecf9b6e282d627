"""Charging an attempt for the time that it, or each task of its array, was seen running."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from django.db import transaction
from django.db.models import F, Q

from apps.core import units
from apps.costs import services as ledger
from apps.costs.states import Unit
from apps.jobs.models import Attempt
from apps.jobs.queue_models import QueueEntry
from apps.jobs.rules import gpu_hours

#: How long after its time limit Slurm may take to end a job (KillWait and the epilog).
LIMIT_GRACE = timedelta(minutes=5)


def attempt_charge(attempt: Attempt, until: datetime) -> Decimal:
    """Charge an attempt up to an instant; the USD charged. A second call for the same span charges nothing."""
    if attempt.started_at is None:
        return Decimal(0)
    if attempt.array:
        return _charge_tasks(attempt, until)
    job = attempt.job
    start = max(attempt.started_at, attempt.charged_until_at or attempt.started_at)
    # Slurm ends a job at its limit: whatever the clock says, longer than that it has not run.
    until = min(until, attempt.started_at + timedelta(minutes=job.time_limit_min) + LIMIT_GRACE)
    if until <= start:
        return Decimal(0)
    seconds = (until - start).total_seconds()
    with transaction.atomic():
        if not _reach(attempt, until):
            return Decimal(0)
        memo = f"{units.duration(seconds)} × {job.gpus} GPUs"
        usd = _post(attempt, until, gpu_hours(job.gpus, seconds), memo)
    attempt.charged_until_at = until
    return usd


def _reach(attempt: Attempt, until: datetime) -> bool:
    """Remember how far it is charged, in the commit of the postings: a crash repeats neither."""
    rows = Attempt.objects.filter(pk=attempt.pk, charged_until_at=attempt.charged_until_at)
    return rows.update(charged_until_at=until) == 1


def _post(attempt: Attempt, until: datetime, hours: Decimal, what: str) -> Decimal:
    job = attempt.job
    usd = ledger.exact(hours * job.usd_per_gpu_hour)
    key = f"charge:{attempt.uid}:{until.timestamp():.3f}"
    memo = f"{job.name}, attempt {attempt.number}: {what}"
    for unit, amount in ((Unit.USD, usd), (Unit.GPU_HOURS, hours)):
        ledger.charge(job.team, unit, amount, key=f"{key}:{unit}", subject=job.uid, detail=attempt.uid, memo=memo)
    return usd


def _charge_tasks(attempt: Attempt, until: datetime) -> Decimal:
    """One posting for all tasks: each by the time it ran since it was charged last, kept on its own entry."""
    job = attempt.job
    longest = timedelta(minutes=job.time_limit_min) + LIMIT_GRACE
    due = QueueEntry.objects.filter(attempt=attempt, started_at__isnull=False).exclude(state="PENDING")
    is_open = Q(ended_at__isnull=True) | Q(charged_until_at__isnull=True) | Q(charged_until_at__lt=F("ended_at"))
    due = due.filter(is_open)
    with transaction.atomic():
        if not _reach(attempt, until):
            return Decimal(0)
        seconds, tasks = 0.0, 0
        for started, ended, charged in due.values_list("started_at", "ended_at", "charged_until_at"):
            if started is None:
                continue
            begin = max(started, charged or started)
            end = min(ended or until, until, started + longest)
            if end > begin:
                seconds += (end - begin).total_seconds()
                tasks += 1
        due.filter(ended_at__isnull=True).update(charged_until_at=until)
        due.filter(ended_at__isnull=False).update(charged_until_at=F("ended_at"))
        usd = Decimal(0)
        if seconds > 0:
            what = f"{units.duration(seconds)} of {tasks} tasks × {job.gpus_per_task} GPUs"
            usd = _post(attempt, until, gpu_hours(job.gpus_per_task, seconds), what)
    attempt.charged_until_at = until
    return usd
