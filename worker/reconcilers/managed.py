"""Clusters that AWS keeps: made or found, brought through their steps, watched and taken away, one step a visit.

Name, token and attempt are committed before the call that creates: a worker killed anywhere is continued by the
next, which is given the same cluster by the token (PCS, EKS) or finds it under its name by our tag (HyperPod,
ParallelCluster). What is deleted is looked at until AWS says that it is gone.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import structlog
from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.clusters import managed_observations as observations
from apps.clusters.group_models import NodeGroup
from apps.clusters.models import Cluster, Node
from apps.clusters.selectors import cluster_by_uid
from apps.clusters.states import (
    GROUP_WORKING,
    KINDS_HYPERPOD,
    ClusterPhase,
    ClusterStepName,
    GroupPhase,
    NodePhase,
)
from apps.core import clock
from apps.core.said import said
from apps.intents.services import intent_ask
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.providers import cluster_values as kv
from worker.providers.errors import Conflict, InsufficientCapacity, NotFound, ProviderError, Unavailable
from worker.providers.ports import ClusterService
from worker.reconcilers.managed_parts import (
    CAPACITY_WAIT,
    FINAL,
    LISTED_WITHIN,
    NEXT_S,
    POLL_S,
    WATCH_S,
    cluster_spec,
    cluster_tags,
    derived_name,
    hindrance,
    is_controlled,
    is_ours,
    observe_members,
    refusal,
    reservation_over,
    reservation_waits,
    say_and_wait,
    seen_of,
    stub,
)

log = structlog.get_logger(__name__)
KIND = "cluster.reconcile"
GROUP = "group.reconcile"
#: AWS makes control planes in 10 to 25 minutes; after this long a person should look.
CREATE_LIMIT = timedelta(hours=1)


def reconcile(uid: str) -> Outcome:
    """One step towards what the cluster's spec wants."""
    cluster = cluster_by_uid(uid)
    if cluster is None or cluster.phase == ClusterPhase.DELETED or not cluster.is_managed or cluster.account is None:
        return DONE
    if cluster.delete_requested_at is not None and (cluster.is_adopted or not cluster.create_attempt):
        # Nothing in AWS is touched: it was never ours, or never asked for.
        text = _("it left the portal; AWS keeps it") if cluster.is_adopted else _("AWS was never asked for it")
        observations.cluster_forgotten(cluster, said(text))
        return DONE
    why, wait_s = hindrance(cluster.account)
    if why:
        return say_and_wait(cluster, why, wait_s)
    service = doors.cluster_service_for(cluster)
    if cluster.delete_requested_at is not None:
        return _delete(cluster, service)
    match cluster.phase:
        case ClusterPhase.PENDING:
            return _begin(cluster, service)
        case ClusterPhase.CREATING:
            return _creating(cluster, service)
        case ClusterPhase.FAILED:
            return _retry(cluster, service)
        case _:
            return _watch(cluster, service)


def _columns(cluster: Cluster, seen: kv.SeenCluster) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "provider_id": seen.provider_id,
        "provider_facts": observations.kept_facts(cluster, {**seen.facts, "state": seen.word}),
        "observed_api_url": seen.scheduler_url[:200],
    }
    if not (cluster.takes_jobs and cluster.observed_api_version):
        # Where a scheduler is asked, it says its own version.
        columns["observed_version"] = seen.version[:40]
    return columns


def _fail(cluster: Cluster, message: str) -> Outcome:
    observations.cluster_move(cluster, ClusterPhase.FAILED, message, observed_generation=cluster.generation)
    return again(WATCH_S) if is_controlled(cluster) else DONE


# --- making


def _begin(cluster: Cluster, service: ClusterService) -> Outcome:
    """Move on; the first step is under way from the next visit."""
    observations.cluster_step(cluster)
    if cluster.is_adopted:
        observations.cluster_move(cluster, ClusterPhase.CREATING, said(_("looking for it in the account")))
        return again(0)
    return _create(cluster, service)


def _create(cluster: Cluster, service: ClusterService) -> Outcome:
    groups = _first_groups(cluster)
    if isinstance(groups, str):
        return say_and_wait(cluster, groups, 30)
    if not cluster.client_token:
        observations.cluster_attempt(cluster, cluster.name_at_provider or derived_name(cluster))
    try:
        seen = service.cluster_ensure(cluster_spec(cluster, groups), cluster.client_token)
    except FINAL as error:
        return _fail(cluster, refusal(error))
    except InsufficientCapacity as error:
        text = said(_("AWS has no capacity for it now (%(error)s); asking again"), error=str(error))
        return say_and_wait(cluster, text, CAPACITY_WAIT.total_seconds())
    except Conflict as error:
        # The token's cluster is gone or meant something else, or the name is another's: a look tells which.
        return _conflict(cluster, service, error)
    except Unavailable as error:
        text = said(_("no clear answer (%(error)s); asking again with the same token"), error=str(error))
        return say_and_wait(cluster, text, POLL_S)
    message = said(_("AWS is making it"))
    if cluster.phase == ClusterPhase.CREATING:
        observations.cluster_seen(cluster, message, **_columns(cluster, seen))
    else:
        observations.cluster_move(cluster, ClusterPhase.CREATING, message, **_columns(cluster, seen))
    return again(POLL_S)


def _conflict(cluster: Cluster, service: ClusterService, error: Conflict) -> Outcome:
    try:
        seen = service.cluster(cluster.name_at_provider)
    except NotFound:
        observations.cluster_attempt(cluster, cluster.name_at_provider)
        return say_and_wait(cluster, said(_("%(error)s; trying with a new token"), error=str(error)), POLL_S)
    if is_ours(cluster, seen):
        return say_and_wait(cluster, str(error), POLL_S)
    text = _("AWS has a cluster named %(name)s that is not ours (%(error)s): delete this one and choose another name")
    return _fail(cluster, said(text, name=cluster.name_at_provider, error=str(error)))


def _first_groups(cluster: Cluster) -> list[NodeGroup] | str:
    """The groups that are made with the cluster: HyperPod's that need not wait. A sentence where none can be yet."""
    if cluster.kind not in KINDS_HYPERPOD:
        return []
    rows = NodeGroup.objects.filter(cluster=cluster, delete_requested_at__isnull=True)
    wanted = list(rows.exclude(phase=GroupPhase.DELETED).select_related("team", "reservation", "cluster"))
    usable = [g for g in wanted if not reservation_waits(g)[0] and not reservation_over(g)]
    if wanted and not usable:
        return reservation_over(wanted[0]) or reservation_waits(wanted[0])[0]
    return usable


def _retry(cluster: Cluster, service: ClusterService) -> Outcome:
    """Another try, where a person asked for one: from the step that failed, after what the failed one left is gone."""
    if cluster.generation <= cluster.observed_generation:
        return _look(cluster, service) if is_controlled(cluster) else DONE
    if cluster.is_adopted:
        observations.cluster_move(cluster, ClusterPhase.CREATING, said(_("looking for it in the account")))
        return again(0)
    if not cluster.create_attempt:
        observations.cluster_move(cluster, ClusterPhase.CREATING, said(_("asking AWS for it again")))
        return again(0)
    try:
        seen = service.cluster(cluster.name_at_provider)
    except NotFound:
        observations.cluster_attempt(cluster, cluster.name_at_provider)
        observations.cluster_move(cluster, ClusterPhase.CREATING, said(_("asking AWS for it again")), provider_id="")
        return again(0)
    if not is_ours(cluster, seen):
        text = _("AWS has a cluster named %(name)s that is not ours: delete this one and choose another name")
        observations.cluster_seen(cluster, said(text, name=seen.name), observed_generation=cluster.generation)
        return DONE
    if seen.state == kv.FAILED and not is_controlled(cluster):
        with contextlib.suppress(NotFound, Conflict):
            service.cluster_delete(cluster.name_at_provider)
        return say_and_wait(cluster, said(_("taking away what the failed try left")), POLL_S)
    if seen.state == kv.DELETING:
        return say_and_wait(cluster, said(_("taking away what the failed try left")), POLL_S)
    with transaction.atomic():
        observations.cluster_move(cluster, ClusterPhase.CREATING, said(_("going on")), **_columns(cluster, seen))
        _ask_groups(cluster)
    return again(0)


def _look(cluster: Cluster, service: ClusterService) -> Outcome:
    """What a failed cluster with a control plane still has: its machines cost money, whatever failed after it."""
    try:
        seen = service.cluster(cluster.name_at_provider)
    except NotFound:
        # Its machines may outlive it for a while.
        observe_members(cluster, service, stub(cluster))
        left = Node.objects.filter(cluster=cluster).exclude(phase=NodePhase.GONE).exists()
        return again(WATCH_S) if left else DONE
    except FINAL:
        return again(WATCH_S)
    if not is_ours(cluster, seen):
        return DONE
    observations.cluster_seen(cluster, **_columns(cluster, seen))
    _watch_groups(cluster, service, seen)
    return again(WATCH_S)


def _creating(cluster: Cluster, service: ClusterService) -> Outcome:
    if not cluster.is_adopted and not cluster.provider_id:
        return _create(cluster, service)
    step = observations.cluster_step(cluster)
    try:
        seen = service.cluster(cluster.name_at_provider)
    except NotFound:
        if cluster.is_adopted:
            text = _("the account has no cluster named %(name)s of this kind; remove it here or try again")
            return _fail(cluster, said(text, name=cluster.name_at_provider))
        return _fail(cluster, said(_("it vanished while AWS was making it")))
    except FINAL as error:
        return _fail(cluster, refusal(error))
    columns = _columns(cluster, seen)
    if step is None or step.name == ClusterStepName.USE:
        observations.cluster_move(
            cluster,
            ClusterPhase.READY,
            "",
            observed_generation=cluster.generation,
            **columns,
        )
        _ask_groups(cluster)
        return again(0)
    observations.cluster_seen(cluster, **columns)
    if seen.state in (kv.FAILED, kv.DELETING):
        why = seen.failure or said(_("AWS says %(word)s and gives no reason"), word=seen.word)
        return _fail(cluster, why)
    waits = _step(cluster, service, seen, step.name)
    if isinstance(waits, Outcome):
        return waits
    if waits:
        if clock.now() - cluster.phase_since > CREATE_LIMIT:
            waits = said(_("%(what)s; it has been under way for over an hour, look at it in AWS"), what=waits)
        observe_members(cluster, service, seen)
        return say_and_wait(cluster, waits, POLL_S)
    observations.cluster_step_done(step)
    if step.name in (ClusterStepName.CONTROL, ClusterStepName.FIND):
        _ask_groups(cluster)
    return again(NEXT_S)


def _step(cluster: Cluster, service: ClusterService, seen: kv.SeenCluster, name: str) -> str | Outcome:
    """What a step still waits for, "" when it is done."""
    match name:
        case ClusterStepName.CONTROL:
            return "" if seen.state != kv.CREATING else said(_("AWS says %(word)s"), word=seen.word)
        case ClusterStepName.FIND:
            if seen.state == kv.CREATING:
                return said(_("AWS says %(word)s; waiting until it is made"), word=seen.word)
            return ""
        case ClusterStepName.GROUPS:
            _watch_groups(cluster, service, seen)
            return _groups_under_way(cluster)
        case ClusterStepName.NODES if cluster.kind in KINDS_HYPERPOD:
            _read_events(cluster, service, seen)
            _watch_groups(cluster, service, seen)
            return _groups_under_way(cluster)
        case _:
            try:
                waits = service.prepare(seen, cluster.settings, cluster_tags(cluster), name)
            except FINAL as error:
                return _fail(cluster, refusal(error))
            return said(_("waiting for %(what)s"), what=waits) if waits else ""


def _groups_under_way(cluster: Cluster) -> str:
    """The groups that are being made; what is degraded, failed or waits for its reservation holds nothing up."""
    busy = []
    for group in NodeGroup.objects.filter(cluster=cluster).select_related("reservation"):
        waits = group.phase == GroupPhase.PENDING and bool(reservation_waits(group)[0])
        if group.phase in GROUP_WORKING and not waits:
            busy.append(f"{group.name} {group.observed_nodes}/{group.nodes}")
    return said(_("waiting for groups: %(names)s"), names=", ".join(busy)) if busy else ""


def _ask_groups(cluster: Cluster) -> None:
    for group in NodeGroup.objects.filter(cluster=cluster, phase__in=sorted(GROUP_WORKING)):
        intent_ask(GROUP, group.uid)


# --- watching


def _watch(cluster: Cluster, service: ClusterService) -> Outcome:
    try:
        seen = service.cluster(cluster.name_at_provider)
    except NotFound:
        text = _("it is no longer in the account: somebody deleted it there. Remove it here, or try again")
        observe_members(cluster, service, stub(cluster))
        return _fail(cluster, said(text))
    except FINAL as error:
        # What it was when it could last be read stays on the page, with the reason.
        return say_and_wait(cluster, refusal(error), WATCH_S)
    # Where a scheduler is asked too, its sentence stays.
    message = "" if cluster.phase == ClusterPhase.READY else None
    if seen.state in (kv.FAILED, kv.DEGRADED, kv.DELETING):
        message = said(_("AWS says %(word)s: %(why)s"), word=seen.word, why=seen.failure or said(_("no reason given")))
    observations.cluster_seen(cluster, message, observed_generation=cluster.generation, **_columns(cluster, seen))
    _read_events(cluster, service, seen)
    moving = _watch_groups(cluster, service, seen)
    return again(POLL_S if moving or seen.state == kv.UPDATING else WATCH_S)


def _watch_groups(cluster: Cluster, service: ClusterService, seen: kv.SeenCluster) -> bool:
    """Write groups and machines as they are now; whether something moves."""
    found = service.groups(seen)
    rows = list(
        NodeGroup.objects.filter(cluster=cluster)
        .exclude(phase=GroupPhase.DELETED)
        .select_related("team", "reservation", "cluster")
    )
    taken = {m.provider_id for g in rows if (m := seen_of(g, found)) is not None}
    names = {g.name for g in rows}
    for group in found:
        if group.provider_id not in taken and group.name not in names and group.state != kv.DELETING:
            rows.append(_adopted(cluster, group))
    moving = observe_members(cluster, service, seen)
    for row in rows:
        mine = seen_of(row, found)
        if row.phase not in GROUP_WORKING and _differs(row, mine):
            intent_ask(GROUP, row.uid)
        moving = moving or row.phase in GROUP_WORKING
    return moving


def _differs(row: NodeGroup, seen: kv.SeenGroup | None) -> bool:
    """Whether a settled group wants a visit: it changed in AWS, or its wish is not met yet."""
    if row.generation > row.observed_generation or row.phase == GroupPhase.DEGRADED:
        return True
    if seen is None:
        return row.phase != GroupPhase.FAILED
    short = row.cluster.kind in KINDS_HYPERPOD and seen.current_nodes != seen.target_nodes
    return bool(
        seen.state != kv.ACTIVE
        or seen.issues
        or short
        or row.phase != GroupPhase.ACTIVE
        or row.observed_state != seen.word
        or row.target_nodes != seen.target_nodes
    )


def _adopted(cluster: Cluster, seen: kv.SeenGroup) -> NodeGroup:
    return observations.group_found(
        cluster,
        seen.name,
        provider_id=seen.provider_id,
        instance_type=seen.instance_type,
        source=seen.source,
        nodes=seen.target_nodes or 0,
        min_nodes=seen.min_nodes,
        target_nodes=seen.target_nodes,
        observed_state=seen.word,
        subnet_ids=list(seen.subnet_ids),
        role_arn=seen.role_arn,
        queue=str(seen.settings.get("queue") or "")[:40],
        settings={k: value for k, value in seen.settings.items() if k not in ("request", "queue", "max_nodes")},
    )


def _read_events(cluster: Cluster, service: ClusterService, seen: kv.SeenCluster) -> None:
    try:
        found = service.happenings(seen, observations.events_known(cluster))
    except ProviderError as error:
        # Not allowed to read events is no fault of the cluster.
        log.info("events not read", cluster=cluster.uid, error=str(error))
        return
    observations.events_observe(
        cluster,
        [
            observations.SeenEvent(h.provider_id, h.at, h.level, h.resource, h.text, h.reason, h.group, h.node, h.twins)
            for h in found
        ],
    )


# --- taking away


def _delete(cluster: Cluster, service: ClusterService) -> Outcome:
    """Requests, queues, groups, templates, cluster: each until AWS says that it is gone."""
    if cluster.phase != ClusterPhase.DELETING:
        observations.cluster_move(cluster, ClusterPhase.DELETING, said(_("deletion has begun")))
        observations.actions_end(cluster, said(_("the cluster is being deleted")))
        return again(0)
    try:
        seen = service.cluster(cluster.name_at_provider)
    except NotFound:
        if not cluster.provider_id and clock.now() - cluster.phase_since < LISTED_WITHIN:
            # A creation whose answer was lost may show up yet.
            return again(POLL_S)
        return _gone(cluster, service)
    except FINAL as error:
        return say_and_wait(cluster, refusal(error), WATCH_S)
    if not is_ours(cluster, seen):
        # Ours is gone, and somebody else's bears the name.
        return _gone(cluster, service)
    if not cluster.provider_id:
        observations.cluster_seen(cluster, **_columns(cluster, seen))
    observe_members(cluster, service, seen)
    if seen.state == kv.CREATING:
        text = said(_("AWS says %(word)s and deletes it only afterwards"), word=seen.word)
        return say_and_wait(cluster, text, POLL_S)
    if seen.state == kv.DELETING:
        return say_and_wait(cluster, said(_("AWS is deleting it")), POLL_S)
    if cluster.kind not in KINDS_HYPERPOD:
        left = _delete_queues(cluster, service, seen) or _delete_groups(cluster, service, seen)
        if left:
            return say_and_wait(cluster, left, POLL_S)
    _delete_templates(cluster, service)
    try:
        service.cluster_delete(cluster.name_at_provider)
    except NotFound:
        return again(NEXT_S)
    except Conflict as error:
        return say_and_wait(cluster, str(error), POLL_S)
    except FINAL as error:
        return say_and_wait(cluster, refusal(error), WATCH_S)
    return say_and_wait(cluster, said(_("AWS is deleting it")), POLL_S)


def _delete_queues(cluster: Cluster, service: ClusterService, seen: kv.SeenCluster) -> str:
    left = []
    queues = NodeGroup.objects.filter(cluster=cluster).exclude(queue="").values_list("queue", "uid")
    for queue, uid in queues:
        try:
            service.queue_delete(seen, queue, uid)
            left.append(queue)
        except NotFound:
            continue
        except Conflict:
            left.append(queue)
    return said(_("removing queues: %(names)s"), names=", ".join(left)) if left else ""


def _delete_groups(cluster: Cluster, service: ClusterService, seen: kv.SeenCluster) -> str:
    left = []
    for group in service.groups(seen):
        if group.state != kv.DELETING:
            try:
                service.group_delete(seen, group.provider_id)
            except NotFound:
                continue
            except Conflict as error:
                left.append(f"{group.name} ({error.message})")
                continue
        left.append(group.name)
    return said(_("removing groups: %(names)s"), names=", ".join(left)) if left else ""


def _delete_templates(cluster: Cluster, service: ClusterService) -> None:
    for uid in NodeGroup.objects.filter(cluster=cluster, is_adopted=False).values_list("uid", flat=True):
        try:
            service.template_delete(uid)
        except NotFound:
            continue


def _gone(cluster: Cluster, service: ClusterService) -> Outcome:
    """The cluster is gone; its templates and machines may outlive it for a while."""
    _delete_templates(cluster, service)
    try:
        left = service.members(stub(cluster)) if cluster.provider_id else ()
    except NotFound:
        left = ()
    if left:
        observe_members(cluster, service, stub(cluster))
        return say_and_wait(cluster, said(_("%(n)s machines are shutting down"), n=len(left)), POLL_S)
    observations.cluster_forgotten(cluster, said(_("AWS holds nothing of it any more")))
    return DONE
