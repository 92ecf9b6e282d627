"""Kueue's objects from one of its versions into the other, where a field has another name there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from sandbox.kubernetes.registry import Kind
from sandbox.kubernetes.status import Object

_PRIORITY_GROUPS: Final = {
    "kueue.x-k8s.io/workloadpriorityclass": ("kueue.x-k8s.io", "WorkloadPriorityClass"),
    "scheduling.k8s.io/priorityclass": ("scheduling.k8s.io", "PriorityClass"),
}


def _move(part: Object, old: str, new: str) -> None:
    if old in part:
        part[new] = part.pop(old)


def _cluster_queue(spec: Object, status: Object, newer: bool) -> None:
    _move(spec, *(("cohort", "cohortName") if newer else ("cohortName", "cohort")))
    if newer and "admissionChecks" in spec:
        checks = [{"name": name} for name in spec.pop("admissionChecks")]
        spec.setdefault("admissionChecksStrategy", {}).setdefault("admissionChecks", checks)
    if newer:
        status.pop("pendingWorkloadsStatus", None)


def _local_queue(spec: Object, status: Object, newer: bool) -> None:
    _move(status, *(("flavorUsage", "flavorsUsage") if newer else ("flavorsUsage", "flavorUsage")))
    if newer:
        status.pop("flavors", None)


def _workload(spec: Object, status: Object, newer: bool) -> None:
    _move(
        status,
        *(
            ("accumulatedPastExexcutionTimeSeconds", "accumulatedPastExecutionTimeSeconds")
            if newer
            else ("accumulatedPastExecutionTimeSeconds", "accumulatedPastExexcutionTimeSeconds")
        ),
    )
    if newer:
        name, source = spec.pop("priorityClassName", None), spec.pop("priorityClassSource", "")
        if name and source in _PRIORITY_GROUPS:
            group, kind = _PRIORITY_GROUPS[source]
            spec["priorityClassRef"] = {"group": group, "kind": kind, "name": name}
    elif reference := spec.pop("priorityClassRef", None):
        spec["priorityClassName"] = reference["name"]
        spec["priorityClassSource"] = f"{reference['group']}/{reference['kind'].lower()}"
    for assignment in (status.get("admission") or {}).get("podSetAssignments") or ():
        topology = assignment.get("topologyAssignment")
        if topology and newer and "domains" in topology:
            topology["slices"] = [_slice(domain) for domain in topology.pop("domains")]
        elif topology and not newer and "slices" in topology:
            topology["domains"] = [domain for one in topology.pop("slices") for domain in _domains(one)]


def _slice(domain: Object) -> Object:
    return {
        "domainCount": 1,
        "podCounts": {"universal": domain["count"]},
        "valuesPerLevel": [{"universal": value} for value in domain["values"]],
    }


def _domains(one: Object) -> list[Object]:
    found = []
    for at in range(one["domainCount"]):
        counts = one["podCounts"]
        values = []
        for level in one["valuesPerLevel"]:
            each = level.get("individual")
            values.append(
                level["universal"]
                if each is None
                else f"{each.get('prefix', '')}{each['roots'][at]}{each.get('suffix', '')}"
            )
        found.append({"count": counts.get("universal") or counts["individual"][at], "values": values})
    return found


_CHANGES: Final[dict[str, Callable[[Object, Object, bool], Any]]] = {
    "clusterqueues.kueue.x-k8s.io": _cluster_queue,
    "localqueues.kueue.x-k8s.io": _local_queue,
    "workloads.kueue.x-k8s.io": _workload,
}


def converted(thing: Object, kind: Kind) -> Object:
    """The object as ``kind``'s version writes it; the same object where it already is."""
    if thing.get("apiVersion") == kind.api_version:
        return thing
    change = _CHANGES.get(kind.resource)
    if change is None:
        return {**thing, "apiVersion": kind.api_version}
    result = copy.deepcopy(thing)
    result["apiVersion"] = kind.api_version
    spec, status = result.get("spec", {}), result.get("status", {})
    change(spec, status, kind.version == "v1beta2")
    return result
