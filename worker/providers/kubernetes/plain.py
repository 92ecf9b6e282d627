"""Whole jobs at a time without Kueue: who may begin now, first come first served, and why the others wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.providers.kubernetes.decode import HELD, demand_of_pod
from worker.providers.kubernetes.ends import is_live, is_placed
from worker.providers.kubernetes.informer import Known
from worker.providers.kubernetes.kueue_reasons import condition
from worker.providers.kubernetes.node_reads import capacity_of
from worker.providers.kubernetes.pod_sets import BadValue, Demand, PodSet, as_list, as_map, at, demand, pod_sets
from worker.providers.kubernetes.queueing import QUEUE
from worker.providers.kubernetes.reason_values import Reason
from worker.providers.kubernetes.reason_values import text as _
from worker.providers.kubernetes.works import Thing, Work


@dataclass(frozen=True)
class Line:
    """Who may begin now, in order, and why each of the others waits."""

    may_begin: tuple[Work, ...]
    waits: Mapping[str, Reason]


@dataclass
class _Room:
    node: Thing
    left: Demand


def line_up(works: Mapping[str, Work], known: Known) -> Line:
    """The decision for all workloads that the portal holds back."""
    rooms = _rooms(known)
    held = [work for work in works.values() if is_held_back(work)]
    # What may begin already but has not found its nodes yet has them as good as taken.
    for work in works.values():
        if not is_held_back(work) and work.attempt and work.root is not None and not _is_over(work.root):
            there = sum(is_live(pod) for pod in work.pods)
            for spec, count, one in _sets(work):
                found = min(count, there)
                there -= found
                _place(spec, [one] * (count - found), rooms)
            for pod in work.pods:
                if is_live(pod) and not at(pod, "spec", "nodeName"):
                    _place(as_map(pod.get("spec")), [demand_of_pod(pod)], rooms)
    held.sort(key=_turn)
    begin: list[Work] = []
    waits: dict[str, Reason] = {}
    blocked: dict[str, Work] = {}
    for work in held:
        if any(at(part.root, "metadata", "annotations", HELD) for part in work.parts or [work]):
            continue
        sets = _sets(work)
        eligible = {name for spec, _count, _one in sets for name in _eligible(spec, rooms)}
        ahead = next((blocked[name] for name in sorted(eligible) if name in blocked), None)
        if ahead is not None:
            waits[work.id] = Reason("Behind", _("It waits behind %(name)s.", name=_name(ahead)))
        else:
            fits = _fit(sets, rooms)
            wanted = sum(count for _spec, count, _one in sets)
            if fits >= wanted and wanted:
                begin.append(work)
                continue
            waits[work.id] = _no_room(sets, fits, wanted, len(eligible))
        for name in eligible:
            blocked.setdefault(name, work)
    return Line(tuple(begin), waits)


def is_held_back(work: Work) -> bool:
    """Whether it is a job of the portal that waits for the portal to let it begin; of a manifest, any part of it."""
    root = work.root
    if work.parts:
        return any(is_held_back(part) for part in work.parts)
    if root is None or not work.attempt or at(root, "metadata", "labels", QUEUE):
        return False
    suspended = at(root, "spec", "suspend") or at(root, "spec", "runPolicy", "suspend")
    return bool(suspended) and not _is_over(root)


def _is_over(root: Thing) -> bool:
    ends = ("Complete", "Completed", "Succeeded", "Failed")
    return bool(at(root, "metadata", "deletionTimestamp")) or any(
        condition(root, name).get("status") == "True" for name in ends
    )


def _turn(work: Work) -> tuple[str, str]:
    return str(at(work.root, "metadata", "creationTimestamp") or ""), work.id


def _name(work: Work) -> str:
    return str(as_map(work.head.get("annotations")).get("quarterdeck.dev/name") or work.name)


def _no_room(sets: Sequence[tuple[Any, int, Demand]], fits: int, wanted: int, eligible: int) -> Reason:
    if not eligible:
        return Reason("NoNode", _("No node of the cluster is of the type that it asks for."))
    gpus = max((one.gpus for _spec, _count, one in sets), default=0)
    text = _(
        "All of its %(pods)s pods with %(gpus)s GPUs each must find room at once; there is room for %(fits)s now.",
        pods=wanted,
        gpus=gpus,
        fits=fits,
    )
    return Reason("NoRoom", text)


def _rooms(known: Known) -> dict[str, _Room]:
    found: dict[str, _Room] = {}
    for node in known.of("Node").values():
        is_ready = condition(node, "Ready").get("status") == "True"
        if is_ready and not at(node, "spec", "unschedulable"):
            found[str(node["metadata"]["name"])] = _Room(node, capacity_of(node))
    for pod in known.of("Pod").values():
        if is_placed(pod) and (room := found.get(str(pod["spec"]["nodeName"]))) is not None:
            room.left = _minus(room.left, demand_of_pod(pod))
    return found


def _sets(work: Work) -> list[tuple[Mapping[str, Any], int, Demand]]:
    found: list[tuple[Mapping[str, Any], int, Demand]]
    if work.parts:
        # All that is still held back begins together.
        return [one for part in work.parts if is_held_back(part) or not is_held_back(work) for one in _sets(part)]
    try:
        found = [(one.spec, one.count, _each(one)) for one in pod_sets(work.root or {}) if one.count]
    except BadValue:
        return []
    if work.kind == "TrainJob":
        # Where its pods may stand is said by its runtime, which is not kept.
        return [({**spec, "tolerations": [{"operator": "Exists"}]}, count, one) for spec, count, one in found]
    return found


def _each(one: PodSet) -> Demand:
    found = demand(one)
    return Demand(1, found.gpus, found.efa, found.cpu_milli, found.memory_mib)


def _fit(sets: Sequence[tuple[Mapping[str, Any], int, Demand]], rooms: dict[str, _Room]) -> int:
    """How many pods find room together; where all do, the room is theirs from now on."""
    trial = {name: _Room(room.node, room.left) for name, room in rooms.items()}
    placed = 0
    for spec, count, one in sets:
        placed += _place(spec, [one] * count, trial)
    if placed == sum(count for _spec, count, _one in sets):
        for name, room in trial.items():
            rooms[name].left = room.left
    return placed


def _place(spec: Mapping[str, Any], pods: Sequence[Demand], rooms: dict[str, _Room]) -> int:
    names = _eligible(spec, rooms)
    placed = 0
    for one in pods:
        # The fullest node that still takes it, so that whole nodes stay free for whole nodes' jobs.
        fitting = [name for name in names if _holds(rooms[name].left, one)]
        if not fitting:
            break
        best = min(fitting, key=lambda name: (rooms[name].left.gpus, name))
        rooms[best].left = _minus(rooms[best].left, one)
        placed += 1
    return placed


def _eligible(spec: Mapping[str, Any], rooms: Mapping[str, _Room]) -> list[str]:
    return [name for name, room in rooms.items() if _selects(spec, room.node) and _tolerates(spec, room.node)]


def _selects(spec: Mapping[str, Any], node: Thing) -> bool:
    labels = {"kubernetes.io/hostname": node["metadata"]["name"], **as_map(at(node, "metadata", "labels"))}
    if any(labels.get(key) != value for key, value in as_map(spec.get("nodeSelector")).items()):
        return False
    rule = at(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    terms = as_list(rule)
    return not terms or any(_matches(as_map(term), labels) for term in terms)


def _matches(term: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    for row in as_list(term.get("matchExpressions")):
        rule = as_map(row)
        value, values = labels.get(str(rule.get("key"))), as_list(rule.get("values"))
        match rule.get("operator"):
            case "In" if value not in values:
                return False
            case "NotIn" if value in values:
                return False
            case "Exists" if value is None:
                return False
            case "DoesNotExist" if value is not None:
                return False
    return True


def _tolerates(spec: Mapping[str, Any], node: Thing) -> bool:
    wishes = [as_map(row) for row in as_list(spec.get("tolerations"))]
    for row in as_list(at(node, "spec", "taints")):
        taint = as_map(row)
        if taint.get("effect") == "PreferNoSchedule":
            continue
        if not any(_covers(wish, taint) for wish in wishes):
            return False
    return True


def _covers(wish: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if wish.get("effect") and wish["effect"] != taint.get("effect"):
        return False
    if wish.get("operator") == "Exists":
        return not wish.get("key") or wish["key"] == taint.get("key")
    return wish.get("key") == taint.get("key") and (wish.get("value") or "") == (taint.get("value") or "")


def _minus(left: Demand, one: Demand) -> Demand:
    return left + one.times(-1)


def _holds(left: Demand, one: Demand) -> bool:
    return (
        one.gpus <= left.gpus
        and one.cpu_milli <= left.cpu_milli
        and one.memory_mib <= left.memory_mib
        and one.efa <= left.efa
        and left.pods > 0
    )
