"""Objects against a structural schema of a CRD: defaults, pruning of unknown fields, and everything that is wrong."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sandbox.kubernetes.quantities import is_quantity
from sandbox.kubernetes.rules import broken_rule
from sandbox.kubernetes.status import Cause, Object

Schema = Mapping[str, Any]

_ANYTHING: Final = "x-kubernetes-preserve-unknown-fields"
_EITHER: Final = "x-kubernetes-int-or-string"
_EMBEDDED: Final = "x-kubernetes-embedded-resource"
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_MOST_CAUSES: Final = 50


@functools.lru_cache(maxsize=2048)
def _pattern(text: str) -> re.Pattern[str]:
    # Go writes named classes that Python has no word for; the schemas here hold none, but a made one may.
    return re.compile(text.replace("[[:alnum:]]", "[A-Za-z0-9]").replace("[[:alpha:]]", "[A-Za-z]"))


def _inner(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


# --- unknown fields and defaults


def prune(value: Any, schema: Schema, path: str = "", *, root: bool = True) -> tuple[Any, list[str]]:
    """``value`` without fields that the schema does not name, and the paths of what was taken away."""
    taken: list[str] = []
    if isinstance(value, dict) and schema.get("type") == "object":
        named, more = schema.get("properties") or {}, schema.get("additionalProperties")
        own = ("apiVersion", "kind", "metadata") if root or schema.get(_EMBEDDED) else ()
        kept = {}
        for key, inner in value.items():
            here = _inner(path, key)
            if key in own and (key not in named or key == "metadata"):
                kept[key] = inner
            elif key in named:
                kept[key], lost = prune(inner, named[key], here, root=False)
                taken += lost
            elif isinstance(more, Mapping):
                kept[key], lost = prune(inner, more, here, root=False)
                taken += lost
            elif more is True or schema.get(_ANYTHING):
                kept[key] = inner
            elif not named and more is None and path.endswith("metadata"):
                # Metadata of a pod template is written as a bare object; the server knows its fields by itself.
                kept[key] = inner
            else:
                taken.append(here)
        return kept, taken
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        items = []
        for at, inner in enumerate(value):
            item, lost = prune(inner, schema["items"], f"{path}[{at}]", root=False)
            items.append(item)
            taken += lost
        return items, taken
    return value, taken


def with_defaults(value: Any, schema: Schema) -> Any:
    """``value`` with the schema's defaults where a field is absent, or null and not nullable."""
    if isinstance(value, dict):
        named, more = schema.get("properties") or {}, schema.get("additionalProperties")
        filled = dict(value)
        for key, inner in named.items():
            if filled.get(key, 0) is None and not inner.get("nullable"):
                del filled[key]
            if key not in filled and "default" in inner:
                filled[key] = copy.deepcopy(inner["default"])
            if key in filled:
                filled[key] = with_defaults(filled[key], inner)
        if isinstance(more, Mapping):
            filled = {key: one if key in named else with_defaults(one, more) for key, one in filled.items()}
        return filled
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return [with_defaults(one, schema["items"]) for one in value]
    return value


# --- validation


def check(value: Any, schema: Schema, before: Any = None) -> list[Cause]:
    """Everything wrong with an object; ``before`` is the stored one where it is an update."""
    found: list[Cause] = []
    _check(value, schema, "", found, before)
    return found[:_MOST_CAUSES]


def _shown(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _named_type(value: Any) -> str:
    for name in ("boolean", "object", "array", "string", "integer", "number"):
        if isinstance(value, _TYPES[name]):
            return name
    return "null"


def _check(value: Any, schema: Schema, path: str, found: list[Cause], before: Any) -> None:
    if value is None:
        if not schema.get("nullable"):
            want = schema.get("type", "object")
            found.append(Cause(path, "FieldValueTypeInvalid", f'"null": {path} in body must be of type {want}: "null"'))
        return
    if schema.get(_EITHER):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            said = f'"{_named_type(value)}": {path} in body must be of type integer or string: "{_named_type(value)}"'
            found.append(Cause(path, "FieldValueTypeInvalid", said))
            return
    elif (want := str(schema.get("type", ""))) in _TYPES and not _fits(value, want):
        is_type = _named_type(value)
        found.append(
            Cause(path, "FieldValueTypeInvalid", f'"{is_type}": {path} in body must be of type {want}: "{is_type}"')
        )
        return
    _check_scalar(value, schema, path, found)
    if isinstance(value, dict):
        _check_object(value, schema, path, found, before if isinstance(before, dict) else {})
    elif isinstance(value, list):
        _check_list(value, schema, path, found, before if isinstance(before, list) else [])
    for each in schema.get("allOf") or ():
        _check(value, each, path, found, before)
    choices = schema.get("anyOf") or ()
    if choices and not schema.get(_EITHER) and not any(_agrees(value, each) for each in choices):
        found.append(
            Cause(path, "FieldValueInvalid", f"{_shown(value)}: {path} in body must validate at least one schema")
        )
    choices = schema.get("oneOf") or ()
    if choices and sum(_agrees(value, each) for each in choices) != 1:
        found.append(
            Cause(path, "FieldValueInvalid", f"{_shown(value)}: {path} in body must validate one and only one schema")
        )
    if "not" in schema and _agrees(value, schema["not"]):
        found.append(Cause(path, "FieldValueInvalid", f"{_shown(value)}: {path} in body must not validate the schema"))
    for rule in schema.get("x-kubernetes-validations") or ():
        if broken_rule(str(rule.get("rule", "")), value, before):
            said = rule.get("message") or f"failed rule: {rule.get('rule')}"
            found.append(Cause(path or "<nil>", "FieldValueInvalid", f'"{_named_type(value)}": {said}'))


def _fits(value: Any, want: str) -> bool:
    if isinstance(value, bool):
        return want == "boolean"
    if want == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[want])


def _agrees(value: Any, schema: Schema) -> bool:
    found: list[Cause] = []
    _check(value, schema, "", found, None)
    return not found


def _check_scalar(value: Any, schema: Schema, path: str, found: list[Cause]) -> None:
    allowed = schema.get("enum")
    if allowed and value not in allowed:
        said = f"{_shown(value)}: supported values: {', '.join(_shown(one) for one in allowed)}"
        found.append(Cause(path, "FieldValueNotSupported", said))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            said = f"{value}: {path} in body should be greater than or equal to {schema['minimum']}"
            found.append(Cause(path, "FieldValueInvalid", said))
        if "maximum" in schema and value > schema["maximum"]:
            said = f"{value}: {path} in body should be less than or equal to {schema['maximum']}"
            found.append(Cause(path, "FieldValueInvalid", said))
        bits = {"int32": 31, "int64": 63}.get(str(schema.get("format")))
        if bits and not -(2**bits) <= value < 2**bits:
            found.append(
                Cause(path, "FieldValueInvalid", f"{value}: {path} in body must be of type {schema['format']}")
            )
    if isinstance(value, str):
        if len(value) > schema.get("maxLength", len(value)):
            found.append(Cause(path, "FieldValueTooLong", f"may not be more than {schema['maxLength']} bytes"))
        if len(value) < schema.get("minLength", 0):
            said = f"{_shown(value)}: {path} in body should be at least {schema['minLength']} chars long"
            found.append(Cause(path, "FieldValueInvalid", said))
        if schema.get("format") == "date-time" and not _is_instant(value):
            said = f"{_shown(value)}: {path} in body must be of type date-time: {_shown(value)}"
            found.append(Cause(path, "FieldValueInvalid", said))
    pattern = schema.get("pattern")
    if pattern and (isinstance(value, str) or schema.get(_EITHER)):
        # The one long pattern of the schemas is that of quantities, which may also be bare numbers.
        right = is_quantity(value) if schema.get(_EITHER) else _pattern(pattern).search(str(value)) is not None
        if not right:
            found.append(Cause(path, "FieldValueInvalid", f"{_shown(value)}: {path} in body should match '{pattern}'"))


def _is_instant(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return "T" in text.upper()


def _check_object(value: Object, schema: Schema, path: str, found: list[Cause], before: Object) -> None:
    named, more = schema.get("properties") or {}, schema.get("additionalProperties")
    for key in schema.get("required") or ():
        if key not in value:
            found.append(Cause(_inner(path, key), "FieldValueRequired"))
    for key, inner in value.items():
        if key in named:
            _check(inner, named[key], _inner(path, key), found, before.get(key))
        elif isinstance(more, Mapping):
            _check(inner, more, f"{path}[{key}]" if path else key, found, before.get(key))
    if len(value) < schema.get("minProperties", 0):
        said = f"{len(value)}: {path} in body should have at least {schema['minProperties']} properties"
        found.append(Cause(path, "FieldValueInvalid", said))
    if len(value) > schema.get("maxProperties", len(value)):
        found.append(
            Cause(path, "FieldValueTooMany", f"{len(value)}: must have at most {schema['maxProperties']} items")
        )


def _check_list(value: list[Any], schema: Schema, path: str, found: list[Cause], before: list[Any]) -> None:
    if len(value) < schema.get("minItems", 0):
        said = f"{len(value)}: {path} in body should have at least {schema['minItems']} items"
        found.append(Cause(path, "FieldValueInvalid", said))
    if len(value) > schema.get("maxItems", len(value)):
        found.append(Cause(path, "FieldValueTooMany", f"{len(value)}: must have at most {schema['maxItems']} items"))
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or ()
    seen: set[str] = set()
    for at, inner in enumerate(value):
        if isinstance(schema.get("items"), Mapping):
            _check(inner, schema["items"], f"{path}[{at}]", found, _counterpart(inner, at, before, kind, keys))
        mark = None
        if kind == "set":
            mark = _shown(inner)
        elif kind == "map" and isinstance(inner, dict):
            mark = _shown({key: inner.get(key) for key in keys})
        if mark is not None and mark in seen:
            found.append(Cause(f"{path}[{at}]", "FieldValueDuplicate", mark))
        seen.add(mark or "")


def _counterpart(item: Any, at: int, before: list[Any], kind: Any, keys: Any) -> Any:
    """The stored item that an item continues: the one of the same keys; none where the list is no map."""
    if kind != "map" or not isinstance(item, dict):
        return None
    return next(
        (one for one in before if isinstance(one, dict) and all(one.get(key) == item.get(key) for key in keys)), None
    )
