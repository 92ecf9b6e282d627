"""Objects cut down to what is read of them: five thousand pods are kept in memory, their environment is not."""

from __future__ import annotations

from typing import Any

_HEAD = frozenset(
    {
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "labels",
        "ownerReferences",
    }
)
#: Annotations that say something to the portal; the rest may be as long as a person likes.
_NOTES = ("quarterdeck.dev/", "batch.kubernetes.io/", "sagemaker.amazonaws.com/", "jobset.sigs.k8s.io/")
_CONTAINER = frozenset({"name", "image", "resources", "restartPolicy"})
_POD_SPEC = frozenset(
    {
        "nodeName",
        "containers",
        "initContainers",
        "nodeSelector",
        "affinity",
        "tolerations",
        "overhead",
        "activeDeadlineSeconds",
        "schedulerName",
        "priority",
        "priorityClassName",
        "schedulingGates",
    }
)


def slim(thing: dict[str, Any]) -> dict[str, Any]:
    """The object with what the portal reads; a new one, nothing of the old is changed."""
    found = {key: value for key, value in thing.items() if key not in ("metadata", "spec", "managedFields")}
    found["metadata"] = _head(thing.get("metadata"))
    if thing.get("kind") == "Node":
        found["status"] = {key: value for key, value in (thing.get("status") or {}).items() if key != "images"}
    if "spec" in thing:
        found["spec"] = _pods(thing["spec"]) if thing.get("kind") != "Pod" else _pod_spec(thing["spec"])
    return found


def _head(head: Any) -> dict[str, Any]:
    if not isinstance(head, dict):
        return {}
    found = {key: value for key, value in head.items() if key in _HEAD}
    notes = {key: value for key, value in (head.get("annotations") or {}).items() if str(key).startswith(_NOTES)}
    if notes:
        found["annotations"] = notes
    return found


def _pods(value: Any, depth: int = 0) -> Any:
    """Any part of a spec, the pods' specs in it cut down."""
    if depth > 12:
        return value
    if isinstance(value, list):
        return [_pods(row, depth + 1) for row in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("containers"), list):
        return _pod_spec(value)
    return {key: _pods(inner, depth + 1) for key, inner in value.items()}


def _pod_spec(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    found = {key: inner for key, inner in value.items() if key in _POD_SPEC}
    for part in ("containers", "initContainers"):
        rows = found.get(part)
        if isinstance(rows, list):
            found[part] = [
                {key: inner for key, inner in row.items() if key in _CONTAINER} for row in rows if isinstance(row, dict)
            ]
    return found
