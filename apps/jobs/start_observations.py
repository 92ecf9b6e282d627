"""What the worker writes about starts: history, expectations of waiting attempts, and how they turned out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q

from apps.clusters.models import Cluster
from apps.core import clock
from apps.jobs.models import Attempt, QueueEntry
from apps.jobs.start_models import StartHistory, StartPrediction
from apps.jobs.start_pictures import OPEN, RATIOS, Pool, history_of, pool_of, ratios_in, stem
from apps.jobs.start_rules import CYCLE_S, NEWEST_STARTS, Estimate, Why, calibrated, explain, likely_use, simulate
from apps.jobs.states import ATTEMPT_ENDED, AttemptPhase

#: How far back the history looks, how many jobs it reads, how many ended ones of a kind it looks at beside those that
#: run, and how many parts of a limit it keeps of them.
HISTORY = timedelta(days=14)
HISTORY_ROWS = 5000
HISTORY_OF_A_KIND = 60
PARTS_OF_A_KIND = 40
HISTORY_EVERY = timedelta(minutes=5)
#: Waits shorter than this tell nothing of how good expectations are.
LEAST_WAIT_S = 2 * CYCLE_S
#: A start this much outside the range still counts as inside: the scheduler does not look more often.
MARGIN = timedelta(seconds=2 * CYCLE_S)
#: A newest expectation is written anew when it moved by more than this, or is as old.
MOVED = timedelta(seconds=60)
OLD = timedelta(minutes=10)


def history_observe(cluster: Cluster) -> bool:
    """Gather what ended jobs took of their limits, every few minutes; True when it was gathered."""
    now = clock.now()
    known = StartHistory.objects.filter(cluster=cluster).first()
    if known is not None and now - known.made_at < HISTORY_EVERY:
        return False
    recent = QueueEntry.objects.filter(cluster=cluster, started_at__gt=now - HISTORY, time_limit_min__gt=0)
    rows = recent.filter(
        Q(ended_at__gt=F("started_at")) | Q(ended_at__isnull=True, gone_at__isnull=True, state="RUNNING")
    ).order_by("-started_at")
    names = ("user_name", "name", "partition", "started_at", "ended_at", "time_limit_min")
    use: dict[str, list[float]] = uses_of(rows.values_list(*names)[:HISTORY_ROWS], now)
    use[RATIOS] = ratios_of(cluster)
    StartHistory.objects.update_or_create(cluster=cluster, defaults={"made_at": now, "use": use})
    return True


def ratios_of(cluster: Cluster) -> list[float]:
    """Real waits as parts of what the plays had told for them, of the newest starts that were waited for.

    Expectations made when nothing was known of the jobs' kinds say nothing of those that are made now.
    """
    rows = StartPrediction.objects.filter(cluster=cluster, is_first=True, started_at__isnull=False)
    found: list[float] = []
    for why, made_at, started_at in rows.order_by("-started_at").values_list("why", "made_at", "started_at")[
        :NEWEST_STARTS
    ]:
        told_s = float(why.get("played_s") or 0)
        if told_s >= LEAST_WAIT_S and why.get("is_informed", True) and started_at is not None:
            found.append(round((started_at - made_at).total_seconds() / told_s, 4))
    return found


def uses_of(
    rows: Iterable[tuple[str, str, str, datetime, datetime | None, int]], now: datetime
) -> dict[str, list[float]]:
    """Parts of the limit that jobs take, by their kind.

    From (user, name, partition, start, end, limit in minutes), the last to start first; the end of a job that runs is
    None. Kinds of which none has ended are left out.
    """
    ended: dict[str, list[float]] = defaultdict(list)
    going: dict[str, list[float]] = defaultdict(list)
    for user, name, partition, started_at, ended_at, limit_min in rows:
        part = min(1.0, ((ended_at or now) - started_at).total_seconds() / (limit_min * 60.0))
        for kind in (stem(user, name), f"u:{user}", f"p:{partition.split(',')[0]}"):
            # Only such that started after the oldest ended one that is looked at: the earlier ones would be the long
            # ones alone.
            if len(ended[kind]) < HISTORY_OF_A_KIND:
                (going if ended_at is None else ended)[kind].append(part)
    return {
        kind: [round(part, 4) for part in likely_use(parts, going[kind], size=min(len(parts), PARTS_OF_A_KIND))]
        for kind, parts in ended.items()
        if parts
    }


def starts_observe(cluster: Cluster) -> int:
    """Tell of every waiting attempt of a cluster when it is expected to start and why it waits; rows written."""
    rows = (
        QueueEntry.objects.filter(
            cluster=cluster, gone_at__isnull=True, state="PENDING", attempt__phase=AttemptPhase.QUEUED
        )
        .exclude(array_task__isnull=False)
        .select_related("attempt__job")
        .order_by("-priority", "pk")
    )
    by_partition: dict[str, list[QueueEntry]] = defaultdict(list)
    for row in rows:
        by_partition[row.partition.split(",")[0]].append(row)
    return sum(_partition_observe(cluster, partition, some) for partition, some in by_partition.items())


def _partition_observe(cluster: Cluster, partition: str, rows: list[QueueEntry]) -> int:
    pool = pool_of(cluster, partition, reach=[row.scheduler_id for row in rows])
    excluded = {row.scheduler_id: _excluded(pool, row) for row in rows}
    waiting = tuple(
        replace(job, excluded=excluded[job.key]) if excluded.get(job.key) else job for job in pool.picture.waiting
    )
    picture = replace(pool.picture, waiting=waiting)
    told = simulate(picture, [row.scheduler_id for row in rows])
    ratios = ratios_in(history_of(cluster))
    written = 0
    for row in rows:
        why, played = explain(picture, row.scheduler_id), told.get(row.scheduler_id)
        estimate = calibrated(played, ratios) if played is not None else None
        facts = {"played_s": played.p50_s if played else 0.0, "is_informed": picture.is_informed}
        written += prediction_save(cluster, row, pool.at, estimate, why, facts)
    return written


def _excluded(pool: Pool, row: QueueEntry) -> frozenset[str]:
    attempt = row.attempt
    if attempt is None:
        return frozenset()
    return pool.others_than(attempt.job.gpu_type) | {*attempt.excluded_nodes, *attempt.avoided_nodes}


def prediction_save(
    cluster: Cluster,
    row: QueueEntry,
    made_at: datetime,
    estimate: Estimate | None,
    why: Why | None,
    played: Mapping[str, Any],
) -> int:
    """Keep the first expectation of an attempt and the newest; one that says the same is not written again.

    ``played`` is what later expectations are corrected by: ``played_s`` and ``is_informed``.
    """
    facts: dict[str, Any] = {"reason": row.reason, "partition": row.partition.split(",")[0], **played}
    if row.eligible_at is not None and row.eligible_at > made_at:
        facts["eligible_at"] = clock.iso(row.eligible_at)
    if why is not None:
        facts |= asdict(why) | {"blockers": list(why.blockers)[:20], "blockers_more": max(0, len(why.blockers) - 20)}
    columns: dict[str, Any] = {"low_at": None, "p50_at": None, "p90_at": None}
    if estimate is not None:
        columns = {
            "low_at": made_at + timedelta(seconds=estimate.low_s),
            "p50_at": made_at + timedelta(seconds=estimate.p50_s),
            "p90_at": made_at + timedelta(seconds=estimate.p90_s + CYCLE_S),
        }
    known = StartPrediction.objects.filter(attempt=row.attempt, is_first=False).first()
    if known is not None and _same(known, columns, facts, made_at):
        return 0
    with transaction.atomic():
        StartPrediction.objects.update_or_create(
            attempt=row.attempt,
            is_first=False,
            defaults={"cluster": cluster, "made_at": made_at, "why": facts, **columns},
        )
        if estimate is not None and row.reason in OPEN:
            StartPrediction.objects.get_or_create(
                attempt=row.attempt,
                is_first=True,
                defaults={"cluster": cluster, "made_at": made_at, "why": facts, **columns},
            )
    return 1


def _same(known: StartPrediction, columns: Mapping[str, Any], facts: Mapping[str, Any], now: datetime) -> bool:
    if now - known.made_at > OLD or _plain(known.why) != _plain(facts):
        return False
    for name in ("p50_at", "p90_at"):
        old, new = getattr(known, name), columns[name]
        if (old is None) != (new is None) or (old is not None and abs(old - new) > MOVED):
            return False
    return True


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What of the facts is no passing of time."""
    return {name: value for name, value in facts.items() if name not in ("freed_in_s", "played_s", "is_informed")}


def predictions_settle(cluster: Cluster) -> int:
    """Compare expectations with the starts that came; those of attempts that never started are dropped."""
    rows = StartPrediction.objects.filter(cluster=cluster, started_at__isnull=True)
    settled = 0
    for row in rows.filter(attempt__started_at__isnull=False).select_related("attempt"):
        started = row.attempt.started_at
        if started is None or row.low_at is None or row.p90_at is None:
            inside = None
        else:
            inside = row.low_at - MARGIN <= started <= row.p90_at + MARGIN
        settled += StartPrediction.objects.filter(pk=row.pk, started_at__isnull=True).update(
            started_at=started, was_inside=inside
        )
    ended = Attempt.objects.filter(phase__in=ATTEMPT_ENDED, started_at__isnull=True, job__cluster=cluster)
    rows.filter(attempt__in=ended).delete()
    return settled
