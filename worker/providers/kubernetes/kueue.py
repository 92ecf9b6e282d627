"""Kueue's objects on a server: read, compared with what is wanted, written by server-side apply, and their use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.providers.errors import Conflict, InvalidRequest, NotFound
from worker.providers.kubernetes import quantities
from worker.providers.kubernetes.calls import APPLY, Caller, path_of
from worker.providers.kubernetes.kueue_objects import GROUP, Difference, differences, objects
from worker.providers.kubernetes.kueue_reasons import condition, is_true
from worker.providers.kubernetes.kueue_values import Arrangement
from worker.providers.kubernetes.names import LABEL_CLUSTER, LABEL_MANAGED, LABEL_TEAM, MANAGED_BY
from worker.providers.kubernetes.pod_sets import as_list, as_map
from worker.providers.kubernetes.resources import NAMESPACES, Resource
from worker.providers.values import Text

#: Kinds that are written, in an order in which none refers to a later one.
KINDS = ("Topology", "ResourceFlavor", "Cohort", "ClusterQueue", "LocalQueue")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is wanted and what is there. ``foreign`` are wanted objects whose name somebody else took."""

    wanted: tuple[dict[str, Any], ...]
    found: tuple[dict[str, Any], ...]
    differences: tuple[Difference, ...]
    foreign: tuple[Difference, ...]


class KueueKeeper:
    """Kueue on one API server. Every method makes a bounded number of calls; raises only provider errors.

    ``mark`` is the uid of the cluster's row: two portals, or two rows of one, keep their own objects and no others.
    """

    def __init__(self, caller: Caller, mark: str) -> None:
        self.caller = caller
        self.mark = mark
        self._resources: dict[str, Resource] = {}

    def version(self) -> str:
        """The version of Kueue's API that is spoken, "" where the server has no Kueue."""
        found = [r for r in self.caller.served().resources if r.group == GROUP]
        self._resources = {r.kind: r for r in found}
        return found[0].version if found else ""

    def compare(self, wanted: Arrangement) -> Comparison:
        """Read all objects of these kinds and compare. Raises InvalidRequest where the server has no Kueue."""
        version = self.version()
        if not version:
            raise InvalidRequest("the server has no Kueue", source="kubernetes", code="no-kueue")
        there = [thing for kind in KINDS if kind in self._resources for thing in self._all(kind)]
        rows = objects(wanted, version)
        for row in rows:
            row["metadata"]["labels"][LABEL_CLUSTER] = self.mark
        mine = [thing for thing in there if self.is_ours(thing)]
        others = {_key(t) for t in there} - {_key(t) for t in mine}
        taken = [row for row in rows if _key(row) in others]
        ours = tuple(row for row in rows if _key(row) not in others)
        return Comparison(ours, tuple(there), tuple(differences(ours, mine)), tuple(map(_taken, taken)))

    def write(self, comparison: Comparison) -> None:
        """Make and change what differs, then delete what is ours and wanted no more. Said twice it is said once."""
        apart = {(d.object_kind, d.namespace, d.name) for d in comparison.differences if d.kind != "foreign"}
        for row in comparison.wanted:
            if _key(row) not in apart:
                continue
            if namespace := str(row["metadata"].get("namespace") or ""):
                self.namespace_ensure(namespace)
            # What another manager holds of our fields is taken back: that is what keeping them means.
            self.caller.patch(self._path(row), row, APPLY, force=True)
        gone = {(d.object_kind, d.namespace, d.name) for d in comparison.differences if d.kind == "foreign"}
        # Backwards: a queue goes before the flavor that it names.
        for thing in reversed(comparison.found):
            if _key(thing) in gone and self.is_ours(thing):
                try:
                    self.caller.delete(path_of(self._resources[thing["kind"]], thing), uid=thing["metadata"]["uid"])
                except (NotFound, Conflict):
                    # It is gone, or it was made anew meanwhile: the next comparison tells.
                    continue

    def namespace_ensure(self, name: str) -> None:
        """Make a namespace that is not there. Raises AccessDenied where we may not."""
        try:
            self.caller.get(NAMESPACES.path(name=name), doing=f"get namespace {name}")
        except NotFound:
            head = {"name": name, "labels": {LABEL_MANAGED: MANAGED_BY}}
            try:
                self.caller.create(NAMESPACES.path(), {"apiVersion": "v1", "kind": "Namespace", "metadata": head})
            except Conflict as error:
                if error.code != "AlreadyExists":
                    raise

    def queues(self, found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """ClusterQueues with quota and use as plain rows; ``found`` as :meth:`compare` gave it."""
        return [queue_row(t, is_ours=self.is_ours(t)) for t in found if t.get("kind") == "ClusterQueue"]

    def read_queues(self) -> list[dict[str, Any]]:
        """The same, read now; none where the server has no Kueue."""
        if not self.version():
            return []
        return self.queues(self._all("ClusterQueue"))

    def is_ours(self, thing: Mapping[str, Any]) -> bool:
        """Whether it was made for this cluster's row."""
        labels = as_map(as_map(thing.get("metadata")).get("labels"))
        return labels.get(LABEL_MANAGED) == MANAGED_BY and labels.get(LABEL_CLUSTER) == self.mark

    def _all(self, kind: str) -> Sequence[dict[str, Any]]:
        return self.caller.listed(self._resources[kind].path())[0]

    def _path(self, row: Mapping[str, Any]) -> str:
        resource = self._resources.get(str(row["kind"]))
        if resource is None:
            text = f"Kueue here has no {row['kind']}"
            raise InvalidRequest(text, source="kubernetes", code="no-kind")
        return path_of(resource, row)


def _key(thing: Mapping[str, Any]) -> tuple[str, str, str]:
    head = as_map(thing.get("metadata"))
    return str(thing.get("kind")), str(head.get("namespace") or ""), str(head.get("name"))


def _taken(row: Mapping[str, Any]) -> Difference:
    kind, namespace, name = _key(row)
    facts = {"kind": kind, "name": f"{namespace}/{name}" if namespace else name}
    text = Text("%(kind)s %(name)s was made by somebody else and is left alone.", facts)
    return Difference("taken", kind, name, namespace, "", text)


def _amount(value: Any) -> int:
    try:
        return int(quantities.parse(str(value or "0")))
    except ValueError:
        return 0


def queue_row(thing: Mapping[str, Any], *, is_ours: bool) -> dict[str, Any]:
    """A ClusterQueue as a row: cohort, waiting and admitted workloads, quota and use by flavor and resource."""
    head, spec, status = as_map(thing.get("metadata")), as_map(thing.get("spec")), as_map(thing.get("status"))
    used: dict[tuple[str, str], tuple[int, int]] = {}
    for flavor in as_list(status.get("flavorsUsage")) or as_list(status.get("flavorsReservation")):
        for row in as_list(as_map(flavor).get("resources")):
            key = (str(as_map(flavor).get("name")), str(as_map(row).get("name")))
            used[key] = (_amount(as_map(row).get("total")), _amount(as_map(row).get("borrowed")))
    flavors = []
    for group in as_list(spec.get("resourceGroups")):
        for flavor in as_list(as_map(group).get("flavors")):
            for row in as_list(as_map(flavor).get("resources")):
                name, resource = str(as_map(flavor).get("name")), str(as_map(row).get("name"))
                total, borrowed = used.get((name, resource), (0, 0))
                limits = {
                    key: _amount(as_map(row)[field]) if field in as_map(row) else None
                    for key, field in (("borrowing", "borrowingLimit"), ("lending", "lendingLimit"))
                }
                flavors.append(
                    {
                        "flavor": name,
                        "resource": resource,
                        "nominal": _amount(as_map(row).get("nominalQuota")),
                        "used": max(0, total - borrowed),
                        "borrowed": borrowed,
                        **limits,
                    }
                )
    active = condition(thing, "Active")
    return {
        "name": str(head.get("name")),
        "cohort": str(spec.get("cohortName") or spec.get("cohort") or ""),
        "team": str(as_map(head.get("labels")).get(LABEL_TEAM) or ""),
        "is_ours": is_ours,
        "is_active": not active or is_true(thing, "Active"),
        "message": str(active.get("message") or "")[:300],
        "pending": _amount(status.get("pendingWorkloads")),
        "admitted": _amount(status.get("admittedWorkloads")),
        "weight": str(as_map(spec.get("fairSharing")).get("weight") or ""),
        "flavors": flavors,
    }
