"""The kinds that objects of one attempt may have, from what a manifest may hold: where they are looked for."""

from __future__ import annotations

from worker.providers.kubernetes.manifest_kinds import COMPANIONS
from worker.providers.kubernetes.pod_sets import SHAPES
from worker.providers.kubernetes.resources import WORKLOADS

#: Kinds of a manifest that hold a person's data: never deleted with the job.
KEPT_KINDS = frozenset({"PersistentVolumeClaim"})
#: What pods are made from by another object alone.
_PATTERNS = ("TrainingRuntime",)
_MAKERS = tuple(kind for _group, kind in SHAPES if kind not in WORKLOADS and kind not in _PATTERNS)
#: Kinds that make pods: any object of them says that an attempt is in the cluster.
RUNNING_KINDS = (*WORKLOADS, *_MAKERS)
#: Everything that is deleted with an attempt, what makes pods first.
DELETED_KINDS = (
    *RUNNING_KINDS,
    *_PATTERNS,
    "PodGroup",
    *sorted(kind for _group, kind in COMPANIONS if kind not in KEPT_KINDS),
)
