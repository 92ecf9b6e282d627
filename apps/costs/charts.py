"""Stacked days: money a day by team as the rectangles of one SVG, with its axis. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal

#: Classes of the series' colours; what has no place among them is one last grey part.
COLOURS = ("s1", "s2", "s3")
REST = "off"
WIDTH, HEIGHT, BAR, PITCH = 900, 160, 22, 30


@dataclass(frozen=True)
class Part:
    """One rectangle: its colour class, place and words."""

    css: str
    y: float
    height: float
    name: str
    usd: Decimal


@dataclass(frozen=True)
class Day:
    """One day's column."""

    day: date
    x: int
    parts: Sequence[Part]
    usd: Decimal
    has_label: bool


@dataclass(frozen=True)
class Chart:
    """The columns, oldest first, the lines of the axis as (y, USD), and the series as (class, name)."""

    days: Sequence[Day]
    ticks: Sequence[tuple[float, Decimal]]
    series: Sequence[tuple[str, str]]
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def total(self) -> Decimal:
        """The sum over all days."""
        return sum((d.usd for d in self.days), Decimal(0))


def nice_step(top: Decimal, parts: int = 3) -> Decimal:
    """A round step (1, 2 or 5 times a power of ten) that reaches ``top`` in about ``parts`` steps."""
    if top <= 0:
        return Decimal(1)
    rough = float(top) / parts
    power = 10 ** math.floor(math.log10(rough))
    factor = next(f for f in (1, 2, 5, 10) if f * power >= rough * 0.999)
    return Decimal(str(factor * power))


def stacked_days(
    amounts: Mapping[tuple[str, str], Decimal], *, until: date, days: int = 30, names: Mapping[str, str]
) -> Chart:
    """``amounts`` by (series key, ISO day); ``names`` gives each key's words, its order breaks ties.

    The three largest series keep a colour of their own, the others are summed under ``names[""]``.
    """
    first = until - timedelta(days=days - 1)
    listed = [first + timedelta(days=i) for i in range(days)]
    wanted = {d.isoformat() for d in listed}
    totals: dict[str, Decimal] = {key: Decimal(0) for key in names if key}
    for (key, iso), usd in amounts.items():
        if iso in wanted:
            totals[key] = totals.get(key, Decimal(0)) + usd
    ranked = [k for k, v in sorted(totals.items(), key=lambda pair: -pair[1]) if v > 0]
    own, rest = ranked[: len(COLOURS)], ranked[len(COLOURS) :]
    columns: list[tuple[date, list[tuple[str, str, Decimal]]]] = []
    for day in listed:
        text = day.isoformat()
        parts = [
            (css, names.get(k, k), amounts.get((k, text), Decimal(0))) for css, k in zip(COLOURS, own, strict=False)
        ]
        if rest:
            parts.append((REST, names[""], sum((amounts.get((k, text), Decimal(0)) for k in rest), Decimal(0))))
        columns.append((day, parts))
    top = max((sum((usd for _c, _n, usd in parts), Decimal(0)) for _d, parts in columns), default=Decimal(0))
    step = nice_step(top)
    steps = max(1, math.ceil(top / step))
    scale = HEIGHT / float(step * steps)
    drawn = []
    for number, (day, parts) in enumerate(columns):
        y = float(HEIGHT)
        shown = []
        for css, name, usd in parts:
            height = float(usd) * scale
            y -= height
            if height > 0:
                shown.append(Part(css, round(y, 2), round(height, 2), name, usd))
        total = sum((usd for _c, _n, usd in parts), Decimal(0))
        drawn.append(Day(day, number * PITCH + (PITCH - BAR) // 2, shown, total, (days - 1 - number) % 7 == 0))
    series = [(css, names.get(k, k)) for css, k in zip(COLOURS, own, strict=False)]
    if rest:
        series.append((REST, names[""]))
    ticks = [(round(HEIGHT - float(step * i) * scale, 2), step * i) for i in range(steps + 1)]
    return Chart(drawn, ticks, series, width=days * PITCH)
