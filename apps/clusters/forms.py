"""The forms of a cluster, new or connected, and of a new fleet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.capacity.models import Reservation
from apps.catalog.selectors import all_types
from apps.clusters.fleet_rules import MAX_NODES
from apps.clusters.models import Cluster
from apps.clusters.states import CapacitySource
from apps.connections.models import CloudAccount
from apps.core import units
from apps.core.forms import PortalForm
from apps.teams.models import Team


class ClusterForm(PortalForm):
    """How to reach a scheduler. ``accounts`` are what machines may be launched in."""

    key = forms.CharField(max_length=64, widget=forms.HiddenInput)
    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=60, help_text=gettext_lazy("Lower-case letters, digits and dashes.")
    )
    api_url = forms.CharField(
        label=gettext_lazy("Address of slurmrestd"),
        max_length=200,
        help_text=gettext_lazy("Such as http://slurmctl.internal:6820; the version is found out."),
        widget=forms.TextInput(attrs={"inputmode": "url", "spellcheck": "false"}),
    )
    user_name = forms.CharField(label=gettext_lazy("Slurm user"), max_length=60)
    token_ref = forms.CharField(
        label=gettext_lazy("Token by reference"),
        max_length=200,
        help_text=gettext_lazy("env:NAME, file:NAME or aws:NAME of the secret with a JWT; never the token itself."),
        required=False,
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocomplete": "off"}),
    )
    jwt_key_ref = forms.CharField(
        label=gettext_lazy("Signing key by reference"),
        max_length=200,
        help_text=gettext_lazy("Slurm's jwt_key: with it everyone's jobs go with a short-lived token of their own."),
        required=False,
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocomplete": "off"}),
    )
    working_root = forms.CharField(
        label=gettext_lazy("Shared folder"),
        max_length=300,
        help_text=gettext_lazy("An absolute path that all nodes share; each job gets a folder below it."),
    )
    partition = forms.CharField(label=gettext_lazy("Default partition"), max_length=60, required=False)
    account = forms.ChoiceField(
        label=gettext_lazy("Cloud account"),
        required=False,
        help_text=gettext_lazy("Where fleets are launched; without one the nodes are someone else's."),
    )
    exporter_url = forms.CharField(
        label=gettext_lazy("DCGM exporter"),
        max_length=300,
        required=False,
        help_text=gettext_lazy("Such as http://{node}:9400/metrics; empty: no GPU health."),
    )
    responds_to_findings = forms.BooleanField(
        label=gettext_lazy("Drain a node with a fatal GPU finding and restart its jobs without asking"),
        required=False,
        initial=True,
    )

    def __init__(self, *args: Any, accounts: Sequence[CloudAccount], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accounts = {a.uid: a for a in accounts}
        field = self.fields["account"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", _("None")), *((a.uid, f"{a.name} ({a.region})") for a in accounts)]

    def values(self) -> dict[str, Any]:
        """What ``cluster_create`` and ``cluster_update`` take."""
        data = {k: v for k, v in self.cleaned_data.items() if k not in ("key", "account")}
        return data | {"account": self.accounts.get(self.cleaned_data["account"])}


class FleetForm(PortalForm):
    """A set of equal machines for one cluster. ``teams`` are whose they may be."""

    key = forms.CharField(max_length=64, widget=forms.HiddenInput)
    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=60, help_text=gettext_lazy("Lower-case letters, digits and dashes.")
    )
    instance_type = forms.ChoiceField(label=gettext_lazy("Instance type"))
    nodes = forms.IntegerField(label=gettext_lazy("Nodes"), min_value=1, max_value=MAX_NODES)
    source = forms.ChoiceField(
        label=gettext_lazy("Capacity"),
        choices=CapacitySource.choices,
        required=False,
        help_text=gettext_lazy("It decides market, reservation and placement of the launch."),
    )
    reservation = forms.ChoiceField(
        label=gettext_lazy("Reservation"), required=False, help_text=gettext_lazy("Only for ODCRs and blocks.")
    )
    other_instance_types = forms.CharField(
        label=gettext_lazy("Other types"),
        max_length=400,
        required=False,
        help_text=gettext_lazy("On demand only, with commas: AWS takes one type for all machines, in this order."),
        widget=forms.TextInput(attrs={"spellcheck": "false"}),
    )
    other_subnet_ids = forms.CharField(
        label=gettext_lazy("Other subnets"),
        max_length=400,
        required=False,
        help_text=gettext_lazy("On demand only, with commas: AWS takes one zone for all machines."),
        widget=forms.TextInput(attrs={"spellcheck": "false"}),
    )
    subnet_id = forms.CharField(
        label=gettext_lazy("Subnet"),
        max_length=40,
        help_text=gettext_lazy("subnet-…; it decides the zone."),
        widget=forms.TextInput(attrs={"spellcheck": "false"}),
    )
    security_group_ids = forms.CharField(
        label=gettext_lazy("Security groups"),
        max_length=400,
        help_text=gettext_lazy("sg-…, more than one with commas; one must let its own members reach each other."),
        widget=forms.TextInput(attrs={"spellcheck": "false"}),
    )
    image_id = forms.CharField(
        label=gettext_lazy("Image"),
        max_length=40,
        help_text=gettext_lazy("ami-… with the GPU driver, EFA and slurmd."),
        widget=forms.TextInput(attrs={"spellcheck": "false"}),
    )
    partition = forms.ChoiceField(label=gettext_lazy("Partition"), required=False)
    team = forms.ChoiceField(label=gettext_lazy("Team"), required=False)

    def __init__(
        self,
        *args: Any,
        cluster: Cluster,
        teams: Sequence[Team],
        reservations: Sequence[Reservation] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.reservations = {r.uid: r for r in reservations}
        self.teams = {t.slug: t for t in teams}
        types = [
            (
                t.name,
                f"{t.name} · {t.gpus} × {t.gpu} {t.gpu_memory_label} · "
                + (f"{units.usd(t.usd_per_hour)}/h" if t.usd_per_hour is not None else _("not on demand")),
            )
            for t in all_types()
        ]
        names = [str(p.get("name")) for p in cluster.observed_partitions]
        default = cluster.partition or "gpu"
        partitions = [("", _("Default (%(name)s)") % {"name": default}), *((n, n) for n in names if n != default)]
        teams_shown = [("", _("Shared by all teams")), *((t.slug, f"{t.name} ({t.slug})") for t in teams)]
        kept = [("", _("None")), *((r.uid, reservation_label(r)) for r in reservations)]
        for name, choices in (
            ("instance_type", types),
            ("partition", partitions),
            ("team", teams_shown),
            ("reservation", kept),
        ):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = choices

    def clean_security_group_ids(self) -> list[str]:
        """The groups one by one."""
        return _words(self.cleaned_data["security_group_ids"])

    def clean_other_instance_types(self) -> list[str]:
        """The types one by one."""
        return _words(self.cleaned_data["other_instance_types"])

    def clean_other_subnet_ids(self) -> list[str]:
        """The subnets one by one."""
        return _words(self.cleaned_data["other_subnet_ids"])

    def values(self) -> dict[str, Any]:
        """What ``fleet_create`` takes besides the cluster."""
        data = {k: v for k, v in self.cleaned_data.items() if k not in ("key", "team", "reservation", "source")}
        return data | {
            "team": self.teams.get(self.cleaned_data["team"]),
            "reservation": self.reservations.get(self.cleaned_data["reservation"]),
            "source": self.cleaned_data["source"] or CapacitySource.ON_DEMAND,
        }

    def checked(self) -> dict[str, Any]:
        """What ``preflight_ask`` takes besides the cluster."""
        return {k: v for k, v in self.values().items() if k not in ("name", "partition", "team")}


def _words(text: str) -> list[str]:
    return [s for s in re.split(r"[\s,]+", text) if s]


def reservation_label(row: Reservation) -> str:
    """A reservation in a choice: what, how many, where, until when."""
    end = f" → {row.end_at:%Y-%m-%d %H:%M}" if row.end_at else ""
    return f"{row} · {row.get_kind_display()} · {row.instances} × {row.instance_type} · {row.zone_id}{end}"
