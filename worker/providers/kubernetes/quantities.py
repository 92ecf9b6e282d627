"""Kubernetes quantities ("1500m", "2Gi", "1e3") as exact numbers."""

from __future__ import annotations

import re
from fractions import Fraction

_FORM = re.compile(r"([-+]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([KMGTPE]i|[numkMGTPE])|[eE]([-+]?[0-9]{1,3}))?")
_SUFFIXES = {
    "": Fraction(1),
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)},
    **{letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", start=1)},
}
MIB = 1 << 20


def parse(written: object) -> Fraction:
    """The number that ``written`` stands for. Raises ValueError, quoting it, where it is no quantity."""
    text = str(written).strip() if isinstance(written, (str, int, float)) and not isinstance(written, bool) else ""
    found = _FORM.fullmatch(text) if len(text) <= 40 else None
    if not found:
        raise ValueError(f"{str(written)[:60]!r} is no quantity")
    sign, digits, suffix, power = found.groups()
    number = Fraction(digits.rstrip(".") if not digits.startswith(".") else f"0{digits}")
    number *= Fraction(10) ** int(power) if power else _SUFFIXES[suffix or ""]
    return -number if sign == "-" else number


def same(one: object, other: object) -> bool:
    """Whether two quantities are the same amount, however written ("1024Mi" and "1Gi")."""
    try:
        return parse(one) == parse(other)
    except ValueError:
        return one == other


def milli(amount: Fraction) -> int:
    """In thousandths, rounded up."""
    return -((-amount * 1000) // 1)


def mib(amount: Fraction) -> int:
    """Bytes in MiB, rounded up."""
    return -((-amount) // MIB)


def whole(amount: Fraction) -> int:
    """Rounded up."""
    return -((-amount) // 1)


def shown(resource: str, written: object) -> str:
    """An amount as people read it: memory and disk in binary units ("1.5 TiB"), all else as it is written."""
    text = str(written)
    if resource.removeprefix("requests.") not in ("memory", "ephemeral-storage", "storage") and not (
        resource.startswith("hugepages-")
    ):
        return text
    try:
        amount = parse(text)
    except ValueError:
        return text
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if amount >= 1024**power:
            return f"{round(float(amount / 1024**power), 2):g} {unit}"
    return f"{whole(amount)} B"
