"""Running job scripts as local process groups, and ending everything that came of them.

Every process of a job carries two marks in its environment: which sandbox it belongs to and which run of
which job. A program that clears its environment is still found by its session, whose leader is in the journal
with its start time. Nothing else is ever signalled.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sandbox import processes
from sandbox.slurm import arrays
from sandbox.slurm.hostlists import compress
from sandbox.slurm.model import Job

SANDBOX_MARK = "SANDBOX_SLURM"
RUN_MARK = "SANDBOX_SLURM_RUN"
_TOOLS = Path(__file__).resolve().parent / "tools"


class LaunchFailed(Exception):
    """The script could not be started; Slurm calls this JobLaunchFailure."""


@dataclass
class Run:
    """One run of one job: the batch script's process and the mark of all its processes."""

    job_id: int
    mark: str
    child: subprocess.Popen[bytes]
    started: int


class Runs:
    """All runs of this sandbox. ``directory`` holds spool, journal and the little commands on the jobs' PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.identity = str(directory.resolve())
        self._journal = directory / "runs.json"
        self._runs: dict[int, Run] = {}
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Take the folder and end what an earlier sandbox left running. Raises OSError when another one uses it."""
        for folder in (self.directory, self.directory / "spool", self.bin):
            folder.mkdir(parents=True, exist_ok=True)
        lock = (self.directory / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise OSError(f"another sandbox uses {self.directory}") from None
        self._lock = lock
        self.end_everything()
        for name in ("srun", "scontrol"):
            self._tool(name)

    def close(self) -> None:
        """End all runs and give the folder back."""
        self.end_everything()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _tool(self, name: str) -> None:
        beside = self.bin / f".{name}"
        beside.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{_TOOLS / (name + ".py")}" "$@"\n')
        beside.chmod(0o755)
        beside.replace(self.bin / name)

    # --- start -----------------------------------------------------------------------------------

    def start(self, job: Job) -> None:
        """Start the job's script on its first node. Raises LaunchFailed."""
        spool = self.directory / "spool" / f"job{job.job_id:05d}"
        spool.mkdir(parents=True, exist_ok=True)
        script = spool / "slurm_script"
        script.write_text(job.script)
        script.chmod(stat.S_IRWXU)
        mark = f"{self.identity}:{job.job_id}:{job.restarts}:{time.time_ns()}"
        work_dir, note = _work_dir(job)
        environment = {
            **NODE_ENVIRONMENT,
            **job.environment,
            **batch_environment(job),
            SANDBOX_MARK: self.identity,
            RUN_MARK: mark,
        }
        environment["PATH"] = f"{self.bin}:{job.environment.get('PATH', '/usr/bin:/bin')}"
        try:
            with contextlib.ExitStack() as files:
                output = files.enter_context(_output(job, work_dir, job.stdout or "slurm-%j.out"))
                errors = files.enter_context(_output(job, work_dir, job.stderr)) if job.stderr else output
                errors.write(note.encode())
                errors.flush()
                child = subprocess.Popen(
                    [str(script)],
                    cwd=work_dir,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchFailed(str(error)) from None
        found = processes.identity_of(child.pid)
        self._runs[job.job_id] = Run(job.job_id, mark, child, found.started if found else 0)
        self._write_journal()

    # --- watch and end -----------------------------------------------------------------------------

    def status(self, job_id: int) -> int | None:
        """The wait status of the batch script, None while it runs. Raises KeyError for a job without a run."""
        code = self._runs[job_id].child.poll()
        if code is None:
            return None
        return -code if code < 0 else code << 8

    def has(self, job_id: int) -> bool:
        """Whether the job has a run that is not forgotten."""
        return job_id in self._runs

    def pids(self, job_id: int, node: str | None = None) -> list[int]:
        """Living processes of the job, of one node only if given."""
        run = self._runs.get(job_id)
        if run is None:
            return []
        found = set(processes.marked(RUN_MARK, run.mark))
        if node is not None:
            return sorted(pid for pid in found if processes.environment_of(pid).get("SLURMD_NODENAME") == node)
        # The number of a session with members is not given out again, so without its leader it is still ours.
        return sorted(found | set(_session(run.child.pid, run.started, or_leaderless=True)))

    def signal(self, job_id: int, number: signal.Signals, node: str | None = None) -> int:
        """Signal the job's processes; how many there were."""
        pids = self.pids(job_id, node)
        for pid in pids:
            processes.send(pid, number)
        return len(pids)

    def forget(self, job_id: int) -> None:
        """The run is over and nothing of it lives."""
        run = self._runs.pop(job_id, None)
        if run is not None:
            run.child.poll()
            self._write_journal()

    def end_everything(self) -> None:
        """Kill every process of this sandbox's jobs, those of an earlier, killed sandbox included."""
        for _ in range(20):
            left = set(processes.marked(SANDBOX_MARK, self.identity)) | set(self._journalled())
            for run in self._runs.values():
                run.child.poll()
            if not left:
                break
            for pid in left:
                processes.send(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._runs.clear()
        self._write_journal()

    # --- journal -----------------------------------------------------------------------------------

    def _write_journal(self) -> None:
        runs = [{"job": run.job_id, "pid": run.child.pid, "started": run.started} for run in self._runs.values()]
        beside = self._journal.with_suffix(".new")
        with beside.open("w") as stream:
            json.dump({"boot": processes.boot_id(), "runs": runs}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(self._journal)

    def _journalled(self) -> list[int]:
        """Living processes in the sessions the journal names, where the leader is still the very process named."""
        try:
            told = json.loads(self._journal.read_text())
            if told["boot"] != processes.boot_id():
                return []
            return [pid for run in told["runs"] for pid in _session(int(run["pid"]), int(run["started"]))]
        except (OSError, ValueError, KeyError, TypeError):
            return []


def _session(leader: int, started: int, *, or_leaderless: bool = False) -> list[int]:
    """Processes of the session, if its leader is the process that started then; a foreign pid gives nothing."""
    found = processes.identity_of(leader)
    if (found is None and not or_leaderless) or (found is not None and found.started != started):
        return []
    return [one.pid for one in processes.living() if one.session == leader]


def _work_dir(job: Job) -> tuple[Path, str]:
    path = Path(job.work_dir)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # Where slurmd goes, too.
        note = f"slurmstepd: error: couldn't chdir to `{path}': {error.strerror}: going to /tmp instead\n"
        return Path("/tmp"), note  # noqa: S108
    return path, ""


def file_name(pattern: str, job: Job) -> str:
    """Slurm's pattern letters filled in: %j job id, %x name, %u user, %N first node, %a array index."""
    letters = {
        "j": str(job.job_id),
        "J": str(job.job_id),
        "A": str(job.array_id or job.job_id),
        "x": job.name,
        "u": job.user,
        "N": job.nodes[0] if job.nodes else "",
        "a": "4294967294" if job.array_task is None else str(job.array_task),
        "t": "0",
        "n": "0",
        "%": "%",
    }
    parts = pattern.split("%")
    text = parts[0]
    position = 1
    while position < len(parts):
        part = parts[position]
        if part == "" and position + 1 < len(parts):
            text += "%" + parts[position + 1]
            position += 2
            continue
        text += letters.get(part[:1], "%" + part[:1]) + part[1:]
        position += 1
    return text


def _output(job: Job, work_dir: Path, pattern: str) -> IO[bytes]:
    path = work_dir / file_name(pattern, job)
    return path.open("wb", buffering=0)


#: What the pretend machines' image offers every job: where the example programs are, and that they stay on loopback.
NODE_ENVIRONMENT = {
    "QD_EXAMPLES": str(Path(__file__).resolve().parents[2] / "examples"),
    "CHARLM_HOST": "127.0.0.1",
}


def batch_environment(job: Job) -> dict[str, str]:
    """What Slurm puts into the environment of a batch script."""
    nodes = compress(job.nodes)
    count = len(job.nodes)
    per_node = job.tasks_per_node or -(-job.tasks // count)
    told = {
        **arrays.environment(job),
        "SLURMD_NODENAME": job.nodes[0],
        "SLURM_CLUSTER_NAME": "sandbox",
        "SLURM_CPUS_ON_NODE": str(job.cpus_per_node),
        "SLURM_GTIDS": "0",
        "SLURM_JOBID": str(job.job_id),
        "SLURM_JOB_ACCOUNT": job.account,
        "SLURM_JOB_CPUS_PER_NODE": f"{job.cpus_per_node}(x{count})" if count > 1 else str(job.cpus_per_node),
        "SLURM_JOB_ID": str(job.job_id),
        "SLURM_JOB_NAME": job.name,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(count),
        "SLURM_JOB_PARTITION": job.partition,
        "SLURM_JOB_QOS": job.qos,
        "SLURM_JOB_USER": job.user,
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": str(count),
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": nodes,
        "SLURM_NPROCS": str(job.tasks),
        "SLURM_NTASKS": str(job.tasks),
        "SLURM_PROCID": "0",
        "SLURM_TASKS_PER_NODE": f"{per_node}(x{count})" if count > 1 else str(per_node),
    }
    if job.tasks_per_node:
        told["SLURM_NTASKS_PER_NODE"] = str(job.tasks_per_node)
    if job.memory_mib:
        told["SLURM_MEM_PER_NODE"] = str(job.memory_mib)
    if job.gpus_per_node:
        told["SLURM_GPUS_ON_NODE"] = str(job.gpus_per_node)
        told["SLURM_JOB_GPUS"] = ",".join(map(str, range(job.gpus_per_node)))
        told["CUDA_VISIBLE_DEVICES"] = told["SLURM_JOB_GPUS"]
    if job.restarts:
        told["SLURM_RESTART_COUNT"] = str(job.restarts)
    return told
