"""Server-side apply: who owns which field, what conflicts, and what an applied configuration changes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from sandbox.kubernetes.status import ApiError, Object

#: One step of a path as managedFields writes it: ``f:name``, ``k:{"name":"x"}`` or ``v:"word"``.
Path = tuple[str, ...]

#: How a list at a path of field names merges: the names of its items' keys, () for a set, None if it is one value.
ListKeys = Callable[[Sequence[str]], tuple[str, ...] | None]

#: What the server itself writes; nobody owns it.
_UNOWNED: Final = frozenset(
    (
        "apiVersion",
        "kind",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "metadata.resourceVersion",
        "metadata.generation",
        "metadata.creationTimestamp",
        "metadata.deletionTimestamp",
        "metadata.deletionGracePeriodSeconds",
        "metadata.managedFields",
        "metadata.selfLink",
        "metadata.generateName",
    )
)


def _names(path: Path) -> tuple[str, ...]:
    return tuple(step[2:] for step in path if step.startswith("f:"))


def _item_step(item: Any, keys: tuple[str, ...]) -> str | None:
    if keys == ():
        return f"v:{json.dumps(item)}"
    if not isinstance(item, dict):
        return None
    told = {key: item[key] for key in keys if key in item}
    return f"k:{json.dumps(told, separators=(',', ':'), sort_keys=True)}" if told else None


def leaves(value: Any, list_keys: ListKeys, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each field that can be owned, with its value. A list without keys and an empty object are one value each."""
    if ".".join(_names(path)) in _UNOWNED:
        return
    if isinstance(value, dict) and (value or not path):
        for key, inner in value.items():
            yield from leaves(inner, list_keys, (*path, f"f:{key}"))
        return
    keys = list_keys(_names(path)) if isinstance(value, list) else None
    if keys is None:
        yield path, value
        return
    for item in value:
        step = _item_step(item, keys)
        if step is None:
            yield path, value
            return
    for item in value:
        step = _item_step(item, keys) or ""
        if keys == ():
            yield (*path, step), item
            continue
        yield (*path, step, "."), {key: item[key] for key in keys if key in item}
        for inner_path, inner in leaves(item, list_keys, (*path, step)):
            if inner_path != (*path, step):
                yield inner_path, inner


# --- managedFields


def to_fields(paths: set[Path]) -> Object:
    """A set of paths as fieldsV1."""
    tree: Object = {}
    for path in sorted(paths):
        at = tree
        for step in path:
            at = at.setdefault(step, {})
    return tree


def from_fields(tree: Object) -> set[Path]:
    """The paths of a fieldsV1."""
    found: set[Path] = set()

    def walk(at: Object, path: Path) -> None:
        if not at:
            found.add(path)
        for step, inner in at.items():
            walk(inner, (*path, step))

    if tree:
        walk(tree, ())
    return found


class Owners:
    """The managedFields of one object, as sets of paths by manager, operation and subresource."""

    def __init__(self, entries: Sequence[Object] | None) -> None:
        self._entries = [dict(entry) for entry in entries or ()]
        self.paths: dict[tuple[str, str, str], set[Path]] = {
            self._at(entry): from_fields(entry.get("fieldsV1") or {}) for entry in self._entries
        }

    @staticmethod
    def _at(entry: Object) -> tuple[str, str, str]:
        return entry.get("manager", "unknown"), entry.get("operation", "Update"), entry.get("subresource", "")

    def entries(self, api_version: str, touched: tuple[str, str, str] | None, now: str) -> list[Object]:
        """The managedFields to store; the one that was ``touched`` gets a new time and version."""
        known = {self._at(entry): entry for entry in self._entries}
        told = []
        for at, paths in self.paths.items():
            if not paths:
                continue
            old = known.get(at, {})
            fresh = at == touched or not old
            entry: Object = {
                "manager": at[0],
                "operation": at[1],
                "apiVersion": api_version if fresh else old.get("apiVersion", api_version),
                "time": now if fresh else old.get("time", now),
                "fieldsType": "FieldsV1",
                "fieldsV1": to_fields(paths),
            }
            if at[2]:
                entry["subresource"] = at[2]
            told.append(entry)
        return told

    def wrote(self, at: tuple[str, str, str], before: Object, after: Object, list_keys: ListKeys) -> None:
        """A manager replaced or patched: it owns now what it changed, and nobody owns what is gone."""
        old, new = dict(leaves(before, list_keys)), dict(leaves(after, list_keys))
        changed = {path for path, value in new.items() if path not in old or old[path] != value}
        for other, paths in self.paths.items():
            self.paths[other] = {path for path in paths if path in new and (path not in changed or other == at)}
        if changed:
            self.paths[at] = self.paths.get(at, set()) | changed


def _sentence(path: Path) -> str:
    words = ""
    for step in path:
        if step == ".":
            continue
        words += f".{step[2:]}" if step.startswith("f:") else f"[{step[2:].strip('{}')}]"
    return words


def apply(
    live: Object,
    wanted: Object,
    owners: Owners,
    at: tuple[str, str, str],
    list_keys: ListKeys,
    *,
    force: bool,
) -> Object:
    """The live object with an applied configuration in it; ``owners`` is brought up to date.

    What this manager owned and no longer names goes away unless another owns it too. Raises ApiError (409) naming
    each field that another manager holds at another value, unless ``force``.
    """
    there, asked = dict(leaves(live, list_keys)), dict(leaves(wanted, list_keys))
    causes = []
    for other, paths in owners.paths.items():
        if other == at:
            continue
        fought = sorted(path for path in paths if path in asked and there.get(path) != asked[path])
        if fought and not force:
            causes += [
                {
                    "reason": "FieldManagerConflict",
                    "message": f'conflict with "{other[0]}"' + (" using v1" if other[1] == "Update" else ""),
                    "field": _sentence(path),
                }
                for path in fought
            ]
        owners.paths[other] = paths - set(fought)
    if causes:
        said = ", ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
        raise ApiError(
            409,
            "Conflict",
            f"Apply failed with {len(causes)} conflict{'' if len(causes) == 1 else 's'}: {said}",
            details={"causes": causes},
        )
    left = owners.paths.get(at, set()) - set(asked)
    for other, paths in owners.paths.items():
        if other != at:
            left -= paths
    result = copy.deepcopy(live)
    for path in sorted(left, key=len, reverse=True):
        _take_away(result, path)
    _lay(result, wanted, list_keys, ())
    owners.paths[at] = set(asked)
    return result


def _step_into(value: Any, step: str) -> Any:
    if step.startswith("f:"):
        return value.get(step[2:]) if isinstance(value, dict) else None
    if step.startswith("k:") and isinstance(value, list):
        keys = json.loads(step[2:])
        return next((item for item in value if all(item.get(key) == told for key, told in keys.items())), None)
    return None


def _take_away(document: Object, path: Path) -> None:
    if path[-1] == ".":
        path = path[:-1]
    trail: list[Any] = [document]
    for step in path[:-1]:
        trail.append(_step_into(trail[-1], step))
    _drop(trail[-1], path[-1])
    # An object that held nothing else goes too; what the configuration still names is laid back afterwards.
    for depth in range(len(path) - 2, 0, -1):
        if trail[depth + 1] != {} or not path[depth].startswith("f:"):
            break
        _drop(trail[depth], path[depth])


def _drop(parent: Any, step: str) -> None:
    if step.startswith("f:") and isinstance(parent, dict):
        parent.pop(step[2:], None)
    elif step.startswith("v:") and isinstance(parent, list):
        word = json.loads(step[2:])
        if word in parent:
            parent.remove(word)
    elif step.startswith("k:") and isinstance(parent, list):
        item = _step_into(parent, step)
        if item is not None:
            parent.remove(item)


def _lay(target: Object, wanted: Object, list_keys: ListKeys, path: tuple[str, ...]) -> None:
    for key, value in wanted.items():
        here = (*path, key)
        if ".".join(here) in _UNOWNED and key not in ("apiVersion", "kind", "name", "namespace"):
            continue
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _lay(target[key], value, list_keys, here)
        elif isinstance(value, list) and isinstance(target.get(key), list):
            target[key] = _lay_list(target[key], value, list_keys, here)
        else:
            target[key] = copy.deepcopy(value)


def _lay_list(there: list[Any], wanted: list[Any], list_keys: ListKeys, path: tuple[str, ...]) -> list[Any]:
    keys = list_keys(path)
    if keys is None or any(_item_step(item, keys) is None for item in [*there, *wanted]):
        return copy.deepcopy(wanted)
    result = list(there)
    for item in wanted:
        step = _item_step(item, keys)
        at = next((place for place, one in enumerate(result) if _item_step(one, keys) == step), None)
        if at is None:
            result.append(copy.deepcopy(item))
        elif isinstance(item, dict):
            _lay(result[at], item, list_keys, path)
    return result
