"""Kubernetes quantities: ``500m``, ``8``, ``1.5Gi`` as exact numbers, and back."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

_FORM: Final = re.compile(r"^([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$")
_UNITS: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("0.001"),
    "k": Decimal(1000),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def is_quantity(value: Any) -> bool:
    """Whether a value can be read as one."""
    return not isinstance(value, bool) and _FORM.match(str(value)) is not None


def quantity(value: Any) -> Decimal:
    """The number. Raises ValueError for what is none."""
    found = _FORM.match(str(value))
    if found is None or isinstance(value, bool):
        raise ValueError(f"{value!r} is no quantity")
    number, unit = Decimal(found[1]), found[2] or ""
    if unit[:1] in ("e", "E") and len(unit) > 1 and unit != "Ei":
        return number * Decimal(10) ** int(unit[1:])
    return number * _UNITS.get(unit, Decimal(1))


def written(number: Decimal) -> str:
    """A number in its shortest usual form: whole, or in thousandths."""
    if number == number.to_integral_value():
        return str(int(number))
    return f"{int((number * 1000).to_integral_value())}m"
