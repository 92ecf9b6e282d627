"""A small threaded HTTP server for the sandbox's WSGI applications, with a port error that names the port."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class PortUnavailable(Exception):
    """The address cannot be listened on; the message is one line that names it."""


class _QuietHandler(WSGIRequestHandler):
    """Logs nothing and closes each connection, so that a stopped server answers nobody."""

    protocol_version = "HTTP/1.0"

    def log(self, type: str, message: str, *args: Any) -> None:
        """Access lines would bury what the sandbox has to say."""


def listen(name: str, host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one. Raises ``PortUnavailable``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as exc:
        listener.close()
        why = "is already in use" if exc.errno == errno.EADDRINUSE else f"cannot be opened: {exc.strerror or exc}"
        raise PortUnavailable(f"port {port} on {host} ({name}) {why}") from exc
    return listener


class ThreadedServer:
    """One WSGI application on one address, a thread a request."""

    def __init__(self, name: str, host: str, port: int, app: WsgiApp) -> None:
        self._listener = listen(name, host, port)
        self.host = host
        self.port = int(self._listener.getsockname()[1])
        self._server: BaseWSGIServer = make_server(
            host, self.port, app, threaded=True, request_handler=_QuietHandler, fd=self._listener.fileno()
        )
        self._thread = threading.Thread(target=self._serve, name=f"sandbox-{name}", daemon=True)

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.1)

    @property
    def url(self) -> str:
        """The server's base address without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port; requests being answered are left to end by themselves."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(timeout=2)
        self._server.server_close()
        self._listener.close()
