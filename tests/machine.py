"""What the suite needs of the machine: which Debian packages bring it, and which tests are skipped without it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_SEARCH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"))
_POLICY = Path("/usr/sbin/policy-rc.d")


def program(*names: str) -> Callable[[], bool]:
    """A check: all of these programs are on the search path or in an sbin folder."""
    return lambda: all(shutil.which(name, path=_SEARCH) is not None for name in names)


def matching(pattern: str) -> Callable[[], bool]:
    """A check: some file below / matches."""
    return lambda: next(Path("/").glob(pattern), None) is not None


@dataclass(frozen=True)
class Need:
    """Something that Debian packages bring; without it ``lost`` is skipped."""

    name: str
    packages: tuple[str, ...]
    is_here: Callable[[], bool]
    lost: str


NEEDS = (
    Need("PostgreSQL", ("postgresql",), matching("usr/lib/postgresql/*/bin/initdb"), "every test on PostgreSQL"),
    Need("Redis", ("redis-server",), program("redis-server"), "the broker contract on a real Redis"),
    Need(
        "Slurm",
        (
            *("slurmctld", "slurmd", "slurmdbd", "slurmrestd", "slurm-client"),
            *("slurm-wlm-basic-plugins", "slurm-wlm-jwt-plugin", "munge", "mariadb-server"),
        ),
        lambda: (
            program("slurmctld", "slurmd", "slurmdbd", "slurmrestd", "sinfo", "munged", "mariadbd")()
            and matching("usr/lib/*/slurm-wlm/auth_jwt.so")()
        ),
        "everything on a real Slurm",
    ),
    Need("Prometheus", ("prometheus",), program("prometheus", "promtool"), "the check of the alert rules"),
    Need(
        "Chromium",
        ("chromium", "fonts-noto-cjk"),
        lambda: program("chromium")() and matching("usr/share/fonts/opentype/noto/*CJK*")(),
        "the browser flows",
    ),
    Need("gettext", ("gettext",), program("xgettext", "msgfmt"), "the search for words that are not translated"),
)


def how_to_install() -> list[str] | None:
    """The words that make a command run as root: none for root itself, sudo where it asks nothing; None: neither."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is not None and subprocess.run([sudo, "-n", "true"], capture_output=True).returncode == 0:
        return [sudo, "-n"]
    return None


@contextlib.contextmanager
def no_service_starts(root: Sequence[str]) -> Iterator[None]:
    """While packages are installed, Debian's own rule keeps their services from being started: the suite starts its."""
    if _POLICY.exists():
        yield
        return
    made = subprocess.run([*root, "tee", str(_POLICY)], input=b"#!/bin/sh\nexit 101\n", stdout=subprocess.DEVNULL)
    subprocess.run([*root, "chmod", "755", str(_POLICY)], check=False)
    try:
        yield
    finally:
        if made.returncode == 0:
            subprocess.run([*root, "rm", "-f", str(_POLICY)], check=False)


def install(needs: Sequence[Need], log: Path) -> bool:
    """Install what is missing, quietly; whether apt was content. The machine's own services are left alone."""
    root = how_to_install()
    packages = sorted({package for need in needs for package in need.packages})
    if root is None or not packages:
        return not packages
    quiet = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-o", "Dpkg::Use-Pty=0"]
    with log.open("ab") as out, no_service_starts(root):
        for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run([*quiet, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            if done.returncode != 0:
                return False
    return True
