"""Findings: answer a fatal one by draining the node and ending its attempts, within the brake."""

from __future__ import annotations

from django.utils.translation import gettext_noop as _

from apps.clusters.kube_selectors import repaired_by
from apps.clusters.selectors import live_nodes
from apps.clusters.services import node_drain
from apps.clusters.states import NodePhase
from apps.core.said import said
from apps.health.rules import trips_breaker
from apps.health.selectors import finding_by_uid
from apps.health.services import finding_responded, is_fatal, newly_faulty_nodes
from apps.health.states import LIVE
from apps.jobs.observations import attempts_evict
from apps.teams.permissions import system_actor
from worker.engine import DONE, Outcome

ACTOR = system_actor("health")


def respond(uid: str) -> Outcome:
    """Drain first, so that the next attempt cannot land there, then end what runs; both may be repeated."""
    finding = finding_by_uid(uid)
    if finding is None or finding.phase not in LIVE or finding.responded_at is not None:
        return DONE
    node, cluster = finding.node, finding.node.cluster
    if not is_fatal(finding):
        return DONE
    if not cluster.responds_to_findings:
        finding_responded(finding, said(_("nothing: this cluster only reports")))
        return DONE
    if service := repaired_by(node):
        # Two who repair one node undo each other's work: the service sees the same fault and has the better means.
        text = _("nothing: %(service)s repairs its nodes itself; the portal watches, and restarts what ends by it")
        finding_responded(finding, said(text, service=service))
        return DONE
    if trips_breaker(newly_faulty=newly_faulty_nodes(cluster.pk), pool=len(live_nodes(cluster))):
        finding_responded(
            finding, said(_("nothing: too many nodes failed within ten minutes, a person must look first"))
        )
        return DONE
    if node.phase != NodePhase.GONE:
        node_drain(actor=ACTOR, node=node, reason=finding.title)
    evicted = attempts_evict(node, finding)
    names = ", ".join(sorted({a.job.name for a in evicted}))
    if names:
        done = said(_("drained %(node)s, restarting %(jobs)s"), node=node.name, jobs=names)
    else:
        done = said(_("drained %(node)s"), node=node.name)
    finding_responded(finding, done)
    return DONE
