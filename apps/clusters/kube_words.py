"""Sentences and rows of a cluster's Kubernetes for pages and API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.kube_states import KubeScheduler
from apps.clusters.models import Cluster

#: The resource whose quota is shown; the others follow from it.
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class FlavorRow:
    """One flavor of a queue in GPUs. ``borrowing`` and ``lending`` None: all that there is."""

    flavor: str
    nominal: int
    used: int
    borrowed: int
    borrowing: int | None
    lending: int | None


@dataclass(frozen=True)
class QueueRow:
    """One ClusterQueue as Kueue has it."""

    name: str
    cohort: str
    team: str
    is_ours: bool
    is_active: bool
    message: str
    pending: int
    admitted: int
    weight: str
    flavors: tuple[FlavorRow, ...]


def kubernetes_sentence(cluster: Cluster, settings: KubernetesSettings | None) -> str:
    """How jobs get there, in one sentence."""
    if settings is None:
        return _("The portal watches this cluster's machines only: say below how it reaches Kubernetes.")
    version = str(settings.observed.get("version") or "")
    if not version:
        return _("Kubernetes has not answered yet.")
    if settings.scheduler == KubeScheduler.KUEUE:
        kueue = str(settings.observed.get("kueue") or "")
        if not kueue:
            text = _("Kubernetes %(version)s answers and serves no Kueue: nothing would begin. Let the portal do it.")
            return text % {"version": version}
        text = _("Kubernetes %(version)s; Kueue (%(kueue)s) lets jobs begin by the teams' quotas.")
        return text % {"version": version, "kueue": kueue}
    if settings.scheduler == KubeScheduler.PLAIN:
        text = _("Kubernetes %(version)s; the portal lets a job begin once all its pods fit at the same time.")
        return text % {"version": version}
    text = _("Kubernetes %(version)s; %(scheduler)s lets gangs begin.")
    return text % {"version": version, "scheduler": settings.get_scheduler_display()}


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _most(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def queue_rows(rows: Sequence[Mapping[str, Any]]) -> list[QueueRow]:
    """Stored queues as rows: ours first, then by name."""
    found = []
    for row in rows:
        flavors = tuple(
            FlavorRow(
                str(part.get("flavor")),
                _number(part.get("nominal")),
                _number(part.get("used")),
                _number(part.get("borrowed")),
                _most(part.get("borrowing")),
                _most(part.get("lending")),
            )
            for part in row.get("flavors", [])
            if part.get("resource") == GPU
        )
        found.append(
            QueueRow(
                name=str(row.get("name")),
                cohort=str(row.get("cohort") or ""),
                team=str(row.get("team") or ""),
                is_ours=bool(row.get("is_ours")),
                is_active=bool(row.get("is_active", True)),
                message=str(row.get("message") or ""),
                pending=_number(row.get("pending")),
                admitted=_number(row.get("admitted")),
                weight=str(row.get("weight") or ""),
                flavors=flavors,
            )
        )
    return sorted(found, key=lambda one: (not one.is_ours, one.name))
