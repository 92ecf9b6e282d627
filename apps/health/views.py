"""Pages of GPU health: the heat map, one node, the inbox of findings, the catalogue of XID codes."""

from __future__ import annotations

import json
from typing import Any

from django.db.models import F, FloatField, QuerySet, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django_filters import FilterSet

from apps.audit.selectors import events_of
from apps.audit.timeline import lines_of
from apps.clusters.cloud_events import planned_for
from apps.clusters.selectors import cluster_for, clusters_visible_to, node_for, node_sentence, nodes_visible_to
from apps.core import clock
from apps.core.errors import BadQuery
from apps.core.filters import ChoicesFilter, KnownFilter, TextFilter
from apps.core.forms import is_htmx
from apps.core.lists import csv_answer, filtered_rows, listing
from apps.core.pages import Page
from apps.health.api import FindingFilter
from apps.health.heatmap import METRICS, Drawing, draw
from apps.health.models import Gpu, XidCode
from apps.health.overview import NodeHealth, blocks_of, gpu_memory_mib, legend_of, node_healths, summary_of
from apps.health.permissions import can_operate_health
from apps.health.selectors import (
    finding_for,
    finding_sentence,
    findings_visible_to,
    gpus_visible_to,
    xid_codes,
    xid_names,
)
from apps.health.services import finding_acknowledge, finding_resolve
from apps.health.states import FATAL, LIVE, FindingPhase, Severity
from apps.health.words import NODE_WORDS, metric_label, missing_input

#: Node cards up to here, one drawing beyond.
MAX_CARDS = 64


def drawing_of(healths: list[NodeHealth], metric: str) -> tuple[Drawing, list[tuple[str, str, str]]]:
    """The map and its legend."""
    drawn = draw(blocks_of(healths, metric))
    return drawn, legend_of(metric, drawn.squares)


class HealthPage(Page):
    """The heat map of every cluster, or of one."""

    right = "health.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page, or with htmx its live part. Raises BadQuery."""
        unknown = sorted(set(request.GET) - {"metric", "cluster"})
        if unknown:
            raise BadQuery(f"unknown query parameter {', '.join(unknown)}; known here: cluster, metric")
        metric = request.GET.get("metric", "state")
        if metric not in METRICS:
            raise BadQuery(f"metric: {metric} is not one of {', '.join(METRICS)}")
        clusters = list(clusters_visible_to(self.actor)[:200])
        wanted = request.GET.get("cluster", "")
        shown = [c for c in clusters if c.name == wanted] if wanted else clusters
        if wanted and not shown:
            raise BadQuery(_("cluster: there is no cluster %(name)s") % {"name": wanted})
        nodes = list(nodes_visible_to(self.actor).filter(cluster__in=shown).order_by("cluster__name", "name"))
        healths = node_healths(nodes)
        maps = []
        for cluster in shown:
            own = [h for h in healths if h.node.cluster_id == cluster.pk]
            if own:
                maps.append((cluster, *drawing_of(own, metric), summary_of(own)))
        context = {
            "maps": maps,
            "sentence": summary_of(healths),
            "metric": metric,
            "metric_label": metric_label(metric),
            "metrics": [(m, metric_label(m)) for m in METRICS],
            "clusters": clusters,
            "cluster": wanted,
            "period_s": 15 if len(healths) <= 256 else 60,
            "has_nodes": bool(healths),
            "may_operate": can_operate_health(self.actor),
        }
        return render(request, "health/health.html#live" if is_htmx(request) else "health/health.html", context)


class NodeGrid(Page):
    """The nodes of one cluster for the page of the cluster, which stands below this floor: a fragment."""

    right = "health.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Cards up to 64 nodes, one drawing beyond."""
        cluster = cluster_for(actor=self.actor, may="clusters.view", uid=uid)
        healths = node_healths(nodes_visible_to(self.actor).filter(cluster=cluster).order_by("name"))
        drawn, legend = drawing_of(healths, "state")
        context: dict[str, Any] = {"cluster": cluster, "healths": healths, "legend": legend, "drawn": drawn}
        context["cards"] = [(h, draw([block])) for h, block in zip(healths, blocks_of(healths, "state"), strict=True)]
        if len(healths) > MAX_CARDS:
            context["cards"] = []
        return render(request, "health/node_grid.html", context)


class NodePage(Page):
    """One node: its sentence, its GPUs, its findings, what happened to it."""

    right = "health.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page, or with htmx its live part."""
        node = node_for(actor=self.actor, may="clusters.view", uid=uid)
        health = node_healths([node])[0]
        gpus = list(Gpu.objects.filter(node=node).order_by("index"))
        names = xid_names(g.xid_last for g in gpus if g.xid_last)
        levels = dict(enumerate(health.levels))
        findings = list(findings_visible_to(self.actor).filter(node=node).order_by("-last_seen_at", "-id")[:50])
        context = {
            "node": node,
            "sentence": node_sentence(node),
            "gpus": [(g, levels.get(g.index, "free"), names.get(g.xid_last or 0, "")) for g in gpus],
            "memory_mib": gpu_memory_mib(node),
            "live_findings": [f for f in findings if f.phase in LIVE],
            "old_findings": [f for f in findings if f.phase not in LIVE],
            "planned": planned_for(node),
            "missing": [(name, missing_input(name)) for name in node.exporter_missing],
            "has_exporter": bool(node.cluster.exporter_url),
            "lines": lines_of(events_of([node.uid], 100), NODE_WORDS),
            "may_operate": can_operate_health(self.actor),
            "is_out": bool(node.drain_requested_at) or node.phase in ("DRAINING", "DRAINED", "DOWN"),
        }
        return render(request, "health/node.html#live" if is_htmx(request) else "health/node.html", context)


# --- the same as a table -----------------------------------------------------------------------------

_FIGURES = {
    "temperature": "temperature_c",
    "power": "power_w",
    "sm": "sm_active",
    "tensor": "tensor_active",
    "memory": "memory_used_mib",
}


class GpuFilter(FilterSet):  # type: ignore[misc]
    """By cluster, presence on the bus, text."""

    cluster = KnownFilter("node__cluster__name", known=clusters_visible_to, column="name")
    on_bus = ChoicesFilter("is_on_bus", values=["True", "False"])
    q = TextFilter("node__name", "uuid", "model")

    class Meta:
        model = Gpu
        fields: list[str] = []


GPU_SORTS = {
    "node": "node_name",
    "-node": "-node_name",
    **{f"{sign}{name}": f"{sign}sort_{name}" for name in _FIGURES for sign in ("-", "")},
}


def _sortable(rows: QuerySet[Gpu]) -> QuerySet[Gpu]:
    """Columns that sort: an unknown figure counts as lowest."""
    figures = {
        f"sort_{name}": Coalesce(F(column), Value(-1.0), output_field=FloatField()) for name, column in _FIGURES.items()
    }
    return rows.annotate(node_name=F("node__name"), **figures)


class GpuTable(Page):
    """Every GPU with its newest readings: what the heat map shows, as a table."""

    right = "health.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page. Raises BadQuery."""
        found = listing(
            request,
            _sortable(gpus_visible_to(self.actor)),
            GpuFilter,
            sorts=GPU_SORTS,
            labels={"cluster": _("Cluster"), "on_bus": _("On the bus"), "q": _("Text")},
            words={"on_bus": lambda v: _("yes") if v == "True" else _("no")},
            columns={
                "bus": (3, gettext_lazy("Bus")),
                "temperature": (4, gettext_lazy("Temperature")),
                "power": (5, gettext_lazy("Power")),
                "sm": (6, gettext_lazy("SM active")),
                "tensor": (7, gettext_lazy("Tensor active")),
                "memory": (8, gettext_lazy("Memory in use")),
                "xid": (9, gettext_lazy("Last XID")),
                "read": (10, gettext_lazy("Read")),
            },
        )
        context = {"list": found, "clusters": list(clusters_visible_to(self.actor)[:200])}
        return render(request, "health/gpus.html", context)


class GpuCsv(Page):
    """The filtered GPUs as CSV."""

    right = "health.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """By node and slot."""
        rows, _values = filtered_rows(request, gpus_visible_to(self.actor), GpuFilter, ("sort", "cursor"))
        header = ["cluster", "node", "gpu", "model", "uuid", "pci_bus_id", "on_bus", *_FIGURES.values(), "xid_last"]
        header += ["row_remap_pending", "row_remap_failure", "ecc_dbe_volatile", "observed_at"]
        lines = (
            [g.node.cluster.name, g.node.name, g.index, g.model, g.uuid, g.pci_bus_id, g.is_on_bus]
            + [getattr(g, column) for column in _FIGURES.values()]
            + [g.xid_last, g.row_remap_pending, g.row_remap_failure, g.ecc_dbe_volatile, clock.iso(g.observed_at)]
            for g in rows.order_by("node__name", "index")[:20_001]
        )
        return csv_answer("gpus", header, lines)


# --- findings ------------------------------------------------------------------------------------------

FINDING_SORTS = {
    "-last_seen_at": "-last_seen_at",
    "last_seen_at": "last_seen_at",
    "-created_at": "-created_at",
    "created_at": "created_at",
    "node": "node_name",
    "-node": "-node_name",
    "-count": "-count",
    "count": "count",
}
FINDING_LABELS = {
    "phase": gettext_lazy("State"),
    "severity": gettext_lazy("Severity"),
    "cluster": gettext_lazy("Cluster"),
    "node": gettext_lazy("Node"),
    "code": gettext_lazy("Code"),
    "source": gettext_lazy("Source"),
    "q": gettext_lazy("Text"),
}


class FindingList(Page):
    """The inbox of findings."""

    right = "health.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page, or with htmx its rows. Raises BadQuery."""
        rows = findings_visible_to(self.actor).annotate(node_name=F("node__name"))
        found = listing(
            request,
            rows,
            FindingFilter,
            sorts=FINDING_SORTS,
            labels=FINDING_LABELS,
            words={
                "phase": lambda v: str(FindingPhase(v).label),
                "severity": lambda v: str(Severity(v).label),
            },
            columns={
                "severity": (2, gettext_lazy("Severity")),
                "state": (3, gettext_lazy("State")),
                "node": (4, gettext_lazy("Node")),
                "answer": (5, gettext_lazy("What was done, what to do")),
                "count": (6, gettext_lazy("How often")),
                "last_seen": (7, gettext_lazy("Last seen")),
            },
        )
        context = {
            "list": found,
            "phases": FindingPhase.choices,
            "severities": Severity.choices,
            "clusters": list(clusters_visible_to(self.actor)[:200]),
            "live": ",".join(sorted(LIVE)),
            "fatal": ",".join(sorted(FATAL)),
            "has_live": not found.rows or any(f.phase in LIVE for f in found.rows),
            "may_operate": can_operate_health(self.actor),
        }
        return render(request, "health/findings.html#rows" if is_htmx(request) else "health/findings.html", context)


class FindingPage(Page):
    """One finding with its evidence as it was read."""

    right = "health.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page."""
        finding = finding_for(actor=self.actor, may="health.view", uid=uid)
        code = None
        if finding.source == "xid" and finding.code.isdigit():
            code = XidCode.objects.filter(code=int(finding.code)).first()
        context = {
            "finding": finding,
            "sentence": finding_sentence(finding),
            "code": code,
            "evidence": sorted((k, _plain(v)) for k, v in finding.evidence.items()),
            "raw": json.dumps(finding.evidence, indent=2, sort_keys=True, ensure_ascii=False),
            "events": list(
                finding.node.health_events.filter(
                    source=finding.source, code=finding.code, gpu_uuid=finding.gpu_uuid
                ).order_by("-at", "-id")[:20]
            ),
            "is_fatal": finding.severity in FATAL,
            "is_live": finding.phase in LIVE,
            # The worker answers a fatal finding within seconds: the page shows it without a reload.
            "is_settling": finding.phase in LIVE and finding.severity in FATAL and finding.responded_at is None,
            "may_operate": can_operate_health(self.actor),
        }
        return render(request, "health/finding.html", context)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class FindingAnswer(Page):
    """Acknowledge or resolve."""

    right = "health.operate"
    verb = ""

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Answer it and go back to where the answer was given."""
        finding = finding_for(actor=self.actor, may="health.operate", uid=uid)
        if self.verb == "acknowledge":
            finding_acknowledge(actor=self.actor, finding=finding)
            self.say(_("%(title)s is acknowledged.") % {"title": finding.title})
        else:
            finding_resolve(actor=self.actor, finding=finding)
            self.say(
                _("%(title)s is resolved. A drained node is returned to service separately.") % {"title": finding.title}
            )
        back = reverse("findings") if request.POST.get("back") == "list" else reverse("finding", args=[finding.uid])
        return HttpResponseRedirect(back)


# --- the XID catalogue -----------------------------------------------------------------------------------


class XidFilter(FilterSet):  # type: ignore[misc]
    """By severity, code, text."""

    severity = ChoicesFilter("severity", values=Severity.choices)
    q = TextFilter("code", "mnemonic", "meaning", "nvidia_immediate_action", "suggested_action", "fault_class")

    class Meta:
        model = XidCode
        fields = ["code"]


class XidPage(Page):
    """NVIDIA's XID codes and what this site does about each."""

    right = "health.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page. Raises BadQuery."""
        found = listing(
            request,
            xid_codes(),
            XidFilter,
            sorts={"code": "code", "-code": "-code", "name": "mnemonic", "-name": "-mnemonic"},
            labels={"severity": _("Severity"), "code": _("Code"), "q": _("Text")},
            words={"severity": lambda v: str(Severity(v).label)},
            limit=200,
            columns={
                "nvidia": (3, gettext_lazy("NVIDIA's action")),
                "severity": (4, gettext_lazy("Severity here")),
                "action": (5, gettext_lazy("Action here")),
            },
        )
        context = {
            "list": found,
            "severities": Severity.choices,
            "sources": list(dict.fromkeys(c.source for c in found.rows if c.source)),
            "may_edit": self.actor.everywhere("quotas.manage") and getattr(request.user, "is_staff", False),
        }
        return render(request, "health/xid.html", context)
