"""Depth and age of the queue of intents, for metrics and the readiness check."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Min, Q

from apps.core import clock
from apps.intents.models import Intent


@dataclass(frozen=True)
class Depth:
    """Due intents of one kind: how many, the oldest one's age in seconds, how many failed at least once."""

    kind: str
    due: int
    oldest_age_s: float
    failing: int


def intent_depths() -> list[Depth]:
    """One row a kind that has anything due or failing."""
    now = clock.now()
    rows = Intent.objects.values("kind").annotate(
        due=Count("id", filter=Q(due_at__lte=now)),
        oldest=Min("due_at", filter=Q(due_at__lte=now)),
        failing=Count("id", filter=~Q(last_error="")),
    )
    return [
        Depth(r["kind"], r["due"], (now - r["oldest"]).total_seconds() if r["oldest"] else 0.0, r["failing"])
        for r in rows
    ]


def intent_error(key: str) -> str:
    """What the last failed visit of this thing said, or empty."""
    row = Intent.objects.filter(key=key).exclude(last_error="").order_by("-due_at").first()
    return row.last_error if row else ""
