"""Fields of a new job that Kubernetes alone knows, and which fields a cluster's scheduler shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.clusters.kube_selectors import kubernetes_of
from apps.clusters.kube_states import WorkloadKind
from apps.clusters.models import Cluster
from apps.jobs.kube_checks import served_by
from apps.jobs.kube_rules import MAX_IMAGE, class_names
from apps.jobs.manifests import MAX_MANIFEST_BYTES, Flaw, read_text
from apps.jobs.option_rules import FIELDS
from apps.jobs.part_forms import PartFields

#: Fields of the form that mean nothing on the other scheduler.
ON_SLURM = ("partition", "slurm_options", *FIELDS)
ON_KUBERNETES = ("image", "workload_kind", "priority_class")
#: Fields that a manifest says itself: with one they are neither shown nor sent.
IN_MANIFEST = (
    *("nodes", "gpus_per_node", "gpu_type", "tasks_per_node", "cpus_per_task", "memory", "max_recoveries", "array"),
    *("parts", "retry_rules", "environment", "script", *ON_SLURM, *ON_KUBERNETES),
)
SLURM, KUBERNETES = "slurm", "kubernetes"


def scheduler_word(cluster: Cluster | None) -> str:
    """Which fields a cluster shows."""
    return KUBERNETES if cluster is not None and cluster.is_kubernetes else SLURM


def strange_fields(scheduler: str) -> tuple[str, ...]:
    """Fields that this scheduler does not know."""
    return ON_SLURM if scheduler == KUBERNETES else ON_KUBERNETES


def default_image(cluster: Cluster | None) -> str:
    """The image that a cluster gives to who names none."""
    settings = kubernetes_of(cluster) if cluster is not None and cluster.is_kubernetes else None
    return settings.default_image if settings is not None else ""


class KubernetesFields(PartFields):
    """Image, kind and priority class; which choices there are the chosen cluster says."""

    image = forms.CharField(
        label=gettext_lazy("Image"),
        required=False,
        max_length=MAX_IMAGE,
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocapitalize": "off"}),
        help_text=gettext_lazy("The container in which the script runs, such as registry/pytorch:2.9-cuda13."),
    )
    manifest = forms.CharField(
        label=gettext_lazy("Manifest"),
        required=False,
        strip=False,
        widget=forms.Textarea(
            attrs={"rows": 20, "spellcheck": "false", "autocapitalize": "off", "class": "script-box"}
        ),
        help_text=gettext_lazy(
            "YAML of one or more objects. Labels of its owner are added, all else is sent to the letter. At most 1 MiB."
        ),
    )
    manifest_file = forms.FileField(label=gettext_lazy("Manifest file"), required=False)
    workload_kind = forms.ChoiceField(label=gettext_lazy("Written as"), required=False)
    priority_class = forms.CharField(label=gettext_lazy("Priority class"), required=False, max_length=63)

    @cached_property
    def given_manifest(self) -> tuple[str, tuple[Flaw, ...]]:
        """The manifest as text, from the file or the text box, and what is wrong with it as a whole."""
        if (self.data if self.is_bound else self.initial).get("source") != "manifest":
            return "", ()
        upload = self.files.get("manifest_file") if self.files else None
        if upload is None:
            return read_text(str((self.data if self.is_bound else self.initial).get("manifest") or ""))
        return read_text(upload.read(MAX_MANIFEST_BYTES + 1))

    def choose_kinds(self, cluster: Cluster | None) -> None:
        """Offer what the cluster serves; what it does not stays choosable, so that the refusal can name it."""
        served = served_by(kubernetes_of(cluster)) if cluster is not None and cluster.is_kubernetes else []
        given = self.data.get("workload_kind") if self.is_bound else self.initial.get("workload_kind")
        if given in WorkloadKind.values and given not in (*served, WorkloadKind.MANIFEST):
            served = [*served, str(given)]
        field = self.fields["workload_kind"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", _("Automatic")), *((kind, WorkloadKind(kind).label) for kind in served)]
        settings = kubernetes_of(cluster) if cluster is not None and cluster.is_kubernetes else None
        names = class_names(settings.priority_classes) if settings is not None else []
        priority = self.fields["priority_class"]
        if names:
            asked = str((self.data if self.is_bound else self.initial).get("priority_class") or "")
            rows = [("", _("Default")), *((name, name) for name in names)]
            priority.widget = forms.Select(choices=rows if asked in ("", *names) else [*rows, (asked, asked)])
        elif settings is not None:
            priority.help_text = _("A WorkloadPriorityClass of Kueue; empty: its default.")


def image_fill(clusters: Mapping[str, Cluster], chosen: Cluster | None, given: str) -> dict[str, str]:
    """The image that a change of cluster fills in: its default, unless a person wrote another than a default."""
    wanted = default_image(chosen)
    known: Sequence[str] = [default_image(cluster) for cluster in clusters.values()]
    return {"image": wanted} if wanted and wanted != given and (not given or given in known) else {}


def kubernetes_values(row: Any) -> dict[str, str]:
    """Form values of a job, or a spec, for these fields."""
    kind = "" if row.workload_kind == WorkloadKind.MANIFEST else row.workload_kind
    return {"image": row.image, "workload_kind": kind, "priority_class": row.priority_class}
