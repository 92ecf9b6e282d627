"""Nodes of a cluster as the house sees nodes: state, GPUs and how many are taken, where they stand, what ails them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from worker.providers import values as v
from worker.providers.kubernetes import names, quantities
from worker.providers.kubernetes.decode import demand_of_pod
from worker.providers.kubernetes.efa import EFA, GPU, HUGEPAGES
from worker.providers.kubernetes.ends import is_placed
from worker.providers.kubernetes.informer import Known
from worker.providers.kubernetes.kueue_reasons import condition
from worker.providers.kubernetes.pod_sets import Demand, as_list, as_map, at
from worker.providers.kubernetes.reasons import HEALTH, node_reasons
from worker.providers.kubernetes.works import Thing, controller_of

DRAIN_REASON = f"{names.PREFIX}/drain-reason"
#: Labels that say which group of machines a node is of.
GROUP_LABELS = (
    "eks.amazonaws.com/nodegroup",
    "sagemaker.amazonaws.com/instance-group-name",
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
)
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
ZONE = "topology.kubernetes.io/zone"
_KEPT_LABELS = (
    *(INSTANCE_TYPE, ZONE, "topology.kubernetes.io/region", "kubernetes.io/arch", "topology.k8s.aws/zone-id"),
    *("topology.k8s.aws/network-node-layer-1", "topology.k8s.aws/network-node-layer-2"),
    *("topology.k8s.aws/network-node-layer-3", "topology.k8s.aws/ultraserver-id", "nvidia.com/gpu.product"),
    *("nvidia.com/gpu.clique", "eks.amazonaws.com/capacityType"),
    *GROUP_LABELS,
)
#: What a kubelet takes unless it is told otherwise.
_PODS = 110
_HYPERPOD = "sagemaker.amazonaws.com/"
_INSTANCE = re.compile(r"\b(i-[0-9a-f]{8,32})$")
_MODEL = re.compile(r"(GB\d{3}|[ABHL]\d{2,3}S?|T4|V100|RTX[- ]?\w+)", re.IGNORECASE)


def seen_nodes(known: Known, queues: Sequence[str] = ()) -> tuple[v.SchedulerNode, ...]:
    """All nodes; ``queues`` are the queues whose jobs may come to any of them."""
    by_node: dict[str, list[Thing]] = defaultdict(list)
    for pod in known.of("Pod").values():
        if is_placed(pod):
            by_node[str(pod["spec"]["nodeName"])].append(pod)
    nodes = sorted(known.of("Node").values(), key=lambda node: str(node["metadata"]["name"]))
    return tuple(_seen(node, by_node.get(str(node["metadata"]["name"]), []), queues) for node in nodes)


def is_silent(node: Thing) -> bool:
    """Whether its kubelet is known not to answer; one that never said anything is no news."""
    return condition(node, "Ready").get("status") in ("False", "Unknown")


def _seen(node: Thing, pods: Iterable[Thing], queues: Sequence[str]) -> v.SchedulerNode:
    head, labels = as_map(node["metadata"]), as_map(at(node, "metadata", "labels"))
    size = capacity_of(node)
    gpus_used, is_used = 0, False
    for pod in pods:
        gpus_used += demand_of_pod(pod).gpus
        is_used = is_used or not _is_of_the_node(pod)
    reasons = [reason for reason in node_reasons(node) if reason.code != "Cordoned"]
    is_cordoned = bool(at(node, "spec", "unschedulable"))
    drained = str(as_map(head.get("annotations")).get(DRAIN_REASON) or "")
    is_ready = condition(node, "Ready").get("status") == "True"
    if not is_ready:
        state = "DOWN"
    elif size.gpus:
        state = "ALLOCATED" if gpus_used >= size.gpus else "MIXED" if gpus_used else "IDLE"
    else:
        state = "MIXED" if is_used else "IDLE"
    told = [str(reason) for reason in reasons]
    if is_cordoned:
        told.insert(0, drained or "cordoned")
    groups = [str(labels[key]) for key in GROUP_LABELS if labels.get(key)][:1]
    return v.SchedulerNode(
        name=str(head["name"]),
        state=state,
        # HyperPod says so before it reboots or replaces a node; it puts nothing on it meanwhile.
        flags=("DRAIN",) if is_cordoned or str(labels.get(HEALTH) or "").startswith("Unschedulable") else (),
        gpu_type=gpu_type_of(labels),
        gpus=size.gpus,
        gpus_used=min(gpus_used, size.gpus),
        cpus=size.cpu_milli // 1000,
        memory_mib=size.memory_mib,
        # What a person wrote when it was cordoned comes back to the letter.
        reason=drained if is_cordoned and drained and not reasons else "; ".join(told),
        partitions=tuple(dict.fromkeys([*groups, *queues])),
        address=_address(node),
        instance_id=instance_id_of(node),
        instance_type=str(labels.get(INSTANCE_TYPE) or ""),
        labels=kept_labels(labels, node),
    )


def capacity_of(node: Thing) -> Demand:
    """What a node offers to pods: what is allocatable."""
    told = as_map(at(node, "status", "allocatable")) or as_map(at(node, "status", "capacity"))

    def whole(name: str) -> int:
        try:
            return int(quantities.parse(told.get(name, 0)))
        except ValueError:
            return 0

    try:
        cpu_milli = quantities.milli(quantities.parse(told.get("cpu", 0)))
    except ValueError:
        cpu_milli = 0
    return Demand(
        pods=whole("pods") if "pods" in told else _PODS,
        gpus=whole(GPU),
        efa=whole(EFA),
        cpu_milli=cpu_milli,
        memory_mib=whole("memory") // (1 << 20),
    )


def kept_labels(labels: Mapping[str, Any], node: Thing) -> dict[str, str]:
    """Labels that say what the node is, how it is, and its taints as "taint:key" with their effect.

    "capacity:efa" and "capacity:hugepages" (MiB) are what pods can have of these.
    """
    found = {key: str(labels[key]) for key in _KEPT_LABELS if labels.get(key)}
    found |= {str(key): str(value) for key, value in labels.items() if str(key).startswith(_HYPERPOD)}
    for row in as_list(at(node, "spec", "taints")):
        taint = as_map(row)
        found[f"taint:{taint.get('key')}"] = ":".join(
            str(part) for part in (taint.get("value"), taint.get("effect")) if part
        )
    offered = as_map(at(node, "status", "allocatable"))
    for name, key, unit in (("efa", EFA, 1), ("hugepages", HUGEPAGES, 1 << 20)):
        try:
            amount = int(quantities.parse(offered.get(key, 0)))
        except ValueError:
            continue
        if amount:
            found[f"capacity:{name}"] = str(amount // unit)
    capacity = as_map(at(node, "status", "capacity")).get(GPU)
    if capacity is not None and str(capacity) != str(as_map(at(node, "status", "allocatable")).get(GPU)):
        found["capacity:gpus"] = str(capacity)
    return found


def gpu_type_of(labels: Mapping[str, Any]) -> str:
    """The GPU's short name from NVIDIA's own label, "" where there is none."""
    match = _MODEL.search(str(labels.get("nvidia.com/gpu.product") or ""))
    return match[1].lower().replace(" ", "-") if match else ""


def instance_id_of(node: Thing) -> str:
    """The machine behind a node, where the cloud says it."""
    match = _INSTANCE.search(str(at(node, "spec", "providerID") or ""))
    return match[1] if match else str(at(node, "metadata", "labels", f"{names.PREFIX}/instance-id") or "")


def _address(node: Thing) -> str:
    for row in as_list(at(node, "status", "addresses")):
        if as_map(row).get("type") == "InternalIP":
            return str(as_map(row).get("address") or "")
    return ""


def _is_of_the_node(pod: Thing) -> bool:
    """A pod that every node has, or that the node brought itself."""
    reference = controller_of(pod)
    return reference is not None and reference.get("kind") in ("DaemonSet", "Node")


def is_to_be_evicted(pod: Thing) -> bool:
    """Whether draining ends it: neither the node's own nor over."""
    return is_placed(pod) and not _is_of_the_node(pod)
