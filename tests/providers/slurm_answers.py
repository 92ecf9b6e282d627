"""A slurmrestd for tests of the client alone: answers given by path, requests remembered."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2

from worker.providers import values as v
from worker.providers.slurm import SlurmScheduler

PING_NEW = {"pings": [], "meta": {"slurm": {"release": "24.11.5", "cluster": "lab"}}, "errors": [], "warnings": []}
PING_OLD = {"pings": [], "meta": {"Slurm": {"release": "22.05.8"}}, "errors": []}
NOT_THERE = httpx2.Response(404, text="Unable find requested URL. Please view /openapi/v3 for API reference.")
Handler = Callable[[httpx2.Request], httpx2.Response]


class Server:
    """Answers by (method, path without version); remembers what was asked."""

    def __init__(self, version: str = "v0.0.42", **routes: Any) -> None:
        self.version = version
        self.routes: dict[str, Any] = {}
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self.requests: list[httpx2.Request] = []
        self.routes.update(routes)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        _, family, version, *rest = request.url.path.split("/")
        path = "/".join(rest)
        if version != self.version:
            return NOT_THERE
        if path == "ping" and "ping" not in self.routes:
            return httpx2.Response(200, json=PING_OLD if version == "v0.0.38" else PING_NEW)
        key = f"{request.method} {'db/' if family == 'slurmdb' else ''}{path}"
        self.asked.append((request.method, key.partition(" ")[2]))
        self.bodies.append(json.loads(request.content) if request.content else None)
        found = self.routes.get(key, NOT_THERE if family == "slurmdb" else self.routes.get(path, NOT_THERE))
        if callable(found):
            return found(request)
        if isinstance(found, dict):
            return httpx2.Response(200, json=found)
        return found

    def scheduler(self, **changes: Any) -> SlurmScheduler:
        access = v.SchedulerAccess(
            "http://slurm.test:6820/", "owner", changes.pop("token", "a.b.c"), changes.pop("timeout_s", 30.0)
        )
        return SlurmScheduler(access, transport=httpx2.MockTransport(self), **changes)


def request(**changes: Any) -> v.SubmitRequest:
    given: dict[str, Any] = {
        "script": "#!/bin/bash\ntrue\n",
        "name": "n",
        "comment": "uid",
        "partition": "gpu",
        "nodes": 2,
        "gpus_per_node": 8,
        "gpu_type": "h100",
        "tasks_per_node": 2,
        "cpus_per_task": 4,
        "memory_per_node_mib": 1000,
        "time_limit_min": 30,
        "working_directory": "/work",
        "environment": {"A": "1"},
    }
    return v.SubmitRequest(**{**given, **changes})


def old_job(**changes: Any) -> dict[str, Any]:
    given = {
        "job_id": 12,
        "name": "big",
        "comment": "uid",
        "user_name": "owner",
        "account": "nlp",
        "partition": "gpu",
        "job_state": "RUNNING",
        "state_reason": "None",
        "nodes": "p5-[1-2]",
        "node_count": 2,
        "start_time": 1_795_998_931,
        "end_time": 1_796_002_531,
        "submit_time": 1_795_998_930,
        "time_limit": 60,
        "exit_code": 0,
        "tres_alloc_str": "cpu=8,node=2,billing=8,gres/gpu=16",
        "tres_req_str": "",
        "tres_per_node": "gres:gpu:8",
        "gres_detail": [],
        "priority": 4_294_901_748,
    }
    return {**given, **changes}
