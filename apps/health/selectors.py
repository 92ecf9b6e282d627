"""Named reads of GPUs and findings, and the sentence a finding opens with."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from apps.clusters.states import NodePhase
from apps.core import clock, units
from apps.core.errors import NotFound
from apps.health.models import Finding, Gpu, XidCode
from apps.health.states import FATAL, LIVE, FindingPhase
from apps.teams.permissions import Actor


def findings_visible_to(actor: Actor) -> QuerySet[Finding]:
    """All findings for everyone with a role."""
    if not actor.holds("health.view"):
        return Finding.objects.none()
    return Finding.objects.select_related("node", "node__cluster")


def finding_for(*, actor: Actor, may: str, uid: str) -> Finding:
    """The finding of this uid. Raises NotFound."""
    rows = findings_visible_to(actor) if actor.holds(may) else Finding.objects.none()
    row = rows.filter(uid=uid).first()
    if row is None:
        raise NotFound(f"no finding {uid} in which you may do this")
    return row


def finding_by_uid(uid: str) -> Finding | None:
    """For the worker."""
    return Finding.objects.select_related("node", "node__cluster").filter(uid=uid).first()


def live_findings(node_ids: list[int]) -> dict[int, list[Finding]]:
    """Findings that are not resolved, by node."""
    found: dict[int, list[Finding]] = {}
    for row in Finding.objects.filter(node__in=node_ids, phase__in=LIVE).select_related("node"):
        found.setdefault(row.node_id, []).append(row)
    return found


def gpus_of(node_ids: list[int]) -> dict[int, list[Gpu]]:
    """GPUs by node, in slot order."""
    found: dict[int, list[Gpu]] = {}
    for row in Gpu.objects.filter(node__in=node_ids).order_by("node_id", "index"):
        found.setdefault(row.node_id, []).append(row)
    return found


def xid_codes() -> QuerySet[XidCode]:
    """The catalogue, by code."""
    return XidCode.objects.order_by("code")


def finding_sentence(finding: Finding) -> str:
    """What was found, what was done, what to do."""
    facts = {
        "title": finding.title,
        "node": finding.node.name,
        "gpu": finding.gpu_index,
        "ago": units.duration(clock.now() - finding.last_seen_at),
        "response": finding.response,
        "action": finding.suggested_action,
    }
    if finding.phase == FindingPhase.RESOLVED:
        return _("%(title)s on %(node)s: resolved.") % facts
    if finding.gpu_index is not None:
        head = _("%(title)s on GPU %(gpu)s of %(node)s, last seen %(ago)s ago.") % facts
    else:
        head = _("%(title)s on %(node)s, last seen %(ago)s ago.") % facts
    if finding.response:
        return head + " " + _("Done: %(response)s. Next: %(action)s.") % facts
    if finding.severity in FATAL:
        return head + " " + _("Needs you: %(action)s.") % facts
    return head + " " + _("Suggested: %(action)s.") % facts


def gpus_visible_to(actor: Actor) -> QuerySet[Gpu]:
    """GPUs of nodes that exist, for everyone with a role."""
    if not actor.holds("health.view"):
        return Gpu.objects.none()
    return Gpu.objects.exclude(node__phase=NodePhase.GONE).select_related("node", "node__cluster")


def xid_names(codes: Iterable[int]) -> dict[int, str]:
    """NVIDIA's own names of these codes."""
    return dict(XidCode.objects.filter(code__in=set(codes)).values_list("code", "mnemonic"))
