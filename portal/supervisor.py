"""Starts and watches the processes of one machine: shows each, hides no restart, leaves none behind."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

#: From Ctrl-C to the last process gone, at most.
STOP_LIMIT_S = 9.0
RESTART_LIMIT = 5
RESTART_WINDOW_S = 60.0
_PR_SET_PDEATHSIG = 1


class SetupProblem(Exception):
    """Something a person must do first; the message is one line that says what."""


@dataclass
class Service:
    """One process: ``is_ready`` is asked until it says yes or ``ready_within_s`` is over."""

    name: str
    command: Sequence[str]
    what: str
    #: Read when the process starts, so that it can depend on what an earlier one wrote.
    environment: Callable[[], Mapping[str, str]] = dict
    is_ready: Callable[[], bool] | None = None
    ready_within_s: float = 30.0
    process: subprocess.Popen[bytes] | None = None
    starts: list[float] = field(default_factory=list)


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def answers(host: str, port: int) -> Callable[[], bool]:
    """A readiness check: something accepts connections there."""

    def check() -> bool:
        try:
            with socket.create_connection((host, port), timeout=0.5):
                return True
        except OSError:
            return False

    return check


def lock(path: Path) -> IO[str]:
    """Hold the one-supervisor lock of a var folder. Raises SetupProblem when another holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = path.open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.seek(0)
        pid = handle.read().strip()
        handle.close()
        raise SetupProblem(
            f"already running (pid {pid or 'unknown'}); stop that one with Ctrl-C first, or give another QD_VAR_DIR"
        ) from None
    handle.truncate(0)
    handle.write(str(os.getpid()))
    handle.flush()
    return handle


def _die_with_parent() -> None:
    """In the child: end when the supervisor is killed, whatever kills it (Linux only; elsewhere it does nothing)."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    except (OSError, AttributeError):
        return


class Supervisor:
    """Runs services until told to stop; each one's output goes to its own log file."""

    def __init__(self, services: Sequence[Service], *, logs: Path, say: Callable[[str], None], cwd: Path) -> None:
        self.services = list(services)
        self.logs = logs
        self.say = say
        self.cwd = cwd
        self.stopping = False
        self._guard: subprocess.Popen[str] | None = None
        self._names = max((len(s.name) for s in services), default=0)
        logs.mkdir(parents=True, exist_ok=True)

    def line(self, service: Service, text: str) -> None:
        """One line about one process."""
        self.say(f"  {service.name:<{self._names}}  {text}")

    def start(self, service: Service) -> None:
        """Start one service and wait until it is ready. Raises SetupProblem naming its log when it is not."""
        path = self.logs / f"{service.name}.log"
        with path.open("ab") as log:
            service.process = subprocess.Popen(
                list(service.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **service.environment()},
                cwd=self.cwd,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # nothing but prctl runs there
            )
        self._tell_guard(f"+{service.process.pid}")
        service.starts.append(time.monotonic())
        deadline = time.monotonic() + service.ready_within_s
        while service.is_ready is not None and not service.is_ready():
            if service.process.poll() is not None:
                code = service.process.returncode
                raise SetupProblem(f"{service.name} ended with code {code} before it was ready: {_last_line(path)}")
            if self.stopping:
                raise KeyboardInterrupt
            if time.monotonic() > deadline:
                raise SetupProblem(f"{service.name} is not ready after {service.ready_within_s:.0f} s; its log: {path}")
            time.sleep(0.05)
        self.line(service, f"{service.what}  (pid {service.process.pid}, log {_short(path)})")

    def start_all(self) -> None:
        """Start in order. What was started is stopped again when one fails or a signal comes (KeyboardInterrupt)."""
        # From here on a signal only sets a flag: a second Ctrl-C must not cut the stopping short.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            self._start_guard()
            for service in self.services:
                if self.stopping:
                    raise KeyboardInterrupt
                self.start(service)
        except BaseException:
            self.stop_all()
            raise

    def watch(self) -> int:
        """Stay until a signal; a process that ends is restarted with a line, too many times ends everything with 1."""
        code = 0
        while not self.stopping:
            for service in self.services:
                if service.process is None or service.process.poll() is None or self.stopping:
                    continue
                if not self._restart(service):
                    code = 1
                    self.stopping = True
                    break
            time.sleep(0.2)
        self.stop_all()
        return code

    def _on_signal(self, number: int, frame: object) -> None:
        self.stopping = True

    def _restart(self, service: Service) -> bool:
        assert service.process is not None
        ended = service.process.returncode
        log = self.logs / f"{service.name}.log"
        recent = [t for t in service.starts if time.monotonic() - t < RESTART_WINDOW_S]
        if len(recent) >= RESTART_LIMIT:
            self.line(
                service, f"ENDED with code {ended} for the {len(recent)}th time in a minute; giving up. Log: {log}"
            )
            return False
        self.line(service, f"ENDED with code {ended} ({_last_line(log)}); starting it again")
        _kill_group(service.process.pid, signal.SIGKILL)
        self._tell_guard(f"-{service.process.pid}")
        until = time.monotonic() + min(5.0, 0.5 * 2 ** len(recent))
        while time.monotonic() < until and not self.stopping:
            time.sleep(0.05)
        if self.stopping:
            return True
        try:
            self.start(service)
        except SetupProblem as problem:
            self.line(service, str(problem))
        except KeyboardInterrupt:
            return True
        return True

    def stop_all(self) -> None:
        """Ask all to end, in reverse order of starting, and kill what has not after the limit."""
        running = [s for s in reversed(self.services) if s.process is not None and s.process.poll() is None]
        for service in running:
            assert service.process is not None
            _kill_group(service.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_LIMIT_S
        for service in running:
            assert service.process is not None
            try:
                service.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _kill_group(service.process.pid, signal.SIGKILL)
                service.process.wait()
                self.line(service, "did not stop in time and was killed")
        # A process group can outlive its leader: whoever is left in it goes too.
        for service in running:
            assert service.process is not None
            _kill_group(service.process.pid, signal.SIGKILL)
        self._tell_guard("done")
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    def _start_guard(self) -> None:
        """A process that ends the services when this one is killed without a chance to do so itself."""
        from portal import guard

        self._guard = subprocess.Popen(
            [sys.executable, "-S", "-E", guard.__file__], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def _tell_guard(self, word: str) -> None:
        if self._guard is None or self._guard.stdin is None:
            return
        try:
            self._guard.stdin.write(word + "\n")
            self._guard.stdin.flush()
        except (BrokenPipeError, ValueError):
            # Somebody killed the guard; the services still die with the supervisor by prctl.
            self._guard = None


def _kill_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _last_line(path: Path) -> str:
    try:
        lines = [line for line in path.read_text(errors="replace").splitlines()[-40:] if line.strip()]
    except OSError:
        return "no log"
    return lines[-1][:300] if lines else "its log is empty"


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
