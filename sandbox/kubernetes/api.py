"""The API server's routes and verbs: from one HTTP request to an answer or a stream, with faults before either."""

from __future__ import annotations

import copy
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from sandbox.kubernetes.access import Access, Attempt, User, refusal
from sandbox.kubernetes.conversion import converted
from sandbox.kubernetes.discovery import discover
from sandbox.kubernetes.faults import Broken, Faults
from sandbox.kubernetes.patches import json_patch, merge_patch, strategic_patch
from sandbox.kubernetes.reads import Reader
from sandbox.kubernetes.status import (
    ApiError,
    Object,
    bad_request,
    forbidden,
    internal,
    method_not_allowed,
    success,
    unsupported_media,
)
from sandbox.kubernetes.subresources import Subresources
from sandbox.kubernetes.target import Request, Target, target_of
from sandbox.kubernetes.writes import How, Removal, Writer

_OPEN: Final = ("healthz", "livez", "readyz", "version")
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json-patch+json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"


@dataclass
class Answer:
    """What goes back: a code and a body, or a stream whose empty pieces only ask whether the client is still there."""

    code: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: list[tuple[str, str]] = field(default_factory=list)
    stream: Iterator[bytes] | None = None
    #: Nothing is sent: the connection ends.
    cut: bool = False


@dataclass
class Tally:
    """What clients have asked: how often each verb on each resource, and how many bytes were sent."""

    requests: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, operation: str) -> None:
        """One more request."""
        with self.lock:
            self.requests[operation] += 1

    def sent(self, size: int) -> None:
        """So many more bytes."""
        with self.lock:
            self.sent_bytes += size


class Api:
    """One cluster's API."""

    def __init__(
        self,
        writer: Writer,
        reader: Reader,
        access: Access,
        below: Subresources,
        faults: Faults,
        stopped: Callable[[], bool],
    ) -> None:
        self.writer = writer
        self.reader = reader
        self.access = access
        self.below = below
        self.faults = faults
        self.tally = Tally()
        self._stopped = stopped

    def handle(self, request: Request) -> Answer:
        """Answer one request; never raises."""
        try:
            return self._answer(request)
        except ApiError as error:
            headers = [] if error.retry_after_s is None else [("Retry-After", str(error.retry_after_s))]
            return Answer(error.code, _encoded(error.status()), headers=headers)
        except Broken as broken:
            return Answer(broken.code, broken.body, "text/html", cut=broken.cut)
        except Exception as error:
            # As the real server: a request that breaks it does not take the others down.
            return Answer(500, _encoded(internal(f"{type(error).__name__}: {error}").status()))

    def _answer(self, request: Request) -> Answer:
        first = request.path.strip("/").split("/")[0]
        if first in _OPEN and first != "version":
            return Answer(200, b"ok", "text/plain")
        found = discover(request.path, self.writer.registry)
        target = None if found is not None else target_of(request.path, self.writer.registry)
        verb, plural = self._operation(request, target)
        self.tally.count(f"{verb} {plural}")
        group, name = (target.kind.group, target.name) if target else ("", "")
        after = self.faults.strike(verb, plural, group, name)
        user = self.access.user_of(request.headers.get("Authorization", ""))
        if target is None:
            if request.method not in ("GET", "HEAD"):
                raise method_not_allowed()
            return Answer(200, _encoded(found))
        self._permit(user, verb, target)
        answer = self._dispatch(request, target, verb, user)
        if after is not None:
            raise after
        return answer

    def _operation(self, request: Request, target: Target | None) -> tuple[str, str]:
        if target is None:
            return "get", "discovery"
        verb = _VERBS.get(request.method, "get")
        if verb == "get" and not target.name:
            verb = "list"
        if verb == "delete" and not target.name:
            verb = "deletecollection"
        if verb in ("get", "list") and not target.sub and (target.watch or request.flag("watch")):
            verb = "watch"
        return verb, target.kind.plural + (f"/{target.sub}" if target.sub else "")

    def _permit(self, user: User, verb: str, target: Target) -> None:
        resource = target.kind.plural + (f"/{target.sub}" if target.sub else "")
        attempt = Attempt(verb, target.kind.group, resource, target.namespace, target.name)
        if not self.access.allows(user, attempt):
            raise forbidden(target.kind.plural, target.kind.group, target.name, refusal(user, attempt))

    # --- dispatch

    def _dispatch(self, request: Request, target: Target, verb: str, user: User) -> Answer:
        kind = target.kind
        how = self._how(request)
        if target.sub in ("log", "scale", "binding", "eviction", "token"):
            return self._sub(request, target, how)
        if verb == "watch":
            lasts_s = self.faults.watch_lasts_s(kind.plural)
            stream = self.reader.watch(target, request, lasts_s, self._stopped)
            return Answer(200, stream=stream)
        if verb == "get":
            return Answer(200, _encoded(self.writer.read(kind, target.namespace, target.name)))
        if verb == "list":
            return Answer(200, _encoded(self.reader.page(target, request)))
        if verb in ("create", "update") and not isinstance(document := request.document(), dict):
            raise bad_request(f"the body is no object but {type(document).__name__}")
        self._said_twice(request, how)
        if verb == "create":
            if kind.review:
                return Answer(201, _encoded(self.below.review(kind, document, user)))
            if target.name:
                raise method_not_allowed()
            place = target.namespace or ("default" if kind.namespaced else "")
            if kind.plural == "bindings":
                name = str((document.get("metadata") or {}).get("name", ""))
                return Answer(201, _encoded(self.below.bind(place, name, document, how)))
            return self._told(201, self.writer.create(kind, place, document, how), target, how)
        if verb == "update":
            if not target.name:
                raise method_not_allowed()
            sub = target.sub if target.sub == "status" else ""
            return self._told(
                200, self.writer.update(kind, target.namespace, target.name, document, how, sub), target, how
            )
        if verb == "patch":
            return self._patch(request, target, how)
        removal = self._removal(request)
        if verb == "delete":
            thing, gone = self.writer.delete(kind, target.namespace, target.name, removal, dry_run=how.dry_run)
            if gone and kind.resource != "pods":
                told = success(kind.plural, kind.group, target.name, thing["metadata"]["uid"])
                return Answer(200, _encoded(told))
            return Answer(200, _encoded(converted(thing, kind)))
        return self._delete_all(request, target, removal, how)

    def _sub(self, request: Request, target: Target, how: How) -> Answer:
        if target.sub == "log":
            return Answer(200, content_type="text/plain", stream=self.below.log(target, request))
        if target.sub == "scale":
            return Answer(200, _encoded(self.below.scale(target, request, how)))
        if request.method != "POST":
            raise method_not_allowed()
        body = request.document() or {}
        if not isinstance(body, dict):
            raise bad_request("the body is no object")
        if target.sub == "token":
            return Answer(201, _encoded(self.below.token(target, body)))
        change = self.below.bind if target.sub == "binding" else self.below.evict
        return Answer(201, _encoded(change(target.namespace, target.name, body, how)))

    def _told(self, code: int, thing: Object, target: Target, how: How) -> Answer:
        headers = [("Warning", f'299 - "{text}"') for text in how.warnings]
        return Answer(code, _encoded(converted(thing, target.kind)), headers=headers)

    @staticmethod
    def _how(request: Request) -> How:
        dry = request.query.get("dryRun", "")
        if dry not in ("", "All"):
            raise bad_request(f'Invalid value: "{dry}": dryRun: supported values: "All"')
        manager = request.query.get("fieldManager") or request.headers.get("User-Agent", "unknown").split("/")[0]
        validation = request.query.get("fieldValidation") or "Warn"
        if validation not in ("Strict", "Warn", "Ignore"):
            raise bad_request(f"fieldValidation: {validation!r} is none of Ignore, Strict, Warn")
        return How(dry == "All", manager[:128] or "unknown", validation, request.flag("force"))

    @staticmethod
    def _said_twice(request: Request, how: How) -> None:
        if request.doubled and how.validation == "Strict":
            said = ", ".join(f'duplicate field "{key}"' for key in request.doubled)
            raise bad_request(f"strict decoding error: {said}")
        if how.validation == "Warn":
            how.warnings.extend(f"duplicate field {key}" for key in request.doubled)

    # --- patch

    def _patch(self, request: Request, target: Target, how: How) -> Answer:
        kind, media = target.kind, request.content_type
        sub = target.sub if target.sub == "status" else ""
        if not target.name:
            raise method_not_allowed()
        if media == _APPLY:
            try:
                body = yaml.safe_load(request.body)
            except yaml.YAMLError as error:
                raise bad_request(f"error decoding YAML: {error}") from None
            if not request.query.get("fieldManager"):
                raise bad_request("fieldManager is required for apply patch")
            if not isinstance(body, dict) or not body.get("apiVersion") or not body.get("kind"):
                raise bad_request("an applied configuration must have apiVersion and kind")
            thing, new = self.writer.apply(kind, target.namespace, target.name, body, how, sub)
            return self._told(201 if new else 200, thing, target, how)
        body = request.document()
        with self.writer.store.lock:
            old = self.writer.read(kind, target.namespace, target.name)
            if media == _JSON:
                new_object = json_patch(old, body)
            elif media == _MERGE:
                new_object = merge_patch(old, _mapping(body))
            elif media == _STRATEGIC and not kind.custom:
                new_object = strategic_patch(copy.deepcopy(old), _mapping(body))
            else:
                allowed = ", ".join((_JSON, _MERGE, _APPLY) if kind.custom else (_JSON, _MERGE, _STRATEGIC, _APPLY))
                raise unsupported_media(
                    f"the body of the request was in an unknown format - accepted media types include: {allowed}"
                )
            thing = self.writer.update(kind, target.namespace, target.name, new_object, how, sub)
        return self._told(200, thing, target, how)

    # --- delete

    @staticmethod
    def _removal(request: Request) -> Removal:
        body = request.document() or {}
        if not isinstance(body, dict):
            raise bad_request("the delete options are no object")
        conditions = body.get("preconditions") or {}
        propagation = body.get("propagationPolicy") or request.query.get("propagationPolicy") or ""
        if propagation not in ("", "Foreground", "Background", "Orphan"):
            raise bad_request(f'propagationPolicy: "{propagation}": supported values: Background, Foreground, Orphan')
        grace_s = body.get("gracePeriodSeconds")
        if grace_s is None:
            grace_s = request.number("gracePeriodSeconds")
        if grace_s is not None and not isinstance(grace_s, int):
            raise bad_request(f"gracePeriodSeconds: {grace_s!r} is no whole number")
        return Removal(
            propagation, grace_s, str(conditions.get("uid") or ""), str(conditions.get("resourceVersion") or "")
        )

    def _delete_all(self, request: Request, target: Target, removal: Removal, how: How) -> Answer:
        kind, test = target.kind, self.reader.matcher(target, request)
        deleted = []
        for one in self.writer.store.scan(kind.resource, target.namespace):
            if not test(one):
                continue
            metadata = one["metadata"]
            try:
                thing, _ = self.writer.delete(
                    kind, metadata.get("namespace", ""), metadata["name"], removal, dry_run=how.dry_run
                )
            except ApiError as error:
                if error.code == 404:
                    continue
                raise
            deleted.append(self.reader.item(thing, kind))
        told = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "items": deleted}
        return Answer(200, _encoded({**told, "metadata": {"resourceVersion": str(self.writer.store.revision)}}))


def _mapping(body: Any) -> Object:
    if not isinstance(body, dict):
        raise bad_request(f"error decoding patch: an object is needed, not {type(body).__name__}")
    return body


def _encoded(thing: Any) -> bytes:
    return json.dumps(thing, separators=(",", ":")).encode()
