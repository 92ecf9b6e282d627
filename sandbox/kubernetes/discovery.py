"""What clients ask first: versions, groups, and the resources of each group."""

from __future__ import annotations

from typing import Final

from sandbox.kubernetes.registry import Kind, Registry
from sandbox.kubernetes.status import Object, no_such_path
from sandbox.kubernetes.target import parts_of

VERSION: Final[Object] = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.0-sandbox",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "go1.24",
    "compiler": "gc",
    "platform": "linux/amd64",
}


def _group(name: str, kinds: list[Kind]) -> Object:
    versions = list(dict.fromkeys(version for kind in kinds for version in kind.versions))
    told = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": told, "preferredVersion": told[0]}


def _resources(group_version: str, kinds: list[Kind]) -> Object:
    told = []
    for kind in kinds:
        entry: Object = {
            "name": kind.plural,
            "singularName": kind.kind.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list(kind.verbs),
        }
        if kind.short_names:
            entry["shortNames"] = list(kind.short_names)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        told.append(entry)
        for sub in sorted(kind.subresources):
            named = {"scale": "Scale", "eviction": "Eviction", "binding": "Binding", "token": "TokenRequest"}
            verbs = ["create"] if sub in ("eviction", "binding", "token") else ["get", "patch", "update"]
            told.append(
                {
                    "name": f"{kind.plural}/{sub}",
                    "singularName": "",
                    "namespaced": kind.namespaced,
                    "kind": named.get(sub, kind.kind),
                    "verbs": ["get"] if sub == "log" else verbs,
                }
            )
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": told}


def discover(path: str, registry: Registry) -> Object | None:
    """The answer to a path of discovery, None where the path is none. Raises ApiError (404)."""
    parts = parts_of(path)
    if parts == ["version"]:
        return VERSION
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts[:1] == ["openapi"]:
        if parts == ["openapi", "v2"]:
            about = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
            return {"swagger": "2.0", "info": about, "paths": {}, "definitions": {}}
        return {"paths": {}}
    if parts == ["api", "v1"]:
        return _resources("v1", [kind for kind in registry.all() if not kind.group])
    if parts[:1] != ["apis"] or len(parts) > 3:
        return None
    groups: dict[str, list[Kind]] = {}
    for kind in registry.all():
        if kind.group:
            groups.setdefault(kind.group, []).append(kind)
    if len(parts) == 1:
        told = [_group(name, kinds) for name, kinds in groups.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": told}
    kinds = groups.get(parts[1])
    if kinds is None:
        raise no_such_path()
    if len(parts) == 2:
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1], kinds)}
    kinds = [kind for kind in kinds if kind.version == parts[2]]
    if not kinds:
        raise no_such_path()
    return _resources(f"{parts[1]}/{parts[2]}", kinds)
