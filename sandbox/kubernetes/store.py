"""The pretend etcd: objects with revisions in one SQLite file, and the log of changes that watches read."""

from __future__ import annotations

import bisect
import json
import sqlite3
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox.kubernetes.status import Object

#: A list that is read page by page keeps its snapshot this long, as etcd keeps its history.
SNAPSHOT_S: Final = 300.0
_SNAPSHOTS: Final = 64


@dataclass(frozen=True, order=True)
class Key:
    """Where an object lies: its resource as ``plural.group``, its namespace ("" for the cluster's own) and name."""

    resource: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Change:
    """One entry of the log: ``type`` is ADDED, MODIFIED or DELETED; ``before`` is None for what is new."""

    revision: int
    type: str
    key: Key
    object: Object
    before: Object | None


class Compacted(Exception):
    """The log no longer reaches back to the revision asked for."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {asked} ({oldest})")


class Store:
    """All objects of a cluster. What it hands out is shared and must not be changed: copy first.

    Every change is one committed transaction, so a killed process leaves each object old or new and nothing between.
    """

    def __init__(self, path: Path, history: int = 50_000) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._history = history
        #: How often somebody was told to look outside.
        self.nudges = 0
        self._objects: dict[str, dict[tuple[str, str], Object]] = defaultdict(dict)
        self._by_uid: dict[str, Key] = {}
        self._dependents: dict[str, set[Key]] = defaultdict(set)
        self._log: list[Change] = []
        self._revisions: list[int] = []
        self._snapshots: dict[tuple[int, str, str], tuple[float, list[Object]]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=NORMAL")
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS objects (resource TEXT, namespace TEXT, name TEXT, body TEXT,"
            " PRIMARY KEY (resource, namespace, name))"
        )
        self._file.execute("CREATE TABLE IF NOT EXISTS revision (id INTEGER PRIMARY KEY CHECK (id = 1), value INTEGER)")
        self._revision = self._load()
        #: Watches from before this revision are told to list again.
        self._floor = self._revision

    def _load(self) -> int:
        for resource, namespace, name, body in self._file.execute("SELECT * FROM objects"):
            self._index(Key(resource, namespace, name), None, json.loads(body))
        row = self._file.execute("SELECT value FROM revision").fetchone()
        return int(row[0]) if row else 1

    def close(self) -> None:
        """Close the file; readers that still wait are woken."""
        with self.lock:
            self._changed.notify_all()
            self._file.close()

    # --- reads

    @property
    def revision(self) -> int:
        """The revision of the newest change."""
        with self.lock:
            return self._revision

    def get(self, key: Key) -> Object | None:
        """The object, or None."""
        with self.lock:
            return self._objects[key.resource].get((key.namespace, key.name))

    def by_uid(self, uid: str) -> Key | None:
        """Where the object of this uid lies, or None once it is gone."""
        with self.lock:
            return self._by_uid.get(uid)

    def dependents(self, uid: str) -> list[Key]:
        """Objects that name this uid as an owner."""
        with self.lock:
            return sorted(self._dependents.get(uid, ()))

    def scan(self, resource: str, namespace: str = "") -> list[Object]:
        """Objects of a resource, of one namespace if given, by namespace and name."""
        with self.lock:
            found = self._objects[resource]
            return [found[at] for at in sorted(found) if not namespace or at[0] == namespace]

    def resources(self) -> list[str]:
        """Resources of which there is any object."""
        with self.lock:
            return sorted(name for name, found in self._objects.items() if found)

    def counts(self) -> dict[str, int]:
        """How many objects there are of each resource."""
        with self.lock:
            return {name: len(found) for name, found in sorted(self._objects.items()) if found}

    # --- lists by pages

    def snapshot(self, resource: str, namespace: str) -> tuple[int, list[Object]]:
        """The revision now and what there is at it, remembered for the pages that follow."""
        with self.lock:
            at = (self._revision, resource, namespace)
            if at not in self._snapshots:
                while len(self._snapshots) >= _SNAPSHOTS:
                    del self._snapshots[min(self._snapshots, key=lambda one: self._snapshots[one][0])]
                self._snapshots[at] = (time.monotonic(), self.scan(resource, namespace))
            return self._revision, self._snapshots[at][1]

    def snapshot_at(self, revision: int, resource: str, namespace: str) -> list[Object] | None:
        """What there was at an earlier snapshot, or None once it has expired."""
        with self.lock:
            made_at, objects = self._snapshots.get((revision, resource, namespace), (0.0, None))
            if objects is None or time.monotonic() - made_at > SNAPSHOT_S:
                return None
            return objects

    # --- changes

    def put(self, key: Key, new: Object) -> Object:
        """Write an object, new or changed, under the next revision; the object as stored."""
        with self.lock:
            before = self._objects[key.resource].get((key.namespace, key.name))
            stored = self._stamped(new)
            self._file.execute("BEGIN")
            self._file.execute(
                "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)",
                (key.resource, key.namespace, key.name, json.dumps(stored, separators=(",", ":"))),
            )
            self._commit(key, "MODIFIED" if before is not None else "ADDED", stored, before)
            return stored

    def remove(self, key: Key) -> Object:
        """Take an object away; the object as it was, under the revision of its end. Raises KeyError."""
        with self.lock:
            before = self._objects[key.resource][(key.namespace, key.name)]
            last = self._stamped(before)
            self._file.execute("BEGIN")
            self._file.execute(
                "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?",
                (key.resource, key.namespace, key.name),
            )
            self._commit(key, "DELETED", last, before)
            return last

    def _stamped(self, new: Object) -> Object:
        return {**new, "metadata": {**new["metadata"], "resourceVersion": str(self._revision + 1)}}

    def _commit(self, key: Key, kind: str, stored: Object, before: Object | None) -> None:
        self._file.execute("INSERT OR REPLACE INTO revision VALUES (1, ?)", (self._revision + 1,))
        self._file.execute("COMMIT")
        self._revision += 1
        self._index(key, before, None if kind == "DELETED" else stored)
        self._log.append(Change(self._revision, kind, key, stored, before))
        self._revisions.append(self._revision)
        if len(self._log) > self._history:
            self.compact(keep=self._history // 2)
        self._changed.notify_all()

    def _index(self, key: Key, before: Object | None, after: Object | None) -> None:
        at = (key.namespace, key.name)
        if before is not None:
            self._by_uid.pop(before["metadata"]["uid"], None)
            for owner in before["metadata"].get("ownerReferences", ()):
                self._dependents[owner["uid"]].discard(key)
                if not self._dependents[owner["uid"]]:
                    del self._dependents[owner["uid"]]
        if after is None:
            self._objects[key.resource].pop(at, None)
            return
        self._objects[key.resource][at] = after
        self._by_uid[after["metadata"]["uid"]] = key
        for owner in after["metadata"].get("ownerReferences", ()):
            self._dependents[owner["uid"]].add(key)

    # --- the log

    def compact(self, keep: int = 0) -> None:
        """Forget all but the newest ``keep`` changes, and every snapshot: older watches and pages expire."""
        with self.lock:
            cut = max(0, len(self._log) - keep)
            if keep == 0:
                self._floor = self._revision
            elif cut:
                self._floor = self._revisions[cut - 1]
            del self._log[:cut]
            del self._revisions[:cut]
            self._snapshots.clear()
            self._changed.notify_all()

    def after(self, revision: int) -> list[Change]:
        """Changes since a revision, oldest first. Raises Compacted."""
        with self.lock:
            if revision < self._floor:
                raise Compacted(revision, self._floor)
            return self._log[bisect.bisect_right(self._revisions, revision) :]

    def wait(self, revision: int, timeout_s: float, nudges: int | None = None) -> None:
        """Return when something has changed since ``revision``, or after the time; with ``nudges`` also at a newer."""
        with self.lock:
            if self._revision <= revision and nudges in (None, self.nudges):
                self._changed.wait(timeout_s)

    def nudge(self) -> None:
        """Wake all who wait: something has happened outside, such as a process that ended."""
        with self.lock:
            self.nudges += 1
            self._changed.notify_all()
