"""What a cluster that AWS keeps, or one more group of it, would cost and do, told before anyone agrees to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from django.utils.translation import gettext as _

from apps.capacity.models import Reservation
from apps.catalog.selectors import type_by_name
from apps.clusters import pcluster_rules
from apps.clusters.managed_rules import PCS_SIZES, size_problem
from apps.clusters.managed_selectors import price_for
from apps.clusters.managed_words import notes_of, source_notes
from apps.clusters.states import ADOPT_STEPS, CLUSTER_STEPS, ClusterKind, ClusterStepName, GroupSource
from apps.connections.models import CloudAccount
from apps.connections.states import AccountPhase


@dataclass(frozen=True)
class Line:
    """Equal machines: between ``least`` and ``most`` of them, each ``usd_each`` an hour (None: unknown)."""

    name: str
    instance_type: str
    least: int
    most: int
    usd_each: Decimal | None
    price_words: str

    @property
    def usd_most(self) -> Decimal | None:
        """All of them, an hour."""
        return None if self.usd_each is None else self.usd_each * self.most

    @property
    def gpus(self) -> int:
        """GPUs of all of them."""
        kind = type_by_name(self.instance_type)
        return kind.gpus * self.most if kind else 0


@dataclass(frozen=True)
class Plan:
    """What would be made: machines with prices, steps with their expected seconds, what AWS does then."""

    lines: tuple[Line, ...] = ()
    steps: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    blocker: str = ""
    is_adoption: bool = False
    makes_cluster: bool = True
    charges_control: bool = False
    unpriced: tuple[str, ...] = field(default=())

    @property
    def usd_most(self) -> Decimal:
        """All machines whose price is known, an hour."""
        return sum((line.usd_most or Decimal(0) for line in self.lines), Decimal(0))

    @property
    def usd_least(self) -> Decimal:
        """Those that always run, an hour."""
        return sum(((line.usd_each or Decimal(0)) * line.least for line in self.lines), Decimal(0))

    @property
    def is_elastic(self) -> bool:
        """Whether machines come and go with the queue."""
        return any(line.least != line.most for line in self.lines)

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(line.gpus for line in self.lines)

    @property
    def ready_s(self) -> int:
        """Expected seconds until it can be used."""
        return sum(expected for _name, expected in self.steps)


def blocker_of(account: CloudAccount | None) -> str:
    """Why nothing can be made in an account now; empty where something can."""
    if account is None:
        return _("Choose a cloud account.")
    if account.phase != AccountPhase.CONNECTED:
        return _("The account %(account)s is not connected.") % {"account": account.name}
    if account.is_paused:
        return _("The account %(account)s is paused; resume it first.") % {"account": account.name}
    return ""


def line_of(
    kind: str, account: CloudAccount | None, wish: dict[str, Any], reservation: Reservation | None = None
) -> Line | None:
    """A line for a group as it is typed so far; None while type or count are missing."""
    instance_type, nodes = wish.get("instance_type"), wish.get("nodes")
    if not instance_type or nodes is None:
        return None
    source = wish.get("source") or GroupSource.ON_DEMAND
    region = account.region if account is not None else ""
    usd, words = price_for(kind, source, instance_type, reservation, region)
    least = int(wish.get("min_nodes") or 0) if kind == ClusterKind.PCS else int(nodes)
    return Line(str(wish.get("name") or ""), instance_type, min(least, int(nodes)), int(nodes), usd, words)


def lines_of_config(text: str, account: CloudAccount | None) -> tuple[Line, ...]:
    """The machines that a ParallelCluster configuration names."""
    found = []
    region = account.region if account is not None else ""
    for m in pcluster_rules.machines(text):
        usd, words = price_for(ClusterKind.PARALLELCLUSTER, GroupSource.ON_DEMAND, m.instance_type, None, region)
        found.append(Line(m.name, m.instance_type, m.least, m.most, usd, words))
    return tuple(found)


def _steps(steps: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple((str(ClusterStepName(name).label), expected) for name, expected in steps)


def plan_cluster(
    kind: str,
    account: CloudAccount | None,
    settings: dict[str, Any],
    lines: Sequence[Line],
    sources: Sequence[tuple[str, Reservation | None]] = (),
) -> Plan:
    """The plan of a new cluster with its first groups."""
    problems = []
    size = str(settings.get("size") or "")
    if kind == ClusterKind.PCS and size in PCS_SIZES:
        found = size_problem(size, sum(line.most for line in lines), is_made=False, pointer="/size")
        problems += [found.detail] if found else []
    notes = notes_of(kind, idle_s=settings.get("idle_s"))
    for source, reservation in sources:
        notes += source_notes(kind, source, reservation.phase if reservation else "")
    return Plan(
        lines=tuple(lines),
        steps=_steps(CLUSTER_STEPS[kind]),
        notes=tuple(dict.fromkeys(notes)),
        problems=tuple(problems),
        blocker=blocker_of(account),
        charges_control=kind in (ClusterKind.PCS, ClusterKind.EKS),
        unpriced=tuple(dict.fromkeys(line.instance_type for line in lines if line.usd_each is None)),
    )


def plan_adoption(account: CloudAccount | None) -> Plan:
    """The plan of an adoption: nothing is made."""
    return Plan(steps=_steps(ADOPT_STEPS), blocker=blocker_of(account), is_adoption=True)


def plan_group(
    kind: str, account: CloudAccount | None, line: Line | None, source: str, reservation: Reservation | None
) -> Plan:
    """The plan of one more group."""
    expected = {step: s for steps in CLUSTER_STEPS.values() for step, s in steps}
    name = ClusterStepName.GROUPS if kind in (ClusterKind.PCS, ClusterKind.EKS) else ClusterStepName.NODES
    return Plan(
        lines=(line,) if line else (),
        steps=_steps([(name, expected[name])]),
        notes=tuple(source_notes(kind, source, reservation.phase if reservation else "")),
        blocker=blocker_of(account),
        makes_cluster=False,
        unpriced=(line.instance_type,) if line and line.usd_each is None else (),
    )
