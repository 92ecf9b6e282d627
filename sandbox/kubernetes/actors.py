"""Components of the pretend cluster that work in the background, and what they share."""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from typing import Any

from sandbox.kubernetes.registry import Kind
from sandbox.kubernetes.server import ClusterApi
from sandbox.kubernetes.status import ApiError, Object
from sandbox.kubernetes.store import Key
from sandbox.kubernetes.writes import How, Removal, stamp


class Actor:
    """A thread that looks at the cluster after every change, and at least every ``pause_s``."""

    name = "actor"
    #: Deadlines alone need a look without a change.
    pause_s = 1.0

    def __init__(self, cluster: ClusterApi) -> None:
        self.cluster = cluster
        self.store = cluster.store
        self.how = How(manager=self.name, validation="Ignore")
        #: The last thing it could not cope with, for whoever looks into the sandbox.
        self.trouble = ""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sandbox-kubernetes-{self.name}", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """End; call before the cluster itself is stopped."""
        self._end.set()
        self.store.nudge()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def tick(self) -> None:
        """Bring the cluster one step nearer to what is wanted."""

    def _run(self) -> None:
        while not self._end.is_set():
            revision, nudges = self.store.revision, self.store.nudges
            try:
                self.tick()
            except ApiError:
                # Another client has changed or removed what was just read: the next look sees it.
                pass
            except Exception as error:
                # As a real controller: an object that it cannot read does not end it.
                self.trouble = f"{type(error).__name__}: {error}"
            if self.store.revision == revision:
                self.store.wait(revision, self.pause_s, nudges)
            else:
                time.sleep(0.01)

    # --- shared

    def kind(self, resource: str) -> Kind | None:
        """The kind by ``plural.group``, None where its CRD is not installed."""
        return self.cluster.registry.by_resource(resource)

    def now(self) -> str:
        """This instant as objects write it."""
        return stamp(self.cluster.writer.clock())

    def status(self, resource: str, thing: Object, status: Object) -> None:
        """Write a status; what has gone meanwhile is fine."""
        metadata = thing["metadata"]
        with contextlib.suppress(ApiError):
            self.cluster.set_status(resource, metadata.get("namespace", ""), metadata["name"], status)

    def edit(self, resource: str, thing: Object, **changes: Any) -> None:
        """Lay changes over an object's spec; what has gone meanwhile is fine."""
        kind, metadata = self.kind(resource), thing["metadata"]
        if kind is None:
            return
        with self.store.lock, contextlib.suppress(ApiError):
            old = self.cluster.writer.read(kind, metadata.get("namespace", ""), metadata["name"])
            new = {**old, "spec": {**old["spec"], **changes}}
            self.cluster.writer.update(kind, metadata.get("namespace", ""), metadata["name"], new, self.how)

    def create(self, thing: Object) -> None:
        """Create an object; one that is there already is left."""
        try:
            self.cluster.apply(thing)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                self.event(thing, "Warning", "FailedCreate", error.message)

    def delete(self, resource: str, thing: Object, *, grace_s: int | None = None) -> None:
        """Delete an object and what it owns; one that is gone is fine."""
        kind, metadata = self.kind(resource), thing["metadata"]
        if kind is not None:
            with contextlib.suppress(ApiError):
                removal = Removal("Background", grace_s, metadata.get("uid", ""))
                self.cluster.writer.delete(kind, metadata.get("namespace", ""), metadata["name"], removal)

    def event(self, about: Object, kind: str, reason: str, message: str) -> None:
        """Tell an Event about an object, counting one that repeats."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or "default"
        mark = zlib.crc32(f"{metadata.get('uid')} {reason} {message}".encode())
        name = f"{metadata.get('name', 'unnamed')[:200]}.{mark:08x}"
        now = self.now()
        events = self.kind("events")
        with self.store.lock, contextlib.suppress(ApiError):
            old = self.store.get(Key("events", namespace, name))
            if old is not None and events is not None:
                new = {**old, "count": old["count"] + 1, "lastTimestamp": now}
                self.cluster.writer.update(events, namespace, name, new, self.how)
                return
            self.cluster.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {"name": name, "namespace": namespace},
                    "involvedObject": {
                        "apiVersion": about.get("apiVersion", ""),
                        "kind": about.get("kind", ""),
                        "name": metadata.get("name", ""),
                        "namespace": metadata.get("namespace", ""),
                        "uid": metadata.get("uid", ""),
                    },
                    "type": kind,
                    "reason": reason,
                    "message": message,
                    "count": 1,
                    "firstTimestamp": now,
                    "lastTimestamp": now,
                    "source": {"component": self.name},
                    "reportingComponent": self.name,
                    "reportingInstance": "",
                }
            )


def condition(status: Object, kind: str) -> Object | None:
    """A condition of a status by its type."""
    return next((one for one in status.get("conditions") or () if one["type"] == kind), None)


def is_true(thing: Object, kind: str) -> bool:
    """Whether an object's condition holds."""
    found = condition(thing.get("status") or {}, kind)
    return found is not None and found["status"] == "True"


def with_condition(status: Object, kind: str, value: str, reason: str, message: str, now: str) -> Object:
    """A status with one condition set; its time moves only when its value does."""
    old = condition(status, kind)
    if old is not None and old["status"] == value and old.get("reason") == reason and old.get("message") == message:
        return status
    since = old["lastTransitionTime"] if old is not None and old["status"] == value else now
    new = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": since}
    kept = [one for one in status.get("conditions") or () if one["type"] != kind]
    return {**status, "conditions": [*kept, new]}


def owner_of(thing: Object) -> list[Object]:
    """ownerReferences that make ``thing`` the controller."""
    metadata = thing["metadata"]
    return [
        {
            "apiVersion": thing["apiVersion"],
            "kind": thing["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def finished(pod: Object) -> bool:
    """Whether a pod has ended."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
