"""Why a job may be slow: each rule on both sides of its line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from apps.jobs.slow_rules import Cause, GpuReading, Pace, Save, causes_of

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
START = NOW - timedelta(hours=2)


def paces(count: int = 60, every_s: float = 10, speed: float = 1000, last_speed: float | None = None) -> list[Pace]:
    first = NOW - timedelta(seconds=every_s * count)
    return [
        Pace(
            first + timedelta(seconds=every_s * (i + 1)),
            i,
            last_speed if last_speed is not None and i >= count - 10 else speed,
        )
        for i in range(count)
    ]


def codes(found: list[Cause]) -> list[str]:
    return [cause.code for cause in found]


def told(points: list[Pace], now: datetime = NOW) -> list[Cause]:
    return causes_of(now, START, points, points[-50:], [], [])


def gpu(index: int, sm: float | None = 0.9, celsius: float | None = 60, age_s: float = 5) -> GpuReading:
    return GpuReading("node-1", index, celsius, sm, NOW - timedelta(seconds=age_s))


def test_a_job_at_its_usual_pace_has_nothing_to_say() -> None:
    assert told(paces()) == []
    assert told([]) == []
    assert told(paces(count=2)) == []


def test_silence_is_measured_by_the_usual_interval_and_never_too_soon() -> None:
    assert told(paces(), NOW + timedelta(seconds=199)) == []
    stalled = told(paces(), NOW + timedelta(seconds=201))
    assert codes(stalled) == ["Stalled"]
    assert stalled[0].facts == {"silent_s": 201, "usual_s": 10, "step": 59}
    assert told(paces(every_s=1), NOW + timedelta(seconds=179)) == []
    assert codes(told(paces(every_s=1), NOW + timedelta(seconds=181))) == ["Stalled"]


def test_throughput_is_held_against_the_jobs_own_median() -> None:
    assert told(paces(last_speed=801)) == []
    slow = told(paces(last_speed=600))
    assert codes(slow) == ["BelowMedian"]
    assert slow[0].facts == {"now": 600, "usual": 1000, "percent": 40}
    assert told(paces(count=29, last_speed=100)) == []
    assert told([Pace(p.at, p.step, None) for p in paces()]) == []


def test_saving_counts_overlaps_once_and_only_within_the_attempt() -> None:
    def saves(*minutes: tuple[int, int]) -> list[Save]:
        return [Save(START + timedelta(minutes=a), START + timedelta(minutes=b)) for a, b in minutes]

    assert causes_of(NOW, START, [], [], saves((10, 21)), []) == []
    found = causes_of(NOW, START, [], [], saves((10, 18), (50, 56)), [])
    assert codes(found) == ["Saving"]
    assert found[0].facts == {"percent": 12, "count": 2, "each_s": 420}
    assert causes_of(NOW, START, [], [], saves((10, 20), (12, 20), (14, 20)), []) == []
    assert causes_of(NOW, START, [], [], saves((-60, 5)), []) == []


def test_a_gpu_that_stands_out_is_named() -> None:
    def of(*gpus: GpuReading) -> list[Cause]:
        return causes_of(NOW, START, [], [], [], list(gpus))

    assert of(*(gpu(i) for i in range(8))) == []
    idle = of(*(gpu(i) for i in range(7)), gpu(7, sm=0.4))
    assert idle == [Cause("IdleGpu", {"node": "node-1", "gpu": 7, "percent": 40, "usual": 90})]
    hot = of(*(gpu(i, celsius=70) for i in range(7)), gpu(7, celsius=85))
    assert hot == [Cause("HotGpu", {"node": "node-1", "gpu": 7, "celsius": 85, "usual": 70})]
    assert of(*(gpu(i, celsius=50) for i in range(7)), gpu(7, celsius=70)) == []
    assert of(gpu(0), gpu(1, sm=0.1)) == []
    assert codes(of(*(gpu(i) for i in range(6)), gpu(6, sm=0.4), gpu(7, sm=0.4))) == ["IdleGpu", "IdleGpu"]
    assert of(*(gpu(i) for i in range(5)), *(gpu(i, sm=0.4) for i in range(5, 8))) == []
    assert of(*(gpu(i, sm=0.05) for i in range(7)), gpu(7, sm=0)) == []
    assert of(*(gpu(i) for i in range(7)), gpu(7, sm=0.1, age_s=301)) == []
    assert of(*(gpu(i, sm=None, celsius=None) for i in range(8))) == []
