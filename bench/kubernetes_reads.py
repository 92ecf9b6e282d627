"""What keeping up with 5,000 pods on 500 nodes costs: requests, bytes, changes and seconds, against a naive full read.

    .venv/bin/python -m bench.kubernetes_reads [--pods 5000] [--nodes 500] [--minutes 1]

The sandbox's API server runs in a process of its own; the worker's reader lists and watches it over https. Prints a
table and ends with 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Changes of pods at once, and the bounds.
CHANGES = 50
FIRST_LIST_S = 30.0
QUIET_BYTES = 100_000
CHANGED_S = 1.0
CHANGED_BYTES = 2_000_000
LOST_S = 30.0
PODS_A_JOB = 8


# --- the server's process


def serve() -> None:
    """Serve a cluster, and do what lines on stdin say; a line of JSON after each."""
    from sandbox.kubernetes import ClusterApi
    from sandbox.kubernetes.authority import Authority

    with tempfile.TemporaryDirectory() as folder:
        made = ClusterApi(Path(folder), name="bench")
        made.serve(0, authority=Authority(Path(folder)))
        _say({"kubeconfig": made.kubeconfig()})
        for line in sys.stdin:
            _say(_do(made, json.loads(line)))
        made.stop()


def _say(thing: Any) -> None:
    print(json.dumps(thing), flush=True)


def _do(made: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    if asked["do"] == "fill":
        _fill(made, asked["pods"], asked["nodes"])
    elif asked["do"] == "change":
        pods = made.store.scan("pods")
        for number, pod in enumerate(pods[:: max(1, len(pods) // asked["count"])][: asked["count"]]):
            status = {**pod["status"], "message": f"change {asked['mark']} {number}"}
            made.set_status("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], status)
    elif asked["do"] == "lose":
        # Every watch is cut, and nobody may go on from where it was.
        for plural in asked["plurals"]:
            made.world.fault_add("history-lost", service="kubernetes", operation=f"watch-{plural}", left=1)
        made.world.fault_add("api-away", seconds=0.6)
    tally = made.api.tally
    counts = dict(tally.requests)
    return {"requests": counts, "bytes": tally.sent_bytes, "seconds": time.monotonic() - began}


def _fill(made: Any, pods: int, nodes: int) -> None:
    from tests.providers.kubernetes.specs import workload
    from worker.providers.kubernetes.render import render, workload_of
    from worker.providers.workload_values import INDEXED_JOB

    job = workload_of(render(workload(name="bench", nodes=PODS_A_JOB), INDEXED_JOB))
    for number in range(nodes):
        labels = {"node.kubernetes.io/instance-type": "p5.48xlarge", "kubernetes.io/hostname": f"n{number}"}
        given = {"cpu": "192", "memory": "2000Gi", "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"capacity": given, "allocatable": given, "conditions": [ready]}
        made.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": f"n{number}", "labels": labels},
                "spec": {},
                "status": status,
            }
        )
    owner: dict[str, Any] = {}
    for number in range(pods):
        name = f"job-{number // PODS_A_JOB}"
        if number % PODS_A_JOB == 0:
            # Jobs of people with kubectl: each is one of its own.
            whole = made.apply({**job, "metadata": {"name": name, "namespace": "default"}})
            head = whole["metadata"]
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": head["uid"], "controller": True}
        template = job["spec"]["template"]
        container = {"name": "main", "ready": True, "restartCount": 0, "image": "i", "imageID": ""}
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        made.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{number % PODS_A_JOB}",
                    "namespace": "default",
                    "ownerReferences": [owner],
                },
                "spec": {**template["spec"], "nodeName": f"n{number % nodes}"},
                "status": {"phase": "Running", "containerStatuses": [{**container, "state": running}]},
            }
        )


# --- the reader's process


class Server:
    """The server's process, from outside."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.kubernetes_reads", "--serve"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.kubeconfig = self._read()["kubeconfig"]

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """Let it do something; its tally afterwards."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=20)


def _between(before: Mapping[str, Any], after: Mapping[str, Any], verb: str = "") -> tuple[int, int]:
    """Requests (of one verb) and bytes sent since."""
    requests = sum(
        count - before["requests"].get(name, 0)
        for name, count in after["requests"].items()
        if name.startswith(verb) and "discovery" not in name
    )
    return requests, after["bytes"] - before["bytes"]


def measure(pods: int, nodes: int, minutes: float) -> dict[str, Any]:
    """The whole measurement: ``{"rows": [[what, requests, bytes, changes, seconds, bound, holds]…], "ok": bool}``."""
    from worker.providers.kubernetes import access
    from worker.providers.kubernetes.calls import Caller
    from worker.providers.kubernetes.informer import Informer

    rows: list[list[Any]] = []

    def row(what: str, cost: tuple[int, int], changes: int, seconds: float, bound: str, holds: bool) -> None:
        rows.append([what, cost[0], cost[1], changes, round(seconds, 2), bound, holds])

    server = Server()
    try:
        empty = server.ask("fill", pods=pods, nodes=nodes)
        print(f"filled in {empty['seconds']:.0f} s", file=sys.stderr)
        caller = Caller(access.of_kubeconfig(json.dumps(server.kubeconfig)))
        reader = Informer(caller)
        before, began = server.ask("tally"), time.monotonic()
        known = reader.look(sync_s=FIRST_LIST_S * 2)
        seconds, after = time.monotonic() - began, server.ask("tally")
        held = len(known.of("Pod")), len(known.of("Node"))
        full = _between(before, after, "list")
        is_whole = held == (pods, nodes)
        whole = sum(len(kind) for kind in known.kinds.values())
        row("first list", full, whole, seconds, f"≤ {FIRST_LIST_S:g} s", is_whole and seconds <= FIRST_LIST_S)

        # The watches begin behind the lists.
        time.sleep(2)
        plurals = [name.removeprefix("watch ") for name in server.ask("tally")["requests"] if name.startswith("watch ")]
        before, version, began = server.ask("tally"), reader.version, time.monotonic()
        end, visits = began + 60 * minutes, 0
        while time.monotonic() < end:
            reader.look()
            visits += 1
            time.sleep(min(1.0, max(0.0, end - time.monotonic())))
        quiet = _between(before, server.ask("tally"))
        changes = reader.version - version
        holds = quiet[0] == 0 and quiet[1] <= QUIET_BYTES and changes == 0
        bound = f"0 requests, ≤ {QUIET_BYTES:,} B"
        row(f"unchanged, {minutes:g} min, {visits} visits", quiet, changes, time.monotonic() - began, bound, holds)

        before, version = server.ask("tally"), reader.version
        began = time.monotonic()
        server.ask("change", count=CHANGES, mark=1)
        seen = reader.wait_for(lambda _: reader.version - version >= CHANGES, 30)
        seconds = time.monotonic() - began
        cost = _between(before, server.ask("tally"))
        holds = seen and seconds <= CHANGED_S and cost[1] <= CHANGED_BYTES and cost[0] == 0
        bound = f"≤ {CHANGED_S:g} s, ≤ {CHANGED_BYTES:,} B"
        row(f"{CHANGES} pods change", cost, reader.version - version, seconds, bound, holds)

        before, version = server.ask("tally"), reader.version
        began = time.monotonic()
        server.ask("lose", plurals=plurals)
        server.ask("change", count=1, mark=2)
        seen = reader.wait_for(lambda _: reader.version > version, LOST_S * 2)
        listed = full[0]
        while time.monotonic() - began < LOST_S:
            after = server.ask("tally")
            if _between(before, after, "list")[0] >= listed:
                break
            time.sleep(0.2)
        seconds = time.monotonic() - began
        cost = _between(before, server.ask("tally"))
        changes = reader.version - version
        holds = seen and changes == 1 and seconds < LOST_S
        row("410 on every watch", cost, changes, seconds, f"≤ {LOST_S:g} s, 1 change", holds)

        naive = (full[0], full[1])
        row("naive: all lists each tick", naive, 0, rows[0][4], "for comparison", True)
        reader.stop()
    finally:
        server.stop()
    return {"rows": rows, "ok": all(one[-1] for one in rows)}


def show(found: Mapping[str, Any]) -> None:
    """Print the table."""
    head = ("what", "requests", "bytes", "changes", "seconds", "bound", "")
    lines = [head, *((r[0], r[1], f"{r[2]:,}", r[3], r[4], r[5], "holds" if r[6] else "MISSED") for r in found["rows"])]
    widths = [max(len(str(line[at])) for line in lines) for at in range(len(head))]
    for line in lines:
        print("  ".join(f"{cell!s:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def main(arguments: list[str] | None = None) -> int:
    """0 where every bound holds, 1 where one does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve()
        return 0
    found = measure(options.pods, options.nodes, options.minutes)
    print(json.dumps(found)) if options.json else show(found)
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
