"""Creating, changing and deleting objects as the API server does it: defaults, checks, ownership, finalizers."""

from __future__ import annotations

import copy
import secrets
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from sandbox.kubernetes import apply, builtin, schema
from sandbox.kubernetes.conversion import converted
from sandbox.kubernetes.limits import refusal_of
from sandbox.kubernetes.registry import METADATA, Kind, Registry, builtin_schema
from sandbox.kubernetes.status import (
    Cause,
    Object,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
)
from sandbox.kubernetes.store import Key, Store

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"
_GENERATED: Final = 5
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
#: The server alone writes these.
_KEPT: Final = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "namespace",
)
#: Built-in kinds whose spec has no generation.
_NO_GENERATION: Final = frozenset(("namespaces", "nodes", "services", "persistentvolumes", "persistentvolumeclaims"))


@dataclass(frozen=True)
class How:
    """The options of a change that stand in the query, and the manager it is booked under."""

    dry_run: bool = False
    manager: str = "unknown"
    validation: str = "Warn"
    force: bool = False
    #: Told back to the client as Warning headers.
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Removal:
    """The options of a delete."""

    propagation: str = ""
    grace_s: int | None = None
    uid: str = ""
    revision: str = ""


def stamp(seconds: float) -> str:
    """An instant as Kubernetes writes it, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def substance(thing: Mapping[str, Any]) -> Object:
    """What counts for the generation: everything beside metadata and status."""
    return {key: value for key, value in thing.items() if key not in ("metadata", "status", "apiVersion", "kind")}


class Writer:
    """All changes of one cluster go through here. ``clock`` gives seconds since the epoch."""

    def __init__(self, store: Store, registry: Registry, clock: Callable[[], float]) -> None:
        self.store = store
        self.registry = registry
        self.clock = clock

    def key(self, kind: Kind, namespace: str, name: str) -> Key:
        """Where an object of this kind lies."""
        return Key(kind.resource, namespace if kind.namespaced else "", name)

    def read(self, kind: Kind, namespace: str, name: str) -> Object:
        """The object in the kind's version. Raises ApiError (404)."""
        found = self.store.get(self.key(kind, namespace, name))
        if found is None:
            raise not_found(kind.plural, kind.group, name)
        return converted(found, kind)

    # --- create

    def create(self, kind: Kind, namespace: str, body: Object, how: How) -> Object:
        """A new object. Raises ApiError."""
        new = self._received(kind, namespace, body)
        metadata = new["metadata"]
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if not metadata.get("name") and metadata.get("generateName"):
            tail = "".join(secrets.choice(_LETTERS) for _ in range(_GENERATED))
            metadata["name"] = f"{metadata['generateName'][: 63 - _GENERATED]}{tail}"
        if not metadata.get("name"):
            raise invalid(
                kind.kind,
                kind.group,
                "",
                [Cause("metadata.name", "FieldValueRequired", "name or generateName is required")],
            )
        with self.store.lock:
            self._namespace_takes(kind, namespace, metadata["name"])
            at = self.key(kind, namespace, metadata["name"])
            if self.store.get(at) is not None:
                raise already_exists(kind.plural, kind.group, metadata["name"])
            for key in (*_KEPT, "managedFields", "selfLink"):
                metadata.pop(key, None)
            metadata["uid"] = str(uuid.uuid4())
            metadata["creationTimestamp"] = stamp(self.clock())
            if kind.namespaced:
                metadata["namespace"] = namespace
            if self._has_generation(kind, new):
                metadata["generation"] = 1
            if "status" in kind.subresources and kind.resource != "nodes":
                new.pop("status", None)
                if not kind.custom:
                    new["status"] = {}
            new = self._checked(kind, new, None, how)
            self._priority(kind, new)
            if kind.resource == "pods" and (refused := refusal_of(self.store, namespace, new)) is not None:
                raise refused
            self._owned(kind, new, {}, (how.manager, "Update", ""))
            return new if how.dry_run else self.store.put(at, new)

    def _received(self, kind: Kind, namespace: str, body: Any) -> Object:
        if not isinstance(body, dict):
            raise bad_request("the body is no object")
        new = copy.deepcopy(body)
        for name, wanted in (("apiVersion", kind.api_version), ("kind", kind.kind)):
            if new.setdefault(name, wanted) != wanted:
                word = "API version" if name == "apiVersion" else "kind"
                raise bad_request(f"the {word} in the data ({new[name]}) does not match the expected {word} ({wanted})")
        metadata = new.setdefault("metadata", {})
        if not isinstance(metadata, dict):
            raise bad_request("metadata is no object")
        if metadata.get("namespace", namespace) != namespace and kind.namespaced:
            raise bad_request(
                f"the namespace of the provided object does not match the namespace sent on the request: "
                f"{metadata['namespace']!r}, {namespace!r}"
            )
        for field_name in [name for name, value in metadata.items() if value is None]:
            del metadata[field_name]
        if not kind.custom:
            for field_name in [name for name, value in new.items() if value is None]:
                del new[field_name]
        wrong = schema.check(metadata, METADATA)
        if wrong:
            raise bad_request(
                f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: json: cannot unmarshal '
                f"into Go struct field ObjectMeta.metadata.{wrong[0].field}: {wrong[0].message}"
            )
        return new

    def _namespace_takes(self, kind: Kind, namespace: str, name: str) -> None:
        if not kind.namespaced:
            return
        place = self.store.get(Key("namespaces", "", namespace))
        if place is None:
            raise not_found("namespaces", "", namespace)
        if place["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            error = forbidden(kind.plural, kind.group, name, why)
            error.details["causes"] = [
                {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}
            ]
            raise error

    def _has_generation(self, kind: Kind, thing: Object) -> bool:
        return kind.custom or ("spec" in thing and kind.resource not in _NO_GENERATION)

    def _priority(self, kind: Kind, new: Object) -> None:
        if kind.resource != "pods":
            return
        spec, classes = new["spec"], "priorityclasses.scheduling.k8s.io"
        name = spec.get("priorityClassName")
        if not name:
            spec.setdefault("priority", 0)
            return
        found = self.store.get(Key(classes, "", name))
        if found is None:
            raise forbidden("pods", "", new["metadata"]["name"], f"no PriorityClass with name {name} was found")
        spec["priority"] = found["value"]
        spec.setdefault("preemptionPolicy", found.get("preemptionPolicy", "PreemptLowerPriority"))

    # --- checks

    def _checked(self, kind: Kind, new: Object, old: Object | None, how: How) -> Object:
        told = kind.schema if kind.custom else builtin_schema(kind.resource)
        name = new["metadata"].get("name", "")
        if told is not None:
            new, unknown = schema.prune(new, told)
            if unknown and how.validation == "Strict":
                said = ", ".join(f'unknown field "{path}"' for path in unknown)
                raise bad_request(f"strict decoding error: {said}")
            if unknown and how.validation == "Warn":
                how.warnings.extend(f'unknown field "{path}"' for path in unknown)
            new = schema.with_defaults(new, told)
        causes: list[Cause] = []
        if told is not None:
            causes = schema.check(new, told, old)
            wrong = next((cause for cause in causes if cause.reason == "FieldValueTypeInvalid"), None)
            if wrong is not None and not kind.custom:
                raise bad_request(
                    f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: json: cannot '
                    f"unmarshal into Go struct field {kind.kind}.{wrong.field}: {wrong.detail}"
                )
        elif not kind.custom:
            _plain_types(kind, new)
        if not causes:
            builtin.fill(kind, new)
            causes = builtin.check_rules(kind, new, old)
        causes = [*builtin.check_metadata(kind, new), *causes]
        if causes:
            raise invalid(kind.kind, kind.group, name, list(dict.fromkeys(causes)))
        return new

    def _owned(self, kind: Kind, new: Object, old: Object, at: tuple[str, str, str]) -> None:
        owners = apply.Owners((old.get("metadata") or {}).get("managedFields"))
        owners.wrote(at, old, new, kind.list_keys)
        new["metadata"]["managedFields"] = owners.entries(kind.api_version, at, stamp(self.clock()))

    # --- update

    def update(self, kind: Kind, namespace: str, name: str, body: Object, how: How, sub: str = "") -> Object:
        """Replace an object, or its status. Raises ApiError (409 on a stale resourceVersion)."""
        new = self._received(kind, namespace, body)
        if new["metadata"].get("name", name) != name:
            raise bad_request(
                f"the name of the object ({new['metadata'].get('name')}) does not match the name on the URL ({name})"
            )
        new["metadata"]["name"] = name
        with self.store.lock:
            old = self.read(kind, namespace, name)
            return self.change(kind, old, new, how, sub)

    def change(
        self,
        kind: Kind,
        old: Object,
        new: Object,
        how: How,
        sub: str = "",
        operation: str = "Update",
        owners: apply.Owners | None = None,
    ) -> Object:
        """Put ``new`` in the place of ``old``; call with the store's lock held. Raises ApiError."""
        name, there = old["metadata"]["name"], old["metadata"]
        asked = new["metadata"].get("resourceVersion")
        if asked and asked != there["resourceVersion"]:
            raise conflict(kind.plural, kind.group, name)
        if new["metadata"].get("uid") not in (None, "", there["uid"]):
            uid = new["metadata"]["uid"]
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {there['uid']}"
            raise conflict(kind.plural, kind.group, name, why)
        new = {**new, "metadata": {key: value for key, value in new["metadata"].items() if key not in _KEPT}}
        new["metadata"] |= {key: there[key] for key in _KEPT if key in there}
        new["metadata"]["resourceVersion"] = there["resourceVersion"]
        if sub == "status":
            told = {"status": new["status"]} if "status" in new else {}
            new = {**{key: value for key, value in old.items() if key != "status"}, **told}
            new["metadata"] = dict(there)
        elif "status" in kind.subresources and "status" in old:
            new["status"] = copy.deepcopy(old["status"])
        elif "status" in kind.subresources:
            new.pop("status", None)
        new["metadata"].pop("managedFields", None)
        new = self._checked(kind, copy.deepcopy(new), old, how)
        if "generation" in there and sub != "status" and substance(new) != substance(old):
            new["metadata"]["generation"] = there["generation"] + 1
        at = (how.manager, operation, sub)
        before = {**old, "metadata": {key: value for key, value in there.items() if key != "managedFields"}}
        if owners is None:
            if new == before:
                return old
            self._owned(kind, new, old, at)
        else:
            entries = owners.entries(kind.api_version, None if new == before else at, stamp(self.clock()))
            if new == before and entries == there.get("managedFields"):
                return old
            new["metadata"]["managedFields"] = entries
        if how.dry_run:
            return new
        key = self.key(kind, there.get("namespace", ""), name)
        if self._may_go(kind, new):
            self.store.put(key, new)
            return self.store.remove(key)
        return self.store.put(key, new)

    @staticmethod
    def _may_go(kind: Kind, thing: Object) -> bool:
        """Whether a delete that waited for finalizers has nothing more to wait for."""
        metadata = thing["metadata"]
        if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
            return False
        if kind.resource == "namespaces":
            return not (thing.get("spec") or {}).get("finalizers")
        return not (kind.resource == "pods" and metadata.get("deletionGracePeriodSeconds"))

    def apply(
        self, kind: Kind, namespace: str, name: str, body: Object, how: How, sub: str = ""
    ) -> tuple[Object, bool]:
        """Server-side apply; the object and whether it is new. Raises ApiError (409 on another manager's field)."""
        wanted = self._received(kind, namespace, body)
        if wanted["metadata"].get("name", name) != name:
            raise bad_request(f"metadata.name {wanted['metadata'].get('name')!r} is not the name on the URL ({name})")
        if wanted["metadata"].get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        wanted["metadata"]["name"] = name
        at = (how.manager, "Apply", sub)
        with self.store.lock:
            found = self.store.get(self.key(kind, namespace, name))
            if found is None:
                if sub:
                    raise not_found(kind.plural, kind.group, name)
                made = self.create(kind, namespace, wanted, How(True, how.manager, how.validation, False, how.warnings))
                owners = apply.Owners(())
                owners.paths[at] = {path for path, _ in apply.leaves(wanted, kind.list_keys)}
                made["metadata"]["managedFields"] = owners.entries(kind.api_version, at, stamp(self.clock()))
                if not how.dry_run:
                    made = self.store.put(self.key(kind, namespace, name), made)
                return made, True
            old = converted(found, kind)
            owners = apply.Owners(old["metadata"].get("managedFields"))
            if sub == "status":
                wanted = {
                    key: value for key, value in wanted.items() if key in ("apiVersion", "kind", "metadata", "status")
                }
            new = apply.apply(old, wanted, owners, at, kind.list_keys, force=how.force)
            new["metadata"].pop("resourceVersion", None)
            if asked := wanted["metadata"].get("resourceVersion"):
                new["metadata"]["resourceVersion"] = asked
            return self.change(kind, old, new, how, sub, "Apply", owners), False

    # --- delete

    def delete(
        self, kind: Kind, namespace: str, name: str, removal: Removal, *, dry_run: bool = False
    ) -> tuple[Object, bool]:
        """Delete an object; the object and whether it is gone at once. Raises ApiError."""
        with self.store.lock:
            old = self.read(kind, namespace, name)
            metadata = old["metadata"]
            for said, asked, is_now in (
                ("UID", removal.uid, metadata["uid"]),
                ("ResourceVersion", removal.revision, metadata["resourceVersion"]),
            ):
                if asked and asked != is_now:
                    why = f"Precondition failed: {said} in precondition: {asked}, {said} in object meta: {is_now}"
                    raise conflict(kind.plural, kind.group, name, why)
            finalizers = [one for one in metadata.get("finalizers") or () if one not in (FOREGROUND, ORPHAN)]
            propagation = removal.propagation or _usual(kind, metadata.get("finalizers") or ())
            if propagation == "Foreground":
                finalizers.append(FOREGROUND)
            elif propagation == "Orphan":
                finalizers.append(ORPHAN)
            if kind.resource == "customresourcedefinitions.apiextensions.k8s.io":
                finalizers.append("customresourcecleanup.apiextensions.k8s.io")
            grace_s = self._grace_s(kind, old, removal.grace_s)
            key = self.key(kind, namespace, name)
            new = copy.deepcopy(old)
            waits = bool(finalizers) or bool(grace_s) or kind.resource == "namespaces"
            if not waits:
                return old if dry_run else self.store.remove(key), True
            again = bool(metadata.get("deletionTimestamp"))
            if finalizers:
                new["metadata"]["finalizers"] = list(dict.fromkeys(finalizers))
            else:
                new["metadata"].pop("finalizers", None)
            was_s = metadata.get("deletionGracePeriodSeconds")
            if not again or (grace_s or 0) < (was_s or 0):
                new["metadata"]["deletionTimestamp"] = stamp(self.clock() + (grace_s or 0))
                new["metadata"]["deletionGracePeriodSeconds"] = grace_s or 0
            if not again and "generation" in metadata:
                new["metadata"]["generation"] += 1
            if kind.resource == "namespaces":
                new.setdefault("status", {})["phase"] = "Terminating"
            if new == old or dry_run:
                return new, False
            return self.store.put(key, new), False

    @staticmethod
    def _grace_s(kind: Kind, old: Object, asked_s: int | None) -> int | None:
        """How long a pod may take to end: nothing where it is on no node or has ended already."""
        if kind.resource != "pods":
            return None
        if not old["spec"].get("nodeName") or old.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return 0
        usual = old["spec"].get("terminationGracePeriodSeconds", 30)
        return int(usual if asked_s is None else max(0, asked_s))


def _usual(kind: Kind, finalizers: Any) -> str:
    """What happens to dependents where the request does not say: batch/v1 jobs leave their pods behind."""
    if FOREGROUND in finalizers:
        return "Foreground"
    if ORPHAN in finalizers or kind.resource == "jobs.batch":
        return "Orphan"
    return "Background"


def _plain_types(kind: Kind, new: Object) -> None:
    """Shapes of built-in kinds that no schema here describes. Raises ApiError (400)."""
    for name in ("spec", "status", "data", "stringData"):
        if not isinstance(new.get(name, {}), dict) and new[name] is not None:
            raise bad_request(f"{kind.kind} cannot be handled as a {kind.kind}: json: cannot unmarshal field {name}")
    for name in ("data", "stringData"):
        for key, value in (new.get(name) or {}).items():
            if not isinstance(value, str):
                raise bad_request(
                    f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: json: cannot '
                    f"unmarshal {type(value).__name__} into Go struct field {kind.kind}.{name} of type string: {key}"
                )
