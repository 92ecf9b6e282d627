"""A whole portal as a person starts it: manage.py up on free ports in a folder of its own, stopped by pid."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.stack import ROOT


class PortalFailed(Exception):
    """It did not start, or left something behind; the message holds what it printed."""


@dataclass(frozen=True)
class Portal:
    """Where it listens; ``environment`` is what another process needs to talk to the same portal."""

    url: str
    control_url: str
    var: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes]

    def manage(self, *words: str) -> str:
        """Run a management command of this portal; its standard output. Raises CalledProcessError."""
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self.environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        return done.stdout.strip()

    @property
    def sandbox_json(self) -> Path:
        """What the sandbox says of itself."""
        return self.var / "sandbox" / "sandbox.json"


def _free_range(count: int) -> int:
    """The first of ``count`` neighbouring ports that are all free."""
    for base in range(21_000 + os.getpid() % 5000, 60_000, count + 3):
        try:
            for port in range(base, base + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise PortalFailed("no free ports")


@contextmanager
def portal(
    tmp: Path,
    *,
    slurm: str = "sandbox",
    within_s: float = 60.0,
    extra: dict[str, str] | None = None,
    quick: bool = True,
) -> Iterator[Portal]:
    """Start it, wait until a page answers, yield it, stop it. Raises PortalFailed."""
    tmp.mkdir(parents=True, exist_ok=True)
    base = _free_range(5)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QD_")}
    environment |= {
        "QD_VAR_DIR": str(tmp),
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "QD_COLLECT_HEALTH_S": "2",
        "QD_CHARGE_EVERY_S": "5",
        **(extra or {}),
    }
    command = [sys.executable, "manage.py", "up", "--port", str(base), "--cloud-port", str(base + 1), "--slurm", slurm]
    if quick:
        for option in ("--boot-seconds=0.5", "--join-seconds=0.5", "--shutdown-seconds=0.5"):
            command.append(f"--sandbox-option={option}")
    printed = tmp / "up.log"
    with printed.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    url = f"http://127.0.0.1:{base}"
    try:
        _wait(url, process, printed, within_s)
        yield Portal(url, f"http://127.0.0.1:{base + 1}", tmp, environment, process)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], printed: Path, seconds: float) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PortalFailed(f"ended with {process.returncode}: {printed.read_text(errors='replace')}")
        try:
            with opener.open(f"{url}/readyz", timeout=2) as answer:
                if answer.status == 200 and "Open http" in printed.read_text(errors="replace"):
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    raise PortalFailed(f"does not answer after {seconds:.0f} s: {printed.read_text(errors='replace')}")
