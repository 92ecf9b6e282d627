"""What a ResourceFlavor has to do with pods: which it suits, and the node labels and tolerations it gives to them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sandbox.kubernetes.placing import tolerates
from sandbox.kubernetes.status import Object
from sandbox.kubernetes.store import Key, Store

_FLAVORS: Final = "resourceflavors.kueue.x-k8s.io"


def flavor(store: Store, name: str) -> Object | None:
    """A flavor by its name."""
    return store.get(Key(_FLAVORS, "", name))


def unsuited(store: Store, name: str, among: Iterable[str], specs: Iterable[Object]) -> str:
    """Why pods of these specs cannot take a flavor, in Kueue's words; "" where they can.

    Only labels that any of the group's flavors ``among`` has are compared, as Kueue does.
    """
    found = flavor(store, name)
    if found is None:
        return f"flavor {name} not found"
    own = (found.get("spec") or {}).get("nodeLabels") or {}
    keys = {
        key for one in among if (each := flavor(store, one)) for key in (each.get("spec") or {}).get("nodeLabels") or {}
    }
    for spec in specs:
        for taint in (found.get("spec") or {}).get("nodeTaints") or ():
            borne = {"tolerations": [*(spec.get("tolerations") or ()), *_tolerations(found)]}
            if taint.get("effect") in ("NoSchedule", "NoExecute") and not tolerates(borne, taint):
                told = f"{taint['key']} {taint.get('value', '')} {taint['effect']} <nil>"
                return f"untolerated taint {{{told}}} in flavor {name}"
        if not _agree(spec, own, keys):
            return f"flavor {name} doesn't match node affinity"
    return ""


def _agree(spec: Object, own: Mapping[str, str], keys: set[str]) -> bool:
    for key, value in (spec.get("nodeSelector") or {}).items():
        if key in keys and own.get(key) != value:
            return False
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = (required or {}).get("nodeSelectorTerms") or ()
    return not terms or any(all(_holds(one, own, keys) for one in term.get("matchExpressions") or ()) for term in terms)


def _holds(clause: Object, own: Mapping[str, str], keys: set[str]) -> bool:
    if clause["key"] not in keys:
        return True
    value, values = own.get(clause["key"]), clause.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }.get(clause["operator"], True)


def _tolerations(found: Object) -> list[Object]:
    return list((found.get("spec") or {}).get("tolerations") or ())


def placed(store: Store, workload: Object) -> dict[str, Object]:
    """By pod set what an admitted workload's pods get: ``nodeSelector`` and ``tolerations``, with their own."""
    own = {one["name"]: one["template"]["spec"] for one in workload["spec"]["podSets"]}
    made: dict[str, Object] = {}
    admission = (workload.get("status") or {}).get("admission") or {}
    for one in admission.get("podSetAssignments") or ():
        spec = own.get(one["name"]) or {}
        selector = dict(spec.get("nodeSelector") or {})
        borne = copy.deepcopy(spec.get("tolerations") or [])
        for name in sorted(set((one.get("flavors") or {}).values())):
            found = flavor(store, name)
            if found is not None:
                selector |= (found.get("spec") or {}).get("nodeLabels") or {}
                borne += [each for each in _tolerations(found) if each not in borne]
        made[one["name"]] = {"nodeSelector": selector, "tolerations": borne}
    return made


def laid(kind: str, spec: Object, placements: Mapping[str, Object]) -> dict[str, Any]:
    """The members of a job's spec, changed so that its pods get their placement; none where nothing is given."""
    if not any(one["nodeSelector"] or one["tolerations"] for one in placements.values()):
        return {}
    spec = copy.deepcopy(spec)

    def over(pod: Object, name: str) -> None:
        for key, value in (placements.get(name) or {}).items():
            if value or pod.get(key):
                pod[key] = copy.deepcopy(value)

    if kind == "job":
        over(spec["template"]["spec"], "main")
        return {"template": spec["template"]}
    if kind == "jobset":
        for one in spec["replicatedJobs"]:
            over(one["template"]["spec"]["template"]["spec"], one["name"])
        return {"replicatedJobs": spec["replicatedJobs"]}
    if kind == "pytorchjob":
        for role, one in spec["pytorchReplicaSpecs"].items():
            over(one["template"]["spec"], role.lower())
        return {"pytorchReplicaSpecs": spec["pytorchReplicaSpecs"]}
    jobs = [
        {"name": name, "template": {"spec": {"template": {"spec": copy.deepcopy(one)}}}}
        for name, one in placements.items()
    ]
    ours = {
        "manager": "kueue.x-k8s.io/manager",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
    }
    kept = [one for one in spec.get("runtimePatches") or () if one.get("manager") != ours["manager"]]
    return {"runtimePatches": [*kept, ours]}
