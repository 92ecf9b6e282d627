"""A job on the sandbox's Kubernetes with kill -9 of the real worker all through it; counts what exists afterwards."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from tests.flows.test_real_slurm import Api
from tests.kill_worker import Killer
from tests.portal_stack import Portal, portal
from tests.stack import ROOT
from worker.providers.kubernetes.access import of_kubeconfig
from worker.providers.kubernetes.calls import Caller
from worker.providers.kubernetes.names import LABEL_ATTEMPT

SCRIPT = """#!/bin/bash
cd "$QD_WORKING_DIRECTORY"
exec python3 "$QD_EXAMPLES/charlm/train.py" --steps 80 --save-every 10 --step-seconds 0.3
"""
KINDS = (
    "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
    "/api/v1/configmaps",
    "/api/v1/secrets",
)


def made(caller: Caller) -> list[int]:
    """How many objects of each kind belong to an attempt."""
    return [len(caller.listed(path, {"labelSelector": LABEL_ATTEMPT})[0]) for path in KINDS]


def connect(operator: Api, running: Portal, limit_s: float) -> Caller:
    """The standing cluster in the portal, all of it team nlp's; a door of our own to count by."""
    body = {
        "name": "pods",
        "kubeconfig_ref": "file:sandbox-kubeconfig",
        "default_image": "registry.example/train:1",
        "mounts": [{"claim": "shared", "path": "/fsx"}],
    }
    uid = operator("POST", "kubernetes-clusters", body, key="cluster")["uid"]
    operator.wait(f"clusters/{uid}", lambda c: c["phase"] == "READY" and c["gpus"]["nodes"] == 2, limit_s)
    share = {"team": "nlp", "instance_type": "p5.48xlarge", "gpus": 16}
    operator("POST", f"kubernetes-clusters/{uid}/shares", share, key="share")
    version = operator("GET", f"kubernetes-clusters/{uid}")["version"]
    operator("PATCH", f"kubernetes-clusters/{uid}", {"limits_mode": "enforce"}, match=version)
    operator.wait(f"kubernetes-clusters/{uid}", lambda k: k["queues_written_at"] and not k["drift"], limit_s)
    text = (running.var / "secrets" / "sandbox-kubeconfig").read_text()
    assert isinstance(yaml.safe_load(text), dict)
    return Caller(of_kubeconfig(text))


def story(folder: Path, *, every_s: float = 4.0, limit_s: float = 900.0) -> dict[str, Any]:
    """Submit, run and end under fire; the counts. A killed visit waits for its lease: minutes."""
    with portal(folder / "var") as running:
        operator, researcher = Api(running, "operator"), Api(running, "researcher")
        caller = connect(operator, running, 120)
        killer = Killer(running, every_s)
        killer.start()
        try:
            body = {
                "team": "nlp",
                "cluster": "pods",
                "name": "charlm",
                "script": SCRIPT,
                "environment": {"QD_EXAMPLES": str(ROOT / "examples")},
                "nodes": 2,
                "gpus_per_node": 8,
                "gpu_type": "h100",
                "time_limit_min": 60,
                "workload_kind": "jobset",
            }
            job = researcher("POST", "jobs", body, key="job")
            path = f"jobs/{job['uid']}"
            ends = ("SUCCEEDED", "FAILED", "CANCELLED")
            done = researcher.wait(path, lambda j: j["phase"] in ends, limit_s)
            objects = made(caller)
            told = [json.dumps(h, sort_keys=True) for h in researcher("GET", f"{path}/happenings")["results"]]
        finally:
            killer.stopping.set()
            killer.join(10)
            caller.close()
        usd = {k: float(x) for k, x in done["usd"].items()}
        return {
            "kills": killer.kills,
            "job_phase": done["phase"],
            "attempts": len(done["attempts"]),
            "objects": objects,
            "events_twice": len(told) - len(set(told)),
            "usd_left_on_hold": round(usd["held"] - usd["charged"] - usd["released"], 6),
        }


def shortfalls(counts: dict[str, Any]) -> list[str]:
    """What is not as it must be: one attempt, one JobSet with its ConfigMap and Secret, nothing held."""
    wanted = {"job_phase": "SUCCEEDED", "attempts": 1, "objects": [1, 1, 1], "events_twice": 0, "usd_left_on_hold": 0}
    found = [f"{k} is {counts[k]}, not {v}" for k, v in wanted.items() if counts[k] != v]
    if counts["kills"] < 5:
        found.append(f"only {counts['kills']} kills: the test was not one")
    return found


def main() -> None:
    """Run it once and print the counts."""
    with tempfile.TemporaryDirectory(prefix="quarterdeck-kill-") as folder:
        began = time.monotonic()
        counts = story(Path(folder))
        print(json.dumps(counts, indent=1), f"{time.monotonic() - began:.0f} s", *shortfalls(counts))
        sys.exit(1 if shortfalls(counts) else 0)


if __name__ == "__main__":
    main()
