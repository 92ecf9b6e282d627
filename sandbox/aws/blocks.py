"""What AWS sells by the calendar: durations, starting days and prices of Capacity Blocks and training plans."""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

DAY_S: Final = 86_400
#: USD an accelerator-hour of a Capacity Block, as AWS's page had it from 2026-10-07; AWS changes it about quarterly.
PRICES: Final = {
    "p4d.24xlarge": Decimal("1.696"),
    "p4de.24xlarge": Decimal("2.546"),
    "p5.4xlarge": Decimal("5.970"),
    "p5.48xlarge": Decimal("5.970"),
    "p5e.48xlarge": Decimal("6.866"),
    "p5en.48xlarge": Decimal("7.895"),
    "p6-b200.48xlarge": Decimal("14.208"),
    "p6-b300.48xlarge": Decimal("16.146"),
    "p6e-gb200.36xlarge": Decimal("10.582"),
}
ACCELERATORS: Final = {"p5.4xlarge": 1, "p6e-gb200.36xlarge": 4}
#: Machines in an UltraServer.
ULTRASERVERS: Final = {"u-p6e-gb200x36": 9, "u-p6e-gb200x72": 18}
ULTRASERVER_TYPE: Final = "p6e-gb200.36xlarge"
MOST_INSTANCES: Final = 64
WEEKS_AHEAD: Final = 8
#: Blocks start and end at this time of day, UTC.
START_OF_DAY: Final = dt.timedelta(hours=11, minutes=30)
#: A block that is bought later than this before its start is not delivered in time.
NOTICE_S: Final = 1800


def accelerators(instance_type: str) -> int:
    """GPUs of an instance type."""
    return ACCELERATORS.get(instance_type, 8)


def fee(instance_type: str, instances: int, hours: int) -> Decimal:
    """What that many machines cost for that long, paid up front."""
    return (PRICES[instance_type] * accelerators(instance_type) * instances * hours).quantize(Decimal("0.01"))


def duration_problem(hours: int) -> str:
    """Why AWS sells no block of this length, "" when it does: whole days to 14, then whole weeks to 182 days."""
    days, rest = divmod(hours, 24)
    if rest or days < 1 or days > 182 or (days > 14 and days % 7):
        return (
            f"The capacity block duration of {hours} hours is not valid. Specify 1-day increments up to 14 days, or "
            "7-day increments up to 182 days."
        )
    return ""


@dataclass(frozen=True)
class Offer:
    """One thing on sale; instants are Unix seconds."""

    instance_type: str
    zone: str
    instances: int
    start: float
    hours: int

    @property
    def end(self) -> float:
        """When it is over."""
        return self.start + self.hours * 3600

    @property
    def fee(self) -> str:
        """The upfront fee as AWS prints it."""
        return str(fee(self.instance_type, self.instances, self.hours))


def days_on_sale(now: float, earliest: float, latest_end: float, hours: int, salt: str, most: int) -> Iterator[float]:
    """Starting instants of what is on sale in one zone: some days are sold out, the same ones at every question."""
    midnight = dt.datetime.fromtimestamp(max(now + NOTICE_S, earliest), dt.UTC).replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    found = 0
    for ahead in range(WEEKS_AHEAD * 7 + 1):
        start = (midnight + dt.timedelta(days=ahead) + START_OF_DAY).timestamp()
        if start < max(now + NOTICE_S, earliest) or start > now + WEEKS_AHEAD * 7 * DAY_S:
            continue
        if start + hours * 3600 > latest_end:
            return
        # The first day is always to be had, so that a search within reason finds something.
        if found and zlib.crc32(f"{salt}/{int(start) // DAY_S}".encode()) % 3 == 0:
            continue
        found += 1
        yield start
        if found >= most:
            return
