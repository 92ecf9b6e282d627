"""What the worker writes about clusters, fleets and nodes: every status column, each by a conditional UPDATE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext_noop as _

from apps.audit.services import event
from apps.clusters.models import Cluster, Fleet, FleetStep, Node
from apps.clusters.selectors import live_nodes
from apps.clusters.states import (
    CLUSTER_TRANSITIONS,
    FLEET_TRANSITIONS,
    NODE_TRANSITIONS,
    ClusterPhase,
    FleetPhase,
    NodePhase,
    StepState,
)
from apps.core import clock
from apps.core.said import brief, said
from apps.core.states import may_move, move
from apps.intents.services import intent_ask


def cluster_reached(
    cluster: Cluster,
    *,
    version: str,
    api_version: str,
    partitions: Sequence[Mapping[str, Any]],
    max_time_min: int | None,
) -> None:
    """The controller answered."""
    columns: dict[str, Any] = {
        "observed_version": version,
        "observed_api_version": api_version,
        "observed_partitions": list(partitions),
        "observed_max_time_min": max_time_min,
        "observed_at": clock.now(),
        "observed_generation": cluster.generation,
        "message": "",
    }
    with transaction.atomic():
        if cluster.phase == ClusterPhase.READY:
            Cluster.objects.filter(pk=cluster.pk).update(**columns)
            return
        move(cluster, CLUSTER_TRANSITIONS, ClusterPhase.READY, **columns)
        spoken = f"Kubernetes {version}" if cluster.is_kubernetes else f"Slurm {version}, REST {api_version}"
        event("cluster", cluster.uid, "ClusterReady", spoken)


def operator_missing(cluster: Cluster) -> None:
    """The scheduler does not let the cluster's own user act on others' jobs: shown to operators until it does."""
    if cluster.operator_missing_at is None:
        event("cluster", cluster.uid, "OperatorMissing", f"{cluster.user_name} lacks adminlevel=operator in Slurm")
    now = clock.now()
    Cluster.objects.filter(pk=cluster.pk).update(operator_missing_at=now)
    cluster.operator_missing_at = now


def operator_works(cluster: Cluster) -> None:
    """The cluster's own user acted on another's job."""
    if cluster.operator_missing_at is not None:
        Cluster.objects.filter(pk=cluster.pk).update(operator_missing_at=None)
        cluster.operator_missing_at = None


def cluster_unreachable(cluster: Cluster, error: str) -> None:
    """The controller did not answer, or answered nonsense."""
    with transaction.atomic():
        if cluster.phase == ClusterPhase.UNREACHABLE:
            Cluster.objects.filter(pk=cluster.pk).update(message=brief(error, 500))
            return
        if may_move(CLUSTER_TRANSITIONS, cluster.phase, ClusterPhase.UNREACHABLE):
            move(cluster, CLUSTER_TRANSITIONS, ClusterPhase.UNREACHABLE, message=brief(error, 500))
            event("cluster", cluster.uid, "ClusterUnreachable", error)


def cluster_removed(cluster: Cluster) -> None:
    """Out of the portal."""
    with transaction.atomic():
        if cluster.phase != ClusterPhase.DELETING:
            move(cluster, CLUSTER_TRANSITIONS, ClusterPhase.DELETING)
        Node.objects.filter(cluster=cluster).exclude(phase=NodePhase.GONE).update(
            phase=NodePhase.GONE, phase_since=clock.now()
        )
        # The name becomes free for another cluster; the old rows keep their history under the uid.
        name = f"{cluster.name[:40]}-{cluster.uid[-8:]}"
        move(cluster, CLUSTER_TRANSITIONS, ClusterPhase.DELETED, name=name, observed_generation=cluster.generation)


def queue_was_read(cluster: Cluster, as_of: datetime | None, reading: Mapping[str, Any]) -> None:
    """The collector finished a read of the queue; ``reading`` is what it cost and when the next is due."""
    Cluster.objects.filter(pk=cluster.pk).update(
        queue_as_of=as_of, queue_read_at=clock.now(), queue_reading=dict(reading)
    )


def nodes_were_read(cluster: Cluster, reading: Mapping[str, Any]) -> None:
    """The collector finished a read of the nodes; ``reading`` is what it cost and when the next is due."""
    Cluster.objects.filter(pk=cluster.pk).update(nodes_read_at=clock.now(), nodes_reading=dict(reading))


def exporters_were_read(cluster: Cluster) -> None:
    """The collector finished a round of the exporters."""
    Cluster.objects.filter(pk=cluster.pk).update(exporters_read_at=clock.now())


# --- fleets ----------------------------------------------------------------------------------------


def fleet_move(fleet: Fleet, phase: str, message: str = "", *, outcome: str = "", **columns: Any) -> None:
    """Take a fleet to its next phase, its steps with it, in one commit; ``outcome`` is how the step that ends went."""
    with transaction.atomic():
        old = fleet.phase
        move(fleet, FLEET_TRANSITIONS, phase, message=brief(message, 500), observed_at=clock.now(), **columns)
        if outcome:
            FleetStep.objects.filter(fleet=fleet, state=StepState.RUNNING).update(message=brief(outcome, 500))
        _steps_follow(fleet, old, phase, message)
        event(
            "fleet",
            fleet.uid,
            "FleetPhase",
            message or str(FleetPhase(phase).label),
            data={"phase": phase, "from": old},
        )


def _steps_follow(fleet: Fleet, old: str, new: str, message: str) -> None:
    now = clock.now()
    # Waiting for capacity is the launch step still running.
    running = FleetPhase.LAUNCHING if new == FleetPhase.WAITING_CAPACITY else new
    steps = FleetStep.objects.filter(fleet=fleet)
    if new == FleetPhase.FAILED:
        steps.filter(state=StepState.RUNNING).update(state=StepState.FAILED, ended_at=now, message=brief(message, 500))
        return
    current = steps.filter(name=running).first()
    if current is None:
        return
    steps.filter(ordinal__lt=current.ordinal).exclude(state=StepState.DONE).update(state=StepState.DONE, ended_at=now)
    if new == FleetPhase.READY:
        if current.state != StepState.DONE:
            steps.filter(pk=current.pk).update(
                state=StepState.DONE, started_at=now, ended_at=now, message=brief(message, 500)
            )
    elif old != FleetPhase.WAITING_CAPACITY or new != FleetPhase.LAUNCHING:
        columns: dict[str, Any] = {"state": StepState.RUNNING, "message": brief(message, 500)}
        if current.started_at is None:
            columns["started_at"] = now
        steps.filter(pk=current.pk).update(**columns)


def fleet_say(fleet: Fleet, message: str, *, checks: Sequence[Mapping[str, Any]] | None = None, **columns: Any) -> None:
    """The newest sentence of the running step, and status columns that change without a change of phase."""
    with transaction.atomic():
        Fleet.objects.filter(pk=fleet.pk).update(message=brief(message, 500), observed_at=clock.now(), **columns)
        update: dict[str, Any] = {"message": brief(message, 500)}
        if checks is not None:
            update["checks"] = list(checks)
        FleetStep.objects.filter(fleet=fleet, state=StepState.RUNNING).update(**update)
    fleet.message = brief(message, 500)
    for name, value in columns.items():
        setattr(fleet, name, value)


# --- nodes -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeenInstance:
    """One machine as EC2 shows it; ``is_ending`` while it shuts down."""

    name: str
    provider_id: str
    private_ip: str
    zone_id: str
    is_running: bool
    is_ending: bool = False
    instance_type: str = ""
    reservation_id: str = ""
    group_name: str = ""


def fleet_nodes_observe(fleet: Fleet, instances: Iterable[SeenInstance], *, complete: bool = True) -> None:
    """Rows for the machines of a fleet; of a ``complete`` list, machines that are not in it are gone."""
    with transaction.atomic():
        known = {n.provider_id: n for n in Node.objects.filter(fleet=fleet).exclude(phase=NodePhase.GONE)}
        seen = {i.provider_id: i for i in instances}
        new = [i for i in seen.values() if i.provider_id not in known and not i.is_ending]
        # A name can come back with a new machine: the old row is history.
        names = [i.name for i in new]
        for start in range(0, len(names), 500):
            some = names[start : start + 500]
            for old in Node.objects.filter(cluster=fleet.cluster, name__in=some).exclude(phase=NodePhase.GONE):
                node_gone(old)
                known.pop(old.provider_id, None)
        for instance in new:
            row = Node(
                cluster=fleet.cluster,
                fleet=fleet,
                name=instance.name,
                provider_id=instance.provider_id,
                instance_type=instance.instance_type or fleet.instance_type,
                private_ip=instance.private_ip,
                zone_id=instance.zone_id,
                reservation_id=instance.reservation_id,
                group_name=instance.group_name,
                phase=NodePhase.PENDING,
            )
            row.save()
            known[instance.provider_id] = row
        for provider_id, row in known.items():
            found = seen.get(provider_id)
            if found is None:
                if complete:
                    node_gone(row)
                continue
            _node_seen(row, found)
        if complete:
            count = sum(1 for i in seen.values() if not i.is_ending)
        else:
            count = sum(1 for i, row in known.items() if row.phase != NodePhase.GONE and not _ends(seen.get(i)))
        Fleet.objects.filter(pk=fleet.pk).update(observed_nodes=count)
        fleet.observed_nodes = count


def _ends(instance: SeenInstance | None) -> bool:
    return instance is not None and instance.is_ending


def _node_seen(row: Node, instance: SeenInstance) -> None:
    """What changed of a machine that is there; one that shuts down is gone only once AWS says so."""
    if instance.is_ending:
        if row.phase not in (NodePhase.DOWN, NodePhase.GONE):
            reason = said(_("EC2 is shutting the machine down"))
            move(row, NODE_TRANSITIONS, NodePhase.DOWN, observed_reason=reason, gpus_used=0)
        return
    columns: dict[str, Any] = {
        name: value
        for name, value in (("reservation_id", instance.reservation_id), ("group_name", instance.group_name))
        if value != getattr(row, name)
    }
    if instance.is_running and row.phase == NodePhase.PENDING:
        move(row, NODE_TRANSITIONS, NodePhase.BOOTING, private_ip=instance.private_ip, **columns)
    elif columns:
        Node.objects.filter(pk=row.pk).update(**columns)


def node_gone(row: Node) -> None:
    """AWS no longer lists the machine, the scheduler no longer the node, or another machine bears its name."""
    move(row, NODE_TRANSITIONS, NodePhase.GONE, gpus_used=0)
    event("node", row.uid, "NodeGone", f"{row.name} is gone")


@dataclass(frozen=True)
class SeenNode:
    """One node as the scheduler shows it; address and instance id where it tells them."""

    name: str
    state: str
    flags: tuple[str, ...]
    gpu_type: str
    gpus: int
    gpus_used: int
    cpus: int
    memory_mib: int
    reason: str
    partitions: tuple[str, ...]
    address: str = ""
    provider_id: str = ""
    instance_type: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def phase_of(seen: SeenNode) -> str:
    """The phase that Slurm's words mean."""
    words = {seen.state.upper(), *(f.upper() for f in seen.flags)}
    if words & {"DOWN", "FAIL", "NOT_RESPONDING", "ERROR", "UNKNOWN", "POWERED_DOWN"}:
        return NodePhase.DOWN
    if words & {"DRAIN", "DRAINED", "DRAINING"}:
        return (
            NodePhase.DRAINING if seen.gpus_used or seen.state.upper() in ("ALLOCATED", "MIXED") else NodePhase.DRAINED
        )
    return NodePhase.READY


def cluster_nodes_observe(cluster: Cluster, nodes: Iterable[SeenNode]) -> int:
    """Write what changed of the nodes a scheduler lists; how many rows changed.

    A node the scheduler no longer lists is gone only if no fleet of ours claims it: a booting
    machine is not listed yet.
    """
    known = live_nodes(cluster)
    changed = 0
    seen_names: set[str] = set()
    now = clock.now()
    for seen in nodes:
        seen_names.add(seen.name)
        columns: dict[str, Any] = {
            "observed_state": " ".join([seen.state, *seen.flags])[:120],
            "observed_reason": seen.reason[:300],
            "gpu_type": seen.gpu_type,
            "gpus": seen.gpus,
            "gpus_used": seen.gpus_used,
            "cpus": seen.cpus,
            "memory_mib": seen.memory_mib,
            "partitions": list(seen.partitions),
        }
        if cluster.is_kubernetes:
            columns["labels"] = dict(seen.labels)
            # What AWS said of its machine stays where the node does not say it.
            columns |= {"instance_type": seen.instance_type[:40]} if seen.instance_type else {}
        phase = phase_of(seen)
        with transaction.atomic():
            row = _row_of(cluster, seen, known)
            if cluster.is_managed and _is_only_a_name(seen, row):
                seen_names.discard(seen.name)
                continue
            if row is not None and row.provider_state in _UNUSABLE:
                # What keeps the machine says that it is broken or busy; the scheduler may not know yet.
                phase = row.phase
                del columns["observed_reason"]
            if row is None and cluster.is_managed:
                columns["private_ip"] = seen.address[:45]
            if row is None and _was_a_machine_of_ours(cluster, seen.name):
                continue
            if row is None:
                row = Node(cluster=cluster, name=seen.name, phase=phase, observed_at=now, **columns)
                row.save()
                event("node", row.uid, "NodeJoined", f"{row.name} joined {cluster.name}")
                changed += 1
                continue
            if row.phase == phase and all(getattr(row, k) == v for k, v in columns.items()):
                continue
            changed += 1
            if row.phase == phase or not may_move(NODE_TRANSITIONS, row.phase, phase):
                Node.objects.filter(pk=row.pk).update(observed_at=now, **columns)
            else:
                old = row.phase
                move(row, NODE_TRANSITIONS, phase, observed_at=now, **columns)
                event(
                    "node",
                    row.uid,
                    "NodePhase",
                    f"{row.name}: {NodePhase(phase).label}" + (f" ({seen.reason})" if seen.reason else ""),
                    data={"phase": phase, "from": old, "reason": seen.reason},
                )
                if phase == NodePhase.READY and row.drain_requested_at is not None:
                    # The scheduler forgot the drain (a restart, a person): the wish still stands.
                    intent_ask("node.drain", row.uid)
                if row.fleet_id:
                    _ask_fleet(row.fleet_id)
    for name, row in known.items():
        if name not in seen_names:
            if row.group_id is not None and not row.observed_state:
                continue  # Never listed there: a controller, a login node, a machine that boots.
            if row.fleet_id is None and row.group_id is None:
                with transaction.atomic():
                    node_gone(row)
                changed += 1
            elif row.phase in (NodePhase.READY, NodePhase.DRAINED, NodePhase.DRAINING):
                with transaction.atomic():
                    move(
                        row,
                        NODE_TRANSITIONS,
                        NodePhase.DOWN,
                        observed_reason=said(_("the scheduler no longer lists it")),
                    )
                    if row.fleet_id is not None:
                        _ask_fleet(row.fleet_id)
                changed += 1
    return changed


def _was_a_machine_of_ours(cluster: Cluster, name: str) -> bool:
    """A dynamic node that Slurm still lists after its machine was terminated; a new machine gets its row from EC2."""
    kept = Q(fleet__isnull=False) | Q(group__isnull=False)
    return Node.objects.filter(kept, cluster=cluster, name=name, phase=NodePhase.GONE).exists()


#: Words of a node group's service under which the scheduler does not make a machine usable.
_UNUSABLE = frozenset({"failing", "updating", "ending"})


def _row_of(cluster: Cluster, seen: SeenNode, known: dict[str, Node]) -> Node | None:
    """The row that a scheduler's node stands for: by its machine where it tells which one that is, else by its name.

    PCS and ParallelCluster give a machine a name that AWS does not know, and the same name to its successor.
    """
    row = known.get(seen.name)
    if not cluster.is_managed or not (seen.provider_id or seen.address):
        return row
    machine = next((n for n in known.values() if n.provider_id and n.provider_id == seen.provider_id), None)
    machine = machine or next((n for n in known.values() if n.group_id and n.private_ip == seen.address), None)
    if machine is None or machine is row:
        return row
    if row is not None:
        node_gone(row)
    known.pop(machine.name, None)
    Node.objects.filter(pk=machine.pk).update(name=seen.name)
    machine.name = seen.name
    known[seen.name] = machine
    return machine


def _is_only_a_name(seen: SeenNode, row: Node | None) -> bool:
    """A node that may be started at need and has no machine now."""
    return "POWERED_DOWN" in {seen.state.upper(), *(f.upper() for f in seen.flags)} and (
        row is None or not row.provider_id
    )


def _ask_fleet(fleet_id: int) -> None:
    fleet = Fleet.objects.filter(pk=fleet_id).first()
    if fleet is not None:
        intent_ask("fleet.reconcile", fleet.uid)


def node_drain_sent(node: Node, *, is_drained: bool, note: str = "") -> None:
    """The scheduler was told; ``note`` says what could not be done."""
    with transaction.atomic():
        target = NodePhase.DRAINING if is_drained else NodePhase.READY
        if may_move(NODE_TRANSITIONS, node.phase, target):
            move(node, NODE_TRANSITIONS, target)
        if not is_drained:
            Node.objects.filter(pk=node.pk).update(resume_requested_at=None)
        event(
            "node",
            node.uid,
            "DrainSent" if is_drained else "ResumeSent",
            note or f"{node.name}: the scheduler was told",
        )


def node_evicted(node: Node) -> None:
    """Nothing that was to end runs on the node any more."""
    with transaction.atomic():
        now = clock.now()
        if Node.objects.filter(pk=node.pk, evicted_at__isnull=True, evict_requested_at__isnull=False).update(
            evicted_at=now
        ):
            event("node", node.uid, "Evicted", f"no pod is left on {node.name}")


def exporter_observed(node: Node, *, missing: Sequence[str] = (), error: str = "") -> None:
    """One exporter read of one node."""
    columns: dict[str, Any] = {"exporter_error": error[:300]}
    if not error:
        columns |= {"exporter_read_at": clock.now(), "exporter_missing": list(missing)}
    Node.objects.filter(pk=node.pk).update(**columns)


def drain_unsupported(node: Node, advice: str) -> None:
    """The scheduler cannot be told by this door; the timeline says what a person can do."""
    with transaction.atomic():
        Node.objects.filter(pk=node.pk).update(observed_reason=brief(advice, 300), resume_requested_at=None)
        event("node", node.uid, "DrainUnsupported", advice)
