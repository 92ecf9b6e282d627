"""CloudAccount: one AWS account in one region, its secrets by reference."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.connections.states import AccountPhase
from apps.core.models import Reconciled


class CloudAccount(Reconciled):
    """How the worker reaches an AWS account.

    ``credentials_ref`` names a secret (``env:NAME``, ``file:NAME``; empty: the worker's own role) and
    never holds one. ``endpoint_url`` replaces AWS's addresses, e.g. for VPC endpoints. ``is_paused``
    stops every call to the account since ``paused_at``: what is known of it is as of then.
    ``external_id`` is what the role's owner may ask for when it is assumed. ``allows_purchases`` lets
    capacity be bought there that cannot be given back.
    """

    uid_prefix = "acct"

    name = models.SlugField(max_length=60, unique=True)
    region = models.CharField(max_length=30)
    endpoint_url = models.URLField(blank=True, default="")
    credentials_ref = models.CharField(max_length=200, blank=True, default="")
    role_arn = models.CharField(max_length=200, blank=True, default="")
    external_id = models.CharField(max_length=200, blank=True, default="")
    is_paused = models.BooleanField(default=False)
    paused_at = models.DateTimeField(null=True, blank=True)
    allows_purchases = models.BooleanField(default=False)
    delete_requested_at = models.DateTimeField(null=True, blank=True)

    phase = models.CharField(max_length=16, choices=AccountPhase.choices, default=AccountPhase.PENDING)
    observed_account_id = models.CharField(max_length=20, blank=True, default="")
    observed_arn = models.CharField(max_length=200, blank=True, default="")

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(phase__in=[c.value for c in AccountPhase]), name="connections_account_known_phase"
            )
        ]

    @property
    def is_settled(self) -> bool:
        """Whether the worker has asked AWS since the last change; the very first time is what PENDING means."""
        return self.phase != AccountPhase.PENDING and self.generation <= max(self.observed_generation, 1)

    @property
    def is_trusted(self) -> bool:
        """Whether what AWS answers there may be believed: it was asked since the last change, and is who it was."""
        return self.is_settled and self.phase == AccountPhase.CONNECTED

    def __str__(self) -> str:
        """The name."""
        return self.name
