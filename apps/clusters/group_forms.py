"""The form of a node group, of its counts, and of what is asked of HyperPod about nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.capacity.models import Reservation
from apps.catalog.selectors import all_types
from apps.clusters import group_rules
from apps.clusters.forms import reservation_label
from apps.clusters.managed_fields import security_groups_field, subnets_field, text_field
from apps.clusters.states import ClusterKind, GroupSource, NodeVerb
from apps.core import units
from apps.core.forms import PortalForm
from apps.teams.models import Team


def type_choices() -> list[tuple[str, str]]:
    """Types of the catalog with GPUs and price."""
    return [
        (
            t.name,
            f"{t.name} · {t.gpus} × {t.gpu} {t.gpu_memory_label} · "
            + (f"{units.usd(t.usd_per_hour)}/h" if t.usd_per_hour is not None else _("not on demand")),
        )
        for t in all_types()
    ]


class GroupForm(PortalForm):
    """A node group of a cluster of one kind. In a new cluster's form it may be left out: by an empty name."""

    key = forms.CharField(max_length=64, widget=forms.HiddenInput, required=False)
    name = text_field(gettext_lazy("Name of the group"), 63)
    instance_type = forms.ChoiceField(label=gettext_lazy("Instance type"))
    nodes = forms.IntegerField(label=gettext_lazy("Nodes"), min_value=0, max_value=group_rules.MOST_NODES)
    min_nodes = forms.IntegerField(
        label=gettext_lazy("Always running"),
        min_value=0,
        required=False,
        initial=0,
        help_text=gettext_lazy("The rest starts when jobs wait."),
    )
    source = forms.ChoiceField(label=gettext_lazy("Capacity"), required=False)
    reservation = forms.ChoiceField(label=gettext_lazy("Reservation"), required=False)
    node_type = forms.ChoiceField(
        label=gettext_lazy("Role in Slurm"),
        choices=[(t, t) for t in (group_rules.COMPUTE, group_rules.LOGIN)],
        required=False,
    )
    queue = text_field(gettext_lazy("Queue"), 40, required=False)
    subnet_ids = subnets_field(gettext_lazy("One, subnet-…; it decides the zone, and EFA does not cross zones."))
    security_group_ids = security_groups_field()
    role_arn = text_field(gettext_lazy("Role of the nodes"), 300)
    image_id = text_field(
        gettext_lazy("Image"), 40, gettext_lazy("ami-… made for PCS; the newest stands in SSM: /aws/service/pcs/ami/.")
    )
    lifecycle_s3 = text_field(
        gettext_lazy("Lifecycle scripts"), 300, gettext_lazy("A folder in S3 whose bucket begins with sagemaker-.")
    )
    on_create = text_field(gettext_lazy("Script to run"), 128)
    deep_checks = forms.BooleanField(
        label=gettext_lazy("Stress and connectivity checks before a node joins"),
        required=False,
        help_text=gettext_lazy("About an hour longer; a node that fails is replaced."),
    )
    repairs = forms.BooleanField(
        label=gettext_lazy("Node repair: AWS reboots or replaces faulty nodes"), required=False, initial=True
    )
    team = forms.ChoiceField(label=gettext_lazy("Team"), required=False)

    def __init__(
        self,
        *args: Any,
        kind: str,
        teams: Sequence[Team],
        reservations: Sequence[Reservation],
        shares: Iterable[str] = (),
        is_optional: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.kind = kind
        self.teams = {t.slug: t for t in teams}
        wanted = {r for s in group_rules.SOURCES[kind] for r in group_rules.RESERVED.get(s, ())}
        self.reservations = {r.uid: r for r in reservations if r.kind in wanted}
        for name in (*_UNUSED[kind], *shares):
            self.fields.pop(name, None)
        self._choices()
        if kind == ClusterKind.EKS:
            self.fields["role_arn"].help_text = _("arn:aws:iam::…:role/…, with the policies of EKS's workers.")
        elif kind == ClusterKind.PCS:
            self.fields["role_arn"].label = _("Instance profile")
            self.fields["role_arn"].help_text = _(
                "arn:aws:iam::…:instance-profile/AWSPCS…; its name begins with AWSPCS."
            )
            self.fields["nodes"].label = _("Nodes at most")
        elif kind == ClusterKind.HYPERPOD_SLURM:
            self.fields["queue"].label = _("Partition")
        self.has_group = True
        if is_optional and self.is_bound and not str(self["name"].value() or "").strip():
            self.has_group = False
            for field in self.fields.values():
                field.required = False
        if is_optional:
            self.fields["name"].help_text = _("Empty: the cluster is made without machines; add them later.")

    def _choices(self) -> None:
        sources = group_rules.SOURCES[self.kind]
        heads = [(t, _("%(type)s · no GPU") % {"type": f"ml.{t}"}) for t in group_rules.HEAD_TYPES]
        types = [*type_choices(), *(heads if "node_type" in self.fields else ())]
        for name, choices in (
            ("instance_type", types),
            ("source", [(s, str(GroupSource(s).label)) for s in sources]),
            (
                "reservation",
                [
                    ("", _("None")),
                    *((r.uid, f"{reservation_label(r)} · {r.account.name}") for r in self.reservations.values()),
                ],
            ),
            (
                "team",
                [("", _("Shared by all teams")), *((t.slug, f"{t.name} ({t.slug})") for t in self.teams.values())],
            ),
        ):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = choices

    def now(self) -> dict[str, Any]:
        """Name, type, counts, source and reservation as they stand, for the plan."""
        if self.is_bound:
            self.is_valid()
            data = {k: self.cleaned_data.get(k) for k in ("name", "instance_type", "nodes", "min_nodes", "source")}
        else:
            data = {
                k: self.get_initial_for_field(self.fields[k], k)
                for k in ("name", "instance_type", "nodes", "min_nodes", "source")
                if k in self.fields
            }
        data["reservation"] = self.reservations.get(str(self["reservation"].value() or ""))
        return data

    def values(self) -> dict[str, Any]:
        """A group as the services take it."""
        data = self.cleaned_data
        settings: dict[str, Any] = {}
        for name in ("lifecycle_s3", "on_create", "deep_checks", "repairs"):
            if name in data:
                settings[name] = data[name]
        if self.kind == ClusterKind.HYPERPOD_SLURM:
            settings["node_type"] = data.get("node_type") or group_rules.COMPUTE
        found = {
            name: data[name]
            for name in ("name", "instance_type", "nodes", "subnet_ids", "security_group_ids", "role_arn", "image_id")
            if name in data
        }
        return found | {
            "min_nodes": data.get("min_nodes") or 0,
            "queue": data.get("queue", ""),
            "source": data.get("source") or GroupSource.ON_DEMAND,
            "reservation": self.reservations.get(data.get("reservation", "")),
            "team": self.teams.get(data.get("team", "")),
            "settings": settings,
        }


#: Fields that a kind has no use for.
_UNUSED: dict[str, tuple[str, ...]] = {
    ClusterKind.PCS: ("node_type", "lifecycle_s3", "on_create", "deep_checks", "repairs"),
    ClusterKind.EKS: ("min_nodes", "node_type", "queue", "image_id", "lifecycle_s3", "on_create", "deep_checks"),
    ClusterKind.HYPERPOD_SLURM: ("min_nodes", "subnet_ids", "security_group_ids", "image_id", "repairs"),
    ClusterKind.HYPERPOD_EKS: (
        "min_nodes",
        "node_type",
        "queue",
        "subnet_ids",
        "security_group_ids",
        "image_id",
        "repairs",
    ),
}


class ResizeForm(PortalForm):
    """Other counts of a group."""

    nodes = forms.IntegerField(label=gettext_lazy("Nodes"), min_value=0, max_value=group_rules.MOST_NODES)
    min_nodes = forms.IntegerField(label=gettext_lazy("Always running"), min_value=0, required=False)

    def __init__(self, *args: Any, kind: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if kind != ClusterKind.PCS:
            del self.fields["min_nodes"]


class NodesForm(PortalForm):
    """What to ask of HyperPod about nodes, and why."""

    key = forms.CharField(max_length=64, widget=forms.HiddenInput)
    verb = forms.ChoiceField(label=gettext_lazy("What to do"), choices=NodeVerb.choices)
    reason = forms.CharField(
        label=gettext_lazy("Why"), max_length=300, help_text=gettext_lazy("It stays in the audit trail.")
    )
