"""Logs of containers: lines with their instants in files, read by tail, by age, and followed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class LogQuery:
    """What part of a log is wanted; ``limit_bytes`` cuts what is read, not what is followed."""

    follow: bool = False
    tail_lines: int | None = None
    since: float | None = None
    timestamps: bool = False
    limit_bytes: int | None = None
    previous: bool = False


class Logs:
    """The log files of a cluster's pods, by the pod's uid, the container and its number of restarts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, uid: str, container: str, run: int) -> Path:
        """Where a run of a container is logged."""
        return self._folder / uid / f"{container}-{run}.log"

    def append(self, uid: str, container: str, run: int, text: str, at: float | None = None) -> None:
        """Add lines, all at one instant."""
        path = self.path(uid, container, run)
        path.parent.mkdir(parents=True, exist_ok=True)
        moment = datetime.fromtimestamp(time.time() if at is None else at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        with path.open("a", encoding="utf-8", errors="replace") as stream:
            for line in text.splitlines():
                stream.write(f"{moment} {line}\n")

    def read(self, path: Path, query: LogQuery, ended: Callable[[], bool]) -> Iterator[bytes]:
        """The lines wanted, then, followed, what is added until the container has ended."""
        known, offset = self._complete(path, 0)
        lines = [line for line in known if query.since is None or _instant(line) >= query.since]
        if query.tail_lines is not None:
            lines = lines[-query.tail_lines :] if query.tail_lines else []
        content = b"".join(self._shown(line, query) for line in lines)
        yield content if query.limit_bytes is None else content[: query.limit_bytes]
        while query.follow:
            over = ended()
            fresh, offset = self._complete(path, offset)
            yield b"".join(self._shown(line, query) for line in fresh)
            if over:
                return
            time.sleep(0.1)

    @staticmethod
    def _complete(path: Path, offset: int) -> tuple[list[str], int]:
        """Whole lines from ``offset`` on, and where they end."""
        try:
            with path.open("rb") as stream:
                stream.seek(offset)
                content = stream.read()
        except FileNotFoundError:
            return [], offset
        whole = content[: content.rfind(b"\n") + 1]
        return whole.decode(errors="replace").splitlines(), offset + len(whole)

    @staticmethod
    def _shown(line: str, query: LogQuery) -> bytes:
        return f"{line if query.timestamps else line.partition(' ')[2]}\n".encode()


def _instant(line: str) -> float:
    try:
        return datetime.fromisoformat(line.partition(" ")[0]).timestamp()
    except ValueError:
        return 0.0
