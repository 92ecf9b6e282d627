"""Orphan: something in the cloud with our tag that nothing of ours wants."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.capacity.orphan_states import OrphanKind, OrphanPhase
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.core.models import Recorded
from apps.core.said import SaidField


class Orphan(Recorded):
    """A thing that the sweep saw and whose tag names nothing that lives.

    ``tagged_uid`` is what its tag says; ``has_row`` whether this portal ever had a thing of that uid. ``usd_per_hour``
    is what it costs, None where nobody publishes a price. It goes by a person's word or, where this portal had made
    it, after the grace period.
    """

    uid_prefix = "orf"

    account = models.ForeignKey(CloudAccount, on_delete=models.CASCADE, related_name="orphans")
    kind = models.CharField(max_length=20, choices=OrphanKind.choices)
    provider_id = models.CharField(max_length=200)
    removal_asked_at = models.DateTimeField(null=True, blank=True)
    removal_asked_by = models.CharField(max_length=150, blank=True, default="")
    kept_reason = models.CharField(max_length=300, blank=True, default="")
    kept_by = models.CharField(max_length=150, blank=True, default="")

    tagged_uid = models.CharField(max_length=120, blank=True, default="")
    has_row = models.BooleanField(default=False)
    instance_type = models.CharField(max_length=40, blank=True, default="")
    state = models.CharField(max_length=40, blank=True, default="")
    usd_per_hour = models.DecimalField(max_digits=14, decimal_places=6, null=True, blank=True)
    price_source = SaidField(blank=True, default="")
    provider_created_at = models.DateTimeField(null=True, blank=True)
    first_seen_at = models.DateTimeField(default=clock.now)
    last_seen_at = models.DateTimeField(default=clock.now)
    phase = models.CharField(max_length=14, choices=OrphanPhase.choices, default=OrphanPhase.FOUND)
    phase_since = models.DateTimeField(default=clock.now)
    message = SaidField(blank=True, default="")

    class Meta:
        ordering = ["-usd_per_hour", "first_seen_at", "id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(phase__in=[c.value for c in OrphanPhase]), name="capacity_orphan_known_phase"
            ),
            models.UniqueConstraint(fields=["account", "kind", "provider_id"], name="capacity_one_orphan_per_thing"),
        ]

    def __str__(self) -> str:
        """Kind and AWS's id."""
        return f"{self.kind} {self.provider_id}"
