"""A portal that only records, and a way to run commands under the runner."""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

RUNNER = Path(__file__).resolve().parents[2] / "runner" / "quarterdeck_runner.py"
PYTHON = os.environ.get("QD_TEST_RUNNER_PYTHON") or sys.executable  # the oldest a node may have is 3.8


class Recorder:
    """Speaks the ingest protocol on a loopback port; `mode` says how it behaves for the next requests."""

    def __init__(self) -> None:
        self.mode = "ok"
        self.fail_next = 0
        self.next_post_s: float | None = None
        self.posts: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.attempts = 0
        self.strays: list[tuple[str, str | None]] = []
        self.events: list[dict[str, Any]] = []
        self.seen: dict[str, int] = {}
        self.poison: set[str] = set()
        self.limit_events = 10_000
        self.lock = threading.Lock()
        self.release = threading.Event()
        recorder = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                recorder.answer(self, body)

            def do_GET(self) -> None:
                recorder.strays.append((self.path, self.headers["Authorization"]))
                self.send_error(404)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/api/v1/ingest/attempts/a1/events"

    def answer(self, handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        with self.lock:
            self.attempts += 1
            mode = self.mode
            if self.fail_next:
                self.fail_next -= 1
                mode = "500"
        if mode == "hang":
            self.release.wait(60)
            return None
        if mode == "html":
            return self.send(handler, 200, b"<html><body>Service is being updated</body></html>", "text/html")
        if mode == "redirect":
            handler.send_response(302)
            handler.send_header("Location", self.url.replace("events", "stolen"))
            handler.end_headers()
            return None
        if mode.isdigit() and mode != "422":
            return self.send(handler, int(mode), b'{"title": "no"}')
        post = json.loads(body)
        if len(post["events"]) > self.limit_events:
            return self.send(handler, 413, b"{}")
        with self.lock:
            self.posts.append(post)
            self.bodies.append(body)
            self.headers.append(dict(handler.headers))
            runner = post["runner"]["id"]
            refused = [event["seq"] for event in post["events"] if event["data"].get("stream") in self.poison]
            if refused and mode == "422":
                acknowledged = self.seen.get(runner, 0)
                for event in post["events"]:  # takes what comes before the first refused one
                    if event["seq"] >= refused[0]:
                        break
                    self.take(runner, event)
                    acknowledged = event["seq"]
                answer = {"acknowledged_seq": acknowledged, "rejected": refused, "server_time": "2026-01-01T00:00:00Z"}
                return self.send(handler, 422, json.dumps(answer).encode())
            for event in post["events"]:
                self.take(runner, event)
            answer = {"acknowledged_seq": self.seen[runner], "server_time": "2026-01-01T00:00:00Z"}
            if self.next_post_s is not None:
                answer["next_post_s"] = self.next_post_s
        if mode == "lose-answer":
            handler.close_connection = True
            handler.connection.close()
            return None
        return self.send(handler, 200, json.dumps(answer).encode())

    def take(self, runner: str, event: dict[str, Any]) -> None:
        if event["seq"] > self.seen.get(runner, 0):
            self.seen[runner] = event["seq"]
            self.events.append(event)

    @staticmethod
    def send(handler: Any, status: int, body: bytes, content_type: str = "application/json") -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def kind(self, kind: str) -> list[dict[str, Any]]:
        with self.lock:
            return [event["data"] for event in self.events if event["kind"] == kind]

    def text(self, stream: str) -> str:
        """The stream's text, after checking that the byte ranges join without hole or overlap."""
        offset, parts = 0, []
        for log in self.kind("log"):
            if log["stream"] == stream:
                assert log["offset"] == offset
                offset += log["size"]
                parts.append(log["text"])
        return "".join(parts)

    def wait(self, condition: Any, timeout_s: float = 15.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, (
                f"waited {timeout_s} s; kinds so far: {[e['kind'] for e in self.events]}"
            )
            time.sleep(0.02)

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def recorder():
    recorder = Recorder()
    yield recorder
    recorder.close()


class Bench:
    """Starts the runner on commands, with a spool and a working folder of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.environment = {
            # Without PYTHONUNBUFFERED a program's line is one write, and lines of several ranks stay whole.
            **{k: v for k, v in os.environ.items() if not k.startswith(("QD_", "SLURM", "PYTHONUNBUFFERED"))},
            "QD_INGEST_URL": url,
            "QD_INGEST_TOKEN": "job-token",
            "QD_ATTEMPT": "a1",
            "QD_SPOOL_DIR": str(self.spool),
            "QD_POST_INTERVAL_S": "0.05",
            "QD_FLUSH_S": "20",
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, role: str = "batch", **extra: Any) -> subprocess.Popen[bytes]:
        environment = {**self.environment, **extra.pop("env", {})}
        extra.setdefault("stdout", subprocess.PIPE)
        extra.setdefault("stderr", subprocess.PIPE)
        process = subprocess.Popen(
            [PYTHON, str(RUNNER), "--role", role, "--", *command],
            env=environment,
            cwd=self.folder,
            start_new_session=True,
            **extra,
        )
        self.started.append(process)
        return process

    def run(self, *command: str, **extra: Any) -> tuple[int, bytes, bytes]:
        process = self.start(*command, **extra)
        stdout, stderr = process.communicate(timeout=60)
        return process.returncode, stdout, stderr

    def python(self, code: str, **extra: Any) -> tuple[int, bytes, bytes]:
        return self.run(sys.executable, "-c", code, **extra)

    def drain(self, **env: str) -> subprocess.CompletedProcess[bytes]:
        command = [PYTHON, str(RUNNER), "--drain", str(self.spool)]
        return subprocess.run(command, env={**self.environment, **env}, capture_output=True, timeout=60, check=False)

    def close(self) -> None:
        for process in self.started:
            for end in (process.stdout, process.stderr):
                if end:
                    end.close()
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def bench(tmp_path, recorder):
    bench = Bench(tmp_path, recorder.url)
    yield bench
    bench.close()


@pytest.fixture(scope="session")
def module():
    """The runner's file as a module, loaded from its path as a node would have it."""
    specification = importlib.util.spec_from_file_location("quarterdeck_runner_under_test", RUNNER)
    loaded = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = loaded
    specification.loader.exec_module(loaded)
    return loaded
