"""Writes down which REST endpoint of which version the contract called and how it was answered."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx2

from worker.providers.slurm.versions import VERSIONS

#: The file that calls are added to, one line of JSON each; unset: nothing is written.
TABLE = "QD_ENDPOINT_TABLE"
_PATH = re.compile(r"/(slurm|slurmdb)/(v\d+\.\d+\.\d+)/(.*)")
_NAMED = {"job": "{job_id}", "node": "{node}", "association": "{association}", "qos": "{qos}", "account": "{account}"}


def endpoint_of(method: str, path: str) -> tuple[str, str] | None:
    """(version, "GET /slurm/job/{job_id}") of a call; None for a path of neither plugin."""
    found = _PATH.match(path)
    if found is None:
        return None
    plugin, version, rest = found.groups()
    parts = rest.strip("/").split("/")
    if len(parts) > 1 and parts[0] in _NAMED and parts[1] not in ("submit", "allocate"):
        parts[1] = _NAMED[parts[0]]
    return version, f"{method} /{plugin}/{'/'.join(parts)}"


class Recording(httpx2.BaseTransport):
    """A transport that adds each call and its status to the table."""

    def __init__(self, release: str) -> None:
        self._inner = httpx2.HTTPTransport()
        self._release = release

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it on and write it down."""
        response = self._inner.handle_request(request)
        found = endpoint_of(request.method, request.url.path)
        path = os.environ.get(TABLE)
        if found and path:
            line = {"release": self._release, "version": found[0], "endpoint": found[1], "status": response.status_code}
            with Path(path).open("a") as table:
                table.write(json.dumps(line) + "\n")
        return response

    def close(self) -> None:
        """Let go of the connections."""
        self._inner.close()


def transport(release: str) -> Recording | None:
    """For a scheduler of this release: recording where a table is asked for."""
    return Recording(release) if os.environ.get(TABLE) else None


def table_of(calls: Iterable[dict[str, Any]]) -> str:
    """A Markdown table: endpoints down, versions across; how many calls of the contract each took.

    Answers with an error status are in it: that a refusal is understood is part of the contract.
    """
    counts: dict[tuple[str, str], int] = {}
    releases: dict[str, set[str]] = {}
    for call in calls:
        if call["endpoint"] == "GET /slurm/ping" and call["status"] == 404:
            # Asking for a version that the release does not serve is how the right one is found.
            continue
        key = call["endpoint"], call["version"]
        counts[key] = counts.get(key, 0) + 1
        releases.setdefault(call["version"], set()).add(call["release"])
    versions = [v for v in reversed(VERSIONS) if v in releases]
    head = ["endpoint", *(f"{v} ({', '.join(sorted(releases[v]))})" for v in versions)]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * len(versions)]
    for endpoint in sorted({e for e, _v in counts}, key=lambda e: (e.split(" ", 1)[1], e)):
        cells = [str(counts.get((endpoint, v), "–")) for v in versions]
        lines.append(f"| `{endpoint}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
