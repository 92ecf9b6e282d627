"""Node lists as Slurm writes and reads them: p5-[1-2,7]."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)(\d+)$")
_BRACKET = re.compile(r"\[([^\]]*)\]")


def compress(names: Iterable[str]) -> str:
    """The short form; names that share all but a trailing number go into one bracket, in the order of first sight."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    order: list[tuple[str, int] | str] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.append(name)
            order.append(name)
            continue
        digits = match.group(2)
        # "08" and "8" are two names: the width is part of the group where there are leading zeros.
        key = (match.group(1), len(digits) if digits.startswith("0") else 0)
        if key not in groups:
            groups[key] = []
            order.append(key)
        groups[key].append(int(digits))
    parts = []
    for item in order:
        if isinstance(item, str):
            parts.append(item)
            continue
        prefix, width = item
        numbers = sorted(set(groups[item]))
        text = ",".join(_ranges(numbers, width))
        parts.append(f"{prefix}{text}" if len(numbers) == 1 else f"{prefix}[{text}]")
    return ",".join(parts)


def _ranges(numbers: list[int], width: int) -> list[str]:
    found: list[str] = []
    start = previous = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == previous + 1:
            previous = number
            continue
        first, last = str(start).zfill(width), str(previous).zfill(width)
        found.append(first if start == previous else f"{first}-{last}")
        if number is not None:
            start = previous = number
    return found


def expand(text: str) -> list[str]:
    """The long form. Raises ValueError for what is no list."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        names.extend(_expand(part.strip()))
    return [name for name in names if name]


def _expand(part: str) -> list[str]:
    match = _BRACKET.search(part)
    if match is None:
        if "[" in part or "]" in part:
            raise ValueError(f"{part!r} is no node list")
        return [part]
    head, tail = part[: match.start()], part[match.end() :]
    choices: list[str] = []
    for item in match.group(1).split(","):
        first, dash, last = item.partition("-")
        if not dash:
            choices.append(first)
        else:
            choices.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return [head + choice + rest for choice in choices for rest in _expand(tail)]
