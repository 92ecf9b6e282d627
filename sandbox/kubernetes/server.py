"""The pretend cluster as one thing: its store, its API on a port, and what clears up behind it."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sandbox.kubernetes.access import Access
from sandbox.kubernetes.api import Answer, Api
from sandbox.kubernetes.authority import Authority
from sandbox.kubernetes.crds import packed
from sandbox.kubernetes.faults import Faults
from sandbox.kubernetes.garbage import Collector
from sandbox.kubernetes.logs import Logs
from sandbox.kubernetes.reads import Reader, ReadSettings
from sandbox.kubernetes.registry import CRDS, Registry
from sandbox.kubernetes.status import Object
from sandbox.kubernetes.store import Key, Store
from sandbox.kubernetes.subresources import Subresources
from sandbox.kubernetes.target import Request
from sandbox.kubernetes.writes import How, Writer
from sandbox.serving import listen
from sandbox.world import World

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class ClusterApi:
    """One cluster. Its state lies in ``state_dir`` and is there again after a restart.

    ``crds`` names the API groups whose CRDs are installed when the state is new; None for all that are known.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        name: str,
        world: World | None = None,
        crds: Sequence[str] | None = None,
        clock: Callable[[], float] = time.time,
        history: int = 50_000,
    ) -> None:
        self.name = name
        self.state_dir = Path(state_dir)
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self.world = world or World()
        self.settings = ReadSettings()
        self.store = Store(self.state_dir / "objects.sqlite3", history)
        self.registry = Registry(self.store)
        faults = Faults(self.world, name)
        self.writer = Writer(self.store, self.registry, lambda: clock() + faults.skew_s())
        self.access = Access(self.store, self.state_dir, name)
        self.logs = Logs(self.state_dir / "logs")
        self._end = threading.Event()
        self.api = Api(
            self.writer,
            Reader(self.store, self.settings),
            self.access,
            Subresources(self.writer, self.access, self.logs),
            faults,
            lambda: self._end.is_set() or faults.is_away(),
        )
        self._collector = Collector(self.writer, self.registry, self._end.is_set)
        self.authority: Authority | None = None
        self._http: _Http | None = None
        self._serving: threading.Thread | None = None
        self._seed(crds)

    def _seed(self, crds: Sequence[str] | None) -> None:
        """Lay down what every cluster has, where the state is new."""
        marker = Key("namespaces", "", _NAMESPACES[-1])
        if self.store.get(marker) is not None:
            return
        how = How(manager="kube-apiserver", validation="Ignore")
        kinds = {kind.resource: kind for kind in self.registry.all()}
        for crd in packed(crds):
            if self.store.get(Key(CRDS, "", crd["metadata"]["name"])) is None:
                self.writer.create(kinds[CRDS], "", crd, how)
        for name in _NAMESPACES:
            if self.store.get(Key("namespaces", "", name)) is None:
                self.writer.create(kinds["namespaces"], "", {"metadata": {"name": name}}, how)

    # --- serving

    def serve(self, port: int = 0, host: str = "127.0.0.1", authority: Authority | None = None) -> str:
        """Begin to answer and to clear up, by https where an authority vouches; the address. Raises PortUnavailable."""
        self.authority = authority
        context = None if authority is None else authority.context()
        self._http = _Http(self.api, listen(f"kubernetes {self.name}", host, port), self._end, context)
        self._serving = threading.Thread(
            target=self._http.serve_forever, args=(0.1,), name=f"sandbox-kubernetes-{self.name}", daemon=True
        )
        self._serving.start()
        self._collector.start()
        return self.url

    @property
    def url(self) -> str:
        """The API server's address. Raises RuntimeError before ``serve``."""
        if self._http is None:
            raise RuntimeError("the cluster is not served yet")
        host, port = self._http.server_address[:2]
        if host == "0.0.0.0" and self.authority is not None:  # noqa: S104  (it is told, not opened)
            host = next(iter(self.authority.names), "127.0.0.1")
        return f"{'http' if self.authority is None else 'https'}://{host!s}:{port}"

    @property
    def token(self) -> str:
        """The bearer token of the cluster's administrator."""
        return self.access.token

    def kubeconfig(self, token: str = "") -> Object:
        """A kubeconfig as data, for the administrator or for whom ``token`` stands."""
        named, cluster = self.name, {"server": self.url}
        if self.authority is not None:
            cluster["certificate-authority-data"] = self.authority.ca_data
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": named, "cluster": cluster}],
            "users": [{"name": named, "user": {"token": token or self.token}}],
            "contexts": [{"name": named, "context": {"cluster": named, "user": named, "namespace": "default"}}],
            "current-context": named,
        }

    def stop(self) -> None:
        """End every watch, free the port, close the state."""
        self._end.set()
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http.hang_up()
        if self._serving is not None:
            self._serving.join(timeout=2)
            self._collector.join()
        self.store.close()

    # --- for whoever plays the cluster's part

    def apply(self, thing: Object, namespace: str = "default") -> Object:
        """Create an object from inside, as a component of the cluster does. Raises ApiError."""
        kind = self.registry.by_kind(thing.get("apiVersion", ""), thing.get("kind", ""))
        if kind is None:
            raise KeyError(f"no kind {thing.get('kind')} in {thing.get('apiVersion')}")
        place = thing.get("metadata", {}).get("namespace", namespace)
        return self.writer.create(kind, place if kind.namespaced else "", thing, How(manager="sandbox"))

    def set_status(self, resource: str, namespace: str, name: str, status: Object) -> Object:
        """Write an object's status from inside. Raises ApiError (404)."""
        kind = self.registry.by_resource(resource)
        if kind is None:
            raise KeyError(f"no resource {resource}")
        with self.store.lock:
            body = {**self.writer.read(kind, namespace, name), "status": status}
            return self.writer.update(kind, namespace, name, body, How(manager="sandbox"), "status")


class _Http(ThreadingHTTPServer):
    """A thread a connection; connections are kept alive as clients expect of an API server."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, api: Api, listener: socket.socket, end: threading.Event, context: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_address = listener.getsockname()
        self.api = api
        self.end = end
        self._context = context
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def get_request(self) -> tuple[Any, Any]:
        """A connection; hands are shaken in its own thread, so that a silent client holds nobody up."""
        request, address = super().get_request()
        if self._context is not None:
            request = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, so that stopping ends it too."""
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget it."""
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""

    def hang_up(self) -> None:
        """End all connections."""
        with self._lock:
            still_open = list(self._open)
        for connection in still_open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:
        """Access lines would bury what the sandbox has to say."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The Date header goes by the cluster's clock."""
        return super().date_time_string(self.server.api.writer.clock() if timestamp is None else timestamp)

    def version_string(self) -> str:
        """No word of what answers."""
        return "kube-apiserver"

    def _any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        answer = self.server.api.handle(Request.of(self.command, self.path, self.headers, body))  # type: ignore[arg-type]
        if answer.cut or self.server.end.is_set():
            self.close_connection = True
            return
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Cache-Control", "no-cache, private")
        for name, value in answer.headers:
            self.send_header(name, value)
        if answer.stream is None:
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            self.server.api.tally.sent(len(answer.body))
        else:
            self._stream(answer)

    def _stream(self, answer: Answer) -> None:
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        try:
            for piece in answer.stream or ():
                if piece:
                    self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                    self.wfile.flush()
                    self.server.api.tally.sent(len(piece))
                elif self._left():
                    self.close_connection = True
                    return
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _left(self) -> bool:
        """Whether the client has hung up."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        if not readable:
            return False
        try:
            if not isinstance(self.connection, ssl.SSLSocket):
                return not self.connection.recv(1, socket.MSG_PEEK)
            self.connection.setblocking(False)
            try:
                # Nobody speaks while a watch goes on, so what is read is the end or the protocol's own.
                return not self.connection.recv(1)
            except ssl.SSLWantReadError:
                return False
            finally:
                self.connection.setblocking(True)
        except OSError:
            return True

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _any
