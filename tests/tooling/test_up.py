"""manage.py up as a person runs it: a page answers, and nothing is left however it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from portal import guard
from tests.services import free_port

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(180)


def cloud_ports() -> int:
    """The first of four free ports in a row."""
    for _ in range(50):
        first = free_port()
        try:
            held = []
            for port in range(first, first + 4):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for each in held:
                each.close()
    raise RuntimeError("no four free ports in a row")


class Portal:
    """A running ``manage.py up``."""

    def __init__(self, var: Path) -> None:
        self.var, self.port = var, free_port()
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("QD_", "DJANGO_", "PYTEST"))}
        environment |= {"QD_VAR_DIR": str(var)}
        self.command = [sys.executable, "manage.py", "up", "--port", str(self.port), "--cloud-port", str(cloud_ports())]
        self.environment = environment
        self.log = (var / "up.log").open("wb")
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, env=environment, stdout=self.log, stderr=self.log, start_new_session=True
        )

    def printed(self) -> str:
        return (self.var / "up.log").read_text(errors="replace")

    def until_ready(self, seconds: float = 90.0) -> None:
        ends_at = time.monotonic() + seconds
        while "Ctrl-C stops everything" not in self.printed():
            assert self.process.poll() is None, self.printed()
            assert time.monotonic() < ends_at, self.printed()
            time.sleep(0.1)

    def left(self) -> list[int]:
        """Processes of the sessions that were printed, and whatever has our var folder in its environment."""
        pids = [int(pid) for pid in re.findall(r"\(pid (\d+),", self.printed())]
        mark = f"QD_VAR_DIR={self.var}".encode()
        found = set(guard.members(pids))
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.add(int(entry.name))
                except OSError:
                    continue
        return sorted(found - {os.getpid()})


@pytest.fixture
def portal(tmp_path):
    found = Portal(tmp_path)
    yield found
    if found.process.poll() is None:
        found.process.send_signal(signal.SIGTERM)
        found.process.wait(20)
    found.log.close()


def test_a_page_answers_a_second_one_is_refused_and_ctrl_c_leaves_nothing(portal):
    portal.until_ready()
    page = httpx2.get(f"http://127.0.0.1:{portal.port}/", follow_redirects=True, timeout=20)
    assert page.status_code == 200
    assert "Quarterdeck" in page.text
    assert httpx2.get(f"http://127.0.0.1:{portal.port}/healthz").json() == {"status": "ok"}
    for name in ("valkey", "sandbox", "worker", "beat", "web"):
        assert re.search(rf"^  {name} .*\(pid \d+, log .*\)$", portal.printed(), re.MULTILINE), portal.printed()

    second = subprocess.run(
        portal.command, cwd=ROOT, env=portal.environment, capture_output=True, text=True, timeout=60
    )
    assert second.returncode == 2
    assert second.stderr.strip() == (
        f"Quarterdeck: already running (pid {portal.process.pid}); "
        "stop that one with Ctrl-C first, or give another QD_VAR_DIR"
    )

    began = time.monotonic()
    portal.process.send_signal(signal.SIGINT)
    assert portal.process.wait(15) == 0
    assert time.monotonic() - began < 10
    assert not portal.left()
    assert portal.printed().rstrip().endswith("Quarterdeck has stopped.")


def test_kill_9_of_the_supervisor_leaves_nothing(portal):
    portal.until_ready()
    assert len(portal.left()) > 5

    portal.process.kill()
    portal.process.wait()

    ends_at = time.monotonic() + 12
    while portal.left() and time.monotonic() < ends_at:
        time.sleep(0.1)
    assert not portal.left()
