"""Label and field selectors: parsed as Kubernetes writes them, matched against objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandbox.kubernetes.status import Object, bad_request

Matcher = Callable[[Object], bool]

_SET: Final = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_KEY: Final = re.compile(r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")
_VALUE: Final = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$")


@dataclass(frozen=True)
class Requirement:
    """One clause: ``operator`` is In, NotIn, Exists or DoesNotExist (or Gt, Lt of a node's affinity)."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, Any]) -> bool:
        """Whether labels satisfy it; what is absent satisfies NotIn."""
        found = labels.get(self.key)
        if self.operator == "Exists":
            return found is not None
        if self.operator == "DoesNotExist":
            return found is None
        if self.operator == "In":
            return found in self.values
        if self.operator == "NotIn":
            return found not in self.values
        try:
            number, limit = int(str(found)), int(next(iter(self.values)))
        except (ValueError, StopIteration):
            return False
        return number > limit if self.operator == "Gt" else number < limit


def _clauses(text: str) -> list[str]:
    """Split at the commas that stand outside of brackets."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    parts.append(text[begin:])
    return [part.strip() for part in parts if part.strip()]


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """The clauses of a labelSelector. Raises ApiError (400)."""
    found = []
    for clause in _clauses(text):
        if among := _SET.match(clause):
            values = frozenset(value.strip() for value in among["values"].split(","))
            one = Requirement(among["key"], "In" if among["op"] == "in" else "NotIn", values)
        elif "!=" in clause:
            key, _, value = clause.partition("!=")
            one = Requirement(key.strip(), "NotIn", frozenset({value.strip()}))
        elif "=" in clause:
            key, _, value = clause.partition("==" if "==" in clause else "=")
            one = Requirement(key.strip(), "In", frozenset({value.strip()}))
        elif clause.startswith("!"):
            one = Requirement(clause[1:].strip(), "DoesNotExist")
        else:
            one = Requirement(clause, "Exists")
        if not _KEY.match(one.key) or any(not _VALUE.match(value) for value in one.values):
            raise bad_request(f"unable to parse requirement: {clause!r} is no label requirement")
        found.append(one)
    return tuple(found)


def requirements_of(selector: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """The clauses of a LabelSelector object (matchLabels and matchExpressions)."""
    found = [
        Requirement(key, "In", frozenset({str(value)})) for key, value in (selector.get("matchLabels") or {}).items()
    ]
    for one in selector.get("matchExpressions") or ():
        found.append(Requirement(one["key"], one["operator"], frozenset(one.get("values") or ())))
    return tuple(found)


#: Fields that may be selected on, beside metadata.name and metadata.namespace which every kind has.
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    "events": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "services": ("spec.clusterIP", "spec.type"),
    "jobs.batch": ("status.successful",),
    "replicasets.apps": ("status.replicas",),
}


def _read(thing: Object, path: str) -> str:
    if path == "source":
        path = "source.component"
    if path == "status.successful":
        path = "status.succeeded"
    found: Any = thing
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if found is None:
        return (
            "0" if path == "status.succeeded" else "false" if path in ("spec.unschedulable", "spec.hostNetwork") else ""
        )
    return str(found).lower() if isinstance(found, bool) else str(found)


def parse_fields(text: str, resource: str) -> tuple[tuple[str, bool, str], ...]:
    """(path, equal, value) of each clause of a fieldSelector. Raises ApiError (400) for a field without an index."""
    known = ("metadata.name", "metadata.namespace", *FIELDS.get(resource, ()))
    found = []
    for clause in (part.strip() for part in text.split(",")):
        if not clause:
            continue
        equal = "!=" not in clause
        path, sign, value = clause.partition("!=" if not equal else "==" if "==" in clause else "=")
        if not sign:
            raise bad_request(f"invalid selector: {clause!r}; can't understand {clause!r}")
        if path.strip() not in known:
            raise bad_request(
                f"Unable to find {resource!r} that match label selector '', field selector {clause!r}: "
                f"field label not supported: {path.strip()}"
            )
        found.append((path.strip(), equal, value.strip()))
    return tuple(found)


def matcher(label_selector: str, field_selector: str, resource: str) -> Matcher:
    """A test of objects for both selectors; empty ones let everything through. Raises ApiError (400)."""
    labels = parse_labels(label_selector)
    fields = parse_fields(field_selector, resource)

    def test(thing: Object) -> bool:
        carried = thing["metadata"].get("labels") or {}
        return all(one.holds(carried) for one in labels) and all(
            (_read(thing, path) == value) is equal for path, equal, value in fields
        )

    return test
