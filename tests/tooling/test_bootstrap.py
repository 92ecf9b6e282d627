"""The set-up: what is done again and what is not, and one clear line for each thing that can be missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import bootstrap

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A small tree of its own, with a set-up whose commands are noted instead of run."""
    (tmp_path / "requirements").mkdir()
    for name in (*bootstrap.DEV_FILES, "node.txt"):
        (tmp_path / "requirements" / name).write_text(f"# {name}\n")
    lock = {"packages": {"": {}, "node_modules/a": {"version": "1.0", "integrity": "sha512-a"}}}
    (tmp_path / "package-lock.json").write_text(json.dumps(lock))
    (tmp_path / "locale" / "ko" / "LC_MESSAGES").mkdir(parents=True)
    (tmp_path / "locale" / "ko" / "LC_MESSAGES" / "django.po").write_text('msgid "a"\nmsgstr "b"\n')
    for name, value in {
        "ROOT": tmp_path,
        "VENV": tmp_path / ".venv",
        "PYTHON": tmp_path / ".venv" / "bin" / "python",
        "STAMP": tmp_path / ".venv" / ".quarterdeck-stamp",
        "REQUIREMENTS": tmp_path / "requirements",
        "MODULES": tmp_path / "node_modules",
    }.items():
        monkeypatch.setattr(bootstrap, name, value)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: f"/bin/{name}" if name in ("node", "npm") else None)
    monkeypatch.setattr(bootstrap, "_works", lambda python, code="": python.exists())
    return Tree(tmp_path)


class Tree:
    """Runs set-ups in a folder; ``failing`` maps a word of a command to what it prints."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ran: list[str] = []
        self.failing: dict[str, str] = {}
        self.killed_at = ""

    def set_up(self, *, dev: bool = False) -> list[str]:
        self.ran = []
        setup = bootstrap.Setup(dev=dev, log=self.root / "var" / "setup.log")
        setup.run = self.run
        real = subprocess.run
        bootstrap.subprocess.run = lambda *a, **k: subprocess.CompletedProcess(a, 0, "v20.1.0\n", "")
        try:
            setup.all()
        finally:
            bootstrap.subprocess.run = real
        return self.ran

    def run(self, command, **environment) -> str:
        line = " ".join(map(str, command))
        kind = next(
            word for word in ("venv", "pip install", "npm", "messages") if word in line.replace("-m venv", "venv")
        )
        kind = "npm" if line.startswith("/bin/npm") else "messages" if "portal.messages" in line else kind
        if "pip install" in line:
            kind = "pip " + " ".join(Path(word).name for word in line.split() if word.endswith(".txt"))
        self.ran.append(kind)
        if self.killed_at and self.killed_at in line:
            raise KeyboardInterrupt
        for word, printed in self.failing.items():
            if word in line:
                return printed
        if kind == "venv":
            python = self.root / ".venv" / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
            (self.root / ".venv" / ".quarterdeck-stamp").unlink(missing_ok=True)
        if kind == "npm":
            package = self.root / "node_modules" / "a"
            package.mkdir(parents=True, exist_ok=True)
            (package / "package.json").write_text('{"version": "1.0"}')
            (self.root / "node_modules" / ".package-lock.json").write_text(
                (self.root / "package-lock.json").read_text()
            )
        if kind == "messages":
            (self.root / "locale" / "ko" / "LC_MESSAGES" / "django.mo").touch()
        return ""


ALL = ["venv", "pip runtime.txt sandbox.txt", "npm", "messages"]


def test_a_first_run_does_everything_and_a_second_nothing(tree):
    assert tree.set_up() == ALL
    assert tree.set_up() == []


def test_the_suite_s_set_up_serves_a_run_too(tree):
    assert tree.set_up(dev=True) == ["venv", "pip dev.txt", "npm", "messages"]
    assert tree.set_up() == []


def test_a_run_s_set_up_does_not_serve_the_suite(tree):
    tree.set_up()
    assert tree.set_up(dev=True) == ["pip dev.txt"]


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ("requirements/runtime.txt", ["pip runtime.txt sandbox.txt"]),
        ("requirements/dev.txt", []),
        ("locale/ko/LC_MESSAGES/django.po", ["messages"]),
    ],
)
def test_a_changed_input_repeats_its_part_alone(tree, changed, again):
    tree.set_up()
    path = tree.root / changed
    path.write_text(path.read_text() + "# changed\n")

    assert tree.set_up() == again
    assert tree.set_up() == []


def test_a_changed_front_end_lock_repeats_npm(tree):
    tree.set_up()
    lock = tree.root / "package-lock.json"
    lock.write_text(lock.read_text().replace("sha512-a", "sha512-b"))

    assert tree.set_up() == ["npm"]


def test_a_missing_compiled_catalogue_is_made_again(tree):
    tree.set_up()
    (tree.root / "locale" / "ko" / "LC_MESSAGES" / "django.mo").unlink()

    assert tree.set_up() == ["messages"]


def test_a_set_up_killed_inside_pip_starts_with_a_new_virtualenv(tree):
    tree.killed_at = "pip install"
    with pytest.raises(KeyboardInterrupt):
        tree.set_up()
    tree.killed_at = ""

    assert tree.set_up() == ALL
    assert tree.set_up() == []


def test_a_set_up_killed_inside_npm_goes_on_there(tree):
    tree.killed_at = "/bin/npm"
    with pytest.raises(KeyboardInterrupt):
        tree.set_up()
    tree.killed_at = ""

    assert tree.set_up() == ["npm", "messages"]


def test_a_package_missing_from_node_modules_is_noticed(tree):
    tree.set_up()
    (tree.root / "node_modules" / "a" / "package.json").unlink()

    assert tree.set_up() == ["npm"]


def test_a_folder_that_was_moved_gets_a_virtualenv_of_its_own(tree):
    tree.set_up()
    stamp = tree.root / ".venv" / ".quarterdeck-stamp"
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"venv": "of another place"}))

    assert tree.set_up() == ["venv", "pip runtime.txt sandbox.txt", "messages"]


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (
            "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution",
            "no answer from the network",
        ),
        ("npm error code ENOTFOUND", "no answer from the network"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "not what its lock says"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("something else\nlast words\n", "last words"),
    ],
)
def test_what_failed_is_one_line(tree, printed, told):
    tree.failing = {"pip install": printed}
    with pytest.raises(bootstrap.SetupProblem) as problem:
        tree.set_up()

    assert told in str(problem.value)
    assert "\n" not in str(problem.value)
    assert str(problem.value).startswith("Python packages could not be")


def test_without_a_network_the_next_run_goes_on(tree):
    tree.failing = {"/bin/npm": "ENOTFOUND"}
    with pytest.raises(bootstrap.SetupProblem, match="front-end packages"):
        tree.set_up()
    tree.failing = {}

    assert tree.set_up() == ["npm", "messages"]


def test_a_missing_ensurepip_names_the_package_to_install(tree, monkeypatch):
    monkeypatch.setattr(bootstrap, "_has", lambda module: False)

    with pytest.raises(bootstrap.SetupProblem, match="apt install python3-venv"):
        tree.set_up()


def test_no_network_for_real_is_one_line(tmp_path):
    """The real script in a copy of its own, with every registry at a closed port."""
    for name in ("deploy", "requirements"):
        (tmp_path / name).mkdir()
    (tmp_path / "deploy" / "bootstrap.py").write_text((ROOT / "deploy" / "bootstrap.py").read_text())
    for name in (*bootstrap.DEV_FILES, "node.txt"):
        (tmp_path / "requirements" / name).write_text((ROOT / "requirements" / name).read_text())
    closed = "http://127.0.0.1:1/simple"
    done = subprocess.run(
        [sys.executable, "deploy/bootstrap.py"],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": closed,
            "PIP_NO_CACHE_DIR": "1",
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Quarterdeck: Python packages could not be fetched: no answer from the network")
