"""The story with kill -9 of the real worker in the middle of it, again and again; counts what exists afterwards."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.flows.test_real_slurm import Api
from tests.portal_stack import Portal, portal


class Killer(threading.Thread):
    """Kills one process of the worker at random moments until told to stop."""

    def __init__(self, running: Portal, every_s: float) -> None:
        super().__init__(daemon=True)
        self.running = running
        self.every_s = every_s
        self.stopping = threading.Event()
        self.kills = 0
        self.main_killed_at = time.monotonic()

    def run(self) -> None:
        """Kill the pool's processes, now and then the worker's main process too."""
        while not self.stopping.wait(random.uniform(0.3, 1.0) * self.every_s):
            mains, pool = workers_of(self.running.process.pid)
            # The supervisor gives a process up that ends five times in a minute, and rightly so.
            may_kill_main = time.monotonic() - self.main_killed_at > 25
            if mains and may_kill_main:
                self.main_killed_at = time.monotonic()
                self._kill(mains[0])
            elif pool:
                self._kill(random.choice(pool))

    def _kill(self, pid: int) -> None:
        try:
            os.kill(pid, signal.SIGKILL)
            self.kills += 1
        except ProcessLookupError:
            pass


def workers_of(supervisor: int) -> tuple[list[int], list[int]]:
    """Pids of the Celery worker's main process and of its pool under a supervisor; beat is not one of them."""
    parents: dict[int, int] = {}
    words: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                words[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])

    def descends(pid: int) -> bool:
        while pid in parents and pid > 1:
            pid = parents[pid]
            if pid == supervisor:
                return True
        return False

    found = {pid for pid, line in words.items() if " worker " in line and "celery" in line and descends(pid)}
    return sorted(p for p in found if parents[p] not in found), sorted(p for p in found if parents[p] in found)


def state(running: Portal) -> dict[str, Any]:
    """What the sandbox holds."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{running.control_url}/api/state", timeout=10) as answer:
        return dict(json.loads(answer.read()))


def story(folder: Path, *, every_s: float = 4.0, limit_s: float = 900.0) -> dict[str, Any]:
    """Launch, run and delete under fire; the counts. A killed visit waits for its lease: minutes."""
    work = folder / "work"
    work.mkdir(parents=True)
    with portal(folder / "var") as running:
        operator, researcher = Api(running, "operator"), Api(running, "researcher")
        sandbox = json.loads(running.sandbox_json.read_text())
        killer = Killer(running, every_s)
        killer.start()
        try:
            operator(
                "POST",
                "accounts",
                {
                    "name": "sandbox",
                    "region": sandbox["aws"]["region"],
                    "endpoint_url": sandbox["aws"]["endpoint_url"],
                    "credentials_ref": "file:sandbox-aws",
                },
            )
            operator.wait("accounts", lambda a: a["results"][0]["phase"] == "CONNECTED", limit_s)
            operator(
                "POST",
                "clusters",
                {
                    "name": "research",
                    "account": "sandbox",
                    "api_url": sandbox["slurm"]["url"],
                    "user_name": sandbox["slurm"]["user_name"],
                    "token_ref": "file:sandbox-slurm",
                    "partition": "gpu",
                    "exporter_url": sandbox["dcgm"]["url_template"],
                    "working_root": str(work),
                },
            )
            operator.wait("clusters/research", lambda c: c["phase"] == "READY", limit_s)
            fleet = operator(
                "POST",
                "fleets",
                {
                    "cluster": "research",
                    "name": "train",
                    "instance_type": "p5.48xlarge",
                    "nodes": 4,
                    "subnet_id": sandbox["aws"]["subnet_id"],
                    "security_group_ids": [sandbox["aws"]["security_group_id"]],
                    "image_id": sandbox["aws"]["image_id"],
                    "partition": "gpu",
                },
                key="fleet",
            )
            operator.wait(f"fleets/{fleet['uid']}", lambda f: f["phase"] == "READY", limit_s)
            launched = state(running)["census"]
            body = {
                "team": "nlp",
                "cluster": "research",
                "name": "charlm",
                "template": "charlm",
                "template_parameters": {"steps": 60, "save_every": 10, "step_seconds": 0.1, "ranks_per_node": 2},
                "nodes": 2,
                "gpus_per_node": 8,
                "gpu_type": "h100",
                "time_limit_min": 60,
            }
            job = researcher("POST", "jobs", body, key="job")
            done = researcher.wait(
                f"jobs/{job['uid']}", lambda j: j["phase"] in ("SUCCEEDED", "FAILED", "CANCELLED"), limit_s
            )
            jobs = state(running)["jobs"]
            operator.wait("clusters/research", lambda c: c["gpus"]["used"] == 0, limit_s)
        finally:
            killer.stopping.set()
            killer.join(10)
        second = Killer(running, every_s)
        second.start()
        try:
            version = operator("GET", f"fleets/{fleet['uid']}")["version"]
            request = urllib.request.Request(
                f"{running.url}/api/v1/fleets/{fleet['uid']}",
                method="DELETE",
                headers={"Authorization": f"Bearer {operator.bearer}", "If-Match": f'"{version}"'},
            )
            operator.opener.open(request, timeout=20).close()
            operator.wait(f"fleets/{fleet['uid']}", lambda f: f["phase"] == "DELETED", limit_s)
        finally:
            second.stopping.set()
            second.join(10)
        left = state(running)["census"]
        usd = {k: float(x) for k, x in done["usd"].items()}
        return {
            "kills": killer.kills + second.kills,
            "fleets_launched": launched["placement_groups"],
            "instances_launched": launched["instances"],
            "job_phase": done["phase"],
            "attempts": len(done["attempts"]),
            "scheduler_jobs": len(jobs),
            "usd_left_on_hold": round(usd["held"] - usd["charged"] - usd["released"], 6),
            "left_behind": {
                k: left[k] for k in ("instances", "placement_groups", "launch_templates", "network_interfaces")
            },
        }


def shortfalls(counts: dict[str, Any]) -> list[str]:
    """What is not as it must be: one fleet, one job, zero orphans."""
    wanted = {
        "fleets_launched": 1,
        "instances_launched": 4,
        "job_phase": "SUCCEEDED",
        "attempts": 1,
        "scheduler_jobs": 1,
        "usd_left_on_hold": 0,
        "left_behind": dict.fromkeys(counts["left_behind"], 0),
    }
    found = [f"{k} is {counts[k]}, not {v}" for k, v in wanted.items() if counts[k] != v]
    if counts["kills"] < 5:
        found.append(f"only {counts['kills']} kills: the test was not one")
    return found


def main() -> None:
    """Run it once and print the counts."""
    import sys
    import tempfile

    with tempfile.TemporaryDirectory(prefix="quarterdeck-kill-") as folder:
        began = time.monotonic()
        counts = story(Path(folder))
        print(json.dumps(counts, indent=1), f"{time.monotonic() - began:.0f} s")
        sys.exit(1 if shortfalls(counts) else 0)


if __name__ == "__main__":
    main()
