"""Resources of an API server: what the portal knows by name, and which of them a server serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind as it is served. ``kind`` is its name in objects, ``plural`` in paths."""

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool = True
    verbs: frozenset[str] = frozenset()

    @property
    def api_version(self) -> str:
        """As objects say it: ``batch/v1``, ``v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """Plural and group, as people and roles name it: ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """The path of all, of all in a namespace, of one, or of what hangs below one."""
        steps = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace and self.is_namespaced:
            steps += ["namespaces", namespace]
        steps.append(self.plural)
        if name:
            steps.append(name)
        if sub:
            steps.append(sub)
        return "/" + "/".join(quote(step, safe="") for step in steps)


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", is_namespaced=False)
EVENTS = Resource("", "v1", "events", "Event")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", is_namespaced=False)
JOBS = Resource("batch", "v1", "jobs", "Job")
#: Kinds that are a workload themselves, the outermost first: a TrainJob makes a JobSet, which makes Jobs.
WORKLOADS = ("TrainJob", "JobSet", "PyTorchJob", "Job")
#: Groups whose resources the portal reads or writes, with the versions that it speaks, the best first.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "": ("v1",),
    "apps": ("v1",),
    "batch": ("v1",),
    "jobset.x-k8s.io": ("v1alpha2",),
    "kubeflow.org": ("v1",),
    "trainer.kubeflow.org": ("v1alpha1",),
    "leaderworkerset.x-k8s.io": ("v1",),
    "sagemaker.amazonaws.com": ("v1",),
    "kueue.x-k8s.io": ("v1beta2", "v1beta1"),
    "scheduling.volcano.sh": ("v1beta1",),
    "scheduling.run.ai": ("v2alpha2",),
    "scheduling.k8s.io": ("v1",),
    "policy": ("v1",),
}


def chosen_version(group: str, served: Iterable[str]) -> str:
    """The version to speak of a group: the best that both sides know, "" where there is none."""
    there = list(served)
    return next((version for version in GROUPS.get(group, ()) if version in there), "")


def resources_of(body: Mapping[str, Any]) -> list[Resource]:
    """The resources of an APIResourceList, without what hangs below others."""
    group, _sep, version = str(body.get("groupVersion") or "").rpartition("/")
    found = []
    for row in body.get("resources") or ():
        name = str(row.get("name") or "")
        if not name or "/" in name:
            continue
        verbs = frozenset(str(verb) for verb in row.get("verbs") or ())
        found.append(Resource(group, version, name, str(row.get("kind")), bool(row.get("namespaced")), verbs))
    return found


@dataclass(frozen=True, slots=True)
class Served:
    """What a server serves of that, and its own version."""

    version: str
    resources: tuple[Resource, ...]

    def by_kind(self, kind: str, group: str | None = None) -> Resource | None:
        """The resource of a kind, None where the server has none."""
        rows = (r for r in self.resources if r.kind == kind and (group is None or r.group == group))
        return next(rows, None)

    @property
    def kinds(self) -> frozenset[str]:
        """All as "apiVersion Kind"."""
        return frozenset(f"{r.api_version} {r.kind}" for r in self.resources)
