"""Expected starts of the demo site's waiting jobs, how earlier ones turned out, and what reading the queue costs."""

from __future__ import annotations

from datetime import timedelta

from apps.core import clock
from tests.demo_site import DemoRows


def demo_starts(rows: DemoRows) -> None:
    """A range for what waits, seven of eight past starts inside theirs, and readings of every cluster."""
    from apps.clusters.models import Cluster
    from apps.jobs.models import Attempt, StartPrediction

    now = clock.now()
    cost = {"period_s": 5.0, "read_s": 0.13, "bytes": 812_000, "calls": 11}
    Cluster.objects.filter(queue_read_at__isnull=False).update(
        queue_reading=cost, nodes_reading={"period_s": 20.0, "read_s": 0.02, "bytes": 21_400, "calls": 1}
    )
    why = {
        "reason": "Resources",
        "partition": "p5",
        "ahead": 3,
        "fitting": 12,
        "free": 6,
        "missing": 2,
        "unusable": 1,
        "blockers": ["812", "815"],
        "freed_in_s": 2400.0,
        "could_start_with": 6,
    }
    for attempt in Attempt.objects.filter(phase="QUEUED", started_at__isnull=True, job__phase="QUEUED"):
        less = max(0, attempt.job.nodes - 2)
        facts = {"partition": attempt.job.partition or "gpu", "free": less, "could_start_with": less}
        for is_first in (True, False):
            StartPrediction.objects.create(
                cluster=attempt.job.cluster,
                attempt=attempt,
                is_first=is_first,
                made_at=now - timedelta(seconds=20),
                low_at=now + timedelta(minutes=22),
                p50_at=now + timedelta(minutes=40),
                p90_at=now + timedelta(minutes=80),
                why={**why, **facts},
            )
    begun = Attempt.objects.filter(started_at__isnull=False, predictions__isnull=True).order_by("pk")
    for number, attempt in enumerate(begun[:8]):
        at = attempt.started_at or now
        StartPrediction.objects.create(
            cluster=attempt.job.cluster,
            attempt=attempt,
            is_first=True,
            made_at=at - timedelta(minutes=30),
            low_at=at - timedelta(minutes=10),
            p50_at=at - timedelta(minutes=2),
            p90_at=at + timedelta(minutes=20),
            started_at=at,
            was_inside=number != 4,
        )
