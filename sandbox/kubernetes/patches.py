"""The three older kinds of patch: JSON patch, JSON merge patch and Kubernetes' strategic merge patch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

from sandbox.kubernetes.status import ApiError, bad_request

#: Lists that a strategic merge patch merges, by the field's name, and the key of their items; "" for sets of words.
#: A list that is not here (tolerations, taints, command, args) is replaced whole, as the real server does.
MERGE_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "conditions": "type",
    "addresses": "type",
    "ownerReferences": "uid",
    "secrets": "name",
    "resourceClaims": "name",
    "finalizers": "",
}

_ORDER: Final = "$setElementOrder/"
_DROP: Final = "$deleteFromPrimitiveList/"


def merge_key(path: Sequence[str]) -> str | None:
    """The key by which a list of a built-in kind merges, None where it is replaced."""
    field = path[-1] if path else ""
    if field == "ports":
        return "containerPort" if any(part.lower().endswith("containers") for part in path[:-1]) else "port"
    return MERGE_KEYS.get(field)


# --- JSON merge patch (RFC 7386)


def merge_patch(target: Any, patch: Any) -> Any:
    """``target`` with ``patch`` laid over it; null takes a key away."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


# --- JSON patch (RFC 6902)


def _unprocessable(message: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {message}")


def _parts(pointer: Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise bad_request(f"jsonpatch: {pointer!r} is no JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _place(parent: list[Any], part: str, *, insert: bool = False) -> int:
    if part == "-" and insert:
        return len(parent)
    if not part.isdecimal() or int(part) > len(parent) - (0 if insert else 1):
        raise _unprocessable(f"jsonpatch: no element {part!r}")
    return int(part)


def _parent(document: Any, parts: list[str]) -> Any:
    found = document
    for part in parts[:-1]:
        if isinstance(found, list):
            found = found[_place(found, part)]
        elif isinstance(found, dict) and part in found:
            found = found[part]
        else:
            raise _unprocessable(f"jsonpatch: doc is missing path: /{'/'.join(parts)}: missing value")
    return found


def _fetch(document: Any, parts: list[str]) -> Any:
    if not parts:
        return document
    parent, last = _parent(document, parts), parts[-1]
    if isinstance(parent, list):
        return parent[_place(parent, last)]
    if not isinstance(parent, dict) or last not in parent:
        raise _unprocessable(f"jsonpatch: doc is missing key: /{'/'.join(parts)}: missing value")
    return parent[last]


def _add(document: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        return value
    parent, last = _parent(document, parts), parts[-1]
    if isinstance(parent, list):
        parent.insert(_place(parent, last, insert=True), value)
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise _unprocessable(f"jsonpatch: /{'/'.join(parts)} lies in no object")
    return document


def _remove(document: Any, parts: list[str]) -> Any:
    gone = _fetch(document, parts)
    parent = _parent(document, parts)
    if isinstance(parent, list):
        del parent[_place(parent, parts[-1])]
    elif parts:
        del parent[parts[-1]]
    return gone


def json_patch(target: Any, operations: Any) -> Any:
    """``target`` after a list of operations, all or none. Raises ApiError (400, or 422 where one cannot be done)."""
    if not isinstance(operations, list) or not all(isinstance(one, dict) for one in operations):
        raise bad_request("error decoding patch: a JSON patch is a list of operations")
    result = copy.deepcopy(target)
    for one in operations:
        name, parts = one.get("op"), _parts(one.get("path"))
        value = copy.deepcopy(one.get("value"))
        if name == "add":
            result = _add(result, parts, value)
        elif name == "remove":
            _remove(result, parts)
        elif name == "replace":
            _fetch(result, parts)
            if parts:
                _remove(result, parts)
            result = _add(result, parts, value)
        elif name == "move":
            result = _add(result, parts, _remove(result, _parts(one.get("from"))))
        elif name == "copy":
            result = _add(result, parts, copy.deepcopy(_fetch(result, _parts(one.get("from")))))
        elif name == "test":
            if _fetch(result, parts) != value:
                raise _unprocessable(f"jsonpatch: testing value {one.get('path')} failed: test failed")
        else:
            raise bad_request(f"jsonpatch: unknown operation {name!r}")
    return result


# --- strategic merge patch


def strategic_patch(target: Any, patch: Any, path: tuple[str, ...] = ()) -> Any:
    """``target`` with ``patch`` laid over it, lists of known keys merged item by item. Raises ApiError (400)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    result = dict(target) if isinstance(target, dict) else {}
    kept = patch.get("$retainKeys")
    if isinstance(kept, list):
        result = {key: value for key, value in result.items() if key in kept}
    for key, value in patch.items():
        if key in ("$patch", "$retainKeys") or key.startswith(_ORDER):
            continue
        if key.startswith(_DROP):
            field = key.removeprefix(_DROP)
            result[field] = [one for one in result.get(field) or [] if one not in value]
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _strategic_list(result.get(key) or [], value, (*path, key))
        else:
            result[key] = strategic_patch(result.get(key), value, (*path, key))
    return result


def _strategic_list(target: list[Any], patch: list[Any], path: tuple[str, ...]) -> list[Any]:
    key = merge_key(path)
    if key is None:
        return copy.deepcopy([one for one in patch if not (isinstance(one, dict) and "$patch" in one)])
    if key == "":
        return [*target, *(one for one in patch if one not in target)]
    if any(isinstance(one, dict) and one.get("$patch") == "replace" for one in patch):
        return copy.deepcopy([one for one in patch if one.get("$patch") != "replace"])
    result = list(target)
    for one in patch:
        if not isinstance(one, dict) or key not in one:
            raise bad_request(f"map: {one!r} does not contain declared merge key: {key}")
        at = next((place for place, item in enumerate(result) if item.get(key) == one[key]), None)
        if one.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(strategic_patch({}, one, path))
        else:
            result[at] = strategic_patch(result[at], one, path)
    return result
