"""What reading a queue of 20,000 jobs costs a real Slurm 26.05, and what the naive full read would.

    .venv/bin/python -m bench.slurm_queue [--minutes 10] [--jobs 20000]

Prints a table and ends with 1 where a bound is missed, with 3 where no lab can run here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RELEASE = "26.05"
#: The bounds: what an unchanged tick may write, and what a tick with so many changes may take.
CHANGES = 50
CHANGED_TICK_S = 0.5
CHANGED_TICK_BYTES = 2_000_000
#: How much slurmrestd may grow over the whole run.
GROWTH_MIB = 200
NAIVE_READS = 3


def main(minutes: float = 10, jobs: int = 20_000, *, quiet: bool = False) -> dict[str, Any]:
    """Run the measurement in a process of its own.

    Returns ``{"skipped": why}`` where no lab can run, else ``{"rows": [[what, figure, bound, holds]…], "ok": bool}``.
    """
    words = [sys.executable, "-m", "bench.slurm_queue", "--minutes", str(minutes), "--jobs", str(jobs), "--json"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1, 3) or not done.stdout.strip():
        raise RuntimeError(f"the measurement ended with code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if not quiet:
        show(found)
    return found


def show(found: Mapping[str, Any]) -> None:
    """Print the table."""
    if "skipped" in found:
        print(f"no measurement: {found['skipped']}")
        return
    width = max(len(row[0]) for row in found["rows"])
    for what, figure, bound, holds in found["rows"]:
        print(f"{what:<{width}}  {figure:<34}  {bound:<22}  {'' if holds is None else 'holds' if holds else 'MISSED'}")


def say(line: str) -> None:
    """Progress, beside the figures."""
    print(f"bench: {line}", file=sys.stderr, flush=True)


@contextmanager
def portal(directory: Path) -> Iterator[None]:
    """A portal with an empty database of its own."""
    os.environ.update(
        QD_VAR_DIR=str(directory), QD_ENV="test", DJANGO_SETTINGS_MODULE="portal.settings", QD_DATABASE_URL=""
    )
    (directory / "secrets").mkdir(parents=True, exist_ok=True)
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    yield


def fill(scheduler: Any, lab: Any, count: int) -> float:
    """Submit so many jobs; seconds it took. The first of them take all nodes and sleep."""
    from worker.providers.slurm import SlurmScheduler

    began = time.monotonic()
    for index in range(4):
        scheduler.submit(request(lab, f"wide-{index}", nodes=1, limit=24 * 60, script="sleep 86400"))
    connections = [lab.scheduler() for _ in range(4)]

    def some(at: int) -> None:
        one: SlurmScheduler = connections[at]
        for index in range(at, count - 4, len(connections)):
            one.submit(request(lab, f"job-{index}", nodes=1 + index % 4, limit=60 + index % 240))

    with ThreadPoolExecutor(len(connections)) as pool:
        list(pool.map(some, range(len(connections))))
    for one in connections:
        one.close()
    return time.monotonic() - began


def request(lab: Any, name: str, *, nodes: int, limit: int, script: str = "true") -> Any:
    """A job of whole nodes."""
    from worker.providers.values import SubmitRequest

    return SubmitRequest(
        script=f"#!/bin/sh\n{script}\n",
        name=name,
        comment=f"bench {name}",
        partition=str(lab.description["partition"]),
        nodes=nodes,
        gpus_per_node=8,
        gpu_type="h100",
        tasks_per_node=1,
        cpus_per_task=2,
        memory_per_node_mib=0,
        time_limit_min=limit,
        working_directory=str(lab.description["work_dir"]),
        environment={"PATH": "/usr/bin:/bin"},
    )


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def tick(cluster_uid: str) -> dict[str, Any]:
    """One visit of the collector as the worker makes it: what it read, wrote and took, and when the next is due."""
    from apps.clusters.models import Cluster
    from worker.collectors import slurm

    Cluster.objects.filter(uid=cluster_uid).update(queue_read_at=None)
    began = time.monotonic()
    outcome = slurm.queue(cluster_uid)
    took = time.monotonic() - began
    cluster = Cluster.objects.get(uid=cluster_uid)
    if cluster.phase != "READY":
        raise RuntimeError(f"the scheduler could not be read: {cluster.message}")
    return {**cluster.queue_reading, "took_s": took, "again_in_s": outcome.again_in_s}


def measure(lab: Any, minutes: float, jobs: int) -> dict[str, Any]:
    """All figures of one run."""
    from apps.clusters.models import Cluster
    from apps.clusters.states import ClusterPhase
    from apps.jobs import queue_observations
    from apps.jobs.models import QueueEntry
    from worker import doors
    from worker.collectors import slurm

    restd = int(lab.description["daemons"]["slurmrestd"])
    scheduler = lab.scheduler()
    version = scheduler.info().api_version
    say(f"submitting {jobs:,} jobs")
    say(f"submitted in {fill(scheduler, lab, jobs):.0f} s")
    # The scheduler looks at each job once and writes down why it waits: those are changes, and come first.
    time.sleep(60)
    cluster = Cluster.objects.create(name="bench", api_url=lab.access.endpoint_url, phase=ClusterPhase.READY)
    columns: Counter[str] = Counter()
    plain_update = queue_observations._update_rows

    def counted(mirror: Any, changed: Any) -> None:
        for key, _seen, told in changed:
            known = mirror.rows[key].columns
            names = zip(queue_observations.COLUMNS, known, told, strict=True)
            columns.update(name for name, old, new in names if old != new)
        plain_update(mirror, changed)

    queue_observations._update_rows = counted
    doors.scheduler_for = lambda cluster, as_user="": scheduler  # type: ignore[misc]
    rows: list[list[Any]] = []

    def row(what: str, figure: str, bound: str = "", holds: bool | None = None) -> None:
        rows.append([what, figure, bound, holds])

    before = rss_mib(restd)
    first = catch_up(cluster.uid)
    after_first = rss_mib(restd)
    count = QueueEntry.objects.filter(gone_at__isnull=True).count()
    row("jobs in the queue", f"{count:,} ({RELEASE}, REST {version})", f"{jobs:,}", count >= jobs)
    row("first reads, once for a cluster", figures(first))
    # Another process of the worker starts: it takes the queue from the database.
    slurm._memories.clear()
    scheduler = lab.scheduler()
    row("first read of another process", figures(tick(cluster.uid)))
    settle(cluster.uid)
    unchanged = [tick(cluster.uid) for _ in range(5)]
    wrote = max(one["written"] for one in unchanged)
    row("unchanged tick", figures(median(unchanged)), "0 rows", wrote == 0)
    changed: list[dict[str, Any]] = []
    written: list[int] = []
    for number in range(3):
        cancel_and_submit(scheduler, lab, number)
        changed.append(tick(cluster.uid))
        # What is beyond the bound of one read comes with the next.
        rest = [tick(cluster.uid) for _ in range(2)]
        written.append(sum(one["written"] for one in (changed[-1], *rest)))
    middle = median(changed)
    least = min(written)
    fast = middle["took_s"] < CHANGED_TICK_S and middle["bytes"] < CHANGED_TICK_BYTES
    row(f"tick with {CHANGES} changes", figures(middle), f"< {CHANGED_TICK_S} s, < 2 MB", fast)
    row("  rows written with the next two", f"{least}", f"≥ {CHANGES}", least >= CHANGES)
    alone = statistics.median(states_alone(scheduler) for _ in range(5))
    row("  slurmrestd's list of states alone", f"{alone:.2f} s")
    start = rss_mib(restd)
    columns.clear()
    total, peak = run_for(cluster.uid, minutes, restd)
    row(f"{minutes:g} min at the collector's own pace", f"{total['calls'] / minutes:.1f} calls/min")
    row("  bytes", f"{total['bytes'] / minutes / 1e6:.2f} MB/min")
    row("  seconds of reading", f"{total['read_s'] / (minutes * 60):.1%} of the time", "≤ 10 %",
        total["read_s"] <= 0.1 * minutes * 60 + 1)  # fmt: skip
    which = ", ".join(f"{name} {count}" for name, count in columns.most_common(3))
    row("  rows written", f"{total['written']:.0f} {which}")
    row("slurmrestd's memory", f"{before:.0f} MiB, {after_first:.0f} after the first read")
    row("  over those minutes", f"{start:.0f} → {peak:.0f} MiB", f"grows < {GROWTH_MIB} MiB", peak - start < GROWTH_MIB)
    naive = [everything(lab) for _ in range(NAIVE_READS)]
    seconds, size = statistics.median(one[0] for one in naive), naive[-1][1]
    row("naive: all details in every read", f"{seconds:.2f} s, {size / 1e6:.0f} MB a read")
    row(f"  slurmrestd after {NAIVE_READS} of them", f"{rss_mib(restd):.0f} MiB")
    return {"rows": rows, "ok": all(holds is not False for *_row, holds in rows)}


def states_alone(scheduler: Any) -> float:
    """Seconds until slurmrestd has sent the list of states; nothing is made of it."""
    began = time.monotonic()
    scheduler._rest._exchange("GET", f"/slurm/{scheduler._rest.version}/jobs/state", None, None, began)
    return time.monotonic() - began


def everything(lab: Any) -> tuple[float, int]:
    """What the naive client does: all details of all jobs. Seconds and bytes."""
    plain = lab.scheduler(timeout_s=300.0)
    began = time.monotonic()
    answer = plain._rest.call("GET", "/slurm/{v}/jobs", about="queue")
    took = time.monotonic() - began
    plain.close()
    return took, answer.size_bytes


def figures(reading: Mapping[str, Any]) -> str:
    """A tick in words."""
    return (
        f"{reading['took_s']:.2f} s, {reading['bytes'] / 1e6:.2f} MB, {reading['calls']} calls, "
        f"{reading['written']} rows"
    )


def median(ticks: list[dict[str, Any]]) -> dict[str, Any]:
    """The tick in the middle by its time, with the most rows any wrote."""
    middle = sorted(ticks, key=lambda one: one["took_s"])[len(ticks) // 2]
    return {**middle, "written": max(one["written"] for one in ticks)}


def settle(uid: str) -> None:
    """Read until the scheduler has thought about the jobs: their reasons and expected starts come one by one."""
    deadline = time.monotonic() + 120
    calm = 0
    while calm < 3 and time.monotonic() < deadline:
        time.sleep(5)
        calm = calm + 1 if tick(uid)["written"] == 0 else 0


def cancel_and_submit(scheduler: Any, lab: Any, number: int) -> None:
    """Half as many jobs go as come: so many changes in all."""
    from apps.jobs.models import QueueEntry

    rows = QueueEntry.objects.filter(state="PENDING", gone_at__isnull=True).order_by("-pk")
    for key in list(rows.values_list("scheduler_id", flat=True)[: CHANGES // 2]):
        scheduler.cancel(key)
    for index in range(CHANGES - CHANGES // 2):
        scheduler.submit(request(lab, f"new-{number}-{index}", nodes=4, limit=600))


def catch_up(uid: str) -> dict[str, Any]:
    """Reads of a queue that was never read until nothing is left: their sums."""
    total = tick(uid)
    while total["left_over"]:
        one = tick(uid)
        total = {**one, **{name: total[name] + one[name] for name in ("took_s", "bytes", "calls", "written")}}
    return total


def run_for(uid: str, minutes: float, restd: int) -> tuple[dict[str, float], float]:
    """The collector at its own pace for so long: sums of what it did, and slurmrestd's highest memory in MiB."""
    settle(uid)
    total = {"calls": 0.0, "bytes": 0.0, "read_s": 0.0, "written": 0.0}
    peak = rss_mib(restd)
    deadline = time.monotonic() + minutes * 60
    while time.monotonic() < deadline:
        reading = tick(uid)
        for name in total:
            total[name] += reading[name]
        peak = max(peak, rss_mib(restd))
        time.sleep(max(0.0, min(reading["again_in_s"], deadline - time.monotonic())))
    say(f"{minutes:g} min at the collector's own pace")
    return total, peak


def _run() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--json", action="store_true", help="figures as one line of JSON")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.labs import real_slurm_lab, why_no_real_slurm

    why = why_no_real_slurm(RELEASE)
    if why:
        found: dict[str, Any] = {"skipped": why}
    else:
        with tempfile.TemporaryDirectory(prefix="bench-") as var, portal(Path(var)):
            most = arguments.jobs + 5000
            with real_slurm_lab(release=RELEASE, user="games", max_jobs=most, min_job_age_s=10) as lab:
                found = measure(lab, arguments.minutes, arguments.jobs)
    if arguments.json:
        print(json.dumps(found))
    else:
        show(found)
    return 3 if why else 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(_run())
