"""What no part of a manifest may say, wherever it stands: our labels, ways past the queue, what holds up its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from worker.providers.kubernetes import names
from worker.providers.kubernetes.pod_rules import PodPolicy, Refusal, Step, container_secrets, secret_refusal
from worker.providers.kubernetes.pod_sets import as_map, at, group_kind
from worker.providers.kubernetes.pods import KAI_QUEUE
from worker.providers.kubernetes.queueing import MAX_SECONDS, PRIORITY, QUEUE, VOLCANO_QUEUE
from worker.providers.values import Text

#: The longest that pods may take to end: so long a cancelled job keeps its GPUs.
MAX_GRACE_S = 600
#: What ended is kept at least so long: gone at once, nobody could tell a job that ran from one that was never made.
MIN_TTL_S = 86_400
#: Labels and annotations by which a scheduler reads the queue, and by which the priority.
QUEUES = frozenset((QUEUE, VOLCANO_QUEUE, KAI_QUEUE, *("runai/queue", "volcano.sh/queue-name")))
PRIORITIES = frozenset((PRIORITY, "priorityClassName"))
#: By these a workload joins what was let in for another one.
_JOINS = frozenset(("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name", "pod-group-name"))
#: What Kueue may be told: nothing of it lets a job in earlier, or on another's quota.
_OF_KUEUE = frozenset(
    f"kueue.x-k8s.io/{name}"
    for name in (
        *("pod-group-name", "pod-group-total-count", "pod-group-pod-index", "pod-group-pod-index-label"),
        *("podset-required-topology", "podset-preferred-topology", "podset-unconstrained-topology"),
        *("podset-slice-required-topology", "podset-slice-size", "podset-group-name", "retriable-in-group"),
    )
) | {QUEUE, PRIORITY, MAX_SECONDS}
_CLAIM = ("volumeName", "selector", "dataSource", "dataSourceRef")
_TRAIN_JOB = frozenset(
    (
        *("runtimeRef", "initializer", "trainer", "runtimePatches"),
        *("labels", "annotations", "suspend", "activeDeadlineSeconds"),
    )
)
_TRAINER = frozenset(("image", "command", "args", "env", "numNodes", "numProcPerNode", "resourcesPerNode"))
_INITIALIZER = frozenset(("storageUri", "env", "secretRef"))


def _(template: str, /, **facts: object) -> Text:
    return Text(template, facts)


def parts_of(value: Any, keys: tuple[Step, ...] = ()) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Every value within another, with its steps; the outermost first."""
    rows: Iterator[tuple[Step, Any]] = iter(())
    if isinstance(value, dict):
        rows = iter(value.items())
    elif isinstance(value, list):
        rows = iter(enumerate(value))
    for key, inner in rows:
        yield (*keys, key), inner
        yield from parts_of(inner, (*keys, key))


def everywhere(
    value: dict[str, Any], pods: PodPolicy, queues: frozenset[str], priorities: frozenset[str] | None
) -> Iterator[Refusal]:
    """What is refused in any part of an object; ``priorities`` are Kueue's classes for teams, None for any."""
    is_train_job = group_kind(value) == ("trainer.kubeflow.org", "TrainJob")
    for keys, inner in parts_of(value):
        name = keys[-1]
        above = keys[-2] if len(keys) > 1 else ""
        is_marks = name in ("labels", "annotations") and (above == "metadata" or (is_train_job and above == "spec"))
        if is_marks:
            for label, said in as_map(inner).items():
                yield from _mark((*keys, label), label, said, pods, queues, priorities)
        elif name == "finalizers" and above == "metadata" and inner:
            text = _("Finalizers would hold up the end of the job: leave them to the cluster's controllers.")
            yield Refusal(keys, "Finalizers", text)
        elif name == "terminationGracePeriodSeconds" and inner is not None:
            if not isinstance(inner, int) or isinstance(inner, bool) or not 0 <= inner <= MAX_GRACE_S:
                text = _(
                    "Pods may take at most %(most)s seconds to end: save checkpoints as it runs.", most=MAX_GRACE_S
                )
                yield Refusal(keys, "GraceTooLong", text)
        elif name == "ttlSecondsAfterFinished" and isinstance(inner, int) and inner < MIN_TTL_S:
            text = _(
                "What ended must stay for at least %(least)s seconds: leave it out, the portal clears up.",
                least=MIN_TTL_S,
            )
            yield Refusal(keys, "GoneTooSoon", text)
        elif name == "managedBy" and above == "spec" and not is_train_job:
            yield Refusal(keys, "ManagedElsewhere", _("Jobs are run by this cluster's own controllers: leave it out."))
        elif name == "schedulingPolicy" and above == "runPolicy":
            yield from _gang(as_map(inner), keys, pods, queues)
        elif name == "spec" and (above == "volumeClaimTemplate" or "volumeClaimTemplates" in keys[-3:-1]):
            yield from _claim(as_map(inner), keys)
    if group_kind(value) == ("", "PersistentVolumeClaim"):
        yield from _claim(as_map(value.get("spec")), ("spec",))


def _mark(
    keys: tuple[Step, ...],
    label: str,
    said: Any,
    pods: PodPolicy,
    queues: frozenset[str],
    priorities: frozenset[str] | None,
) -> Iterator[Refusal]:
    """One label or annotation."""
    ours = label == names.LABEL_MANAGED and said == names.MANAGED_BY
    if ours or label.startswith(f"{names.PREFIX}/"):
        yield Refusal(keys, "KeptLabel", _("%(label)s is set by the portal.", label=label))
    if not isinstance(said, str):
        yield Refusal(keys, "LabelNotText", _("%(label)s is no text: put it in quotes.", label=label))
    if label in QUEUES:
        if str(said) not in queues:
            yield Refusal(keys, "OtherQueue", _("The queue %(name)s is not this team's.", name=said))
    elif label in PRIORITIES:
        known = priorities if label == PRIORITY else pods.priority_classes
        if str(said).startswith("system-") or (known is not None and str(said) not in known):
            yield Refusal(keys, "PriorityClass", _("The priority class %(name)s is not for teams.", name=said))
    elif label in _JOINS or (label.startswith("kueue.x-k8s.io/") and label not in _OF_KUEUE):
        text = _("%(label)s would pass by the queue and its quota: leave it out.", label=label)
        yield Refusal(keys, "QueuePassed", text)


def _gang(wishes: Any, keys: tuple[Step, ...], pods: PodPolicy, queues: frozenset[str]) -> Iterator[Refusal]:
    """What a PyTorchJob tells a scheduler of gangs."""
    queue, priority = wishes.get("queue"), wishes.get("priorityClass")
    if queue and str(queue) not in queues:
        yield Refusal((*keys, "queue"), "OtherQueue", _("The queue %(name)s is not this team's.", name=queue))
    known = pods.priority_classes
    if priority and (str(priority).startswith("system-") or (known is not None and str(priority) not in known)):
        text = _("The priority class %(name)s is not for teams.", name=priority)
        yield Refusal((*keys, "priorityClass"), "PriorityClass", text)


def _claim(spec: Any, keys: tuple[Step, ...]) -> Iterator[Refusal]:
    """A claim gets a new volume: one that is there already may be another team's."""
    for name in _CLAIM:
        if spec.get(name):
            text = _(
                "%(name)s would reach data that may be another team's: leave it out, or mount a claim that is there "
                "already.",
                name=name,
            )
            yield Refusal((*keys, name), "ClaimedVolume", text)


def train_job(value: dict[str, Any], policy: PodPolicy, own_secrets: frozenset[str]) -> Iterator[Refusal]:
    """What a TrainJob says beside its pods: fields that nobody here reads could say anything."""
    spec = as_map(value.get("spec"))
    groups: list[tuple[tuple[Step, ...], Any, frozenset[str]]] = [(("spec",), spec, _TRAIN_JOB)]
    groups += [(("spec", "trainer"), as_map(spec.get("trainer")), _TRAINER)]
    initializer = as_map(spec.get("initializer"))
    groups += [(("spec", "initializer"), initializer, frozenset({"dataset", "model"}))]
    for part in initializer:
        groups.append((("spec", "initializer", part), as_map(initializer[part]), _INITIALIZER))
    for keys, there, known in groups:
        for name in there:
            if name not in known:
                text = _(
                    "%(name)s of a TrainJob is not taken here; taken are %(known)s.", name=name, known=_list(known)
                )
                yield Refusal((*keys, name), "UnknownField", text)
    if "" not in policy.schedulers and at(spec, "runtimeRef", "kind") != "TrainingRuntime":
        text = _("Pods of the cluster's runtimes pass by its scheduler and queues: bring a TrainingRuntime along.")
        yield Refusal(("spec", "runtimeRef"), "SchedulerName", text)
    for part in initializer:
        keys = ("spec", "initializer", part)
        wanted = list(container_secrets(as_map(initializer[part]), keys))
        if name := at(initializer, part, "secretRef", "name"):
            wanted.append(((*keys, "secretRef", "name"), str(name)))
        for where, secret in wanted:
            if refused := secret_refusal(secret, where, policy, own_secrets):
                yield refused


def _list(known: frozenset[str]) -> str:
    return ", ".join(sorted(known))
