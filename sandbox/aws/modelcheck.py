"""Holds every request and answer against AWS's own description of the call: the fake accepts nothing AWS refuses.

botocore checks types and required members before it sends; AWS also checks enumerations, patterns, lengths and
ranges. What is checked here is what its service models say, in both directions.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import botocore.session
from botocore.model import OperationModel, ServiceModel, Shape

#: Java's Unicode classes in AWS's patterns, and what is near enough in Python's.
_CLASSES: Final = {r"\p{L}": r"\w", r"\p{N}": r"\d", r"\p{Z}": r"\s", r"\p{M}": "", r"\p{P}": r"!-/:-@\[-`{-~"}
_INTEGERS: Final = frozenset({"integer", "long"})


@functools.cache
def service_model(service: str) -> ServiceModel:
    """AWS's description of a service by botocore's name for it, such as "fsx"."""
    return botocore.session.get_session().get_service_model(service)


@functools.cache
def pattern_of(text: str) -> re.Pattern[str] | None:
    """A pattern of the model for Python; None for the few that use what Python has not."""
    for java, python in _CLASSES.items():
        text = text.replace(java, python)
    # One pattern of EC2's has a start in its middle, where nothing can match.
    text = text.replace("/^", "/")
    try:
        return re.compile(text, re.DOTALL)
    except re.error:
        return None


def request_problems(operation: OperationModel, asked: Mapping[str, Any]) -> list[str]:
    """What AWS would refuse in a request: one sentence each, naming the member."""
    if operation.input_shape is None:
        return [f"{operation.name} takes no parameters"] if asked else []
    return list(_structure(operation.input_shape, asked, ""))


def answer_problems(operation: OperationModel, answer: Mapping[str, Any]) -> list[str]:
    """What in an answer of ours AWS could never have said."""
    if operation.output_shape is None:
        return [f"{operation.name} answers nothing"] if answer else []
    return list(_structure(operation.output_shape, answer, "", strict_required=False))


def _value(shape: Shape, value: Any, where: str, strict_required: bool) -> Iterator[str]:
    match shape.type_name:
        case "structure":
            if not isinstance(value, Mapping):
                yield f"{where} must be an object"
            else:
                yield from _structure(shape, value, where, strict_required=strict_required)
        case "list":
            yield from _list(shape, value, where, strict_required)
        case "map":
            if not isinstance(value, Mapping):
                yield f"{where} must be a map"
                return
            for key, inner in value.items():
                yield from _value(shape.key, key, f"{where} key {key!r}", strict_required)  # type: ignore[attr-defined]
                yield from _value(shape.value, inner, f"{where}.{key}", strict_required)  # type: ignore[attr-defined]
        case "string":
            yield from _string(shape, value, where)
        case "integer" | "long" | "float" | "double":
            yield from _number(shape, value, where)
        case "boolean":
            if not isinstance(value, bool):
                yield f"{where} must be true or false"
        case "timestamp":
            if isinstance(value, bool) or not isinstance(value, datetime.datetime | int | float | str):
                yield f"{where} must be an instant"
        case _:
            return


def _structure(shape: Any, value: Mapping[str, Any], where: str, *, strict_required: bool = True) -> Iterator[str]:
    for name in sorted(set(value) - set(shape.members)):
        yield f"{_at(where, name)} is not known"
    for name in shape.required_members if strict_required else ():
        if value.get(name) is None:
            yield f"{_at(where, name)} is required"
    for name, member in shape.members.items():
        if value.get(name) is not None:
            yield from _value(member, value[name], _at(where, name), strict_required)


def _list(shape: Any, value: Any, where: str, strict_required: bool) -> Iterator[str]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        yield f"{where} must be a list"
        return
    yield from _bounds(shape, len(value), where, "entries")
    for index, inner in enumerate(value):
        yield from _value(shape.member, inner, f"{where}[{index}]", strict_required)


def _string(shape: Any, value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{where} must be text"
        return
    if shape.enum and value not in shape.enum:
        known = ", ".join(shape.enum[:12]) + (", …" if len(shape.enum) > 12 else "")
        yield f"{where}: {value!r} is not one of {known}"
    yield from _bounds(shape, len(value), where, "characters")
    text = shape.metadata.get("pattern")
    pattern = pattern_of(text) if text else None
    if pattern is not None and not pattern.fullmatch(value):
        yield f"{where}: {value[:80]!r} does not match {text}"


def _number(shape: Any, value: Any, where: str) -> Iterator[str]:
    whole = shape.type_name in _INTEGERS
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        yield f"{where} must be a {'whole ' if whole else ''}number"
        return
    yield from _bounds(shape, value, where, "")


def _bounds(shape: Any, size: float, where: str, unit: str) -> Iterator[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    words = f" {unit}" if unit else ""
    if least is not None and size < least:
        yield f"{where} has {size}{words}, at least {least} are needed" if unit else f"{where}: {size} is below {least}"
    if most is not None and size > most:
        yield f"{where} has {size}{words}, at most {most} are allowed" if unit else f"{where}: {size} is above {most}"


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
