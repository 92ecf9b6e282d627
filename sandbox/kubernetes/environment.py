"""The environment of a pretend container: plain values, config maps, secrets and the pod's own fields."""

from __future__ import annotations

import base64
import re
from typing import Any, Final

from sandbox.kubernetes.status import Object
from sandbox.kubernetes.store import Key, Store

_MARK: Final = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


def _data(store: Store, resource: str, namespace: str, name: str) -> dict[str, str] | None:
    found = store.get(Key(resource, namespace, name))
    if found is None:
        return None
    told = found.get("data") or {}
    if resource == "secrets":
        return {key: base64.b64decode(value).decode(errors="replace") for key, value in told.items()}
    return dict(told)


def field_of(pod: Object, path: str, node: str) -> str:
    """A field of the pod as the downward API gives it, "" where there is none."""
    if mark := _MARK.match(path):
        return str((pod["metadata"].get(mark[1]) or {}).get(mark[2], ""))
    if path == "spec.nodeName":
        return node
    if path in ("status.podIP", "status.hostIP"):
        return "127.0.0.1"
    found: Any = pod
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return "" if found is None else str(found)


def environment_of(pod: Object, container: Object, store: Store, node: str) -> dict[str, str]:
    """Names and values, later ones able to use earlier ones. Raises KeyError where a reference leads nowhere."""
    namespace, told = pod["metadata"]["namespace"], {}
    for source in container.get("envFrom") or ():
        for field, resource in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
            if reference := source.get(field):
                data = _data(store, resource, namespace, reference["name"])
                if data is None and not reference.get("optional"):
                    raise KeyError(f'{resource} "{reference["name"]}" not found')
                told.update({f"{source.get('prefix', '')}{key}": value for key, value in (data or {}).items()})
    for one in container.get("env") or ():
        value = one.get("value", "")
        if origin := one.get("valueFrom"):
            found = _referred(pod, origin, store, node)
            if found is None:
                continue
            value = found
        for name, known in told.items():
            value = value.replace(f"$({name})", known)
        told[one["name"]] = value
    return told


def _referred(pod: Object, origin: Object, store: Store, node: str) -> str | None:
    if field := origin.get("fieldRef"):
        return field_of(pod, field["fieldPath"], node)
    for name, resource in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if reference := origin.get(name):
            data = _data(store, resource, pod["metadata"]["namespace"], reference["name"]) or {}
            if reference["key"] in data:
                return data[reference["key"]]
            if reference.get("optional"):
                return None
            raise KeyError(f'no key {reference["key"]} in {resource} "{reference["name"]}"')
    return ""
