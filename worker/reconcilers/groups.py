"""Node groups of clusters that AWS keeps: made, queued for, resized, healed and taken away, one step a visit.

A group's token is committed before it is asked for. Other counts are asked for once a wish (``generation``), never
because AWS shows others: EKS scales a block's group in by itself before the block ends, and an autoscaler may have
its reasons. Watching is the cluster's visit; a group is visited while something about it moves.
"""

from __future__ import annotations

import contextlib
from typing import Any

from django.utils.translation import gettext_noop as _

from apps.clusters import managed_observations as observations
from apps.clusters.group_models import REMOVED, NodeGroup
from apps.clusters.states import KINDS_HYPERPOD, ClusterKind, ClusterPhase, GroupPhase, GroupSource
from apps.core import clock, ids
from apps.core.said import said
from apps.intents.services import intent_ask
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.providers import cluster_values as kv
from worker.providers.errors import Conflict, InsufficientCapacity, InvalidRequest, NotFound, Unavailable
from worker.providers.ports import ClusterService
from worker.reconcilers.managed import KIND as CLUSTER
from worker.reconcilers.managed_parts import (
    CAPACITY_CODES,
    CAPACITY_WAIT,
    FINAL,
    LISTED_WITHIN,
    NEXT_S,
    POLL_S,
    WATCH_S,
    ends_soon,
    group_spec,
    health_of,
    hindrance,
    is_controlled,
    is_made,
    is_ours,
    observe_members,
    refusal,
    reservation_over,
    reservation_waits,
    seen_of,
    takes_it_before_its_start,
    was_asked,
)

SETTLE_S = 3.0


def reconcile(uid: str) -> Outcome:
    """One step towards what the group's spec wants."""
    rows = NodeGroup.objects.select_related("cluster", "cluster__account", "team", "reservation")
    group = rows.filter(uid=uid).first()
    if group is None or group.phase == GroupPhase.DELETED:
        return DONE
    cluster = group.cluster
    if cluster.account is None:
        return DONE
    if cluster.delete_requested_at is not None or cluster.phase == ClusterPhase.DELETED:
        # It goes with its cluster, whose visits see to it.
        return DONE
    why, wait_s = hindrance(cluster.account)
    if why:
        return _say(group, why, wait_s)
    if group.delete_requested_at is not None and not was_asked(group):
        return _deleted(group, said(_("AWS was never asked for it")))
    failed = cluster.phase == ClusterPhase.FAILED
    is_to_make = group.phase == GroupPhase.PENDING and group.delete_requested_at is None
    if failed and (is_to_make or not is_controlled(cluster)):
        # Where the control plane is there, groups are followed and deleted all the same: their machines cost money.
        return _idle(group)
    if not failed and not is_made(cluster):
        return _say(group, said(_("waiting until the cluster is made")), 10)
    service = doors.cluster_service_for(cluster)
    try:
        seen = service.cluster(cluster.name_at_provider)
    except NotFound:
        if failed:
            return _idle(group)
        intent_ask(CLUSTER, cluster.uid)
        return _say(group, said(_("the cluster is no longer in the account")), WATCH_S)
    except FINAL as error:
        return _say(group, refusal(error), WATCH_S)
    if failed and not is_ours(cluster, seen):
        return _idle(group)
    if group.delete_requested_at is not None:
        return _delete(group, service, seen)
    if group.phase == GroupPhase.PENDING:
        return _make(group, service, seen)
    return _follow(group, service, seen)


def _idle(group: NodeGroup) -> Outcome:
    observations.group_seen(group, said(_("the cluster failed; nothing is done about its groups")))
    return DONE


def _say(group: NodeGroup, text: str, seconds: float) -> Outcome:
    observations.group_seen(group, text)
    return again(seconds)


def _fail(group: NodeGroup, text: str, **columns: Any) -> Outcome:
    observations.group_move(group, GroupPhase.FAILED, text, observed_generation=group.generation, **columns)
    intent_ask(CLUSTER, group.cluster.uid)
    return DONE


def _token(group: NodeGroup, purpose: str, number: int = 1) -> str:
    """A token that the same wish always has."""
    return ids.idempotency_token(group.uid, number, purpose)


# --- making


def _make(group: NodeGroup, service: ClusterService, seen: kv.SeenCluster) -> Outcome:
    if over := reservation_over(group):
        return _fail(group, over)
    waits, wait_s = reservation_waits(group)
    if waits and not takes_it_before_its_start(group):
        return _say(group, waits, wait_s)
    if seen.state in (kv.CREATING, kv.UPDATING, kv.DELETING):
        return _say(group, said(_("AWS says %(word)s of the cluster; waiting for it"), word=seen.word), POLL_S)
    if not group.client_token:
        is_named_by_others = group.cluster.is_adopted and group.cluster.kind in KINDS_HYPERPOD
        if is_named_by_others and any(g.name == group.name for g in service.groups(seen)):
            # HyperPod's groups have no tags: after the first attempt one of this name is what the attempt made.
            return _not_ours(group)
        observations.group_attempt(group)
    desired = 0 if waits and group.cluster.kind == ClusterKind.EKS else None
    generation = group.generation
    try:
        if not group.launch_template_id and (
            template := service.template_ensure(seen, group_spec(group), _token(group, "template"))
        ):
            observations.group_seen(group, said(_("the launch template is there")), launch_template_id=template)
            # EC2 may be a moment behind itself: whoever asks for the template at once may be told there is none.
            return again(SETTLE_S)
        made = service.group_ensure(seen, group_spec(group, desired_nodes=desired), group.client_token)
    except FINAL as error:
        if isinstance(error, InvalidRequest) and "was deleted" in error.message:
            # EKS's word for a token whose group is gone.
            return _other_token(group, service, seen, str(error))
        return _fail(group, refusal(error))
    except InsufficientCapacity as error:
        return _short(group, str(error))
    except Conflict as error:
        return _other_token(group, service, seen, str(error))
    except Unavailable as error:
        text = said(_("no clear answer (%(error)s); asking again with the same token"), error=str(error))
        return _say(group, text, POLL_S)
    columns: dict[str, Any] = {
        "provider_id": made.provider_id,
        "observed_state": made.word,
        "target_nodes": made.target_nodes,
        "health": [],
    }
    if desired is None and made.target_nodes in (None, group.nodes):
        columns["observed_generation"] = generation
    observations.group_move(group, GroupPhase.CREATING, waits or said(_("AWS is making it")), **columns)
    return again(POLL_S)


def _short(group: NodeGroup, error: str) -> Outcome:
    text = said(_("AWS has no capacity for it now (%(error)s); asking again"), error=error)
    return _say(group, text, CAPACITY_WAIT.total_seconds())


def _other_token(group: NodeGroup, service: ClusterService, seen: kv.SeenCluster, error: str) -> Outcome:
    """The name is taken, the cluster busy, or the token's group gone: only a look tells which."""
    found = service.groups(seen)
    mine = seen_of(group, found)
    if mine is not None:
        # Made by a call whose answer was lost, before the wish changed: the newer wish is a resize.
        columns = {"provider_id": mine.provider_id, "observed_state": mine.word, "target_nodes": mine.target_nodes}
        observations.group_move(group, GroupPhase.CREATING, said(_("AWS is making it")), **columns)
        return again(POLL_S)
    if seen.state == kv.UPDATING:
        return _say(group, error, POLL_S)
    if any(g.name == group.name for g in found):
        return _not_ours(group)
    observations.group_attempt(group)
    return _say(group, said(_("%(error)s; trying with a new token"), error=error), POLL_S)


def _not_ours(group: NodeGroup) -> Outcome:
    text = _("the cluster has a group named %(name)s that is not ours: delete this one and choose another name")
    return _fail(group, said(text, name=group.name))


# --- following


def _follow(group: NodeGroup, service: ClusterService, seen: kv.SeenCluster) -> Outcome:
    found = seen_of(group, service.groups(seen))
    if found is None:
        return _missing(group)
    columns: dict[str, Any] = {
        "provider_id": found.provider_id,
        "observed_state": found.word,
        "target_nodes": found.target_nodes,
    }
    if found.state == kv.FAILED and found.word == "CREATE_FAILED":
        return _not_made(group, service, seen, found, columns)
    if found.state in (kv.CREATING, kv.UPDATING, kv.DELETING):
        if found.state == kv.UPDATING and group.phase in (GroupPhase.ACTIVE, GroupPhase.DEGRADED, GroupPhase.FAILED):
            observations.group_move(group, GroupPhase.UPDATING, "", **columns)
        else:
            observations.group_seen(group, said(_("AWS says %(word)s"), word=found.word), **columns)
        return again(POLL_S)
    if (waits := _queue(group, service, seen, found)) is not None:
        observations.group_seen(group, **columns)
        return waits
    if (asked := _resize(group, service, seen, found)) is not None:
        return asked
    observe_members(group.cluster, service, seen)
    group.refresh_from_db(fields=["observed_nodes"])
    return _settle(group, found, columns)


def _missing(group: NodeGroup) -> Outcome:
    if group.is_adopted:
        return _deleted(group, said(_("it is no longer in the cluster: somebody deleted it there")))
    if group.phase == GroupPhase.DEGRADED and any(issue.get(REMOVED) for issue in group.health or ()):
        # What had no machines was taken away from here and is made anew once some time has passed.
        if clock.now() - group.phase_since < CAPACITY_WAIT:
            return again(max(1.0, (CAPACITY_WAIT - (clock.now() - group.phase_since)).total_seconds()))
        observations.group_again(group, said(_("trying again to get machines")))
        return again(0)
    if group.phase == GroupPhase.CREATING and clock.now() - group.phase_since < LISTED_WITHIN:
        return again(POLL_S)
    if group.phase == GroupPhase.FAILED:
        return DONE
    text = _("it is no longer in the cluster: somebody deleted it there. Delete it here, and add another if need be")
    return _fail(group, said(text), observed_nodes=0)


def _is_capacity(health: Any) -> bool:
    return any(issue.get("code") in CAPACITY_CODES for issue in health or ())


def _not_made(
    group: NodeGroup, service: ClusterService, seen: kv.SeenCluster, found: kv.SeenGroup, columns: dict[str, Any]
) -> Outcome:
    """AWS could not make it. With no machines at all it is taken away and made anew; else a person has to look."""
    health = health_of(found.issues)
    why = "; ".join(text for _code, text in found.issues) or said(_("AWS gave no reason"))
    if not _is_capacity(health) or group.is_adopted:
        if group.phase != GroupPhase.FAILED:
            return _fail(group, why, health=health, **columns)
        return DONE
    observe_members(group.cluster, service, seen)
    group.refresh_from_db(fields=["observed_nodes"])
    some = group.observed_nodes
    if some:
        # What runs may be at work: it is left, and a person decides.
        text = said(_("only %(n)s of %(all)s machines could be had: %(why)s"), n=some, all=group.nodes, why=why)
    else:
        text = said(_("no machines now (%(why)s); tried again"), why=why)
        # Written before it is taken away: what its owner deletes in AWS has no such mark and is not made again.
        health = [{**issue, REMOVED: True} for issue in health]
    if group.phase != GroupPhase.DEGRADED:
        observations.group_move(group, GroupPhase.DEGRADED, text, health=health, **columns)
    else:
        observations.group_seen(group, text, health=health, **columns)
    if some:
        return DONE
    with contextlib.suppress(NotFound, Conflict):
        service.group_delete(seen, found.provider_id)
    return again(POLL_S)


def _queue(group: NodeGroup, service: ClusterService, seen: kv.SeenCluster, found: kv.SeenGroup) -> Outcome | None:
    """The queue in front of a group that is there; None when nothing is to be done."""
    wanted = group.cluster.kind == ClusterKind.PCS and group.queue and not group.is_adopted
    if not wanted or group.queue_provider_id:
        return None
    try:
        made = service.queue_ensure(
            seen, group_spec(group), found.provider_id, _token(group, "queue", max(1, group.create_attempt))
        )
    except FINAL as error:
        text = said(_("its queue was not made: %(error)s"), error=refusal(error))
        if group.phase != GroupPhase.FAILED:
            return _fail(group, text)
        return DONE
    except (Conflict, Unavailable) as error:
        return _say(group, said(_("its queue is not there yet: %(error)s"), error=str(error)), POLL_S)
    if not made:
        return _say(group, said(_("waiting for its queue %(name)s"), name=group.queue), POLL_S)
    observations.group_seen(group, said(_("its queue %(name)s is there"), name=group.queue), queue_provider_id=made)
    return again(0)


def _resize(group: NodeGroup, service: ClusterService, seen: kv.SeenCluster, found: kv.SeenGroup) -> Outcome | None:
    """Ask once for the counts of a newer wish; None when there is none, or it must wait."""
    generation = group.generation
    if generation <= group.observed_generation:
        return None
    if group.reservation is not None and group.nodes > (found.target_nodes or 0):
        if over := reservation_over(group):
            observations.group_wish_met(group, generation)
            return _say(group, over, NEXT_S)
        is_eks_block = group.cluster.kind == ClusterKind.EKS and group.source == GroupSource.CAPACITY_BLOCK
        if is_eks_block and ends_soon(group.reservation):
            observations.group_wish_met(group, generation)
            text = _("nothing is started any more: the block ends at %(at)s UTC")
            return _say(group, said(text, at=f"{group.reservation.end_at:%Y-%m-%d %H:%M}"), NEXT_S)
        waits, wait_s = reservation_waits(group)
        if waits and group.cluster.kind != ClusterKind.PCS:
            if group.phase == GroupPhase.CREATING:
                observations.group_move(group, GroupPhase.ACTIVE, waits, observed_state=found.word)
            return _say(group, waits, wait_s)
    if (found.target_nodes, found.min_nodes) == (group.nodes, group.min_nodes):
        observations.group_wish_met(group, generation)
        return None
    try:
        service.group_resize(seen, group_spec(group), found, _token(group, "resize", generation))
    except FINAL as error:
        observations.group_wish_met(group, generation)
        return _say(group, said(_("not resized: %(error)s"), error=refusal(error)), WATCH_S)
    except InsufficientCapacity as error:
        return _short(group, str(error))
    except (Conflict, Unavailable) as error:
        return _say(group, said(_("not resized yet: %(error)s"), error=str(error)), POLL_S)
    columns = {"observed_generation": generation}
    text = said(_("AWS was asked for %(n)s nodes"), n=group.nodes)
    if group.phase == GroupPhase.CREATING:
        observations.group_seen(group, text, **columns)
    elif group.phase != GroupPhase.UPDATING:
        observations.group_move(group, GroupPhase.UPDATING, text, **columns)
    else:
        observations.group_seen(group, text, **columns)
    return again(POLL_S)


def _settle(group: NodeGroup, found: kv.SeenGroup, columns: dict[str, Any]) -> Outcome:
    """Say how a group is that AWS is not working on."""
    issues = list(found.issues)
    # HyperPod alone says how many it still wants to start.
    short = group.cluster.kind in KINDS_HYPERPOD and found.current_nodes != found.target_nodes
    if short and not issues and (told := observations.event_against(group)) is not None:
        code = "InsufficientCapacity" if "apacity" in told.reason + told.text else "ClusterEvent"
        issues.append((code, told.reason or told.text))
    columns["health"] = health_of(issues)
    if issues or found.state in (kv.FAILED, kv.DEGRADED):
        why = "; ".join(text for _code, text in issues) or said(_("AWS says %(word)s"), word=found.word)
        if group.phase != GroupPhase.DEGRADED:
            observations.group_move(group, GroupPhase.DEGRADED, why, **columns)
            intent_ask(CLUSTER, group.cluster.uid)
        else:
            observations.group_seen(group, why, **columns)
        return DONE
    if short:
        text = said(_("%(n)s of %(all)s nodes are there"), n=found.current_nodes, all=found.target_nodes)
        if group.phase in (GroupPhase.CREATING, GroupPhase.UPDATING):
            observations.group_seen(group, text, **columns)
        else:
            observations.group_move(group, GroupPhase.UPDATING, text, **columns)
        return again(POLL_S)
    note: str = reservation_over(group)
    if group.source == GroupSource.CAPACITY_BLOCK and not found.target_nodes and ends_soon(group.reservation):
        note = said(_("scaled in: its block ends at %(at)s UTC"), at=_end_of(group))
    if group.phase != GroupPhase.ACTIVE:
        observations.group_move(group, GroupPhase.ACTIVE, note, **columns)
        intent_ask(CLUSTER, group.cluster.uid)
    else:
        observations.group_seen(group, note, **columns)
    return DONE


def _end_of(group: NodeGroup) -> str:
    row = group.reservation
    return f"{row.end_at:%Y-%m-%d %H:%M}" if row is not None and row.end_at is not None else "–"


# --- taking away


def _delete(group: NodeGroup, service: ClusterService, seen: kv.SeenCluster) -> Outcome:
    """Queue, group, machines, template: each until AWS says that it is gone."""
    if group.phase != GroupPhase.DELETING:
        observations.group_move(group, GroupPhase.DELETING, said(_("deletion has begun")))
    if group.queue and group.cluster.kind == ClusterKind.PCS and not group.is_adopted:
        try:
            service.queue_delete(seen, group.queue, group.uid)
        except NotFound:
            pass
        except Conflict as error:
            return _say(group, str(error), POLL_S)
        else:
            return _say(group, said(_("removing its queue %(name)s"), name=group.queue), POLL_S)
    there = service.groups(seen)
    found = seen_of(group, there)
    observe_members(group.cluster, service, seen)
    if found is not None:
        if found.state != kv.DELETING:
            try:
                service.group_delete(seen, found.provider_id)
            except NotFound:
                return again(NEXT_S)
            except Conflict as error:
                return _say(group, str(error), POLL_S)
            except FINAL as error:
                return _say(group, refusal(error), WATCH_S)
        return _say(group, said(_("AWS is deleting it")), POLL_S)
    group.refresh_from_db(fields=["observed_nodes"])
    left = group.node_rows.exclude(phase="GONE").count()
    # Where another group has its id or name by now, the machines are that one's.
    if left and not any(group.provider_id == g.provider_id or group.name == g.name for g in there):
        return _say(group, said(_("%(n)s machines are shutting down"), n=left), POLL_S)
    try:
        service.template_delete(group.uid)
    except NotFound:
        return _deleted(group, said(_("AWS holds nothing of it any more")))
    return again(NEXT_S)


def _deleted(group: NodeGroup, text: str) -> Outcome:
    if group.phase != GroupPhase.DELETING:
        observations.group_move(group, GroupPhase.DELETING, text)
    observations.group_move(
        group,
        GroupPhase.DELETED,
        text,
        ended_at=clock.now(),
        observed_nodes=0,
        observed_generation=group.generation,
    )
    return DONE
