"""What people do with node groups of clusters that AWS keeps, and with HyperPod's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from apps.audit.services import event, record
from apps.clusters import group_rules, managed_rules
from apps.clusters.group_models import NodeAction, NodeGroup
from apps.clusters.managed_selectors import (
    group_price,
    groups_live,
    kept_of,
    machine_of,
    place_of,
    slurm_of,
    wish_of,
)
from apps.clusters.managed_services import (
    GROUP_INTENT,
    busy_names,
    group_row,
    group_told,
    operate,
    refuse,
    usable,
)
from apps.clusters.models import Cluster, Node
from apps.clusters.states import (
    KINDS_GROUPED,
    KINDS_HYPERPOD,
    NODE_ACTION_OPEN,
    ClusterKind,
    ClusterPhase,
    GroupPhase,
    NodePhase,
    NodeVerb,
)
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.core.errors import FieldProblem, InvalidInput, Refusal, TransitionConflict
from apps.intents.services import intent_ask
from apps.teams.permissions import Actor, system_actor

ACT_INTENT = "node.act"
#: Phases in which groups may be added to a cluster.
_TAKES_GROUPS = frozenset({ClusterPhase.PENDING, ClusterPhase.CREATING, ClusterPhase.READY, ClusterPhase.UNREACHABLE})


class GroupInUse(Refusal):
    """Jobs still run on the group's nodes."""


def _takes_groups(cluster: Cluster) -> None:
    if cluster.kind not in KINDS_GROUPED:
        text = _("groups of %(kind)s are changed where the cluster is defined, in its configuration")
        raise TransitionConflict(text % {"kind": cluster.get_kind_display()})
    if cluster.delete_requested_at is not None:
        raise TransitionConflict(_("cluster %(name)s is being removed") % {"name": cluster.name})
    if cluster.phase not in _TAKES_GROUPS:
        raise TransitionConflict(
            _("cluster %(name)s is %(phase)s; it takes no groups now")
            % {"name": cluster.name, "phase": cluster.get_phase_display()}
        )


def group_add(*, actor: Actor, cluster: Cluster, **asked: Any) -> NodeGroup:
    """Record a node group and ask the worker to make it; ``asked`` as in ``cluster_create``.

    Raises Forbidden, InvalidInput, TransitionConflict.
    """
    operate(actor)
    _takes_groups(cluster)
    account = usable(cluster.account)
    group = group_row(cluster.kind, asked)
    group.cluster = cluster
    try:
        with transaction.atomic():
            # Under the cluster's lock, so that two groups do not both take the last places of its size.
            locked = Cluster.objects.select_for_update().get(pk=cluster.pk)
            _takes_groups(locked)
            refuse(_addition_problems(locked, account, group))
            group.usd_per_hour = group_price(group)[0]
            group.save()
            group_told(actor, group)
    except IntegrityError:
        raise InvalidInput(
            _("cluster %(cluster)s already has a group named %(name)s") % {"cluster": cluster.name, "name": group.name},
            problems=[FieldProblem("/name", "taken", _("already used"))],
        ) from None
    return group


def _addition_problems(cluster: Cluster, account: CloudAccount, group: NodeGroup) -> list[FieldProblem]:
    others = groups_live(cluster)
    wish = wish_of(group)
    problems = group_rules.wish_problems(
        cluster.kind,
        wish,
        place=place_of(account),
        machine=machine_of(group.instance_type),
        kept=kept_of(group.reservation),
        version=slurm_of(cluster),
    )
    if any(o.name == group.name for o in others):
        problems.append(FieldProblem("/name", "taken", _("already used")))
    if cluster.kind == ClusterKind.PCS and group.queue and any(o.queue == group.queue for o in others):
        text = _("the queue %(queue)s serves another group; each group has its own") % {"queue": group.queue}
        problems.append(FieldProblem("/queue", "taken", text))
    if wish.node_type == group_rules.CONTROLLER:
        text = _("a cluster has exactly one controller, and it has one")
        problems.append(FieldProblem("/node_type", "controllers", text))
    return problems + _size_problems(cluster, sum(o.nodes for o in others) + group.nodes)


def _size_problems(cluster: Cluster, nodes: int) -> list[FieldProblem]:
    size = str(cluster.settings.get("size") or cluster.provider_facts.get("size") or "")
    if cluster.kind != ClusterKind.PCS or size not in managed_rules.PCS_SIZES:
        return []
    found = managed_rules.size_problem(size, nodes, is_made=True, pointer="/nodes")
    return [found] if found else []


def group_resize(
    *, actor: Actor, group: NodeGroup, nodes: int, expected_version: int, min_nodes: int | None = None
) -> None:
    """Ask for another number of nodes; of PCS, ``nodes`` is the most and ``min_nodes`` the least (None: as it is).

    Raises Forbidden, InvalidInput, TransitionConflict, StaleVersion.
    """
    operate(actor)
    cluster = group.cluster
    _takes_groups(cluster)
    if group.delete_requested_at is not None or group.phase in (GroupPhase.DELETING, GroupPhase.DELETED):
        raise TransitionConflict(_("the group is being deleted"))
    if group.phase == GroupPhase.FAILED:
        raise TransitionConflict(_("AWS could not make this group; delete it and add it again"))
    least = group.min_nodes if min_nodes is None else min_nodes
    if min_nodes is None and least > nodes:
        least = nodes
    account = usable(cluster.account)
    with transaction.atomic():
        locked = Cluster.objects.select_for_update().get(pk=cluster.pk)
        _takes_groups(locked)
        problems = group_rules.count_problems(cluster.kind, wish_of(group, nodes=nodes, min_nodes=least))
        kept = kept_of(group.reservation, but=group)
        if kept is not None:
            wish = wish_of(group, nodes=nodes, min_nodes=least)
            # What the group was made with stands; only the new count is in question.
            found = group_rules.misfits(wish, kept, place_of(account))
            problems += [p for p in found if p.pointer == "/nodes" or p.code == "over"]
        others = sum(o.nodes for o in groups_live(cluster) if o.pk != group.pk)
        problems += _size_problems(locked, others + nodes)
        # A reservation that is over has no field in this form.
        refuse([FieldProblem("/nodes", p.code, p.detail) if p.code == "over" else p for p in problems])
        if (nodes, least) != (group.nodes, group.min_nodes):
            before = {"nodes": group.nodes, "min_nodes": group.min_nodes}
            group.spec_update(expected_version, nodes=nodes, min_nodes=least, generation=group.generation + 1)
            after = {"nodes": nodes, "min_nodes": least}
            record(actor, "group.resize", "group", group.uid, team_id=group.team_id, before=before, after=after)
            what = f"from {before['nodes']} to {nodes} nodes, asked for by {actor.name}"
            data = {"from": before["nodes"], "to": nodes}
            event("group", group.uid, "GroupResized", what, team_id=group.team_id, data=data)
        intent_ask(GROUP_INTENT, group.uid)


def group_delete(*, actor: Actor, group: NodeGroup, expected_version: int) -> None:
    """Delete a group with its machines and queue.

    Raises Forbidden, TransitionConflict, StaleVersion, GroupInUse while jobs run on its GPUs.
    """
    operate(actor)
    if group.phase == GroupPhase.DELETED:
        raise TransitionConflict(_("the group is already deleted"))
    cluster = group.cluster
    if cluster.kind not in KINDS_GROUPED:
        _takes_groups(cluster)
    if group.settings.get("node_type") == group_rules.CONTROLLER:
        raise TransitionConflict(_("the controller goes only with its cluster"))
    if group.is_adopted:
        text = _("it was not made from here and is never deleted from here: delete it in AWS, or resize it")
        raise TransitionConflict(text)
    with transaction.atomic():
        locked = Cluster.objects.select_for_update().get(pk=cluster.pk)
        if cluster.kind in KINDS_HYPERPOD and locked.delete_requested_at is None:
            others = [o for o in groups_live(cluster) if o.pk != group.pk and o.delete_requested_at is None]
            if not others:
                raise TransitionConflict(_("HyperPod keeps at least one group; delete the cluster instead"))
        if busy := busy_names(Node.objects.filter(group=group)):
            raise GroupInUse(_("jobs run on %(names)s; cancel them or wait for their end") % {"names": busy})
        if group.delete_requested_at is None:
            now = clock.now()
            group.spec_update(expected_version, delete_requested_at=now, generation=group.generation + 1)
            before = {"name": group.name, "nodes": group.nodes}
            record(actor, "group.delete", "group", group.uid, team_id=group.team_id, before=before)
            what = f"deletion asked for by {actor.name}"
            event("group", group.uid, "GroupDeleteRequested", what, team_id=group.team_id)
        intent_ask(GROUP_INTENT, group.uid)


def group_end(group: NodeGroup, reason: str) -> None:
    """The portal's own decision to give the machines of a group back whose capacity ends; jobs do not keep them."""
    with transaction.atomic():
        changed = (
            NodeGroup.objects.filter(pk=group.pk, version=group.version)
            .exclude(nodes=0)
            .update(nodes=0, min_nodes=0, generation=group.generation + 1, version=group.version + 1)
        )
        if changed:
            before, after = {"nodes": group.nodes, "min_nodes": group.min_nodes}, {"nodes": 0, "reason": reason}
            record(system_actor("block clock"), "group.resize", "group", group.uid, before=before, after=after)
            what = f"from {group.nodes} to 0 nodes, asked for by {reason}"
            event("group", group.uid, "GroupResized", what, team_id=group.team_id, data={"from": group.nodes, "to": 0})
        intent_ask(GROUP_INTENT, group.uid)


# --- nodes -----------------------------------------------------------------------------------------


def nodes_ask(*, actor: Actor, cluster: Cluster, nodes: Sequence[Node], verb: str, reason: str) -> list[NodeAction]:
    """Ask HyperPod to replace or reboot nodes, any number of them; the worker sends them 25 at a time.

    A node with an open request is refused by name. Raises Forbidden, InvalidInput, TransitionConflict.
    """
    operate(actor)
    if cluster.kind not in KINDS_HYPERPOD:
        raise TransitionConflict(
            _("only HyperPod replaces and reboots nodes on request; %(kind)s repairs them itself")
            % {"kind": cluster.get_kind_display()}
        )
    if cluster.delete_requested_at is not None or cluster.phase not in (ClusterPhase.READY, ClusterPhase.UNREACHABLE):
        raise TransitionConflict(_("cluster %(name)s is not ready") % {"name": cluster.name})
    problems = []
    if verb not in NodeVerb.values:
        known = ", ".join(NodeVerb.values)
        problems.append(FieldProblem("/verb", "unknown", _("one of %(known)s") % {"known": known}))
    if not reason.strip():
        problems.append(FieldProblem("/reason", "required", _("say why")))
    if not nodes:
        problems.append(FieldProblem("/nodes", "required", _("choose at least one node")))
    if strangers := [n.name for n in nodes if n.cluster_id != cluster.pk or not n.provider_id]:
        text = _("%(names)s: not a machine that HyperPod lists in this cluster")
        problems.append(FieldProblem("/nodes", "unknown", text % {"names": ", ".join(strangers[:5])}))
    if gone := [n.name for n in nodes if n.phase == NodePhase.GONE]:
        text = _("%(names)s: gone") % {"names": ", ".join(gone[:5])}
        problems.append(FieldProblem("/nodes", "gone", text))
    refuse(problems)
    usable(cluster.account)
    chosen = {n.pk: n for n in nodes}
    try:
        with transaction.atomic():
            Cluster.objects.select_for_update().get(pk=cluster.pk)
            still_open = NodeAction.objects.filter(node__in=list(chosen), phase__in=NODE_ACTION_OPEN)
            if names := list(still_open.order_by("node__name").values_list("node__name", flat=True)[:5]):
                raise _open_problem(names)
            actions = []
            for node in chosen.values():
                action = NodeAction(
                    node=node,
                    provider_id=node.provider_id,
                    verb=verb,
                    reason=reason.strip()[:300],
                    asked_by=actor.name[:150],
                )
                action.save()
                actions.append(action)
            names = [n.name for n in chosen.values()]
            after = {"verb": verb, "nodes": names, "reason": reason.strip()}
            record(actor, f"nodes.{verb}", "cluster", cluster.uid, after=after)
            data = {"verb": verb, "nodes": len(names), "reason": reason.strip(), "by": actor.name}
            event("cluster", cluster.uid, "NodesAsked", f"{verb} of {', '.join(names)[:400]}", data=data)
            intent_ask(ACT_INTENT, cluster.uid)
    except IntegrityError:
        raise _open_problem([n.name for n in chosen.values()][:5]) from None
    return actions


def _open_problem(names: Sequence[str]) -> InvalidInput:
    text = _("%(names)s: an earlier request is not settled yet; leave them out") % {"names": ", ".join(names)}
    return InvalidInput(text, problems=[FieldProblem("/nodes", "open", text)])
