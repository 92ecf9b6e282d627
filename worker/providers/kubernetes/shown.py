"""The objects of a submit as people read them: YAML, with nothing secret and the runner's source left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml

from worker.providers.errors import InvalidRequest
from worker.providers.kubernetes.manifest import prepared, read_manifest
from worker.providers.kubernetes.render import render
from worker.providers.kubernetes.yaml_text import Unreadable, plain, read_nodes
from worker.providers.workload_values import WorkloadSubmit


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block, as people write it."""

    def ignore_aliases(self, data: Any) -> bool:
        """Nothing is written as a reference to something above."""
        return True


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    style = "|" if "\n" in data else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _text)


def without_secrets(text: str, *, hidden: str) -> str:
    """A manifest with ``hidden`` for each value of its Secrets; the rest to the letter.

    A document that is a Secret is written anew, for its comments and annotations may repeat what it holds. A text that
    cannot be read is hidden as a whole.
    """
    found = text
    try:
        for _number, node in reversed(read_nodes(text)):
            value = plain(node)
            if isinstance(value, dict) and value.get("kind") == "Secret":
                written = yaml.dump(
                    _masked(value, hidden), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True
                )
                before = found[: node.start].rstrip(" ")
                before += "" if not before or before.endswith("\n") else "\n"
                found = before + written + found[node.end :].lstrip(" \n")
    except Unreadable:
        return hidden
    return found


def _masked(secret: dict[str, Any], hidden: str) -> dict[str, Any]:
    """What tells a Secret apart, and the names of what it holds."""
    head = secret.get("metadata")
    shown: dict[str, Any] = {
        name: secret[name] for name in ("apiVersion", "kind", "type", "immutable") if name in secret
    }
    if isinstance(head, dict):
        shown["metadata"] = {name: head[name] for name in ("name", "namespace", "labels") if name in head}
    for part in ("data", "stringData"):
        if part in secret:
            held = secret[part]
            shown[part] = dict.fromkeys(held, hidden) if isinstance(held, dict) else hidden
    return shown


def objects_text(request: WorkloadSubmit, *, hidden: str) -> str:
    """All objects in the order in which they are made. Raises InvalidRequest where they cannot be written."""
    if request.manifest:
        manifest = read_manifest(request.manifest)
        if manifest.problem is not None:
            raise InvalidRequest(str(manifest.problem), source="kubernetes")
        names = {"job": request.job_uid, "attempt": request.uid, "team": request.team, "owner": request.owner}
        try:
            return without_secrets(
                prepared(manifest, **names, queue=request.queue, scheduler=request.scheduler).text, hidden=hidden
            )
        except Unreadable as error:
            raise InvalidRequest(str(error.problem), source="kubernetes") from error
    if request.spec is None:
        raise InvalidRequest("there is neither a workload nor a manifest", source="kubernetes")
    secret = dict.fromkeys(request.spec.secret_environment, hidden)
    runner = f"# {hidden}\n" if request.spec.runner else ""
    objects = render(replace(request.spec, secret_environment=secret, runner=runner), request.kind)
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=110, explicit_start=True, allow_unicode=True)
