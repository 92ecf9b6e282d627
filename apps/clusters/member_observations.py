"""Machines of node groups, as the service that keeps them lists them: rows by (cluster, provider id).

Two sources tell of one machine: this list, by the machine's id, and the scheduler's, by a name. A name can pass to
another machine (HyperPod's replacements keep it, PCS numbers its nodes anew), an id never does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.audit.services import event
from apps.catalog.selectors import type_by_name
from apps.clusters.group_models import NodeGroup
from apps.clusters.models import Cluster, Node
from apps.clusters.observations import node_gone
from apps.clusters.states import NODE_TRANSITIONS, NodePhase
from apps.core.said import brief, said
from apps.core.states import may_move, move

PENDING, RUNNING, FAILING, UPDATING, ENDING = "pending", "running", "failing", "updating", "ending"
#: What a machine's service says of it while no scheduler's word makes it usable.
UNUSABLE = frozenset({FAILING, UPDATING, ENDING})


@dataclass(frozen=True)
class SeenMachine:
    """One machine of a group as AWS lists it; ``state`` is pending, running, failing, updating or ending."""

    provider_id: str
    name: str
    group: NodeGroup | None
    state: str
    word: str
    instance_type: str
    message: str = ""
    private_ip: str = ""
    zone_id: str = ""


def members_observe(cluster: Cluster, machines: Iterable[SeenMachine]) -> int:
    """Rows for all machines of a cluster's groups; those that are no longer listed are gone. How many are there."""
    seen = {m.provider_id: m for m in machines}
    with transaction.atomic():
        rows = list(Node.objects.filter(cluster=cluster, fleet__isnull=True).exclude(phase=NodePhase.GONE))
        known = {n.provider_id: n for n in rows if n.provider_id}
        for provider_id, row in list(known.items()):
            if provider_id not in seen:
                node_gone(row)
                del known[provider_id]
        living = [n for n in rows if n.phase != NodePhase.GONE]
        by_name = {n.name: n for n in living}
        by_address = {n.private_ip: n for n in living if n.private_ip and not n.provider_id}
        for machine in seen.values():
            found = known.get(machine.provider_id)
            if found is None and machine.state != ENDING:
                found = _arrived(cluster, machine, by_name, by_address)
            if found is not None:
                _look(found, machine)
        living_machines = [m for m in seen.values() if m.state != ENDING]
        for group in NodeGroup.objects.filter(cluster=cluster):
            count = sum(1 for m in living_machines if m.group is not None and m.group.pk == group.pk)
            if count != group.observed_nodes:
                NodeGroup.objects.filter(pk=group.pk).update(observed_nodes=count)
    return len(living_machines)


def _arrived(
    cluster: Cluster, machine: SeenMachine, by_name: Mapping[str, Node], by_address: Mapping[str, Node]
) -> Node:
    """A row for a machine that is new here: the scheduler's where it told of it first, else its own.

    Another machine's row of the same name is history from now on: what was wished of it, a drain say, ends with it.
    """
    mine = by_address.get(machine.private_ip) if machine.private_ip else None
    same = by_name.get(machine.name)
    if mine is None and same is not None and not same.provider_id:
        mine = same
    if mine is not None:
        mine.provider_id, mine.group = machine.provider_id, machine.group
        mine.save(update_fields=["provider_id", "group"])
        return mine
    if same is not None:
        node_gone(same)
    row = Node(
        cluster=cluster,
        group=machine.group,
        name=machine.name,
        provider_id=machine.provider_id,
        phase=NodePhase.PENDING,
        **_facts(machine),
    )
    row.save()
    event("node", row.uid, "NodeJoined", f"{row.name} joined {cluster.name}")
    return row


def _facts(machine: SeenMachine) -> dict[str, Any]:
    kind = type_by_name(machine.instance_type)
    facts: dict[str, Any] = {
        "instance_type": machine.instance_type,
        "private_ip": machine.private_ip,
        "zone_id": machine.zone_id,
    }
    if kind is not None:
        facts |= {"gpu_type": kind.gpu_type, "gpus": kind.gpus, "cpus": kind.vcpus}
    return facts


def _look(row: Node, machine: SeenMachine) -> None:
    """What changed of a machine. Where a scheduler tells of it too, that one decides between running and draining."""
    columns: dict[str, Any] = {
        key: value
        for key, value in (
            ("private_ip", machine.private_ip),
            ("zone_id", machine.zone_id),
            ("instance_type", machine.instance_type),
        )
        if value and value != getattr(row, key)
    }
    if machine.group is not None and row.group_id != machine.group.pk:
        columns["group"] = machine.group
    if not row.gpus and (kind := type_by_name(machine.instance_type)) is not None:
        columns |= {"gpu_type": kind.gpu_type, "gpus": kind.gpus, "cpus": row.cpus or kind.vcpus}
    was = row.provider_state
    if machine.state != was:
        columns["provider_state"] = machine.state
    phase = _phase(row, machine, was)
    if phase is None or phase == row.phase or not may_move(NODE_TRANSITIONS, row.phase, phase):
        if columns:
            Node.objects.filter(pk=row.pk).update(**columns)
        return
    reason: str = ""
    if phase == NodePhase.DOWN:
        reason = machine.message or said(_("AWS says %(word)s"), word=machine.word)
        columns |= {"observed_reason": brief(reason, 300), "gpus_used": 0}
    elif was in UNUSABLE:
        columns["observed_reason"] = ""
    old = row.phase
    move(row, NODE_TRANSITIONS, phase, **columns)
    if phase != NodePhase.BOOTING:
        text = f"{row.name}: {NodePhase(phase).label}" + (f" ({reason})" if reason else "")
        event("node", row.uid, "NodePhase", text, data={"phase": phase, "from": old, "reason": "".join(reason)})


def _phase(row: Node, machine: SeenMachine, was: str) -> str | None:
    """The phase that the service's word means; None where it decides nothing."""
    match machine.state:
        case s if s in UNUSABLE:
            return NodePhase.DOWN
        case s if s == PENDING:
            return NodePhase.BOOTING
        case s if s == RUNNING:
            begins = row.phase in (NodePhase.PENDING, NodePhase.BOOTING)
            recovers = row.phase == NodePhase.DOWN and was in UNUSABLE
            return NodePhase.READY if begins or recovers else None
        case _:
            return None
