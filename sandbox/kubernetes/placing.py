"""Where a pod can run: what it asks for, what a node has left, selectors and taints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal

from sandbox.kubernetes.quantities import quantity
from sandbox.kubernetes.selectors import Requirement
from sandbox.kubernetes.status import Object


def requests_of(spec: Object) -> dict[str, Decimal]:
    """What a pod asks for: the sum of its containers, or its greediest init container where that is more."""
    total: dict[str, Decimal] = {}
    for container in spec.get("containers") or ():
        for name, value in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, Decimal(0)) + quantity(value)
    for container in spec.get("initContainers") or ():
        for name, value in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = max(total.get(name, Decimal(0)), quantity(value))
    return total


def used_on(node: str, pods: Iterable[Object]) -> dict[str, Decimal]:
    """What the living pods of a node hold."""
    total: dict[str, Decimal] = {"pods": Decimal(0)}
    for pod in pods:
        if pod["spec"].get("nodeName") != node or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        total["pods"] += 1
        for name, value in requests_of(pod["spec"]).items():
            total[name] = total.get(name, Decimal(0)) + value
    return total


def tolerates(spec: Object, taint: Object) -> bool:
    """Whether a pod bears a taint."""
    for one in spec.get("tolerations") or ():
        if one.get("effect") not in (None, "", taint.get("effect")):
            continue
        if one.get("operator") == "Exists" and one.get("key") in (None, "", taint["key"]):
            return True
        if one.get("key") == taint["key"] and one.get("value", "") == taint.get("value", ""):
            return True
    return False


def _wanted_labels(spec: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not affinity:
        return True
    for term in affinity.get("nodeSelectorTerms") or ():
        clauses = [
            Requirement(one["key"], one["operator"], frozenset(one.get("values") or ()))
            for one in term.get("matchExpressions") or ()
        ]
        if all(one.holds(labels) for one in clauses):
            return True
    return False


def hindrances(spec: Object, node: Object, used: Mapping[str, Decimal]) -> list[str]:
    """Why a pod cannot run on a node, in the scheduler's words; empty where it can."""
    if (node.get("spec") or {}).get("unschedulable"):
        return ["node(s) were unschedulable"]
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("effect") != "PreferNoSchedule" and not tolerates(spec, taint):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    if not _wanted_labels(spec, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    found = []
    for name, wanted in [*requests_of(spec).items(), ("pods", Decimal(1))]:
        if wanted + used.get(name, Decimal(0)) > quantity(allocatable.get(name, "0")):
            found.append("Too many pods" if name == "pods" else f"Insufficient {name}")
    return found


def unschedulable(spec: Object, nodes: list[Object], used: Mapping[str, Mapping[str, Decimal]]) -> str:
    """The message of a pod that fits nowhere."""
    why: Counter[str] = Counter()
    for node in nodes:
        why.update(hindrances(spec, node, used[node["metadata"]["name"]]))
    said = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
    return f"0/{len(nodes)} nodes are available: {said}." if nodes else "no nodes available to schedule pods"
