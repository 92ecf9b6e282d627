"""YAML of one or more documents, read with its places in the text: limits, duplicate keys, aliases, plain values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from worker.providers.values import Text

MAX_BYTES = 1 << 20
MAX_DOCUMENTS = 50
#: Values of all documents with every alias written out, and how deep they may be nested.
MAX_VALUES = 50_000
MAX_DEPTH = 64

#: libyaml, whose parser needs no recursion and is twenty times as fast, where PyYAML was built with it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAGS = {f"tag:yaml.org,2002:{name}": name for name in ("str", "int", "float", "bool", "null", "map", "seq")}
_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_AMBIGUOUS = re.compile(r"(?i:yes|no|on|off)")
_INT = re.compile(r"[-+]?(0o[0-7]+|0x[0-9a-fA-F]+|0b[01]+|[0-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF|nan|NaN|NAN)")
_ESC = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff]")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a manifest, and where.

    ``code`` is CamelCase, ``text`` a sentence; ``document`` counts from 1 (0: the whole text), ``path`` is the field's
    ("spec.template.spec.hostNetwork"), ``line`` counts from 1 (0: unknown).
    """

    code: str
    text: Text
    document: int = 0
    path: str = ""
    line: int = 0

    def __str__(self) -> str:
        """The sentence, preceded by its place."""
        parts = [f"document {self.document}" if self.document else "", f"line {self.line}" if self.line else ""]
        place = ", ".join(part for part in (*parts, self.path) if part)
        return f"{place}: {self.text}" if place else str(self.text)


class Unreadable(Exception):
    """The text is no YAML that can be taken; ``problem`` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(slots=True, eq=False)
class Node:
    """A value in the text: ``kind`` map, seq or scalar; ``start`` and ``end`` are offsets, ``line`` counts from 1.

    ``entries`` of a map are (key, value), of a sequence ("", value). ``is_flow``: within braces or brackets.
    """

    kind: str
    start: int
    end: int
    line: int
    column: int
    tag: str = ""
    text: str = ""
    is_plain: bool = False
    is_flow: bool = False
    size: int = 1
    entries: list[tuple[Node | None, Node]] = field(default_factory=list)

    def get(self, key: str) -> Node | None:
        """The value of ``key`` as it stands in a map, without merges."""
        return next((value for name, value in self.entries if name is not None and name.text == key), None)

    @property
    def is_null(self) -> bool:
        """An empty value."""
        return self.kind == "scalar" and self.is_plain and self.text in _NULL


def _(template: str, /, **facts: object) -> Text:
    return Text(template, facts)


def refuse(code: str, text: Text, *, document: int = 0, line: int = 0, path: str = "") -> Unreadable:
    """An error to raise."""
    return Unreadable(Problem(code, text, document, path, line))


def read_nodes(text: str) -> list[tuple[int, Node]]:
    """The documents that hold anything, with their numbers. Raises Unreadable at the first thing that is wrong."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise refuse("TooLarge", _("The text has %(size)s bytes; the most is %(most)s.", size=size, most=MAX_BYTES))
    if found := _ESC.search(text):
        line = text.count("\n", 0, found.start()) + 1
        name = f"U+{ord(found.group()):04X}"
        raise refuse("ControlCharacter", _("The text has the control character %(name)s.", name=name), line=line)
    try:
        return [(number, node) for number, node in _Composer(text).documents() if not node.is_null]
    except yaml.YAMLError as error:
        raise _syntax(text, error) from error
    except (UnicodeError, ValueError) as error:
        raise refuse("NotYaml", _("The text cannot be read: %(error)s", error=str(error))) from error


def _syntax(text: str, error: yaml.YAMLError) -> Unreadable:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else 0
    written = text.splitlines()[line - 1] if 0 < line <= len(text.splitlines()) else ""
    if "\t" in written[: len(written) - len(written.lstrip())] or "\\t" in str(error) or "'\t'" in str(error):
        return refuse("Tab", _("A tab stands where YAML wants spaces."), line=line)
    what = getattr(error, "problem", None) or str(error)
    if "nesting depth" in what:
        return refuse("TooDeep", _("Values are nested more than %(most)s deep.", most=MAX_DEPTH), line=line)
    return refuse("NotYaml", _("This is no YAML: %(what)s.", what=what), line=line)


@dataclass(slots=True)
class _Open:
    """A map or sequence that has not ended, the key that waits for its value, and the keys so far."""

    node: Node
    anchor: str
    key: Node | None = None
    names: set[str] = field(default_factory=set)


class _Composer:
    """Nodes from the parser's events, without recursion."""

    def __init__(self, text: str) -> None:
        self.events: Any = yaml.parse(text, Loader=_LOADER)
        self.anchors: dict[str, Node] = {}
        self.open: list[_Open] = []
        self.number = 0
        self.values = 0

    def documents(self) -> Iterator[tuple[int, Node]]:
        root: Node | None = None
        for event in self.events:
            mark: Any = event.start_mark
            if isinstance(event, yaml.DocumentStartEvent):
                self.number += 1
                self.anchors, root = {}, None
                if self.number > MAX_DOCUMENTS:
                    text = _("The text has more than %(most)s documents.", most=MAX_DOCUMENTS)
                    raise refuse("TooManyDocuments", text, line=int(mark.line) + 1)
            elif isinstance(event, yaml.DocumentEndEvent):
                if root is not None:
                    yield self.number, root
            elif isinstance(event, yaml.AliasEvent):
                root = self.attach(self.alias(event)) or root
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                root = self.close(mark.index) or root
            elif isinstance(event, yaml.NodeEvent):
                root = self.begin(event) or root

    def alias(self, event: Any) -> Node:
        line = event.start_mark.line + 1
        if event.anchor not in self.anchors:
            raise self.error("UnknownAlias", _("The alias %(name)s is of no anchor.", name=event.anchor), line)
        found = self.anchors[event.anchor]
        self.count(found.size, line)
        return found

    def begin(self, event: Any) -> Node | None:
        line, anchor = event.start_mark.line + 1, event.anchor or ""
        self.count(1, line)
        tag = getattr(event, "tag", None) or ""
        if tag not in ("", "!") and tag not in _TAGS:
            raise self.error("UnknownTag", _("The tag %(tag)s is not for manifests.", tag=tag), line)
        kind = {yaml.MappingStartEvent: "map", yaml.SequenceStartEvent: "seq"}.get(type(event), "scalar")
        found = Node(kind, event.start_mark.index, event.end_mark.index, line, event.start_mark.column, tag)
        if isinstance(event, yaml.ScalarEvent):
            found.text, found.is_plain = event.value, bool(event.implicit[0]) and not event.style
            if anchor:
                self.anchors[anchor] = found
            return self.attach(found)
        if len(self.open) >= MAX_DEPTH:
            raise self.error("TooDeep", _("Values are nested more than %(most)s deep.", most=MAX_DEPTH), line)
        found.is_flow = bool(getattr(event, "flow_style", False))
        self.open.append(_Open(found, anchor))
        return None

    def count(self, size: int, line: int) -> None:
        self.values += size
        if self.values > MAX_VALUES:
            text = _("With its aliases written out the text has more than %(most)s values.", most=MAX_VALUES)
            raise self.error("TooManyValues", text, line)

    def close(self, end: int) -> Node | None:
        ended = self.open.pop()
        node = ended.node
        node.end = end
        node.size = 1 + sum((name.size if name else 0) + value.size for name, value in node.entries)
        if ended.anchor:
            self.anchors[ended.anchor] = node
        return self.attach(node)

    def attach(self, node: Node) -> Node | None:
        """Put a finished node into what is open; given back where it is the document's root."""
        if not self.open:
            return node
        parent = self.open[-1]
        if parent.node.kind == "seq":
            parent.node.entries.append((None, node))
        elif parent.key is not None:
            parent.node.entries.append((parent.key, node))
            parent.key = None
        else:
            if node.kind != "scalar":
                raise self.error("KeyNotText", _("A key is a list or a mapping."), node.line)
            if node.text in parent.names and not (node.text == "<<" and node.is_plain):
                raise self.error("DuplicateKey", _("The key %(key)s stands here twice.", key=node.text), node.line)
            parent.names.add(node.text)
            parent.key = node
        return None

    def error(self, code: str, text: Text, line: int) -> Unreadable:
        return refuse(code, text, document=self.number, line=line)


def plain(node: Node, path: str = "") -> Any:
    """The node's value as JSON would have it: text stays as written, dates stay text. Raises Unreadable."""
    if node.kind == "scalar":
        return _scalar(node, path)
    if node.kind == "seq":
        return [plain(value, f"{path}[{number}]") for number, (_key, value) in enumerate(node.entries)]
    merged: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for key, value in node.entries:
        name = key.text if key is not None else ""
        inner = plain(value, f"{path}.{name}" if path else name)
        if name == "<<" and key is not None and key.is_plain:
            for source in inner if isinstance(inner, list) else [inner]:
                if not isinstance(source, dict):
                    raise refuse("BadMerge", _("<< merges something that is no mapping."), line=node.line, path=path)
                merged = {**source, **merged}
        else:
            own[name] = inner
    return {**merged, **own}


def _scalar(node: Node, path: str) -> Any:
    text, kind = node.text, _TAGS.get(node.tag, "")
    if kind == "str" or (not node.is_plain and not kind):
        return text
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _AMBIGUOUS.fullmatch(text):
        sentence = _("%(text)s can be read as true or false or as text: write true or false, or quotes.", text=text)
        raise refuse("Ambiguous", sentence, line=node.line, path=path)
    if _NO_NUMBER.fullmatch(text):
        raise refuse("NoNumber", _("%(text)s is no number that JSON has.", text=text), line=node.line, path=path)
    if _INT.fullmatch(text) and len(text) < 40:
        return _integer(text, node, path)
    if _FLOAT.fullmatch(text) and len(text) < 40:
        return float(text.replace("_", ""))
    return text


def _integer(text: str, node: Node, path: str) -> int | float:
    sign, digits = (-1 if text.startswith("-") else 1), text.lstrip("+-").replace("_", "")
    for prefix, base in (("0o", 8), ("0x", 16), ("0b", 2)):
        if digits.startswith(prefix):
            return sign * int(digits[2:], base)
    if digits.startswith("0") and len(digits) > 1:
        # 0644 is octal to Kubernetes' reader, as file modes are written.
        if not set(digits) <= set("01234567"):
            return float(sign * int(digits))
        return sign * int(digits, 8)
    return sign * int(digits)
