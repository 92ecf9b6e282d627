"""What the worker writes about clusters that AWS keeps: phases, steps, groups and events, each by compare-and-set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.audit.services import event
from apps.clusters.group_models import REMOVED, ClusterEvent, ClusterStep, NodeAction, NodeGroup
from apps.clusters.managed_selectors import group_price
from apps.clusters.models import Cluster
from apps.clusters.observations import cluster_removed
from apps.clusters.states import (
    CLUSTER_TRANSITIONS,
    GROUP_TRANSITIONS,
    NODE_ACTION_OPEN,
    ClusterPhase,
    GroupPhase,
    NodeActionPhase,
    StepState,
)
from apps.core import clock, ids
from apps.core.said import brief, said
from apps.core.states import move
from apps.intents.services import intent_ask

CONNECT = "cluster.connect"
#: A service that tries on tells of each failure: an older one says nothing about now.
_RECENT = timedelta(minutes=30)
#: The newest ids of events that tell what another told already.
_TWINS_KEPT = 200
_TWINS = "event_twins"


# --- clusters --------------------------------------------------------------------------------------


def cluster_attempt(cluster: Cluster, name: str) -> None:
    """Write the name and the token of the next attempt before AWS is asked; two workers agree on both."""
    number = cluster.create_attempt + 1
    token = ids.idempotency_token(cluster.uid, number, "create")
    columns = {"create_attempt": number, "client_token": token, "name_at_provider": name}
    changed = Cluster.objects.filter(pk=cluster.pk, create_attempt=cluster.create_attempt).update(**columns)
    if changed != 1:
        cluster.refresh_from_db()
        return
    for key, value in columns.items():
        setattr(cluster, key, value)


def cluster_move(cluster: Cluster, phase: str, message: str = "", **columns: Any) -> None:
    """Take a cluster to its next phase, its steps with it, in one commit."""
    now = clock.now()
    with transaction.atomic():
        old = cluster.phase
        move(cluster, CLUSTER_TRANSITIONS, phase, message=brief(message, 500), observed_at=now, **columns)
        steps = ClusterStep.objects.filter(cluster=cluster)
        if phase == ClusterPhase.FAILED:
            steps.filter(state=StepState.RUNNING).update(
                state=StepState.FAILED, ended_at=now, message=brief(message, 500)
            )
        elif phase == ClusterPhase.READY:
            steps.exclude(state=StepState.DONE).filter(started_at__isnull=True).update(started_at=now)
            steps.exclude(state=StepState.DONE).update(state=StepState.DONE, ended_at=now)
        text = message or str(ClusterPhase(phase).label)
        event("cluster", cluster.uid, "ClusterPhase", text, data={"phase": phase, "from": old})
        if phase == ClusterPhase.READY and cluster.takes_jobs:
            intent_ask(CONNECT, cluster.uid)


def cluster_seen(cluster: Cluster, message: str | None = None, **columns: Any) -> None:
    """Write what differs, and when it was looked at; a message also goes to the running step."""
    if message is not None:
        columns["message"] = brief(message, 500)
    changed = {k: v for k, v in columns.items() if getattr(cluster, k) != v}
    with transaction.atomic():
        Cluster.objects.filter(pk=cluster.pk).update(**changed, observed_at=clock.now())
        if "message" in changed:
            running = ClusterStep.objects.filter(cluster=cluster, state=StepState.RUNNING)
            running.update(message=changed["message"])
        # An address that became known, or another one, is asked as a scheduler at once.
        told = "observed_api_url" in changed and cluster.phase in (ClusterPhase.READY, ClusterPhase.UNREACHABLE)
        for name, value in changed.items():
            setattr(cluster, name, value)
        if told and cluster.takes_jobs:
            intent_ask(CONNECT, cluster.uid)


def cluster_step(cluster: Cluster) -> ClusterStep | None:
    """The step that is under way: the first that is not done, begun now where it had not been; None after the last."""
    step = ClusterStep.objects.filter(cluster=cluster).exclude(state=StepState.DONE).first()
    if step is not None and step.state != StepState.RUNNING:
        step.state, step.started_at, step.ended_at = StepState.RUNNING, clock.now(), None
        step.save(update_fields=["state", "started_at", "ended_at"])
    return step


def cluster_step_done(step: ClusterStep) -> None:
    """A step is over, and what it waited for with it."""
    ClusterStep.objects.filter(pk=step.pk, state=StepState.RUNNING).update(
        state=StepState.DONE, ended_at=clock.now(), message=""
    )


def cluster_forgotten(cluster: Cluster, message: str) -> None:
    """Nothing of it is left, or nothing of it is ours any more: groups, requests and nodes end with it."""
    with transaction.atomic():
        if cluster.phase != ClusterPhase.DELETING:
            cluster_move(cluster, ClusterPhase.DELETING, message)
        for group in NodeGroup.objects.filter(cluster=cluster).exclude(phase=GroupPhase.DELETED):
            if group.phase != GroupPhase.DELETING:
                move(group, GROUP_TRANSITIONS, GroupPhase.DELETING)
            group_move(group, GroupPhase.DELETED, message, observed_nodes=0, ended_at=clock.now())
        actions_end(cluster, said(_("the cluster was removed")))
        cluster_seen(cluster, message)
        cluster_removed(cluster)
        event("cluster", cluster.uid, "ClusterPhase", message, data={"phase": ClusterPhase.DELETED})


# --- groups ----------------------------------------------------------------------------------------


def group_attempt(group: NodeGroup) -> None:
    """Write the token of the next attempt before AWS is asked; one UPDATE, so that two workers agree on it."""
    number = group.create_attempt + 1
    token = ids.idempotency_token(group.uid, number, "create")
    columns = {"create_attempt": number, "client_token": token}
    changed = NodeGroup.objects.filter(pk=group.pk, create_attempt=group.create_attempt).update(**columns)
    if changed != 1:
        group.refresh_from_db(fields=list(columns))
        return
    group.create_attempt, group.client_token = number, token


def group_again(group: NodeGroup, message: str) -> None:
    """Make a group once more that AWS had no machines for: a new attempt and the way from the start, in one commit."""
    with transaction.atomic():
        group_attempt(group)
        health = [{k: v for k, v in issue.items() if k != REMOVED} for issue in group.health or ()]
        group_move(group, GroupPhase.PENDING, message, provider_id="", observed_nodes=0, health=health)


def group_move(group: NodeGroup, phase: str, message: str = "", **columns: Any) -> None:
    """Take a group to another phase with what was seen; told on its timeline."""
    columns |= {"message": brief(message, 500), "observed_at": clock.now()}
    with transaction.atomic():
        old = group.phase
        move(group, GROUP_TRANSITIONS, phase, **columns)
        text = message or str(GroupPhase(phase).label)
        data = {"phase": phase, "from": old}
        event("group", group.uid, "GroupPhase", text, team_id=group.team_id, data=data)


def group_seen(group: NodeGroup, message: str | None = None, **columns: Any) -> None:
    """Write what differs, and when it was looked at."""
    if message is not None:
        columns["message"] = brief(message, 500)
    changed = {k: v for k, v in columns.items() if getattr(group, k) != v}
    NodeGroup.objects.filter(pk=group.pk).update(**changed, observed_at=clock.now())
    for name, value in changed.items():
        setattr(group, name, value)


def group_wish_met(group: NodeGroup, generation: int) -> None:
    """AWS took what this generation of the spec asks for; a newer one stays to be asked."""
    NodeGroup.objects.filter(pk=group.pk, observed_generation__lt=generation).update(observed_generation=generation)
    group.observed_generation = max(group.observed_generation, generation)


def group_found(cluster: Cluster, name: str, **columns: Any) -> NodeGroup:
    """A group in AWS that no row here stands for: a row of it, with today's price."""
    group = NodeGroup(
        cluster=cluster,
        name=name[:63],
        is_adopted=True,
        phase=GroupPhase.ACTIVE,
        observed_generation=1,
        observed_at=clock.now(),
        **columns,
    )
    group.usd_per_hour = group_price(group)[0]
    with transaction.atomic():
        group.save()
        event("group", group.uid, "GroupPhase", f"found in {cluster.name}", data={"phase": group.phase, "from": ""})
    return group


# --- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeenEvent:
    """One event of the service's own; ``twins`` are ids under which it was told again."""

    provider_id: str
    at: datetime | None
    level: str
    resource: str
    text: str
    reason: str
    group: str
    node: str
    twins: tuple[str, ...] = ()


def events_known(cluster: Cluster) -> set[str]:
    """Ids of events that were read before, twins included."""
    known = set(ClusterEvent.objects.filter(cluster=cluster).values_list("provider_id", flat=True))
    return known | set(cluster.provider_facts.get(_TWINS) or ())


def events_observe(cluster: Cluster, seen: Iterable[SeenEvent]) -> int:
    """Rows for new events, one for a pair; a reason that comes with the second goes to the first. How many are new."""
    twins: list[str] = list(cluster.provider_facts.get(_TWINS) or ())
    made = 0
    with transaction.atomic():
        for found in seen:
            row, is_new = ClusterEvent.objects.get_or_create(
                cluster=cluster,
                provider_id=found.provider_id[:64],
                defaults={
                    "at": found.at or clock.now(),
                    "level": found.level[:10],
                    "resource": found.resource[:40],
                    "text": found.text[:600],
                    "reason": found.reason[:600],
                    "group_name": found.group[:63],
                    "node_id": found.node[:40],
                },
            )
            made += is_new
            if found.reason and not row.reason:
                ClusterEvent.objects.filter(pk=row.pk).update(reason=found.reason[:600])
            twins += [twin for twin in found.twins if twin not in twins]
        facts = {**cluster.provider_facts, _TWINS: twins[-_TWINS_KEPT:]}
        if facts != cluster.provider_facts and twins:
            cluster_seen(cluster, provider_facts=facts)
    return made


def kept_facts(cluster: Cluster, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What AWS says about a cluster, with what this module keeps beside it."""
    twins = cluster.provider_facts.get(_TWINS)
    return {**facts, **({_TWINS: twins} if twins else {})}


def event_against(group: NodeGroup) -> ClusterEvent | None:
    """The newest error about a group as a whole, where it is recent and nothing better came after it."""
    rows = ClusterEvent.objects.filter(
        cluster_id=group.cluster_id, group_name=group.name, resource="InstanceGroup", at__gte=clock.now() - _RECENT
    )
    newest = rows.first()
    return newest if newest is not None and newest.level == "Error" else None


# --- requests about nodes --------------------------------------------------------------------------


def actions_in(cluster: Cluster, phase: str) -> list[NodeAction]:
    """Requests of a cluster's nodes in a phase, the oldest first."""
    rows = NodeAction.objects.filter(node__cluster=cluster, phase=phase).select_related("node")
    return list(rows.order_by("id"))


def actions_send(actions: Sequence[NodeAction]) -> list[NodeAction]:
    """Write that these are being sent, before they are; those that another worker has not taken."""
    now, taken = clock.now(), []
    with transaction.atomic():
        for action in actions:
            changed = NodeAction.objects.filter(pk=action.pk, phase=NodeActionPhase.ASKED).update(
                phase=NodeActionPhase.SENDING, attempted_at=now
            )
            if changed == 1:
                action.phase, action.attempted_at = NodeActionPhase.SENDING, now
                taken.append(action)
    return taken


def action_unsent(action: NodeAction, message: str) -> None:
    """AWS did not take it this time; it is sent again."""
    NodeAction.objects.filter(pk=action.pk, phase=NodeActionPhase.SENDING).update(
        phase=NodeActionPhase.ASKED, message=brief(message, 500)
    )


def action_settled(action: NodeAction, phase: str, message: str) -> None:
    """What became of it, told on the node's timeline and on its cluster's."""
    with transaction.atomic():
        changed = NodeAction.objects.filter(pk=action.pk, phase__in=NODE_ACTION_OPEN).update(
            phase=phase, message=brief(message, 500), ended_at=clock.now()
        )
        if changed != 1:
            return
        kind = "NodeActionTaken" if phase == NodeActionPhase.TAKEN else "NodeActionRefused"
        data = {"verb": action.verb, "node": action.node.name, "by": action.asked_by}
        event("node", action.node.uid, kind, message, data=data)


def actions_end(cluster: Cluster, why: str) -> None:
    """Open requests of a cluster that can no longer be sent."""
    for action in NodeAction.objects.filter(node__cluster=cluster, phase__in=NODE_ACTION_OPEN).select_related("node"):
        action_settled(action, NodeActionPhase.REFUSED, why)
