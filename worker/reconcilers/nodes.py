"""Nodes: drain, evict and resume as asked, by the scheduler's own means."""

from __future__ import annotations

from django.utils.translation import gettext_noop as _

from apps.clusters import observations
from apps.clusters.models import Node
from apps.clusters.selectors import node_by_uid
from apps.clusters.states import KINDS_SLURM, NodePhase
from apps.core.said import said
from apps.intents.services import intent_ask
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.providers.errors import NotFound, Unsupported
from worker.providers.ports import Scheduler

#: How often pods that are still there are asked again.
EVICT_S = 5.0


def drain(uid: str) -> Outcome:
    """Tell the scheduler once; the collector then shows what it did. Draining a drained node changes nothing."""
    node = node_by_uid(uid)
    if node is None or node.phase == NodePhase.GONE:
        return DONE
    wants_drain = node.drain_requested_at is not None
    if not wants_drain and node.resume_requested_at is None:
        return DONE
    is_drained = node.phase in (NodePhase.DRAINING, NodePhase.DRAINED) and node.observed_reason == node.drain_reason
    wants_evict = wants_drain and node.evict_requested_at is not None and node.evicted_at is None
    if wants_drain and is_drained and not wants_evict:
        return DONE
    if node.cluster.is_managed and not node.cluster.takes_jobs:
        # Nobody here can tell a scheduler: jobs are not let in, or Slurm has no token.
        if node.cluster.kind in KINDS_SLURM:
            text = _("the portal has no way to this scheduler: scontrol update nodename=%(name)s state=drain reason=…")
        else:
            text = _("Kubernetes is told by its own tools: kubectl cordon %(name)s")
        observations.drain_unsupported(node, said(text, name=node.name))
        return DONE
    scheduler = doors.scheduler_for(node.cluster)
    try:
        if wants_drain and is_drained:
            return _evict(node, scheduler)
        if wants_drain:
            scheduler.node_drain(node.name, node.drain_reason)
        else:
            scheduler.node_resume(node.name)
    except Unsupported as error:
        # Jobs of the portal avoid the node anyway (excluded_nodes); the page shows what a person can type.
        observations.drain_unsupported(node, str(error))
        return DONE
    except NotFound:
        return DONE
    observations.node_drain_sent(node, is_drained=wants_drain)
    intent_ask("cluster.nodes", node.cluster.uid)
    if wants_evict:
        # Nothing may take the place of what ends now: the node takes no pods any more.
        return _evict(node, scheduler)
    return DONE


def _evict(node: Node, scheduler: Scheduler) -> Outcome:
    """Ask all pods to go, and ask again for those that a disruption budget keeps, until none is left."""
    left = scheduler.node_evict(node.name, node.evict_grace_s)
    if left:
        return again(EVICT_S)
    observations.node_evicted(node)
    intent_ask("cluster.nodes", node.cluster.uid)
    return DONE
