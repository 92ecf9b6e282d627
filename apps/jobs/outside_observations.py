"""What the worker writes about jobs from outside: taken in once, followed by the queue's rows, charged as they ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.audit.models import Event
from apps.audit.services import event, events
from apps.checkpoints.models import CheckpointSeries
from apps.clusters.models import Cluster, Node
from apps.core import clock, ids, units
from apps.core.said import said
from apps.core.states import move
from apps.costs import services as ledger
from apps.costs.selectors import standing_of
from apps.costs.states import Unit
from apps.jobs.charges import LIMIT_GRACE
from apps.jobs.models import Attempt, Job
from apps.jobs.observations import job_end
from apps.jobs.outside_prices import cost_of_row, places_of, priced_nodes, share_of_row
from apps.jobs.outside_selectors import Owner, outsiders_by_number
from apps.jobs.pricing import price_on
from apps.jobs.queue_models import QueueEntry
from apps.jobs.queue_observations import UNFINISHED
from apps.jobs.rules import end_of
from apps.jobs.states import ATTEMPT_TRANSITIONS, JOB_TRANSITIONS, AttemptPhase, JobOrigin, JobPhase
from apps.teams.models import Team

#: What stands for no time limit.
_NO_LIMIT_MIN = 60 * 24 * 365
_UNKNOWN_PRICE = _("no price is known")
_ENDS = {
    AttemptPhase.SUCCEEDED: JobPhase.SUCCEEDED,
    AttemptPhase.TIMED_OUT: JobPhase.TIMED_OUT,
    AttemptPhase.CANCELLED: JobPhase.CANCELLED,
}


class Outrun(Exception):
    """Someone else took the rows in meanwhile: nothing was written."""


def rows_free(rows: Sequence[QueueEntry]) -> None:
    """Untie rows from an attempt that has ended: the scheduler began another life under the same number."""
    QueueEntry.objects.filter(pk__in=[row.pk for row in rows]).update(attempt=None)


def _key(row: QueueEntry) -> str:
    """The number all parts of one job share."""
    return row.array_id or row.het_id or row.scheduler_id


def outsiders_adopt(cluster: Cluster, found: Sequence[tuple[QueueEntry, Owner]]) -> int:
    """Make a job of each that is none yet and tie its rows to it, all in one commit; how many jobs were made."""
    groups: dict[str, list[tuple[QueueEntry, Owner]]] = defaultdict(list)
    for row, owner in found:
        groups[_key(row)].append((row, owner))
    known = outsiders_by_number(cluster, groups)
    nodes = priced_nodes(cluster)
    by_name = {node.name: node for node in nodes}
    jobs: list[Job] = []
    attempts: list[Attempt] = []
    series: list[CheckpointSeries] = []
    ties: list[tuple[Attempt, list[QueueEntry]]] = []
    prices: dict[Any, tuple[Decimal, str] | None] = {}
    for key, parts in groups.items():
        rows = [row for row, _owner in parts]
        attempt = known.get(key)
        if attempt is None:
            job = _job(cluster, parts[0][1], rows, by_name, nodes, prices)
            attempt = _attempt(job, key, rows)
            jobs.append(job)
            series.append(job.series)
            attempts.append(attempt)
        ties.append((attempt, rows))
    with transaction.atomic():
        CheckpointSeries.objects.bulk_create(series)
        for job in jobs:
            job.series_id = job.series.pk
        Job.objects.bulk_create(jobs)
        for attempt in attempts:
            attempt.job_id = attempt.job.pk
        Attempt.objects.bulk_create(attempts)
        for attempt, rows in ties:
            pks = [row.pk for row in rows]
            if QueueEntry.objects.filter(pk__in=pks, attempt__isnull=True).update(attempt=attempt) != len(pks):
                raise Outrun(attempt.scheduler_id)
        events(
            Event(
                object_type="job",
                object_uid=job.uid,
                team_id=job.team_id,
                kind="JobAdopted",
                text=said(_("submitted past the portal by %(user)s"), user=job.slurm_user),
                data={"user": job.slurm_user, "account": job.slurm_account},
            )
            for job in jobs
        )
    return len(jobs)


def _job(
    cluster: Cluster,
    owner: Owner,
    rows: Sequence[QueueEntry],
    by_name: dict[str, Node],
    nodes: Sequence[Node],
    prices: dict[Any, tuple[Decimal, str] | None],
) -> Job:
    first = rows[0]
    node_count = max(1, sum(r.node_count for r in rows) if first.het_id else max(r.node_count for r in rows))
    gpus = sum(r.gpus for r in rows) if first.het_id else max(r.gpus for r in rows)
    on = [by_name[name] for name in first.nodes if name in by_name]
    kind = tuple(sorted({n.pk for n in on}))
    if kind not in prices:
        prices[kind] = price_on(cluster, on or nodes, "")
    usd, source = prices[kind] or (Decimal(0), said(_UNKNOWN_PRICE))
    usd_per_node_hour = Decimal(0)
    bare = next((r for r in rows if not r.gpus and r.cpus), None)
    if bare is not None:
        # What is shown while it waits; each row is charged by what it holds.
        share = share_of_row(cluster, bare, nodes)
        usd_per_node_hour = share[0] if share is not None else usd_per_node_hour
        source = share[1] if share is not None and not gpus else source
    uid = ids.new_uid("job")
    name = (first.name or first.scheduler_id)[:120]
    runs = any(r.started_at is not None and r.state != "PENDING" for r in rows)
    started = min((r.started_at for r in rows if r.started_at is not None), default=None)
    return Job(
        uid=uid,
        created_at=first.submitted_at or clock.now(),
        team=owner.team,
        owner=owner.user,
        owner_name=owner.user_name[:150],
        cluster=cluster,
        origin=JobOrigin.OUTSIDE,
        name=name,
        script="",
        nodes=node_count,
        # More in all than nodes times this never is, and charging goes by what each row held.
        gpus_per_node=min(-(-gpus // node_count), 32_767),
        gpu_type=on[0].gpu_type if on else "",
        time_limit_min=max(1, first.time_limit_min or _NO_LIMIT_MIN),
        partition=first.partition[:60],
        max_recoveries=0,
        usd_per_gpu_hour=usd,
        usd_per_node_hour=usd_per_node_hour,
        price_source=source,
        slurm_user=first.user_name[:60],
        slurm_account=first.account[:60],
        series=CheckpointSeries(uid=ids.new_uid("ser"), team=owner.team, name=name, job_uid=uid),
        phase=JobPhase.RUNNING if runs else JobPhase.QUEUED,
        started_at=started if runs else None,
        observed_generation=1,
    )


def _attempt(job: Job, key: str, rows: Sequence[QueueEntry]) -> Attempt:
    runs = job.phase == JobPhase.RUNNING
    first = rows[0]
    return Attempt(
        uid=ids.new_uid("att"),
        job=job,
        number=1,
        created_at=job.created_at,
        phase=AttemptPhase.RUNNING if runs else AttemptPhase.QUEUED,
        scheduler_id=key,
        slurm_user=job.slurm_user,
        slurm_account=job.slurm_account,
        observed_state="RUNNING" if runs else first.state,
        observed_reason=first.reason[:80],
        observed_at=clock.now(),
        expected_start_at=first.expected_start_at,
        nodes=_nodes(rows),
        started_at=job.started_at,
    )


def _nodes(rows: Sequence[QueueEntry]) -> list[str]:
    return sorted({str(name) for row in rows for name in row.nodes})


def _rows(attempt: Attempt) -> list[QueueEntry]:
    return list(QueueEntry.objects.filter(attempt=attempt).order_by("pk"))


def outsider_running(attempt: Attempt) -> None:
    """It runs."""
    rows = _rows(attempt)
    started = min((r.started_at for r in rows if r.started_at is not None), default=clock.now())
    job = attempt.job
    bare = next((r for r in rows if r.started_at is not None and not r.gpus and r.cpus), None)
    share = share_of_row(job.cluster, bare, places_of(bare)) if bare is not None else None
    rate = job.usd_per_node_hour if share is None else share[0]
    with transaction.atomic():
        columns: dict[str, Any] = {
            "started_at": started,
            "nodes": _nodes(rows),
            "observed_state": "RUNNING",
            "observed_reason": "",
        }
        move(attempt, ATTEMPT_TRANSITIONS, AttemptPhase.RUNNING, observed_at=clock.now(), **columns)
        if job.phase == JobPhase.QUEUED:
            seen: dict[str, Any] = {"started_at": job.started_at or started, "usd_per_node_hour": rate}
            move(job, JOB_TRANSITIONS, JobPhase.RUNNING, **seen)


def outsider_requeued(attempt: Attempt) -> None:
    """The scheduler put it back into its queue."""
    job = attempt.job
    with transaction.atomic():
        move(attempt, ATTEMPT_TRANSITIONS, AttemptPhase.QUEUED, started_at=None, observed_state="PENDING", nodes=[])
        if job.phase == JobPhase.RUNNING:
            move(job, JOB_TRANSITIONS, JobPhase.QUEUED)


def outsider_end(attempt: Attempt) -> None:
    """Nothing of it is left in the queue: it ends as its worst part did."""
    rows = _rows(attempt)
    job = attempt.job
    worst = max(rows, key=lambda r: _badness(r.state))
    state = worst.state if worst.state not in UNFINISHED else ""
    phase, reason = AttemptPhase.LOST, "Lost"
    if state:
        found, reason = end_of(state, attempt.stop_reason, node_has_fatal_finding=False)
        phase = AttemptPhase(found)
    ends = [r.ended_at or r.gone_at for r in rows if r.ended_at or r.gone_at]
    ended_at = max((e for e in ends if e is not None), default=clock.now())
    started = min((r.started_at for r in rows if r.started_at is not None), default=None)
    with transaction.atomic():
        move(
            attempt,
            ATTEMPT_TRANSITIONS,
            phase,
            ended_at=ended_at,
            started_at=started,
            nodes=_nodes(rows),
            observed_state=state or attempt.observed_state,
            observed_reason=worst.reason[:80],
            observed_at=clock.now(),
            exit_code=worst.exit_code,
            signal=worst.signal,
            reason=reason,
        )
        for unit in (Unit.USD, Unit.GPU_HOURS):
            # Nothing is held for jobs from outside; what an earlier action did hold goes back.
            ledger.release(
                job.team,
                unit,
                key=f"release:{attempt.uid}:{unit}",
                subject=job.uid,
                detail=attempt.uid,
                memo=f"{job.name} (outside) ended",
            )
        if started is not None and job.started_at is None:
            Job.objects.filter(pk=job.pk, started_at__isnull=True).update(started_at=started)
        job_end(job, _ENDS.get(phase, JobPhase.FAILED), reason=reason, exit_code=worst.exit_code)


def _badness(state: str) -> int:
    order = ("COMPLETED", "CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE")
    return order.index(state) if state in order else len(order)


def outsiders_wait(rows: Sequence[QueueEntry]) -> int:
    """Keep reason and expected start of waiting ones as the queue tells them; how many differed."""
    changed: dict[int, Attempt] = {}
    for row in rows:
        attempt = row.attempt
        if attempt is None or attempt.pk in changed:
            continue
        attempt.observed_reason = row.reason[:80]
        attempt.expected_start_at = row.expected_start_at
        changed[attempt.pk] = attempt
    Attempt.objects.bulk_update(changed.values(), ["observed_reason", "expected_start_at"], batch_size=200)
    return len(changed)


def outsider_charge(row: QueueEntry, until: datetime) -> Decimal:
    """Charge what a row's job held of GPUs, or without any of its nodes, up to an instant; the USD.

    The same span twice charges nothing.
    """
    attempt = row.attempt
    assert attempt is not None
    assert row.started_at is not None
    job = attempt.job
    start = max(row.started_at, row.charged_until_at or row.started_at)
    if row.charged_until_at is not None and until <= row.charged_until_at:
        return Decimal(0)
    most = row.started_at + timedelta(minutes=row.time_limit_min) + LIMIT_GRACE if row.time_limit_min else until
    seconds = max(0.0, (min(until, most) - start).total_seconds())
    hours, usd = cost_of_row(job, row, seconds)
    usd = ledger.exact(usd)
    with transaction.atomic():
        # Charging and remembering how far is one commit: a crash repeats neither.
        changed = QueueEntry.objects.filter(pk=row.pk, charged_until_at=row.charged_until_at).update(
            charged_until_at=max(until, row.charged_until_at or until)
        )
        if changed != 1:
            return Decimal(0)
        if not hours and not usd:
            # Nobody knows a price of it.
            return Decimal(0)
        ledger.month_open(job.team)
        before = standing_of(job.team, Unit.USD).free
        key = f"outside:{row.pk}:{until.timestamp():.3f}"
        what = f"{row.gpus} GPUs" if row.gpus else f"share of {row.node_count or job.nodes} nodes"
        memo = f"{job.name}, {row.scheduler_id} (outside): {units.duration(seconds)} × {what}"
        for unit, amount in ((Unit.USD, usd), (Unit.GPU_HOURS, hours)):
            ledger.charge(job.team, unit, amount, key=f"{key}:{unit}", subject=job.uid, detail=attempt.uid, memo=memo)
        if usd > 0 and before >= 0 and (after := standing_of(job.team, Unit.USD).free) < 0:
            _overdrawn(job, after)
    row.charged_until_at = until
    return usd


def _overdrawn(job: Job, free: Decimal) -> None:
    """A job from outside spent what the team has not: told once, when the budget falls below nothing."""
    team: Team = job.team
    text = said(_("team %(team)s is %(usd)s over its budget for this month"), team=team.slug, usd=units.usd(-free))
    data = {"job": job.uid, "usd_over": str(-free)}
    event("team", team.uid, "BudgetOverdrawn", text, team_id=team.pk, data=data)
    event("job", job.uid, "BudgetOverdrawn", text, team_id=team.pk, data=data)
