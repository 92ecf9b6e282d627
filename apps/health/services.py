"""What collectors report about GPUs becomes events and findings; what people answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext_noop as _

from apps.audit.services import event, record
from apps.clusters.models import Node
from apps.core import clock
from apps.core.errors import Forbidden
from apps.core.said import brief, said
from apps.core.states import move
from apps.health.models import Finding, Gpu, HealthEvent, XidCode
from apps.health.permissions import can_operate_health
from apps.health.rules import OFF_THE_BUS, OWN_CODES, Fault, explains_missing
from apps.health.states import FATAL, LIVE, TRANSITIONS, FindingPhase, Severity
from apps.intents.services import intent_ask
from apps.teams.permissions import Actor

RESPOND_INTENT = "finding.respond"
#: The same code of the same GPU within this time is the same event: exporters show it for a whole window.
WINDOW = timedelta(minutes=5)


def describe(source: str, code: str) -> tuple[str, str, str]:
    """(title, severity, suggested action) of a fault: NVIDIA's own name for an XID, ours for the rest."""
    if source == "xid":
        row = XidCode.objects.filter(code=int(code)).first()
        if row is None:
            return (
                said(_("XID %(code)s (not in the catalogue)"), code=code),
                Severity.WATCH,
                said(_("watch; look the code up")),
            )
        return f"XID {code} {row.mnemonic}", row.severity, said(row.suggested_action)
    title, severity, action = OWN_CODES.get(code, (code, Severity.WATCH, _("watch")))
    return said(title), severity, said(action)


def gpus_observe(node: Node, samples: Sequence[Mapping[str, Any]]) -> None:
    """Store the newest reading of every GPU of a node; each mapping is a Gpu's columns with ``index`` first."""
    now = clock.now()
    rows = [Gpu(node=node, observed_at=now, **dict(sample)) for sample in samples]
    Gpu.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["node", "index"],
        update_fields=[
            "uuid",
            "model",
            "pci_bus_id",
            "is_on_bus",
            "temperature_c",
            "power_w",
            "sm_active",
            "tensor_active",
            "memory_used_mib",
            "xid_last",
            "row_remap_pending",
            "row_remap_failure",
            "ecc_dbe_volatile",
            "observed_at",
        ],
    )


def faults_report(node: Node, faults: Sequence[Fault]) -> list[Finding]:
    """Store faults as events and findings; the findings that are new. Seeing the same fault again only counts."""
    opened: list[Finding] = []
    now = clock.now()
    for fault in faults:
        with transaction.atomic():
            if fault.code == "GpuMissing" and _folded(node, fault):
                continue
            row = Finding.objects.filter(
                node=node, source=fault.source, code=fault.code, gpu_uuid=fault.gpu_uuid, phase__in=LIVE
            ).first()
            if row is not None:
                columns: dict[str, Any] = {"last_seen_at": now}
                # The exporter repeats an XID for its whole window: count it again only afterwards.
                if now - row.last_seen_at > WINDOW:
                    columns["count"] = F("count") + 1
                    _event_row(node, fault)
                Finding.objects.filter(pk=row.pk).update(**columns)
                continue
            if _resolved_recently(node, fault):
                continue
            title, severity, action = describe(fault.source, fault.code)
            finding = Finding.objects.create(
                node=node,
                gpu_index=fault.gpu_index,
                gpu_uuid=fault.gpu_uuid,
                source=fault.source,
                code=fault.code,
                title=title,
                severity=severity,
                suggested_action=action,
                evidence=dict(fault.evidence),
            )
            _event_row(node, fault)
            event(
                "node",
                node.uid,
                "FindingOpened",
                said("%(title)s: %(text)s", title=title, text=fault.text),
                data={"finding": finding.uid, "code": fault.code, "severity": severity},
            )
            intent_ask(RESPOND_INTENT, finding.uid)
            opened.append(finding)
    return opened


def _folded(node: Node, fault: Fault) -> bool:
    """Make missing GPUs part of the live XID 79 findings that explain them; False where something else is missing.

    A finding of missing GPUs that was there first, because the exporter showed the absence before the XID, is joined.
    """
    answering = fault.evidence.get("with_gauges", ())
    falls = [
        row
        for row in Finding.objects.filter(node=node, source="xid", code=OFF_THE_BUS, phase__in=LIVE)
        if row.gpu_index is not None and row.gpu_index not in answering
    ]
    if not explains_missing({row.gpu_index for row in falls if row.gpu_index is not None}, fault.evidence):
        return False
    now = clock.now()
    earlier = Finding.objects.filter(node=node, source=fault.source, code=fault.code, phase__in=LIVE).first()
    since = earlier.first_seen_at if earlier is not None else now
    counts = {"gpus_expected": fault.evidence["expected"], "gpus_visible": fault.evidence["visible"]}
    for row in falls:
        told = {"missing_since": clock.iso(since), **row.evidence, **counts}
        if earlier is not None:
            told["joined_finding"] = earlier.uid
        if told != row.evidence:
            _event_row(node, fault)
        Finding.objects.filter(pk=row.pk).update(evidence=told, last_seen_at=now)
    if earlier is not None:
        move(earlier, TRANSITIONS, FindingPhase.RESOLVED, resolved_by="health")
        event(
            "node",
            node.uid,
            "FindingJoined",
            said(_("%(one)s is part of %(other)s"), one=earlier.title, other=falls[0].title),
            data={"finding": earlier.uid, "into": falls[0].uid, "title": falls[0].title},
        )
    return True


def _resolved_recently(node: Node, fault: Fault) -> bool:
    """A finding someone resolved does not open again from the same window of the exporter."""
    return Finding.objects.filter(
        node=node,
        source=fault.source,
        code=fault.code,
        gpu_uuid=fault.gpu_uuid,
        phase=FindingPhase.RESOLVED,
        phase_since__gt=clock.now() - WINDOW,
    ).exists()


def _event_row(node: Node, fault: Fault) -> None:
    HealthEvent.objects.create(
        node=node,
        gpu_index=fault.gpu_index,
        gpu_uuid=fault.gpu_uuid,
        source=fault.source,
        code=fault.code,
        text=brief(fault.text, 300),
        evidence=dict(fault.evidence),
    )


def finding_responded(finding: Finding, response: str) -> None:
    """The worker answered a finding; written once."""
    with transaction.atomic():
        changed = Finding.objects.filter(pk=finding.pk, responded_at__isnull=True).update(
            response=brief(response, 300), responded_at=clock.now()
        )
        if changed:
            event("node", finding.node.uid, "FindingAnswered", response, data={"finding": finding.uid})


def finding_acknowledge(*, actor: Actor, finding: Finding) -> None:
    """A person has seen it. Raises Forbidden, TransitionConflict."""
    if not can_operate_health(actor):
        raise Forbidden("only operators and administrators answer findings")
    with transaction.atomic():
        move(finding, TRANSITIONS, FindingPhase.ACKNOWLEDGED)
        record(actor, "finding.acknowledge", "finding", finding.uid, after={"node": finding.node.name})


def finding_resolve(*, actor: Actor, finding: Finding) -> None:
    """A person says it is dealt with; the node is resumed separately. Raises Forbidden, TransitionConflict."""
    if not can_operate_health(actor):
        raise Forbidden("only operators and administrators answer findings")
    with transaction.atomic():
        move(finding, TRANSITIONS, FindingPhase.RESOLVED, resolved_by=actor.name)
        record(actor, "finding.resolve", "finding", finding.uid, after={"node": finding.node.name})


def is_fatal(finding: Finding) -> bool:
    """Whether the node must take no new jobs and lose the ones it has."""
    return finding.severity in FATAL


def newly_faulty_nodes(cluster_id: int, within: timedelta = timedelta(minutes=10)) -> int:
    """How many nodes of a cluster got a fatal finding lately: what the circuit breaker counts."""
    return (
        Finding.objects.filter(
            node__cluster_id=cluster_id,
            severity__in=sorted(FATAL),
            phase__in=sorted(LIVE),
            first_seen_at__gt=clock.now() - within,
        )
        .values("node_id")
        .distinct()
        .count()
    )
