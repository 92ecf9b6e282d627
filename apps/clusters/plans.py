"""What a fleet would cost and do, told before anyone agrees to it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from django.utils.translation import gettext as _

from apps.capacity.models import Reservation
from apps.catalog.models import InstanceType
from apps.clusters.fleet_services import price_of
from apps.clusters.models import Cluster
from apps.clusters.states import FLEET_STEPS, SOURCES_BLOCK, CapacitySource, FleetPhase
from apps.connections.states import AccountPhase


@dataclass(frozen=True)
class FleetPlan:
    """Price and steps of ``nodes`` machines of one type. ``blocker`` is why it cannot be launched now, or empty."""

    kind: InstanceType
    nodes: int
    blocker: str
    region: str = ""
    source: str = CapacitySource.ON_DEMAND
    reservation: Reservation | None = None

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.kind.gpus * self.nodes

    @property
    def usd_per_hour(self) -> Decimal:
        """What all machines cost an hour."""
        return (self.usd_each or Decimal(0)) * self.nodes

    @property
    def usd_each(self) -> Decimal | None:
        """What one machine costs an hour from this source."""
        return price_of(self.source, self.kind, self.reservation, self.region)[0]

    @property
    def usd_per_gpu_hour(self) -> Decimal | None:
        """What one GPU costs an hour from this source."""
        each = self.usd_each
        return each / self.kind.gpus if each is not None and self.kind.gpus else None

    @property
    def usd_per_day(self) -> Decimal:
        """What a day costs."""
        return self.usd_per_hour * 24

    @property
    def price_source(self) -> str:
        """Which region's price it is, of which day, from whom."""
        return price_of(self.source, self.kind, self.reservation, self.region)[1]

    @property
    def steps(self) -> list[tuple[str, int]]:
        """(label, expected seconds) of each step."""
        return [(str(FleetPhase(name).label), expected) for name, expected in FLEET_STEPS]

    @property
    def ready_s(self) -> int:
        """Expected seconds until jobs can run."""
        return sum(expected for _name, expected in FLEET_STEPS)


def plan_fleet(
    cluster: Cluster,
    kind: InstanceType,
    nodes: int,
    source: str = CapacitySource.ON_DEMAND,
    reservation: Reservation | None = None,
) -> FleetPlan:
    """The plan, with the first thing that stands in its way."""
    account = cluster.account
    blocker = ""
    if account is None:
        blocker = _("This cluster has no cloud account, so machines cannot be launched for it.")
    elif account.phase != AccountPhase.CONNECTED:
        blocker = _("The account %(account)s is not connected.") % {"account": account.name}
    elif account.is_paused:
        blocker = _("The account %(account)s is paused; resume it first.") % {"account": account.name}
    elif kind.usd_per_hour is None and source not in SOURCES_BLOCK:
        blocker = _("%(type)s has no published on-demand price; it is sold through reservations.") % {"type": kind.name}
    return FleetPlan(kind, nodes, blocker, account.region if account is not None else "", source, reservation)
