"""What the cluster's own controllers clear away: dependents of what is gone, contents of ended namespaces and CRDs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

from sandbox.kubernetes.registry import CRDS, Registry
from sandbox.kubernetes.status import ApiError, Object
from sandbox.kubernetes.store import Compacted, Key
from sandbox.kubernetes.writes import FOREGROUND, ORPHAN, How, Removal, Writer

_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_HOW = How(manager="kube-controller-manager", validation="Ignore")


class Collector:
    """A thread that follows the store's log; it begins with everything there is, as after any restart."""

    def __init__(self, writer: Writer, registry: Registry, stopped: Callable[[], bool]) -> None:
        self._writer = writer
        self._store = writer.store
        self._registry = registry
        self._stopped = stopped
        self._thread = threading.Thread(target=self._run, name="sandbox-kubernetes-garbage", daemon=True)
        #: The last thing that could not be cleared away.
        self.trouble = ""
        #: Objects that wait for something to go first.
        self._waiting: set[Key] = set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has seen that it is to stop."""
        self._thread.join(timeout=2)

    def _run(self) -> None:
        revision = -1
        while not self._stopped():
            try:
                changes = self._store.after(revision) if revision >= 0 else None
            except Compacted:
                changes = None
            if changes is None:
                revision = self._store.revision
                for resource in self._store.resources():
                    for thing in self._store.scan(resource):
                        self._visit(_key(resource, thing))
            for change in changes or ():
                revision = change.revision
                if change.type == "DELETED":
                    for key in self._store.dependents(change.object["metadata"]["uid"]):
                        self._visit(key)
                else:
                    self._visit(change.key)
            if changes:
                for key in sorted(self._waiting):
                    self._visit(key)
            self._store.wait(revision, 0.25)

    def _visit(self, key: Key) -> None:
        try:
            self._clear(key)
        except ApiError as error:
            # One object that cannot be cleared away does not keep the others.
            self.trouble = f"{key}: {error}"

    def _clear(self, key: Key) -> None:
        with self._store.lock:
            thing = self._store.get(key)
            if thing is None:
                self._waiting.discard(key)
                return
            metadata = thing["metadata"]
            if metadata.get("ownerReferences") and not metadata.get("deletionTimestamp"):
                self._orphaned(key, thing)
                return
            if key.resource == "namespaces" and not metadata.get("deletionTimestamp"):
                self._furnish(metadata["name"])
            if key.resource == CRDS:
                self._establish(key, thing)
            if not metadata.get("deletionTimestamp"):
                return
            finalizers = metadata.get("finalizers") or []
            done = False
            if ORPHAN in finalizers:
                self._let_go(metadata["uid"])
                done = self._release(key, ORPHAN)
            elif FOREGROUND in finalizers:
                done = self._empty(metadata["uid"]) and self._release(key, FOREGROUND)
            elif _CLEANUP in finalizers:
                done = self._no_instances(thing) and self._release(key, _CLEANUP)
            elif key.resource == "namespaces":
                done = self._cleared(metadata["name"]) and self._finalized(key)
            if done:
                self._waiting.discard(key)
            elif finalizers or key.resource == "namespaces":
                self._waiting.add(key)

    def _delete(self, key: Key, removal: Removal) -> None:
        kind = self._registry.by_resource(key.resource)
        if kind is not None:
            try:
                self._writer.delete(kind, key.namespace, key.name, removal)
            except ApiError as error:
                if error.code != 404:
                    raise

    def _orphaned(self, key: Key, thing: Object) -> None:
        """Delete what has no living owner left; an owner that waits for its dependents no longer counts."""
        for owner in thing["metadata"]["ownerReferences"]:
            at = self._store.by_uid(owner["uid"])
            found = self._store.get(at) if at is not None else None
            if found is not None and FOREGROUND not in (found["metadata"].get("finalizers") or ()):
                return
        self._delete(key, Removal("Background"))

    def _let_go(self, uid: str) -> None:
        for key in self._store.dependents(uid):
            thing = copy.deepcopy(self._store.get(key))
            if thing is not None:
                kept = [one for one in thing["metadata"]["ownerReferences"] if one["uid"] != uid]
                thing["metadata"]["ownerReferences"] = kept
                if not kept:
                    del thing["metadata"]["ownerReferences"]
                self._store.put(key, thing)

    def _empty(self, uid: str) -> bool:
        """Whether nothing that blocks is left below an owner; what is left is deleted."""
        blocked = False
        for key in self._store.dependents(uid):
            thing = self._store.get(key)
            if thing is None:
                continue
            if not thing["metadata"].get("deletionTimestamp"):
                self._delete(key, Removal("Foreground"))
            for owner in thing["metadata"]["ownerReferences"]:
                if owner["uid"] == uid and owner.get("blockOwnerDeletion") and self._store.get(key) is not None:
                    blocked = True
        return not blocked

    def _release(self, key: Key, finalizer: str) -> bool:
        thing = copy.deepcopy(self._store.get(key))
        if thing is None:
            return True
        finalizers = [one for one in thing["metadata"].get("finalizers") or () if one != finalizer]
        thing["metadata"]["finalizers"] = finalizers
        if finalizers:
            self._store.put(key, thing)
            return False
        del thing["metadata"]["finalizers"]
        self._store.put(key, thing)
        if not (key.resource == "pods" and thing["metadata"].get("deletionGracePeriodSeconds")):
            self._store.remove(key)
        return True

    def _no_instances(self, crd: Object) -> bool:
        resource = f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
        for thing in self._store.scan(resource):
            if not thing["metadata"].get("deletionTimestamp"):
                self._delete(_key(resource, thing), Removal("Background"))
        return not self._store.scan(resource)

    def _cleared(self, namespace: str) -> bool:
        left = False
        for resource in self._store.resources():
            for thing in self._store.scan(resource, namespace):
                key = _key(resource, thing)
                if not thing["metadata"].get("deletionTimestamp"):
                    self._delete(key, Removal("Background"))
                left = left or self._store.get(key) is not None
        return not left

    def _finalized(self, key: Key) -> bool:
        thing = copy.deepcopy(self._store.get(key))
        if thing is not None:
            thing.setdefault("spec", {})["finalizers"] = []
            self._store.put(key, thing)
            if not thing["metadata"].get("finalizers"):
                self._store.remove(key)
        return True

    def _furnish(self, namespace: str) -> None:
        """Every namespace has a service account and the cluster's certificate."""
        for resource, name, body in (
            ("serviceaccounts", "default", {}),
            ("configmaps", "kube-root-ca.crt", {"data": {"ca.crt": ""}}),
        ):
            kind = self._registry.by_resource(resource)
            if kind is not None and self._store.get(Key(resource, namespace, name)) is None:
                self._writer.create(kind, namespace, {"metadata": {"name": name}, **body}, _HOW)

    def _establish(self, key: Key, crd: Object) -> None:
        conditions = (crd.get("status") or {}).get("conditions")
        if conditions or crd["metadata"].get("deletionTimestamp"):
            return
        new = copy.deepcopy(crd)
        since = crd["metadata"]["creationTimestamp"]
        new["status"] = {
            "acceptedNames": crd["spec"]["names"],
            "storedVersions": [one["name"] for one in crd["spec"]["versions"] if one.get("storage")],
            "conditions": [
                {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "lastTransitionTime": since},
                {
                    "type": "Established",
                    "status": "True",
                    "reason": "InitialNamesAccepted",
                    "lastTransitionTime": since,
                },
            ],
        }
        self._store.put(key, new)


def _key(resource: str, thing: Object) -> Key:
    return Key(resource, thing["metadata"].get("namespace", ""), thing["metadata"]["name"])
