"""Lists page by page from one snapshot, and watches with bookmarks that end in 410 where history is gone."""

from __future__ import annotations

import base64
import binascii
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sandbox.kubernetes.conversion import converted
from sandbox.kubernetes.registry import Kind
from sandbox.kubernetes.selectors import Matcher, matcher
from sandbox.kubernetes.status import ApiError, Object, bad_request, gone
from sandbox.kubernetes.store import Change, Compacted, Store
from sandbox.kubernetes.target import Request, Target


@dataclass
class ReadSettings:
    """How the server reads to its clients; changes take effect with the next request."""

    #: A quiet watch gets a bookmark this often, if it asked for them.
    bookmark_s: float = 5.0
    #: A watch without timeoutSeconds ends after this long and up to twice of it.
    watch_s: float = 1800.0
    #: How a watch from a compacted revision is refused: by an ERROR event in a 200, or by the code itself.
    gone_as_event: bool = True
    #: Largest page the server gives, whatever the limit says; 0 for any.
    most_items: int = 0


def _token(revision: int, namespace: str, name: str) -> str:
    told = json.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": f"{namespace}/{name}"}, separators=(",", ":"))
    return base64.urlsafe_b64encode(told.encode()).decode().rstrip("=")


def _read_token(text: str) -> tuple[int, tuple[str, str]]:
    try:
        told = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        namespace, _, name = str(told["start"]).partition("/")
        return int(told["rv"]), (namespace, name)
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise bad_request("continue key is not valid") from None


def revision_of(text: str) -> int:
    """A resourceVersion as the number it is. Raises ApiError (400)."""
    if not text.isdecimal():
        raise bad_request(
            f'Invalid value: "{text}": resourceVersion: strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


class Reader:
    """Reads of one cluster's store."""

    def __init__(self, store: Store, settings: ReadSettings) -> None:
        self.store = store
        self.settings = settings

    def matcher(self, target: Target, request: Request) -> Matcher:
        """The request's selectors; a name in the path of a watch selects by it. Raises ApiError (400)."""
        fields = request.query.get("fieldSelector", "")
        if target.name:
            fields = ",".join(part for part in (fields, f"metadata.name={target.name}") if part)
        return matcher(request.query.get("labelSelector", ""), fields, target.kind.resource)

    # --- list

    def page(self, target: Target, request: Request) -> Object:
        """A list object. Raises ApiError (400, 410, 504)."""
        kind, test = target.kind, self.matcher(target, request)
        limit, token = request.number("limit") or 0, request.query.get("continue", "")
        if self.settings.most_items:
            limit = min(limit or self.settings.most_items, self.settings.most_items)
        begin = None
        if token:
            asked, begin = _read_token(token)
            if request.query.get("resourceVersion", "") not in ("", "0"):
                raise bad_request("specifying resource version is not allowed when using continue")
            revision, objects = self._continued(target, asked, begin)
        else:
            revision, objects = self._begun(target, request)
        if begin is not None:
            objects = [one for one in objects if _place(one) >= begin]
        page: list[Object] = []
        after: Object | None = None
        for one in objects:
            if not test(one):
                continue
            if limit and len(page) == limit:
                after = one
                break
            page.append(one)
        metadata: Object = {"resourceVersion": str(revision)}
        if after is not None:
            metadata["continue"] = _token(revision, *_place(after))
            if not request.query.get("labelSelector") and not request.query.get("fieldSelector"):
                metadata["remainingItemCount"] = len(objects) - len(page)
        return {
            "kind": f"{kind.kind}List",
            "apiVersion": kind.api_version,
            "metadata": metadata,
            "items": [self.item(one, kind) for one in page],
        }

    @staticmethod
    def item(thing: Object, kind: Kind) -> Object:
        """An object as it stands in a list: built-in ones do not say their kind there."""
        told = converted(thing, kind)
        return told if kind.custom else {key: value for key, value in told.items() if key not in ("apiVersion", "kind")}

    def _begun(self, target: Target, request: Request) -> tuple[int, list[Object]]:
        asked = request.query.get("resourceVersion", "")
        exact = request.query.get("resourceVersionMatch") == "Exact"
        with self.store.lock:
            if asked not in ("", "0"):
                wanted = revision_of(asked)
                if wanted > self.store.revision:
                    said = f"Too large resource version: {wanted}, current: {self.store.revision}"
                    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
                    raise ApiError(504, "Timeout", said, details={"causes": causes, "retryAfterSeconds": 1})
                if exact and wanted != self.store.revision:
                    objects = self.store.snapshot_at(wanted, target.kind.resource, target.namespace)
                    if objects is None:
                        raise gone(f"The provided resource version {wanted} is too old.")
                    return wanted, objects
            if request.query.get("limit"):
                return self.store.snapshot(target.kind.resource, target.namespace)
            return self.store.revision, self.store.scan(target.kind.resource, target.namespace)

    def _continued(self, target: Target, asked: int, begin: tuple[str, str]) -> tuple[int, list[Object]]:
        with self.store.lock:
            if asked < 0:
                return self.store.snapshot(target.kind.resource, target.namespace)
            objects = self.store.snapshot_at(asked, target.kind.resource, target.namespace)
        if objects is None:
            error = gone(
                "The provided continue parameter is too old to display a consistent list result. You can start a new "
                "list without the continue parameter, or use the continue token in this response to retrieve the "
                "remainder of the results."
            )
            error.metadata["continue"] = _token(-1, *begin)
            raise error
        return asked, objects

    # --- watch

    def watch(
        self, target: Target, request: Request, lasts_s: float | None, stopped: Callable[[], bool]
    ) -> Iterator[bytes]:
        """The lines of a watch; an empty one is a sign of life that is not sent. Raises ApiError before the first."""
        test = self.matcher(target, request)
        asked, initial = request.query.get("resourceVersion", ""), request.flag("sendInitialEvents")
        if initial and request.query.get("resourceVersionMatch") != "NotOlderThan":
            raise ApiError(
                422,
                "Invalid",
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to "
                "NotOlderThan",
            )
        first: list[Object] = []
        with self.store.lock:
            if asked in ("", "0") or initial:
                revision = self.store.revision
                first = [one for one in self.store.scan(target.kind.resource, target.namespace) if test(one)]
            else:
                revision = revision_of(asked)
            refused: ApiError | None = None
            try:
                self.store.after(revision)
            except Compacted as error:
                refused = gone(str(error))
        if refused is not None and not self.settings.gone_as_event:
            raise refused
        seconds = request.number("timeoutSeconds")
        length_s = float(seconds) if seconds else self.settings.watch_s * (1 + random.random())  # noqa: S311
        return self._events(
            _Watch(target, test, revision, request.flag("allowWatchBookmarks"), initial),
            first,
            refused,
            (length_s, lasts_s),
            stopped,
        )

    def _events(
        self,
        watch: _Watch,
        first: list[Object],
        refused: ApiError | None,
        lengths_s: tuple[float, float | None],
        stopped: Callable[[], bool],
    ) -> Iterator[bytes]:
        if refused is not None:
            yield _line("ERROR", refused.status())
            return
        for one in first:
            yield _line("ADDED", converted(one, watch.kind))
        if watch.initial:
            yield watch.bookmark(ends_initial=True)
        begun = told = time.monotonic()
        length_s, cut_s = lengths_s
        while True:
            now = time.monotonic()
            if stopped() or (cut_s is not None and now - begun >= cut_s):
                return
            if now - begun >= length_s:
                if watch.bookmarks:
                    yield watch.bookmark()
                return
            try:
                changes = self.store.after(watch.revision)
            except Compacted as error:
                yield _line("ERROR", gone(str(error)).status())
                return
            sent = False
            for change in changes:
                watch.revision = change.revision
                line = watch.line(change)
                if line is not None:
                    sent = True
                    yield line
            if sent:
                told = time.monotonic()
            elif watch.bookmarks and now - told >= self.settings.bookmark_s:
                told = now
                yield watch.bookmark()
            else:
                yield b""
            left_s = [0.25, length_s - (now - begun)]
            if cut_s is not None:
                left_s.append(cut_s - (now - begun))
            self.store.wait(watch.revision, max(0.0, min(left_s)))


def _place(thing: Object) -> tuple[str, str]:
    return thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


def _line(kind: str, thing: Object) -> bytes:
    return json.dumps({"type": kind, "object": thing}, separators=(",", ":")).encode() + b"\n"


@dataclass
class _Watch:
    """One client that watches, and how far it has read."""

    target: Target
    test: Matcher
    revision: int
    bookmarks: bool
    initial: bool

    @property
    def kind(self) -> Kind:
        return self.target.kind

    def bookmark(self, *, ends_initial: bool = False) -> bytes:
        """How far the watch has come."""
        metadata: dict[str, Any] = {"resourceVersion": str(self.revision), "creationTimestamp": None}
        if ends_initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return _line("BOOKMARK", {"kind": self.kind.kind, "apiVersion": self.kind.api_version, "metadata": metadata})

    def line(self, change: Change) -> bytes | None:
        """A change as this client sees it: what begins or ceases to match comes or goes."""
        if change.key.resource != self.kind.resource:
            return None
        if self.target.namespace and change.key.namespace != self.target.namespace:
            return None
        was = change.before is not None and self.test(change.before)
        matches = change.type != "DELETED" and self.test(change.object)
        if not was and not matches:
            return None
        kind = "MODIFIED" if was and matches else "ADDED" if matches else "DELETED"
        return _line(kind, converted(change.object, self.kind))
