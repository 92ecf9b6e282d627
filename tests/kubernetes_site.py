"""A pretend cluster in a test, with the official client on it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from kubernetes import client, config

from sandbox.kubernetes import ClusterApi

Found = TypeVar("Found")


@contextmanager
def cluster(state_dir: Path, **options: Any) -> Iterator[ClusterApi]:
    """A served cluster that is stopped afterwards."""
    made = ClusterApi(state_dir, name="test", **options)
    try:
        made.serve(0)
        yield made
    finally:
        made.stop()


def connect(made: ClusterApi, token: str = "") -> client.ApiClient:
    """The official client on a cluster."""
    return config.new_client_from_config_dict(made.kubeconfig(token))


def ask(made: ClusterApi, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """One request as it is, and the code and JSON of its answer."""
    request = urllib.request.Request(made.url + path, method=method)
    request.data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    for name, value in {"Authorization": f"Bearer {made.token}", "Content-Type": "application/json", **headers}.items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def until(what: str, look: Callable[[], Found], timeout_s: float = 15.0) -> Found:
    """What ``look`` finds as soon as it is something. Raises AssertionError."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


def pod(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod of one container as data."""
    container = {"name": "main", "image": "local/test:1", "command": ["true"], **spec.pop("container", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    """A ConfigMap as data."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"a": "1"}}
