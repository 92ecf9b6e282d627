"""The filter of reservations, for the calendar and the API."""

from __future__ import annotations

from django_filters import FilterSet

from apps.capacity.models import Reservation
from apps.capacity.states import ReservationKind, ReservationPhase
from apps.core.filters import ChoicesFilter, TextFilter


class ReservationFilter(FilterSet):  # type: ignore[misc]
    """By kind, phase and text."""

    kind = ChoicesFilter("kind", values=[c.value for c in ReservationKind])
    phase = ChoicesFilter("phase", values=[c.value for c in ReservationPhase])
    q = TextFilter("name", "provider_id", "instance_type", "team__slug", "account__name")

    class Meta:
        model = Reservation
        fields: list[str] = []
