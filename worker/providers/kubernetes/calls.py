"""Calls to one API server: raw JSON in and out, one HTTP attempt each, bounded in time and size, counted."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from kubernetes.client import rest

from worker.providers import errors as e
from worker.providers.kubernetes import errors as ke
from worker.providers.kubernetes.client import KubernetesAccess, connection
from worker.providers.kubernetes.resources import Resource, Served, chosen_version, resources_of

#: The HTTP library that the official client brings, by its door.
_http: Any = rest.urllib3  # type: ignore[attr-defined]
CONNECT_TIMEOUT_S = 4.0
#: A body beyond this is no answer: a page of 500 pods takes 8 MB.
MAX_BODY_BYTES = 256 * 1024 * 1024
PAGE = 500
#: Clocks that differ by no more than this are taken for the same.
SAME_CLOCK_S = 3.0
#: Who we are in the field ownership that the server keeps.
MANAGER = "quarterdeck"
#: A watch that heard nothing for so long, not even a bookmark, is opened again.
WATCH_QUIET_S = 90.0
#: A line of a watch beyond this is broken: an object has at most 3 MB.
_LINE_BYTES = 16 * 1024 * 1024
MERGE, APPLY, JSON_PATCH = (
    "application/merge-patch+json",
    "application/apply-patch+yaml",
    "application/json-patch+json",
)
Params = Mapping[str, str | int]


@dataclass(slots=True)
class Tally:
    """What was asked so far: requests and bytes received."""

    requests: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list; ``token`` leads to the next, "" on the last."""

    items: list[dict[str, Any]]
    resource_version: str
    token: str


class Caller:
    """One API server as one of its users. Safe to use from several threads; raises only provider errors."""

    def __init__(self, access: KubernetesAccess) -> None:
        self.access = access
        self.tally = Tally()
        # What the official client wants as files (trust, certificate, key) lies here, for us alone, until the end.
        self._folder = tempfile.TemporaryDirectory(prefix="quarterdeck-kube-")
        self._client = connection(access, Path(self._folder.name))
        self._lock = threading.Lock()
        #: How many seconds the server's clock is ahead of ours, by the dates of its answers.
        self.skew_s = 0.0

    def renew(self, token: str) -> None:
        """Go on with another token of the same user."""
        self.access = replace(self.access, token=token)

    def close(self) -> None:
        """Let go of the connections and the files."""
        self._client.rest_client.pool_manager.clear()
        self._folder.cleanup()

    # --- verbs

    def get(self, path: str, params: Params | None = None, *, doing: str = "") -> dict[str, Any]:
        """One object, or any document of the server."""
        return self._json("GET", path, params, doing=doing or f"get {path}")

    def page(self, path: str, params: Params | None = None, *, token: str = "", limit: int = PAGE) -> Page:
        """One page of a list, ``token`` the one that the page before gave. Raises HistoryGone once that is too old."""
        asked: dict[str, str | int] = {**(params or {}), "limit": limit}
        if token:
            asked["continue"] = token
        body = self._json("GET", path, asked, doing=f"list {path}")
        head = body.get("metadata") if isinstance(body.get("metadata"), dict) else {}
        rows = body.get("items")
        if not isinstance(rows, list):
            raise e.Unavailable(f"list {path}: the answer has no items", source=ke.SOURCE, code="answer")
        # Items of a list do not say what they are.
        kind = str(body.get("kind") or "").removesuffix("List")
        same = {"apiVersion": body.get("apiVersion"), "kind": kind}
        found = [{**same, **row} for row in rows if isinstance(row, dict)]
        return Page(found, str((head or {}).get("resourceVersion") or ""), str((head or {}).get("continue") or ""))

    def listed(self, path: str, params: Params | None = None) -> tuple[list[dict[str, Any]], str]:
        """All pages of a list and the revision to watch from; begun anew where a page's token became too old."""
        for attempt in range(3):
            found: list[dict[str, Any]] = []
            token = ""
            try:
                while True:
                    page = self.page(path, params, token=token)
                    found += page.items
                    token = page.token
                    if not token:
                        return found, page.resource_version
            except ke.HistoryGone:
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Make an object. Raises Conflict with the code AlreadyExists where one of its name is there."""
        params: dict[str, str | int] = {"fieldManager": MANAGER}
        if dry_run:
            params["dryRun"] = "All"
        name = (body.get("metadata") or {}).get("name") or ""
        return self._json("POST", path, params, body, doing=f"create {path}/{name}")

    def patch(
        self, path: str, body: Any, kind: str = MERGE, *, dry_run: bool = False, force: bool = False
    ) -> dict[str, Any]:
        """Change an object by a merge, a server-side apply (made where it is missing) or JSON operations."""
        params: dict[str, str | int] = {"fieldManager": MANAGER}
        if kind == APPLY and force:
            params["force"] = "true"
        if dry_run:
            params["dryRun"] = "All"
        return self._json("PATCH", path, params, body, content_type=kind, doing=f"patch {path}")

    def delete(self, path: str, *, propagation: str = "Background", grace_s: int | None = None, uid: str = "") -> None:
        """Ask for deletion; with ``uid`` only of that very object (Conflict otherwise). NotFound when gone."""
        body: dict[str, Any] = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": propagation,
        }
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if uid:
            body["preconditions"] = {"uid": uid}
        self._json("DELETE", path, None, body, doing=f"delete {path}")

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Anything else that is posted: evictions, reviews."""
        return self._json("POST", path, None, body, doing=f"create {path}")

    def text(self, path: str, params: Params | None = None, *, most_bytes: int) -> bytes:
        """A document that is no JSON, such as a log; not more than ``most_bytes`` of it."""
        return self._bytes("GET", path, params, None, "", f"get {path}", most_bytes=most_bytes, cuts=True)

    def watch(self, path: str, params: Params | None = None) -> Watch:
        """A stream of what changes. Raises HistoryGone where it should begin too long ago."""
        asked = {**(params or {}), "watch": "true", "allowWatchBookmarks": "true"}
        doing = f"watch {path}"
        answer = self._open("GET", path, asked, None, "", doing, read_s=WATCH_QUIET_S)
        if answer.status != 200:
            raise ke.refusal(answer.status, _all(answer, doing, 1 << 20), dict(answer.headers), doing)
        return Watch(answer, doing, self)

    def served(self) -> Served:
        """What the server serves of the groups that the portal knows; one call a group."""
        version = str(self.get("/version").get("gitVersion") or "")
        found = resources_of(self.get("/api/v1"))
        for row in self.get("/apis").get("groups") or ():
            group = str(row.get("name") or "")
            chosen = chosen_version(group, [str(one.get("version")) for one in row.get("versions") or ()])
            if chosen:
                with contextlib.suppress(e.NotFound):
                    found += resources_of(self.get(f"/apis/{group}/{chosen}"))
        return Served(version, tuple(found))

    # --- one attempt

    def _json(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: Any = None,
        *,
        content_type: str = "application/json",
        doing: str,
    ) -> dict[str, Any]:
        found = self._bytes(method, path, params, body, content_type, doing, most_bytes=MAX_BODY_BYTES)
        try:
            told = json.loads(found)
        except ValueError as error:
            raise e.Unavailable(f"{doing}: the answer is no JSON: {error}", source=ke.SOURCE, code="answer") from error
        if not isinstance(told, dict):
            raise e.Unavailable(f"{doing}: the answer is no object", source=ke.SOURCE, code="answer")
        return told

    def _bytes(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: Any,
        content_type: str,
        doing: str,
        *,
        most_bytes: int,
        cuts: bool = False,
    ) -> bytes:
        answer = self._open(method, path, params, body, content_type, doing, read_s=self.access.timeout_s)
        try:
            found = _all(answer, doing, most_bytes, self.access.timeout_s, cuts=cuts)
        finally:
            answer.release_conn()
        with self._lock:
            self.tally.received_bytes += len(found)
        if not 200 <= answer.status <= 299:
            raise ke.refusal(answer.status, found, dict(answer.headers), doing)
        return found

    def _open(
        self, method: str, path: str, params: Params | None, body: Any, content_type: str, doing: str, *, read_s: float
    ) -> Any:
        url = self._client.configuration.host + path + (f"?{urlencode(params)}" if params else "")
        headers = {"Accept": "application/json, */*", "User-Agent": "quarterdeck"}
        if self.access.token:
            headers["Authorization"] = f"Bearer {self.access.token}"
        sent = None
        if body is not None:
            headers["Content-Type"] = content_type
            sent = json.dumps(body).encode()
        with self._lock:
            self.tally.requests += 1
        try:
            answer = self._client.rest_client.pool_manager.request(
                method,
                url,
                body=sent,
                headers=headers,
                timeout=_http.Timeout(connect=min(CONNECT_TIMEOUT_S, self.access.timeout_s), read=read_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except (_http.exceptions.NewConnectionError, _http.exceptions.ConnectTimeoutError) as error:
            raise ke.unsent(doing, error) from error
        except _http.exceptions.SSLError as error:
            raise e.Unavailable(
                f"{doing}: the server's certificate is not one that we trust: {error}", source=ke.SOURCE, code=ke.UNSENT
            ) from error
        except (_http.exceptions.HTTPError, OSError, ValueError) as error:
            raise ke.cut(doing, error) from error
        self._compare_clocks(str(answer.headers.get("Date") or ""))
        return answer

    def _compare_clocks(self, date: str) -> None:
        try:
            told = parsedate_to_datetime(date)
            skew_s = (told - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return
        # A date has whole seconds, and the answer took its time: so little is no difference of clocks.
        self.skew_s = skew_s if abs(skew_s) > SAME_CLOCK_S else 0.0


def _all(answer: Any, doing: str, most_bytes: int, limit_s: float = 20.0, *, cuts: bool = False) -> bytes:
    """The whole body. Raises Unavailable where it is too long (unless ``cuts``), too slow or cut off."""
    end = time.monotonic() + limit_s
    found = bytearray()
    try:
        for piece in answer.stream(1 << 16):
            found += piece
            if len(found) > most_bytes:
                # The rest stays unread, so nobody else may go on with this connection.
                answer.close()
                if cuts:
                    return bytes(found[:most_bytes])
                raise e.Unavailable(
                    f"{doing}: the answer is longer than {most_bytes} bytes", source=ke.SOURCE, code="answer"
                )
            if time.monotonic() > end:
                answer.close()
                if cuts:
                    return bytes(found)
                raise e.Unavailable(f"{doing}: no whole answer within {limit_s:g} s", source=ke.SOURCE, code="slow")
    except (_http.exceptions.HTTPError, OSError) as error:
        raise ke.cut(doing, error) from error
    return bytes(found)


class Watch:
    """An open watch: iterate over its lines, each ``{"type": …, "object": …}``; ``stop`` from any thread ends it."""

    def __init__(self, answer: Any, doing: str, caller: Caller) -> None:
        self._answer = answer
        self._doing = doing
        self._caller = caller
        self._ended = False

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closed."""
        self.stop()

    def stop(self) -> None:
        """End the stream; a thread that waits for the next line goes on at once."""
        self._ended = True
        # Which of these interrupts a read that waits depends on where the response stands; both may be repeated.
        for end in (self._answer.shutdown, self._answer.close):
            with contextlib.suppress(Exception):
                end()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Lines until the server ends the stream. Raises HistoryGone, Unavailable where it is cut, or what it says."""
        rest_of = b""
        try:
            for piece in self._answer.stream(1 << 16):
                with self._caller._lock:
                    self._caller.tally.received_bytes += len(piece)
                *lines, rest_of = (rest_of + piece).split(b"\n")
                if len(rest_of) > _LINE_BYTES:
                    raise e.Unavailable(f"{self._doing}: a line is too long", source=ke.SOURCE, code="answer")
                for line in lines:
                    if line.strip():
                        yield self._read(line)
        except (_http.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            # A stream that is closed by another thread ends in whatever the HTTP library happens to raise.
            if self._ended:
                return
            raise ke.cut(self._doing, error) from error

    def _read(self, line: bytes) -> dict[str, Any]:
        try:
            told = json.loads(line)
        except ValueError as error:
            raise e.Unavailable(f"{self._doing}: a line is no JSON", source=ke.SOURCE, code="answer") from error
        found = told if isinstance(told, dict) else {}
        thing = found.get("object")
        if not isinstance(thing, dict) or not isinstance(found.get("type"), str):
            raise e.Unavailable(f"{self._doing}: a line is no event", source=ke.SOURCE, code="answer")
        if found["type"] == "ERROR":
            raise ke.of_watch(thing, self._doing)
        return found


def path_of(resource: Resource, thing: Mapping[str, Any]) -> str:
    """The path of an object that is there."""
    head = thing["metadata"]
    return resource.path(str(head.get("namespace") or ""), str(head["name"]))
