"""Bring your own manifest: YAML read, checked against what a cluster allows, counted, and marked with its owner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.providers.kubernetes import names
from worker.providers.kubernetes.manifest_kinds import CLUSTER_SCOPED, KNOWN, MANAGED_BY_KUEUE, queue_steps
from worker.providers.kubernetes.manifest_rules import everywhere, train_job
from worker.providers.kubernetes.manifest_text import Additions, merged, spliced
from worker.providers.kubernetes.pod_rules import PodPolicy, Refusal, refusals
from worker.providers.kubernetes.pod_sets import (
    BadValue,
    Demand,
    PodSet,
    as_list,
    as_map,
    at,
    demand,
    group_kind,
    pod_sets,
    runtime_sets,
)
from worker.providers.kubernetes.pods import KAI_QUEUE
from worker.providers.kubernetes.queueing import QUEUE, pods_in_queue
from worker.providers.kubernetes.yaml_text import Node, Problem, Unreadable, plain, read_nodes
from worker.providers.values import Text
from worker.providers.workload_values import KAI, KUEUE

#: Names that begin so are of objects that the portal makes.
KEPT_NAME = "qd-"
_TRAINER_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a manifest, with its place in the text."""

    number: int
    value: dict[str, Any]
    node: Node = field(repr=False, compare=False)

    @property
    def kind(self) -> str:
        """Its kind, "" without one."""
        return group_kind(self.value)[1]

    @property
    def name(self) -> str:
        """Its name, "" without one."""
        return str(as_map(self.value.get("metadata")).get("name") or "")

    def line(self, keys: tuple[str | int, ...]) -> int:
        """The line of a field, or of what holds it."""
        node = self.node
        for key in keys:
            inner = node.get(key) if isinstance(key, str) else None
            if isinstance(key, int) and node.kind == "seq" and key < len(node.entries):
                inner = node.entries[key][1]
            if inner is None:
                break
            node = inner
        return node.line


@dataclass(frozen=True, slots=True)
class Manifest:
    """A text and its objects; ``problem`` says why it could not be read, there are no documents then."""

    text: str
    documents: tuple[Document, ...]
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class NodeSize:
    """What a node of the cluster offers to pods."""

    name: str
    gpus: int
    cpu_milli: int
    memory_mib: int
    efa: int = 0


@dataclass(frozen=True, slots=True)
class ManifestPolicy:
    """What a cluster takes from a team. ``namespace`` is the team's.

    ``served`` are the "apiVersion Kind" that the server has, None where it was not asked. ``nodes`` are the sizes of
    the cluster's nodes, none where they are unknown. ``queues`` are those that the team may name itself, ``priorities``
    the WorkloadPriorityClasses (None: any). ``hidden`` stands for what a Secret holds where it is shown.
    """

    namespace: str
    pods: PodPolicy = field(default_factory=PodPolicy)
    nodes: tuple[NodeSize, ...] = ()
    served: frozenset[str] | None = None
    queues: frozenset[str] = frozenset()
    priorities: frozenset[str] | None = None
    allows_external_services: bool = False
    hidden: str = ""
    max_pods: int = 10_000


@dataclass(frozen=True, slots=True)
class Prepared:
    """A manifest as it is sent: the text with the owner's labels, and its objects in the same order."""

    text: str
    objects: tuple[dict[str, Any], ...]


def _(template: str, /, **facts: object) -> Text:
    return Text(template, facts)


def read_manifest(text: str) -> Manifest:
    """The manifest, or why it cannot be read."""
    found: list[Document] = []
    try:
        for number, node in read_nodes(text):
            try:
                value = plain(node)
            except Unreadable as error:
                old = error.problem
                raise Unreadable(Problem(old.code, old.text, number, old.path, old.line)) from error
            if not isinstance(value, dict):
                wrong = _("The document is no mapping with apiVersion and kind.")
                raise Unreadable(Problem("NotAnObject", wrong, number, line=node.line))
            found.append(Document(number, value, node))
    except Unreadable as error:
        return Manifest(text, (), error.problem)
    if not found:
        return Manifest(text, (), Problem("Empty", _("There is no object in the text.")))
    return Manifest(text, tuple(found))


def check_manifest(manifest: Manifest, policy: ManifestPolicy) -> list[Problem]:
    """Everything that stands against sending the manifest, in its order; none where it can be sent."""
    if manifest.problem:
        return [manifest.problem]
    secrets = frozenset(
        doc.name for doc in manifest.documents if doc.kind == "Secret" and not doc.name.startswith(KEPT_NAME)
    )
    found: list[Problem] = []
    seen: set[tuple[str, str, str]] = set()
    for doc in manifest.documents:
        refused = list(_object(doc, policy))
        if not refused:
            refused = [*_names(doc, seen), *_parts(doc, policy), *_pods(doc, policy, secrets, manifest)]
        found += [Problem(r.code, r.text, doc.number, r.path, doc.line(r.keys)) for r in refused]
    if not found:
        total = demand_of(manifest)
        if not total.pods:
            found.append(Problem("NothingRuns", _("Nothing in the manifest makes a pod.")))
        if total.pods > policy.max_pods:
            text = _("The manifest makes %(pods)s pods; the most is %(most)s.", pods=total.pods, most=policy.max_pods)
            found.append(Problem("TooManyPods", text))
    return found


def demand_of(manifest: Manifest) -> Demand:
    """What all pods of the manifest ask for at the same time. Raises BadValue where a number is none."""
    total = Demand()
    for doc in manifest.documents:
        for pods, one in counted(doc, manifest):
            total += one.times(pods.count)
    return total


def counted(doc: Document, manifest: Manifest) -> list[tuple[PodSet, Demand]]:
    """The sets of pods of one object, and what each of their pods asks for. Raises BadValue."""
    sets = pod_sets(doc.value)
    if doc.kind == "TrainJob" and sets:
        sets = _of_runtime(doc, sets, manifest)
    return [(pods, demand(pods)) for pods in sets]


def prepared(
    manifest: Manifest, *, job: str, attempt: str, team: str, owner: str, queue: str = "", scheduler: str = KUEUE
) -> Prepared:
    """The manifest with its owner's labels on every object and pod, and with the queue where its scheduler reads it.

    Labels that cannot hold a name to the letter have it in an annotation. A queue that the author named stays. Raises
    Unreadable (code CannotAdd) where a label would show elsewhere, too.
    """
    ours = {names.LABEL_MANAGED: names.MANAGED_BY}
    ours |= names.owner_labels(job=job, attempt=attempt, team=team, owner=owner)
    notes = names.owner_annotations(job=job, attempt=attempt, team=team, owner=owner)
    meta: dict[str, Any] = {"labels": ours} | ({"annotations": notes} if notes else {})
    additions: dict[int, Additions] = {}
    for doc in manifest.documents:
        tree: dict[Any, Any] = {"metadata": dict(meta)}
        # A TrainJob's pods are made from its runtime, which is marked where it is in the manifest.
        for pods in pod_sets(doc.value) if doc.kind != "TrainJob" else ():
            tree = _with(tree, (*pods.keys, "metadata"), meta)
            tree = _with(tree, pods.keys, pods_in_queue(scheduler, queue))
        if scheduler == KAI and queue:
            tree = _with(tree, ("metadata", "labels"), {KAI_QUEUE: queue})
        if queue and scheduler == KUEUE and group_kind(doc.value) in MANAGED_BY_KUEUE:
            steps = (*queue_steps(group_kind(doc.value)), "metadata", "labels")
            if QUEUE not in as_map(at(doc.value, *steps)):
                tree = _with(tree, steps, {QUEUE: queue})
        additions[doc.number] = tree
    text = spliced(manifest.text, additions)
    return Prepared(text, tuple(doc.value for doc in read_manifest(text).documents))


def _with(tree: Mapping[Any, Any], keys: tuple[str | int, ...], more: Mapping[str, Any]) -> dict[Any, Any]:
    """``tree`` with ``more`` at the end of the steps."""
    if not keys:
        return dict(merged(tree, more))
    inner = tree.get(keys[0])
    return {**tree, keys[0]: _with(inner if isinstance(inner, dict) else {}, keys[1:], more)}


def _of_runtime(doc: Document, sets: list[PodSet], manifest: Manifest) -> list[PodSet]:
    """A TrainJob's pods: all that its runtime in the same manifest makes, else the nodes that it says itself."""
    trainer = as_map(at(doc.value, "spec", "trainer"))
    name = str(at(doc.value, "spec", "runtimeRef", "name") or "")
    kind = at(doc.value, "spec", "runtimeRef", "kind")
    runtime = next((d for d in manifest.documents if d.kind == kind == "TrainingRuntime" and d.name == name), None)
    if runtime is None and kind == "TrainingRuntime":
        what = "the TrainingRuntime is not in the manifest, and so the quota of the job is unknown: bring it along"
        raise BadValue("spec.runtimeRef.name", what)
    if runtime is None:
        for missing in ("numNodes", "resourcesPerNode"):
            if missing not in trainer or (missing == "resourcesPerNode" and not as_map(trainer[missing])):
                raise BadValue(f"spec.trainer.{missing}", "is missing, and so the quota of the job is unknown")
        return sets
    nodes = trainer.get("numNodes", at(runtime.value, "spec", "mlPolicy", "numNodes"))
    if nodes is not None and (not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 0):
        raise BadValue("spec.trainer.numNodes", f"{nodes!r} is no count")
    found = []
    for pods, replicas, count in runtime_sets(runtime.value):
        job = at(runtime.value, *pods.keys[:-2])
        is_trainer = at(job, "metadata", "labels", _TRAINER_STEP) == "trainer"
        asked = as_map(trainer.get("resourcesPerNode")) if is_trainer else {}
        each = nodes if is_trainer and nodes is not None else count
        found.append(PodSet(pods.path, pods.keys, pods.template, replicas * each, asked or None))
    return [*found, *(pods for pods in sets if pods.path != "spec.trainer")]


def _object(doc: Document, policy: ManifestPolicy) -> Iterator[Refusal]:
    """Whether this is an object of a kind that may be sent."""
    value = doc.value
    for name in ("apiVersion", "kind"):
        if not isinstance(value.get(name), str) or not value[name]:
            yield Refusal((name,), "NotAnObject", _("%(name)s is missing or no text.", name=name))
            return
    group, kind = group_kind(value)
    if (group, kind) in CLUSTER_SCOPED:
        text = _("%(kind)s belongs to the whole cluster, not to a team.", kind=kind)
        yield Refusal(("kind",), "ClusterScoped", text)
    elif (group, kind) == ("batch", "CronJob"):
        text = _(
            "A CronJob starts again when nothing is held for it any more: bring a Job instead, and submit it "
            "each time, by the API or the command line."
        )
        yield Refusal(("kind",), "CronJob", text)
    elif (group, kind) not in KNOWN:
        known = ", ".join(sorted(name for _group, name in KNOWN))
        text = _(
            "%(kind)s of %(version)s is not taken here; taken are %(known)s.",
            kind=kind[:80],
            version=str(value["apiVersion"])[:80],
            known=known,
        )
        yield Refusal(("kind",), "UnknownKind", text)
    elif policy.served is not None and f"{value['apiVersion']} {kind}" not in policy.served:
        text = _("The cluster does not serve %(version)s %(kind)s.", version=value["apiVersion"], kind=kind)
        yield Refusal(("apiVersion",), "NotServed", text)
    if not isinstance(value.get("metadata"), dict):
        yield Refusal(("metadata",), "NoName", _("The object has no metadata with a name."))


def _names(doc: Document, seen: set[tuple[str, str, str]]) -> Iterator[Refusal]:
    """Whether its name and the labels are right, and whether they are not ours."""
    meta = as_map(doc.value.get("metadata"))
    name = meta.get("name")
    if not name and meta.get("generateName"):
        # An answer that is lost after the server made the object would make a second one.
        text = _("Write a name: with generateName an object could be made twice.")
        yield Refusal(("metadata", "generateName"), "NoName", text)
        return
    if not isinstance(name, str) or not name:
        yield Refusal(("metadata", "name"), "NoName", _("The object has no name."))
        return
    if len(name) > 253 or not all(names.is_dns_label(part) for part in name.split(".")):
        text = _("%(name)s is no name of an object.", name=repr(name)[:80])
        yield Refusal(("metadata", "name"), "BadName", text)
    if name.startswith(KEPT_NAME):
        text = _("Names that begin with %(prefix)s are kept for the portal.", prefix=KEPT_NAME)
        yield Refusal(("metadata", "name"), "KeptName", text)
    if (*group_kind(doc.value), name) in seen:
        text = _("The manifest has %(kind)s %(name)s twice.", kind=doc.kind, name=name)
        yield Refusal(("metadata", "name"), "TwiceTheSame", text)
    seen.add((*group_kind(doc.value), name))


def _parts(doc: Document, policy: ManifestPolicy) -> Iterator[Refusal]:
    """What is asked of a kind alone: the namespace, the queue, services that open the cluster, tokens."""
    value = doc.value
    namespace = at(value, "metadata", "namespace")
    if namespace is not None and namespace != policy.namespace:
        text = _("The namespace %(name)s is not the team's, which is %(own)s.", name=namespace, own=policy.namespace)
        yield Refusal(("metadata", "namespace"), "OtherNamespace", text)
    if at(value, "metadata", "ownerReferences"):
        text = _("Who owns an object is said by the server's own controllers.")
        yield Refusal(("metadata", "ownerReferences"), "KeptLabel", text)
    yield from everywhere(value, policy.pods, policy.queues, policy.priorities)
    kind = at(value, "spec", "type")
    if doc.kind == "Service" and not policy.allows_external_services:
        if kind in ("NodePort", "LoadBalancer", "ExternalName"):
            text = _("Services of the type %(type)s are not allowed on this cluster.", type=kind)
            yield Refusal(("spec", "type"), "ExternalService", text)
        if at(value, "spec", "externalIPs"):
            text = _("Addresses outside are not allowed on this cluster.")
            yield Refusal(("spec", "externalIPs"), "ExternalService", text)
    if doc.kind == "Secret" and value.get("type") == "kubernetes.io/service-account-token":
        text = _("Tokens of service accounts are not made by manifests.")
        yield Refusal(("type",), "Secret", text)
    for part in ("data", "stringData") if doc.kind == "Secret" and policy.hidden else ():
        for name, held in as_map(value.get(part)).items():
            if held == policy.hidden:
                text = _("This value was hidden when the manifest was shown: write it again.")
                yield Refusal((part, name), "HiddenValue", text)


def _pods(doc: Document, policy: ManifestPolicy, secrets: frozenset[str], manifest: Manifest) -> Iterator[Refusal]:
    """What its pods may not do, and whether each fits on a node."""
    try:
        found = counted(doc, manifest)
        sets = pod_sets(doc.value)
    except BadValue as error:
        text = _("%(path)s: %(what)s.", path=error.path, what=str(error))
        yield Refusal(tuple(error.path.split(".")), "BadValue", text)
        return
    for pods in sets:
        if pods.requests is None and doc.kind != "TrainJob" and not as_list(pods.spec.get("containers")):
            yield Refusal((*pods.keys, "spec", "containers"), "NoContainer", _("There is no container."))
        yield from refusals(pods, policy.pods, secrets)
    for pods, one in found:
        if pods.count and policy.nodes and (refusal := _too_large(pods, one, policy.nodes)):
            yield refusal
    if doc.kind == "TrainJob":
        yield from train_job(doc.value, policy.pods, secrets)


def _too_large(pods: PodSet, one: Demand, nodes: tuple[NodeSize, ...]) -> Refusal | None:
    """A pod that no node of the cluster could ever take."""
    if any(
        one.gpus <= node.gpus
        and one.cpu_milli <= node.cpu_milli
        and one.memory_mib <= node.memory_mib
        and one.efa <= node.efa
        for node in nodes
    ):
        return None
    largest = max(nodes, key=lambda node: (node.gpus, node.cpu_milli, node.memory_mib))
    text = _(
        "A pod asks for %(gpus)s GPUs, %(efa)s EFA devices, %(cpus)s CPUs and %(memory)s MiB, which no node has; "
        "the largest, %(node)s, has %(node_gpus)s, %(node_efa)s, %(node_cpus)s and %(node_memory)s.",
        gpus=one.gpus,
        efa=one.efa,
        cpus=f"{one.cpu_milli / 1000:g}",
        memory=one.memory_mib,
        node=largest.name,
        node_gpus=largest.gpus,
        node_efa=largest.efa,
        node_cpus=f"{largest.cpu_milli / 1000:g}",
        node_memory=largest.memory_mib,
    )
    keys = pods.keys if pods.requests is not None else (*pods.keys, "spec", "containers")
    return Refusal(keys, "TooLargeForAnyNode", text)
