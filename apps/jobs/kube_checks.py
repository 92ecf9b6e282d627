"""Whether a job can be had on a cluster that runs Kubernetes: image, kind, priority, and nothing of Slurm's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.kube_selectors import kubernetes_of
from apps.clusters.kube_states import WorkloadKind
from apps.clusters.models import Cluster
from apps.core.errors import FieldProblem
from apps.jobs.dependency_rules import Wait
from apps.jobs.kube_rules import (
    CLASS_NAME,
    SET_BY,
    WRITTEN,
    calls_srun,
    class_names,
    image_problem,
    kind_for,
    kinds_served,
)

if TYPE_CHECKING:
    from apps.jobs.services import JobSpec


def served_by(settings: KubernetesSettings | None) -> list[str]:
    """The kinds that a cluster's server takes."""
    observed = settings.observed.get("kinds") if settings is not None else None
    return kinds_served(observed if isinstance(observed, list) else None)


def with_cluster_defaults(spec: JobSpec, cluster: Cluster) -> JobSpec:
    """The spec with the cluster's image and kind where it names none; unchanged on Slurm."""
    settings = kubernetes_of(cluster)
    if not cluster.is_kubernetes or spec.manifest:
        return replace(spec, workload_kind=WorkloadKind.MANIFEST) if cluster.is_kubernetes else spec
    default = settings.default_kind if settings is not None else ""
    return replace(
        spec,
        image=spec.image.strip() or (settings.default_image if settings is not None else ""),
        workload_kind=kind_for(spec.workload_kind, default, served_by(settings), is_array=bool(spec.array.strip())),
    )


def check_scheduler(spec: JobSpec, cluster: Cluster, for_slurm: Sequence[Wait]) -> list[FieldProblem]:
    """What the cluster's scheduler does not understand; ``for_slurm`` are the conditions that Slurm itself would keep.

    ``spec`` has the cluster's defaults already.
    """
    return _of_kubernetes(spec, cluster, for_slurm) if cluster.is_kubernetes else _of_slurm(spec, cluster)


def _of_slurm(spec: JobSpec, cluster: Cluster) -> list[FieldProblem]:
    text = _("cluster %(name)s runs Slurm, which does not know this") % {"name": cluster.name}
    given: tuple[str, ...] = ("image", "workload_kind", "priority_class")
    if spec.manifest:
        text = _("cluster %(name)s runs Slurm, and a manifest is for Kubernetes") % {"name": cluster.name}
        given = ("manifest",)
    return [FieldProblem(f"/{name}", "not-here", text) for name in given if getattr(spec, name)]


def _of_kubernetes(spec: JobSpec, cluster: Cluster, for_slurm: Sequence[Wait]) -> list[FieldProblem]:
    text = _("cluster %(name)s runs Kubernetes, which does not know this") % {"name": cluster.name}
    problems = [FieldProblem(f"/{n}", "not-here", text) for n in ("partition", "parts") if getattr(spec, n)]
    if spec.slurm_options:
        problems.append(FieldProblem("/slurm_options", "not-here", text))
    if for_slurm:
        named = ", ".join(wait.text for wait in for_slurm)
        words = _("%(named)s is for Slurm to keep; on Kubernetes name jobs of the portal") % {"named": named}
        problems.append(FieldProblem("/dependency", "not-here", words))
    if not spec.manifest:
        problems += _pods(spec, cluster)
    return problems + _priority(spec, kubernetes_of(cluster))


def _pods(spec: JobSpec, cluster: Cluster) -> list[FieldProblem]:
    problems = []
    if words := image_problem(spec.image):
        problems.append(FieldProblem("/image", "required" if not spec.image else "invalid", words))
    kind = spec.workload_kind
    served = served_by(kubernetes_of(cluster))
    if kind not in WRITTEN:
        facts = {"kind": kind, "known": ", ".join(WRITTEN)}
        problems.append(FieldProblem("/workload_kind", "unknown", _("%(kind)s is not one of %(known)s") % facts))
    elif kind not in served:
        facts = {"name": cluster.name, "kind": str(WorkloadKind(kind).label)}
        facts["known"] = ", ".join(str(WorkloadKind(one).label) for one in served)
        words = _("cluster %(name)s has no %(kind)s; it has %(known)s") % facts
        problems.append(FieldProblem("/workload_kind", "not-here", words))
    if spec.array.strip() and (kind != WorkloadKind.INDEXED_JOB or spec.nodes > 1):
        words = _("on Kubernetes an array is an Indexed Job of tasks of one node each")
        problems.append(FieldProblem("/array", "invalid", words))
    for name in SET_BY.get(kind, ()):
        if name in spec.environment:
            words = _("a %(kind)s sets this by itself") % {"kind": WorkloadKind(kind).label}
            problems.append(FieldProblem(f"/environment/{name}", "invalid", words))
    return problems


def _priority(spec: JobSpec, settings: KubernetesSettings | None) -> list[FieldProblem]:
    if not spec.priority_class:
        return []
    if not CLASS_NAME.fullmatch(spec.priority_class):
        words = _("a name of small letters, digits, - and ., such as high")
        return [FieldProblem("/priority_class", "invalid", words)]
    known = class_names(settings.priority_classes) if settings is not None else []
    if known and spec.priority_class not in known:
        facts = {"name": spec.priority_class, "known": ", ".join(known)}
        words = _("no priority class %(name)s; there are %(known)s") % facts
        return [FieldProblem("/priority_class", "unknown", words)]
    return []


def kubernetes_warnings(script: str, cluster: Cluster) -> list[str]:
    """What a script does that comes to nothing in a pod."""
    if cluster.is_kubernetes and calls_srun(script):
        return [_("the script calls srun, which no pod has: on Kubernetes it runs once a node; call torchrun instead")]
    return []
