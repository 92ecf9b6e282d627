"""Figures as people read them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from apps.core import units


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (12.4, "12 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (8040, "2 h 14 min"),
        (90_000, "1 d 1 h"),
        (-5, "0 s"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(None, "–"), (Decimal("1234.565"), "$1,234.57"), (Decimal(-3), "-$3.00"), (Decimal(0), "$0.00")],
)
def test_money(amount: Decimal | None, text: str) -> None:
    assert units.usd(amount) == text


@pytest.mark.parametrize(("size", "text"), [(None, "–"), (512, "512 B"), (1536, "1.5 KiB"), (3 * 2**40, "3.0 TiB")])
def test_bytes(size: int | None, text: str) -> None:
    assert units.binary_bytes(size) == text


def test_gpu_hours() -> None:
    assert units.gpu_hours(Decimal("0.4234")) == "0.42 GPU-h"
    assert units.gpu_hours(128) == "128 GPU-h"
