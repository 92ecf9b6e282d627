"""From a workload's values to the Kubernetes objects of the kind that is wanted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from worker.providers.errors import InvalidRequest
from worker.providers.kubernetes import queueing, start
from worker.providers.kubernetes.kinds import indexed_job, jobset, pytorchjob, trainjob
from worker.providers.kubernetes.names import is_dns_label
from worker.providers.kubernetes.pod_rules import IMAGE
from worker.providers.workload_values import (
    INDEXED_JOB,
    JOBSET,
    KINDS,
    KUEUE,
    PLAIN,
    PYTORCHJOB,
    SCHEDULERS,
    TRAINJOB,
    VOLCANO,
    WorkloadSpec,
)

_WRITERS: Mapping[str, Callable[[WorkloadSpec], tuple[dict[str, Any], ...]]] = {
    INDEXED_JOB: indexed_job.objects,
    JOBSET: jobset.objects,
    PYTORCHJOB: pytorchjob.objects,
    TRAINJOB: trainjob.objects,
}
#: Kinds of the object that is the workload itself; all others belong to it.
WORKLOAD_KINDS = frozenset({"Job", "JobSet", "PyTorchJob", "TrainJob"})
#: Task numbers of an array travel in one variable, which the kernel limits to 128 KiB.
MAX_TASKS = 10_000
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
#: What the controller of a kind sets itself, by the kind; a job that brings them would be refused or overruled.
_TORCHRUN = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
RESERVED = {TRAINJOB: _TORCHRUN, PYTORCHJOB: ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", *_TORCHRUN)}


def render(spec: WorkloadSpec, kind: str) -> tuple[dict[str, Any], ...]:
    """The objects of ``spec`` as ``kind``, in the order in which they are to be created; the same for the same spec.

    What follows the workload object (see :func:`workload_of`) is to be owned by it (:func:`owned`), so that it is
    deleted with it; a TrainJob's runtime comes first, because the TrainJob is refused without it. Raises
    InvalidRequest, naming what, where the spec cannot be written as this kind.
    """
    if problems := refusals(spec, kind):
        raise InvalidRequest("; ".join(problems), source="kubernetes")
    try:
        further = [start.config_map(spec), start.secret(spec), queueing.pod_group(spec)]
    except ValueError as error:
        raise InvalidRequest(str(error), source="kubernetes") from error
    return (*_WRITERS[kind](spec), *(made for made in further if made))


def workload_of(objects: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """The one object among those of :func:`render` that is the workload."""
    return next(made for made in objects if made["kind"] in WORKLOAD_KINDS)


def owned(made: dict[str, Any], owner: Mapping[str, Any]) -> dict[str, Any]:
    """``made`` as belonging to ``owner``, the workload as the server answered it: deleted with it, found beside it."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [reference]}}


def kinds_for(spec: WorkloadSpec) -> tuple[str, ...]:
    """The kinds that this workload can be written as."""
    return tuple(kind for kind in KINDS if not refusals(spec, kind))


def refusals(spec: WorkloadSpec, kind: str) -> list[str]:
    """Why the spec cannot be written as ``kind``, a sentence each; none where it can."""
    if kind not in _WRITERS:
        return [f"kind {kind!r} is none of {', '.join(KINDS)}"]
    return [*_of_numbers(spec), *_of_names(spec), *_of_kind(spec, kind)]


def _of_numbers(spec: WorkloadSpec) -> list[str]:
    found = []
    for name, least in (("nodes", 1), ("time_limit_min", 1), ("cpus_per_node", 1), ("grace_s", 0)):
        if getattr(spec, name) < least:
            found.append(f"{name} is {getattr(spec, name)}, the least is {least}")
    for name in ("gpus_per_node", "memory_mib", "max_restarts", "auto_resume_retries", "array_at_once"):
        if getattr(spec, name) < 0:
            found.append(f"{name} is {getattr(spec, name)}, below zero")
    if spec.shm_mib and spec.memory_mib and spec.shm_mib > spec.memory_mib:
        found.append(f"shm_mib is {spec.shm_mib}, more than the pod's memory of {spec.memory_mib}")
    if len(spec.array) > MAX_TASKS:
        found.append(f"array has {len(spec.array)} tasks, the most is {MAX_TASKS}")
    if any(number < 0 for number in spec.array):
        found.append("array has a task below zero")
    if len(set(spec.array)) != len(spec.array):
        found.append("array names a task twice")
    return found


def _of_names(spec: WorkloadSpec) -> list[str]:
    found = []
    if not IMAGE.fullmatch(spec.image):
        found.append(f"image {spec.image[:200]!r} is no name of an image")
    if not spec.script and not spec.command:
        found.append("there is neither a script nor a command")
    for name in ("namespace", "queue", "priority_class"):
        if (value := getattr(spec, name)) and not all(is_dns_label(part) for part in value.split(".")):
            found.append(f"{name} {value!r} is no name that Kubernetes takes")
    if not spec.namespace:
        found.append("namespace is empty")
    if not spec.uid:
        found.append("uid is empty")
    found += [
        f"environment has {name!r}, which is no name of a variable"
        for name in (*spec.environment, *spec.secret_environment)
        if not _VARIABLE.fullmatch(name)
    ]
    found += [f"mount path {mount.path!r} is not absolute" for mount in spec.mounts if not mount.path.startswith("/")]
    paths = [mount.path for mount in spec.mounts]
    found += [f"mount path {path!r} is used twice" for path in sorted({p for p in paths if paths.count(p) > 1})]
    if spec.scheduler == KUEUE and not spec.queue:
        found.append("there is no queue, and Kueue lets nothing begin without one")
    if spec.scheduler not in SCHEDULERS:
        found.append(f"scheduler {spec.scheduler!r} is none of {', '.join(SCHEDULERS)}")
    return found


def _of_kind(spec: WorkloadSpec, kind: str) -> list[str]:
    found = []
    if spec.array and (kind != INDEXED_JOB or spec.nodes > 1):
        found.append("an array of single-node tasks is written as an Indexed Job and nothing else")
    if spec.auto_resume_retries and kind != PYTORCHJOB:
        found.append("HyperPod resumes PyTorchJobs and no other kind")
    if kind in (INDEXED_JOB, PYTORCHJOB) and spec.max_restarts and spec.nodes > 1:
        found.append(f"a {kind} restarts single pods, not the gang: take a JobSet or a TrainJob, or no restarts")
    if spec.runtime and kind != TRAINJOB:
        found.append(f"runtime {spec.runtime!r} is for a TrainJob")
    if spec.runtime and (spec.pod_priority_class or spec.scheduler not in (KUEUE, PLAIN)):
        found.append("a cluster's runtime sets scheduler and priority class of pods itself")
    if spec.array and spec.scheduler == VOLCANO:
        found.append("an array is no gang for Volcano")
    clash = [name for name in RESERVED.get(kind, ()) if name in spec.environment or name in spec.secret_environment]
    found += [f"environment has {name}, which the controller of a {kind} sets itself" for name in clash]
    return found
