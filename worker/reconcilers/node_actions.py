"""Replacing and rebooting HyperPod's nodes: at most 25 a call, an answer for each, a doubt settled by a look.

A request is marked as being sent before it is. Replacing names a machine by an id that dies with it, so asking twice
replaces one; a reboot in doubt is only asked for again while a look still tells whether the first took effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from django.utils.translation import gettext_noop as _

from apps.clusters import managed_observations as observations
from apps.clusters.group_models import NodeAction
from apps.clusters.models import Cluster
from apps.clusters.selectors import cluster_by_uid
from apps.clusters.states import NodeActionPhase, NodeVerb
from apps.core import clock
from apps.core.said import said
from apps.intents.services import intent_ask
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.providers import cluster_values as kv
from worker.providers.errors import Conflict, NotFound, Throttled, Unavailable
from worker.providers.ports import ClusterService
from worker.reconcilers.managed import KIND as CLUSTER
from worker.reconcilers.managed_parts import FINAL, hindrance, is_made, refusal

RETRY_S = 10.0
#: A node boots in one to three minutes: a reboot that was asked for no longer ago than this still shows.
REBOOT_SHOWS = timedelta(seconds=60)
_GONE = frozenset({"InstanceIdNotFound"})
_BUSY = frozenset({"InvalidInstanceStatus", "InstanceIdInUse"})


def act(uid: str) -> Outcome:
    """One call for one verb, and what became of each node of it."""
    cluster = cluster_by_uid(uid)
    if cluster is None or cluster.account is None:
        return DONE
    if cluster.delete_requested_at is not None or not is_made(cluster):
        observations.actions_end(cluster, said(_("the cluster cannot be asked any more")))
        return DONE
    doubtful = observations.actions_in(cluster, NodeActionPhase.SENDING)
    asked = observations.actions_in(cluster, NodeActionPhase.ASKED)
    if not doubtful and not asked:
        return DONE
    why, wait_s = hindrance(cluster.account)
    if why:
        return again(wait_s)
    service = doors.cluster_service_for(cluster)
    try:
        seen = service.cluster(cluster.name_at_provider)
    except NotFound:
        observations.actions_end(cluster, said(_("the cluster is no longer in the account")))
        return DONE
    if doubtful:
        _resolve(doubtful, {m.provider_id: m for m in service.members(seen)})
        return again(0)
    verb = asked[0].verb
    batch = observations.actions_send([a for a in asked if a.verb == verb][: kv.NODES_A_CALL])
    return _send(cluster, service, seen, batch) if batch else again(1)


def _resolve(actions: Sequence[NodeAction], members: Mapping[str, kv.SeenMember]) -> None:
    """Settle requests of which nobody knows whether AWS took them."""
    for action in actions:
        member = members.get(action.provider_id)
        if member is None and action.verb == NodeVerb.REPLACE:
            observations.action_settled(action, NodeActionPhase.TAKEN, said(_("the machine is gone, as asked")))
        elif member is None:
            observations.action_settled(action, NodeActionPhase.REFUSED, said(_("the machine is gone")))
        elif member.state in ("updating", "ending", "pending"):
            observations.action_settled(action, NodeActionPhase.TAKEN, said(_("AWS is at it")))
        elif action.verb == NodeVerb.REPLACE or _is_fresh(action):
            observations.action_unsent(action, said(_("the call was lost; asked again")))
        else:
            text = _("the call was lost and nobody knows whether AWS took it: look at the node, then ask again")
            observations.action_settled(action, NodeActionPhase.REFUSED, said(text))


def _is_fresh(action: NodeAction) -> bool:
    return action.attempted_at is not None and clock.now() - action.attempted_at < REBOOT_SHOWS


def _send(cluster: Cluster, service: ClusterService, seen: kv.SeenCluster, batch: Sequence[NodeAction]) -> Outcome:
    try:
        answers = {a.provider_id: a for a in service.nodes_act(seen, batch[0].verb, [a.provider_id for a in batch])}
    except FINAL as error:
        for action in batch:
            observations.action_settled(action, NodeActionPhase.REFUSED, _refused(error))
        return again(0)
    except (Throttled, Conflict) as error:
        for action in batch:
            observations.action_unsent(action, str(error))
        return again(RETRY_S)
    except Unavailable:
        # Whether AWS took it is not known: the next visit looks.
        return again(RETRY_S)
    for action in batch:
        answer = answers.get(action.provider_id)
        was_sent_before = bool(action.message)
        if answer is None:
            observations.action_unsent(action, said(_("AWS did not answer for this node; asked again")))
        elif not answer.code:
            observations.action_settled(action, NodeActionPhase.TAKEN, said(_("AWS took it")))
        elif was_sent_before and (answer.code in _BUSY or (answer.code in _GONE and action.verb == NodeVerb.REPLACE)):
            observations.action_settled(action, NodeActionPhase.TAKEN, said(_("AWS is at it since the first call")))
        else:
            text = f"{answer.code}: {answer.message}"
            observations.action_settled(action, NodeActionPhase.REFUSED, text)
    intent_ask(CLUSTER, cluster.uid)
    return again(0)


def _refused(error: Exception) -> str:
    if "UpdateClusterSoftware" in str(error):
        text = _(
            "%(error)s It brings new images to all nodes (30 to 60 minutes, no jobs meanwhile): run it in AWS "
            "once, then ask again"
        )
        return said(text, error=str(error))
    return refusal(error)  # type: ignore[arg-type]
