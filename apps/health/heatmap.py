"""The GPU heat map: from readings to the few paths of one SVG, however many GPUs there are. Pure.

A square per GPU, a block of up to eight per node, all squares of one level in one path: 16,384 GPUs
stay a page of well under a megabyte. Colour is never alone: each state also has its own mark.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Squares: pitch and size; blocks are four squares wide.
PITCH, SIZE, BLOCK_GAP, BLOCK_COLUMNS = 10, 9, 5, 4
#: State levels in the order the legend shows them.
STATES = ("free", "used", "out", "warn", "bad", "off")
#: Upper bounds of the first five of six steps, by metric.
STEPS: Mapping[str, tuple[float, ...]] = {
    "temperature": (40, 50, 60, 70, 80),
    "sm": (10, 30, 50, 70, 90),
    "tensor": (10, 20, 30, 40, 60),
    "power": (150, 300, 450, 600, 800),
    "memory": (10, 30, 50, 70, 90),
}
UNITS: Mapping[str, str] = {"temperature": "°C", "sm": "%", "tensor": "%", "power": "W", "memory": "%"}
METRICS = ("state", *STEPS, "findings")
UNKNOWN = "hx"


def step_of(metric: str, value: float | None) -> str:
    """The level of a figure: ``h0`` (least) to ``h5``, or ``hx`` when the exporter did not say."""
    if value is None:
        return UNKNOWN
    return f"h{sum(1 for bound in STEPS[metric] if value > bound)}"


def steps_legend(metric: str) -> list[tuple[str, str]]:
    """(level, words) of a metric's six steps and of unknown, with the unit."""
    bounds, unit = STEPS[metric], UNITS[metric]
    words = [f"≤ {bounds[0]:g} {unit}"]
    words += [f"{low:g}–{high:g} {unit}" for low, high in itertools.pairwise(bounds)]
    words.append(f"> {bounds[-1]:g} {unit}")
    return [(f"h{i}", text) for i, text in enumerate(words)]


@dataclass(frozen=True, slots=True)
class Block:
    """One node: the level of each of its GPUs in slot order, and the words behind them."""

    key: str
    levels: Sequence[str]
    words: str


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a node's block is, to point at and click."""

    key: str
    words: str
    x: int
    y: int
    width: int
    height: int


@dataclass
class Drawing:
    """Paths by level, marks by level, and the spots of the nodes, in a box of width × height."""

    width: int = 0
    height: int = 0
    squares: dict[str, str] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    spots: list[Spot] = field(default_factory=list)
    shown_width: int = 0

    @property
    def is_large(self) -> bool:
        """So many nodes that its own scrolling helps on a small screen, and that tabbing through would not."""
        return len(self.spots) > 64


def mark_of(level: str, x: int, y: int) -> str:
    """The mark that tells a level without colour; empty for free, used and figures."""
    match level:
        case "bad":
            return f"M{x + 2} {y + 2}l5 5m0-5l-5 5"
        case "warn":
            return f"M{x + 4.5} {y + 2}v3m0 1.4v.8"
        case "off":
            return f"M{x + 2} {y + 4.5}h5"
        case "out":
            return f"M{x + 2} {y + 7}l5-5"
        case _:
            return ""


def draw(blocks: Sequence[Block]) -> Drawing:
    """Lay the blocks out in rows, about twice as wide as high."""
    if not blocks:
        return Drawing()
    rows = max(1, max(math.ceil(len(b.levels) / BLOCK_COLUMNS) for b in blocks))
    width, height = BLOCK_COLUMNS * PITCH + BLOCK_GAP, rows * PITCH + BLOCK_GAP
    per_row = min(len(blocks), max(8, math.ceil(math.sqrt(len(blocks) * 2.2 * height / width))))
    squares: dict[str, list[str]] = {}
    marks: dict[str, list[str]] = {}
    spots = []
    for number, block in enumerate(blocks):
        left, top = number % per_row * width, number // per_row * height
        for slot, level in enumerate(block.levels):
            x, y = left + slot % BLOCK_COLUMNS * PITCH, top + slot // BLOCK_COLUMNS * PITCH
            squares.setdefault(level, []).append(f"M{x} {y}h{SIZE}v{SIZE}h-{SIZE}z")
            if mark := mark_of(level, x, y):
                marks.setdefault(level, []).append(mark)
        spots.append(Spot(block.key, block.words, left, top, width - BLOCK_GAP + 1, height - BLOCK_GAP + 1))
    drawn_width = per_row * width - BLOCK_GAP
    return Drawing(
        width=drawn_width,
        height=math.ceil(len(blocks) / per_row) * height - BLOCK_GAP,
        squares={level: "".join(parts) for level, parts in squares.items()},
        marks={level: "".join(parts) for level, parts in marks.items()},
        spots=spots,
        shown_width=round(drawn_width * (2 if len(blocks) <= 64 else 1.4 if len(blocks) <= 256 else 1)),
    )


def state_levels(
    *,
    gpus: int,
    used: int,
    takes_jobs: bool,
    on_bus: Mapping[int, bool],
    activity: Mapping[int, float],
    findings: Mapping[int | None, str],
) -> list[str]:
    """The state of each GPU of a node, by slot.

    ``findings`` maps a slot (None: the node as a whole) to "warn" or "bad". The scheduler tells how
    many GPUs are in use, not which: the busiest ones are shown as used.
    """
    slots = max([gpus, *(i + 1 for i in on_bus)]) if on_bus or gpus else 0
    by_activity = sorted(range(slots), key=lambda i: (-activity.get(i, 0.0), i))
    in_use = set(by_activity[:used])
    levels = []
    for slot in range(slots):
        if not on_bus.get(slot, True):
            levels.append("off")
        elif slot in findings:
            levels.append(findings[slot])
        elif slot in in_use:
            levels.append("used")
        else:
            levels.append("free" if takes_jobs else "out")
    if None in findings and "bad" not in levels and "off" not in levels and levels:
        # A finding about the whole node has no square of its own: every idle one shows it.
        levels = [findings[None] if level in ("free", "out") else level for level in levels]
    return levels
