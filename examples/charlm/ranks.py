"""Ranks as processes: they meet through a file, then add up vectors over TCP, with rank 0 in the middle."""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import time
from array import array
from pathlib import Path
from typing import Any


class PeerLostError(RuntimeError):
    """Another rank is gone or silent; the message names it."""


class Group:
    """The ranks of one run. Every rank must make the same calls in the same order.

    `path` is the meeting file in a folder all ranks see; rank 0 writes its address and a secret there and removes the
    file once all have come. Raises PeerLostError when a rank does not come, dies, or is silent for `timeout_s`.
    """

    def __init__(self, rank: int, size: int, path: Path, timeout_s: float = 60.0) -> None:
        self.rank = rank
        self.size = size
        self.timeout_s = timeout_s
        self.peers: dict[int, socket.socket] = {}
        if size > 1:
            if rank == 0:
                self._host(path)
            else:
                self._join(path)

    def _host(self, path: Path) -> None:
        # CHARLM_HOST binds to one address, for machines with several networks and for tests on loopback.
        only = os.environ.get("CHARLM_HOST", "")
        # A pod's own name is known to nobody else; the name of the first rank is, to all of its job.
        name = only or os.environ.get("MASTER_ADDR") or socket.gethostname()
        secret = secrets.token_hex(16)
        with socket.create_server((only, 0), backlog=self.size) as server:
            meeting = {"host": name, "port": server.getsockname()[1], "secret": secret}
            temporary = path.with_name(f"{path.name}.{os.getpid()}")
            temporary.touch(mode=0o600)
            temporary.write_text(json.dumps({**meeting, "machine": socket.gethostname()}))
            temporary.replace(path)
            deadline = time.monotonic() + self.timeout_s
            try:
                while len(self.peers) < self.size - 1:
                    server.settimeout(max(0.01, deadline - time.monotonic()))
                    try:
                        connection, _ = server.accept()
                    except TimeoutError:
                        missing = sorted(set(range(1, self.size)) - set(self.peers))
                        raise PeerLostError(f"rank(s) {missing} did not come within {self.timeout_s:.0f} s") from None
                    self._admit(connection, secret)
            finally:
                path.unlink(missing_ok=True)
        for peer in self.peers:
            self._send(peer, b"all here")

    def _admit(self, connection: socket.socket, secret: str) -> None:
        connection.settimeout(5.0)
        try:
            hello = json.loads(read_frame(connection))
            known = hello.get("secret") == secret and hello.get("size") == self.size
        except (OSError, ValueError, EOFError, AttributeError):
            known = False
        if not known:
            connection.close()
            return
        connection.settimeout(self.timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peers[int(hello["rank"])] = connection

    def _join(self, path: Path) -> None:
        deadline = time.monotonic() + self.timeout_s
        while time.monotonic() < deadline:
            try:
                meeting = json.loads(path.read_text())
                near = meeting["machine"] == socket.gethostname()
                host = "127.0.0.1" if near else meeting["host"]
                connection = socket.create_connection((host, meeting["port"]), timeout=5.0)
            except (OSError, ValueError, KeyError):
                time.sleep(0.05)  # not written yet, or left behind by an earlier run whose rank 0 is gone
                continue
            hello = {"secret": meeting["secret"], "rank": self.rank, "size": self.size}
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                write_frame(connection, json.dumps(hello).encode())
                connection.settimeout(self.timeout_s)
                read_frame(connection)
            except (OSError, EOFError):
                connection.close()
                time.sleep(0.05)
                continue
            self.peers[0] = connection
            return
        raise PeerLostError(f"rank 0 was not found through {path} within {self.timeout_s:.0f} s")

    def add_up(self, vector: list[float]) -> list[float]:
        """The element-wise sum over all ranks, the same bits on every rank: always added in the order of the ranks."""
        if self.size == 1:
            return vector
        if self.rank == 0:
            total = vector
            for peer in range(1, self.size):
                part = array("d", self._receive(peer))
                if len(part) != len(total):
                    raise PeerLostError(f"rank {peer} sent {len(part)} numbers instead of {len(total)}")
                total = [a + b for a, b in zip(total, part, strict=True)]
            data = array("d", total).tobytes()
            for peer in range(1, self.size):
                self._send(peer, data)
            return total
        self._send(0, array("d", vector).tobytes())
        return array("d", self._receive(0)).tolist()

    def tell(self, value: Any) -> Any:
        """Rank 0's value (anything JSON holds), on every rank."""
        if self.rank == 0:
            for peer in self.peers:
                self._send(peer, json.dumps(value).encode())
            return value
        return json.loads(self._receive(0))

    def _send(self, peer: int, data: bytes) -> None:
        try:
            write_frame(self.peers[peer], data)
        except OSError as error:
            raise PeerLostError(f"lost rank {peer}: {error.strerror or error}") from error

    def _receive(self, peer: int) -> bytes:
        try:
            return read_frame(self.peers[peer])
        except TimeoutError as error:
            raise PeerLostError(f"rank {peer} was silent for {self.timeout_s:.0f} s") from error
        except (OSError, EOFError) as error:
            raise PeerLostError(f"lost rank {peer}: its connection closed") from error

    def close(self) -> None:
        """Hang up; the other ranks see it."""
        for connection in self.peers.values():
            connection.close()
        self.peers = {}


def write_frame(connection: socket.socket, data: bytes) -> None:
    """Send a length of four bytes and the data."""
    connection.sendall(struct.pack("!I", len(data)) + data)


def read_frame(connection: socket.socket) -> bytes:
    """Receive what write_frame sent. Raises EOFError when the other end closes."""
    (length,) = struct.unpack("!I", read_exactly(connection, 4))
    return read_exactly(connection, length)


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """Receive `count` bytes. Raises EOFError when the other end closes before."""
    parts = bytearray()
    while len(parts) < count:
        data = connection.recv(min(1 << 20, count - len(parts)))
        if not data:
            raise EOFError
        parts += data
    return bytes(parts)
