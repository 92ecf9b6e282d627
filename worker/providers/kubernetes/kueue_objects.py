"""Kueue's objects from the portal's teams and shares, in the version the server has, and how they drifted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.providers.errors import InvalidRequest
from worker.providers.kubernetes import quantities
from worker.providers.kubernetes.kueue_values import (
    NEVER,
    OWN,
    V1BETA1,
    V1BETA2,
    VERSIONS,
    Arrangement,
    Flavor,
    Layers,
    Priority,
    Share,
    TeamQueue,
)
from worker.providers.kubernetes.names import LABEL_MANAGED, LABEL_TEAM, MANAGED_BY, is_dns_label, label_value
from worker.providers.values import Text

GROUP = "kueue.x-k8s.io"
HOSTNAME = "kubernetes.io/hostname"
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
#: Kueue's limits of a ClusterQueue.
MAX_FLAVORS, MAX_RESOURCES = 64, 64


@dataclass(frozen=True, slots=True)
class Difference:
    """Where what was found is not what is wanted. ``path`` is the field's, "" for the object as a whole.

    ``kind`` is "missing", "changed" or "foreign" (an object of ours that is wanted no more).
    """

    kind: str
    object_kind: str
    name: str
    namespace: str
    path: str
    text: Text

    def __str__(self) -> str:
        """The sentence in English."""
        return str(self.text)


def served_version(versions: Sequence[str]) -> str:
    """The version to write, of those that the server has: the newest known. Raises InvalidRequest for none."""
    for version in reversed(VERSIONS):
        if version in versions:
            return version
    raise InvalidRequest(
        f"Kueue here serves {', '.join(versions) or 'nothing'}; known are {', '.join(VERSIONS)}", source="kubernetes"
    )


def objects(wanted: Arrangement, version: str) -> tuple[dict[str, Any], ...]:
    """All objects, in an order in which none refers to a later one. Raises InvalidRequest, naming what is wrong."""
    if version not in VERSIONS:
        raise InvalidRequest(f"version {version!r} is none of {', '.join(VERSIONS)}", source="kubernetes")
    if problems := refusals(wanted):
        raise InvalidRequest("; ".join(problems), source="kubernetes")
    found = [_topology(row, version) for row in wanted.layers]
    found += [_flavor(row, version) for row in wanted.flavors]
    found += [_priority(row, version) for row in wanted.priorities]
    if wanted.cohort:
        found.append(_cohort(wanted, version))
    for team in wanted.teams:
        found.append(_cluster_queue(team, wanted, version))
        found += [_local_queue(team, namespace, version) for namespace in team.namespaces]
    return tuple(found)


def refusals(wanted: Arrangement) -> list[str]:
    """Why the arrangement cannot be written, a sentence each."""
    found = []
    rows: list[tuple[str, str]] = [("flavor", row.name) for row in wanted.flavors]
    rows += [("queue", row.name) for row in wanted.teams] + [("priority", row.name) for row in wanted.priorities]
    rows += [("topology", row.name) for row in wanted.layers]
    rows += [("cohort", wanted.cohort)] if wanted.cohort else []
    found += [f"{sort} {name!r} is no name that Kubernetes takes" for sort, name in rows if not _is_name(name)]
    found += [f"{sort} {name!r} is there twice" for sort, name in sorted(set(rows)) if rows.count((sort, name)) > 1]
    flavors, layers = {row.name for row in wanted.flavors}, {row.name for row in wanted.layers}
    for row in wanted.flavors:
        if row.topology and row.topology not in layers:
            found.append(f"flavor {row.name!r} is of the topology {row.topology!r}, which is not there")
    for layer in wanted.layers:
        if not layer.labels or len(set(layer.labels)) != len(layer.labels) or HOSTNAME in layer.labels[:-1]:
            found.append(f"topology {layer.name!r} has no layers, one twice, or {HOSTNAME} before the last")
    owners = [(f"queue {team.name!r}", team.shares) for team in wanted.teams]
    for owner, shares in [*owners, ("the cohort", wanted.cohort_shares)]:
        found += _share_refusals(owner, shares, flavors, has_cohort=bool(wanted.cohort))
    for team in wanted.teams:
        if not team.namespaces or not all(map(is_dns_label, team.namespaces)):
            found.append(f"queue {team.name!r} has no namespace, or one that is no name")
        if not team.shares:
            found.append(f"queue {team.name!r} has no share of anything")
        found += _number(f"the weight of queue {team.name!r}", team.weight)
    return found


def _share_refusals(owner: str, shares: Sequence[Share], flavors: set[str], *, has_cohort: bool) -> list[str]:
    found = []
    keys = [(share.flavor, share.resource) for share in shares]
    for share in shares:
        what = f"{owner}: {share.resource} of {share.flavor!r}"
        if share.flavor not in flavors:
            found.append(f"{what}: there is no such flavor")
        for name in ("nominal", "borrowing", "lending"):
            value = getattr(share, name)
            found += _number(f"{what}: {name}", value) if value is not None else []
        if (share.borrowing is not None or share.lending is not None) and not has_cohort:
            found.append(f"{what}: without a cohort nothing is lent or borrowed")
    found += [f"{owner}: {key[1]} of {key[0]!r} is there twice" for key in sorted(set(keys)) if keys.count(key) > 1]
    resources = {flavor: {share.resource for share in shares if share.flavor == flavor} for flavor, _r in keys}
    if len({frozenset(names) for names in resources.values()}) > 1:
        found.append(f"{owner}: each flavor must have a share of the same resources")
    if len(resources) > MAX_FLAVORS or any(len(names) > MAX_RESOURCES for names in resources.values()):
        found.append(f"{owner}: Kueue takes {MAX_FLAVORS} flavors and {MAX_RESOURCES} resources")
    return found


def _number(what: str, value: str) -> list[str]:
    try:
        return [f"{what} is {value}, below zero"] if quantities.parse(value) < 0 else []
    except ValueError:
        return [f"{what} is {value!r}, which is no quantity"]


def _is_name(name: str) -> bool:
    return len(name) <= 253 and all(is_dns_label(part) for part in name.split("."))


def _head(kind: str, name: str, version: str, **meta: Any) -> dict[str, Any]:
    labels = {LABEL_MANAGED: MANAGED_BY, **meta.pop("labels", {})}
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": kind,
        "metadata": {"name": name, **meta, "labels": labels},
    }


def _topology(layers: Layers, version: str) -> dict[str, Any]:
    levels = [{"nodeLabel": label} for label in layers.labels]
    return {**_head("Topology", layers.name, version), "spec": {"levels": levels}}


def _flavor(flavor: Flavor, version: str) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if flavor.labels:
        spec["nodeLabels"] = dict(flavor.labels)
    if flavor.taints:
        taints = [{"key": key, "value": value, "effect": effect} for key, value, effect in flavor.taints]
        spec["nodeTaints"] = [{name: text for name, text in taint.items() if text} for taint in taints]
        # Who is put on these nodes tolerates them by the flavor, not by the job's own words.
        spec["tolerations"] = [_toleration(*taint) for taint in flavor.taints]
    if flavor.topology:
        spec["topologyName"] = flavor.topology
    return {**_head("ResourceFlavor", flavor.name, version), "spec": spec}


def _toleration(key: str, value: str, effect: str) -> dict[str, str]:
    found = {"key": key, "operator": "Equal", "value": value} if value else {"key": key, "operator": "Exists"}
    return {**found, "effect": effect}


def _priority(priority: Priority, version: str) -> dict[str, Any]:
    found = {**_head("WorkloadPriorityClass", priority.name, version), "value": priority.value}
    return {**found, "description": priority.description} if priority.description else found


def _groups(shares: Sequence[Share]) -> list[dict[str, Any]]:
    """All shares as one group, the flavors in their order: the first that fits is taken."""
    flavors = list(dict.fromkeys(share.flavor for share in shares))
    resources = list(dict.fromkeys(share.resource for share in shares))
    by_key = {(share.flavor, share.resource): share for share in shares}
    rows = [
        {"name": flavor, "resources": [_quota(by_key[flavor, resource]) for resource in resources]}
        for flavor in flavors
    ]
    return [{"coveredResources": resources, "flavors": rows}] if rows else []


def _quota(share: Share) -> dict[str, str]:
    found = {"name": share.resource, "nominalQuota": share.nominal}
    if share.borrowing is not None:
        found["borrowingLimit"] = share.borrowing
    if share.lending is not None:
        found["lendingLimit"] = share.lending
    return found


def _cohort(wanted: Arrangement, version: str) -> dict[str, Any]:
    groups = _groups(wanted.cohort_shares)
    return {**_head("Cohort", wanted.cohort, version), "spec": {"resourceGroups": groups} if groups else {}}


def _cluster_queue(team: TeamQueue, wanted: Arrangement, version: str) -> dict[str, Any]:
    """The queue takes only jobs of the team's namespaces, whoever makes a LocalQueue that names it."""
    here = {"key": NAMESPACE_LABEL, "operator": "In", "values": list(team.namespaces)}
    spec: dict[str, Any] = {
        "namespaceSelector": {"matchExpressions": [here]},
        "queueingStrategy": "BestEffortFIFO",
        "resourceGroups": _groups(team.shares),
        "preemption": {
            "withinClusterQueue": "Never" if team.preemption == NEVER else "LowerPriority",
            "reclaimWithinCohort": "Never" if team.preemption in (NEVER, OWN) or not wanted.cohort else "Any",
        },
        "stopPolicy": "Hold" if team.is_stopped else "None",
    }
    if wanted.cohort:
        # The same under another name: the field was renamed in the second version.
        spec[{V1BETA1: "cohort", V1BETA2: "cohortName"}[version]] = wanted.cohort
        spec["fairSharing"] = {"weight": team.weight}
    labels = {LABEL_TEAM: label_value(team.team)}
    return {**_head("ClusterQueue", team.name, version, labels=labels), "spec": spec}


def _local_queue(team: TeamQueue, namespace: str, version: str) -> dict[str, Any]:
    labels = {LABEL_TEAM: label_value(team.team)}
    head = _head("LocalQueue", team.name, version, namespace=namespace, labels=labels)
    return {**head, "spec": {"clusterQueue": team.name}}


# --- drift ---------------------------------------------------------------------------------------


def differences(wanted: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Where ``found`` (all objects of these kinds, as the server has them) is not as ``wanted``, in words.

    Only what is wanted is compared: what the server fills in by itself is no drift, and objects that are not marked
    as ours are left alone. Quantities are compared as amounts, the version of the API not at all.
    """
    by_key = {_key(row): row for row in found}
    result: list[Difference] = []
    for row in wanted:
        if _key(row) not in by_key:
            text = _("%(kind)s %(name)s is missing.", kind=row["kind"], name=_full_name(row))
            result.append(_difference("missing", row, "", text))
            continue
        there = by_key[_key(row)]
        for part in ("labels", "spec", "value", "description"):
            source = row["metadata"] if part == "labels" else row
            other = there["metadata"] if part == "labels" else there
            if part in source:
                result += _compare(row, source[part], other.get(part), part)
    known = {_key(row) for row in wanted}
    for row in found:
        labels = row["metadata"].get("labels") or {}
        if _key(row) not in known and labels.get(LABEL_MANAGED) == MANAGED_BY:
            text = _("%(kind)s %(name)s is no longer wanted.", kind=row["kind"], name=_full_name(row))
            result.append(_difference("foreign", row, "", text))
    return result


def _(template: str, /, **facts: object) -> Text:
    return Text(template, facts)


def _key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(row["kind"]), str(row["metadata"].get("namespace") or ""), str(row["metadata"]["name"])


def _full_name(row: Mapping[str, Any]) -> str:
    namespace = row["metadata"].get("namespace")
    return f"{namespace}/{row['metadata']['name']}" if namespace else str(row["metadata"]["name"])


def _difference(kind: str, row: Mapping[str, Any], path: str, text: Text) -> Difference:
    object_kind, namespace, name = _key(row)
    return Difference(kind, object_kind, name, namespace, path, text)


#: Fields by which a list's rows are told apart, so that drift names the row and not its place.
_ROW_NAMES = ("name", "nodeLabel", "key")
_OTHER_NAMES = {"cohort": "cohortName", "cohortName": "cohort"}
#: What an absent field stands for.
_DEFAULTS = {"stopPolicy": "None", "weight": "1", "queueingStrategy": "BestEffortFIFO"}


def _compare(row: Mapping[str, Any], wanted: Any, found: Any, path: str) -> Iterator[Difference]:
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key, value in wanted.items():
            other = found.get(key, found.get(_OTHER_NAMES.get(key, key), _DEFAULTS.get(key)))
            yield from _compare(row, value, other, f"{path}.{key}")
        if "nominalQuota" in wanted:
            # A limit that we do not want must not be there either: its absence means "as much as there is".
            for key in ("borrowingLimit", "lendingLimit"):
                if found.get(key) is not None and key not in wanted:
                    yield _changed(row, None, found[key], f"{path}.{key}")
        return
    if isinstance(wanted, list) and isinstance(found, list):
        yield from _compare_lists(row, wanted, found, path)
        return
    if wanted != found and not (isinstance(wanted, str) and quantities.same(wanted, found)):
        yield _changed(row, wanted, found, path)


def _compare_lists(row: Mapping[str, Any], wanted: list[Any], found: list[Any], path: str) -> Iterator[Difference]:
    names = [_row_name(value) for value in wanted]
    others = [_row_name(value) for value in found]
    if not all(names) or not all(others):
        if len(wanted) != len(found):
            yield _changed(row, wanted, found, path)
            return
        for number, (value, other) in enumerate(zip(wanted, found, strict=True)):
            yield from _compare(row, value, other, f"{path}[{number}]")
        return
    by_name = dict(zip(others, found, strict=True))
    for name, value in zip(names, wanted, strict=True):
        if name in by_name:
            yield from _compare(row, value, by_name[name], f"{path}[{name}]")
        else:
            yield _changed(row, value, None, f"{path}[{name}]")
    for name in others:
        if name not in names:
            yield _changed(row, None, by_name[name], f"{path}[{name}]")
    if sorted(map(str, names)) == sorted(map(str, others)) and names != others and path.endswith("flavors"):
        # The order of flavors is the order in which they are tried.
        yield _changed(row, names, others, path)


def _row_name(value: Any) -> str:
    if isinstance(value, Mapping):
        return next((str(value[key]) for key in _ROW_NAMES if value.get(key)), "")
    return str(value) if isinstance(value, (str, int)) else ""


def _changed(row: Mapping[str, Any], wanted: Any, found: Any, path: str) -> Difference:
    facts = {"kind": row["kind"], "name": _full_name(row), "field": path, "found": _say(found), "wanted": _say(wanted)}
    if found is None:
        text = _("%(kind)s %(name)s: %(field)s is not set; wanted is %(wanted)s.", **facts)
    elif wanted is None:
        text = _("%(kind)s %(name)s: %(field)s is %(found)s; wanted is none.", **facts)
    else:
        text = _("%(kind)s %(name)s: %(field)s is %(found)s; wanted is %(wanted)s.", **facts)
    return _difference("changed", row, path, text)


def _say(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_say(inner)}" for key, inner in value.items())
    return ", ".join(map(_say, value)) if isinstance(value, (list, tuple)) else str(value)
