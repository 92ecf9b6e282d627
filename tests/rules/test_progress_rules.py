"""The pace of a job with its pauses told apart, and MFU by the formula and the table."""

from __future__ import annotations

import pytest

from apps.jobs.progress_rules import flops_per_token, model_facts_of, pace_of, utilisation


def test_one_report_has_no_pace() -> None:
    assert pace_of([]) is None
    assert pace_of([(5, 0.0)]) is None
    assert pace_of([(5, 0.0), (5, 9.0)]) is None


def test_pauses_do_not_make_steps_look_slow() -> None:
    reports, at = [(0, 0.0)], 0.0
    for step in range(1, 101):
        at += 2.0 + (60.0 if step % 25 == 0 else 0.0)
        reports.append((step, at))
    pace = pace_of(reports)
    assert pace is not None
    assert pace.step_s == pytest.approx(2.0)
    assert pace.pause_s == pytest.approx(4 * 60 / 100)
    assert pace.pause_share == pytest.approx(240 / 440)
    # What is left counts the pauses that are still to come.
    assert pace.left_s(100) == pytest.approx(440)
    assert pace.left_s(-3) == 0


def test_reports_every_ten_steps() -> None:
    pace = pace_of([(step, step * 1.5) for step in range(0, 200, 10)])
    assert pace is not None
    assert (pace.step_s, pace.pause_s) == (pytest.approx(1.5), 0)


def test_a_step_back_is_no_stretch() -> None:
    pace = pace_of([(100, 0.0), (110, 10.0), (50, 40.0), (60, 50.0)])
    assert pace is not None
    assert (pace.step_s, pace.steps) == (pytest.approx(1.0), 20)


def test_flops_of_a_token() -> None:
    assert flops_per_token({}) is None
    assert flops_per_token({"parameters": 7e9}) == 42e9
    whole = {"parameters": 7e9, "layers": 32.0, "hidden": 4096.0, "sequence": 4096.0}
    assert flops_per_token(whole) == 42e9 + 12 * 32 * 4096 * 4096


def test_mfu_by_the_formula() -> None:
    found = utilisation(80_000, 8, "h100", {"parameters": 7e9})
    assert found is not None
    assert found.mfu == pytest.approx(80_000 * 42e9 / (8 * 989e12))
    assert found.of_best == pytest.approx(80_000 * 42e9 / (8 * 794.5e12))
    assert found.is_plausible
    fp8 = utilisation(80_000, 8, "H200", {"parameters": 7e9, "precision": "fp8"})
    assert fp8 is not None
    assert (fp8.peak_tflops, fp8.precision) == (1979, "fp8")


def test_more_than_the_hardware_can_is_flagged() -> None:
    found = utilisation(200_000, 8, "h100", {"parameters": 7e9})
    assert found is not None
    assert not found.is_plausible


@pytest.mark.parametrize(
    ("tokens_per_s", "gpus", "gpu_type", "facts"),
    [
        (None, 8, "h100", {"parameters": 7e9}),
        (80_000, 8, "t4", {"parameters": 7e9}),
        (80_000, 8, "h100", {"layers": 32.0}),
        (80_000, 0, "h100", {"parameters": 7e9}),
        (80_000, 8, "a100", {"parameters": 7e9, "precision": "fp8"}),
    ],
)
def test_nothing_is_made_up(
    tokens_per_s: float | None, gpus: int, gpu_type: str, facts: dict[str, float | str]
) -> None:
    assert utilisation(tokens_per_s, gpus, gpu_type, facts) is None


def test_only_what_makes_sense_is_kept_of_a_model() -> None:
    told = {"parameters": 7_000_000_000, "layers": -3, "hidden": True, "sequence": 1e30, "precision": "int3", "x": 1}
    assert model_facts_of(told) == {"parameters": 7e9}
    assert model_facts_of({"precision": "fp8", "layers": 32}) == {"layers": 32.0, "precision": "fp8"}
