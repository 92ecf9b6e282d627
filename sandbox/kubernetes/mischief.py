"""What the control desk does to pods of pretend clusters: out of memory, evicted, pushed out by something urgent."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Final

from sandbox.kubernetes.cluster import Cluster
from sandbox.kubernetes.estate import Estate
from sandbox.kubernetes.kueue import GROUP, QUEUE
from sandbox.kubernetes.status import ApiError, Object
from sandbox.kubernetes.store import Key

_URGENT: Final = "sandbox-urgent"
_URGENT_VALUE: Final = 1_000_000
_MOST_OWNERS: Final = 6


class NoSuchPod(Exception):
    """Nothing of this name runs; the message names what does."""


def pod_of(estate: Estate | None, name: str) -> tuple[Cluster, Object]:
    """A pod by ``name`` or ``namespace/name`` in any cluster. Raises NoSuchPod."""
    namespace, _, own = name.rpartition("/")
    known: list[str] = []
    for cluster in list(estate.clusters.values()) if estate is not None else ():
        for pod in cluster.api.store.scan("pods", namespace):
            metadata = pod["metadata"]
            if metadata["name"] == own:
                return cluster, pod
            known.append(f"{metadata['namespace']}/{metadata['name']}")
    raise NoSuchPod(f"there is no pod {name!r}; pods: {', '.join(known[:10]) or 'none'}")


def out_of_memory(estate: Estate | None, name: str, container: str = "") -> str:
    """Kill a container of a pod as the kernel does; the pod in words. Raises NoSuchPod."""
    cluster, pod = pod_of(estate, name)
    at = pod["metadata"]["namespace"], pod["metadata"]["name"]
    try:
        cluster.kubelets.oom(*at, container)
    except (KeyError, StopIteration):
        raise NoSuchPod(f"no such container of {at[0]}/{at[1]} runs now") from None
    return f"{at[0]}/{at[1]}"


def evict(estate: Estate | None, name: str) -> str:
    """End a pod for its node's sake; the pod in words. Raises NoSuchPod."""
    cluster, pod = pod_of(estate, name)
    at = pod["metadata"]["namespace"], pod["metadata"]["name"]
    try:
        cluster.kubelets.evict(*at, "The node was low on resource: memory. Threshold quantity: 100Mi.")
    except (KeyError, StopIteration):
        raise NoSuchPod(f"{at[0]}/{at[1]} does not run now") from None
    return f"{at[0]}/{at[1]}"


def push_out(estate: Estate | None, name: str, seconds: int) -> str:
    """Submit something urgent of the same size into the queue of a pod's workload; what was submitted, in words.

    Kueue makes room for it by the rules of its ClusterQueue, or does not. Raises NoSuchPod.
    """
    cluster, pod = pod_of(estate, name)
    store, namespace = cluster.api.store, str(pod["metadata"]["namespace"])
    owner = _queued_owner(cluster, pod)
    if owner is None:
        raise NoSuchPod(f"{namespace}/{pod['metadata']['name']} belongs to no queue of Kueue")
    size = sum(
        one["spec"].get("nodeName") is not None and _queued_owner(cluster, one) == owner
        for one in store.scan("pods", namespace)
    )
    queue = owner["metadata"]["labels"][QUEUE]
    with contextlib.suppress(ApiError):
        cluster.api.apply(
            {
                "apiVersion": f"{GROUP}/v1beta2",
                "kind": "WorkloadPriorityClass",
                "metadata": {"name": _URGENT},
                "value": _URGENT_VALUE,
                "description": "of the sandbox's control desk",
            }
        )
    made = cluster.api.apply(_intruder(pod, namespace, queue, max(size, 1), seconds))
    return f"{namespace}/{made['metadata']['name']} in the queue {queue}"


def _queued_owner(cluster: Cluster, pod: Object) -> Object | None:
    """The job above a pod that stands in a queue."""
    thing: Object | None = pod
    for _ in range(_MOST_OWNERS):
        if thing is None:
            return None
        if thing is not pod and (thing["metadata"].get("labels") or {}).get(QUEUE):
            return thing
        owner = next((one for one in thing["metadata"].get("ownerReferences") or () if one.get("controller")), None)
        key: Key | None = None if owner is None else cluster.api.store.by_uid(owner["uid"])
        thing = None if key is None else cluster.api.store.get(key)
    return None


def _intruder(pod: Object, namespace: str, queue: str, size: int, seconds: int) -> Object:
    first: Any = pod["spec"]["containers"][0]
    spec = {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "urgent",
                "image": "sandbox/urgent:1",
                "command": ["sleep", str(seconds)],
                "resources": copy.deepcopy(first.get("resources") or {}),
            }
        ],
        "tolerations": copy.deepcopy(pod["spec"].get("tolerations") or []),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "generateName": "urgent-",
            "namespace": namespace,
            "labels": {QUEUE: queue, f"{GROUP}/priority-class": _URGENT},
        },
        "spec": {"parallelism": size, "completions": size, "suspend": True, "template": {"spec": spec}},
    }
