"""The capacity calendar: one lane a reservation on a time axis, with the jobs inside, as numbers a page can draw."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce

from apps.capacity.models import Reservation
from apps.capacity.selectors import unused_usd_per_hour
from apps.capacity.states import COLOURS, LIVE, PREPAID
from apps.clusters.selectors import nodes_reserved
from apps.core import clock
from apps.jobs.models import Attempt, Job
from apps.jobs.selectors import jobs_visible_to
from apps.teams.permissions import Actor

WIDTH = 1000.0
#: Height of the axis, of a lane, and of a job inside a lane.
AXIS, LANE, BAR, JOB = 26, 44, 30, 8
#: Days a window may show, and every how many days it has a line.
SPANS = {7: 1, 14: 2, 28: 7, 56: 7, 182: 28}
MOST_LANES = 60


@dataclass(frozen=True)
class Tick:
    """A line of the axis."""

    x: float
    at: datetime


@dataclass(frozen=True)
class JobBar:
    """A job inside a lane."""

    x: float
    width: float
    y: float
    job: Job


@dataclass(frozen=True)
class Lane:
    """One reservation: where its bar lies, what it costs unused, and the jobs in it."""

    reservation: Reservation
    y: float
    x: float
    width: float
    colour: str
    unused: Decimal | None
    left_s: float | None
    jobs: list[JobBar] = field(default_factory=list)

    @property
    def text_x(self) -> float:
        """Where its name begins, in view even when the bar began before the window."""
        return max(self.x, 0) + 8

    @property
    def text_y(self) -> float:
        """The base line of its name."""
        return self.y + 14

    @property
    def is_narrow(self) -> bool:
        """Whether its name does not fit into the bar."""
        return self.width < 140


@dataclass(frozen=True)
class Calendar:
    """What a page draws."""

    start: datetime
    end: datetime
    days: int
    lanes: list[Lane]
    ticks: list[Tick]
    now_x: float | None
    height: float
    unused: Decimal
    hidden: int = 0
    #: Prepaid reservations in it whose price nobody has told.
    unpriced: int = 0

    @property
    def view_box(self) -> str:
        """The coordinates of the drawing."""
        return f"0 0 {WIDTH:g} {self.height:g}"

    @property
    def label_y(self) -> float:
        """The base line of the axis."""
        return AXIS - 9


def calendar_of(actor: Actor, rows: QuerySet[Reservation], start: datetime, days: int) -> Calendar:
    """Lanes of the reservations that overlap the window, soonest end first; three queries besides theirs."""
    end, now = start + timedelta(days=days), clock.now()
    inside = rows.filter(Q(start_at__isnull=True) | Q(start_at__lt=end)).filter(
        Q(end_at__isnull=True) | Q(end_at__gt=start)
    )
    found = list(inside.filter(Q(phase__in=LIVE) | Q(ended_at__gt=start)).order_by("start_at", "id")[: MOST_LANES + 1])

    def place(at: datetime) -> float:
        return round((at - start) / (end - start) * WIDTH, 1)

    jobs = _jobs(actor, found[:MOST_LANES], start, end)
    lanes = []
    for index, row in enumerate(found[:MOST_LANES]):
        begins = place(max(start, row.start_at or start))
        ends = place(min(end, row.end_at or row.ended_at or end))
        y = AXIS + index * LANE
        bars = [
            JobBar(
                place(max(start, since)),
                max(2.0, place(min(end, until)) - place(max(start, since))),
                y + BAR - JOB - 1,
                job,
            )
            for job, since, until in jobs.get(row.pk, [])
        ]
        left_s = (row.end_at - now).total_seconds() if row.end_at is not None and row.end_at > now else None
        lanes.append(
            Lane(row, y, begins, max(3.0, ends - begins), COLOURS[row.phase], unused_usd_per_hour(row), left_s, bars)
        )
    step = SPANS[days]
    ticks = [Tick(place(at), at) for n in range(0, days, step) if (at := start + timedelta(days=n))]
    return Calendar(
        start,
        end,
        days,
        lanes,
        ticks,
        place(now) if start <= now <= end else None,
        AXIS + max(1, len(lanes)) * LANE,
        sum((lane.unused or Decimal(0) for lane in lanes), Decimal(0)),
        max(0, len(found) - MOST_LANES),
        sum(1 for lane in lanes if lane.reservation.kind in PREPAID and lane.reservation.usd_upfront is None),
    )


def _jobs(
    actor: Actor, rows: list[Reservation], start: datetime, end: datetime
) -> dict[int, list[tuple[Job, datetime, datetime]]]:
    """Jobs the actor may see by the reservation whose nodes they ran on, with their span."""
    where: dict[tuple[int, str], int] = {}
    reserved = Coalesce("fleet__reservation_id", "group__reservation_id")
    for cluster_id, name, reservation_id in nodes_reserved(rows).values_list("cluster_id", "name", reserved):
        where[(cluster_id, name)] = reservation_id
    if not where:
        return {}
    now = clock.now()
    attempts = (
        Attempt.objects.filter(
            job__in=jobs_visible_to(actor),
            job__cluster_id__in={c for c, _n in where},
            started_at__isnull=False,
            started_at__lt=end,
        )
        .exclude(ended_at__lte=start)
        .select_related("job")
        .order_by("started_at")
    )
    found: dict[int, list[tuple[Job, datetime, datetime]]] = {}
    for attempt in attempts[:500]:
        assert attempt.started_at is not None
        lanes = {where[key] for name in attempt.nodes if (key := (attempt.job.cluster_id, name)) in where}
        for lane in lanes:
            found.setdefault(lane, []).append((attempt.job, attempt.started_at, attempt.ended_at or now))
    return found
