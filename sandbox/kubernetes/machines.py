"""Machines as Kubernetes shows them: what a node has, what of it pods can take, and the labels of AWS's agents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from sandbox.kubernetes.status import Object
from sandbox.world import Node

PODS: Final = 110
HUGEPAGES_MIB: Final = 5120
HEALTH: Final = "sagemaker.amazonaws.com"
_PRODUCTS: Final = {
    "A100": "NVIDIA-A100-SXM4-40GB",
    "H100": "NVIDIA-H100-80GB-HBM3",
    "H200": "NVIDIA-H200",
    "B200": "NVIDIA-B200",
    "B300": "NVIDIA-B300-SXM6-AC",
    "L4": "NVIDIA-L4",
    "L40S": "NVIDIA-L40S",
    "GB200": "NVIDIA-GB200",
}
#: XIDs after which HyperPod replaces a machine; after the others it starts it again.
_REPLACED: Final = (48, 62, 64, 74, 79, 95, 140)


def capacity(node: Node) -> dict[str, str]:
    """All that a machine has."""
    found = {"cpu": str(node.cpus), "memory": f"{node.memory_mib}Mi", "pods": str(PODS), "ephemeral-storage": "500Gi"}
    if node.gpus:
        found["nvidia.com/gpu"] = str(len(node.gpus))
    if node.efa:
        found |= {"vpc.amazonaws.com/efa": str(node.efa), "hugepages-2Mi": f"{HUGEPAGES_MIB}Mi"}
    return found


def allocatable(node: Node) -> dict[str, str]:
    """What pods can take: less what EKS keeps for the system, and without GPUs that fell off their bus."""
    kept_m = 60 + 10 * (node.cpus > 1) + 5 * min(2, max(0, node.cpus - 2)) + 2.5 * max(0, node.cpus - 4)
    memory_mib = node.memory_mib - (255 + 11 * PODS) - 100
    found = {**capacity(node), "cpu": f"{node.cpus * 1000 - int(kept_m)}m"}
    if node.efa:
        memory_mib -= HUGEPAGES_MIB
    if node.gpus:
        found["nvidia.com/gpu"] = str(sum(gpu.on_bus for gpu in node.gpus))
    return {**found, "memory": f"{max(memory_mib, 0)}Mi"}


def labels(node: Node) -> dict[str, str]:
    """Labels from the machine alone; those of its group come with it."""
    found = {
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64" if "gb200" in node.instance_type else "amd64",
        "node.kubernetes.io/instance-type": node.instance_type,
        "quarterdeck.dev/instance-id": node.instance_id,
    }
    if node.zone:
        found |= {"topology.kubernetes.io/zone": node.zone, "topology.kubernetes.io/region": node.zone[:-1]}
    if node.gpus:
        product = _PRODUCTS.get(node.gpu_type.upper(), f"NVIDIA-{node.gpu_type.upper() or 'GPU'}")
        found |= {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": str(len(node.gpus))}
    if node.partition and "eks.amazonaws.com/nodegroup" not in node.labels and not is_hyperpod(node):
        found["eks.amazonaws.com/nodegroup"] = node.partition
    return {**found, **node.labels, **(health(node) if is_hyperpod(node) else {})}


def is_hyperpod(node: Node) -> bool:
    """Whether HyperPod's agents watch over it."""
    return f"{HEALTH}/instance-group-name" in node.labels


def health(node: Node) -> dict[str, str]:
    """What HyperPod's health agent says of a machine."""
    codes = [code for gpu in node.gpus for _, code in gpu.xids]
    if not codes:
        return {f"{HEALTH}/node-health-status": "Schedulable", f"{HEALTH}/deep-health-check-status": "Passed"}
    replaced = any(code in _REPLACED for code in codes)
    return {
        f"{HEALTH}/node-health-status": f"UnschedulablePending{'Replacement' if replaced else 'Reboot'}",
        f"{HEALTH}/deep-health-check-status": "Passed",
        f"{HEALTH}/fault-types": "NvidiaErrorTerminate" if replaced else "NvidiaErrorReboot",
        f"{HEALTH}/fault-reasons": f"Xid{codes[-1]}",
    }


def taints(node: Node, given: list[Object]) -> list[Object]:
    """The taints of a node with HyperPod's own where the machine is not to be used."""
    key = f"{HEALTH}/node-health-status"
    kept = [one for one in given if one.get("key") != key]
    if is_hyperpod(node) and health(node)[key] != "Schedulable":
        kept.append({"key": key, "value": "Unschedulable", "effect": "NoSchedule"})
    return kept


def provider_id(node: Node) -> str:
    """The machine's address at AWS."""
    return f"aws:///{node.zone or 'us-east-2a'}/{node.instance_id}"


def topology(zone: str, name: str, nodes: list[str] | None = None) -> dict[str, str]:
    """Labels of the network's layers, the widest first: as EC2 tells them, else by the name."""
    if not nodes:
        parts = [zone, f"{zone}/spine", f"{zone}/{int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2}"]
        nodes = [f"nn-{hashlib.sha256(part.encode()).hexdigest()[:17]}" for part in parts]
    return {f"topology.k8s.aws/network-node-layer-{layer}": one for layer, one in enumerate(nodes[:3], 1)}


def facts_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """GPUs, EFA devices, CPUs and memory of a type by EC2's description of it."""
    gpus = ((described.get("GpuInfo") or {}).get("Gpus") or [{}])[0]
    efa = (described.get("NetworkInfo") or {}).get("EfaInfo") or {}
    return {
        "gpu_type": str(gpus.get("Name") or "").lower(),
        "gpu_count": int(gpus.get("Count") or 0),
        "efa": int(efa.get("MaximumEfaInterfaces") or 0),
        "cpus": int((described.get("VCpuInfo") or {}).get("DefaultVCpus") or 192),
        "memory_mib": int((described.get("MemoryInfo") or {}).get("SizeInMiB") or 2_097_152),
    }
