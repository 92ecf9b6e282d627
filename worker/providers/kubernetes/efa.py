"""EFA, huge pages and the environment of libfabric and NCCL, by instance type."""

from __future__ import annotations

from collections.abc import Sequence

GPU, EFA, HUGEPAGES = "nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi"

#: What AWS's device plugin offers as vpc.amazonaws.com/efa on one node, by instance type.
EFA_PER_NODE = {
    "p4d.24xlarge": 4,
    "p4de.24xlarge": 4,
    "p5.4xlarge": 1,
    "p5.48xlarge": 32,
    "p5e.48xlarge": 32,
    "p5en.48xlarge": 16,
    "p6-b200.48xlarge": 8,
    "p6-b300.48xlarge": 16,
    "p6e-gb200.36xlarge": 4,
    "g5.12xlarge": 1,
    "g5.48xlarge": 1,
    "g6.12xlarge": 1,
    "g6.48xlarge": 1,
    "g6e.12xlarge": 1,
    "g6e.48xlarge": 4,
    "g7e.48xlarge": 4,
}
#: Families whose EFA reads and writes GPU memory itself.
_RDMA = ("p4d.", "p4de.", "p5.", "p5e.", "p5en.", "p6-", "p6e-")
#: Huge pages of 2 MiB that libfabric's EFA provider takes from a node.
HUGEPAGES_MIB = 5120


def efa_of(instance_types: Sequence[str]) -> int:
    """EFA devices of one node that every one of the types has; 0 for none named or one without EFA."""
    return min((EFA_PER_NODE.get(_plain(name), 0) for name in instance_types), default=0)


def has_rdma(instance_types: Sequence[str]) -> bool:
    """Whether EFA reaches GPU memory on all of the types."""
    return bool(instance_types) and all(_plain(name).startswith(_RDMA) for name in instance_types)


def _plain(instance_type: str) -> str:
    # HyperPod writes "ml." before the type of EC2.
    return instance_type.removeprefix("ml.")


def network_environment(efa: int, instance_types: Sequence[str], nodes: int) -> dict[str, str]:
    """What libfabric and NCCL are told; nothing for a single node, on which no network is used."""
    if nodes < 2:
        return {}
    # Rendezvous and bootstrap go by the pod's own interface; all others are bridges of the node.
    found = {"NCCL_SOCKET_IFNAME": "^docker,lo,veth", "NCCL_DEBUG": "WARN"}
    if efa:
        found |= {"FI_PROVIDER": "efa", "FI_EFA_FORK_SAFE": "1"}
        if has_rdma(instance_types):
            found["FI_EFA_USE_DEVICE_RDMA"] = "1"
    return found
