"""Reading a job's output file from a shared file system that is mounted on the worker, without following its traps."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from worker.providers import errors as e

SOURCE = "shared file system"


def seen_from_here(path: str, folders: Mapping[str, str]) -> tuple[Path, Path] | None:
    """(where a cluster's path lies on this machine, the root it may not leave); None where no folder is mapped.

    ``folders`` maps folders of the cluster to where this machine sees them; the longest that fits counts.
    """
    wanted = PurePosixPath(path)
    if not wanted.is_absolute() or ".." in wanted.parts:
        return None
    for there in sorted(folders, key=len, reverse=True):
        try:
            inside = wanted.relative_to(PurePosixPath(there))
        except ValueError:
            continue
        root = Path(folders[there])
        return root / inside, root
    return None


def read_part(path: Path, root: Path, offset: int, most: int, owner_uid: int | None) -> bytes:
    """Up to ``most`` bytes from an offset of a plain file that its job's user owns.

    A link that leads out of ``root``, a file of somebody else, and what is no plain file are refused: a job's owner
    chooses the path, and the worker may be able to read more than they. Raises NotFound, AccessDenied, Unavailable.
    """
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(root.resolve(strict=True)):
            raise e.AccessDenied(f"{path} leads out of {root}", source=SOURCE, code="outside")
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise e.NotFound(f"there is no {path}", source=SOURCE, code="missing") from None
    except OSError as error:
        raise e.AccessDenied(f"cannot read {path}: {error.strerror}", source=SOURCE, code="read") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise e.AccessDenied(f"{path} is no plain file", source=SOURCE, code="kind")
        if owner_uid is None or found.st_uid != owner_uid:
            raise e.AccessDenied(f"{path} does not belong to the job's user", source=SOURCE, code="owner")
        return os.pread(descriptor, most, offset)
    except OSError as error:
        raise e.Unavailable(f"cannot read {path}: {error.strerror}", source=SOURCE, code="read") from error
    finally:
        os.close(descriptor)
