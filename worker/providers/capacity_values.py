"""What crosses the port ``Capacity``: frozen values, instants aware in UTC, money Decimal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal


@dataclass(frozen=True)
class SeenReservation:
    """An ODCR, a block or a training plan as AWS tells it. ``kind`` is a ``ReservationKind``, ``state`` AWS's word."""

    provider_id: str
    kind: str
    state: str
    instance_type: str
    instances: int
    available: int | None = None
    name: str = ""
    zone_name: str = ""
    zone_id: str = ""
    match_criteria: str = ""
    platform: str = ""
    tenancy: str = ""
    placement_group_arn: str = ""
    start_at: datetime | None = None
    end_at: datetime | None = None
    created_at: datetime | None = None
    usd_upfront: Decimal | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OfferingQuery:
    """What is looked for. ``ultraserver`` names an UltraServer type; then ``instances`` counts UltraServers."""

    instance_type: str
    instances: int
    hours: int
    start_at: datetime | None = None
    end_at: datetime | None = None
    ultraserver: str = ""


@dataclass(frozen=True)
class Offering:
    """One thing AWS sells now. ``usd_upfront`` is its price as AWS printed it."""

    offering_id: str
    instance_type: str
    instances: int
    zone_name: str
    start_at: datetime
    end_at: datetime
    hours: int
    usd_upfront: Decimal
    currency: str = "USD"
    zone_id: str = ""
    ultraserver: str = ""
    parts: int = 1


@dataclass(frozen=True)
class SeenExtension:
    """An extension that was bought, paid or not."""

    provider_id: str
    offering_id: str
    state: str
    end_at: datetime
    usd_upfront: Decimal
    bought_at: datetime | None = None


@dataclass(frozen=True)
class OdcrSpec:
    """An ODCR to make."""

    instance_type: str
    instances: int
    zone_name: str
    match_criteria: str
    tags: Mapping[str, str]
    end_at: datetime | None = None
