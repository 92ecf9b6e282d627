"""Named reads of expected starts: what is stored, how good it was, and what would be if a job asked for less."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import Count, Q

from apps.clusters.models import Cluster
from apps.core import clock
from apps.jobs.models import Attempt, Job, QueueEntry
from apps.jobs.start_models import StartPrediction
from apps.jobs.start_pictures import OPEN, history_of, pool_of, ratios_in, use_of
from apps.jobs.start_rules import CYCLE_S, Accuracy, Estimate, Waiting, Why, calibrated, explain, simulate
from apps.jobs.states import AttemptPhase

#: Over how long the accuracy is told.
ACCURACY_WINDOW = timedelta(days=90)
#: A page waits no longer than this for an answer to "what if".
PAGE_BUDGET_S = 0.1


def waits_for_start(attempt: Attempt | None) -> bool:
    """Whether an attempt is in a scheduler's queue and has not started."""
    return attempt is not None and attempt.phase == AttemptPhase.QUEUED and attempt.started_at is None


def prediction_of(attempt: Attempt | None) -> StartPrediction | None:
    """The newest expectation of an attempt that waits."""
    if attempt is None or not waits_for_start(attempt):
        return None
    return StartPrediction.objects.filter(attempt=attempt, is_first=False).first()


def predictions_for(jobs: Iterable[Job]) -> dict[int, StartPrediction]:
    """The newest expectations of waiting jobs by their pk; one query."""
    rows = StartPrediction.objects.filter(
        attempt__job__in=[job.pk for job in jobs], attempt__phase=AttemptPhase.QUEUED, is_first=False
    ).select_related("attempt")
    return {row.attempt.job_id: row for row in rows}


def accuracy_of(cluster_id: int) -> Accuracy:
    """How many attempts of a cluster started of late, and how many of them within the range first told."""
    since = clock.now() - ACCURACY_WINDOW
    rows = StartPrediction.objects.filter(
        cluster_id=cluster_id, is_first=True, started_at__gt=since, was_inside__isnull=False
    )
    told = rows.aggregate(starts=Count("pk"), inside=Count("pk", filter=Q(was_inside=True)))
    return Accuracy(told["starts"], told["inside"])


@dataclass(frozen=True)
class Asked:
    """What a job asks for, as far as its start depends on it."""

    nodes: int
    gpus_per_node: int
    limit_min: int
    partition: str = ""
    gpu_type: str = ""
    user_name: str = ""
    name: str = ""
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class WhatIf:
    """An answer: instants like a prediction's, None where no start is in sight, and why."""

    low_at: datetime | None
    p50_at: datetime | None
    p90_at: datetime | None
    why: Why | None

    @property
    def is_now(self) -> bool:
        """Whether it would start in the scheduler's next round."""
        return self.p90_at is not None and self.p90_at - clock.now() < timedelta(seconds=4 * CYCLE_S)


def what_if(cluster: Cluster, asked: Asked, *, key: str = "") -> WhatIf:
    """When a job would start that asks for this: one of the queue (``key``) in its place, or a new one at the end."""
    pool = pool_of(cluster, asked.partition, reach=[key] if key else [])
    history = history_of(cluster)
    is_bare = bool(pool.types) and not any(pool.types.values()) and not asked.gpus_per_node
    job = Waiting(
        key=key or "new",
        nodes=asked.nodes,
        share=1 if is_bare else asked.gpus_per_node,
        limit_s=asked.limit_min * 60.0,
        use=use_of(history, user_name=asked.user_name, name=asked.name, partition=asked.partition),
        excluded=asked.excluded | pool.others_than(asked.gpu_type),
    )
    waiting = list(pool.picture.waiting)
    at = next((index for index, other in enumerate(waiting) if other.key == job.key), None)
    if at is None:
        waiting.append(job)
    else:
        waiting[at] = replace(job, eligible_in_s=waiting[at].eligible_in_s)
    picture = replace(pool.picture, waiting=tuple(waiting))
    played = simulate(picture, [job.key], budget_s=PAGE_BUDGET_S).get(job.key)
    estimate = calibrated(played, ratios_in(history)) if played is not None else None
    return _answer(estimate, explain(picture, job.key), pool.at)


def _answer(estimate: Estimate | None, why: Why | None, at: datetime) -> WhatIf:
    if estimate is None:
        return WhatIf(None, None, None, why)
    return WhatIf(
        at + timedelta(seconds=estimate.low_s),
        at + timedelta(seconds=estimate.p50_s),
        at + timedelta(seconds=estimate.p90_s + CYCLE_S),
        why,
    )


def asked_of(job: Job, attempt: Attempt | None) -> Asked:
    """What a job asks for now; its user and name as the queue shows them."""
    row = QueueEntry.objects.filter(attempt=attempt, gone_at__isnull=True).first() if attempt is not None else None
    kept_away: Collection[str] = [*attempt.excluded_nodes, *attempt.avoided_nodes] if attempt is not None else []
    return Asked(
        # The parts of a heterogeneous job start together: nodes for all of them, each as one of the first part.
        nodes=job.nodes_in_all,
        gpus_per_node=job.gpus_per_node,
        limit_min=job.time_limit_min,
        partition=job.partition or job.cluster.partition or (row.partition.split(",")[0] if row is not None else ""),
        gpu_type=job.gpu_type,
        user_name=row.user_name if row is not None else "",
        name=row.name if row is not None else job.name,
        excluded=frozenset(kept_away),
    )


def is_open(reason: str) -> bool:
    """Whether a job with this reason starts as soon as there is room."""
    return reason in OPEN
