"""Commands: ``python -m sandbox.lab start|run|stop --dir DIR`` and ``root RELEASE``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from sandbox.lab import processes, roots
from sandbox.lab.lab import Lab, accounting_installed, why_not
from sandbox.lab.layout import LabError, LabOptions
from sandbox.processes import Identity, descendants, identity_of, marked

EXIT_FAILED = 1
EXIT_IMPOSSIBLE = 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sandbox.lab", description="A real local Slurm with pretend GPUs.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("start", "start in the background"), ("run", "start and stay until a signal")):
        one = commands.add_parser(name, help=text)
        one.add_argument("--dir", type=Path, required=True, help="folder of the lab, open to the job user")
        one.add_argument("--release", default=roots.OWN, help=f"of Slurm: {roots.OWN}, {', '.join(roots.RELEASES)}")
        one.add_argument("--nodes", type=int, default=4)
        one.add_argument("--gpus", type=int, default=8, help="GPUs a node")
        one.add_argument("--user", default="nobody", help="the user jobs run as")
        one.add_argument("--min-job-age", type=int, default=300, help="seconds a finished job stays in the queue")
        one.add_argument("--max-jobs", type=int, default=10_000, help="jobs the controller keeps at once")
        one.add_argument("--stop-with", type=int, metavar="PID", help="stop when this process ends, however it ends")
        one.add_argument("--pcs", action="store_true", help="tokens must carry uid, gid and groups, as on AWS PCS")
        one.add_argument("--enforce", action="store_true", help="jobs need an association, and its limits hold")
        one.add_argument(
            "--accounting",
            action=argparse.BooleanOptionalAction,
            default=None,
            help="slurmdbd on an own MariaDB; on by default where the packages are there",
        )
    commands.add_parser("stop", help="end a lab").add_argument("--dir", type=Path, required=True)
    fetch = commands.add_parser("root", help="fetch a newer Slurm from the Debian that has it, once")
    fetch.add_argument("release", choices=sorted(roots.RELEASES))
    return parser


def _options(arguments: argparse.Namespace) -> LabOptions:
    if not 1 <= arguments.nodes <= 64:
        raise LabError(f"--nodes must be between 1 and 64, not {arguments.nodes}")
    if not 1 <= arguments.gpus <= 16:
        raise LabError(f"--gpus must be between 1 and 16, not {arguments.gpus}")
    root = None if arguments.release == roots.OWN else roots.make_root(arguments.release)
    accounting = accounting_installed() if arguments.accounting is None else arguments.accounting
    return LabOptions(
        directory=arguments.dir.resolve(),
        release=arguments.release,
        root=root,
        nodes=arguments.nodes,
        gpus=arguments.gpus,
        accounting=accounting,
        user=arguments.user,
        min_job_age_s=arguments.min_job_age,
        pcs=arguments.pcs,
        enforce=arguments.enforce,
        max_jobs=arguments.max_jobs,
    )


def _supervisor(directory: Path) -> Identity | None:
    """The supervisor that lab.json names, if that very process still lives."""
    try:
        told = json.loads((directory / "lab.json").read_text())["supervisor"]
    except (OSError, ValueError, KeyError):
        return None
    found = identity_of(int(told["pid"]))
    return found if found is not None and found.started == int(told["started"]) else None


class _Interrupted(BaseException):
    """A signal came while the daemons were still starting."""


def _run(arguments: argparse.Namespace) -> None:
    options = _options(arguments)
    wanted: list[int] = []
    starting = True
    guarded = identity_of(arguments.stop_with) if arguments.stop_with else None
    if arguments.stop_with and guarded is None:
        raise LabError(f"--stop-with names process {arguments.stop_with}, which does not exist")

    def on_signal(received: int, _frame: object) -> None:
        first = not wanted
        wanted.append(received)
        if starting and first:
            raise _Interrupted

    with processes.only_one(options.directory):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        processes.adopt_orphans()
        lab = Lab(options, tell=lambda line: print(f"lab: starting {line}", flush=True))
        try:
            lab.start()
            starting = False
            print(f"lab: ready, {options.directory / 'lab.json'}", flush=True)
            lab.follow(lambda: bool(wanted) or (guarded is not None and identity_of(guarded.pid) != guarded))
        except _Interrupted:
            pass
        finally:
            starting = False
            lab.stop()
    print("lab: stopped", flush=True)


def _start(arguments: argparse.Namespace) -> None:
    options = _options(arguments)
    if (running := _supervisor(options.directory)) is not None:
        raise LabError(f"a lab already runs in {options.directory} (process {running.pid})")
    options.directory.mkdir(parents=True, exist_ok=True)
    (options.directory / "lab.json").unlink(missing_ok=True)
    words = [
        sys.executable, "-m", "sandbox.lab", "run", "--dir", str(options.directory),
        "--nodes", str(options.nodes), "--gpus", str(options.gpus), "--user", options.user,
        "--min-job-age", str(options.min_job_age_s), "--max-jobs", str(options.max_jobs), "--release", options.release,
        "--accounting" if options.accounting else "--no-accounting",
    ]  # fmt: skip
    words += [*(["--pcs"] if options.pcs else []), *(["--enforce"] if options.enforce else [])]
    if arguments.stop_with:
        words += ["--stop-with", str(arguments.stop_with)]
    home = Path(__file__).resolve().parents[2]
    log_path = options.directory.with_name(options.directory.name + ".log")
    with log_path.open("wb") as log:
        child = subprocess.Popen(
            words, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    while child.poll() is None:
        if (options.directory / "lab.json").exists():
            print(f"lab: ready, {options.directory / 'lab.json'}")
            return
        time.sleep(0.1)
    lines = log_path.read_text(errors="replace").strip().splitlines()
    raise LabError(lines[-1].removeprefix("lab: ") if lines else f"the supervisor ended with code {child.returncode}")


def _stop(arguments: argparse.Namespace) -> None:
    directory = arguments.dir.resolve()
    supervisor = _supervisor(directory)
    if supervisor is not None:
        os.kill(supervisor.pid, signal.SIGTERM)
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline and identity_of(supervisor.pid) == supervisor:
            time.sleep(0.1)

    def leftovers() -> list[int]:
        found = marked(processes.MARKER, str(directory))
        return [*found, *(pid for one in found for pid in descendants(one))]

    left = processes.end_all(leftovers, grace_s=2.0)
    (directory / "lab.json").unlink(missing_ok=True)
    if left:
        raise LabError(f"these processes could not be ended: {', '.join(map(str, left))}")
    print("lab: stopped")


def _root(arguments: argparse.Namespace) -> None:
    print(f"lab: Slurm {arguments.release} is in {roots.make_root(arguments.release)}")


def main() -> int:
    """Run one command; returns the exit code."""
    arguments = _parser().parse_args()
    impossible = why_not() if arguments.command in ("start", "run") else ""
    if impossible:
        print(f"lab: {impossible}", file=sys.stderr)
        return EXIT_IMPOSSIBLE
    try:
        {"run": _run, "start": _start, "stop": _stop, "root": _root}[arguments.command](arguments)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
