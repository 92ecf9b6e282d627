"""Each import contract is proven: a copy of the tree with one breaching import must be refused by that contract."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WINGS = ("portal", "apps", "worker", "sandbox", "runner")
CONTRACTS = {
    contract["id"]: contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
#: contract id: the file that breaches it and the line that does.
BREACHES = {
    "wings": ("apps/core/clock.py", "import worker.engine"),
    "apps-know-no-worker": ("apps/jobs/rules.py", "import sandbox.world"),
    "worker-knows-no-portal": ("worker/engine.py", "import portal.health"),
    "sandbox-alone": ("sandbox/world.py", "import apps.core.clock"),
    "runner-alone": ("runner/quarterdeck_runner.py", "import httpx2"),
    "pages-never-wait": ("apps/clusters/selectors.py", "import boto3"),
    "providers-know-no-django": ("worker/providers/values.py", "import django.db.models"),
    "one-door-to-kubernetes": ("worker/doors.py", "import kubernetes.client"),
    "portal-names-celery-only": ("portal/health.py", "import worker.engine"),
    "floors": ("apps/teams/selectors.py", "import apps.jobs.models"),
}
#: Standard library parts that reach the network; import-linter can name only the packages that hold them.
NETWORK = {"urllib.request", "http.client", "http.server", "xmlrpc.client", "socketserver"}


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """Run lint-imports on a tree and return what it said."""
    command = [
        str(Path(sys.executable).with_name("lint-imports")),
        "--no-cache",
        "--config",
        str(tree / "pyproject.toml"),
    ]
    return subprocess.run(
        command,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the tree's Python files."""
    target = tmp_path_factory.mktemp("contracts") / "tree"
    for wing in WINGS:
        for source in (ROOT / wing).rglob("*.py"):
            copy = target / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    shutil.copyfile(ROOT / "pyproject.toml", target / "pyproject.toml")
    return target


def test_the_tree_keeps_every_contract(tree):
    done = lint(tree)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in done.stdout


def test_each_contract_has_a_breach_here():
    assert set(BREACHES) == set(CONTRACTS)


@pytest.mark.parametrize("contract", sorted(BREACHES))
def test_a_breach_is_refused_by_its_contract(contract, tree):
    name, line = BREACHES[contract]
    path = tree / name
    kept = path.read_text()
    path.write_text(f"{kept}\n{line}  # the breach\n")
    try:
        done = lint(tree)
    finally:
        path.write_text(kept)

    assert done.returncode != 0
    assert f"{CONTRACTS[contract]} BROKEN" in done.stdout, done.stdout


def imports(source: str) -> set[str]:
    """Every module a source names in an import, with and without its last part."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_pages_name_no_network_module_of_the_standard_library():
    breaches = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "apps").rglob("*.py")
        for name in imports(path.read_text()) & NETWORK
    }

    assert not breaches


@pytest.mark.parametrize(
    "line", ["import urllib.request", "from urllib import request", "from http.client import HTTPConnection"]
)
def test_a_network_module_is_seen_however_it_is_imported(line):
    assert imports(line) & NETWORK


def test_the_runner_needs_the_standard_library_alone():
    foreign = {
        name
        for path in (ROOT / "runner").rglob("*.py")
        for name in imports(path.read_text())
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "runner"}
    }

    assert not foreign
