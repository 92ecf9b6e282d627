#!/usr/bin/env python3
"""Run a job's command unchanged while reporting its output, progress, checkpoints and end to the portal.

    python3 -I quarterdeck_runner.py [--role batch|node] -- COMMAND [ARGUMENT...]
    python3 -I quarterdeck_runner.py --role node          only say that this node lives, until SIGTERM
    srun python3 -I "$QD_RUNNER" --role rank -- COMMAND   each rank's output apart: rank 0 into the job's output as
                                                          ever, every other one into its own file and its own log
    python3 -I quarterdeck_runner.py --drain SPOOL_DIR

-I because a job's PYTHONPATH may hold a module named like one of the standard library. One file, Python 3.8 or later,
standard library only: it is copied to the job's nodes. Its one rule: the job comes first. Output passes through byte
for byte, signals are forwarded, the command's end is the runner's end, and no fault of the portal, the network, the
disk or of this file stops or slows the command.

Processes and threads
    main thread   starts the command, forwards signals, waits; touches no disk and no network
    pump x 2      pipe -> own stdout/stderr -> memory (bounded)
    scribe        memory -> spool on disk; finds progress; heartbeats
    watcher       looks at the checkpoint folders once a second
    poster        spool -> portal, in order, until acknowledged
    guardian      a forked process that holds the pipes too. If the runner is killed (kill -9), it goes on passing the
                  command's output through, so the command lives on and dies of no SIGPIPE; its exit code is then lost
                  to the caller, and `--drain` can post what the spool holds. Also a witness: a signal that reaches
                  it was sent to the whole process group, so the command has it already and gets no second copy.

Environment
    QD_INGEST_URL, QD_INGEST_TOKEN   where to post (full URL) and the bearer token; without a URL the command is exec'd
    QD_ATTEMPT                       uid of the attempt
    QD_SPOOL_DIR                     default $SLURM_SUBMIT_DIR/.quarterdeck/<attempt>/spool, else a temporary folder
    QD_SPOOL_MAX_BYTES               default 268435456; beyond it the oldest log events give way to a counted `gap`
    QD_CHECKPOINT_DIR                folders to watch, ':' between them; default ./checkpoints
    QD_RANKS                         ranks to report, such as 1-7,64; default all. Every rank has its file all the same
    QD_RANK_DIR                      folder of those files; default $QD_WORKING_DIRECTORY/ranks/<attempt>
    QD_FLUSH_S                       how long to go on posting after the command's end, default 30
    QD_HEARTBEAT_S, QD_POST_INTERVAL_S, QD_CA_FILE   default 10, 1, the system's certificates
"""
# ruff: noqa: PTH100, PTH103, PTH105, PTH108, PTH109, PTH110, PTH112, PTH113, PTH116, PTH118, PTH119, PTH120, PTH123
# ruff: noqa: PTH202, PTH208, UP031
# os.path is meant: the spool works with descriptors and names, and the text of paths is what the portal is told.

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import json
import math
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

VERSION = "1"
LOG_EVENT_BYTES = 32 * 1024
POST_BYTES = 256 * 1024 - 2048  # leaves room for the envelope
POST_EVENTS = 500
POST_TIMEOUT_S = 10.0
BACKOFF_MAX_S = 30.0
MEMORY_BYTES = 8 * 1024 * 1024  # of unspooled output per stream, and of events while the disk refuses writes
SEGMENT_BYTES = 1024 * 1024
LISTING_FILES = 5000
LISTING_BYTES = 200 * 1024  # one listing must fit one post
DROPPABLE = ("log", "gap", "heartbeat")
FINAL_STATUSES = (401, 403, 404, 410)
FORWARDED = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
FORWARDED.append(signal.SIGCONT)


def env_number(name: str, default: float) -> float:
    """A non-negative number from the environment; nonsense counts as absent."""
    try:
        value = float(os.environ.get(name, ""))
    except ValueError:
        return default
    return value if math.isfinite(value) and value >= 0 else default


def utc(at: float | None = None) -> str:
    """Seconds since the epoch (default: now) as `2026-01-02T03:04:05.678Z`."""
    at = time.time() if at is None else at
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + ".%03dZ" % (int(at * 1000) % 1000)


class Notes:
    """The runner's own log, in the spool folder: at most 1 MiB, and never an exception."""

    def __init__(self) -> None:
        self.path = ""
        self.written = 0

    def __call__(self, message: str) -> None:
        line = f"{utc()} {message}\n".encode("utf-8", "replace")
        if not self.path or self.written + len(line) > 1024 * 1024:
            return
        try:
            with open(self.path, "ab") as file:
                file.write(line)
            self.written += len(line)
        except OSError:
            pass


note = Notes()


def write_atomically(path: str, content: bytes) -> None:
    """Replace `path` by `content` so that a crash leaves the old or the new, never a part. Raises OSError."""
    temporary = path + ".tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_fully(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)


def write_fully(descriptor: int, data: bytes) -> None:
    """Write all of `data`, waiting where the descriptor is non-blocking. Raises OSError."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [], 1.0)


# ---------------------------------------------------------------------------------------------------------------------
# The spool
# ---------------------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One event as it lies in the spool; `raw` is its JSON without the newline."""

    seq: int
    kind: str
    raw: bytes


def parse_lines(content: bytes) -> list[Line]:
    """The whole events of a segment; a line torn by a crash or a full disk is passed over."""
    lines = []
    for raw in content.split(b"\n"):
        try:
            event = json.loads(raw.decode("utf-8")) if raw else None
            if event:
                lines.append(Line(int(event["seq"]), str(event["kind"]), raw))
        except (ValueError, KeyError, TypeError):
            continue
    return lines


def encode(seq: int, at: str, kind: str, data: dict[str, Any]) -> Line:
    """An event as one line of JSON; file names that are no UTF-8 keep a `?` for each odd byte."""
    text = json.dumps({"seq": seq, "at": at, "kind": kind, "data": data}, ensure_ascii=False, separators=(",", ":"))
    return Line(seq, kind, text.encode("utf-8", "replace"))


def condense(lines: list[Line]) -> list[Line]:
    """Drop what may be dropped, leaving one `gap` event in its place that counts it and names the byte ranges."""
    gap: dict[str, Any] = {"reason": "spool_full", "dropped_events": 0, "dropped_bytes": 0, "streams": {}}
    kept, last = [], None
    for line in lines:
        if line.kind not in DROPPABLE:
            kept.append(line)
            continue
        event = last = json.loads(line.raw.decode("utf-8"))
        data = event["data"]
        if line.kind == "log":
            lost = {data["stream"]: {"offset": data["offset"], "end": data["offset"] + data["size"]}}
            gap["dropped_events"] += 1
            gap["dropped_bytes"] += data["size"]
        elif line.kind == "gap":
            lost = data["streams"]
            gap["dropped_events"] += data["dropped_events"]
            gap["dropped_bytes"] += data["dropped_bytes"]
        else:
            lost = {}
        for stream, span in lost.items():
            known = gap["streams"].setdefault(stream, dict(span))
            known["offset"] = min(known["offset"], span["offset"])
            known["end"] = max(known["end"], span["end"])
    if last is not None and gap["dropped_events"]:
        kept.append(encode(last["seq"], last["at"], "gap", gap))
        kept.sort(key=lambda line: line.seq)
    return kept


class Segment:
    """A run of events: a file at `path`, or `lines` in memory while the disk refuses writes."""

    def __init__(self, first: int, path: str = "", lines: list[Line] | None = None) -> None:
        self.path = path
        self.lines = lines
        self.last = first
        self.size = 0
        self.condensed = False


class Spool:
    """Events on disk from their making until the portal has acknowledged them; safe for threads.

    A folder of `events-<first seq>.jsonl` segments, `acked.json` (written by rename) and `runner.json` (who wrote it).
    """

    def __init__(self, bound_bytes: int) -> None:
        self.bound = bound_bytes
        self.segment_bytes = max(4096, min(SEGMENT_BYTES, bound_bytes // 8))
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.ready = threading.Event()
        self.closed = False
        self.folder = ""
        self.segments: list[Segment] = []
        self.descriptor = -1
        self.descriptor_segment: Segment | None = None
        self.disk_retry_at = 0.0
        self.lock_descriptor = -1
        self.last_seq = 0
        self.acked = 0
        self.identity: dict[str, Any] = {}

    def create(self, parents: Iterable[str], identity: dict[str, Any]) -> None:
        """Make this runner's own folder in the first of `parents` that takes it; with none, events stay in memory."""
        self.identity = identity
        for parent in parents:
            folder = os.path.join(parent, identity["id"])
            try:
                os.makedirs(folder, mode=0o700)
                write_atomically(os.path.join(folder, "runner.json"), json.dumps(identity).encode())
            except OSError:
                continue
            self.folder = folder
            note.path = os.path.join(folder, "runner.log")
            self.take_lock()
            break
        self.ready.set()

    def load(self, folder: str) -> None:
        """Take up a spool that an earlier runner left. Raises OSError or ValueError where it is none."""
        with open(os.path.join(folder, "runner.json"), "rb") as file:
            self.identity = json.loads(file.read().decode("utf-8"))
        self.folder = folder
        note.path = os.path.join(folder, "runner.log")
        try:
            with open(os.path.join(folder, "acked.json"), "rb") as file:
                self.acked = int(json.loads(file.read().decode("utf-8"))["acknowledged_seq"])
        except FileNotFoundError:
            pass
        for name in sorted(os.listdir(folder)):
            if not re.match(r"events-\d+\.jsonl$", name):
                continue
            segment = Segment(0, os.path.join(folder, name))
            lines = self.read(segment)
            if lines:
                segment.last = max(line.seq for line in lines)
                segment.size = os.path.getsize(segment.path)
                self.segments.append(segment)
                self.last_seq = max(self.last_seq, segment.last)
        self.closed = True
        self.ready.set()

    def take_lock(self) -> bool:
        """False where a living runner holds this spool; a file system without locks counts as free."""
        try:
            self.lock_descriptor = os.open(os.path.join(self.folder, "lock"), os.O_WRONLY | os.O_CREAT, 0o600)
            fcntl.flock(self.lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        return True

    def append(self, kind: str, data: dict[str, Any], at: float | None = None) -> None:
        with self.lock:
            if self.closed:
                return
            self.last_seq += 1
            line = encode(self.last_seq, utc(at), kind, data)
            if not self.write_to_disk(line):
                if not self.segments or self.segments[-1].lines is None or self.segments[-1].condensed:
                    self.segments.append(Segment(line.seq, lines=[]))
                segment = self.segments[-1]
                assert segment.lines is not None
                segment.lines.append(line)
                segment.last, segment.size = line.seq, segment.size + len(line.raw)
                if segment.size > MEMORY_BYTES // 8 and len(segment.lines) > 1:
                    self.segments.append(Segment(line.seq, lines=[]))
            for in_memory, bound in ((False, self.bound), (True, MEMORY_BYTES)):
                while self.total(in_memory) > bound and self.shed(in_memory):
                    pass
            self.changed.notify_all()

    def close(self) -> None:
        """No event may follow: called after `exit`."""
        with self.lock:
            self.closed = True
            if self.descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.fsync(self.descriptor)
            self.changed.notify_all()

    def write_to_disk(self, line: Line) -> bool:
        if not self.folder or time.monotonic() < self.disk_retry_at:
            return False
        raw = line.raw + b"\n"
        try:
            if self.descriptor_segment is None or self.descriptor_segment.size >= self.segment_bytes:
                self.rotate()
                path = os.path.join(self.folder, "events-%012d.jsonl" % line.seq)
                self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
                self.descriptor_segment = Segment(line.seq, path)
                self.segments.append(self.descriptor_segment)
            segment = self.descriptor_segment
            try:
                write_fully(self.descriptor, raw)
            except OSError:
                os.ftruncate(self.descriptor, segment.size)
                raise
            segment.last, segment.size = line.seq, segment.size + len(raw)
            if line.kind not in DROPPABLE and line.kind != "progress":
                os.fsync(self.descriptor)  # a node that dies now must not take the news of a checkpoint with it
        except OSError as error:
            note(f"spool: cannot write ({error}); keeping events in memory, next try in 5 s")
            self.disk_retry_at = time.monotonic() + 5.0
            # The line may be whole on disk and in memory when only fsync failed: same seq, so it is sent once.
            self.rotate()
            return False
        return True

    def rotate(self) -> None:
        segment, self.descriptor_segment = self.descriptor_segment, None
        if segment is not None and segment.size == 0:
            self.remove(segment)
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)

    def remove(self, segment: Segment) -> None:
        if segment in self.segments:
            self.segments.remove(segment)
        if segment.path:
            with contextlib.suppress(OSError):
                os.unlink(segment.path)

    def total(self, in_memory: bool) -> int:
        return sum(segment.size for segment in self.segments if (segment.lines is not None) == in_memory)

    def shed(self, in_memory: bool) -> bool:
        """Condense the oldest segment that has not been; False when there is none left to condense."""
        fresh = [s for s in self.segments if not s.condensed and (s.lines is not None) == in_memory and s.size]
        if not fresh:
            return False
        segment, position = fresh[0], self.segments.index(fresh[0])
        if segment is self.descriptor_segment:
            self.rotate()
        kept = condense(self.read(segment))
        before = self.segments[position - 1] if position else None
        if before and before.condensed and before.size < self.segment_bytes // 2:
            kept = condense(self.read(before) + kept)  # one small file for a long outage, not thousands
            self.replace(before, kept)
            self.remove(segment)
        else:
            self.replace(segment, kept)
        return True

    def replace(self, segment: Segment, kept: list[Line]) -> None:
        segment.condensed = True
        if kept:
            segment.last = kept[-1].seq
        content = b"".join(line.raw + b"\n" for line in kept)
        segment.size = len(content)
        if segment.lines is None:
            try:
                write_atomically(segment.path, content)
                return
            except OSError as error:
                note(f"spool: cannot condense {segment.path} ({error}); holding it in memory")
                with contextlib.suppress(OSError):
                    os.unlink(segment.path)
                segment.path = ""
        segment.lines = kept

    def read(self, segment: Segment) -> list[Line]:
        if segment.lines is not None:
            return segment.lines
        try:
            with open(segment.path, "rb") as file:
                return parse_lines(file.read())
        except FileNotFoundError:
            note(f"spool: {segment.path} was removed by someone else; its events are lost")
            return []

    def batch(self, events: int, size: int, skip: set[int]) -> list[Line]:
        """The next unacknowledged events in order, at least one if there is one. Raises OSError."""
        with self.lock:
            chosen: list[Line] = []
            used, after = 0, self.acked
            for segment in self.segments:
                if segment.last <= after:
                    continue
                for line in self.read(segment):
                    if line.seq <= after or line.seq in skip:
                        continue
                    if chosen and (used + len(line.raw) + 1 > size or len(chosen) >= events):
                        return chosen
                    chosen.append(line)
                    used, after = used + len(line.raw) + 1, line.seq
            return chosen

    def acknowledge(self, seq: int) -> None:
        """Forget all up to `seq`."""
        with self.lock:
            if seq <= self.acked:
                return
            self.acked = seq
            for segment in [s for s in self.segments if s.last <= seq]:
                if segment is self.descriptor_segment and not self.closed and segment.size < self.segment_bytes // 4:
                    continue  # no new file for every post
                if segment is self.descriptor_segment:
                    self.rotate()
                self.remove(segment)
            if self.folder:
                try:
                    content = json.dumps({"acknowledged_seq": seq}).encode()
                    write_atomically(os.path.join(self.folder, "acked.json"), content)
                except OSError as error:
                    note(f"spool: cannot save the acknowledged position ({error})")

    def discard_if_done(self) -> None:
        """Remove the folder of a spool with nothing left to post and nothing to tell."""
        with self.lock:
            if self.folder and self.closed and self.acked >= self.last_seq and not os.path.exists(note.path):
                shutil.rmtree(self.folder, ignore_errors=True)


# ---------------------------------------------------------------------------------------------------------------------
# Output: bytes to log events
# ---------------------------------------------------------------------------------------------------------------------


def whole_characters(data: bytes, limit: int) -> int:
    """The largest n <= limit such that data[:n] ends between two UTF-8 characters."""
    end = min(len(data), limit)
    for back in range(1, min(3, end) + 1):
        byte = data[end - back]
        if byte & 0xC0 == 0x80:
            continue
        need = 4 if 0xF0 <= byte < 0xF8 else 3 if 0xE0 <= byte < 0xF0 else 2 if 0xC0 <= byte < 0xE0 else 1
        return end - back if need > back else end
    return end


class Tap:
    """The bytes of one stream between pump and scribe; when the scribe is stuck the oldest go, counted."""

    def __init__(self, stream: str, urgent: threading.Event) -> None:
        self.stream = stream
        self.urgent = urgent
        self.lock = threading.Lock()
        self.chunks: collections.deque[bytes] = collections.deque()
        self.waiting = 0
        self.lost = 0
        self.first_at = 0.0
        self.offset = 0
        self.carry = b""

    def feed(self, data: bytes) -> None:
        with self.lock:
            if not self.chunks:
                self.first_at = time.time()
            if self.chunks and len(self.chunks[-1]) < 4096:
                self.chunks[-1] += data  # a byte at a time must not become a million objects
            else:
                self.chunks.append(data)
            self.waiting += len(data)
            while self.waiting > MEMORY_BYTES:
                gone = len(self.chunks.popleft())
                self.waiting -= gone
                self.lost += gone
            if self.waiting >= LOG_EVENT_BYTES:
                self.urgent.set()

    def take(self, final: bool) -> Iterator[tuple[str, dict[str, Any], float]]:
        """Everything waiting, as (kind, data, at) of `log` and `gap` events; half a character waits for its rest."""
        with self.lock:
            data, lost, at = b"".join(self.chunks), self.lost, self.first_at
            self.chunks.clear()
            self.waiting = self.lost = 0
        if lost:
            if self.carry:
                yield self.event(self.carry, at)
                self.carry = b""
            span = {self.stream: {"offset": self.offset, "end": self.offset + lost}}
            yield "gap", {"reason": "slow_spool", "dropped_events": 0, "dropped_bytes": lost, "streams": span}, at
            self.offset += lost
        data = self.carry + data
        position = 0
        while position < len(data):
            window = data[position : position + LOG_EVENT_BYTES]
            more = position + len(window) < len(data)
            end = len(window) if final and not more else whole_characters(window, LOG_EVENT_BYTES)
            if more:
                end = (window.rfind(b"\n", 0, end) + 1) or end  # split between lines where there are lines
            if end == 0:
                break
            yield self.event(window[:end], at)
            position += end
        self.carry = data[position:]

    def event(self, data: bytes, at: float) -> tuple[str, dict[str, Any], float]:
        text = data.decode("utf-8", "replace").replace("\0", "")
        described = {"stream": self.stream, "offset": self.offset, "size": len(data), "text": text}
        self.offset += len(data)
        return "log", described, at or time.time()


# ---------------------------------------------------------------------------------------------------------------------
# Progress: lines to numbers. A recogniser takes one clean line and returns the keys it found, or None.
# ---------------------------------------------------------------------------------------------------------------------

NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
ALIASES = {
    "step": ("step", "global_step", "iteration", "iter", "global_steps"),
    "total_steps": ("total_steps", "max_steps", "num_steps", "train_iters"),
    "loss": ("loss", "train_loss", "lm_loss"),
    "tokens_per_s": ("tokens_per_s", "tokens_per_second", "tokens_per_sec", "tps"),
    "tokens_per_gpu_s": ("tokens_per_gpu_s", "tokens_per_second_per_gpu", "tokens_per_sec_per_gpu"),
    "samples_per_s": ("samples_per_s", "samples_per_second", "samples_per_sec"),
    "learning_rate": ("learning_rate", "lr"),
    "epoch": ("epoch",),
    "eta_s": ("eta_s", "eta_seconds", "eta"),
    "grad_norm": ("grad_norm", "gradient_norm"),
}
WHOLE = ("step", "total_steps")
BARE = {"step", "total_steps", "eta_s", "epoch"}
Found = Any  # dict[str, float] or None: the recognisers' result


def number(value: Any) -> float | None:
    """A finite number from a number or from digits as printed (`1,234`, `5e-05`), else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        result = float(value.replace(",", "")) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def tidy(raw: dict[str, Any]) -> dict[str, float]:
    """Only the keys that hold usable numbers; steps are whole and not negative."""
    result: dict[str, float] = {}
    for key, value in raw.items():
        usable = number(value)
        if usable is None:
            continue
        if key in WHOLE:
            if usable < 0 or usable != int(usable) or usable > 1e15:
                continue
            usable = int(usable)
        result[key] = usable
    return result


def fields(line: str, **patterns: str) -> dict[str, Any]:
    """For each key the first group of its pattern, where it matches."""
    result = {}
    for key, pattern in patterns.items():
        match = re.search(pattern.replace("NUMBER", NUMBER), line, re.IGNORECASE)
        if match:
            result[key] = match.group(1)
    return result


def json_line(line: str) -> Found:
    """`{"step": 3, "loss": 2.1}`, with aliases, also behind a short prefix such as `0: ` or a logger's."""
    start = line.find("{")
    if start < 0 or start > 100 or not line.endswith("}") or '"' not in line:
        return None
    try:
        content = json.loads(line[start:])
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    lowered = {str(key).lower(): value for key, value in content.items() if not isinstance(value, str)}
    raw = {key: next((lowered[a] for a in aliases if a in lowered), None) for key, aliases in ALIASES.items()}
    found = tidy(raw)
    if "step" not in found:
        return None
    known = {alias for aliases in ALIASES.values() for alias in aliases}
    others = [key for key in lowered if key not in known and re.match(r"[a-z][a-z0-9_./-]{0,39}$", key)]
    for key in sorted(others)[:20]:  # each further figure is a curve of its own
        figure = number(lowered[key])
        if figure is not None:
            found[key] = figure
    if isinstance(lowered.get("model"), dict):
        found["model"] = lowered["model"]  # its size, for the utilisation
    return found


def hf_trainer(line: str) -> Found:
    """`{'loss': 2.3, 'grad_norm': 1.1, 'learning_rate': 5e-05, 'epoch': 0.1}` of the Hugging Face Trainer."""
    if "{'loss':" not in line or not line.endswith("}"):
        return None
    key = r"'%s': '?(NUMBER)"
    names = ("loss", "grad_norm", "learning_rate", "epoch")
    return tidy(fields(line, **{name: key % name for name in names})) or None


TQDM = re.compile(
    r"^(?P<label>[A-Za-z][^|%]{0,40}?)?\s*\d{1,3}%\|[^|]{0,300}\|\s*"
    r"(?P<step>\d+)/(?P<total>\d+)\s*\[(?P<spent>[\d:]+)<(?P<left>[\d:?]+),\s*[\d.?]+\s*(?:it/s|s/it)(?P<tail>[^\]]*)\]?"
)


def tqdm_bar(line: str) -> Found:
    """` 12%|█▏  | 120/1000 [00:10<01:15, 11.6it/s, loss=2.3]`: a bar without a label, or one that says train/epoch."""
    match = TQDM.match(line)
    if not match:
        return None
    label = (match.group("label") or "").strip().lower()
    if label and not re.match(r"(train|epoch|step|iter)", label):
        return None
    found: dict[str, Any] = {"step": match.group("step"), "total_steps": match.group("total")}
    found.update(fields(label, epoch=r"^epoch\D{0,3}(\d+)"))
    if "?" not in match.group("left"):
        seconds = 0
        for part in match.group("left").split(":"):
            seconds = seconds * 60 + int(part or 0)
        found["eta_s"] = seconds
    found.update(fields(match.group("tail"), loss=r"\b(?:train_)?loss=(NUMBER)", learning_rate=r"\blr=(NUMBER)"))
    return tidy(found)


def megatron(line: str) -> Found:
    """` iteration      100/  500000 | ... | lm loss: 1.23E+00 | ...` of Megatron-LM."""
    match = re.search(r"\biteration\s+(\d+)/\s*(\d+)\s*\|", line)
    if not match:
        return None
    found: dict[str, Any] = {"step": match.group(1), "total_steps": match.group(2)}
    found.update(
        fields(
            line,
            loss=r"\blm loss:\s*(NUMBER)",
            learning_rate=r"\blearning rate:\s*(NUMBER)",
            grad_norm=r"\bgrad norm:\s*(NUMBER)",
        )
    )
    timing = tidy(fields(line, ms=r"elapsed time per iteration \(ms\):\s*(NUMBER)", size=r"batch size:\s*(NUMBER)"))
    if timing.get("ms", 0) > 0:
        found["eta_s"] = max(0, int(match.group(2)) - int(match.group(1))) * timing["ms"] / 1000
        if "size" in timing:
            found["samples_per_s"] = timing["size"] / timing["ms"] * 1000
    return tidy(found)


def torchtitan(line: str) -> Found:
    """`step: 10  loss:  8.1234  grad_norm: 1.2  memory: ...  tps: 1,234  ...`; tps is per device, as printed."""
    if not re.search(r"\bstep:\s*\d+\s+loss:", line):
        return None
    return tidy(
        fields(
            line,
            step=r"\bstep:\s*(\d+)",
            loss=r"\bloss:\s*(NUMBER)",
            grad_norm=r"\bgrad_norm:\s*(NUMBER)",
            tokens_per_gpu_s=r"\btps:\s*(NUMBER)",
        )
    )


def imagenet_example(line: str) -> Found:
    """`Epoch: [0][  10/5005]  Time ...  Loss 6.9e+00 (7.0e+00)` of PyTorch's ImageNet example."""
    match = re.search(r"^Epoch:\s*\[(\d+)\]\[\s*(\d+)/(\d+)\]", line)
    if not match:
        return None
    epoch, position, length = (int(group) for group in match.groups())
    return tidy({"epoch": epoch, "step": epoch * length + position, **fields(line, loss=r"\bLoss\s+(NUMBER)")})


def mnist_example(line: str) -> Found:
    """`Train Epoch: 1 [640/60000 (1%)]  Loss: 2.30`: samples, not steps, so only the epoch's fraction and the loss."""
    match = re.search(r"^Train Epoch:\s*(\d+)\s*\[(\d+)/(\d+)", line)
    if not match or not int(match.group(3)):
        return None
    epoch = max(0, int(match.group(1)) - 1) + int(match.group(2)) / int(match.group(3))
    return tidy({"epoch": round(epoch, 4), **fields(line, loss=r"\bloss:\s*(NUMBER)")})


def step_and_loss(line: str) -> Found:
    """`Epoch 1 Step 20 loss=2.3`, `iter 100: loss 2.3, time 12 ms`, `[step 5/100] train_loss: 1.0 lr: 1e-4`."""
    found = fields(
        line,
        step=r"\b(?:global[_ ])?(?:step|iter|iteration)s?\b\s*[:=#]?\s*\[?(\d+)",
        loss=r"(?<!val )(?<!val_)(?<!eval )(?<!eval_)(?<!test )(?<!test_)\b(?:train[_ ]|lm )?loss\b\s*[:=]?\s*(NUMBER)",
        total_steps=r"\b(?:step|iter|iteration)s?\b\s*[:=#]?\s*\[?\d+\s*/\s*(\d+)",
        epoch=r"\bepoch\b\s*[:=#]?\s*\[?(NUMBER)",
        learning_rate=r"\b(?:lr|learning[_ ]rate)\b\s*[:=]?\s*(NUMBER)",
        grad_norm=r"\bgrad[_ ]norm\b\s*[:=]?\s*(NUMBER)",
        tokens_per_s=r"\b(?:tokens/s(?:ec)?|tok/s|tokens_per_s(?:ec(?:ond)?)?)\b\s*[:=]?\s*(NUMBER)",
        samples_per_s=r"\b(?:samples/s(?:ec)?|samples_per_s(?:ec(?:ond)?)?)\b\s*[:=]?\s*(NUMBER)",
    )
    tidied = tidy(found)
    return tidied if "step" in tidied and "loss" in tidied else None


RECOGNISERS = (
    json_line,
    hf_trainer,
    tqdm_bar,
    megatron,
    torchtitan,
    imagenet_example,
    mnist_example,
    step_and_loss,
)
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
RANK_PREFIX = re.compile(r"^\s*(?:\[?(?:rank|default)?\s?\d+\]?:\s*)")
HINT = re.compile(r"step|iter|loss|epoch|%\|", re.IGNORECASE)
LINE_CHARACTERS = 8192  # a longer line is no progress line


class Progress:
    """Finds the newest progress in a stream of text; gives out at most one event per half second."""

    def __init__(self) -> None:
        self.tails = {"stdout": "", "stderr": ""}
        self.lines: collections.deque[str] = collections.deque(maxlen=400)  # bounds the work of one tick
        self.measured: dict[str, float] = {}
        self.bare: dict[str, float] = {}
        self.bar: dict[str, float] = {}
        self.structured = False
        self.given_at = -math.inf

    def feed(self, stream: str, text: str) -> None:
        parts = re.split(r"[\r\n]", self.tails[stream] + text)
        self.tails[stream] = parts.pop()[: LINE_CHARACTERS + 1]
        for part in parts:
            if len(part) <= LINE_CHARACTERS and HINT.search(part):
                self.lines.append(part)

    def read(self) -> None:
        while self.lines:
            line = RANK_PREFIX.sub("", ESCAPES.sub("", self.lines.popleft())).strip()
            for recognise in RECOGNISERS:
                found = recognise(line)
                if found:
                    self.consider(recognise, found)
                    break

    def consider(self, recogniser: Callable[[str], Found], found: dict[str, float]) -> None:
        if recogniser is json_line:
            self.structured = True
        elif self.structured:
            return  # a program that prints JSON knows its step better than its progress bars do
        if recogniser is tqdm_bar:
            total = self.bar.get("total_steps", 0)
            if total not in (0, found["total_steps"]) and self.bar["step"] < total:
                return  # an evaluation's bar inside the training's
            self.bar = found
        if recogniser is hf_trainer and "step" in self.bar:
            found = {**{key: self.bar[key] for key in WHOLE if key in self.bar}, **found}
        if set(found) <= BARE:
            if found.get("step") == self.measured.get("step", -1):
                self.measured.update(found)
            else:
                self.bare = found
        else:
            if self.bare.get("step") == found.get("step", -1):
                found = {**self.bare, **found}
            self.bare = {}
            self.measured = found

    def take(self, final: bool = False) -> list[dict[str, float]]:
        """The event that is due, if any; measurements go before a mere step. At the end, all that is left."""
        if final:
            for stream, tail in self.tails.items():
                self.tails[stream] = ""
                if len(tail) <= LINE_CHARACTERS and HINT.search(tail):
                    self.lines.append(tail)
        self.read()
        if not final and time.monotonic() - self.given_at < 0.5:
            return []
        due = [found for found in (self.measured, self.bare) if found]
        due = due if final else due[:1]
        if due:
            self.given_at = time.monotonic()
        if self.measured:
            self.measured = {}
            self.bare = {} if final else self.bare
        else:
            self.bare = {}
        return due


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints: names, sizes, times, JSON and safetensors headers. Nothing is unpickled.
# ---------------------------------------------------------------------------------------------------------------------

CHECKPOINT_NAME = re.compile(r"^(?:step[-_]?|checkpoint-|global_step|iter_)(\d+)$")
MARKERS = (".metadata", ".metadata.tmp", "metadata.json", "common.pt", "trainer_state.json")


class Seen(NamedTuple):
    """The files below one checkpoint folder: (relative name, bytes, mtime in s), and the mtimes of its folders."""

    files: list[tuple[str, int, float]]
    folders: dict[str, int]


def look(folder: str) -> Seen:
    """List a checkpoint folder, at most four levels deep. Files that vanish meanwhile are passed over."""
    files: list[tuple[str, int, float]] = []
    folders: dict[str, int] = {}
    todo = [("", 0)]
    while todo:
        relative, depth = todo.pop()
        path = os.path.join(folder, relative) if relative else folder
        try:
            folders[path] = os.stat(path).st_mtime_ns
            with os.scandir(path) as entries:
                for entry in entries:
                    name = f"{relative}/{entry.name}" if relative else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if depth < 3:
                            todo.append((name, depth + 1))
                    elif entry.is_file():
                        status = entry.stat()
                        files.append((name, status.st_size, status.st_mtime))
        except OSError:
            continue
    files.sort(key=lambda file: (file[0] not in MARKERS and not file[0].endswith(".json"), file[0]))
    return Seen(files, folders)


def safetensors_whole(path: str, size: int) -> bool:
    """Whether the file is as long as its own header says."""
    with open(path, "rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            return False
        (length,) = struct.unpack("<Q", prefix)
        if length > min(size, 100 * 1024 * 1024):
            return False
        header = json.loads(file.read(length).decode("utf-8"))
    ends = [int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__"]
    return size == 8 + int(length) + max(ends, default=0)


def read_json(path: str) -> Any:
    """The JSON of a file, of which at most 64 MiB are read. Raises OSError or ValueError."""
    with open(path, "rb") as file:
        return json.loads(file.read(64 * 1024 * 1024).decode("utf-8"))


def checkpoint_facts(folder: str, files: list[tuple[str, int, float]]) -> dict[str, Any]:
    """What JSON, text and headers say of a checkpoint; a key is there only where it applies."""
    facts: dict[str, Any] = {}
    sizes = {name: size for name, size, _ in files}
    shards = [name for name in sizes if name.endswith(".distcp")]
    if shards or ".metadata" in sizes:
        facts["dcp_metadata_ok"] = sizes.get(".metadata", 0) > 0 and ".metadata.tmp" not in sizes
        facts["dcp_shards"] = len(shards)
    if "trainer_state.json" in sizes:
        try:
            state = read_json(os.path.join(folder, "trainer_state.json"))
            facts["trainer_state_ok"] = isinstance(state["global_step"], int)
            facts["trainer_state_step"] = state["global_step"] if facts["trainer_state_ok"] else None
        except (OSError, ValueError, KeyError, TypeError):
            facts["trainer_state_ok"] = False
    weights = [name for name in sizes if name.endswith(".safetensors")]
    indexes = [name for name in sizes if name.endswith(".safetensors.index.json")]
    if weights or indexes:
        try:
            wanted = {s for index in indexes for s in read_json(os.path.join(folder, index))["weight_map"].values()}
            missing = sorted(wanted - set(weights))
            broken = [name for name in weights if not safetensors_whole(os.path.join(folder, name), sizes[name])]
            facts["safetensors_ok"] = not missing and not broken
            if missing or broken:
                facts["safetensors_reason"] = f"missing: {missing[:5]}" if missing else f"wrong length: {broken[:5]}"
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
            facts["safetensors_ok"] = False
            facts["safetensors_reason"] = "unreadable header or index"
    if os.path.exists(folder + "-unfinished"):
        facts["unfinished_marker"] = True
    for tracker in ("latest_checkpointed_iteration.txt", "latest"):
        try:
            with open(os.path.join(os.path.dirname(folder), tracker), "rb") as file:
                facts["tracker_" + tracker.split(".")[0]] = file.read(200).decode("utf-8", "replace").strip()
        except OSError:
            continue
    return facts


class Known:
    """What the watcher remembers of one checkpoint folder; times are monotonic seconds."""

    def __init__(self) -> None:
        self.seen = Seen([], {})
        self.tracked = ""
        self.changed_at = 0.0
        self.told_at = -math.inf
        self.pause_s = 1.0
        self.listed_at = 0.0
        self.settled = False
        self.dirty = False


class Watcher:
    """Reports checkpoint folders as they appear, change, come to rest and go."""

    QUIET_S = 2.0

    def __init__(self, roots: list[str], emit: Callable[[str, dict[str, Any]], None]) -> None:
        self.roots = roots
        self.emit = emit
        self.known: dict[str, Known] = {}
        self.first = True

    def candidates(self) -> list[str]:
        """Checkpoint folders at most three levels under the roots."""
        found: list[str] = []
        todo = [(root, 0) for root in self.roots]
        for _ in range(2000):
            if not todo:
                break
            path, depth = todo.pop()
            try:
                with os.scandir(path) as entries:
                    inside = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            except OSError:
                continue
            if any(not folder and (name == ".metadata" or name.endswith(".distcp")) for name, folder in inside):
                found.append(path)
                continue
            for name, folder in inside:
                if folder and CHECKPOINT_NAME.match(name):
                    found.append(os.path.join(path, name))
                elif folder and depth < 2:
                    todo.append((os.path.join(path, name), depth + 1))
        return found

    def scan(self, final: bool = False) -> None:
        now = time.monotonic()
        present = self.candidates()
        for path in [path for path in self.known if path not in present]:
            if not os.path.isdir(path):
                del self.known[path]
                self.emit("checkpoint_gone", {"path": path})
        for path in present:
            known = self.known.get(path)
            if known is None:
                known = self.known[path] = Known()
            elif known.settled and not final and now - known.listed_at < 30 and not self.touched(path, known):
                continue  # at rest: the folders' mtimes are enough, the files are listed again every 30 s
            seen, tracked = look(path), self.tracked(path)
            known.listed_at = now
            if seen != known.seen or tracked != known.tracked:
                known.seen, known.tracked, known.changed_at = seen, tracked, now
                known.dirty, known.settled = True, False
            quiet = final or now - known.changed_at >= self.QUIET_S
            if quiet and not known.settled:
                known.settled, known.dirty, known.pause_s = True, False, 1.0
                self.tell(path, known)
            elif known.dirty and now - known.told_at >= known.pause_s:
                # A long save is told ever more rarely, up to every 15 s: each telling is a whole listing.
                known.dirty, known.pause_s = False, min(15.0, known.pause_s * 2)
                known.told_at = now
                self.tell(path, known)
        self.first = False

    def touched(self, path: str, known: Known) -> bool:
        try:
            if any(os.stat(folder).st_mtime_ns != mtime for folder, mtime in known.seen.folders.items()):
                return True
        except OSError:
            return True
        return self.tracked(path) != known.tracked

    @staticmethod
    def tracked(path: str) -> str:
        """Which outside marks (tracker file, -unfinished) speak of this very folder."""
        parent, name = os.path.split(path)
        match = CHECKPOINT_NAME.match(name)
        marks = ["unfinished"] if os.path.exists(path + "-unfinished") else []
        for tracker in ("latest", "latest_checkpointed_iteration.txt"):
            try:
                with open(os.path.join(parent, tracker), "rb") as file:
                    value = file.read(200).decode("utf-8", "replace").strip()
            except OSError:
                continue
            if value == name or (match and value.isdigit() and int(value) == int(match.group(1))):
                marks.append(tracker)
        return ",".join(marks)

    def tell(self, path: str, known: Known) -> None:
        listing, used = [], 0
        for name, size, mtime in known.seen.files[:LISTING_FILES]:
            used += len(name.encode("utf-8", "replace")) + 60
            if used > LISTING_BYTES:
                break
            listing.append({"name": name, "size": size, "mtime": utc(mtime)})
        match = re.search(r"(\d+)$", os.path.basename(path))
        facts = checkpoint_facts(path, known.seen.files)
        facts.update(settled=known.settled, file_count=len(known.seen.files))
        if self.first:
            facts["found_at_start"] = True
        data = {
            "path": path,
            "step": int(match.group(1)) if match and len(match.group(1)) < 16 else None,
            "files": listing,
            "truncated": len(listing) < len(known.seen.files),
            "total_bytes": sum(size for _, size, _ in known.seen.files),
            "facts": facts,
        }
        self.emit("checkpoint", data)


# ---------------------------------------------------------------------------------------------------------------------
# Posting
# ---------------------------------------------------------------------------------------------------------------------


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an unexpected answer: following it would hand the token to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Poster:
    """Sends the spool in order; `step` does one thing and says how long to wait before the next."""

    def __init__(self, spool: Spool, url: str, token: str) -> None:
        self.spool = spool
        self.url = url
        self.token = token
        self.opener: urllib.request.OpenerDirector | None = None
        self.hurry = threading.Event()
        self.stopped = not (token and url.startswith(("http://", "https://")))
        self.done = threading.Event()
        self.rejected: set[int] = set()
        self.failures = 0
        self.poison = 0
        self.events, self.bytes = POST_EVENTS, POST_BYTES
        self.told_s = 0.0  # the portal's wish: with many runners each posts less often

    def build_opener(self) -> urllib.request.OpenerDirector:
        import ssl

        context = ssl.create_default_context(cafile=os.environ.get("QD_CA_FILE") or None)
        host = (urllib.parse.urlsplit(self.url).hostname or "").lower()
        loopback = host in ("localhost", "::1") or host.startswith("127.")
        proxies = urllib.request.ProxyHandler({} if loopback else None)
        return urllib.request.build_opener(proxies, NoRedirect(), urllib.request.HTTPSHandler(context=context))

    def run(self) -> None:
        self.spool.ready.wait()
        interval_s = env_number("QD_POST_INTERVAL_S", 1.0)
        while not self.stopped and not self.done.is_set():
            began = time.monotonic()
            delay_s = self.guarded_step()
            if delay_s == 0 and not self.hurry.is_set():
                delay_s = max(interval_s, self.told_s) - (
                    time.monotonic() - began
                )  # a full batch comes back with a negative delay
            if delay_s > 0:
                if self.hurry.is_set():
                    time.sleep(min(delay_s, 1.0))
                else:
                    self.hurry.wait(delay_s)
        self.done.set()

    def guarded_step(self) -> float:
        try:
            return self.step()
        except Exception as error:
            return self.back_off(f"{type(error).__name__}: {error}")

    def back_off(self, why: str, at_least_s: float = 0.0) -> float:
        delay_s = min(BACKOFF_MAX_S, 2.0 ** min(self.failures, 6)) * random.uniform(0.5, 1.0)  # noqa: S311
        self.failures += 1
        if self.failures in (1, 10, 100, 1000):
            note(f"post: {why}; failure {self.failures} in a row, trying again")
        return max(delay_s, at_least_s)

    def step(self) -> float:
        batch = self.spool.batch(self.events, self.bytes, self.rejected)
        if not batch:
            with self.spool.lock:
                if self.spool.closed:
                    self.spool.acknowledge(self.spool.last_seq)
                    self.done.set()
                else:
                    self.spool.changed.wait(1.0)
            return 0
        status, answer, retry_after_s = self.send(batch)
        if status in FINAL_STATUSES:
            note(f"post: the portal answered {status}; posting stops, the spool stays")
            self.stopped = True
            return 0
        acknowledged = answer.get("acknowledged_seq") if isinstance(answer, dict) else None
        before = self.spool.acked, len(self.rejected)
        if status in (200, 422) and isinstance(acknowledged, int):
            self.spool.acknowledge(min(acknowledged, batch[-1].seq))
            self.told_s = min(BACKOFF_MAX_S, max(0.0, number(answer.get("next_post_s")) or 0.0))
        if status == 422 and isinstance(answer, dict):
            listed = answer.get("rejected")
            sent = {line.seq for line in batch}
            refused = sent.intersection(s for s in listed if isinstance(s, int)) if isinstance(listed, list) else set()
            self.reject(refused, "the portal refused them")
        if (self.spool.acked, len(self.rejected)) != before:
            self.failures = self.poison = 0
            full = len(batch) >= self.events or sum(len(line.raw) for line in batch) > self.bytes // 2
            self.events, self.bytes = min(POST_EVENTS, self.events * 2), min(POST_BYTES, self.bytes * 2)
            return -1 if full or status == 422 else 0
        if status in (400, 413, 422):
            if len(batch) > 1:
                self.events = max(1, min(self.events, len(batch)) // 2)
                self.bytes = max(LOG_EVENT_BYTES, self.bytes // 2)
                return -1 if status == 413 else self.back_off(f"the portal answered {status}")
            self.poison += 1
            if status == 413 or self.poison >= 5:
                self.poison = 0
                self.reject({batch[0].seq}, f"the portal answered {status} to it alone")
                return -1
        return self.back_off(f"the portal answered {status}", retry_after_s)

    def reject(self, seqs: set[int], why: str) -> None:
        if seqs:
            note(f"post: events {sorted(seqs)[:20]} dropped: {why}")
        self.rejected |= seqs
        while self.spool.acked + 1 in self.rejected:
            self.rejected.discard(self.spool.acked + 1)
            self.spool.acknowledge(self.spool.acked + 1)

    def send(self, batch: list[Line]) -> tuple[int, Any, float]:
        """POST once: (status, parsed answer or None, Retry-After in s). Raises OSError when nothing answers."""
        if self.opener is None:
            self.opener = self.build_opener()
        identity = {key: self.spool.identity.get(key) for key in ("id", "version", "node", "role", "rank", "task")}
        identity["clock"] = utc()
        body = b'{"runner":%s,"events":[%s]}' % (json.dumps(identity).encode(), b",".join(line.raw for line in batch))
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        headers["User-Agent"] = f"quarterdeck-runner/{VERSION}"
        request = urllib.request.Request(self.url, data=body, headers=headers, method="POST")  # noqa: S310
        try:
            response = self.opener.open(request, timeout=POST_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            text = response.read(1024 * 1024)
            retry_after_s = min(60.0, max(0.0, number(response.headers.get("Retry-After")) or 0.0))
            try:
                return int(response.getcode() or 0), json.loads(text.decode("utf-8")), retry_after_s
            except ValueError:
                return int(response.getcode() or 0), None, retry_after_s


# ---------------------------------------------------------------------------------------------------------------------
# The run
# ---------------------------------------------------------------------------------------------------------------------


def no_action(signum: int, frame: Any) -> None:
    """Being handled at all is the point: the wake-up descriptor carries the number."""


def guard(lifeline: int, witness: int, pipes: list[tuple[int, int]]) -> None:
    """The guardian process: report signals, and pass the output through should the runner vanish. Never returns."""

    def report(signum: int, frame: Any) -> None:
        with contextlib.suppress(OSError):
            os.write(witness, bytes([signum]))

    for signum in FORWARDED:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, report)
    if os.read(lifeline, 1) == b"q":
        os._exit(0)
    open_pipes = dict(pipes)
    while open_pipes:
        for source in select.select(list(open_pipes), [], [])[0]:
            data = os.read(source, 65536)
            if not data:
                del open_pipes[source]
                continue
            try:
                write_fully(open_pipes[source], data)
            except OSError:
                continue
    os._exit(0)


def tree_rss_mib(root: int) -> float:
    """Resident memory of a process and its descendants, in MiB."""
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                rest = file.read().rpartition(b")")[2].split()
            parents[int(name)], pages[int(name)] = int(rest[1]), int(rest[21])
        except (OSError, IndexError, ValueError):
            continue
    chosen = {root}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in chosen and pid not in chosen}
        chosen |= more
        grown = bool(more)
    return round(sum(pages.get(pid, 0) for pid in chosen) * os.sysconf("SC_PAGE_SIZE") / 1048576, 1)


class Run:
    """One command under the runner, from start to the same end."""

    def __init__(self, role: str, command: list[str]) -> None:
        self.role = role
        self.command = command
        self.spool = Spool(int(env_number("QD_SPOOL_MAX_BYTES", 256 * 1024 * 1024)))
        self.poster = Poster(self.spool, os.environ["QD_INGEST_URL"], os.environ.get("QD_INGEST_TOKEN", ""))
        self.urgent = threading.Event()
        self.started = threading.Event()
        self.ended = threading.Event()
        self.scanned = threading.Event()
        self.spooled = threading.Event()
        self.taps = {"stdout": Tap("stdout", self.urgent), "stderr": Tap("stderr", self.urgent)}
        self.pipes: dict[str, tuple[int, int]] = {}  # stream -> (read end, write end)
        self.pumps: list[threading.Thread] = []
        self.cut_short = False
        self.lifeline = self.witness = self.guardian = -1
        self.witnessed: dict[int, float] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.began = 0.0
        self.began_at = 0.0
        self.code: int | None = None

    # -- starting

    def execute(self) -> None:
        """Start, watch and end like the command. Does not return."""
        try:
            for signum in FORWARDED:
                if signal.getsignal(signum) != signal.SIG_IGN:
                    signal.signal(signum, no_action)
            if self.role != "node":
                self.pipes = {"stdout": os.pipe(), "stderr": os.pipe()}
                self.fork_guardian()
            wake, wake_write = os.pipe()
            os.set_blocking(wake, False)
            os.set_blocking(wake_write, False)
            signal.signal(signal.SIGCHLD, no_action)
            signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
            self.start_threads()
            self.began, self.began_at = time.monotonic(), time.time()
            outputs = {stream: pipe[1] for stream, pipe in self.pipes.items()}
            self.process = subprocess.Popen(self.command, close_fds=False, **outputs)  # type: ignore[call-overload]
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            self.dismiss_guardian()
            message = f"quarterdeck_runner: cannot run {self.command[0]}: {error.strerror}\n"
            os.write(2, message.encode("utf-8", "replace"))
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)
        except Exception:  # no threads, no processes, no descriptors: the command alone still may run
            self.dismiss_guardian()
            replace_process(self.command)
        self.started.set()
        for _, write_end in self.pipes.values():
            os.close(write_end)
        self.wait_for_child(wake)
        self.finish(wake)

    def fork_guardian(self) -> None:
        lifeline, self.lifeline = os.pipe()
        self.witness, witness = os.pipe()
        os.set_blocking(self.witness, False)
        try:
            self.guardian = os.fork()
        except OSError:
            return
        if self.guardian == 0:
            try:
                for descriptor in (self.lifeline, self.witness, *(pipe[1] for pipe in self.pipes.values())):
                    os.close(descriptor)
                guard(lifeline, witness, [(self.pipes["stdout"][0], 1), (self.pipes["stderr"][0], 2)])
            finally:
                os._exit(1)
        os.close(lifeline)
        os.close(witness)

    def dismiss_guardian(self) -> None:
        if self.guardian > 0:
            try:
                os.write(self.lifeline, b"q")
                for _ in range(50):  # bounded: a stopped guardian must not hold the job
                    if os.waitpid(self.guardian, os.WNOHANG)[0]:
                        break
                    time.sleep(0.005)
            except OSError:
                pass

    def start_threads(self) -> None:
        for stream, (read_end, _) in self.pipes.items():
            target = 1 if stream == "stdout" else 2
            self.pumps.append(threading.Thread(target=self.pump, args=(self.taps[stream], read_end, target)))
        others: list[Callable[[], None]] = [self.scribe, self.poster.run]
        if self.role == "batch":
            others.append(self.watch)
        for thread in self.pumps + [threading.Thread(target=target) for target in others]:
            thread.daemon = True
            thread.start()

    # -- while it runs

    def wait_for_child(self, wake: int) -> None:
        assert self.process is not None
        while self.process.poll() is None:
            for signum in self.signals(wake, 1.0):
                if signum != signal.SIGCHLD and not self.reached_all(signum) and self.process.poll() is None:
                    with contextlib.suppress(OSError):
                        os.kill(self.process.pid, signum)
        self.code = self.process.returncode

    def signals(self, wake: int, timeout_s: float) -> list[int]:
        """Signals received within the time, and what the guardian witnessed put down."""
        sources = [wake] + ([self.witness] if self.witness >= 0 else [])
        received: list[int] = []
        for source in select.select(sources, [], [], timeout_s)[0]:
            try:
                data = os.read(source, 512)
            except OSError:
                continue
            if source == wake:
                received.extend(data)
            elif data:
                self.witnessed.update(dict.fromkeys(data, time.monotonic()))
            else:
                self.witness = -1  # the guardian is gone
        return received

    def reached_all(self, signum: int) -> bool:
        """Whether the guardian got the same signal: then it was sent to the group, and the command has it too."""
        deadline = time.monotonic() + 0.15
        while True:
            if time.monotonic() - self.witnessed.pop(signum, -math.inf) < 1.0:
                return True
            left_s = deadline - time.monotonic()
            if self.witness < 0 or left_s <= 0:
                return False
            if select.select([self.witness], [], [], left_s)[0]:
                data = os.read(self.witness, 512)
                self.witnessed.update(dict.fromkeys(data, time.monotonic()))
                if not data:
                    self.witness = -1

    def pump(self, tap: Tap, source: int, target: int) -> None:
        poll = select.poll()
        poll.register(source, select.POLLIN)
        passing = True
        while True:
            if not poll.poll(200):
                if self.code is not None:
                    self.cut_short = True  # a background process of the job holds the pipe: the guardian takes over
                    return
                continue
            data = os.read(source, 65536)
            if not data:
                return
            if passing:
                try:
                    write_fully(target, data)
                except OSError as error:  # its own destination is full or gone: the job must not learn of it
                    passing = error.errno not in (errno.EPIPE, errno.EBADF)
            with contextlib.suppress(Exception):  # out of memory: the copy is lost, the output is not
                tap.feed(data)

    def scribe(self) -> None:
        try:
            self.spool.create(spool_parents(), self.identity())
        except Exception as error:
            note(f"spool: {error}")
            self.spool.ready.set()
        self.started.wait()
        progress = Progress()
        beat_s = max(0.05, env_number("QD_HEARTBEAT_S", 10.0))
        next_beat = time.monotonic() + beat_s
        self.guarded(self.spool.append, "start", self.start_data(), self.began_at)
        while True:
            self.urgent.wait(0.4)
            self.urgent.clear()
            final = self.ended.is_set()
            self.guarded(self.write_output, progress, final)
            if final:
                break
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + beat_s
                self.guarded(self.beat)
        if self.role == "batch":
            self.scanned.wait(3.0)
        code = self.code or 0
        data = {"code": code if code >= 0 else 128 - code, "signal": -code if code < 0 else None}
        self.guarded(self.spool.append, "exit", {**data, "duration_s": round(time.monotonic() - self.began, 3)})
        self.spool.close()
        self.poster.hurry.set()
        self.spooled.set()

    @staticmethod
    def guarded(action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except Exception as error:
            note(f"{getattr(action, '__name__', 'action')}: {type(error).__name__}: {error}")

    def write_output(self, progress: Progress, final: bool) -> None:
        for stream, tap in self.taps.items():
            for kind, data, at in tap.take(final):
                self.spool.append(kind, data, at)
                if kind == "log" and self.role == "batch":
                    progress.feed(stream, data["text"])
        for found in progress.take(final):
            self.spool.append("progress", found)

    def beat(self) -> None:
        assert self.process is not None
        elapsed_s = round(time.monotonic() - self.began, 3)
        data = {"elapsed_s": elapsed_s, "load1": round(os.getloadavg()[0], 2)}
        self.spool.append("heartbeat", {**data, "rss_mib": tree_rss_mib(self.process.pid)})

    def watch(self) -> None:
        self.spool.ready.wait()
        self.started.wait()
        named = os.environ.get("QD_CHECKPOINT_DIR") or "checkpoints"
        try:
            roots = [os.path.abspath(root) for root in named.split(":") if root]
        except OSError:
            roots = []
        watcher = Watcher(roots, self.spool.append)
        while not self.ended.wait(1.0):
            self.guarded(watcher.scan)
        self.guarded(watcher.scan, True)
        self.scanned.set()

    def identity(self) -> dict[str, Any]:
        return {
            "id": str(uuid.uuid4()),
            "version": VERSION,
            "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            "role": self.role,
            "rank": own_rank() if self.role == "rank" else None,
            "task": int(task) if (task := os.environ.get("SLURM_ARRAY_TASK_ID", "")).isdigit() else None,
            "attempt": os.environ.get("QD_ATTEMPT", ""),
            "url": self.poster.url,
        }

    def start_data(self) -> dict[str, Any]:
        assert self.process is not None
        nodes = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or ""
        return {
            "pid": self.process.pid,
            "hostname": socket.gethostname(),
            "cwd": os.getcwd(),
            "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
            "nodes": int(nodes) if nodes.isdigit() else 1,
            "python": sys.version.split()[0],
        }

    # -- ending

    def finish(self, wake: int) -> None:
        """Pass the rest through, post for at most QD_FLUSH_S, then end as the command ended. Does not return."""
        while any(thread.is_alive() for thread in self.pumps):  # they end with the pipe, or 0.2 s after the last byte
            if any(signum != signal.SIGCHLD for signum in self.signals(wake, 0.01)):
                break  # whoever reads the output is stuck, and the job is asked to go
        self.guarded(self.let_go)
        self.ended.set()
        self.urgent.set()
        deadline = time.monotonic() + env_number("QD_FLUSH_S", 30.0)
        spool_deadline = time.monotonic() + 5.0  # the last events reach the disk even where no time is left to post
        while not (self.spooled.is_set() and self.poster.done.is_set()):
            if time.monotonic() > (deadline if self.spooled.is_set() else max(deadline, spool_deadline)):
                break
            if any(signum != signal.SIGCHLD for signum in self.signals(wake, 0.05)):
                deadline = min(deadline, time.monotonic() + 3.0)  # whoever asked the job to go wants it gone
        if self.spooled.is_set():
            self.guarded(self.spool.discard_if_done)
        code = self.code or 0
        if code < 0:
            try:
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command's own core is enough
                signal.set_wakeup_fd(-1)
                if -code not in (signal.SIGKILL, signal.SIGSTOP):
                    signal.signal(-code, signal.SIG_DFL)
                os.kill(os.getpid(), -code)
                time.sleep(0.2)
            except (OSError, ValueError):
                pass
        os._exit(code if code >= 0 else 128 - code)

    def let_go(self) -> None:
        """Close the standard descriptors: whoever reads the output sees its end now, not after the last post."""
        if not self.cut_short:
            self.dismiss_guardian()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)


def own_rank() -> int | None:
    """This process's rank in the job, from whoever started it; None outside of any."""
    for name in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"):
        text = os.environ.get(name, "")
        if text.isdigit() and len(text) < 10:
            return int(text)
    return None


def is_listed(rank: int, ranks: str) -> bool:
    """Whether a list such as `1-7,64` holds the rank; an empty one, or one that makes no sense, holds all."""
    spans = re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", ranks)
    return not spans or any(int(first) <= rank <= int(last or first) for first, last in spans)


def into_file(rank: int) -> bool:
    """Send standard output and error of this process to the rank's file; False where there can be none."""
    attempt = os.environ.get("QD_ATTEMPT") or "attempt"
    folder = os.environ.get("QD_RANK_DIR")
    folder = folder or os.path.join(os.environ.get("QD_WORKING_DIRECTORY") or os.getcwd(), "ranks", attempt)
    try:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "rank-%05d.out" % rank)
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.close(target)
    except OSError as error:
        sys.stderr.write(f"quarterdeck_runner: rank {rank} has no file of its own: {error.strerror}\n")
        sys.stderr.flush()
        return False
    return True


def spool_parents() -> list[str]:
    """Where the spool may lie, best first."""
    attempt = os.environ.get("QD_ATTEMPT") or "attempt"
    named, submitted = os.environ.get("QD_SPOOL_DIR"), os.environ.get("SLURM_SUBMIT_DIR")
    parents = [named] if named else [os.path.join(submitted, ".quarterdeck", attempt, "spool")] if submitted else []
    return [*parents, os.path.join(tempfile.gettempdir(), f"quarterdeck-{os.getuid()}", attempt, "spool")]


def replace_process(command: list[str]) -> None:
    """Become the command. Does not return."""
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these; the command must not inherit that
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"quarterdeck_runner: cannot run {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def drain(folder: str) -> int:
    """Post what runners left in a spool (one runner's folder, or one that holds several). 0 when nothing is left."""
    try:
        inside = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    except OSError as error:
        sys.stderr.write(f"quarterdeck_runner: cannot read {folder}: {error.strerror}\n")
        return 2
    spools = [path for path in [folder, *inside] if os.path.isfile(os.path.join(path, "runner.json"))]
    if not spools:
        sys.stdout.write(f"{folder}: no spool here, nothing to post\n")
        return 0
    left = 0
    for path in spools:
        spool = Spool(1 << 62)
        try:
            spool.load(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.stdout.write(f"{path}: unreadable spool: {error}\n")
            left += 1
            continue
        if not spool.take_lock():
            sys.stdout.write(f"{path}: its runner is still alive; it posts by itself\n")
            left += 1
            continue
        url = os.environ.get("QD_INGEST_URL") or str(spool.identity.get("url") or "")
        poster = Poster(spool, url, os.environ.get("QD_INGEST_TOKEN", ""))
        if poster.stopped:
            sys.stderr.write("quarterdeck_runner: --drain needs QD_INGEST_TOKEN (and QD_INGEST_URL if none is saved)\n")
            return 2
        before = spool.acked
        deadline = time.monotonic() + env_number("QD_FLUSH_S", 30.0)
        while not poster.stopped and not poster.done.is_set() and time.monotonic() < deadline:
            time.sleep(max(0.0, min(poster.guarded_step(), deadline - time.monotonic())))
        if poster.done.is_set():
            sys.stdout.write(f"{path}: posted up to event {spool.last_seq} (was {before}); nothing left\n")
            shutil.rmtree(path, ignore_errors=True)
        else:
            why = "the portal refused the token or knows the attempt no more" if poster.stopped else "no answer in time"
            sys.stdout.write(f"{path}: acknowledged {spool.acked} of {spool.last_seq}: {why}; the rest stays\n")
            left += 1
    return 1 if left else 0


#: What a beacon runs: it stays through every signal a job may use for its own ends, and goes with its runner.
STAY = """
import os, signal, time
parent = os.getppid()
for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while os.getppid() == parent:
    time.sleep(1)
"""

USAGE = """usage: quarterdeck_runner.py [--role batch|node|rank] -- COMMAND [ARGUMENT...]
       quarterdeck_runner.py --role node
       quarterdeck_runner.py --drain SPOOL_DIR
"""


def main(arguments: list[str]) -> int:
    """Returns only for --drain and bad usage: a run ends the process as its command ended."""
    if len(arguments) == 2 and arguments[0] == "--drain":
        return drain(arguments[1])
    role = "batch"
    if arguments[:1] == ["--role"] and arguments[1:2] in (["batch"], ["node"], ["rank"]):
        role, arguments = arguments[1], arguments[2:]
        if role == "node" and not arguments:
            if not os.environ.get("QD_INGEST_URL"):
                return 0
            # The job is over when a beacon ends: a portal that does not answer must not hold the node.
            os.environ["QD_FLUSH_S"] = "1"
            arguments = ["--", sys.executable, "-I", "-c", STAY]
    if arguments[:1] != ["--"] or len(arguments) < 2:
        sys.stderr.write(USAGE)
        return 2
    command = arguments[1:]
    if role == "rank":
        rank = own_rank()
        # What rank 0 prints is the job's output already, and so is what has no file of its own.
        if not rank or not into_file(rank) or not is_listed(rank, os.environ.get("QD_RANKS", "")):
            replace_process(command)
    if not os.environ.get("QD_INGEST_URL"):
        replace_process(command)
    try:
        run = Run(role, command)
    except Exception:
        replace_process(command)
    run.execute()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
