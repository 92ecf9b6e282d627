"""The pretend Slurm as one thing: started, stopped, asked and interfered with."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sandbox.serving import ThreadedServer
from sandbox.slurm.api import NEW, OLD, Api
from sandbox.slurm.changes import Settings
from sandbox.slurm.controller import Controller
from sandbox.slurm.tokens import mint
from sandbox.world import World

_CHECKPOINT_WORDS = ("step-", "step_", "checkpoint-", "global_step", "iter_")
_OPERATOR_LIFETIME_S = 365 * 24 * 3600
#: How deep below a job's folder checkpoints are looked for, and how many folders are looked at.
_DEPTH = 4
_FOLDERS = 5000


class SlurmServer:
    """slurmrestd, slurmctld, slurmdbd and slurmd in one process, on the world's nodes."""

    def __init__(
        self,
        world: World,
        host: str,
        port: int,
        state_dir: Path,
        jwt_key: bytes,
        *,
        versions: Sequence[str] = (OLD, NEW),
        settings: Settings | None = None,
    ) -> None:
        self.state_dir = Path(state_dir)
        self.controller = Controller(world, self.state_dir, settings or Settings())
        self._key = jwt_key
        self._http = ThreadedServer("slurm", host, port, Api(self.controller, jwt_key, versions))

    @property
    def settings(self) -> Settings:
        """The cluster's configuration; changes take effect at once."""
        return self.controller.settings

    @property
    def url(self) -> str:
        """The base address of the pretend slurmrestd."""
        return self._http.url

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._http.port

    def start(self) -> None:
        """End what an earlier sandbox left running, then schedule and answer. Raises OSError."""
        self.controller.start()
        token_file = self.state_dir / "operator.jwt"
        token_file.unlink(missing_ok=True)
        descriptor = os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(mint(self._key, "slurm", _OPERATOR_LIFETIME_S))
        self._http.start()

    def stop(self) -> None:
        """Stop answering and kill every process of every job."""
        self._http.stop()
        self.controller.stop()

    def token(self, user: str, lifetime_s: int = 24 * 3600) -> str:
        """A token for a user of this Slurm."""
        return mint(self._key, user, lifetime_s)

    def scontrol_command(self) -> list[str]:
        """A command that behaves as ``scontrol`` of an operator."""
        return [
            "/usr/bin/env",
            f"SANDBOX_SLURM_URL={self.url}",
            f"SANDBOX_SLURM_TOKEN_FILE={self.state_dir / 'operator.jwt'}",
            sys.executable,
            "-I",
            str(Path(__file__).resolve().parent / "tools" / "scontrol.py"),
        ]

    # --- reads -----------------------------------------------------------------------------------

    def jobs_snapshot(self) -> list[dict[str, Any]]:
        """All jobs of the queue, as plain data, oldest first."""
        with self.controller.lock:
            return [
                {
                    "job_id": job.job_id,
                    "name": job.name,
                    "user": job.user,
                    "comment": job.comment,
                    "state": "COMPLETING" if job.completing else job.state,
                    "reason": job.reason,
                    "nodes": list(job.nodes),
                    "gpus": job.gpus_per_node * job.node_count,
                    "work_dir": job.work_dir,
                    "submitted_at": job.submitted_at,
                    "started_at": job.started_at or None,
                    "ended_at": job.ended_at or None,
                    "restarts": job.restarts,
                }
                for job in self.controller.queue()
            ]

    def job_of_node(self, node: str) -> str:
        """The id of the job that runs on a node, the first if several; empty when idle."""
        with self.controller.lock:
            running = [job.job_id for job in self.controller.jobs_on(node) if job.state == "RUNNING"]
        return str(min(running)) if running else ""

    def job_pids(self, job_id: int, node: str | None = None) -> list[int]:
        """Living processes of a job, of one node only if given."""
        with self.controller.lock:
            return self.controller.runs.pids(job_id, node)

    # --- faults ----------------------------------------------------------------------------------

    def kill_tasks(self, node: str) -> int:
        """SIGKILL the processes of jobs on a node, as a dying GPU does to its users; how many there were."""
        with self.controller.lock:
            jobs = [job.job_id for job in self.controller.jobs_on(node)]
            return sum(self.controller.runs.signal(job_id, signal.SIGKILL, node) for job_id in jobs)

    def tear_newest_checkpoint(self, job_id: int | None = None) -> str | None:
        """Damage the newest checkpoint of a running job (of the newest job that has one); its path, or None."""
        with self.controller.lock:
            running = [
                job
                for job in self.controller.queue()
                if job.state == "RUNNING" and (job_id is None or job.job_id == job_id)
            ]
        for job in sorted(running, key=lambda one: one.started_at, reverse=True):
            roots = [Path(job.work_dir)]
            roots += [
                Path(job.work_dir) / part for part in job.environment.get("QD_CHECKPOINT_DIR", "").split(":") if part
            ]
            found = [pair for root in roots for pair in _checkpoints(root)]
            for _, folder in sorted(found, reverse=True):
                if _tear(folder):
                    return str(folder)
        return None


def _checkpoints(root: Path) -> list[tuple[float, Path]]:
    """(modified, folder) of checkpoint folders below ``root``."""
    found = []
    looked = 0
    frontier = [(root, 0)]
    while frontier and looked < _FOLDERS:
        folder, depth = frontier.pop()
        looked += 1
        try:
            entries = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        for entry in entries:
            path = Path(entry.path)
            if entry.name.startswith(_CHECKPOINT_WORDS):
                with contextlib.suppress(OSError):
                    found.append((entry.stat().st_mtime, path))
            elif depth + 1 < _DEPTH:
                frontier.append((path, depth + 1))
    return found


def _tear(folder: Path) -> bool:
    """Make a complete checkpoint look like one whose writer was killed; False if it is of no known kind."""
    try:
        if (folder / ".metadata").exists():
            (folder / ".metadata").unlink()
            return True
        if (folder / "trainer_state.json").exists():
            (folder / "trainer_state.json").write_bytes(b"")
            return True
    except OSError:
        return False
    return False
