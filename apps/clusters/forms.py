"""The forms of a cluster, new or connected, and of a new fleet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.catalog.selectors import all_types
from apps.clusters.fleet_rules import MAX_NODES
from apps.clusters.models import Cluster
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
        help_text=gettext_lazy("env:NAME or file:NAME of the secret that holds the JWT; never the token itself."),
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

    def __init__(self, *args: Any, cluster: Cluster, teams: Sequence[Team], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
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
        for name, choices in (("instance_type", types), ("partition", partitions), ("team", teams_shown)):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = choices

    def clean_security_group_ids(self) -> list[str]:
        """The groups one by one."""
        return [s for s in re.split(r"[\s,]+", self.cleaned_data["security_group_ids"]) if s]

    def values(self) -> dict[str, Any]:
        """What ``fleet_create`` takes besides the cluster."""
        data = {k: v for k, v in self.cleaned_data.items() if k not in ("key", "team")}
        return data | {"team": self.teams.get(self.cleaned_data["team"])}
