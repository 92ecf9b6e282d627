"""The control server: state and switches as JSON, and one page for people. Answers this machine only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from jinja2 import Environment, FileSystemLoader
from werkzeug.wrappers import Request, Response

from sandbox.control.faults import SERVICES, SHAPES, BadFault, Done, NoSuchThing, advance, clear, inject
from sandbox.control.stack import Stack
from sandbox.serving import ThreadedServer

_HERE: Final = Path(__file__).parent
_FILES: Final = {"/style.css": "text/css; charset=utf-8", "/live.js": "text/javascript; charset=utf-8"}
_BODY_LIMIT_BYTES: Final = 64 * 1024
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Refused(Exception):
    """A request that is not answered, with the status and the reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ControlServer:
    """Serves one ``Stack``; ``allowed_hosts`` are names it may be called by besides this machine's own."""

    def __init__(self, stack: Stack, host: str, port: int, allowed_hosts: Iterable[str] = ()) -> None:
        self._stack = stack
        self._server = ThreadedServer("control", host, port, self)
        self.url = self._server.url
        self.port = self._server.port
        names = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host, *allowed_hosts}
        self._hosts = frozenset(f"{name}:{self.port}" for name in names)
        self._pages = Environment(loader=FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
        self._pages.filters["clock"] = lambda at: datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    def stop(self) -> None:
        """Stop answering."""
        self._server.stop()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """The WSGI application."""
        request = Request(environ)
        request.max_content_length = _BODY_LIMIT_BYTES
        wants_json = request.path.startswith("/api/")
        try:
            self._guard(request)
            response = self._route(request)
        except Refused as exc:
            response = self._refusal(exc.status, exc.message, wants_json)
        except BadFault as exc:
            response = self._refusal(400, str(exc), wants_json)
        except NoSuchThing as exc:
            response = self._refusal(404, str(exc), wants_json)
        for key, value in _HEADERS.items():
            response.headers[key] = value
        return response(environ, start_response)

    def _guard(self, request: Request) -> None:
        """Only pages of this server itself and programs on this machine may switch anything."""
        if request.host not in self._hosts:
            raise Refused(421, f"this server is not {request.host}")
        if request.method in ("GET", "HEAD"):
            return
        origin = request.headers.get("Origin")
        if origin is not None and (urlsplit(origin).scheme != "http" or urlsplit(origin).netloc not in self._hosts):
            raise Refused(403, "requests from other sites are not taken")
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise Refused(403, "requests from other sites are not taken")
        if (request.content_length or 0) > _BODY_LIMIT_BYTES:
            raise Refused(413, f"the body is longer than {_BODY_LIMIT_BYTES} bytes")

    def _route(self, request: Request) -> Response:
        path, method = request.path, request.method
        read = method in ("GET", "HEAD")
        if path in _FILES and read:
            return Response((_HERE / path[1:]).read_bytes(), content_type=_FILES[path])
        if path == "/" and read:
            return self._page()
        if path == "/fragment" and read:
            return self._html("live.html")
        if path == "/faults" and method == "POST":
            return self._after(inject(self._stack, request.form.to_dict()))
        if path.startswith("/faults/") and path.endswith("/clear") and method == "POST":
            return self._after(clear(self._stack, path.split("/")[2]))
        if path == "/clock" and method == "POST":
            return self._after(advance(self._stack, request.form.to_dict()))
        if path == "/api/clock" and method == "POST":
            return _done(advance(self._stack, _body_of(request)), 200)
        if path == "/api/state" and read:
            return _json(self._stack.state())
        if path == "/api/census" and read:
            return _json(self._stack.census())
        if path == "/api/faults" and read:
            return _json({"faults": self._stack.faults()})
        if path == "/api/faults" and method == "POST":
            return _done(inject(self._stack, _body_of(request)), 201)
        if path.startswith("/api/faults/") and method == "DELETE":
            return _done(clear(self._stack, path.removeprefix("/api/faults/")), 200)
        raise Refused(404, f"there is no {method} {path} here")

    def _html(self, name: str, status: int = 200, **values: Any) -> Response:
        text = self._pages.get_template(name).render(
            **self._stack.state(),
            services=SERVICES,
            shapes=SHAPES,
            has_slurm=self._stack.slurm is not None,
            has_kubernetes=self._stack.kubernetes is not None,
            **values,
        )
        return Response(text, status=status, content_type="text/html; charset=utf-8")

    def _page(self, status: int = 200, error: str = "") -> Response:
        return self._html("page.html", status, error=error)

    def _after(self, done: Done) -> Response:
        # What was done stands in the list of events, so the page needs no message of its own.
        return Response(done.sentence, status=303, headers={"Location": "/"}, content_type="text/plain; charset=utf-8")

    def _refusal(self, status: int, message: str, wants_json: bool) -> Response:
        if wants_json:
            return _json({"error": message}, status)
        if status in (421, 403, 413):
            return Response(f"{message}\n", status=status, content_type="text/plain; charset=utf-8")
        return self._page(status, message)


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value), status=status, content_type="application/json")


def _done(done: Done, status: int) -> Response:
    return _json({"sentence": done.sentence, "uid": done.uid}, status)


def _body_of(request: Request) -> Mapping[str, Any]:
    # A page elsewhere can send a form without being asked, but not JSON.
    if request.mimetype != "application/json":
        raise Refused(415, "send JSON (Content-Type: application/json)")
    try:
        body = json.loads(request.get_data())
    except ValueError as exc:
        raise Refused(400, f"the body is not JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    return body
