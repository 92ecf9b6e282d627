"""What the scheduler contract needs to know of the Slurm it runs on, and how it waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from worker.providers.slurm import SlurmScheduler


class Site(Protocol):
    """What a test needs to know of the Slurm it runs on."""

    user: str
    jwt_key: bytes
    work_dir: Path
    api_version: str
    release: str
    #: 22.05's slurmdb plugin tells no exit code; its queue does.
    accounting_tells_exit_codes: bool
    #: Whether the queue knows a finished job for less than a few seconds.
    forgets_quickly: bool

    def scheduler(self, **changes: Any) -> SlurmScheduler: ...


def until(what: str, probe: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(0.1)
