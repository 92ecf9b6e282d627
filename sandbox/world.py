"""The pretend machines that the fake AWS makes, the fake Slurm schedules on and the fake exporters describe."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Gpu:
    """One pretend GPU. ``xids`` holds (instant, code) of each XID it logged; ``on_bus`` is False after XID 79."""

    index: int
    uuid: str
    pci_bus_id: str
    on_bus: bool = True
    xids: list[tuple[float, int]] = field(default_factory=list)
    row_remap_pending: bool = False
    row_remap_failure: bool = False
    ecc_dbe_volatile: int = 0


@dataclass
class Node:
    """One pretend machine in a partition of Slurm, or in a group of a Kubernetes cluster (``is_kubernetes``).

    ``up`` is False once it was lost (power, network, terminated), ``resting`` while AWS itself has it down.
    """

    name: str
    instance_id: str
    instance_type: str
    cluster: str
    partition: str
    gpu_type: str
    gpus: list[Gpu]
    cpus: int
    memory_mib: int
    joined_at: float = field(default_factory=time.time)
    up: bool = True
    is_kubernetes: bool = False
    efa: int = 0
    zone: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    resting: bool = False


@dataclass
class Fault:
    """A fault in force: ``kind`` is one of FAULT_KINDS; ``left`` uses or the instant ``until``, either ends it."""

    uid: str
    kind: str
    parameters: dict[str, object]
    made_at: float
    left: int | None = None
    until: float | None = None


FAULT_KINDS = (
    "xid",
    "no-capacity",
    "slow-api",
    "throttling",
    "access-denied",
    "node-loss",
    "torn-checkpoint",
    "server-error",
    "export-lag",
    "storage-fails",
    "partial-start",
    "wrong-reservation",
    "planned-event",
    "payment-failed",
    "cluster-fails",
    "group-no-capacity",
    "lifecycle-fails",
    "unauthorized",
    "watch-cut",
    "history-lost",
    "node-back",
    "pod-oom",
    "pod-evict",
    "pod-preempt",
    "image-pull",
    "api-away",
    "clock-skew",
)

#: PCI addresses of the 8 GPUs of a p5.48xlarge.
PCI_SLOTS = ("53", "64", "75", "86", "97", "A8", "B9", "CA")


class World:
    """All pretend machines and faults behind one lock; servers register callbacks to follow changes."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._ahead_s = 0.0
        self.nodes: dict[str, Node] = {}
        self.faults: dict[str, Fault] = {}
        self._listeners: list[Callable[[str, Node], None]] = []

    def now(self) -> float:
        """The world's clock in seconds since the epoch: the machine's, plus what ``advance`` added."""
        return time.time() + self._ahead_s

    def advance(self, seconds: float) -> float:
        """Let time jump ahead for what is booked by the calendar (reservations, blocks, plans); the new instant."""
        with self.lock:
            self._ahead_s += seconds
        return self.now()

    def on_node(self, listener: Callable[[str, Node], None]) -> None:
        """Call ``listener(event, node)`` at every "joined", "left", "lost", "back" and "changed" (its GPUs)."""
        self._listeners.append(listener)

    def _tell(self, event: str, node: Node) -> None:
        for listener in list(self._listeners):
            listener(event, node)

    def node_join(
        self,
        *,
        name: str,
        instance_id: str,
        instance_type: str,
        cluster: str,
        partition: str,
        gpu_type: str,
        gpu_count: int,
        cpus: int,
        memory_mib: int,
        is_kubernetes: bool = False,
        efa: int = 0,
        zone: str = "",
        labels: dict[str, str] | None = None,
    ) -> Node:
        """Add a machine with fresh GPUs; joining twice under one name replaces the first."""
        gpus = [
            Gpu(
                index=i,
                uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{instance_id}/{i}')}",
                pci_bus_id=f"00000000:{PCI_SLOTS[i % len(PCI_SLOTS)]}:00.0",
            )
            for i in range(gpu_count)
        ]
        node = Node(
            name=name,
            instance_id=instance_id,
            instance_type=instance_type,
            cluster=cluster,
            partition=partition,
            gpu_type=gpu_type,
            gpus=gpus,
            cpus=cpus,
            memory_mib=memory_mib,
            is_kubernetes=is_kubernetes,
            efa=efa,
            zone=zone,
            labels=dict(labels or {}),
        )
        with self.lock:
            self.nodes[name] = node
        self._tell("joined", node)
        return node

    def node_leave(self, name: str) -> None:
        """Remove a machine (its instance was terminated); unknown names are ignored."""
        with self.lock:
            node = self.nodes.pop(name, None)
        if node is not None:
            node.up = False
            self._tell("left", node)

    def node_lose(self, name: str) -> None:
        """Cut a machine off without removing it: Slurm will call it DOWN. Raises KeyError for an unknown name."""
        with self.lock:
            node = self.nodes[name]
            node.up = False
        self._tell("lost", node)

    def node_recover(self, name: str) -> None:
        """Let a machine that was cut off answer again, its GPUs mended. Raises KeyError for an unknown name."""
        with self.lock:
            node = self.nodes[name]
            node.up = True
            for gpu in node.gpus:
                gpu.xids.clear()
                gpu.on_bus, gpu.ecc_dbe_volatile = True, 0
                gpu.row_remap_pending = gpu.row_remap_failure = False
        self._tell("back", node)

    def xid(self, name: str, code: int, gpu: int = 0) -> Node:
        """Log an XID on one GPU. Raises KeyError for an unknown node, IndexError for an unknown GPU."""
        with self.lock:
            node = self.nodes[name]
            device = node.gpus[gpu]
            device.xids.append((time.time(), code))
            if code == 79:
                device.on_bus = False
            if code in (63, 94, 156):
                device.row_remap_pending = True
            if code == 48:
                device.ecc_dbe_volatile += 1
            if code == 64:
                device.row_remap_failure = True
        self._tell("changed", node)
        return node

    def fault_add(
        self, kind: str, *, left: int | None = None, seconds: float | None = None, **parameters: object
    ) -> Fault:
        """Put a fault in force. Raises ValueError for an unknown kind."""
        if kind not in FAULT_KINDS:
            raise ValueError(f"unknown fault {kind!r}; one of {', '.join(FAULT_KINDS)}")
        now = time.time()
        fault = Fault(
            uid=uuid.uuid4().hex[:12],
            kind=kind,
            parameters=parameters,
            made_at=now,
            left=left,
            until=None if seconds is None else now + seconds,
        )
        with self.lock:
            self.faults[fault.uid] = fault
        return fault

    def fault_clear(self, uid: str) -> None:
        """End a fault; unknown ones are ignored."""
        with self.lock:
            self.faults.pop(uid, None)

    def fault_holds(self, kind: str, **match: object) -> Fault | None:
        """The first fault of this kind in force, as ``fault_use`` finds it, without spending it."""
        now = time.time()
        with self.lock:
            for fault in self.faults.values():
                if fault.kind != kind or (fault.until is not None and fault.until <= now):
                    continue
                if all(fault.parameters.get(k) in (None, "", value) for k, value in match.items()):
                    return fault
        return None

    def fault_use(self, kind: str, **match: object) -> Fault | None:
        """The first fault of this kind in force whose parameters agree with ``match``, spent once; else None.

        A parameter the fault does not name matches everything.
        """
        now = time.time()
        with self.lock:
            for fault in list(self.faults.values()):
                if fault.until is not None and fault.until <= now:
                    del self.faults[fault.uid]
                    continue
                if fault.kind != kind:
                    continue
                if any(fault.parameters.get(k) not in (None, "", value) for k, value in match.items()):
                    continue
                if fault.left is not None:
                    fault.left -= 1
                    if fault.left <= 0:
                        del self.faults[fault.uid]
                return fault
        return None
