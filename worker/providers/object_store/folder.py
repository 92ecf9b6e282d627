"""An object store in a folder of this machine or of a file system mounted here."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

from worker.providers import errors as e

SOURCE = "folder"
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


class FolderStore:
    """Keys are relative paths below ``root``; a write is whole or absent, also after a crash."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise e.InvalidRequest(f"{key[:120]!r} cannot be a key", source=SOURCE, code="key")
        return self._root / key

    def put(self, key: str, body: bytes) -> None:
        """Write or replace an object."""
        path = self._path(key)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with beside.open("wb") as stream:
                stream.write(body)
                stream.flush()
                os.fsync(stream.fileno())
            beside.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                # Else a power cut may forget the name of a file whose row says that it is there.
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise e.Unavailable(f"cannot write {path}: {error.strerror}", source=SOURCE, code="write") from error

    def get(self, key: str) -> bytes:
        """The whole object; ``NotFound``."""
        path = self._path(key)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise e.NotFound(f"there is no {path}", source=SOURCE, code="missing") from None
        except OSError as error:
            raise e.Unavailable(f"cannot read {path}: {error.strerror}", source=SOURCE, code="read") from error

    def delete(self, key: str) -> None:
        """Remove it; one that is not there is success."""
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise e.Unavailable(f"cannot remove {path}: {error.strerror}", source=SOURCE, code="write") from error
