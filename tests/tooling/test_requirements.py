"""The locked requirements: hashed, without addresses, agreeing with each other, and naming all that is imported."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("runtime", "sandbox", "dev", "node")
OWN = {"apps", "portal", "worker", "sandbox", "runner", "tests", "deploy", "examples"}
#: Imported only for their types, or brought by another package on purpose.
ONLY_FOR_TYPES = {"mypy_boto3_ec2", "mypy_boto3_service_quotas", "mypy_boto3_sts"}


def pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", text, re.MULTILINE | re.IGNORECASE))


def named(name: str) -> set[str]:
    """The distributions that a .in file names itself."""
    lines = (ROOT / "requirements" / f"{name}.in").read_text().splitlines()
    return {re.split(r"[\[<>=;~!]", line)[0].strip().lower() for line in lines if line and line[0] not in "-#"}


def imported(*folders: str) -> set[str]:
    """Top-level names of the foreign modules that a wing imports."""
    found = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - OWN - ONLY_FOR_TYPES


def distributions(modules: set[str]) -> dict[str, set[str]]:
    table = importlib.metadata.packages_distributions()
    return {module: {name.lower().replace("_", "-") for name in table.get(module, [])} for module in modules}


@pytest.mark.parametrize("name", LOCKS)
def test_each_pin_has_a_hash_and_no_line_an_address(name):
    text = (ROOT / "requirements" / f"{name}.txt").read_text()

    assert "://" not in text
    assert not re.search(r"^(-i|--index-url|--extra-index-url|-f|--find-links|--trusted-host)\b", text, re.MULTILINE)
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries), [e.split()[0] for e in entries if "--hash" not in e]


def test_the_front_end_lock_has_hashes_and_no_address():
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]

    assert all("resolved" not in package for package in packages.values())
    assert all(package["integrity"].startswith("sha512-") for path, package in packages.items() if path)
    assert "omit-lockfile-registry-resolved=true" in (ROOT / ".npmrc").read_text().split()


@pytest.mark.parametrize("larger", ["sandbox", "dev"])
@pytest.mark.parametrize("smaller", ["runtime", "sandbox"])
def test_two_locks_never_pin_one_package_differently(smaller, larger):
    first, second = pins(smaller), pins(larger)

    assert {name: (first[name], second[name]) for name in first.keys() & second if first[name] != second[name]} == {}


def test_the_suite_s_lock_holds_all_that_a_run_needs():
    assert not (pins("runtime").keys() | pins("sandbox").keys()) - pins("dev").keys()


@pytest.mark.parametrize(
    ("folders", "files"), [(("portal", "apps", "worker"), ["runtime"]), (("sandbox",), ["sandbox"])]
)
def test_every_imported_package_is_named_in_its_requirements(folders, files):
    wanted = set().union(*(named(file) for file in files))

    assert {m: found for m, found in distributions(imported(*folders)).items() if not found & wanted} == {}


#: Named without an import: loaded by a setting, a URL, a command line or another package's option.
LOADED_OTHERWISE = {
    "granian",
    "whitenoise",
    "psycopg",
    "tzdata",
    "django-template-partials",
    "django-htmx",
    "django-allauth",
    # Named to keep kubernetes from a release that celery and botocore do not take.
    "python-dateutil",
}


def test_nothing_is_named_that_nothing_uses():
    used = set().union(*distributions(imported("portal", "apps", "worker")).values())
    settings = (ROOT / "portal" / "settings.py").read_text()

    assert (
        not named("runtime")
        - used
        - LOADED_OTHERWISE
        - {name for name in named("runtime") if f'"{name.replace("-", "_")}' in settings}
    )
    for name in LOADED_OTHERWISE - {"granian", "psycopg", "tzdata", "python-dateutil"}:
        assert name.replace("django-", "").replace("-", "_") in settings
