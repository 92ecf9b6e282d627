"""A request as the server sees it: its path taken apart, its query, and its body read as JSON or YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml

from sandbox.kubernetes.registry import Kind, Registry
from sandbox.kubernetes.status import ApiError, bad_request, no_such_path, unsupported_media

#: What etcd and the server take in one object.
MOST_BYTES: Final = 3 * 1024 * 1024
_FLAGS: Final = ("1", "t", "true")


@dataclass
class Request:
    """One HTTP request."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    #: Fields that stood twice in the body.
    doubled: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Request:
        """From what stands on the request's first line."""
        parts = urlsplit(target)
        return cls(method, parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)), headers, body)

    def flag(self, name: str) -> bool:
        """A truth in the query, in any of the spellings that Go reads as one."""
        return self.query.get(name, "").lower() in _FLAGS

    def number(self, name: str) -> int | None:
        """A whole number in the query. Raises ApiError (400)."""
        text = self.query.get(name, "")
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise bad_request(f"{name}: {text!r} is no whole number") from None

    @property
    def content_type(self) -> str:
        """The media type of the body without its parameters."""
        return self.headers.get("Content-Type", "application/json").split(";")[0].strip().lower()

    def document(self) -> Any:
        """The body as data; None where there is none. Raises ApiError (400, 413, 415)."""
        if len(self.body) > MOST_BYTES:
            raise ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MOST_BYTES}")
        if not self.body.strip():
            return None
        kind = self.content_type
        if "protobuf" in kind or "cbor" in kind:
            raise unsupported_media(f"the body of the request was in an unknown format: {kind}")
        try:
            if kind.endswith("yaml"):
                return yaml.safe_load(self.body)
            return json.loads(self.body, object_pairs_hook=self._pairs)
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            raise bad_request(f"error decoding the body: {error}") from None

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for key, value in pairs:
            if key in told:
                self.doubled.append(key)
            told[key] = value
        return told


@dataclass(frozen=True)
class Target:
    """What a path names: a kind, perhaps a namespace, an object and one of its subresources."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    sub: str = ""
    watch: bool = False


def parts_of(path: str) -> list[str]:
    """The segments of a path."""
    return [unquote(part) for part in path.strip("/").split("/") if part]


def target_of(path: str, registry: Registry) -> Target:
    """Take a resource's path apart. Raises ApiError (404)."""
    parts = parts_of(path)
    if parts[:1] == ["api"] and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_such_path()
    watch = rest[0] == "watch" and len(rest) > 1
    if watch:
        rest = rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not (group == "" and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    kind = registry.find(group, version, rest[0])
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        raise no_such_path()
    name, sub = (rest[1] if len(rest) > 1 else ""), (rest[2] if len(rest) > 2 else "")
    if sub and sub not in kind.subresources:
        raise no_such_path()
    if name and kind.namespaced and not namespace:
        raise no_such_path()
    return Target(kind, namespace, name, sub, watch)
