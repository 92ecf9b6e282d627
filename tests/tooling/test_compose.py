"""The deployment files: what they name exists, and the rules hold their tests. No container engine is needed."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class

from deploy import make_secrets
from portal.config import Config
from portal.management.commands.serve import Command as Serve
from sandbox import cli

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PORTAL = [name for name, service in SERVICES.items() if service.get("image") == "quarterdeck-portal"]
PROMETHEUS = ROOT / "deploy" / "prometheus"


def test_the_services_of_a_small_site_are_there():
    assert set(SERVICES) == {"migrate", "web", "worker", "beat", "postgres", "redis", "prometheus", "sandbox"}
    assert set(PORTAL) == {"migrate", "web", "worker", "beat"}
    assert SERVICES["sandbox"]["profiles"] == ["sandbox"]
    assert [name for name, service in SERVICES.items() if "profiles" in service] == ["sandbox"]


@pytest.mark.parametrize("name", PORTAL)
def test_each_command_is_one_that_manage_py_takes(name):
    command, *words = SERVICES[name]["command"]
    found = load_command_class(get_commands()[command], command)

    found.create_parser("manage.py", command).parse_args(words)


def test_the_three_processes_are_the_supervisor_s_own():
    served = {SERVICES[name]["command"][1] for name in PORTAL if SERVICES[name]["command"][0] == "serve"}
    choices = next(a.choices for a in Serve().create_parser("manage.py", "serve")._actions if a.dest == "what")

    assert served == set(choices)


def test_a_wrong_command_would_be_noticed():
    with pytest.raises(Exception, match="invalid choice"):
        load_command_class("portal", "serve").create_parser("manage.py", "serve").parse_args(["nothing"])


def test_the_sandbox_s_command_is_one_that_it_takes():
    cli.parser().parse_args(SERVICES["sandbox"]["command"])


def portal_variables() -> set[str]:
    names = set(re.findall(r"\bQD_[A-Z_]+", DOCKERFILE))
    for name in PORTAL:
        names |= {key for key in SERVICES[name]["environment"] if key.startswith("QD_")}
    return names


def test_every_variable_is_one_that_the_configuration_reads():
    known = {f"QD_{field.upper()}" for field in Config.model_fields} | {"QD_STATIC_ROOT"}

    assert portal_variables() - known == set()
    assert "QD_STATIC_ROOT" in (ROOT / "portal" / "settings.py").read_text()


def test_the_environment_makes_a_configuration_that_production_accepts(tmp_path, monkeypatch):
    make_secrets.make(tmp_path)
    for key in Config.model_fields:
        monkeypatch.delenv(f"QD_{key.upper()}", raising=False)
    for key, value in SERVICES["web"]["environment"].items():
        monkeypatch.setenv(key, re.sub(r"\$\{QD_HOST[^}]*\}", "portal.example.org", value))
    monkeypatch.setenv("QD_SECRETS_DIR", str(tmp_path))
    config = Config()

    assert config.env == "production"
    assert config.allowed_hosts == ["portal.example.org", "web", "127.0.0.1"]
    assert config.csrf_trusted_origins == ["https://portal.example.org"]
    assert config.base_url == "https://portal.example.org"
    assert config.database_url.endswith("@postgres:5432/quarterdeck")
    assert config.demo is False


def test_no_development_setting_is_in_it():
    text = (ROOT / "docker-compose.yml").read_text() + DOCKERFILE

    assert not re.search(r"QD_DEMO|development|seed_demo|runserver|DEBUG", text)


@pytest.mark.parametrize("name", PORTAL)
def test_the_portal_s_containers_are_closed(name):
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["tmpfs"] == ["/tmp"]
    assert "privileged" not in service
    assert re.search(r"FROM base AS portal.*\nUSER quarterdeck\n", DOCKERFILE, re.DOTALL)


def test_every_secret_is_declared_made_and_read():
    declared = set(COMPOSE["secrets"])
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", [])}
    files = {name: Path(secret["file"]) for name, secret in COMPOSE["secrets"].items()}

    assert used == declared
    assert all(path.parent == Path("deploy/secrets") and path.name == name for name, path in files.items())
    ignored = (ROOT / ".gitignore").read_text().split()
    assert "/deploy/secrets/" in ignored
    assert "deploy/secrets" in (ROOT / ".dockerignore").read_text().split()


def test_secrets_are_made_once_and_closed_to_others(tmp_path):
    folder = tmp_path / "secrets"
    assert set(make_secrets.make(folder)) == set(COMPOSE["secrets"])
    first = {path.name: path.read_text() for path in folder.iterdir()}

    (folder / "metrics_token").unlink()
    assert make_secrets.make(folder) == ["metrics_token"]

    second = {path.name: path.read_text() for path in folder.iterdir()}
    assert {name for name in first if first[name] != second[name]} == {"metrics_token"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert first["postgres_password"] in first["database_url"]
    assert all(text == text.strip() and len(text) >= 32 for text in first.values())


def test_every_volume_and_dependency_exists():
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            known = (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
            assert known, f"{name}: {volume}"
        for other in service.get("depends_on", []):
            assert other in SERVICES, f"{name} depends on {other}"
            wanted = service["depends_on"]
            if isinstance(wanted, dict) and wanted[other]["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], other


def test_every_target_and_file_of_the_dockerfile_exists():
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE))
    assert {service["build"]["target"] for service in SERVICES.values() if "build" in service} <= targets
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    for source in re.findall(r"-r (requirements/\S+)", DOCKERFILE):
        assert (ROOT / source).exists(), source
    for binary, needed in {"/opt/portal/bin/python": "portal", "/opt/sandbox/bin/python": "sandbox"}.items():
        assert f"python -m venv {binary.removesuffix('/bin/python')}" in DOCKERFILE, needed


def test_health_checks_call_what_the_image_holds():
    for name in ("web", "worker"):
        _cmd, python, script, url, *part = SERVICES[name]["healthcheck"]["test"]
        assert python in DOCKERFILE
        assert (ROOT / script).exists()
        assert url.endswith(":8000/readyz")
        assert part in ([], ["worker"])
    assert not any(name.strip() == "deploy" for name in (ROOT / ".dockerignore").read_text().splitlines())


def test_a_health_check_fails_when_nobody_answers():
    script = [sys.executable, "deploy/healthcheck.py", "http://127.0.0.1:1/readyz"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr


def test_prometheus_asks_for_what_the_site_serves():
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    (portal,) = [job for job in config["scrape_configs"] if job["job_name"] == "quarterdeck"]

    assert portal["static_configs"] == [{"targets": ["web:8000"]}]
    assert portal["authorization"]["credentials_file"] == "/run/secrets/metrics_token"
    assert "metrics_token" in SERVICES["prometheus"]["secrets"]
    assert all((PROMETHEUS / name).exists() for name in config["rule_files"])


def test_the_portal_s_rules_use_figures_that_it_has():
    rules = (PROMETHEUS / "portal.rules.yml").read_text() + (PROMETHEUS / "gpu-health.rules.yml").read_text()
    code = "".join(path.read_text() for wing in ("portal", "worker", "apps") for path in (ROOT / wing).rglob("*.py"))

    assert {name for name in re.findall(r"\bqd_[a-z_]+", rules) if f'"{name}"' not in code} == set()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing (Debian package prometheus)")
@pytest.mark.parametrize(
    "words",
    [
        ["check", "rules", "portal.rules.yml", "gpu-health.rules.yml"],
        ["test", "rules", "portal.rules.test.yml", "gpu-health.rules.test.yml"],
        ["check", "config", "--syntax-only", "prometheus.yml"],
    ],
)
def test_promtool_accepts_the_rules_and_their_tests(words):
    done = subprocess.run(["promtool", *words], cwd=PROMETHEUS, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
