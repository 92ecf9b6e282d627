"""Newer Slurm than this machine's: each release in a folder of its own, taken whole from the Debian that has it.

A root is made once by ``debootstrap`` from the mirror that the machine's own apt uses, and kept. A lab enters it in a
mount namespace of its own, so that nothing stays mounted once the lab's last process has ended, however it ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox.lab.layout import LabError

#: The machine's own, from Debian 12.
OWN: Final = "22.05"
DIRECTORY_VARIABLE: Final = "QD_SLURM_ROOTS"
_DIRECTORY: Final = "/var/cache/quarterdeck"
_PACKAGES: Final = "slurmctld,slurmd,slurmdbd,slurmrestd,slurm-client,slurm-wlm-jwt-plugin,slurm-wlm-mysql-plugin,munge"
_STAMP: Final = ".quarterdeck-root"
_KEYS: Final = "usr/share/keyrings/debian-archive-keyring.gpg"
_CLONE_NEWNS: Final = 0x00020000


@dataclass(frozen=True)
class Release:
    """Where a Slurm release comes from: ``script`` is debootstrap's recipe, ``keys_of`` the root that has the keys."""

    name: str
    suite: str
    script: tuple[str, ...] = ()
    keys_of: str = ""


#: Debian 12 knows neither the name nor the keys of forky; trixie has its keys.
RELEASES: Final = {
    "24.11": Release("24.11", "trixie"),
    "26.05": Release("26.05", "forky", script=("sid",), keys_of="24.11"),
}


def root_of(release: str) -> Path:
    """The folder of a release's root, there or not."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or _DIRECTORY) / f"slurm-{release}"


def is_made(release: str) -> bool:
    """Whether the root is there, whole."""
    return (root_of(release) / _STAMP).exists()


def why_not_here(release: str) -> str:
    """One sentence why a release cannot run here as things are, or an empty string."""
    if os.geteuid() != 0:
        return f"Slurm {release} needs root, for a root folder of its own"
    return "" if is_made(release) else f"Slurm {release} is not here; python -m sandbox.lab root {release} fetches it"


def _mirror() -> str:
    """The mirror that apt itself uses for this machine's Debian, "" where it tells of none."""
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)", "Created-By: Packages"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    for line in done.stdout.splitlines():
        uri, _space, component = line.partition(" ")
        if component == "main" and uri.rstrip("/").endswith("/debian"):
            return uri.rstrip("/")
    return ""


def make_root(release: str) -> Path:
    """The root of a release, made now where it is not there yet; takes under a minute. Raises LabError."""
    if release not in RELEASES:
        raise LabError(f"there is no recipe for Slurm {release}; there is for {OWN}, {', '.join(RELEASES)}")
    target = root_of(release)
    if is_made(release):
        return target
    if os.geteuid() != 0:
        raise LabError(why_not_here(release))
    if shutil.which("debootstrap") is None:
        raise LabError(f"Slurm {release} is taken from another Debian: install debootstrap")
    if not _mirror():
        raise LabError("apt names no Debian mirror to take Slurm from")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made(release):
            _bootstrap(RELEASES[release], target)
    return target


def _bootstrap(release: Release, target: Path) -> None:
    # What a killed run left, or packages of another recipe: begun anew.
    half = target.with_name(f"{target.name}.half")
    for folder in (half, target):
        shutil.rmtree(folder, ignore_errors=True)
    log = target.with_name(f"{target.name}.log")
    words = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}"]
    if release.keys_of:
        words.append(f"--keyring={make_root(release.keys_of) / _KEYS}")
    words += [release.suite, str(half), _mirror(), *release.script]
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=600, check=False
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"debootstrap of {release.suite} did not end within 10 minutes; see {log}") from None
    if done.returncode != 0:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise LabError(f"debootstrap of {release.suite} failed: {lines[-1] if lines else done.returncode}; see {log}")
    (half / _STAMP).touch()
    half.rename(target)


def enter_namespace(root: Path, directory: Path) -> None:
    """Give this process mounts of its own and show devices, processes and the lab's folder inside the root.

    Raises LabError.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise LabError(f"cannot have mounts of its own: {os.strerror(ctypes.get_errno())}")
    top = Path("/", directory.parts[1])
    if top.name in ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr", "var"):
        raise LabError(f"a lab of a newer Slurm cannot lie below {top}; give a --dir below /tmp")
    (root / top.name).mkdir(exist_ok=True)
    for words in (
        ("--make-rprivate", "/"),
        ("--rbind", "/dev", str(root / "dev")),
        ("-t", "proc", "proc", str(root / "proc")),
        ("-t", "tmpfs", "tmpfs", str(root / "run")),
        ("--rbind", str(top), str(root / top.name)),
        ("--bind", "/etc/hosts", str(root / "etc/hosts")),
    ):
        if words[0] == "--bind":
            (root / "etc/hosts").touch()
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(f"mount {' '.join(words)}: {done.stderr.strip()}")
    for name, owner in (("slurmctld", "slurm"), ("slurm", "root"), ("slurmdbd", "slurm"), ("slurmrestd", "daemon")):
        folder = root / "run" / name
        folder.mkdir()
        folder.chmod(0o755)
        shutil.chown(folder, owner, owner)
