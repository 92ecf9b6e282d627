"""Which pods an object makes, and how many at a time, for every kind that may make pods here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from worker.providers.kubernetes import quantities
from worker.providers.kubernetes.efa import EFA, GPU

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodSet:
    """``count`` pods of one template; ``path`` leads to the template, ``keys`` are its steps.

    ``requests`` stands for the pods' requests where no template says them (a TrainJob's nodes). A template that makes
    no pods by itself (a TrainingRuntime's) has the count 0.
    """

    path: str
    keys: tuple[str | int, ...]
    template: Values
    count: int
    requests: Values | None = None

    @property
    def spec(self) -> Values:
        """The pods' spec."""
        return as_map(self.template.get("spec"))


@dataclass(frozen=True, slots=True)
class Demand:
    """What pods ask for, of the resources that are counted."""

    pods: int = 0
    gpus: int = 0
    efa: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0

    def __add__(self, other: Demand) -> Demand:
        """Both together."""
        return Demand(
            self.pods + other.pods,
            self.gpus + other.gpus,
            self.efa + other.efa,
            self.cpu_milli + other.cpu_milli,
            self.memory_mib + other.memory_mib,
        )

    def times(self, count: int) -> Demand:
        """So many of it."""
        return Demand(
            self.pods * count,
            self.gpus * count,
            self.efa * count,
            self.cpu_milli * count,
            self.memory_mib * count,
        )


class BadValue(ValueError):
    """A value that decides how much is asked for is none; ``path`` says which."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


def as_map(value: Any) -> Values:
    """A mapping, empty for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """A list, empty for anything else."""
    return value if isinstance(value, list) else []


def spell(keys: tuple[str | int, ...]) -> str:
    """Steps as a path: ``spec.containers[0].image``."""
    found = ""
    for key in keys:
        found += f"[{key}]" if isinstance(key, int) else f".{key}" if found else key
    return found


def at(value: Any, *keys: str | int) -> Any:
    """What lies at the end of the steps, None where they end early."""
    for key in keys:
        if isinstance(key, int):
            value = as_list(value)[key] if key < len(as_list(value)) else None
        else:
            value = as_map(value).get(key)
    return value


def _count(value: Values, *keys: str | int, default: int = 1) -> int:
    found = at(value, *keys)
    if found is None:
        return default
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise BadValue(spell(keys), f"{found!r} is no count")
    return found


def _one(value: Values, count: int, *keys: str | int, requests: Values | None = None) -> PodSet:
    return PodSet(spell(keys), keys, as_map(at(value, *keys)), count, requests)


def _pod(value: Values) -> list[PodSet]:
    return [_one(value, 1)]


def _job_count(value: Values, *keys: str | int) -> int:
    parallel = _count(value, *keys, "parallelism")
    return min(parallel, _count(value, *keys, "completions", default=parallel))


def _job(value: Values) -> list[PodSet]:
    return [_one(value, _job_count(value, "spec"), "spec", "template")]


def _replicas(value: Values) -> list[PodSet]:
    return [_one(value, _count(value, "spec", "replicas"), "spec", "template")]


def _job_set_at(value: Values, *base: str | int, is_runtime: bool = False) -> list[PodSet]:
    found = []
    for number, _job_template in enumerate(as_list(at(value, *base, "replicatedJobs"))):
        job = (*base, "replicatedJobs", number)
        count = _count(value, *job, "replicas") * _job_count(value, *job, "template", "spec")
        found.append(_one(value, 0 if is_runtime else count, *job, "template", "spec", "template"))
    return found


def _job_set(value: Values) -> list[PodSet]:
    return _job_set_at(value, "spec")


def _pytorch_job(value: Values) -> list[PodSet]:
    base = ("spec", "pytorchReplicaSpecs")
    # An elastic job may grow to its limit without another word.
    most = {"worker": _count(value, "spec", "elasticPolicy", "maxReplicas", default=0)}
    return [
        _one(value, max(_count(value, *base, role, "replicas"), most.get(role.lower(), 0)), *base, role, "template")
        for role in as_map(at(value, *base))
    ]


def _hyperpod_job(value: Values) -> list[PodSet]:
    # An elastic job may grow to its limit without another word, and spares stand by with GPUs of their own.
    most = _count(value, "spec", "elasticPolicy", "maxReplicas", default=0)
    rows = as_list(at(value, "spec", "replicaSpecs"))
    found = []
    for number, _replica in enumerate(rows):
        base = ("spec", "replicaSpecs", number)
        grown = max(_count(value, *base, "replicas"), _count(value, *base, "maxReplicas", default=0))
        count = max(grown, most if len(rows) == 1 else 0) + _count(value, *base, "spares", default=0)
        found.append(_one(value, count, *base, "template"))
    return found


def _training_runtime(value: Values) -> list[PodSet]:
    return _job_set_at(value, "spec", "template", "spec", is_runtime=True)


def runtime_sets(value: Values) -> list[tuple[PodSet, int, int]]:
    """The sets of a TrainingRuntime, with how many Jobs of each and how many pods of each Job a TrainJob makes of it.

    Raises BadValue where a count is none.
    """
    found = []
    for pods in _training_runtime(value):
        job = pods.keys[:-3]
        found.append((pods, _count(value, *job, "replicas"), _job_count(value, *job, "template", "spec")))
    return found


def _train_job(value: Values) -> list[PodSet]:
    trainer = as_map(at(value, "spec", "trainer"))
    nodes = _count(value, "spec", "trainer", "numNodes")
    per_node = as_map(trainer.get("resourcesPerNode"))
    # The trainer's own fields are a container in all but name, so the rules for containers hold for it.
    container = {key: trainer[key] for key in ("image", "command", "args", "env") if key in trainer}
    template = {"spec": {"containers": [{**container, "resources": per_node}]}}
    found = [PodSet("spec.trainer", ("spec", "trainer"), template, nodes, per_node)]
    for number, _patch in enumerate(as_list(at(value, "spec", "runtimePatches"))):
        base = ("spec", "runtimePatches", number, "trainingRuntimeSpec", "template", "spec")
        found += _job_set_at(value, *base, is_runtime=True)
    return found


def _leader_worker_set(value: Values) -> list[PodSet]:
    base = ("spec", "leaderWorkerTemplate")
    groups, size = _count(value, "spec", "replicas"), _count(value, *base, "size")
    workers = _one(value, groups * max(size - 1, 0), *base, "workerTemplate")
    if at(value, *base, "leaderTemplate") is None:
        return [_one(value, groups * max(size, 1), *base, "workerTemplate")]
    return [_one(value, groups, *base, "leaderTemplate"), workers]


#: By (API group, kind): every kind that may make pods.
SHAPES: Mapping[tuple[str, str], Callable[[Values], list[PodSet]]] = {
    ("", "Pod"): _pod,
    ("batch", "Job"): _job,
    ("apps", "Deployment"): _replicas,
    ("apps", "ReplicaSet"): _replicas,
    ("apps", "StatefulSet"): _replicas,
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    ("kubeflow.org", "PyTorchJob"): _pytorch_job,
    ("sagemaker.amazonaws.com", "HyperPodPyTorchJob"): _hyperpod_job,
    ("trainer.kubeflow.org", "TrainJob"): _train_job,
    ("trainer.kubeflow.org", "TrainingRuntime"): _training_runtime,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
}


def group_kind(value: Values) -> tuple[str, str]:
    """API group ("" for the core) and kind of an object."""
    version = str(value.get("apiVersion") or "")
    return version.rpartition("/")[0], str(value.get("kind") or "")


def pod_sets(value: Values) -> list[PodSet]:
    """The pods that the object makes. Raises BadValue where a count is none."""
    shape = SHAPES.get(group_kind(value))
    return shape(value) if shape else []


def demand(pods: PodSet) -> Demand:
    """What one pod of the set asks for, as the scheduler counts it. Raises BadValue.

    Containers are added up; a plain init container counts where it alone asks for more, one that stays (restartPolicy
    Always) beside all that follow it.
    """
    if pods.requests is not None:
        keys = (*pods.keys, "resourcesPerNode")
        return _demand(_requests({"resources": pods.requests}, keys))
    base = (*pods.keys, "spec")
    running: dict[str, Fraction] = {}
    most: dict[str, Fraction] = {}
    for number, init in enumerate(as_list(pods.spec.get("initContainers"))):
        asked = _requests(as_map(init), (*base, "initContainers", number))
        if as_map(init).get("restartPolicy") == "Always":
            running = _sum(running, asked)
            most = _most(most, running)
        else:
            most = _most(most, _sum(running, asked))
    for number, container in enumerate(as_list(pods.spec.get("containers"))):
        running = _sum(running, _requests(as_map(container), (*base, "containers", number)))
    # Requests of the pod as a whole stand above those of its containers, of what a pod as a whole may ask for.
    asked = _requests(pods.spec, base) if pods.spec.get("resources") else {}
    whole = {key: amount for key, amount in asked.items() if key in ("cpu", "memory") or key.startswith("hugepages-")}
    overhead = {
        str(key): _quantity(value, (*base, "overhead", str(key)))
        for key, value in as_map(pods.spec.get("overhead")).items()
    }
    return _demand(_sum({**_most(most, running), **whole}, overhead))


def _requests(container: Values, keys: tuple[str | int, ...]) -> dict[str, Fraction]:
    """Requests, and limits where there is no request."""
    found: dict[str, Fraction] = {}
    for part in ("limits", "requests"):
        for key, value in as_map(at(container, "resources", part)).items():
            found[str(key)] = _quantity(value, (*keys, "resources", part, str(key)))
    return found


def _quantity(value: Any, keys: tuple[str | int, ...]) -> Fraction:
    try:
        found = quantities.parse(value)
    except ValueError as error:
        raise BadValue(spell(keys), str(error)) from error
    if found < 0:
        raise BadValue(spell(keys), f"{value!r} is below zero")
    return found


def _sum(one: Mapping[str, Fraction], other: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {key: one.get(key, Fraction()) + other.get(key, Fraction()) for key in {*one, *other}}


def _most(one: Mapping[str, Fraction], other: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {key: max(one.get(key, Fraction()), other.get(key, Fraction())) for key in {*one, *other}}


def _demand(asked: Mapping[str, Fraction]) -> Demand:
    return Demand(
        pods=1,
        gpus=quantities.whole(asked.get(GPU, Fraction())),
        efa=quantities.whole(asked.get(EFA, Fraction())),
        cpu_milli=quantities.milli(asked.get("cpu", Fraction())),
        memory_mib=quantities.mib(asked.get("memory", Fraction())),
    )
