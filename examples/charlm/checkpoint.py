"""Checkpoint folders in the layout of PyTorch's DCP: a shard a rank, then `.metadata`, written last and by rename.

step-20/__0_0.distcp   the share of rank 0: weights and momentum as doubles, with a checksum
step-20/__1_0.distcp   the share of rank 1
step-20/.metadata      JSON; its presence says that every shard was whole on disk before it was written
"""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from array import array
from pathlib import Path
from typing import Any

MAGIC = b"CHARLM1\n"


class BadCheckpointError(RuntimeError):
    """A checkpoint folder that must not be resumed from; the message says which and why."""


def share(total: int, rank: int, size: int) -> tuple[int, int]:
    """Start and end of the parameters that `rank` writes."""
    return total * rank // size, total * (rank + 1) // size


def write_durably(path: Path, content: bytes) -> None:
    """Write and fsync. Raises OSError."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def prepare(folder: Path) -> None:
    """Rank 0, before any shard is written: what an earlier attempt left there must not make the new save look whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in [folder / ".metadata", folder / ".metadata.tmp", *folder.glob("*.distcp")]:
        old.unlink(missing_ok=True)


def write_shard(folder: Path, rank: int, size: int, parameters: array[float], momentum: array[float]) -> None:
    """Every rank: its own share."""
    start, end = share(len(parameters), rank, size)
    header = json.dumps({"rank": rank, "start": start, "end": end}).encode()
    body = parameters[start:end].tobytes() + momentum[start:end].tobytes()
    content = MAGIC + struct.pack("<I", len(header)) + header + body
    write_durably(folder / f"__{rank}_0.distcp", content + struct.pack("<I", zlib.crc32(content)))


def write_metadata(folder: Path, size: int, about: dict[str, Any]) -> None:
    """Rank 0, after every rank has written: declare the checkpoint whole."""
    names = [f"__{rank}_0.distcp" for rank in range(size)]
    shards = [{"name": name, "size": (folder / name).stat().st_size} for name in names]
    temporary = folder / ".metadata.tmp"
    write_durably(temporary, json.dumps({"format": "charlm-1", **about, "shards": shards}, indent=1).encode())
    temporary.replace(folder / ".metadata")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the rename itself must survive a power cut
    finally:
        os.close(descriptor)


def newest_whole(parent: Path) -> Path | None:
    """The `step-N` folder with the largest N that is whole; torn ones are passed over."""
    numbered = [
        (int(match[1]), path) for path in parent.glob("step-*") if (match := re.fullmatch(r"step-(\d+)", path.name))
    ]
    for _, path in sorted(numbered, reverse=True):
        try:
            read_about(path)
        except BadCheckpointError:
            continue
        return path
    return None


def read_about(folder: Path) -> dict[str, Any]:
    """What `.metadata` says, after checking that every shard it names is there in full length."""
    if not folder.is_dir():
        raise BadCheckpointError(f"{folder} is no folder")
    if not (folder / ".metadata").is_file():
        raise BadCheckpointError(f"{folder} is torn: .metadata is missing, so not every rank finished writing")
    try:
        about = json.loads((folder / ".metadata").read_text())
        shards = [(str(shard["name"]), int(shard["size"])) for shard in about["shards"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadCheckpointError(f"{folder} is torn: .metadata is unreadable ({error})") from error
    for name, size in shards:
        path = folder / name
        if not path.is_file():
            raise BadCheckpointError(f"{folder} is torn: {name} is missing")
        if path.stat().st_size != size:
            raise BadCheckpointError(f"{folder} is torn: {name} has {path.stat().st_size} bytes instead of {size}")
    return dict(about)


def load(folder: Path, total: int) -> tuple[dict[str, Any], array[float], array[float]]:
    """(about, parameters, momentum) of a whole checkpoint, whatever number of ranks wrote it."""
    about = read_about(folder)
    if about.get("parameters") != total:
        raise BadCheckpointError(f"{folder} holds {about.get('parameters')} parameters, this model has {total}")
    parameters, momentum = array("d", bytes(8 * total)), array("d", bytes(8 * total))
    covered = 0
    for shard in about["shards"]:
        content = (folder / shard["name"]).read_bytes()
        body, checksum = content[:-4], content[-4:]
        if not body.startswith(MAGIC) or struct.pack("<I", zlib.crc32(body)) != checksum:
            raise BadCheckpointError(f"{folder} is damaged: {shard['name']} fails its checksum")
        (length,) = struct.unpack_from("<I", body, len(MAGIC))
        data_at = len(MAGIC) + 4 + length
        header = json.loads(body[len(MAGIC) + 4 : data_at])
        start, end = header["start"], header["end"]
        numbers = array("d", body[data_at:])
        parameters[start:end] = numbers[: end - start]
        momentum[start:end] = numbers[end - start :]
        covered += end - start
    if covered != total:
        raise BadCheckpointError(f"{folder} covers {covered} of {total} parameters")
    return about, parameters, momentum
