"""One spec on either scheduler: what the other one alone understands is left out, and told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext_lazy

from apps.clusters.kube_states import WorkloadKind
from apps.clusters.models import Cluster

if TYPE_CHECKING:
    from apps.jobs.services import JobSpec

#: Members that only one scheduler understands, with their labels and what stands for nothing.
SLURMS: tuple[tuple[str, Any, Any], ...] = (
    ("partition", gettext_lazy("Partition"), ""),
    ("slurm_options", gettext_lazy("More Slurm options"), ()),
)
KUBERNETES: tuple[tuple[str, Any, Any], ...] = (
    ("image", gettext_lazy("Image"), ""),
    ("workload_kind", gettext_lazy("Written as"), ""),
    ("priority_class", gettext_lazy("Priority class"), ""),
)


def fitted(spec: JobSpec, cluster: Cluster) -> tuple[JobSpec, tuple[str, ...]]:
    """The spec as this cluster's scheduler can take it, and what had to be left out, in the words of the form.

    Further parts and a manifest are the job itself: they stay, and are refused where they cannot be.
    """
    strange = SLURMS if cluster.is_kubernetes else KUBERNETES
    # A template that is a manifest is refused as a whole where it cannot be.
    kept = {"workload_kind"} if spec.workload_kind == WorkloadKind.MANIFEST else set()
    left = [(name, label, empty) for name, label, empty in strange if getattr(spec, name) and name not in kept]
    if not left:
        return spec, ()
    told = tuple(f"{label}: {_words(spec, name)}" for name, label, _empty in left)
    return replace(spec, **{name: empty for name, _label, empty in left}), told


def _words(spec: JobSpec, name: str) -> str:
    """A member's value for people."""
    value = getattr(spec, name)
    if name == "workload_kind" and value in WorkloadKind.values:
        return str(WorkloadKind(value).label)
    return ", ".join(value) if name == "slurm_options" else str(value)
