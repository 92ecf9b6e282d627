"""Intent: one row a thing that wants the worker's eye.

    asked ──claim──▶ leased ──visit ended──▶ deleted, or due again later
      ▲                │
      └── lease ran out (the worker died) or the visit failed (due_at pushed back)

Unique on (kind, key): asking twice is one row with a new ``ticket``. A visit settles only the
ticket it saw, so what was asked during the visit is visited again. Proof of failure is that the
row remains.
"""

from __future__ import annotations

from django.db import models

from apps.core import clock


class Intent(models.Model):
    """See the module's docstring. ``kind`` is ``<noun>.<verb>``, ``key`` the object's uid."""

    kind = models.CharField(max_length=60)
    key = models.CharField(max_length=80)
    ticket = models.CharField(max_length=32)
    due_at = models.DateTimeField(default=clock.now)
    attempts = models.PositiveIntegerField(default=0)
    leased_until = models.DateTimeField(null=True, blank=True)
    lease = models.CharField(max_length=32, blank=True, default="")
    asked_at = models.DateTimeField(default=clock.now)
    request_id = models.CharField(max_length=64, blank=True, default="")
    last_error = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "key"], name="intents_one_row_per_thing")]
        indexes = [models.Index(fields=["due_at", "id"], name="intents_by_due")]

    def __str__(self) -> str:
        """What to look at."""
        return f"{self.kind} {self.key}"
