"""A whole sandbox as a process of its own, for tests that need AWS, Slurm and exporters together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class SandboxFailed(Exception):
    """The sandbox did not start; the message holds what it printed."""


def sandbox_command(state_dir: Path, **options: Any) -> list[str]:
    """The command that serves on free ports. ``pool_p5=…`` style names do not exist: options are the flags.

    ``boot_seconds=0.2`` becomes ``--boot-seconds 0.2``, ``without_slurm=True`` a bare flag, and a list repeats it.
    """
    settings: dict[str, Any] = {
        "control_port": 0,
        "aws_port": 0,
        "slurm_port": 0,
        "dcgm_port": 0,
        "boot_seconds": 0.3,
        "join_seconds": 0.2,
        "shutdown_seconds": 0.3,
        **options,
    }
    command = [sys.executable, "-m", "sandbox", "serve", "--state-dir", str(state_dir)]
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            command.append(flag)
        elif value not in (None, False):
            for each in value if isinstance(value, list) else [value]:
                command += [flag, str(each)]
    return command


@contextmanager
def sandbox_stack(tmp: Path, *, within_s: float = 30.0, **options: Any) -> Iterator[dict[str, Any]]:
    """Start a sandbox that keeps its state in ``tmp`` and yield its sandbox.json; stop it by its pid afterwards.

    ``options`` are the flags of ``python -m sandbox serve`` with underscores. Raises ``SandboxFailed``.
    """
    tmp.mkdir(parents=True, exist_ok=True)
    written, printed = tmp / "sandbox.json", tmp / "sandbox.log"
    written.unlink(missing_ok=True)
    with printed.open("wb") as log:
        process = subprocess.Popen(
            sandbox_command(tmp, **options), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        ends_at = time.monotonic() + within_s
        while not written.exists():
            if process.poll() is not None:
                raise SandboxFailed(f"exit status {process.returncode}: {printed.read_text(errors='replace')}")
            if time.monotonic() > ends_at:
                raise SandboxFailed(f"not ready within {within_s} s: {printed.read_text(errors='replace')}")
            time.sleep(0.05)
        yield json.loads(written.read_text())
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes], within_s: float = 8.0) -> int:
    """End a sandbox and wait for it; one that does not end is killed."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGTERM)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
