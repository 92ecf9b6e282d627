"""Nodes: drain and resume as asked, by the scheduler's own means."""

from __future__ import annotations

from apps.clusters import observations
from apps.clusters.selectors import node_by_uid
from apps.clusters.states import NodePhase
from apps.intents.services import intent_ask
from worker import doors
from worker.engine import DONE, Outcome
from worker.providers.errors import NotFound, Unsupported


def drain(uid: str) -> Outcome:
    """Tell the scheduler once; the collector then shows what it did. Draining a drained node changes nothing."""
    node = node_by_uid(uid)
    if node is None or node.phase == NodePhase.GONE:
        return DONE
    wants_drain = node.drain_requested_at is not None
    if not wants_drain and node.resume_requested_at is None:
        return DONE
    is_drained = node.phase in (NodePhase.DRAINING, NodePhase.DRAINED)
    if wants_drain and is_drained and node.observed_reason == node.drain_reason:
        return DONE
    scheduler = doors.scheduler_for(node.cluster)
    try:
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
    return DONE
