"""Reading /proc: who a process is, who descends from it, and whose environment carries a mark."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Identity:
    """A process that cannot be confused with a later one under the same pid (start in clock ticks since boot)."""

    pid: int
    started: int


@dataclass(frozen=True)
class Stat:
    """What /proc/PID/stat says, as far as it is needed here."""

    pid: int
    parent: int
    session: int
    started: int


def boot_id() -> str:
    """An id of this boot: start times compare only within one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def stat_of(pid: int) -> Stat | None:
    """The process's line, or None when there is no such process or only its corpse."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name may hold spaces and brackets; the fields after its closing bracket cannot.
    fields = text.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return Stat(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def identity_of(pid: int) -> Identity | None:
    """The process's identity, or None when there is no such process."""
    found = stat_of(pid)
    return None if found is None else Identity(pid, found.started)


def living() -> Iterator[Stat]:
    """All living processes."""
    for entry in (path.name for path in Path("/proc").iterdir()):
        if entry.isdigit() and (found := stat_of(int(entry))) is not None:
            yield found


def descendants(root: int) -> list[int]:
    """All living descendants of a process."""
    children: dict[int, list[int]] = {}
    for one in living():
        children.setdefault(one.parent, []).append(one.pid)
    found: list[int] = []
    frontier = [root]
    while frontier:
        for pid in children.get(frontier.pop(), []):
            found.append(pid)
            frontier.append(pid)
    return found


def environment_of(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty when it cannot be read."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in content.split(b"\0") if item)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def marked(name: str, value: str) -> list[int]:
    """Other processes whose environment holds ``name=value``."""
    needle = f"{name}={value}".encode()
    found = []
    for entry in (path.name for path in Path("/proc").iterdir()):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            content = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if needle in content.split(b"\0") and stat_of(int(entry)) is not None:
            found.append(int(entry))
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Signal one process; one that has gone meanwhile is fine."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
