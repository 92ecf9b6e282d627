"""Outlives a killed supervisor just long enough to end what it had started; runs as a file, standard library only."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

#: From the supervisor's death to the last process gone, at most (seconds).
GRACE_S = 7.0


def members(sessions: Iterable[int]) -> list[int]:
    """Living processes of these sessions. Each service leads a session, named by its pid."""
    wanted, found = set(sessions), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in ("Z", "X") and int(fields[3]) in wanted:
            found.append(int(entry.name))
    return found


def end(sessions: Iterable[int], grace_s: float = GRACE_S) -> None:
    """Ask every process of the sessions to end, and kill what is left after the grace."""
    sessions = list(sessions)
    for pid in members(sessions):
        _signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while members(sessions) and time.monotonic() < deadline:
        time.sleep(0.1)
    # A process may fork while the list is read: look again until none is left.
    for _ in range(50):
        left = members(sessions)
        if not left:
            return
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.02)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def main() -> None:
    """Read ``+pid``, ``-pid`` or ``done`` lines; the end of the input without ``done`` means the supervisor died."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        word = line.strip()
        if word == "done":
            return
        (sessions.add if word.startswith("+") else sessions.discard)(int(word[1:]))
    end(sessions)


if __name__ == "__main__":
    main()
