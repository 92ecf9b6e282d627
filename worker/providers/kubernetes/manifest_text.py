"""Additions put into YAML where they belong, every other character left as its author wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.providers.kubernetes.yaml_text import Node, Unreadable, plain, read_nodes, refuse
from worker.providers.values import Text

#: What is added to a document, as a tree: {"metadata": {"labels": {"a": "b"}}}; a number is a place in a list.
Additions = Mapping[Any, Any]


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


def merged(value: Any, additions: Additions) -> Any:
    """The value with the additions: mappings are joined, what is there already stays."""
    if isinstance(value, list):
        return [merged(row, additions[n]) if n in additions else row for n, row in enumerate(value)]
    found = dict(value)
    for key, more in additions.items():
        there = found.get(key)
        if isinstance(more, Mapping):
            found[key] = merged(there if isinstance(there, (dict, list)) else {}, more)
        elif there is None:
            found[key] = more
    return found


def spliced(text: str, additions: Mapping[int, Additions]) -> str:
    """``text`` with what is added to each document, by its number.

    Read again and compared with what it should be, because an addition below an anchor would show at its aliases, too:
    raises Unreadable (code CannotAdd) where it does not come out right.
    """
    nodes = read_nodes(text)
    break_ = "\r\n" if "\r\n" in text else "\n"
    edits: list[_Edit] = []
    for number, node in nodes:
        try:
            edits += _edits(node, additions.get(number, {}), text, break_)
        except (ValueError, IndexError) as error:
            raise _cannot(number, node) from error
    found = text
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        found = found[: edit.start] + edit.text + found[edit.end :]
    again = dict(read_nodes(found))
    for number, node in nodes:
        before = plain(node)
        if number not in again or plain(again[number]) != merged(before, additions.get(number, {})):
            raise _cannot(number, node)
    return found


def _(template: str, /, **facts: object) -> Text:
    return Text(template, facts)


def _cannot(number: int, node: Node) -> Unreadable:
    sentence = _("The owner's labels cannot be added here: write out metadata and labels without an alias.")
    return refuse("CannotAdd", sentence, document=number, line=node.line)


def _edits(node: Node, additions: Additions, text: str, break_: str) -> Iterator[_Edit]:
    if node.kind == "seq":
        for place, more in additions.items():
            yield from _edits(node.entries[place][1], more, text, break_)
        return
    missing: dict[str, Any] = {}
    for key, more in additions.items():
        child = node.get(key)
        if child is None:
            missing[key] = more
        elif child.is_null:
            lead = "" if text[child.start - 1 : child.start].isspace() else " "
            yield _Edit(child.start, child.end, lead + _flow(more))
        elif isinstance(more, Mapping) and child.kind in ("map", "seq"):
            yield from _edits(child, more, text, break_)
    if missing:
        yield _insertion(node, missing, text, break_)


def _insertion(node: Node, missing: Additions, text: str, break_: str) -> _Edit:
    """New keys before the first one of a mapping: on lines of their own, or within its braces.

    Raises ValueError where there is no mapping.
    """
    if node.kind != "map":
        raise ValueError(f"line {node.line} is no mapping")
    pairs = [f"{key}: {_flow(value)}" for key, value in missing.items()]
    first = node.entries[0][0] if node.entries else None
    if first is None:
        start = text.index("{", node.start) + 1
        return _Edit(start, start, ", ".join(pairs))
    if node.is_flow:
        return _Edit(first.start, first.start, "".join(f"{pair}, " for pair in pairs))
    indent = " " * first.column
    return _Edit(first.start, first.start, "".join(f"{pair}{break_}{indent}" for pair in pairs))


def _flow(value: Any) -> str:
    """A value on one line; text always in quotes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
