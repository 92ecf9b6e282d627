"""What the heat map and the node grid show: nodes with their GPUs and findings, in three queries for any number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.catalog.selectors import type_by_name, type_for_gpu
from apps.clusters.models import Node
from apps.clusters.states import NODE_COLOURS, NodePhase
from apps.core import units
from apps.health.heatmap import METRICS, STEPS, UNITS, UNKNOWN, Block, mark_of, state_levels, step_of, steps_legend
from apps.health.models import Finding, Gpu
from apps.health.states import FATAL, LIVE, SEVERITY_COLOURS
from apps.health.words import metric_label, state_label

_TAKES_JOBS = frozenset({NodePhase.READY})


@dataclass(frozen=True, slots=True)
class Figures:
    """The newest reading of one GPU; None is unknown."""

    index: int
    is_on_bus: bool
    temperature: float | None
    power: float | None
    sm: float | None
    tensor: float | None
    memory: float | None


@dataclass(frozen=True)
class NodeHealth:
    """One node with its GPUs, its live findings and the state of each slot."""

    node: Node
    figures: Sequence[Figures]
    findings: Sequence[Finding]
    levels: Sequence[str]

    @property
    def colour(self) -> str:
        """The colour word of the node: its worst finding, else its phase."""
        if any(f.severity in FATAL for f in self.findings):
            return "bad"
        phase = NODE_COLOURS.get(self.node.phase, "off")
        return "warn" if self.findings and phase == "good" else phase

    @property
    def words(self) -> str:
        """Name, state, use and findings in one line."""
        parts = [
            f"{self.node.name}: {self.node.get_phase_display()}",
            _("%(used)s of %(all)s GPUs in use") % {"used": self.node.gpus_used, "all": len(self.levels)},
        ]
        parts += [str(f.title) + (f" (GPU {f.gpu_index})" if f.gpu_index is not None else "") for f in self.findings]
        return "; ".join(parts)


def gpu_memory_mib(node: Node) -> int | None:
    """Memory of one GPU of a node as the catalog knows it."""
    kind = type_by_name(node.instance_type) or type_for_gpu(node.gpu_type)
    return kind.gpu_memory_mib if kind else None


def _percent(part: float | None) -> float | None:
    return None if part is None else part * 100


def node_healths(nodes: Iterable[Node]) -> list[NodeHealth]:
    """Health of these nodes, in their order; two queries."""
    listed = list(nodes)
    memory: dict[int, int | None] = {n.pk: gpu_memory_mib(n) for n in listed}
    figures: dict[int, list[Figures]] = {}
    rows = Gpu.objects.filter(node__in=memory).order_by("node_id", "index")
    for node_id, index, on_bus, temperature, power, sm, tensor, used in rows.values_list(
        "node_id", "index", "is_on_bus", "temperature_c", "power_w", "sm_active", "tensor_active", "memory_used_mib"
    ):
        whole = memory[node_id]
        share = used * 100 / whole if used is not None and whole else None
        figures.setdefault(node_id, []).append(
            Figures(index, on_bus, temperature, power, _percent(sm), _percent(tensor), share)
        )
    findings: dict[int, list[Finding]] = {}
    for finding in Finding.objects.filter(node__in=memory, phase__in=LIVE).order_by("-last_seen_at", "-id"):
        findings.setdefault(finding.node_id, []).append(finding)
    return [_health(n, figures.get(n.pk, []), findings.get(n.pk, [])) for n in listed]


def _health(node: Node, figures: Sequence[Figures], findings: Sequence[Finding]) -> NodeHealth:
    worst: dict[int | None, str] = {}
    for finding in findings:
        level = "bad" if SEVERITY_COLOURS[finding.severity] == "bad" else "warn"
        for slot in _slots_of(finding):
            if worst.get(slot) != "bad":
                worst[slot] = level
    kind = None if node.gpus else type_by_name(node.instance_type)
    levels = state_levels(
        gpus=kind.gpus if kind else node.gpus,
        used=node.gpus_used,
        takes_jobs=node.phase in _TAKES_JOBS,
        on_bus={f.index: f.is_on_bus for f in figures},
        activity={f.index: f.sm or 0.0 for f in figures},
        findings=worst,
    )
    return NodeHealth(node, figures, findings, levels)


def _slots_of(finding: Finding) -> list[int | None]:
    """The GPUs a finding is about: its own, those its evidence names, or (None) the node as a whole."""
    if finding.gpu_index is not None:
        return [finding.gpu_index]
    named = finding.evidence.get("without_gauges")
    if isinstance(named, list) and named and all(isinstance(slot, int) for slot in named):
        return list(named)
    return [None]


def blocks_of(healths: Iterable[NodeHealth], metric: str) -> list[Block]:
    """What the heat map draws for one metric."""
    return [Block(h.node.uid, _levels(h, metric), _words(h, metric)) for h in healths]


def _levels(health: NodeHealth, metric: str) -> Sequence[str]:
    if metric == "state":
        return health.levels
    if metric == "findings":
        return [level if level in ("warn", "bad", "off") else "free" for level in health.levels]
    values = {f.index: getattr(f, metric) if f.is_on_bus else None for f in health.figures}
    return [
        "off" if any(f.index == i and not f.is_on_bus for f in health.figures) else step_of(metric, values.get(i))
        for i in range(len(health.levels))
    ]


def _words(health: NodeHealth, metric: str) -> str:
    if metric not in STEPS:
        return health.words
    known = [v for v in (getattr(f, metric) for f in health.figures if f.is_on_bus) if v is not None]
    if not known:
        return f"{health.words}; " + _("no reading")
    low, high, unit = min(known), max(known), UNITS[metric]
    text = f"{low:.0f} {unit}" if round(low) == round(high) else f"{low:.0f}–{high:.0f} {unit}"
    return f"{health.words}; {metric_label(metric)} {text}"


def legend_of(metric: str, drawn: Iterable[str]) -> list[tuple[str, str, str]]:
    """(level, words, mark's path in a box of 9 × 9) of what the map may show; unknown only where it occurs."""
    seen = set(drawn)
    if metric == "state":
        entries = [(level, state_label(level)) for level in ("free", "used", "out", "warn", "bad", "off")]
    elif metric == "findings":
        entries = [("free", _("No finding"))] + [(level, state_label(level)) for level in ("warn", "bad", "off")]
    else:
        entries = steps_legend(metric)
        if "off" in seen:
            entries.append(("off", state_label("off")))
    if UNKNOWN in seen:
        entries.append((UNKNOWN, _("No reading")))
    return [(level, words, mark_of(level, 0, 0)) for level, words in entries]


def summary_of(healths: Sequence[NodeHealth]) -> str:
    """The state sentence of a set of nodes."""
    gpus = sum(h.node.gpus or len(h.figures) for h in healths)
    broken = sum(1 for h in healths for level in h.levels if level in ("bad", "off"))
    watched = sum(1 for h in healths for level in h.levels if level == "warn")
    fatal = sum(1 for h in healths if any(f.severity in FATAL for f in h.findings))
    if not gpus:
        return _("No GPU is known yet: connect a cluster or launch a fleet.")
    head = ngettext("%(gpus)s GPU on %(nodes)s nodes", "%(gpus)s GPUs on %(nodes)s nodes", gpus) % {
        "gpus": units.count(gpus),
        "nodes": units.count(len(healths)),
    }
    if not broken and not watched:
        return _("%(head)s: nothing is wrong with any of them.") % {"head": head}
    text = _("%(head)s: %(broken)s faulty, %(watched)s to watch.") % {
        "head": head,
        "broken": broken,
        "watched": watched,
    }
    if fatal:
        more = ngettext("%(n)s node needs someone.", "%(n)s nodes need someone.", fatal) % {"n": fatal}
        text = f"{text} {more}"
    return text


__all__ = ["METRICS", "NodeHealth", "blocks_of", "legend_of", "node_healths", "summary_of"]
