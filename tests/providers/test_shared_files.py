"""A job's output file is read as it is, and nothing else is, whatever its owner makes of the path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker.providers import errors as e
from worker.providers.shared_files import read_part, seen_from_here

ME = os.getuid()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "fsx"
    root.mkdir()
    (root / "job.out").write_bytes(b"line 1\nline 2\n")
    (tmp_path / "secret").write_text("not yours")
    return root


def test_the_longest_folder_that_fits_counts(tmp_path: Path) -> None:
    folders = {"/fsx": "/mnt/a", "/fsx/home": "/mnt/b"}
    assert seen_from_here("/fsx/home/x.out", folders) == (Path("/mnt/b/x.out"), Path("/mnt/b"))
    assert seen_from_here("/fsx/homes/x.out", folders) == (Path("/mnt/a/homes/x.out"), Path("/mnt/a"))
    for odd in ("/scratch/x", "x.out", "/fsx/../etc/passwd", ""):
        assert seen_from_here(odd, folders) is None


def test_parts_are_read_from_an_offset(root: Path) -> None:
    assert read_part(root / "job.out", root, 0, 6, ME) == b"line 1"
    assert read_part(root / "job.out", root, 7, 100, ME) == b"line 2\n"
    assert read_part(root / "job.out", root, 99, 100, ME) == b""


@pytest.mark.parametrize("trap", ["link out", "folder out", "pipe", "folder", "stranger's", "nobody's"])
def test_traps_are_refused(root: Path, tmp_path: Path, trap: str) -> None:
    path, owner = root / "trap", ME
    match trap:
        case "link out":
            path.symlink_to(tmp_path / "secret")
        case "folder out":
            (root / "out").symlink_to(tmp_path)
            path = root / "out" / "secret"
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case _:
            path.write_text("text")
            owner = ME + 1 if trap == "stranger's" else None  # type: ignore[assignment]
    with pytest.raises(e.AccessDenied):
        read_part(path, root, 0, 100, owner)


def test_a_file_that_is_not_there_yet(root: Path) -> None:
    with pytest.raises(e.NotFound, match="there is no"):
        read_part(root / "later.out", root, 0, 100, ME)
