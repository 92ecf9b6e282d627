"""The forms of a cluster's Kubernetes: how it is reached, where a team runs, what it has of its own."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.catalog.selectors import all_types
from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.kube_rules import mounts_text, read_mounts
from apps.clusters.kube_services import SETTINGS
from apps.clusters.kube_states import Allowance, KubeAuth, KubeScheduler, WorkloadKind
from apps.clusters.models import Cluster
from apps.clusters.states import LimitsMode
from apps.connections.models import CloudAccount
from apps.core.forms import PortalForm
from apps.teams.models import Team

_PLAIN = {"spellcheck": "false", "autocomplete": "off", "autocapitalize": "off"}
_KINDS = [(k.value, k.label) for k in WorkloadKind if k != WorkloadKind.MANIFEST]


def _line(label: Any, most: int, text: Any = "", **attrs: Any) -> forms.CharField:
    return forms.CharField(
        label=label, max_length=most, required=False, help_text=text, widget=forms.TextInput(attrs=_PLAIN | attrs)
    )


def _lines(label: Any, text: Any, rows: int = 3) -> forms.CharField:
    return forms.CharField(
        label=label,
        max_length=8000,
        required=False,
        help_text=text,
        widget=forms.Textarea(attrs={"rows": rows, **_PLAIN}),
    )


class KubernetesForm(PortalForm):
    """How jobs reach a cluster's Kubernetes and what they get there."""

    auth = forms.ChoiceField(label=gettext_lazy("The worker comes in with"), choices=KubeAuth.choices)
    kubeconfig_ref = _line(
        gettext_lazy("Kubeconfig by reference"),
        200,
        gettext_lazy("env:NAME, file:NAME or aws:NAME of the secret with the kubeconfig; never its text."),
    )
    context = _line(gettext_lazy("Context"), 120, gettext_lazy("Empty: the kubeconfig's current one."))
    scheduler = forms.ChoiceField(
        label=gettext_lazy("Who lets jobs begin"),
        choices=KubeScheduler.choices,
        help_text=gettext_lazy("Without Kueue the portal keeps jobs suspended until all their pods fit at once."),
    )
    default_kind = forms.ChoiceField(
        label=gettext_lazy("Jobs are written as"),
        choices=[("", gettext_lazy("the first that fits and is served")), *_KINDS],
        required=False,
    )
    default_image = _line(gettext_lazy("Image to begin with"), 500)
    mounts = _lines(
        gettext_lazy("Volumes of every pod"),
        gettext_lazy(
            "Claim and path, a line each, such as fsx /fsx; then a folder in the claim, then ro for reading only. "
            "Checkpoints lie on the first."
        ),
    )
    namespace_prefix = _line(
        gettext_lazy("Namespace prefix"),
        30,
        gettext_lazy("Before a team's name, where no namespace was entered for it."),
    )
    topology_level = _line(
        gettext_lazy("Nodes together by label"),
        120,
        gettext_lazy("Such as topology.k8s.aws/network-node-layer-2: nodes of a job are wished below one value."),
    )
    priority_classes = _line(
        gettext_lazy("Priority classes"),
        1000,
        gettext_lazy("Kueue's WorkloadPriorityClasses that jobs may name, with spaces; the portal does not make them."),
    )
    pod_priority_class = _line(gettext_lazy("Pods' priority class"), 63)
    service_account = _line(gettext_lazy("Pods' service account"), 63)
    pull_secrets = _line(
        gettext_lazy("Pull secrets"), 500, gettext_lazy("Names with spaces, in each team's namespace.")
    )
    cohort = _line(
        gettext_lazy("Cohort"), 63, gettext_lazy("Whose queues borrow from each other; empty: nobody borrows.")
    )
    limits_mode = forms.ChoiceField(
        label=gettext_lazy("Teams' shares in Kueue"),
        choices=LimitsMode.choices,
        help_text=gettext_lazy("Shares and quotas as ClusterQueues, LocalQueues, flavors and a cohort."),
    )
    allowances = forms.MultipleChoiceField(
        label=gettext_lazy("Manifests of people may also use"),
        choices=Allowance.choices,
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    host_paths = _line(
        gettext_lazy("Folders of the host that they may mount"),
        1000,
        gettext_lazy("Absolute, with spaces; empty: none."),
    )
    exporter_url = _line(
        gettext_lazy("DCGM exporter"),
        300,
        gettext_lazy("Such as http://{node}:9400/metrics; empty: no GPU health."),
    )
    outside_team = forms.ChoiceField(
        label=gettext_lazy("Team of jobs that nobody owns"),
        required=False,
        help_text=gettext_lazy("For workloads in namespaces that belong to no team."),
    )
    responds_to_findings = forms.BooleanField(
        label=gettext_lazy("Cordon a node with a fatal GPU finding and restart its jobs without asking"),
        required=False,
        initial=True,
    )

    def __init__(self, *args: Any, teams: Sequence[Team] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teams = {team.slug: team for team in teams}
        field = self.fields["outside_team"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", "–"), *((t.slug, f"{t.name} ({t.slug})") for t in teams)]

    @staticmethod
    def initial_of(cluster: Cluster, settings: KubernetesSettings | None) -> dict[str, Any]:
        """The fields as they are now."""
        row = settings or KubernetesSettings()
        found: dict[str, Any] = {name: getattr(row, name) for name in SETTINGS}
        found["mounts"] = mounts_text(row.mounts)
        for name in ("pull_secrets", "priority_classes", "host_paths"):
            found[name] = " ".join(getattr(row, name))
        if settings is None and not cluster.is_managed:
            found["auth"] = KubeAuth.KUBECONFIG
        return found | {
            "exporter_url": cluster.exporter_url,
            "responds_to_findings": cluster.responds_to_findings,
            "limits_mode": cluster.limits_mode,
            "outside_team": cluster.outside_team.slug if cluster.outside_team else "",
        }

    def values(self) -> dict[str, Any]:
        """What ``kubernetes_settings_put`` takes."""
        data = dict(self.cleaned_data)
        data["mounts"] = read_mounts(data["mounts"])
        for name in ("pull_secrets", "priority_classes", "host_paths"):
            data[name] = data[name].split()
        return data | {"outside_team": self.teams.get(data["outside_team"])}

    def add_error(self, field: str | None, error: Any) -> None:
        """A problem of one line of mounts belongs to all of them."""
        super().add_error("mounts" if field and field.startswith("mounts/") else field, error)


class KubernetesNewForm(KubernetesForm):
    """A cluster that no AWS service keeps."""

    key = forms.CharField(max_length=64, widget=forms.HiddenInput)
    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=60, help_text=gettext_lazy("Lower-case letters, digits and dashes.")
    )
    account = forms.ChoiceField(
        label=gettext_lazy("Cloud account"),
        required=False,
        help_text=gettext_lazy("Where secrets of AWS are read; without one the nodes are someone else's."),
    )

    #: What is entered later, on the cluster's own page.
    LATER = ("limits_mode", "outside_team", "responds_to_findings", "allowances", "host_paths")

    def __init__(self, *args: Any, accounts: Sequence[CloudAccount], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self.LATER:
            del self.fields[name]
        self.accounts = {a.uid: a for a in accounts}
        auth, account = self.fields["auth"], self.fields["account"]
        assert isinstance(auth, forms.ChoiceField)
        assert isinstance(account, forms.ChoiceField)
        auth.choices = [(k.value, k.label) for k in (KubeAuth.KUBECONFIG, KubeAuth.IN_CLUSTER)]
        account.choices = [("", _("None")), *((a.uid, f"{a.name} ({a.region})") for a in accounts)]

    def values(self) -> dict[str, Any]:
        """What ``kubernetes_connect`` takes."""
        data = {k: v for k, v in self.cleaned_data.items() if k != "key"}
        data["mounts"] = read_mounts(data["mounts"])
        for name in ("pull_secrets", "priority_classes"):
            data[name] = data[name].split()
        return data | {"account": self.accounts.get(data["account"])}


class NamespaceForm(PortalForm):
    """Where a team's jobs run."""

    team = forms.ChoiceField(label=gettext_lazy("Team"))
    namespace = forms.CharField(label=gettext_lazy("Namespace"), max_length=63, widget=forms.TextInput(attrs=_PLAIN))
    queue = _line(
        gettext_lazy("LocalQueue"), 63, gettext_lazy("Empty: one that the portal keeps; else one that is there.")
    )
    weight = forms.DecimalField(
        label=gettext_lazy("Fair-share weight"), min_value=0, max_value=1000, decimal_places=2, initial=Decimal(1)
    )

    def __init__(self, *args: Any, teams: Sequence[Team], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teams = {team.slug: team for team in teams}
        _of_teams(self, teams)

    def values(self) -> dict[str, Any]:
        """What ``team_namespace_put`` takes."""
        return {**self.cleaned_data, "team": self.teams[self.cleaned_data["team"]]}


class ShareForm(PortalForm):
    """GPUs of one type for a team."""

    share_team = forms.ChoiceField(label=gettext_lazy("Team"))
    instance_type = forms.ChoiceField(label=gettext_lazy("Instance type"))
    gpus = forms.IntegerField(label=gettext_lazy("Own GPUs"), min_value=0)
    borrowing_gpus = forms.IntegerField(
        label=gettext_lazy("May borrow"), min_value=0, required=False, help_text=gettext_lazy("Empty: up to its quota.")
    )
    lending_gpus = forms.IntegerField(
        label=gettext_lazy("May lend"),
        min_value=0,
        required=False,
        help_text=gettext_lazy("Empty: all that it leaves."),
    )

    field_of = {"/team": "share_team"}

    def __init__(self, *args: Any, teams: Sequence[Team], types: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teams = {team.slug: team for team in teams}
        _of_teams(self, teams, "share_team")
        known = [t.name for t in all_types() if t.gpus]
        field = self.fields["instance_type"]
        assert isinstance(field, forms.ChoiceField)
        # What the cluster has comes first.
        field.choices = [(name, name) for name in [*types, *(n for n in known if n not in types)]]

    def values(self) -> dict[str, Any]:
        """What ``team_share_put`` takes."""
        data = dict(self.cleaned_data)
        slug = data.pop("share_team")
        return {**data, "team": self.teams[slug]}


def _of_teams(form: forms.Form, teams: Sequence[Team], name: str = "team") -> None:
    field = form.fields[name]
    assert isinstance(field, forms.ChoiceField)
    field.choices = [(t.slug, f"{t.name} ({t.slug})") for t in teams]
