"""Expected starts tried on a real Slurm: 2,000 jobs go through it, and each start is compared with what was expected.

    .venv/bin/python -m bench.replay_starts [--jobs 2000]

The jobs are real ones in a lab of Slurm (pretend GPUs, jobs that sleep), not a simulation, because the rules that
predict are a simulation themselves and would agree with another one too easily. A time limit of Slurm is at least a
minute, so the limits are 1 to 3 minutes and the jobs take the part of them that their kind takes; the margin at both
ends of a range is a few seconds instead of the minute that it is for real jobs. Everything in between is the portal's
own: the collector, the mirror, the history, the picture and the plays.

Inside is a start that came neither before the earliest likely start nor after the later end of the range (P90), as
both were told when the job was first seen waiting. Ends with 1 where too few were, with 3 where no lab can run here.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bench.slurm_queue import ROOT, portal, say, show

RELEASES = ("26.05", "22.05")
NODES = 48
#: At least this part of the starts is inside: between the first and the last tenth lie eight tenths.
BOUND = 0.7
#: The first part of the jobs makes the history that a cluster has anyway; their own starts are not judged.
WARM_UP = 0.15
#: The scheduler of the lab looks at its queue every two seconds, the replay every three.
MARGIN = timedelta(seconds=5)
TICK_S = 3.0
#: Shorter waits tell nothing of how good expectations are.
LEAST_S = 5.0
#: Kinds of jobs: name, weight, and between which parts of its limit one ends.
KINDS = (("sweep", 5, 0.05, 0.3), ("train", 3, 0.6, 1.0), ("debug", 2, 0.02, 0.08), ("eval", 2, 0.2, 0.7))


@dataclass
class Told:
    """What was expected of one job, and what came."""

    at: datetime
    low_at: datetime
    p50_at: datetime
    p90_at: datetime
    slurm_at: datetime | None
    played_s: float
    is_informed: bool
    started_at: datetime | None = None


def main(jobs: int = 2000, *, quiet: bool = False) -> dict[str, Any]:
    """Run the replay in a process of its own; the shape of the answer is that of ``bench.slurm_queue.main``."""
    words = [sys.executable, "-m", "bench.replay_starts", "--jobs", str(jobs), "--json"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1, 3) or not done.stdout.strip():
        raise RuntimeError(f"the replay ended with code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if not quiet:
        show(found)
    return found


def submit(scheduler: Any, lab: Any, number: int, chance: random.Random) -> None:
    """One job of some kind and size."""
    from worker.providers.values import SubmitRequest

    name, _weight, least, most = chance.choices(KINDS, weights=[kind[1] for kind in KINDS])[0]
    limit_min = chance.choice((1, 1, 2, 3))
    nodes = chance.choice((1, 1, 1, 1, 1, 1, 2, 2, 4))
    seconds = limit_min * 60 * chance.uniform(least, most)
    scheduler.submit(
        SubmitRequest(
            script=f"#!/bin/sh\nexec sleep {seconds:.1f}\n",
            name=f"{name}-{number}",
            comment="",
            partition=str(lab.description["partition"]),
            nodes=nodes,
            gpus_per_node=8 if nodes > 1 else chance.choice((1, 2, 4, 8, 8)),
            gpu_type="h100",
            tasks_per_node=1,
            cpus_per_task=2,
            memory_per_node_mib=0,
            time_limit_min=limit_min,
            working_directory=str(lab.description["work_dir"]),
            environment={"PATH": "/usr/bin:/bin"},
        )
    )


def replay(lab: Any, jobs: int, keep: str = "") -> dict[str, Any]:
    """Feed the queue, look at it as the worker does, and compare; each expectation into the file `keep`, if named."""
    from apps.clusters.models import Cluster
    from apps.clusters.states import ClusterPhase
    from apps.jobs.models import QueueEntry
    from worker import doors
    from worker.collectors import slurm

    scheduler, feeder = lab.scheduler(), lab.scheduler()
    doors.scheduler_for = lambda cluster, as_user="": scheduler  # type: ignore[misc]
    cluster = Cluster.objects.create(name="replay", api_url=lab.access.endpoint_url, phase=ClusterPhase.READY)
    slurm.nodes(cluster.uid)
    chance = random.Random(11)
    told: dict[str, Told] = {}
    fed, began, last_history = 0, time.monotonic(), 0.0
    longest_line = 0
    skipped: set[str] = set()
    while True:
        live = QueueEntry.objects.filter(cluster=cluster, gone_at__isnull=True)
        # The mirror may be behind what was just fed: what has not been seen to start still waits.
        line = fed - QueueEntry.objects.filter(cluster=cluster, started_at__isnull=False).count()
        longest_line = max(longest_line, line)
        # The line stays long enough for the jobs to wait, and short enough for the replay to end.
        while fed < jobs and line < 120 and (skipped or fed < WARM_UP * jobs):
            submit(feeder, lab, fed, chance)
            fed, line = fed + 1, line + 1
        Cluster.objects.filter(pk=cluster.pk).update(queue_read_at=None)
        slurm.queue(cluster.uid)
        cluster.refresh_from_db()
        if fed >= WARM_UP * jobs and not skipped:
            skipped = set(QueueEntry.objects.values_list("scheduler_id", flat=True))
        if time.monotonic() - last_history > 15:
            remember(cluster)
            last_history = time.monotonic()
        starts = QueueEntry.objects.filter(cluster=cluster, started_at__isnull=False)
        for key, started_at in starts.values_list("scheduler_id", "started_at"):
            if key in told:
                told[key].started_at = started_at
        # As the worker does: while part of the queue is not known, nothing is said of it.
        if skipped and not cluster.queue_reading.get("left_over"):
            expect(cluster, told, skipped)
        open_rows = live.exclude(state__in=["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"])
        if fed >= jobs and not open_rows.exists():
            break
        if time.monotonic() - began > 3600:
            raise RuntimeError("the replay did not end within an hour")
        time.sleep(TICK_S)
    took = time.monotonic() - began
    known = [one for one in told.values() if one.started_at is not None]
    if keep:
        lines = [json.dumps({"job": key, **vars(one)}, default=str) for key, one in told.items()]
        Path(keep).write_text("\n".join(lines) + "\n")
    return table(known, fed, fed - len(skipped), took, longest_line)


def remember(cluster: Any) -> None:
    """The history, made anew at once: the worker makes it every five minutes, longer than a job lives here."""
    from apps.jobs.models import StartHistory
    from apps.jobs.start_observations import history_observe

    StartHistory.objects.filter(cluster=cluster).delete()
    history_observe(cluster)


def expect(cluster: Any, told: dict[str, Told], skipped: set[str]) -> None:
    """Say of every job that is seen waiting for the first time when it will start."""
    from apps.jobs.models import QueueEntry
    from apps.jobs.start_pictures import pool_of
    from apps.jobs.start_rules import NEWEST_STARTS, calibrated, simulate

    waiting = QueueEntry.objects.filter(cluster=cluster, gone_at__isnull=True, state="PENDING")
    new = {
        key: at
        for key, at in waiting.values_list("scheduler_id", "expected_start_at")
        if key not in told and key not in skipped
    }
    if not new:
        return
    pool = pool_of(cluster, "")
    # The worker takes these from the expectations that it stored; they are the same figures.
    begun = [one for one in told.values() if one.started_at and one.is_informed and one.played_s >= LEAST_S]
    begun.sort(key=lambda one: one.started_at or one.at)
    newest = begun[-NEWEST_STARTS:]
    ratios = [(one.started_at - one.at).total_seconds() / one.played_s for one in newest if one.started_at]
    for key, played in simulate(pool.picture, list(new), budget_s=1.0).items():
        estimate = calibrated(played, ratios)
        told[key] = Told(
            at=pool.at,
            low_at=pool.at + timedelta(seconds=estimate.low_s),
            p50_at=pool.at + timedelta(seconds=estimate.p50_s),
            p90_at=pool.at + timedelta(seconds=estimate.p90_s),
            slurm_at=new[key],
            played_s=played.p50_s,
            is_informed=pool.picture.is_informed,
        )


def table(told: list[Told], fed: int, judged: int, took: float, line: int) -> dict[str, Any]:
    """The figures of all starts that had been expected."""
    inside = [one for one in told if one.started_at and one.low_at - MARGIN <= one.started_at <= one.p90_at + MARGIN]
    late = sum(1 for one in told if one.started_at and one.started_at > one.p90_at + MARGIN)
    waits = [(one.started_at - one.at).total_seconds() for one in told if one.started_at]
    widths = [(one.p90_at - one.low_at).total_seconds() for one in told]
    off = [abs((one.started_at - one.p50_at).total_seconds()) for one in told if one.started_at]
    slurm = [abs((one.started_at - one.slurm_at).total_seconds()) for one in told if one.started_at and one.slurm_at]
    share = len(inside) / len(told) if told else 0.0
    middle = statistics.median
    rows: list[list[Any]] = [
        ["jobs replayed", f"{fed:,} on {NODES} nodes in {took / 60:.0f} min", "", None],
        ["  of them only for the history", f"{fed - judged:,}", "", None],
        ["  starts that had been expected", f"{len(told):,}", f"≥ {judged // 2}", 2 * len(told) >= judged],
        ["  longest line", f"{line}", "", None],
        ["inside the range first told", f"{share:.1%}", f"≥ {BOUND:.0%}", share >= BOUND],
        ["  later than the range, earlier", f"{late}, {len(told) - len(inside) - late}", "", None],
        ["wait, half of them up to", f"{middle(waits):.0f} s" if waits else "–", "", None],
        ["width of the range, half up to", f"{middle(widths):.0f} s" if widths else "–", "", None],
        ["P50 was off by, half up to", f"{middle(off):.0f} s" if off else "–", "", None],
        ["Slurm's own estimate was off by", f"{middle(slurm):.0f} s, of {len(slurm)}" if slurm else "–", "", None],
    ]  # fmt: skip
    return {"rows": rows, "ok": all(holds is not False for *_row, holds in rows), "share_inside": share}


def _run() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--json", action="store_true", help="figures as one line of JSON")
    parser.add_argument("--keep", default="", metavar="FILE", help="write each expectation and its start there")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.labs import real_slurm_lab, why_no_real_slurm

    reasons = {release: why_no_real_slurm(release) for release in RELEASES}
    release = next((release for release, why in reasons.items() if not why), "")
    if not release:
        found: Mapping[str, Any] = {"skipped": reasons[RELEASES[0]]}
    else:
        say(f"replaying {arguments.jobs:,} jobs on Slurm {release}")
        with (
            tempfile.TemporaryDirectory(prefix="bench-") as var,
            portal(Path(var)),
            real_slurm_lab(release=release, user="games", nodes=NODES) as lab,
        ):
            found = replay(lab, arguments.jobs, arguments.keep)
    if arguments.json:
        print(json.dumps(found))
    else:
        show(found)
    return 3 if "skipped" in found else 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(_run())
