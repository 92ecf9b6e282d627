"""Nodes: drain and resume as asked, by the scheduler's own means."""

from __future__ import annotations

from django.utils.translation import gettext_noop as _

from apps.clusters import observations
from apps.clusters.selectors import node_by_uid
from apps.clusters.states import KINDS_SLURM, NodePhase
from apps.core.said import said
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
    if node.cluster.is_managed and not node.cluster.takes_jobs:
        # Nobody here can tell a scheduler: Kubernetes is told by its own tools, a Slurm without a token by scontrol.
        if node.cluster.kind in KINDS_SLURM:
            text = _("the portal has no way to this scheduler: scontrol update nodename=%(name)s state=drain reason=…")
        else:
            text = _("Kubernetes is told by its own tools: kubectl cordon %(name)s")
        observations.drain_unsupported(node, said(text, name=node.name))
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
