"""Slurms for tests: a real one on this machine, and the sandbox's, each as a context manager."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.lab import roots
from sandbox.lab.lab import why_not
from sandbox.lab.roots import OWN
from sandbox.slurm import Settings, SlurmServer
from sandbox.world import World
from worker.providers.slurm import SlurmScheduler
from worker.providers.values import SchedulerAccess

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class RealSlurm:
    """A running lab; ``description`` is its lab.json."""

    directory: Path
    description: dict[str, Any]

    @property
    def access(self) -> SchedulerAccess:
        d = self.description
        return SchedulerAccess(
            endpoint_url=d["slurmrestd_url"], user_name=d["user"], token=d["token"], names_user=not d["pcs"]
        )

    @property
    def scontrol(self) -> list[str]:
        return list(self.description["scontrol"])

    def kill(self, daemon: str) -> None:
        """kill -9 of one of the lab's daemons, such as slurmctld."""
        pid = int(json.loads((self.directory / "lab.json").read_text())["daemons"][daemon])
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def start_again(self, daemon: str) -> None:
        """Bring a killed daemon back, with the state it had; returns when the lab has started it."""
        asked = self.directory / "start-again"
        beside = asked.with_suffix(".new")
        beside.write_text(daemon)
        beside.replace(asked)
        deadline = time.monotonic() + 15
        while asked.exists():
            assert time.monotonic() < deadline, f"the lab did not start {daemon}"
            time.sleep(0.05)

    def scheduler(self, **changes: Any) -> SlurmScheduler:
        scontrol = changes.pop("scontrol", self.scontrol)
        told = {name: changes.pop(name) for name in ("versions", "transport") if name in changes}
        return SlurmScheduler(replaced(self.access, **changes), scontrol=scontrol, **told)


def replaced(access: SchedulerAccess, **changes: Any) -> SchedulerAccess:
    known = {"endpoint_url", "user_name", "token", "timeout_s", "names_user"}
    return SchedulerAccess(**{name: changes.get(name, getattr(access, name)) for name in known})


@contextlib.contextmanager
def real_slurm_lab(
    tmp: Path | None = None,
    *,
    nodes: int = 4,
    gpus: int = 8,
    accounting: bool | None = None,
    min_job_age_s: int = 300,
    max_jobs: int = 10_000,
    user: str = "nobody",
    release: str = OWN,
    pcs: bool = False,
    enforce: bool = False,
) -> Iterator[RealSlurm]:
    """A real Slurm until the end of the block. Check ``why_no_real_slurm(release)`` first.

    pytest's own folders are closed to the job user, so without ``tmp`` the lab makes one that is open.
    """
    directory = Path(tempfile.mkdtemp(prefix="slurm-lab-")) if tmp is None else tmp
    directory.chmod(0o755)
    lab = directory / "lab"
    words = ["--dir", str(lab), "--nodes", str(nodes), "--gpus", str(gpus), "--user", user]
    # A test run that is killed must not leave a Slurm behind.
    words += ["--min-job-age", str(min_job_age_s), "--stop-with", str(os.getpid()), "--release", release]
    words += [*(["--pcs"] if pcs else []), *(["--enforce"] if enforce else [])]
    words += ["--max-jobs", str(max_jobs)]
    if accounting is not None:
        words.append("--accounting" if accounting else "--no-accounting")
    command = [sys.executable, "-m", "sandbox.lab"]
    try:
        started = subprocess.run([*command, "start", *words], cwd=ROOT, capture_output=True, text=True, timeout=900)
        if started.returncode != 0:
            raise RuntimeError(f"the Slurm lab did not start: {started.stderr.strip() or started.stdout.strip()}")
        yield RealSlurm(lab, json.loads((lab / "lab.json").read_text()))
    finally:
        subprocess.run([*command, "stop", "--dir", str(lab)], cwd=ROOT, capture_output=True, timeout=60)
        if tmp is None:
            shutil.rmtree(directory, ignore_errors=True)


def why_no_real_slurm(release: str = OWN) -> str:
    """One sentence why no real Slurm of this release can run here, or an empty string."""
    return why_not() or ("" if release == OWN else roots.why_not_here(release))


@dataclass
class SandboxSlurm:
    """A running pretend Slurm and the world it schedules on."""

    world: World
    server: SlurmServer
    user: str = "member"
    nodes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def access(self) -> SchedulerAccess:
        return SchedulerAccess(endpoint_url=self.server.url, user_name=self.user, token=self.server.token(self.user))

    def scheduler(self, **changes: Any) -> SlurmScheduler:
        scontrol = changes.pop("scontrol", self.server.scontrol_command())
        return SlurmScheduler(replaced(self.access, **changes), scontrol=scontrol)


def join(world: World, name: str, *, gpus: int = 8, partition: str = "gpu") -> None:
    """Let a machine of the lab's shape join."""
    world.node_join(
        name=name,
        instance_id=f"i-{name}",
        instance_type="p5.48xlarge",
        cluster="sandbox",
        partition=partition,
        gpu_type="h100",
        gpu_count=gpus,
        cpus=192,
        memory_mib=2_000_000,
    )


@contextlib.contextmanager
def sandbox_slurm(
    tmp: Path,
    *,
    nodes: int = 4,
    gpus: int = 8,
    versions: Sequence[str] = ("v0.0.38", "v0.0.42"),
    user: str = "member",
    settings: Settings | None = None,
) -> Iterator[SandboxSlurm]:
    """A pretend Slurm in this process, with nodes p5-1 … joined, until the end of the block."""
    world = World()
    server = SlurmServer(
        world, "127.0.0.1", 0, tmp / "slurm", secrets.token_bytes(32), versions=versions, settings=settings
    )
    server.start()
    try:
        names = tuple(f"p5-{index}" for index in range(1, nodes + 1))
        for name in names:
            join(world, name, gpus=gpus)
        yield SandboxSlurm(world, server, user, names)
    finally:
        server.stop()
