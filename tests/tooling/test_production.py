"""A production site without containers: PostgreSQL, Redis, secret files, the processes as Compose runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from deploy import make_secrets
from tests import services
from tests.services import Missing, free_port

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A migrated site's environment; the services end with the module."""
    tmp = tmp_path_factory.mktemp("site")
    try:
        with services.postgres(tmp / "pg") as database_url, services.redis(tmp / "redis") as redis_url:
            make_secrets.make(tmp / "secrets")
            url = tmp / "secrets" / "database_url"
            url.chmod(0o600)
            url.write_text(database_url)
            port = free_port()
            environment = {
                k: v for k, v in os.environ.items() if not k.startswith(("QD_", "DJANGO_", "PYTEST", "PROM"))
            }
            environment |= {
                "QD_ENV": "production",
                "QD_VAR_DIR": str(tmp / "var"),
                "QD_SECRETS_DIR": str(tmp / "secrets"),
                "QD_STATIC_ROOT": str(tmp / "static"),
                "QD_REDIS_URL": redis_url,
                "QD_ALLOWED_HOSTS": '["portal.example.org", "127.0.0.1"]',
                "QD_CSRF_TRUSTED_ORIGINS": '["https://portal.example.org"]',
                "QD_BASE_URL": "https://portal.example.org",
                "QD_BEHIND_TLS_PROXY": "true",
            }
            for words in (["collectstatic", "--noinput", "-v0"], ["migrate", "--noinput", "-v0"]):
                manage(environment, *words)
            yield Site(environment, port, tmp)
    except Missing as missing:
        pytest.skip(str(missing))


def manage(environment, *words) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "manage.py", *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


class Site:
    """The site and its processes."""

    def __init__(self, environment, port, tmp) -> None:
        self.environment, self.port, self.tmp = environment, port, tmp
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def serve(self, what: str, *words: str) -> None:
        log = (self.tmp / f"{what}.log").open("wb")
        command = [sys.executable, "manage.py", "serve", what, "--name", what, *words]
        self.processes[what] = subprocess.Popen(
            command, cwd=ROOT, env=self.environment, stdout=log, stderr=log, start_new_session=True
        )

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return httpx2.get(f"http://127.0.0.1:{self.port}{path}", headers=headers, timeout=10)

    def until(self, path: str, check, seconds: float = 60.0) -> httpx2.Response:
        ends_at = time.monotonic() + seconds
        while True:
            try:
                answer = self.get(path)
                if check(answer):
                    return answer
            except httpx2.HTTPError:
                answer = None
            assert time.monotonic() < ends_at, answer and answer.text
            time.sleep(0.2)


@pytest.fixture(scope="module")
def running(site):
    """Web, worker and beat by ``manage.py serve``."""
    site.serve("web", "--port", str(site.port), "--processes", "2")
    site.serve("worker", "--processes", "2")
    site.serve("beat")
    try:
        yield site
    finally:
        for process in site.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_it_becomes_ready_and_its_worker_works(running):
    running.until("/readyz", lambda answer: answer.status_code == 200)
    answer = running.until("/readyz", lambda answer: answer.json()["worker"] == "ok")

    assert answer.json()["database"] == "ok"
    script = [sys.executable, "deploy/healthcheck.py", f"http://127.0.0.1:{running.port}/readyz"]
    assert subprocess.run([*script, "worker"], cwd=ROOT).returncode == 0
    assert subprocess.run([*script, "no_such_part"], cwd=ROOT, capture_output=True).returncode == 1


def test_pages_want_tls_and_say_so_to_browsers(running):
    plain = running.get("/accounts/login/", Host="portal.example.org")
    assert plain.status_code == 301
    assert plain.headers["location"] == "https://portal.example.org/accounts/login/"

    secure = running.get("/accounts/login/", Host="portal.example.org", **{"X-Forwarded-Proto": "https"})
    assert secure.status_code == 200
    assert secure.headers["strict-transport-security"].startswith("max-age=31536000")
    assert "quarterdeck-demo" not in secure.text


def test_a_foreign_host_is_refused(running):
    assert running.get("/healthz", Host="evil.example.com").status_code in (200, 400)
    assert running.get("/accounts/login/", Host="evil.example.com", **{"X-Forwarded-Proto": "https"}).status_code == 400


def test_a_page_s_files_are_served_with_their_digests(running):
    page = running.get("/accounts/login/", Host="portal.example.org", **{"X-Forwarded-Proto": "https"}).text
    manifest = json.loads((running.tmp / "static" / "staticfiles.json").read_text())["paths"]
    used = [path for path in manifest.values() if f"/static/{path}" in page]

    assert any("tabler.min" in path for path in used)
    for path in used:
        answer = running.get(f"/static/{path}", **{"X-Forwarded-Proto": "https"})
        assert answer.status_code == 200, path
        assert "immutable" in answer.headers["cache-control"]


def test_figures_of_web_and_worker_are_one_page_behind_a_token(running):
    token = (running.tmp / "secrets" / "metrics_token").read_text()
    running.until("/readyz", lambda answer: answer.status_code == 200 and answer.json()["worker"] == "ok")

    assert running.get("/metrics").status_code == 403
    text = running.get("/metrics", Authorization=f"Bearer {token}").text

    assert 'qd_http_requests_total{method="GET"' in text
    assert "qd_worker_age_seconds" in text
    assert {path.name for path in (running.tmp / "var" / "metrics").iterdir()} >= {"web-web", "worker-worker"}
    for folder in ("worker-worker", "worker-other"):
        (running.tmp / "var" / "metrics" / folder).mkdir(exist_ok=True)
        environment = running.environment | {"PROMETHEUS_MULTIPROC_DIR": str(running.tmp / "var" / "metrics" / folder)}
        subprocess.run([sys.executable, "-c", COUNTS], cwd=ROOT, env=environment, check=True, timeout=60)
    text = running.get("/metrics", Authorization=f"Bearer {token}").text
    assert 'qd_visits_total{kind="counted.twice",outcome="done"} 6.0' in text


COUNTS = """
import os, django
os.environ["DJANGO_SETTINGS_MODULE"] = "portal.settings"
django.setup()
from worker.engine import VISITS
VISITS.labels("counted.twice", "done").inc(3)
"""


def test_demo_people_are_refused(running):
    done = subprocess.run(
        [sys.executable, "manage.py", "seed_demo"], cwd=ROOT, env=running.environment, capture_output=True, text=True
    )

    assert done.returncode == 1
    assert "never seeded in production" in done.stderr


@pytest.mark.parametrize("missing", ["secret_key", "metrics_token", "token_peppers"])
def test_without_a_secret_it_does_not_start_and_names_it(site, missing, tmp_path):
    for path in (site.tmp / "secrets").iterdir():
        if path.name != missing:
            (tmp_path / path.name).write_text(path.read_text())
    done = subprocess.run(
        [sys.executable, "manage.py", "serve", "web"],
        cwd=ROOT,
        env=site.environment | {"QD_SECRETS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode != 0
    assert f"production needs QD_{missing.upper()}" in done.stderr


def test_every_process_ends_when_it_is_asked(running):
    """The last test of the file: it stops the site."""
    for what, process in running.processes.items():
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM), what
