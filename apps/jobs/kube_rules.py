"""What a job says on Kubernetes and what Slurm alone knows, decided without a database."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.utils.translation import gettext as _

from apps.clusters.kube_states import WorkloadKind

#: An image as registries name it: no blank, no line break.
IMAGE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/:@-]*[A-Za-z0-9])?")
MAX_IMAGE: Final = 500
#: A name as Kubernetes takes it for classes of priority.
CLASS_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
#: Kinds that the portal writes itself, in the order in which one is taken where nobody says which.
WRITTEN: Final = (WorkloadKind.INDEXED_JOB, WorkloadKind.JOBSET, WorkloadKind.PYTORCHJOB, WorkloadKind.TRAINJOB)
#: Kind → group and kind of the object that must be served; a Job every server has.
_NEEDS: Final[Mapping[str, tuple[str, str]]] = {
    WorkloadKind.JOBSET: ("jobset.x-k8s.io", "JobSet"),
    WorkloadKind.PYTORCHJOB: ("kubeflow.org", "PyTorchJob"),
    WorkloadKind.TRAINJOB: ("trainer.kubeflow.org", "TrainJob"),
}
#: Why one that had begun is no whole any more: for its node's sake, and for somebody else's.
_LOST: Final = frozenset({"NodeLost", "NodeTainted", "NodeShutdown"})
_TAKEN: Final = frozenset(
    {
        *("Drained", "PodPreempted", "Preempted", "PodsReadyTimeout", "AdmissionCheck", "ClusterQueueStopped"),
        *("LocalQueueStopped", "NodeFailures", "Evicted"),
    }
)
#: Somebody holds it: it goes on where they let it.
_HELD: Final = "JobHeldUser"
_TORCHRUN: Final = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
#: Variables that the controller of a kind sets itself.
SET_BY: Final[Mapping[str, tuple[str, ...]]] = {
    WorkloadKind.TRAINJOB: _TORCHRUN,
    WorkloadKind.PYTORCHJOB: ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", *_TORCHRUN),
}
_SRUN: Final = re.compile(r"^\s*(?:exec\s+)?srun\b", re.MULTILINE)


def kinds_served(observed: Iterable[str] | None) -> list[str]:
    """The kinds that a server can take, from its own "apiVersion Kind"; all where it was not asked yet."""
    if observed is None:
        return [str(kind) for kind in WRITTEN]
    known = set()
    for text in observed:
        version, _blank, kind = str(text).partition(" ")
        known.add((version.partition("/")[0], kind))
    return [str(kind) for kind in WRITTEN if kind not in _NEEDS or _NEEDS[kind] in known]


def kind_for(asked: str, default: str, served: Sequence[str], *, is_array: bool) -> str:
    """The kind that a job is written as: the one asked for, else the cluster's, else the first that fits."""
    if asked:
        return asked
    if is_array:
        return str(WorkloadKind.INDEXED_JOB)
    return default if default in served else str(WorkloadKind.INDEXED_JOB)


def interruption_of(state: str, reason: str, *, has_run: bool) -> str:
    """The stop that an attempt needs which goes on without being whole, "" for none.

    Its controllers would begin it anew as it began once, before all checkpoints that it has written since.
    """
    if state == "PENDING":
        return "Preempted" if has_run and reason != _HELD else ""
    if state != "COMPLETING":
        return ""
    return "NodeFailure" if reason in _LOST else "Preempted" if reason in _TAKEN else ""


def image_problem(image: str) -> str:
    """What is wrong with the name of an image; empty where nothing is."""
    if not image:
        return _("Kubernetes runs the script in a container: name an image")
    if len(image) > MAX_IMAGE or not IMAGE.fullmatch(image):
        shown = image.splitlines()[0][:80] if image.splitlines() else image[:80]
        return _("%(image)s is no name of an image: write registry/repository:tag") % {"image": repr(shown)}
    return ""


def class_names(classes: Iterable[Any]) -> list[str]:
    """Names of classes of priority, however they are kept."""
    return [str(row.get("name") if isinstance(row, Mapping) else row) for row in classes]


def calls_srun(script: str) -> bool:
    """Whether a script starts its work by Slurm's srun, which no pod has."""
    return bool(_SRUN.search(script))
