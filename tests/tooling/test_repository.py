"""The tree itself: nothing of others in it, no registry, no path of one machine, files of a readable size."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 500
#: Longer files, each for a reason.
LONG_FOR_A_REASON = {
    "runner/quarterdeck_runner.py": "copied beside a job as one file",
    "static/css/portal.css": "the one style sheet, in sections",
}
#: Data, locks and catalogues are not read as code.
NOT_CODE = re.compile(
    r"^(requirements/.*\.txt|package-lock\.json|locale/.*|.*/data/.*|.*\.(csv|txt|prom|json|svg|md))$"
)
BINARY = {".png", ".jpg", ".gif", ".ico", ".woff2"}


def tracked() -> list[str]:
    """Files that git has or would have."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listed.returncode != 0:
        pytest.skip("not a git clone")
    names = [name.decode() for name in listed.stdout.split(b"\0") if name]
    return [name for name in names if (ROOT / name).is_file()]


def texts() -> list[tuple[str, str]]:
    return [(name, (ROOT / name).read_text(errors="replace")) for name in tracked() if Path(name).suffix not in BINARY]


def test_no_third_party_file_is_committed():
    foreign = [
        name
        for name in tracked()
        if re.search(
            r"(^|/)(node_modules|vendor|site-packages|third_party)/|\.min\.(js|css)$|\.(whl|jar|so|woff2?)$", name
        )
    ]

    assert not foreign


#: Everything that lies at the top, where nothing else belongs.
AT_THE_TOP = {
    *(".dockerignore", ".gitignore", ".npmrc", "CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "Makefile"),
    *("README.md", "docker-compose.yml", "manage.py", "package-lock.json", "package.json", "pyproject.toml"),
}


def test_nothing_else_lies_at_the_top():
    assert {name for name in tracked() if "/" not in name} == AT_THE_TOP


def test_no_address_of_a_package_registry():
    hosts = re.compile(
        r"(registry\.npmjs|registry\.yarnpkg|pypi\.org|pythonhosted\.org|deb\.debian|security\.debian)", re.I
    )
    here = "tests/tooling/test_repository.py"

    assert not [name for name, text in texts() if name != here and hosts.search(text)]


def test_no_path_of_one_machine():
    paths = re.compile(rf"{re.escape(str(ROOT))}\b|(?<![\w/.-])/(?:home/\w+|Users/\w+|root)/")
    here = "tests/tooling/test_repository.py"
    found = {f"{name}: {m.group()}" for name, text in texts() if name != here for m in paths.finditer(text)}

    assert not found


def test_no_file_is_too_long_to_read():
    long = {
        name
        for name, text in texts()
        if not NOT_CODE.match(name) and text.count("\n") > LONGEST and name not in LONG_FOR_A_REASON
    }

    assert not {name: (ROOT / name).read_text().count("\n") for name in sorted(long)}


def test_the_list_of_long_files_holds_no_short_one():
    assert not [
        name
        for name in LONG_FOR_A_REASON
        if not (ROOT / name).exists() or (ROOT / name).read_text().count("\n") <= LONGEST
    ]


def test_each_module_says_what_it_is_for():
    silent = [
        name
        for name in tracked()
        if name.endswith(".py")
        and "/migrations/" not in name
        and (text := (ROOT / name).read_text()).strip()
        and not ast.get_docstring(ast.parse(text))
    ]

    assert not silent


def test_no_work_is_left_for_later():
    words = re.compile(r"\b(TODO|FIXME|XXX|coming soon|NotImplementedError)\b")
    here = {"tests/tooling/test_repository.py", "CONTRIBUTING.md"}
    found = {f"{name}: {m.group()}" for name, text in texts() if name not in here for m in words.finditer(text)}

    assert not found


@pytest.mark.parametrize(
    "name",
    ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md", "docs/operators.md", "docs/users.md"],
)
def test_links_and_paths_in_the_documents_lead_somewhere(name):
    text = (ROOT / name).read_text()
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    missing = [link for link in links if not ((ROOT / name).parent / link).exists()]

    assert not missing


def test_documents_name_only_targets_that_make_has():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in ["README.md", "CONTRIBUTING.md", *map(str, (ROOT / "docs").glob("*.md"))]:
        used = set(re.findall(r"(?:`|^    |\n)make ([a-z-]+)", (ROOT / document).read_text()))
        assert used <= targets, f"{document}: {used - targets}"
    for script in re.findall(r"(tests/[a-z_]+\.py)", (ROOT / "Makefile").read_text()):
        assert (ROOT / script).exists(), script
