"""srun inside a pretend job: starts the tasks of a step over the pretend nodes, which are all this machine."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import IO

_WITH_VALUE = {
    "-n": "ntasks",
    "--ntasks": "ntasks",
    "--ntasks-per-node": "per_node",
    "-N": "nodes",
    "--nodes": "nodes",
    "-w": "nodelist",
    "--nodelist": "nodelist",
    "-r": "relative",
    "--relative": "relative",
    "--export": "export",
    "-K": "kill",
    "--kill-on-bad-exit": "kill",
    "-D": "chdir",
    "--chdir": "chdir",
}
#: Options that take a value and mean nothing here; their value must not be mistaken for the program.
_IGNORED_WITH_VALUE = {
    "-c",
    "--cpus-per-task",
    "-G",
    "--gpus",
    "--gpus-per-node",
    "--gpus-per-task",
    "--gres",
    "--mem",
    "--mem-per-cpu",
    "--mem-per-gpu",
    "-t",
    "--time",
    "-p",
    "--partition",
    "-A",
    "--account",
    "-J",
    "--job-name",
    "-o",
    "--output",
    "-e",
    "--error",
    "-i",
    "--input",
    "-m",
    "--distribution",
    "-C",
    "--constraint",
    "-x",
    "--exclude",
    "--mpi",
    "--container-image",
    "--container-mounts",
    "--container-name",
    "--container-workdir",
    "--cpu-bind",
    "--gpu-bind",
    "--mem-bind",
    "--hint",
    "--signal",
    "--comment",
    "--qos",
    "-W",
    "--wait",
    "--network",
    "--threads-per-core",
    "--ntasks-per-socket",
    "--ntasks-per-core",
    "--open-mode",
    "--het-group",
    "--pack-group",
    "--propagate",
    "--task-prolog",
    "--task-epilog",
    "--cpus-per-gpu",
    "--accel-bind",
    "--jobid",
}
#: Of those with a value on the long form only after "=", never as a next word.
_OPTIONAL_VALUE = {"-K", "--kill-on-bad-exit", "--exclusive", "--propagate"}
_FLAGS = {
    "-l": "label",
    "--label": "label",
    "--overlap": "",
    "-u": "",
    "--unbuffered": "",
    "-s": "",
    "--oversubscribe": "",
}
_QUIET = {"--exclusive", "-Q", "--quiet", "-v", "-vv", "--verbose", "--no-container-mount-home", "--exact", "-O"}
KILL_AFTER_S = 30.0


class UsageError(Exception):
    """The command line cannot be run; the message says why."""


@dataclass
class Options:
    """What the command line asks for."""

    ntasks: int = 0
    per_node: int = 0
    nodes: int = 0
    nodelist: list[str] = field(default_factory=list)
    relative: int = 0
    export: str = "ALL"
    kill: bool = False
    label: bool = False
    chdir: str = ""
    command: list[str] = field(default_factory=list)


@dataclass
class Task:
    """One started task."""

    rank: int
    node: str
    child: subprocess.Popen[bytes]
    code: int | None = None


def say(text: str) -> None:
    """One line on stderr."""
    os.write(2, f"srun: {text}\n".encode())


def expand(text: str) -> list[str]:
    """The names in a node list."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = re.search(r"\[([^\]]*)\]", part)
        if match is None:
            names.append(part.strip())
            continue
        for item in match.group(1).split(","):
            first, dash, last = item.partition("-")
            numbers = range(int(first), int(last) + 1) if dash else [None]
            for number in numbers:
                middle = first if number is None else str(number).zfill(len(first))
                names.extend(expand(part[: match.start()] + middle + part[match.end() :]))
    return [name for name in names if name]


def _number(name: str, value: str) -> int:
    # "-N 2-4" asks for at least two: the pretend job has what it has.
    first = value.partition("-")[0]
    if not first.isdigit() or int(first) < 1:
        raise UsageError(f"error: {name} takes a number of at least 1, not {value!r}")
    return int(first)


def parse(words: list[str]) -> Options:
    """Read the command line; unknown options are named on stderr and ignored."""
    options = Options()
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            position += 1
            break
        if not word.startswith("-") or word == "-":
            break
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
        position += 1
        has_value = bool(equals or value)
        if word in _FLAGS or (name in _FLAGS and not has_value):
            if _FLAGS[name] == "label":
                options.label = True
            continue
        if word in _QUIET or name in _QUIET:
            continue
        if name in _WITH_VALUE or name in _IGNORED_WITH_VALUE:
            if not has_value and name not in _OPTIONAL_VALUE:
                if position >= len(words):
                    raise UsageError(f"error: option {name} needs a value")
                value = words[position]
                position += 1
            if name in _WITH_VALUE:
                _set(options, _WITH_VALUE[name], name, value)
            continue
        say(f"option {word} is unknown to the sandbox and ignored")
    options.command = words[position:]
    if not options.command:
        raise UsageError("fatal: No command given to execute.")
    return options


def _set(options: Options, what: str, name: str, value: str) -> None:
    if what in ("ntasks", "per_node", "nodes"):
        setattr(options, what, _number(name, value))
    elif what == "nodelist":
        options.nodelist = expand(value)
    elif what == "relative":
        if not value.isdigit():
            raise UsageError(f"error: {name} takes a whole number, not {value!r}")
        options.relative = int(value)
    elif what == "kill":
        options.kill = value in ("", "1")
    elif what == "export":
        options.export = value
    elif what == "chdir":
        options.chdir = value


def layout(options: Options, environment: dict[str, str]) -> list[list[int]]:
    """Ranks by node, block distribution, over the nodes chosen; also sets ``options.nodelist`` to those nodes."""
    job_nodes = expand(environment.get("SLURM_JOB_NODELIST", ""))
    if not job_nodes:
        raise UsageError("fatal: srun works here only inside a job; SLURM_JOB_NODELIST is not set")
    foreign = [name for name in options.nodelist if name not in job_nodes]
    if foreign:
        raise UsageError(f"error: Unable to create step: node {foreign[0]} is not in the job's allocation")
    chosen = options.nodelist or job_nodes[options.relative :]
    if not chosen:
        raise UsageError(f"error: --relative={options.relative} is beyond the job's {len(job_nodes)} nodes")
    if options.nodes:
        if options.nodes > len(chosen):
            raise UsageError(f"error: Only allocated {len(chosen)} nodes asked for {options.nodes}")
        chosen = chosen[: options.nodes]
    per_node = options.per_node
    if not per_node and not options.ntasks:
        per_node = int(environment.get("SLURM_NTASKS_PER_NODE", "0") or 0)
    ntasks = options.ntasks
    if not ntasks:
        if per_node:
            ntasks = per_node * len(chosen)
        elif options.nodes or options.nodelist:
            ntasks = len(chosen)
        else:
            ntasks = max(int(environment.get("SLURM_NTASKS", "0") or 0), 1)
    if not options.nodes and not options.nodelist and ntasks < len(chosen):
        chosen = chosen[:ntasks]
    options.nodelist = chosen
    if per_node and per_node * len(chosen) < ntasks:
        raise UsageError(f"error: {ntasks} tasks do not fit on {len(chosen)} nodes with {per_node} tasks a node")
    ranks: list[list[int]] = []
    following = 0
    for index in range(len(chosen)):
        left = len(chosen) - index
        share = min(per_node, ntasks - following) if per_node else -(-(ntasks - following) // left)
        ranks.append(list(range(following, following + share)))
        following += share
    return ranks


def base_environment(options: Options, environment: dict[str, str]) -> dict[str, str]:
    """The tasks' environment before their own SLURM_ variables, as --export says."""
    kept = {key: value for key, value in environment.items() if key.startswith(("SLURM", "SANDBOX_", "CUDA_"))}
    asked = options.export.split(",")
    if "ALL" in asked or options.export == "":
        result = dict(environment)
    elif options.export == "NONE":
        result = {**kept, "PATH": environment.get("PATH", "/usr/bin:/bin")}
    else:
        result = {**kept, "PATH": environment.get("PATH", "/usr/bin:/bin")}
        result.update({name: environment[name] for name in asked if "=" not in name and name in environment})
    for item in asked:
        key, equals, value = item.partition("=")
        if equals and key:
            result[key] = value
    return result


def start(options: Options, ranks: list[list[int]]) -> list[Task]:
    """Start all tasks; a program that does not exist ends the step."""
    base = base_environment(options, dict(os.environ))
    total = sum(map(len, ranks))
    counts = [len(one) for one in ranks]
    step = {
        "SLURM_NTASKS": str(total),
        "SLURM_NPROCS": str(total),
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_NODELIST": ",".join(options.nodelist),
        "SLURM_STEP_NUM_NODES": str(len(ranks)),
        "SLURM_NNODES": str(len(ranks)),
        "SLURM_STEP_NUM_TASKS": str(total),
        "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, counts)),
        "SLURM_TASKS_PER_NODE": ",".join(map(str, counts)),
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    }
    tasks: list[Task] = []
    for index, (node, of_node) in enumerate(zip(options.nodelist, ranks, strict=True)):
        for local, rank in enumerate(of_node):
            own = {
                "SLURMD_NODENAME": node,
                "SLURM_NODEID": str(index),
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(local),
                "SLURM_GTIDS": ",".join(map(str, of_node)),
            }
            try:
                child = subprocess.Popen(
                    options.command,
                    env={**base, **step, **own},
                    cwd=options.chdir or None,
                    # The first task reads what srun is given, as Slurm's does by default for one task.
                    stdin=None if rank == 0 else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if options.label else None,
                    stderr=subprocess.PIPE if options.label else None,
                    start_new_session=True,
                )
            except OSError as error:
                say(f"error: execve(): {options.command[0]}: {error.strerror}")
                say(f"error: {node}: task {rank}: Exited with exit code 2")
                end(tasks, signal.SIGKILL)
                raise SystemExit(2) from None
            tasks.append(Task(rank, node, child))
    return tasks


def end(tasks: list[Task], number: signal.Signals) -> None:
    """Signal every task that still runs, with all it started in its session."""
    for task in tasks:
        if task.child.poll() is None:
            try:
                os.killpg(task.child.pid, number)
            except ProcessLookupError:
                continue


class Labels:
    """Puts the rank before each line, for -l."""

    def __init__(self, tasks: list[Task]) -> None:
        self.selector = selectors.DefaultSelector()
        self.rest: dict[int, bytes] = {}
        self.width = len(str(max((task.rank for task in tasks), default=0)))
        for task in tasks:
            for stream, target in ((task.child.stdout, 1), (task.child.stderr, 2)):
                if stream is not None:
                    self.selector.register(stream, selectors.EVENT_READ, (task.rank, target))

    def pump(self, seconds: float) -> bool:
        """Copy what is there; False when all streams ended."""
        for key, _ in self.selector.select(seconds):
            rank, target = key.data
            data = os.read(key.fd, 65536)
            lines = (self.rest.pop(key.fd, b"") + data).split(b"\n")
            if data:
                self.rest[key.fd] = lines.pop()
            elif lines == [b""]:
                lines = []
            for line in lines:
                write_all(target, f"{rank:>{self.width}}: ".encode() + line + b"\n")
            if not data:
                stream: IO[bytes] = key.fileobj  # type: ignore[assignment]
                self.selector.unregister(stream)
                stream.close()
        return bool(self.selector.get_map())


def write_all(target: int, data: bytes) -> None:
    """Write all of it, whatever the pipe takes at once."""
    while data:
        data = data[os.write(target, data) :]


def describe(code: int) -> str:
    """How a task ended, in Slurm's words."""
    if code < 0:
        try:
            return {9: "Killed", 15: "Terminated", 11: "Segmentation fault", 6: "Aborted"}[-code]
        except KeyError:
            return f"Signal {-code}"
    return f"Exited with exit code {code}"


def watch(options: Options, tasks: list[Task], told: list[int]) -> int:
    """Wait for all tasks; the step's exit code is the worst of theirs."""
    labels = Labels(tasks) if options.label else None
    failed_at: float | None = None
    killed = False
    running = list(tasks)
    streams = labels is not None
    while running or streams:
        if labels is not None and streams:
            streams = labels.pump(0.05)
        else:
            time.sleep(0.02)
        for task in list(running):
            code = task.child.poll()
            if code is None:
                continue
            task.code = code
            running.remove(task)
            if code != 0:
                say(f"error: {task.node}: task {task.rank}: {describe(code)}")
                if failed_at is None:
                    failed_at = time.monotonic()
                    if options.kill and running:
                        say("Terminating StepId because of a failed task")
                        end(running, signal.SIGTERM)
        if failed_at is not None and options.kill and not killed and time.monotonic() - failed_at > 5.0:
            end(running, signal.SIGKILL)
            killed = True
        if told and time.monotonic() - told[0] > KILL_AFTER_S:
            end(running, signal.SIGKILL)
    codes = [task.code or 0 for task in tasks]
    return max(128 - code if code < 0 else code for code in codes)


def main(words: list[str]) -> int:
    """Run one step."""
    try:
        options = parse(words)
        ranks = layout(options, dict(os.environ))
    except (UsageError, ValueError) as error:
        say(str(error))
        return 1
    tasks: list[Task] = []
    told: list[int] = []

    def forward(number: int, _frame: object) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            told.append(int(time.monotonic()))
        end(tasks, signal.Signals(number))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
        signal.signal(number, forward)
    tasks.extend(start(options, ranks))
    return watch(options, tasks, told)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
