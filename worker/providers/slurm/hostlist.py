"""Slurm's short way of writing many node names, expanded."""

from __future__ import annotations

#: No cluster has more nodes than this; a longer list is a broken answer, not a list.
MAX_NAMES = 65_536
#: What accounting writes where a job never had nodes.
_NO_NODES = frozenset({"", "(null)", "none assigned", "n/a", "none"})


def expand(text: str | None) -> tuple[str, ...]:
    """The names in ``text``, in its order: "p5-[1-2],q[08-10]" → p5-1, p5-2, q08, q09, q10.

    Several brackets in one name multiply. Raises ValueError for an unclosed bracket, an empty or
    backward range, or more than MAX_NAMES names.
    """
    if text is None or text.strip().lower() in _NO_NODES:
        return ()
    names: list[str] = []
    for part in _split(text.strip()):
        names.extend(_expand_one(part, MAX_NAMES - len(names)))
    return tuple(names)


def _split(text: str) -> list[str]:
    """Cut at the commas outside brackets."""
    parts: list[str] = []
    depth = 0
    start = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
        if depth not in (0, 1):
            raise ValueError(f"node list {text[:80]!r} has brackets that do not match")
    if depth:
        raise ValueError(f"node list {text[:80]!r} has a bracket that is not closed")
    parts.append(text[start:])
    stripped = [part.strip() for part in parts]
    if not all(stripped):
        raise ValueError(f"node list {text[:80]!r} has an empty name")
    return stripped


def _expand_one(part: str, room: int) -> list[str]:
    """Expand the brackets of one part from left to right."""
    names = [""]
    rest = part
    while rest:
        head, bracket, tail = rest.partition("[")
        choices = [""]
        if bracket:
            inside, _, rest = tail.partition("]")
            choices = _choices(inside, room)
        else:
            rest = ""
        if len(names) * len(choices) > room:
            raise ValueError(f"node list names more than {MAX_NAMES} nodes")
        names = [name + head + choice for name in names for choice in choices]
    return names


def _choices(inside: str, room: int) -> list[str]:
    found: list[str] = []
    for item in inside.split(","):
        first, dash, last = item.partition("-")
        if not dash:
            if not first:
                raise ValueError(f"node list has an empty item in [{inside[:80]}]")
            found.append(first)
            continue
        if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
            raise ValueError(f"node list has the range {item[:40]!r}, which is not of numbers")
        low, high = int(first), int(last)
        if high < low:
            raise ValueError(f"node list has the backward range {item[:40]!r}")
        if high - low >= room - len(found):
            raise ValueError(f"node list names more than {MAX_NAMES} nodes")
        # Leading zeros are part of the names: the width of the first number is kept.
        found.extend(str(number).zfill(len(first)) for number in range(low, high + 1))
    return found
