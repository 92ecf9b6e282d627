"""The supervisor with small services of its own: lines, restarts, refusals, and nothing left behind however it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from portal import guard
from portal.local import Layout, check_ports
from portal.supervisor import Service, SetupProblem, Supervisor, lock, port_is_free
from tests.services import free_port

ROOT = Path(__file__).resolve().parents[2]
STAY = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(0)); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def service(name: str, code: str, **options) -> Service:
    return Service(name, [sys.executable, "-c", code], "a test's own", **options)


@pytest.fixture
def supervise(tmp_path):
    """Makes supervisors, remembers their lines, stops them at the end and puts the signal handlers back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    made = []

    def make(*services: Service) -> Supervisor:
        lines: list[str] = []
        supervisor = Supervisor(services, logs=tmp_path / "logs", say=lines.append, cwd=tmp_path)
        supervisor.lines = lines
        made.append(supervisor)
        return supervisor

    yield make
    for supervisor in made:
        supervisor.stop_all()
    for number, handler in kept.items():
        signal.signal(number, handler)


def alive(pid: int) -> bool:
    return bool(guard.members([pid]))


def eventually(check, seconds: float = 10.0) -> bool:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        if check():
            return True
        time.sleep(0.05)
    return bool(check())


def test_one_line_a_process_and_none_left_after_the_stop(supervise):
    supervisor = supervise(service("first", STAY), service("second", STAY))

    supervisor.start_all()
    pids = [each.process.pid for each in supervisor.services]
    assert all(alive(pid) for pid in pids)
    assert [line.split()[0] for line in supervisor.lines] == ["first", "second"]
    assert all(f"pid {pid}" in line for pid, line in zip(pids, supervisor.lines, strict=True))

    supervisor.stop_all()
    assert not guard.members(pids)


def test_a_killed_process_is_started_again_with_a_line(supervise):
    supervisor = supervise(service("worker", STAY))
    supervisor.start_all()
    first = supervisor.services[0].process.pid
    watching = threading.Thread(target=supervisor.watch)
    watching.start()

    os.kill(first, signal.SIGKILL)
    came_back = eventually(lambda: supervisor.services[0].process.pid != first and len(supervisor.lines) == 3)
    supervisor.stopping = True
    watching.join(15)

    assert came_back, supervisor.lines
    assert "ENDED with code -9" in supervisor.lines[1]
    assert not alive(supervisor.services[0].process.pid)


def test_one_that_ends_again_and_again_ends_everything(supervise, monkeypatch):
    monkeypatch.setattr("portal.supervisor.RESTART_LIMIT", 2)
    supervisor = supervise(service("steady", STAY), service("broken", "raise SystemExit('no such table')"))
    supervisor.start_all()
    steady = supervisor.services[0].process.pid

    code = supervisor.watch()

    assert code == 1
    assert "giving up" in supervisor.lines[-1]
    assert any("no such table" in line for line in supervisor.lines)
    assert not alive(steady)


def test_one_that_is_never_ready_stops_what_had_started(supervise):
    supervisor = supervise(service("first", STAY), service("late", STAY, is_ready=lambda: False, ready_within_s=0.3))

    with pytest.raises(SetupProblem, match="late is not ready after 0 s; its log: "):
        supervisor.start_all()

    assert not guard.members([each.process.pid for each in supervisor.services])


def test_one_that_ends_before_it_is_ready_is_told_with_its_last_words(supervise):
    supervisor = supervise(service("web", "raise SystemExit('cannot bind')", is_ready=lambda: False))

    with pytest.raises(SetupProblem, match="web ended with code 1 before it was ready: cannot bind"):
        supervisor.start_all()


def test_a_signal_while_starting_stops_what_had_started(supervise):
    supervisor = supervise(service("first", STAY), service("late", STAY, is_ready=lambda: False))
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        supervisor.start_all()

    assert not guard.members([each.process.pid for each in supervisor.services])


def test_one_that_will_not_stop_is_killed_with_a_line(supervise, monkeypatch):
    monkeypatch.setattr("portal.supervisor.STOP_LIMIT_S", 0.5)
    supervisor = supervise(service("stubborn", STUBBORN + "; print(1)"))
    supervisor.start_all()
    pid = supervisor.services[0].process.pid
    time.sleep(0.3)

    supervisor.stop_all()

    assert supervisor.lines[-1].endswith("did not stop in time and was killed")
    assert not alive(pid)


def test_a_grandchild_in_the_same_group_goes_too(supervise):
    forks = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); {STAY}"
    supervisor = supervise(service("parent", forks))
    supervisor.start_all()
    pid = supervisor.services[0].process.pid
    assert eventually(lambda: len(guard.members([pid])) == 2)

    supervisor.stop_all()

    assert eventually(lambda: not guard.members([pid]), 2)


KILLED = """
import pathlib, sys, time
from portal.supervisor import Service, Supervisor
python, stay, stubborn, logs = sys.executable, *sys.argv[1:]
services = [Service("stays", [python, "-c", stay], "stays"), Service("stubborn", [python, "-c", stubborn], "does not")]
supervisor = Supervisor(services, logs=pathlib.Path(logs), say=lambda line: None, cwd=pathlib.Path.cwd())
supervisor.start_all()
time.sleep(0.5)
print(*(s.process.pid for s in supervisor.services), flush=True)
supervisor.watch()
"""


def test_when_the_supervisor_is_killed_the_guard_ends_even_a_stubborn_process(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, STAY, STUBBORN, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(guard.members(pids)) == 2

    process.kill()
    process.wait()
    process.stdout.close()

    assert eventually(lambda: not guard.members(pids), 10)


def test_a_second_supervisor_is_refused_with_the_first_ones_pid(tmp_path):
    first = lock(tmp_path / "up.lock")

    with pytest.raises(SetupProblem, match=rf"already running \(pid {os.getpid()}\)"):
        lock(tmp_path / "up.lock")

    first.close()
    lock(tmp_path / "up.lock").close()


@pytest.mark.parametrize(("busy", "expected"), [("port", "make run PORT="), ("cloud_port", "make run CLOUD_PORT=")])
def test_a_busy_port_is_one_line_that_says_what_to_do(busy, expected, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = {"port": free_port(), "cloud_port": 61000} | {busy: port}

        with pytest.raises(SetupProblem) as told:
            check_ports(Layout(var=tmp_path, **ports))

    assert f"port {port} is in use" in str(told.value)
    assert expected in str(told.value)
    assert "\n" not in str(told.value)


def test_a_port_is_free_again_when_its_server_is_gone():
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert not port_is_free("127.0.0.1", port)
    assert port_is_free("127.0.0.1", port)
