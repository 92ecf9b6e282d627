"""What a fleet's source asks of its spec, and what its machines cost: pure decisions on values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.utils.translation import gettext as _

from apps.clusters.states import SOURCES_BLOCK, SOURCES_RESERVED, CapacitySource

#: Which kinds of reservation a source launches into.
KINDS_OF_SOURCE: dict[str, tuple[str, ...]] = {
    CapacitySource.ODCR_TARGETED: ("odcr",),
    CapacitySource.ODCR_OPEN: ("odcr",),
    CapacitySource.CAPACITY_BLOCK: ("capacity-block",),
    CapacitySource.ULTRASERVER_BLOCK: ("ultraserver-block",),
}
#: AWS launches at most so many machines in one CreateFleet, and the portal in one fleet.
MAX_NODES = 1000
MAX_CHOICES = 10


@dataclass(frozen=True)
class ReservationFacts:
    """What of a reservation decides whether a fleet fits into it."""

    name: str
    kind: str
    account_uid: str
    instance_type: str
    instances: int
    platform: str
    tenancy: str
    match_criteria: str
    phase: str
    is_over: bool
    end_at: datetime | None


def source_problems(
    source: str,
    reservation: ReservationFacts | None,
    *,
    account_uid: str,
    account_name: str,
    instance_type: str,
    nodes: int,
    other_types: int,
    other_subnets: int,
) -> list[tuple[str, str, str]]:
    """(pointer, code, sentence) of everything in which source, reservation and fleet do not go together."""
    found: list[tuple[str, str, str]] = []
    if source not in CapacitySource.values:
        known = ", ".join(CapacitySource.values)
        return [
            ("/source", "unknown", _("%(source)s is no source; one of %(known)s") % {"source": source, "known": known})
        ]
    if (other_types or other_subnets) and source != CapacitySource.ON_DEMAND:
        text = _("several types or zones can only be chosen from on demand; a reservation is for one of each")
        if other_types:
            found.append(("/other_instance_types", "not-here", text))
        if other_subnets:
            found.append(("/other_subnet_ids", "not-here", text))
    if source not in SOURCES_RESERVED:
        if reservation is not None:
            text = _("this source uses no reservation; choose the source that fits it, or leave it empty")
            found.append(("/reservation", "not-here", text))
        return found
    if reservation is None:
        if source != CapacitySource.ODCR_OPEN:
            found.append(("/reservation", "required", _("choose the reservation to launch into")))
        return found
    return found + _misfits(source, reservation, account_uid, account_name, instance_type, nodes)


def _misfits(
    source: str, r: ReservationFacts, account_uid: str, account_name: str, instance_type: str, nodes: int
) -> list[tuple[str, str, str]]:
    facts = {"name": r.name}
    found: list[tuple[str, str, str]] = []

    def add(code: str, text: str) -> None:
        found.append(("/reservation", code, text))

    if r.account_uid != account_uid:
        add(
            "other-account",
            _("%(name)s is in another account than %(account)s, the cluster's: only its own account can launch into it")
            % {**facts, "account": account_name},
        )
    if r.kind not in KINDS_OF_SOURCE[source]:
        label = CapacitySource(source).label
        add("other-kind", _("%(name)s is no reservation for the source %(source)s") % {**facts, "source": label})
    if r.is_over:
        add("over", _("%(name)s is over; nothing can be launched into it any more. Choose or book another") % facts)
    if r.instance_type != instance_type:
        text = _("%(name)s is for %(type)s") % {**facts, "type": r.instance_type}
        found.append(("/instance_type", "other-type", text))
    if nodes > r.instances:
        text = _("%(name)s has %(n)s machines") % {**facts, "n": r.instances}
        found.append(("/nodes", "too-many", text))
    if r.platform and r.platform != "Linux/UNIX":
        add(
            "other-platform", _("%(name)s is for the platform %(what)s, not Linux/UNIX") % {**facts, "what": r.platform}
        )
    if r.tenancy and r.tenancy != "default":
        add(
            "other-tenancy",
            _("%(name)s has the tenancy %(what)s; the machines have default") % {**facts, "what": r.tenancy},
        )
    if source == CapacitySource.ODCR_OPEN and r.match_criteria == "targeted":
        add("not-open", _("%(name)s takes only launches that name it: choose the source ODCR, by its id") % facts)
    return found


def usd_of(source: str, on_demand: Decimal | None, reservation_usd: Decimal | None) -> tuple[Decimal | None, str]:
    """USD an hour of one machine, and which price it is: "on-demand", "reservation" or "ceiling" (spot)."""
    if source in SOURCES_BLOCK:
        return reservation_usd, "reservation"
    if source == CapacitySource.SPOT:
        return on_demand, "ceiling"
    return on_demand, "on-demand"
