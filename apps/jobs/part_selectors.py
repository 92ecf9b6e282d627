"""Named reads of heterogeneous jobs: each part as it was asked for and as the scheduler last showed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal

from django.db.models import QuerySet

from apps.jobs.models import Attempt, Job
from apps.jobs.outside_prices import cost_of_row
from apps.jobs.part_rules import Part, parts_of
from apps.jobs.queue_models import QueueEntry
from apps.jobs.rules import is_final_state
from apps.jobs.states import JobOrigin


@dataclass(frozen=True)
class PartRow:
    """One part in the newest attempt that had it; ``usd`` is what it came to in all attempts so far.

    ``scheduler_id`` and ``state`` are empty while the scheduler has shown nothing of it.
    """

    offset: int
    name: str
    partition: str
    nodes: int
    gpus: int
    gpu_type: str
    time_limit_min: int
    options: Sequence[str] = ()
    attempt: int = 0
    scheduler_id: str = ""
    state: str = ""
    reason: str = ""
    node_names: list[str] = field(default_factory=list)
    started_at: datetime | None = None
    ended_at: datetime | None = None
    usd: Decimal = Decimal(0)

    @property
    def has_ended(self) -> bool:
        """Whether its state will not change any more in this attempt."""
        return is_final_state(self.state)


def has_parts(job: Job) -> bool:
    """Whether it is a heterogeneous job; one from outside is told by the rows of its parts."""
    if job.parts:
        return True
    return job.origin == JobOrigin.OUTSIDE and _rows(job).exclude(het_id="").exists()


def _rows(job: Job) -> QuerySet[QueueEntry]:
    return QueueEntry.objects.filter(attempt__job=job).order_by("attempt__number", "pk")


def parts_shown(job: Job) -> list[PartRow]:
    """Every part in order; empty for an ordinary job. Two queries, and for one from outside those of prices."""
    rows = [row for row in _rows(job).select_related("attempt") if row.het_offset is not None]
    if not job.parts:
        return [_of_outside(job, row) for row in sorted(rows, key=lambda row: row.het_offset or 0) if row.het_id]
    newest = {row.het_offset: row for row in rows}
    attempts = list(Attempt.objects.filter(job=job))
    found = []
    for offset, part in enumerate(parts_of(job)):
        spent = sum((_spent(part, a, [r for r in rows if r.het_offset == offset]) for a in attempts), Decimal(0))
        found.append(_of_portal(job, offset, part, newest.get(offset), spent))
    return found


def _spent(part: Part, attempt: Attempt, rows: Sequence[QueueEntry]) -> Decimal:
    """What a part of one attempt has been charged with: its own share of the attempt's postings."""
    if attempt.started_at is None or attempt.charged_until_at is None:
        return Decimal(0)
    row = next((row for row in rows if row.attempt_id == attempt.pk), None)
    end = min(attempt.charged_until_at, row.ended_at) if row is not None and row.ended_at else attempt.charged_until_at
    gpus = max(part.gpus, row.gpus) if row is not None else part.gpus
    return part.cost(gpus, max(0.0, (end - attempt.started_at).total_seconds()))[1]


def _of_portal(job: Job, offset: int, part: Part, row: QueueEntry | None, usd: Decimal) -> PartRow:
    asked = PartRow(
        offset=offset,
        name=part.name or job.name,
        partition=part.partition,
        nodes=part.nodes,
        gpus=part.gpus,
        gpu_type=part.gpu_type,
        time_limit_min=part.time_limit_min,
        options=part.slurm_options,
        usd=usd,
    )
    return asked if row is None else _seen(asked, row)


def _seen(asked: PartRow, row: QueueEntry) -> PartRow:
    return replace(
        asked,
        attempt=row.attempt.number if row.attempt is not None else 0,
        scheduler_id=row.scheduler_id,
        state=row.state,
        reason=row.reason,
        node_names=list(row.nodes),
        gpus=max(asked.gpus, row.gpus),
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def _of_outside(job: Job, row: QueueEntry) -> PartRow:
    seconds = 0.0
    if row.started_at is not None:
        end = row.charged_until_at or row.started_at
        seconds = max(0.0, (end - row.started_at).total_seconds())
    asked = PartRow(
        offset=row.het_offset or 0,
        name=row.name or job.name,
        partition=row.partition,
        nodes=row.node_count,
        gpus=row.gpus,
        gpu_type=job.gpu_type,
        time_limit_min=row.time_limit_min or 0,
        usd=cost_of_row(job, row, seconds)[1],
    )
    return _seen(asked, row)
