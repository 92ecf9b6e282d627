"""The command lines of the portal's own processes: one source for ``manage.py up``, ``serve`` and the containers."""

from __future__ import annotations

import sys
from pathlib import Path

_CELERY = ("-m", "celery", "-A", "worker.app")


def web(host: str, port: int, *, processes: int = 1) -> list[str]:
    """The pages and the API. Open streams are cut after 5 s, so that a stop never waits for a reader."""
    command = [sys.executable, "-m", "granian", "--interface", "asginl", "--host", host, "--port", str(port)]
    command += ["--workers", str(processes), "--workers-kill-timeout", "5", "--no-ws", "portal.asgi:application"]
    return command


def worker(*, name: str, processes: int) -> list[str]:
    """The Celery worker; ``name`` must differ between machines that share a broker."""
    command = [sys.executable, *_CELERY, "worker", f"--concurrency={processes}", f"--hostname=worker@{name}"]
    return [*command, "--without-gossip", "--without-mingle", "--loglevel=WARNING"]


def beat(schedule: Path) -> list[str]:
    """The bell that rings every second; one a site. ``schedule`` is the file in which it keeps when it last rang."""
    return [sys.executable, *_CELERY, "beat", f"--schedule={schedule}", "--pidfile=", "--loglevel=WARNING"]
