"""Real PostgreSQL and Redis of one test run: on free ports or sockets, in a temporary folder, stopped by pid."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PORTS = range(20_000, 32_000)


class Missing(Exception):
    """A package is not installed here; the message names it."""


def free_port() -> int:
    """A port nobody listens on now, and none of those that the system gives to whoever connects somewhere."""
    for _ in range(200):
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("no free port")


def _bin(name: str) -> str:
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / name).exists():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} (Debian package postgresql)")
    return found


@contextmanager
def postgres(tmp: Path) -> Iterator[str]:
    """A fresh PostgreSQL with fsync off; yields its URL. PostgreSQL refuses root, so root hands it to user postgres."""
    data, port = tmp / "pg", free_port()
    as_user: list[str] = []
    tmp.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        as_user = ["runuser", "-u", "postgres", "--"]
        data.mkdir()
        shutil.chown(data, "postgres")
        # initdb must be able to walk to its folder.
        for folder in (tmp, *tmp.parents):
            if folder.stat().st_mode & 0o005 != 0o005 and str(folder).startswith("/tmp"):
                folder.chmod(folder.stat().st_mode | 0o055)
    subprocess.run(
        [
            *as_user,
            _bin("initdb"),
            "-D",
            str(data),
            "-U",
            "qd",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
        ],
        check=True,
        capture_output=True,
        cwd="/",
    )
    command = [*as_user, _bin("postgres"), "-D", str(data), "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
    for setting in (f"unix_socket_directories={data}", "fsync=off", "full_page_writes=off", "max_connections=200"):
        command += ["-c", setting]
    log = (tmp / "postgres.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", start_new_session=True)
    try:
        _wait_port(port, process, 20)
        subprocess.run(
            [_bin("createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "qd", "quarterdeck"],
            check=True,
            capture_output=True,
        )
        yield f"postgresql://qd@127.0.0.1:{port}/quarterdeck"
    finally:
        _stop(process)
        log.close()


@contextmanager
def redis(tmp: Path) -> Iterator[str]:
    """A real redis-server; yields its URL."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise Missing("redis-server (Debian package redis-server)")
    port = free_port()
    tmp.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(tmp), "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_port(port, process, 10)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        _stop(process)


def _wait_port(port: int, process: subprocess.Popen[bytes], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode}")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=0.2):
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{process.args} does not listen after {seconds} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        # The whole group: runuser does not hand signals on to what it started.
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
