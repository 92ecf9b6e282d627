"""Reservation, OfferingSearch, Purchase; Orphan comes from ``orphan_models``."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from apps.capacity.orphan_models import Orphan
from apps.capacity.states import PurchaseKind, PurchasePhase, ReservationKind, ReservationPhase, SearchPhase
from apps.connections.models import CloudAccount
from apps.core.models import Reconciled, Recorded
from apps.core.said import SaidField, SaidJSONField
from apps.teams.models import Team

__all__ = ["OfferingSearch", "Orphan", "Purchase", "Reservation"]


def _known(choices: type[models.TextChoices], name: str, field: str = "phase") -> models.CheckConstraint:
    return models.CheckConstraint(condition=Q(**{f"{field}__in": [c.value for c in choices]}), name=name)


class Reservation(Reconciled):
    """Capacity that AWS keeps for an account: an ODCR, a Capacity Block, an UltraServer block or a training plan.

    ``provider_id`` is AWS's (cr-…, or a training plan's ARN). ``match_criteria`` is "open" or "targeted".
    ``usd_per_hour`` is for one instance; of what is prepaid it is the upfront price spread over its hours. An
    adopted one was found in the account without our tag. The four ``*_at`` marks of the end of a block are written
    once each, by the worker.
    """

    uid_prefix = "rsv"

    account = models.ForeignKey(CloudAccount, on_delete=models.PROTECT, related_name="reservations")
    kind = models.CharField(max_length=20, choices=ReservationKind.choices)
    name = models.CharField(max_length=120, blank=True, default="")
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.PROTECT, related_name="reservations")
    is_adopted = models.BooleanField(default=False)
    delete_requested_at = models.DateTimeField(null=True, blank=True)
    client_token = models.CharField(max_length=64, blank=True, default="")

    provider_id = models.CharField(max_length=200, blank=True, default="")
    instance_type = models.CharField(max_length=40)
    instances = models.PositiveIntegerField()
    zone_id = models.CharField(max_length=40, blank=True, default="")
    zone_name = models.CharField(max_length=40, blank=True, default="")
    match_criteria = models.CharField(max_length=10, blank=True, default="targeted")
    platform = models.CharField(max_length=60, blank=True, default="Linux/UNIX")
    tenancy = models.CharField(max_length=20, blank=True, default="default")
    placement_group_arn = models.CharField(max_length=400, blank=True, default="")
    start_at = models.DateTimeField(null=True, blank=True)
    end_at = models.DateTimeField(null=True, blank=True)
    usd_upfront = models.DecimalField(max_digits=14, decimal_places=2, null=True, blank=True)
    usd_per_hour = models.DecimalField(max_digits=14, decimal_places=6, null=True, blank=True)
    price_source = models.CharField(max_length=200, blank=True, default="")

    phase = models.CharField(max_length=16, choices=ReservationPhase.choices, default=ReservationPhase.PENDING)
    observed_state = models.CharField(max_length=40, blank=True, default="")
    available_instances = models.PositiveIntegerField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    warned_at = models.DateTimeField(null=True, blank=True)
    checkpoint_asked_at = models.DateTimeField(null=True, blank=True)
    drain_asked_at = models.DateTimeField(null=True, blank=True)
    terminate_asked_at = models.DateTimeField(null=True, blank=True)
    #: Up to which whole hour the ledger has it.
    charged_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["start_at", "id"]
        constraints = [
            _known(ReservationPhase, "capacity_rsv_known_phase"),
            _known(ReservationKind, "capacity_rsv_known_kind", "kind"),
            models.UniqueConstraint(
                fields=["account", "provider_id"],
                condition=~Q(provider_id=""),
                name="capacity_one_rsv_per_provider_id",
            ),
        ]
        indexes = [models.Index(fields=["phase", "end_at"], name="capacity_rsv_ends")]

    def __str__(self) -> str:
        """Its name, or AWS's id."""
        return self.name or self.provider_id or self.uid


class OfferingSearch(Recorded):
    """A question to AWS: what can be bought. ``criteria`` is what was asked, ``offers`` what AWS answered.

    An offer is ``{offering_id, instance_type, instances, zone, start_at, end_at, hours, usd_upfront, currency, …}``.
    """

    uid_prefix = "osr"

    account = models.ForeignKey(CloudAccount, on_delete=models.CASCADE, related_name="offering_searches")
    kind = models.CharField(max_length=20, choices=PurchaseKind.choices)
    reservation = models.ForeignKey(
        Reservation, null=True, blank=True, on_delete=models.CASCADE, related_name="offering_searches"
    )
    criteria = models.JSONField(default=dict)
    asked_by = models.CharField(max_length=150)
    asked_by_name = models.CharField(max_length=150, blank=True, default="")

    phase = models.CharField(max_length=10, choices=SearchPhase.choices, default=SearchPhase.PENDING)
    phase_since = models.DateTimeField(null=True, blank=True)
    offers = models.JSONField(default=list)
    answered_at = models.DateTimeField(null=True, blank=True)
    message = SaidField(blank=True, default="")

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            _known(SearchPhase, "capacity_osr_known_phase"),
            _known(PurchaseKind, "capacity_osr_known_kind", "kind"),
        ]

    def __str__(self) -> str:
        """What was asked."""
        return f"{self.criteria.get('instances', '')} × {self.criteria.get('instance_type', '')}"


class Purchase(Reconciled):
    """One wish to spend money on capacity: asked for by one person, approved by another, tried once.

    ``offer`` is what was approved, word for word. ``attempted_at`` is committed before the one call is made; a row
    that has it is never tried again, whatever happened. ``candidates`` are the reservations that appeared in the
    account since, the evidence for a person who resolves a doubt. ``key`` makes a double click one request.
    """

    uid_prefix = "buy"

    account = models.ForeignKey(CloudAccount, on_delete=models.PROTECT, related_name="purchases")
    kind = models.CharField(max_length=20, choices=PurchaseKind.choices)
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.PROTECT, related_name="purchases")
    search = models.ForeignKey(
        OfferingSearch, null=True, blank=True, on_delete=models.SET_NULL, related_name="purchases"
    )
    #: What an extension extends.
    extends = models.ForeignKey(Reservation, null=True, blank=True, on_delete=models.PROTECT, related_name="extensions")
    name = models.CharField(max_length=60)
    offering_id = models.CharField(max_length=255, blank=True, default="")
    offer = models.JSONField(default=dict)
    instance_type = models.CharField(max_length=40)
    instances = models.PositiveIntegerField()
    zone_name = models.CharField(max_length=40, blank=True, default="")
    zone_id = models.CharField(max_length=40, blank=True, default="")
    start_at = models.DateTimeField(null=True, blank=True)
    end_at = models.DateTimeField(null=True, blank=True)
    usd_upfront = models.DecimalField(max_digits=14, decimal_places=2, null=True, blank=True)
    usd_per_hour = models.DecimalField(max_digits=14, decimal_places=6, null=True, blank=True)
    price_source = models.CharField(max_length=200, blank=True, default="")
    reason = models.CharField(max_length=500, blank=True, default="")
    key = models.CharField(max_length=64, unique=True)
    requested_by = models.CharField(max_length=80)
    requested_by_name = models.CharField(max_length=150, blank=True, default="")
    decided_by = models.CharField(max_length=80, blank=True, default="")
    decided_by_name = models.CharField(max_length=150, blank=True, default="")
    decided_at = models.DateTimeField(null=True, blank=True)
    decision_reason = models.CharField(max_length=500, blank=True, default="")
    #: The offer is not bought after this instant.
    good_until = models.DateTimeField(null=True, blank=True)

    phase = models.CharField(max_length=10, choices=PurchasePhase.choices, default=PurchasePhase.REQUESTED)
    attempted_at = models.DateTimeField(null=True, blank=True)
    client_token = models.CharField(max_length=64, blank=True, default="")
    reservation = models.ForeignKey(
        Reservation, null=True, blank=True, on_delete=models.PROTECT, related_name="purchases"
    )
    candidates = SaidJSONField(default=list)
    resolved_by = models.CharField(max_length=80, blank=True, default="")
    resolved_by_name = models.CharField(max_length=150, blank=True, default="")
    resolved_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            _known(PurchasePhase, "capacity_buy_known_phase"),
            _known(PurchaseKind, "capacity_buy_known_kind", "kind"),
            models.CheckConstraint(
                condition=Q(attempted_at__isnull=True)
                | (~Q(decided_by="") & ~Q(decided_by=F("requested_by")) & Q(decided_at__isnull=False)),
                name="capacity_attempt_needs_approval",
            ),
            models.CheckConstraint(
                condition=~Q(phase__in=["APPROVED", "BUYING", "PAYING", "BOUGHT", "UNKNOWN"])
                | (~Q(decided_by="") & ~Q(decided_by=F("requested_by"))),
                name="capacity_approved_by_another",
            ),
            models.CheckConstraint(
                condition=~Q(phase__in=["BUYING", "PAYING", "BOUGHT", "UNKNOWN"]) | Q(attempted_at__isnull=False),
                name="capacity_bought_was_attempted",
            ),
        ]

    def __str__(self) -> str:
        """Its name."""
        return self.name
