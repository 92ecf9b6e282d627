"""Everything that a cluster holds, put together by the workload it belongs to: pods, jobs, Kueue's word on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.providers.kubernetes import names
from worker.providers.kubernetes.informer import Known
from worker.providers.kubernetes.pod_sets import as_list, as_map
from worker.providers.kubernetes.resources import WORKLOADS

Thing = dict[str, Any]
MANIFEST = "Manifest"
#: Kinds whose pods are no jobs: they belong to the cluster or to a node.
_NO_JOBS = frozenset({"DaemonSet", "Node"})


@dataclass
class Work:
    """One workload. ``root`` is the outermost object that makes its pods, None where it is gone or of a kind not kept.

    ``jobs`` are the Jobs that the root made, ``pods`` those that are there, ``lost`` those that were deleted and
    ``queued`` Kueue's Workload. ``parts`` are the workloads of one manifest.
    """

    namespace: str
    kind: str
    name: str
    root: Thing | None = None
    jobs: list[Thing] = field(default_factory=list)
    pods: list[Thing] = field(default_factory=list)
    lost: list[Thing] = field(default_factory=list)
    queued: Thing | None = None
    parts: list[Work] = field(default_factory=list)

    @property
    def id(self) -> str:
        """What the house knows it by: "namespace/Kind/name"."""
        return f"{self.namespace}/{self.kind}/{self.name}"

    @property
    def head(self) -> Mapping[str, Any]:
        """The metadata that says whose it is: the root's, else a pod's."""
        for thing in (self.root, *self.pods[:1], *self.lost[:1], self.queued):
            if thing is not None:
                return as_map(thing.get("metadata"))
        return {}

    @property
    def attempt(self) -> str:
        """The attempt that it was made for by this portal or one like it, "" for nobody's."""
        if self.root is not None and not is_own(self.head):
            return ""
        return attempt_of(self.head)

    def fingerprint(self) -> tuple[Any, ...]:
        """What differs as soon as anything of it does."""
        things = [self.root, *self.jobs, *self.pods, *self.lost, self.queued]
        own = tuple(as_map(t["metadata"]).get("resourceVersion") if t is not None else None for t in things)
        return (self.id, len(self.pods), len(self.lost), *own, *(part.fingerprint() for part in self.parts))


def attempt_of(head: Mapping[str, Any]) -> str:
    """The attempt that an object was made for, by our own label and annotation alone, "" for nobody's.

    Who manages it (app.kubernetes.io/managed-by) is its author's word: a chart's objects say "Helm".
    """
    labels = as_map(head.get("labels"))
    written = as_map(head.get("annotations")).get(names.LABEL_ATTEMPT)
    return str(written or labels.get(names.LABEL_ATTEMPT) or "")


def is_own(head: Mapping[str, Any]) -> bool:
    """Whether an object that names an attempt was made for it: a copy of one names it as well, under another name."""
    attempt, name = attempt_of(head), str(head.get("name") or "")
    return bool(attempt) and name in (names.object_name(attempt), as_map(head.get("annotations")).get(names.OBJECT))


def controller_of(thing: Thing) -> Mapping[str, Any] | None:
    """The reference to what made it."""
    rows = [as_map(row) for row in as_list(as_map(thing.get("metadata")).get("ownerReferences"))]
    return next((row for row in rows if row.get("controller")), rows[0] if rows else None)


class Roots:
    """Finds the outermost maker of an object; with ``gone`` one that is remembered only counts as there."""

    def __init__(self, known: Known, *, gone: bool = False) -> None:
        self._there: dict[str, Thing] = {}
        self._all: dict[str, Thing] = {}
        self._watched = frozenset(kind for kind in WORKLOADS if kind in known.kinds)
        for kind in WORKLOADS:
            here = {_uid(thing): thing for thing in known.of(kind).values()}
            was = dict(known.gone.get(kind, {}))
            self._all |= {**was, **here}
            self._there |= {**was, **here} if gone else here

    def by_uid(self, uid: str) -> Thing | None:
        """A workload of this uid."""
        return self._there.get(uid)

    def of(self, thing: Thing) -> tuple[str, str, str, Thing | None] | None:
        """Namespace, kind and name of the root, and the root where it is there.

        None where some maker is of a kind that is watched and not known: the watch of one kind runs ahead of another's,
        and whoever took the maker that is known for the root would see a job that is none.
        """
        at = thing
        for _depth in range(8):
            reference = controller_of(at)
            if reference is None:
                break
            above = self._all.get(str(reference.get("uid") or ""))
            kind = str(reference.get("kind") or "")
            if above is None and kind in self._watched:
                return None
            if above is None:
                namespace = str(as_map(thing["metadata"]).get("namespace") or "")
                return namespace, kind, str(reference.get("name") or ""), None
            at = above
        head = as_map(at["metadata"])
        name, kind = str(head.get("name") or ""), str(at.get("kind") or "")
        is_there = at is thing or _uid(at) in self._there
        return str(head.get("namespace") or ""), kind, name, at if is_there else None


def _uid(thing: Thing) -> str:
    return str(as_map(thing["metadata"]).get("uid") or "")


def gather(known: Known, *, gone: bool = False) -> dict[str, Work]:
    """All workloads by id; with ``gone`` those as well that are remembered only."""
    roots = Roots(known, gone=gone)
    found: dict[tuple[str, str, str], Work] = {}

    def work(thing: Thing) -> Work | None:
        place = roots.of(thing)
        if place is None:
            return None
        namespace, kind, name, root = place
        there = found.get((namespace, kind, name))
        if there is None:
            there = found[namespace, kind, name] = Work(namespace, kind, name, root)
        return there

    for kind in WORKLOADS:
        things: Iterable[Thing] = known.of(kind).values()
        if gone:
            things = [*known.gone.get(kind, {}).values(), *things]
        for thing in things:
            one = work(thing)
            if one is None:
                continue
            if controller_of(thing) is None:
                # The newest of a name: an older one may be remembered beside it.
                one.root = thing
            elif kind == "Job":
                one.jobs.append(thing)
    for pod in known.of("Pod").values():
        if (one := work(pod)) is not None:
            one.pods.append(pod)
    for pod in known.gone.get("Pod", {}).values():
        if (place := roots.of(pod)) is None:
            continue
        namespace, kind, name, root = place
        there = found.get((namespace, kind, name))
        # A pod of an earlier object of the same name says nothing about this one.
        if there is not None and (root is None or there.root is None or _uid(root) == _uid(there.root)):
            there.lost.append(pod)
    for queued in known.of("Workload").values():
        if controller_of(queued) is not None and (one := work(queued)) is not None:
            one.queued = queued
    return _grouped(one for one in found.values() if _is_job(one))


def _is_job(work: Work) -> bool:
    if work.kind in WORKLOADS or work.attempt or work.queued is not None:
        return True
    return work.kind not in _NO_JOBS and any(asks_for_gpus(pod) for pod in work.pods)


def asks_for_gpus(pod: Thing) -> bool:
    """Whether any of its containers asks for a GPU."""
    for row in as_list(as_map(pod.get("spec")).get("containers")):
        resources = as_map(as_map(row).get("resources"))
        if any("gpu" in str(name) for part in ("requests", "limits") for name in as_map(resources.get(part))):
            return True
    return False


def _grouped(works: Iterable[Work]) -> dict[str, Work]:
    """By id, the workloads of one manifest as one."""
    found: dict[str, Work] = {}
    for work in works:
        attempt = work.attempt
        if not attempt or work.name == names.object_name(attempt):
            found[work.id] = work
            continue
        whole = Work(work.namespace, MANIFEST, names.object_name(attempt))
        whole = found.setdefault(whole.id, whole)
        whole.parts.append(work)
    for whole in found.values():
        if whole.parts:
            whole.parts.sort(key=lambda part: part.id)
            first = whole.parts[0]
            whole.root = first.root
            whole.pods = [pod for part in whole.parts for pod in part.pods]
            whole.lost = [pod for part in whole.parts for pod in part.lost]
            whole.queued = next((part.queued for part in whole.parts if part.queued), None)
    return found


def split_id(scheduler_id: str) -> tuple[str, str, str]:
    """Namespace, kind and name of an id; ValueError for what is none. A task's number behind a "_" is left out."""
    parts = scheduler_id.split("/")
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"{scheduler_id!r} is no namespace/Kind/name")
    return parts[0], parts[1], parts[2].partition("_")[0]
