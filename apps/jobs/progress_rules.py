"""How fast a job really goes: its pace with pauses told apart, what is left, and its model FLOPs utilisation."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: A stretch between two reports that took this many times the usual per step held a pause: a checkpoint, an evaluation.
_PAUSE: Final = 2.5
#: Dense peak of one GPU without sparsity, TFLOPS: BF16, FP8, and the best that was measured of each (STAS MAMF).
PEAKS: Final[Mapping[str, tuple[float, float | None, float | None, float | None]]] = {
    "a100": (312, None, 271, None),
    "h100": (989, 1979, 794.5, 1403),
    "h200": (989, 1979, 794.5, 1453),
    "b200": (2250, 4500, 1745, 3433),
    "b300": (2250, 4500, 1769, 3353),
    "gb200": (2500, 5000, 1822, 3616),
    "gb300": (2500, 5000, None, None),
}
PRECISIONS: Final = ("bf16", "fp8")
#: What a model is described by, and the most that makes sense of each.
MODEL_FACTS: Final[Mapping[str, float]] = {
    "parameters": 1e14,
    "layers": 10_000,
    "hidden": 1_000_000,
    "sequence": 100_000_000,
}


@dataclass(frozen=True)
class Pace:
    """Seconds a productive step takes, seconds of pauses a step on top of it, and how many steps that was seen over."""

    step_s: float
    pause_s: float
    steps: int

    @property
    def pause_share(self) -> float:
        """The part of the time that pauses took, 0 to 1."""
        whole = self.step_s + self.pause_s
        return self.pause_s / whole if whole > 0 else 0.0

    def left_s(self, steps: int) -> float:
        """Time for so many further steps, with as many pauses as before."""
        return max(0, steps) * (self.step_s + self.pause_s)


def pace_of(reports: Sequence[tuple[int, float]]) -> Pace | None:
    """The pace over reports (step, seconds since any instant), oldest first; None until two of them differ.

    The usual time of a step is the median over the stretches between reports, so one long evaluation does not make
    the program look slow; the pauses are counted apart.
    """
    stretches = [
        (step - before, at - earlier)
        for (before, earlier), (step, at) in itertools.pairwise(reports)
        if step > before and at > earlier
    ]
    steps = sum(count for count, _seconds in stretches)
    if not steps:
        return None
    usual = statistics.median(seconds / count for count, seconds in stretches)
    pauses = sum(seconds - count * usual for count, seconds in stretches if seconds > _PAUSE * count * usual)
    calm = [(count, seconds) for count, seconds in stretches if seconds <= _PAUSE * count * usual]
    calm_steps = sum(count for count, _seconds in calm)
    step_s = sum(seconds for _count, seconds in calm) / calm_steps if calm_steps else usual
    return Pace(step_s, pauses / steps, steps)


def model_facts_of(told: Mapping[str, Any]) -> dict[str, float | str]:
    """The usable part of what a job or a person says of its model: counts above 0, and the precision."""
    found: dict[str, float | str] = {}
    for name, most in MODEL_FACTS.items():
        value = told.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most:
            found[name] = float(value)
    if told.get("precision") in PRECISIONS:
        found["precision"] = str(told["precision"])
    return found


def flops_per_token(facts: Mapping[str, float | str]) -> float | None:
    """6N + 12·L·H·S: training FLOPs of one token, the attention term only where layers, width and length are known.

    N counts the active parameters of a mixture of experts. None without N.
    """
    parameters = facts.get("parameters")
    if not isinstance(parameters, float):
        return None
    shape = [facts.get(name) for name in ("layers", "hidden", "sequence")]
    attention = 1.0
    for one in shape:
        attention *= one if isinstance(one, float) else 0.0
    return 6 * parameters + 12 * attention


@dataclass(frozen=True)
class Utilisation:
    """Model FLOPs utilisation: the share of the GPUs' peak, and of the best that was ever measured on them.

    ``is_plausible`` is False where more than the best measured is reached: then a figure it is made of is wrong.
    """

    mfu: float
    of_best: float | None
    peak_tflops: float
    precision: str

    @property
    def is_plausible(self) -> bool:
        """Not above what hardware can do."""
        return self.mfu <= 1 and (self.of_best is None or self.of_best <= 1)


def utilisation(
    tokens_per_s: float | None, gpus: int, gpu_type: str, facts: Mapping[str, float | str]
) -> Utilisation | None:
    """MFU of a job's whole throughput over all its GPUs; None where a figure for it is missing."""
    flops, peaks = flops_per_token(facts), PEAKS.get(gpu_type.lower())
    if not tokens_per_s or flops is None or peaks is None or gpus < 1:
        return None
    precision = str(facts.get("precision", PRECISIONS[0]))
    at = PRECISIONS.index(precision)
    peak, best = peaks[at], peaks[2 + at]
    if peak is None:
        return None
    reached = tokens_per_s * flops / gpus / 1e12
    return Utilisation(reached / peak, reached / best if best else None, peak, precision)
