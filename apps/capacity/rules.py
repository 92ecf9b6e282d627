"""What AWS sells, what it costs an hour, and when a block's machines must be gone: decisions on values.

Durations are AWS's documented steps. EC2 takes a block's machines back from 30 minutes before its end, UltraServers
from 60; our own clock is ahead of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from django.utils.translation import gettext as _

from apps.capacity.states import BLOCKS, PurchaseKind, ReservationKind
from apps.catalog.selectors import type_by_name
from apps.core.errors import FieldProblem

MOST_INSTANCES: Final = 64
MOST_PLAN_INSTANCES: Final = 256
WEEKS_AHEAD: Final = 8
#: UltraServers on sale, with the machines each has.
ULTRASERVERS: Final = {"u-p6e-gb200x36": 9, "u-p6e-gb200x72": 18}
ULTRASERVER_TYPE: Final = "p6e-gb200.36xlarge"
#: An offer older than this is not approved any more: AWS may have sold it or changed its price.
OFFER_GOOD_S: Final = 3600
#: A request nobody decides on is dropped.
REQUEST_GOOD: Final = timedelta(hours=24)

#: Before the end of a block: a person is warned, jobs write a checkpoint, nodes take no work, machines go.
WARN: Final = timedelta(hours=24)
CHECKPOINT: Final = timedelta(minutes=75)
DRAIN: Final = timedelta(minutes=45)
TERMINATE: Final = timedelta(minutes=40)
#: UltraServers take longer to give back, and EC2 begins earlier.
ULTRASERVER_EARLIER: Final = timedelta(minutes=30)


def duration_problem(hours: int) -> str:
    """Why AWS sells nothing of this length, "" when it does."""
    days, rest = divmod(hours, 24)
    if rest or not 1 <= days <= 182:
        return _("whole days, 1 to 182")
    if days > 14 and days % 7:
        low, high = days // 7 * 7, (days // 7 + 1) * 7
        return _("up to 14 days in days, then in whole weeks; nearest: %(low)s or %(high)s days") % {
            "low": max(14, low),
            "high": high,
        }
    return ""


def search_problems(
    kind: str,
    instance_type: str,
    instances: int,
    hours: int,
    start_at: datetime | None,
    end_at: datetime | None,
    now: datetime,
) -> list[FieldProblem]:
    """What AWS would refuse about a search, each at its field."""
    problems: list[FieldProblem] = []
    if kind == PurchaseKind.ULTRASERVER_BLOCK:
        if instance_type not in ULTRASERVERS:
            text = _("one of %(known)s") % {"known": ", ".join(ULTRASERVERS)}
            problems.append(FieldProblem("/instance_type", "unknown", text))
    else:
        known = type_by_name(instance_type)
        if known is None or not known.name.startswith("p") or known.name == ULTRASERVER_TYPE:
            text = _("AWS sells no blocks of %(type)s") % {"type": instance_type or "–"}
            problems.append(FieldProblem("/instance_type", "unknown", text))
    most = MOST_INSTANCES // ULTRASERVERS.get(instance_type, 1)
    if kind == PurchaseKind.TRAINING_PLAN:
        most = MOST_PLAN_INSTANCES
    if not 1 <= instances <= most:
        problems.append(FieldProblem("/instances", "out-of-range", _("1 to %(most)s") % {"most": most}))
    length = duration_problem(hours)
    if length:
        problems.append(FieldProblem("/days", "not-a-step", length))
    if start_at is not None and start_at > now + timedelta(weeks=WEEKS_AHEAD):
        text = _("at most %(weeks)s weeks ahead") % {"weeks": WEEKS_AHEAD}
        problems.append(FieldProblem("/start_date", "too-far", text))
    if end_at is not None and end_at < max(start_at or now, now) + timedelta(hours=hours):
        problems.append(FieldProblem("/end_date", "too-early", _("the window is shorter than the duration")))
    return problems


def gpus_of(instance_type: str) -> int:
    """GPUs of one instance; 8 where the catalog does not know the type."""
    known = type_by_name(instance_type)
    return known.gpus if known is not None else 8


def usd_per_instance_hour(usd_upfront: Decimal | None, instances: int, hours: float) -> Decimal | None:
    """An upfront price spread over its machines and hours."""
    if usd_upfront is None or instances < 1 or hours <= 0:
        return None
    return (usd_upfront / instances / Decimal(str(hours))).quantize(Decimal("0.000001"))


def usd_per_gpu_hour(usd_per_instance: Decimal | None, instance_type: str) -> Decimal | None:
    """The price of one GPU for one hour."""
    return None if usd_per_instance is None else (usd_per_instance / gpus_of(instance_type)).quantize(Decimal("0.0001"))


@dataclass(frozen=True)
class EndMarks:
    """When what happens before the end of a block."""

    warn_at: datetime
    checkpoint_at: datetime
    drain_at: datetime
    terminate_at: datetime


def end_marks(kind: str, end_at: datetime) -> EndMarks:
    """The marks of a block; UltraServers 30 minutes earlier, the warning excepted."""
    earlier = ULTRASERVER_EARLIER if kind == ReservationKind.ULTRASERVER_BLOCK else timedelta()
    return EndMarks(
        end_at - WARN, end_at - CHECKPOINT - earlier, end_at - DRAIN - earlier, end_at - TERMINATE - earlier
    )


def usable_until(kind: str, end_at: datetime | None) -> datetime | None:
    """Until when a job may run in a reservation; None where nothing ends it."""
    if end_at is None or kind not in BLOCKS:
        return None
    return end_marks(kind, end_at).drain_at


def minutes_left(kind: str, end_at: datetime | None, start: datetime) -> int | None:
    """Whole minutes a job that starts at ``start`` may run; None where nothing ends it."""
    until = usable_until(kind, end_at)
    return None if until is None else max(0, int((until - start).total_seconds() // 60))
