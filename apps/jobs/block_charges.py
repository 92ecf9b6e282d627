"""What a prepaid reservation costs by the hour: jobs pay for what they use, its team for what no job used."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from django.db import transaction

from apps.capacity.models import Reservation
from apps.capacity.observations import charged_until
from apps.clusters.selectors import nodes_reserved
from apps.core import clock
from apps.costs import services as ledger
from apps.costs.states import Unit
from apps.jobs.models import Attempt

#: An hour is charged this long after its end, when what ran in it is known.
SETTLED = timedelta(minutes=10)
#: Hours a visit charges; a portal that was away catches up in several.
MOST_HOURS = 48
_HOUR = timedelta(hours=1)


def charge_hours(reservation: Reservation) -> int:
    """Charge the owner team the unused part of every whole hour that is over; how many hours were settled.

    Each hour has its own posting key, so however often this runs an hour is charged once.
    """
    r = reservation
    if r.usd_per_hour is None or r.start_at is None or r.end_at is None:
        return 0
    at = r.charged_until or r.start_at
    last = min(r.end_at, clock.now() - SETTLED)
    names = set(nodes_reserved([r]).values_list("cluster_id", "name"))
    done = 0
    while at < last and done < MOST_HOURS:
        until = min(at + _HOUR, r.end_at)
        if until > last:
            break
        if r.team is None:
            # An hour that nobody owned stays nobody's: whoever is given the block pays from then on.
            charged_until(r, until)
            at = until
            done += 1
            continue
        hours = Decimal(str((until - at).total_seconds())) / 3600
        unused = max(Decimal(0), r.instances * hours - used_hours(names, at, until))
        with transaction.atomic():
            ledger.month_open(r.team)
            ledger.charge(
                r.team,
                Unit.USD,
                unused * r.usd_per_hour,
                key=f"block:{r.uid}:{int(at.timestamp())}",
                subject=r.uid,
                detail=r.uid,
                memo=f"{r}, {unused.quantize(Decimal('0.01'))} of {r.instances} machine-hours unused"[:200],
            )
            charged_until(r, until)
        at = until
        done += 1
    return done


def owes(reservation: Reservation) -> bool:
    """Whether hours of it are not settled in the ledger yet."""
    r = reservation
    if r.usd_per_hour is None or r.start_at is None or r.end_at is None:
        return False
    return r.charged_until is None or r.charged_until < r.end_at


def used_hours(names: set[tuple[int, str]], since: datetime, until: datetime) -> Decimal:
    """Machine-hours in which a job ran on these nodes, each (cluster pk, node name); a node counts once."""
    if not names:
        return Decimal(0)
    spans: dict[tuple[int, str], list[tuple[datetime, datetime]]] = {}
    rows = Attempt.objects.filter(
        job__cluster_id__in={c for c, _name in names}, started_at__isnull=False, started_at__lt=until
    ).exclude(ended_at__lte=since)
    for attempt in rows.select_related("job"):
        start, end = max(since, attempt.started_at or since), min(until, attempt.ended_at or until)
        for name in attempt.nodes:
            if end > start and (attempt.job.cluster_id, name) in names:
                spans.setdefault((attempt.job.cluster_id, name), []).append((start, end))
    seconds = 0.0
    for found in spans.values():
        reached = since
        for start, end in sorted(found):
            if end > reached:
                seconds += (end - max(start, reached)).total_seconds()
                reached = end
    return Decimal(str(seconds)) / 3600
