"""Why a running job may be slow: pure rules on what was measured, each cause with its evidence as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

#: Below this share of its own median throughput a job counts as slow now.
SLOW_SHARE = 0.8
#: Points that make "now", and points needed before a median says anything.
RECENT, ENOUGH = 10, 30
#: Progress counts as stalled after this many usual intervals, and never before the shortest silence.
STALL_INTERVALS, STALL_LEAST = 20, timedelta(minutes=3)
#: Share of training time spent writing checkpoints that is worth a word.
SAVING_SHARE = 0.1
#: A GPU stands out when it does less than this share of the others' median work, or is so much hotter than it.
IDLE_SHARE, BUSY_LEAST = 0.7, 0.3
HOTTER_C, HOT_C = 12.0, 80.0
#: More than this share of the gang is not a few that stand out.
FEW_SHARE = 0.25
#: Readings older than this say nothing about now.
FRESH = timedelta(minutes=5)


@dataclass(frozen=True)
class Pace:
    """One reported step of the running attempt."""

    at: datetime
    step: int
    tokens_per_s: float | None


@dataclass(frozen=True)
class GpuReading:
    """One GPU of the gang as last read; ``None`` where its exporter did not say. ``sm_active`` is from 0 to 1."""

    node: str
    index: int
    temperature_c: float | None
    sm_active: float | None
    at: datetime


@dataclass(frozen=True)
class Save:
    """When one checkpoint began to be written and was complete."""

    began_at: datetime
    ended_at: datetime


@dataclass(frozen=True)
class Cause:
    """One reason: ``code`` Stalled, BelowMedian, Saving, IdleGpu or HotGpu, and its evidence."""

    code: str
    facts: Mapping[str, float | int | str]


def causes_of(
    now: datetime,
    started_at: datetime,
    paces: Sequence[Pace],
    recent: Sequence[Pace],
    saves: Sequence[Save],
    gpus: Sequence[GpuReading],
) -> list[Cause]:
    """What may slow the attempt down, the plainest first; empty when there is nothing to say.

    ``paces`` are the attempt's steps, oldest first, possibly thinned; ``recent`` its last ones, all of
    them; ``gpus`` those that are the job's alone.
    """
    found = [_stalled(now, recent), _below_median(paces, recent), _saving(now, started_at, saves)]
    return [cause for cause in found if cause is not None] + _outliers(now, gpus)


def _stalled(now: datetime, paces: Sequence[Pace]) -> Cause | None:
    if len(paces) < 3:
        return None
    usual = median((b.at - a.at).total_seconds() for a, b in pairwise(paces))
    silent = (now - paces[-1].at).total_seconds()
    if silent < max(usual * STALL_INTERVALS, STALL_LEAST.total_seconds()):
        return None
    return Cause("Stalled", {"silent_s": silent, "usual_s": usual, "step": paces[-1].step})


def _speeds(paces: Sequence[Pace]) -> list[float]:
    return [p.tokens_per_s for p in paces if p.tokens_per_s is not None and p.tokens_per_s > 0]


def _below_median(paces: Sequence[Pace], recent: Sequence[Pace]) -> Cause | None:
    speeds, last = _speeds(paces), _speeds(recent[-RECENT:])
    if len(speeds) < ENOUGH or not last:
        return None
    usual, current = median(speeds), median(last)
    if current >= usual * SLOW_SHARE:
        return None
    return Cause("BelowMedian", {"now": current, "usual": usual, "percent": round(100 * (1 - current / usual))})


def _saving(now: datetime, started_at: datetime, saves: Sequence[Save]) -> Cause | None:
    whole = (now - started_at).total_seconds()
    spans = sorted((max(s.began_at, started_at), min(s.ended_at, now)) for s in saves)
    # Overlapping writes of two checkpoints are one time, not two.
    total, until = 0.0, started_at
    for began, ended in spans:
        total += max(0.0, (ended - max(began, until)).total_seconds())
        until = max(until, ended)
    if whole <= 0 or total < whole * SAVING_SHARE:
        return None
    return Cause("Saving", {"percent": round(100 * total / whole), "count": len(spans), "each_s": total / len(spans)})


def _outliers(now: datetime, gpus: Sequence[GpuReading]) -> list[Cause]:
    fresh = [g for g in gpus if now - g.at <= FRESH]
    work = [g.sm_active for g in fresh if g.sm_active is not None]
    heat = [g.temperature_c for g in fresh if g.temperature_c is not None]
    idle: list[Cause] = []
    hot: list[Cause] = []
    # Two GPUs have no majority: which of them is the odd one cannot be told.
    if len(work) >= 3 and (usual := median(work)) >= BUSY_LEAST:
        for gpu in fresh:
            if gpu.sm_active is not None and gpu.sm_active < usual * IDLE_SHARE:
                facts = {"percent": round(100 * gpu.sm_active), "usual": round(100 * usual)}
                idle.append(Cause("IdleGpu", {"node": gpu.node, "gpu": gpu.index, **facts}))
    if len(heat) >= 3:
        usual = median(heat)
        for gpu in fresh:
            celsius = gpu.temperature_c
            if celsius is not None and celsius >= HOT_C and celsius - usual >= HOTTER_C:
                facts = {"celsius": round(celsius), "usual": round(usual)}
                hot.append(Cause("HotGpu", {"node": gpu.node, "gpu": gpu.index, **facts}))
    # Where many differ none stands out: that is how the job works, not what holds it up.
    return [
        *(idle if len(idle) <= len(work) * FEW_SHARE else []),
        *(hot if len(hot) <= len(heat) * FEW_SHARE else []),
    ]
