"""What a hundred ranks that print 10 KB/s each cost the portal: nothing lost, and how the database grows.

    .venv/bin/python -m bench.log_ingest [--minutes 10] [--ranks 100] [--bytes 10000]

The ranks speak the runner's protocol to a whole portal (web, worker, SQLite, object store) on this machine. Prints a
table and ends with 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.portal_stack import Portal, portal  # noqa: E402

#: The database may hold so much of a running job's output beside what is on its way to the store.
KEPT_MIB = 64
GROWTH_MIB = 4 * KEPT_MIB
#: A post that takes longer than this would make runners buffer.
SLOWEST_POST_S = 10.0
_PIECE = 32 * 1024

_MAKE = """
import json
from apps.clusters.models import Cluster
from apps.checkpoints.models import CheckpointSeries
from apps.core import clock
from apps.jobs.ingest import ingest_token
from apps.jobs.models import Attempt, Job
from apps.teams.models import Team
team, _ = Team.objects.get_or_create(slug="bench", defaults={"name": "Bench"})
cluster = Cluster.objects.create(name="bench", api_url="http://127.0.0.1:9", user_name="qd", token_ref="env:X",
                                 working_root="/tmp", phase="UNREACHABLE")
series = CheckpointSeries.objects.create(team=team, name="ranks", job_uid="job_bench")
job = Job.objects.create(uid="job_bench", team=team, owner_name="bench", cluster=cluster, name="ranks", script="true",
                         nodes=13, gpus_per_node=8, time_limit_min=600, usd_per_gpu_hour=0, series=series,
                         phase="RUNNING", started_at=clock.now())
attempt = Attempt.objects.create(uid="att_bench", job=job, number=1, phase="RUNNING", started_at=clock.now())
print(json.dumps({"attempt": attempt.uid, "token": ingest_token(attempt.uid)}))
"""

_CHECK = """
import gzip, json, zlib
from django.conf import settings
from apps.jobs.log_models import LogSegment
from apps.jobs.models import LogChunk, RunnerStream
seen, holes, stored, here = {}, [], 0, 0
def take(runner, offset, size, text):
    end, crc = seen.get(runner, (0, 0))
    if offset != end:
        holes.append([runner, end, offset])
    seen[runner] = (offset + size, zlib.crc32(text.encode(), crc))
for segment in LogSegment.objects.order_by("first_id"):
    if segment.stored_at is None:
        continue
    body = (settings.CONFIG.var_dir / "object-store" / segment.key).read_bytes()
    stored += len(body)
    for line in gzip.decompress(body).splitlines():
        told = json.loads(line)
        take(told["runner"], told["offset"], told["size"], told["text"])
rows = LogChunk.objects.order_by("id").values_list("runner_id", "offset", "size", "text")
for runner, offset, size, text in rows.iterator(500):
    here += size
    take(runner, offset, size, text)
print(json.dumps({"seen": seen, "holes": holes[:5], "stored": stored, "here": here,
                  "segments": LogSegment.objects.count(),
                  "received": sum(RunnerStream.objects.values_list("log_bytes", flat=True))}))
"""


class Rank(threading.Thread):
    """One rank: prints so many bytes a second and posts them as its runner would, as often as the portal says."""

    def __init__(self, number: int, portal_url: str, told: dict[str, str], rate: int, until: float) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.url = urlsplit(portal_url)
        self.path = f"/api/v1/ingest/attempts/{told['attempt']}/events"
        self.headers = {"Authorization": f"Bearer {told['token']}", "Content-Type": "application/json"}
        self.rate = rate
        self.until = until
        self.took: list[float] = []
        self.offset = self.crc = self.seq = 0
        self.waiting: list[dict[str, Any]] = []
        self.failures = 0
        self.pause_s = random.uniform(0.2, 5.0)

    def run(self) -> None:
        """Until the time is over and everything is acknowledged."""
        last = time.monotonic()
        step = 0
        while True:
            now = time.monotonic()
            is_over = now >= self.until
            bytes_due = int((min(now, self.until) - last) * self.rate)
            last = now
            text = ""
            while len(text) < bytes_due:
                step += 1
                text += f"[rank {self.number}] step {step} loss={4 / (step + 1):.6f} grad_norm={step % 7 / 3:.4f}\n"
            for start in range(0, len(text), _PIECE):
                self._event(text[start : start + _PIECE])
            if self.waiting and not self._post():
                self.failures += 1
                time.sleep(1.0)
                continue
            if is_over:
                return
            time.sleep(min(self.pause_s, max(0.05, self.until - time.monotonic())))

    def _event(self, text: str) -> None:
        self.seq += 1
        data = {"stream": "stdout", "offset": self.offset, "size": len(text), "text": text}
        self.waiting.append({"seq": self.seq, "kind": "log", "data": data})
        self.offset += len(text)
        self.crc = zlib.crc32(text.encode(), self.crc)

    def _post(self) -> bool:
        batch = self.waiting[:7]
        runner = {"id": f"rank-{self.number}", "role": "rank", "rank": self.number, "node": f"p5-{self.number // 8}"}
        body = json.dumps({"runner": runner, "events": batch})
        began = time.monotonic()
        try:
            connection = http.client.HTTPConnection(self.url.hostname or "", self.url.port, timeout=30)
            connection.request("POST", self.path, body=body, headers=self.headers)
            answer = connection.getresponse()
            told = json.loads(answer.read())
            connection.close()
            if answer.status != 200:
                return False
        except (OSError, ValueError, http.client.HTTPException):
            return False
        self.took.append(time.monotonic() - began)
        self.pause_s = float(told["next_post_s"])
        self.waiting = [e for e in self.waiting if e["seq"] > told["acknowledged_seq"]]
        return not self.waiting or self._post()


def database_mib(running: Portal) -> float:
    """The database with its journal, on disk."""
    return sum(path.stat().st_size for path in running.var.glob("*.sqlite3*")) / 2**20


def measure(minutes: float, ranks: int, rate: int) -> dict[str, Any]:
    """Run it on a fresh portal."""
    with (
        tempfile.TemporaryDirectory(prefix="quarterdeck-logs-") as folder,
        portal(Path(folder), extra={"QD_LOG_KEEP_MIB": str(KEPT_MIB)}) as running,
    ):
        told = json.loads(running.manage("shell", "-v", "0", "-c", _MAKE).splitlines()[-1])
        before = database_mib(running)
        until = time.monotonic() + minutes * 60
        threads = [Rank(number, running.url, told, rate, until) for number in range(ranks)]
        for thread in threads:
            thread.start()
        most = before
        for thread in threads:
            while thread.is_alive():
                thread.join(1.0)
                most = max(most, database_mib(running))
        found = json.loads(running.manage("shell", "-v", "0", "-c", _CHECK).splitlines()[-1])
    sent = sum(t.offset for t in threads)
    took = [s for t in threads for s in t.took]
    whole = {f"rank-{t.number}": [t.offset, t.crc] for t in threads}
    same = found["seen"] == whole and not found["holes"]
    middle = statistics.median(took)
    p95 = statistics.quantiles(took, n=20)[-1] if len(took) > 20 else max(took)
    grew = most - before
    rows = [
        ["ranks × bytes/s × minutes", f"{ranks} × {rate:,} × {minutes:g}", "", None],
        ["sent", f"{sent / 2**20:,.0f} MiB in {len(took):,} posts", "", None],
        ["stored, byte for byte", f"{found['received'] / 2**20:,.0f} MiB", "all of it", same],
        ["posts a second", f"{len(took) / (minutes * 60):.1f}", "", None],
        [
            "a post takes, median / p95",
            f"{middle:.3f} s / {p95:.3f} s",
            f"{SLOWEST_POST_S:g} s",
            p95 < SLOWEST_POST_S,
        ],
        ["posts that were repeated", f"{sum(t.failures for t in threads):,}", "", None],
        ["database grew by at most", f"{grew:,.0f} MiB", f"{GROWTH_MIB} MiB", grew < GROWTH_MIB],
        ["still in it at the end", f"{found['here'] / 2**20:,.0f} MiB", "", None],
        ["in the object store", f"{found['stored'] / 2**20:,.1f} MiB in {found['segments']} objects", "", None],
    ]
    return {"rows": rows, "ok": all(row[3] is not False for row in rows)}


def show(found: dict[str, Any]) -> None:
    """Print the table."""
    width = max(len(row[0]) for row in found["rows"])
    for what, figure, bound, holds in found["rows"]:
        print(f"{what:<{width}}  {figure:<34}  {bound:<12}  {'' if holds is None else 'holds' if holds else 'MISSED'}")


def main(minutes: float = 10, ranks: int = 100, rate: int = 10_000, *, quiet: bool = False) -> dict[str, Any]:
    """Measure; ``{"rows": [[what, figure, bound, holds]…], "ok": bool}``."""
    found = measure(minutes, ranks, rate)
    if not quiet:
        show(found)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--ranks", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=10_000)
    options = parser.parse_args()
    sys.exit(0 if main(options.minutes, options.ranks, options.bytes)["ok"] else 1)
