"""Starting, waiting for and ending the lab's processes, and nobody else's."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sandbox.lab.layout import LabError
from sandbox.processes import send

#: Put into the environment of every daemon, so that a process left behind can be told from a stranger's.
MARKER = "QUARTERDECK_LAB_DIR"
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends (Linux's child subreaper)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Hold the folder's lock, so that two labs cannot share it. Raises LabError when another process holds it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory.with_name(directory.name + ".lock")).open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LabError(f"a lab already runs in {directory}") from None
        yield


def enter(root: Path, folder: str) -> None:
    """Run in a child before exec: make ``root`` its root and ``folder`` in it its working directory."""
    os.chroot(root)
    os.chdir(folder)


def end_all(pids: Callable[[], Iterable[int]], *, grace_s: float) -> list[int]:
    """SIGTERM to all that ``pids`` names, SIGKILL to what is left after ``grace_s``; returns what still lives."""
    for pid in pids():
        send(pid, signal.SIGTERM)
    _until_none(pids, grace_s)
    for _ in range(3):
        left = list(pids())
        if not left:
            return []
        for pid in left:
            send(pid, signal.SIGKILL)
        _until_none(pids, 1.0)
    return list(pids())


def _until_none(pids: Callable[[], Iterable[int]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        reap()
        if not list(pids()):
            return
        time.sleep(0.05)


def reap() -> None:
    """Collect ended children, adopted ones included."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def free_ports(count: int) -> list[int]:
    """Distinct free loopback ports; all are held until the last is known, so none comes twice."""
    held = []
    try:
        for _ in range(count):
            one = socket.socket()
            one.bind(("127.0.0.1", 0))
            held.append(one)
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def wait_for(what: str, probe: Callable[[], bool], *, timeout_s: float, alive: Callable[[], str] = lambda: "") -> None:
    """Wait until ``probe`` holds; ``alive`` names a daemon that ended, which ends the wait. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not probe():
        ended = alive()
        if ended:
            raise TimeoutError(f"{what}: {ended}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} was not ready within {timeout_s:.0f} s")
        time.sleep(0.1)


def port_answers(port: int) -> bool:
    """Whether something accepts connections on a loopback port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5):
            return True
    except OSError:
        return False


def run(
    command: Sequence[str], *, environment: Mapping[str, str], timeout_s: float = 30.0, root: Path | None = None
) -> tuple[int, str]:
    """Run a command to its end, inside ``root`` if given; its exit code and both outputs. A time-out counts as 124."""
    try:
        done = subprocess.run(
            list(command),
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            preexec_fn=None if root is None else lambda: enter(root, "/"),
        )
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]} did not end within {timeout_s:.0f} s"
    return done.returncode, (done.stdout + done.stderr).strip()
