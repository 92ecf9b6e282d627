"""A slurmrestd that lies: a proxy before a real one that passes on, answers garbage, or tells another time."""

from __future__ import annotations

import http.client
import http.server
import itertools
import json
import re
import threading
from typing import Any
from urllib.parse import urlsplit

#: What a broken server, a proxy before it, or a wrong address answers: status, type, body.
GARBAGE = (
    (200, "text/html", b"<!DOCTYPE html><html><body><h1>It works!</h1></body></html>"),
    (200, "application/json", b'{"jobs": [{"job_id": 12, "job_state": ["RUN'),
    (200, "application/octet-stream", bytes(range(256)) * 4),
    (500, "application/json", b'{"errors": [{"error_number": -1, "error": "Unspecified error"}]}'),
    (200, "application/json", b"[]"),
    (200, "application/json", b'{"jobs": "none", "nodes": 7, "partitions": null}'),
    (200, "application/json", b'{"jobs": [{"job_id": "x"}], "nodes": [1], "partitions": [{}]}'),
    (502, "text/html", b""),
)


class BrokenRest:
    """``mode`` is "pass", "garbage" or "skew"; ``skew_s`` is added to every instant in an answer."""

    def __init__(self, target: str) -> None:
        self.mode = "pass"
        self.skew_s = 0
        self.asked = 0
        self._garbage = itertools.cycle(GARBAGE)
        host = urlsplit(target)
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.asked += 1
                # What changes something is passed on, and its answer lost: the worst that can be.
                if proxy.mode == "garbage" and self.command == "GET":
                    status, kind, content = next(proxy._garbage)
                else:
                    status, kind, content = proxy._forward(host, self.command, self.path, body, dict(self.headers))
                if proxy.mode == "garbage" and self.command != "GET":
                    status, kind, content = next(proxy._garbage)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = _any  # noqa: N815

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _forward(
        self, host: Any, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, str, bytes]:
        # A server whose clock is off reads instants by that clock, too.
        path = re.sub(r"(?<=_time=)(uts)?(\d{9,})", lambda t: f"{t[1] or ''}{int(t[2]) - self.skew_s}", path)
        connection = http.client.HTTPConnection(host.hostname, host.port, timeout=30)
        try:
            kept = {k: v for k, v in headers.items() if k.lower() not in ("host", "content-length", "connection")}
            connection.request(method, path, body=body or None, headers=kept)
            answer = connection.getresponse()
            content = answer.read()
        except OSError:
            return 502, "text/plain", b"no slurmrestd"
        finally:
            connection.close()
        if self.skew_s and answer.getheader("Content-Type", "").startswith("application/json"):
            content = json.dumps(self._shifted(json.loads(content))).encode()
        return answer.status, answer.getheader("Content-Type", "text/plain"), content

    def _shifted(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._shifted(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._shifted(inner) for inner in value]
        if isinstance(value, int) and not isinstance(value, bool) and 1_500_000_000 < value < 2_500_000_000:
            return value + self.skew_s
        return value

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
