"""How the ranks of a gang find each other: addresses and ranks for torchrun and for scripts that start no launcher."""

from __future__ import annotations

from typing import Any

from worker.providers.kubernetes.names import object_name
from worker.providers.workload_values import WorkloadSpec

#: The port of the first rank that torchrun and torch.distributed meet at.
MASTER_PORT = 29500
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def field(path: str) -> dict[str, Any]:
    """An environment value that the node fills in from the pod."""
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def plain(values: dict[str, str]) -> list[dict[str, Any]]:
    """Environment variables in the clear."""
    return [{"name": name, "value": value} for name, value in values.items()]


def by_index(spec: WorkloadSpec, master: str) -> list[dict[str, Any]]:
    """The environment of a pod whose rank is its completion index and whose first rank answers at ``master``.

    RANK and WORLD_SIZE are those of one process a pod, NODE_RANK and the PET_ ones torchrun's, which sets RANK and
    WORLD_SIZE anew for each process that it starts.
    """
    ranks = [{"name": name, **field(_INDEX)} for name in ("RANK", "NODE_RANK", "PET_NODE_RANK")]
    return plain(meeting(spec, master)) + ranks


def meeting(spec: WorkloadSpec, master: str) -> dict[str, str]:
    """Where and how many, without the rank.

    The rendezvous is torchrun's static one, in which a node's rank is its pod's: with c10d the nodes agree on ranks
    anew, and the output of the first pod need not be that of rank 0. Whoever wants c10d says so to torchrun.
    """
    port = str(MASTER_PORT)
    return {
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "WORLD_SIZE": str(spec.nodes),
        "NNODES": str(spec.nodes),
        "NPROC_PER_NODE": str(spec.processes),
        "PET_NNODES": str(spec.nodes),
        "PET_NPROC_PER_NODE": str(spec.processes),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ENDPOINT": f"{master}:{port}",
        "PET_RDZV_ID": object_name(spec.uid),
    }


def by_operator(spec: WorkloadSpec) -> list[dict[str, Any]]:
    """The rest for a PyTorchJob, whose operator sets MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, PET_NNODES, ….

    Its RANK is the pod's and its WORLD_SIZE counts processes; NODE_RANK is set by the start script, for the operator
    puts its variables behind ours, where they cannot be referred to.
    """
    return plain({"NNODES": str(spec.nodes), "NPROC_PER_NODE": str(spec.processes)})


def by_trainer(spec: WorkloadSpec, master: str) -> list[dict[str, Any]]:
    """The rest for a TrainJob, whose controller sets PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK and PET_MASTER_….

    Its names are kept for it: a TrainJob that brings them is refused.
    """
    found = {
        "MASTER_ADDR": master,
        "MASTER_PORT": str(MASTER_PORT),
        "WORLD_SIZE": str(spec.nodes),
        "NNODES": str(spec.nodes),
        "NPROC_PER_NODE": str(spec.processes),
    }
    return plain(found) + [{"name": name, **field(_INDEX)} for name in ("RANK", "NODE_RANK")]
