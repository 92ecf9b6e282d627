"""Figures as people read them: durations, bytes, money, GPU time; every figure carries its unit."""

from __future__ import annotations

from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal

from django.utils.translation import gettext as _

CENT = Decimal("0.01")


def duration(seconds: float | timedelta | None) -> str:
    """Like ``2 h 14 min``, ``3 min 20 s`` or ``12 s`` in the language in force; a dash when unknown."""
    if seconds is None:
        return "–"
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    total = round(max(0.0, seconds))
    days, rest = divmod(total, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, secs = divmod(rest, 60)
    if days:
        return _("%(d)s d %(h)s h") % {"d": days, "h": hours} if hours else _("%(d)s d") % {"d": days}
    if hours:
        return _("%(h)s h %(m)s min") % {"h": hours, "m": minutes} if minutes else _("%(h)s h") % {"h": hours}
    if minutes:
        fine = secs and minutes < 10
        return _("%(m)s min %(s)s s") % {"m": minutes, "s": secs} if fine else _("%(m)s min") % {"m": minutes}
    return _("%(s)s s") % {"s": secs}


def usd(amount: Decimal | None, places: int = 2) -> str:
    """Like ``$1,234.56``; a dash when unknown."""
    if amount is None:
        return "–"
    step = Decimal(1).scaleb(-places)
    value = Decimal(amount).quantize(step, rounding=ROUND_HALF_UP)
    sign = "-" if value < 0 else ""
    return f"{sign}${abs(value):,.{places}f}"


def gpu_hours(amount: Decimal | float | None) -> str:
    """Like ``128 GPU-h`` or ``0.42 GPU-h``."""
    if amount is None:
        return "–"
    value = Decimal(amount)
    text = f"{value:,.0f}" if abs(value) >= 100 or value == value.to_integral_value() else f"{value:,.2f}"
    return f"{text} GPU-h"


def binary_bytes(size: int | None) -> str:
    """Like ``1.5 GiB``."""
    if size is None:
        return "–"
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def count(value: int | float | None) -> str:
    """A number with thousands separators; at most three significant decimals for a fraction."""
    if value is None:
        return "–"
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
