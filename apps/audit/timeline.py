"""Events as the lines of a timeline: each app hands in the words of its own kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from apps.audit.models import Event

#: From an event to (colour word, sentence in the language in force).
Words = Mapping[str, Callable[[Event], tuple[str, str]]]


@dataclass(frozen=True)
class Line:
    """One entry of a timeline."""

    at: datetime
    colour: str
    text: str
    kind: str


def lines_of(events: Iterable[Event], words: Words) -> list[Line]:
    """Events as lines, newest first; a kind without words shows its English text."""
    found = []
    for event in events:
        tell = words.get(event.kind)
        colour, text = tell(event) if tell else ("wait", event.text or event.kind)
        found.append(Line(event.at, colour, str(text), event.kind))
    return found[::-1]
