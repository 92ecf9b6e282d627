"""The forms of clusters that AWS keeps: one a kind, one to adopt, one to correct; groups are in ``group_forms``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.clusters import group_rules
from apps.clusters.group_forms import GroupForm
from apps.clusters.managed_fields import WordsField, security_groups_field, subnets_field, text_field
from apps.clusters.managed_rules import (
    EKS_ADDONS,
    EKS_ADDONS_DEFAULT,
    EKS_VERSIONS,
    IDLE_S_MOST,
    PCS_SIZES,
    PCS_VERSIONS,
    SETTINGS,
)
from apps.clusters.managed_services import REACH
from apps.clusters.states import KINDS_SLURM, ClusterKind
from apps.connections.models import CloudAccount
from apps.core.errors import Refusal
from apps.core.forms import PortalForm


class ReachForm(PortalForm):
    """How jobs are submitted; dropped where no Slurm runs. ``kind`` is the cluster's."""

    user_name = text_field(gettext_lazy("Slurm user"), 60, required=False)
    token_ref = text_field(
        gettext_lazy("Token by reference"),
        200,
        gettext_lazy("env:NAME, file:NAME or aws:NAME of the secret with a JWT; never the token itself."),
        required=False,
    )
    jwt_key_ref = text_field(
        gettext_lazy("Signing key by reference"),
        200,
        gettext_lazy("Slurm's jwt_key: with it everyone's jobs go with a short-lived token of their own."),
        required=False,
    )
    working_root = text_field(
        gettext_lazy("Shared folder"),
        300,
        gettext_lazy("An absolute path that all nodes share; each job gets a folder below it."),
        required=False,
    )
    api_url = text_field(
        gettext_lazy("Address of slurmrestd"),
        200,
        gettext_lazy("Empty: as AWS says, where it does."),
        required=False,
        inputmode="url",
    )
    partition = text_field(gettext_lazy("Default partition"), 60, required=False)
    exporter_url = text_field(
        gettext_lazy("DCGM exporter"),
        300,
        gettext_lazy("Such as http://{node}:9400/metrics; empty: no GPU health."),
        required=False,
    )

    def __init__(self, *args: Any, kind: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kind = kind
        if kind not in KINDS_SLURM:
            for name in REACH:
                del self.fields[name]

    @property
    def reaches(self) -> bool:
        """Whether jobs can be submitted to this kind at all."""
        return self.kind in KINDS_SLURM

    def reach(self) -> dict[str, str]:
        """How jobs are submitted, as the services take it."""
        return {name: self.cleaned_data[name] for name in REACH if name in self.fields}


class ManagedForm(ReachForm):
    """What every new cluster is asked."""

    key = forms.CharField(max_length=64, widget=forms.HiddenInput)
    name = text_field(gettext_lazy("Name"), 60, gettext_lazy("Lower-case letters, digits and dashes."))
    account = forms.ChoiceField(label=gettext_lazy("Cloud account"))

    def __init__(self, *args: Any, accounts: Sequence[CloudAccount], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accounts = {a.uid: a for a in accounts}
        field = self.fields["account"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(a.uid, f"{a.name} ({a.region})") for a in accounts]

    @property
    def settings_fields(self) -> tuple[str, ...]:
        """What its kind wants to know."""
        return tuple(name for name in SETTINGS[self.kind] if name in self.fields)

    def settings(self) -> dict[str, Any]:
        """What its kind wants to know, of what is valid so far."""
        return {name: self.cleaned_data[name] for name in self.settings_fields if name in self.cleaned_data}

    def chosen_account(self) -> CloudAccount | None:
        """The account as it is chosen now, valid or not."""
        return self.accounts.get(str(self["account"].value() or "")) or next(iter(self.accounts.values()), None)

    def now(self, name: str) -> Any:
        """A field's value as it stands: cleaned where it was sent and is valid, else as the form began."""
        if self.is_bound:
            return self.cleaned_data.get(name) if hasattr(self, "cleaned_data") else None
        return self.get_initial_for_field(self.fields[name], name) if name in self.fields else None

    def heads(self) -> list[dict[str, Any]]:
        """Groups that the form itself asks for, before the one that is typed."""
        return []


class PcsForm(ManagedForm):
    """AWS PCS."""

    version = forms.ChoiceField(label=gettext_lazy("Slurm version"), choices=[(v, v) for v in PCS_VERSIONS])
    size = forms.ChoiceField(
        label=gettext_lazy("Size"), help_text=gettext_lazy("It cannot be changed later; it decides the price too.")
    )
    subnet_ids = subnets_field(gettext_lazy("Exactly one, subnet-…, for the controller."))
    security_group_ids = security_groups_field()
    idle_s = forms.IntegerField(
        label=gettext_lazy("Stop idle machines after"), initial=600, min_value=1, max_value=IDLE_S_MOST
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["size"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [
            (size, _("%(size)s: %(nodes)s nodes, %(jobs)s jobs") % {"size": size, "nodes": nodes, "jobs": jobs})
            for size, (nodes, jobs) in PCS_SIZES.items()
        ]


class EksForm(ManagedForm):
    """Amazon EKS."""

    version = forms.ChoiceField(label=gettext_lazy("Kubernetes version"), choices=[(v, v) for v in EKS_VERSIONS])
    role_arn = text_field(
        gettext_lazy("Role of the control plane"), 300, gettext_lazy("arn:aws:iam::…:role/…, trusted by eks.")
    )
    subnet_ids = subnets_field(gettext_lazy("Two or more, subnet-…, in different zones, for the control plane."))
    security_group_ids = security_groups_field(required=False)
    admin_arns = WordsField(
        label=gettext_lazy("Administrators"),
        max_length=2000,
        help_text=gettext_lazy("ARNs of roles or users that may do everything in the cluster, with commas."),
    )
    addons = forms.MultipleChoiceField(
        label=gettext_lazy("Add-ons"),
        choices=[(a, a) for a in EKS_ADDONS],
        required=False,
        initial=list(EKS_ADDONS_DEFAULT),
        widget=forms.CheckboxSelectMultiple,
    )


class _HyperPodForm(ManagedForm):
    subnet_ids = subnets_field(gettext_lazy("One or more, subnet-…, in the zone of the capacity."))
    security_group_ids = security_groups_field()
    recovers = forms.BooleanField(
        label=gettext_lazy("Replace or reboot faulty nodes by itself"), required=False, initial=True
    )
    role_arn = text_field(
        gettext_lazy("Execution role"), 300, gettext_lazy("arn:aws:iam::…:role/…; it must read the scripts.")
    )
    lifecycle_s3 = text_field(
        gettext_lazy("Lifecycle scripts"), 300, gettext_lazy("A folder in S3 whose bucket begins with sagemaker-.")
    )
    on_create = text_field(gettext_lazy("Script to run"), 128)

    def shared(self) -> dict[str, Any]:
        """What all groups of the cluster have in common, of what is valid so far."""
        data = self.cleaned_data
        settings = {name: data[name] for name in ("lifecycle_s3", "on_create") if name in data}
        return {"role_arn": data.get("role_arn", ""), "settings": settings}


class HyperPodSlurmForm(_HyperPodForm):
    """SageMaker HyperPod on Slurm."""

    field_of: ClassVar[dict[str, str]] = {"/groups": "controller_type"}

    controller_type = forms.ChoiceField(
        label=gettext_lazy("Controller's machine"),
        choices=[(t, f"ml.{t}") for t in group_rules.HEAD_TYPES],
        initial="m5.xlarge",
        help_text=gettext_lazy("One machine that runs slurmctld; it needs no GPU."),
    )

    def heads(self) -> list[dict[str, Any]]:
        """The controller."""
        shared = self.shared()
        settings = {**shared["settings"], "node_type": group_rules.CONTROLLER}
        kind = self.cleaned_data.get("controller_type", "")
        return [{**shared, "name": "controller", "instance_type": kind, "nodes": 1, "settings": settings}]


class HyperPodEksForm(_HyperPodForm):
    """SageMaker HyperPod on EKS."""

    eks_cluster_arn = text_field(
        gettext_lazy("EKS cluster"),
        300,
        gettext_lazy("arn:aws:eks:…:cluster/…, in this account and region; HyperPod's nodes join it."),
    )


class ParallelClusterForm(ManagedForm):
    """AWS ParallelCluster."""

    pcluster_api_url = text_field(
        gettext_lazy("Address of the ParallelCluster API"),
        300,
        gettext_lazy("Which an operator has put into the account: https://….execute-api.….amazonaws.com/…"),
        inputmode="url",
    )
    config = forms.CharField(
        label=gettext_lazy("Configuration"),
        max_length=100_000,
        strip=False,
        help_text=gettext_lazy(
            "YAML, as its command line takes it. ParallelCluster checks it before it makes anything."
        ),
        widget=forms.Textarea(attrs={"rows": 18, "spellcheck": "false", "class": "code"}),
    )


FORMS: dict[str, type[ManagedForm]] = {
    ClusterKind.PCS: PcsForm,
    ClusterKind.EKS: EksForm,
    ClusterKind.HYPERPOD_SLURM: HyperPodSlurmForm,
    ClusterKind.HYPERPOD_EKS: HyperPodEksForm,
    ClusterKind.PARALLELCLUSTER: ParallelClusterForm,
}


class AdoptForm(ManagedForm):
    """A cluster that is in the account already."""

    name_at_provider = text_field(
        gettext_lazy("Name in AWS"), 100, gettext_lazy("As AWS's console lists it; the worker looks for it.")
    )


class ManagedEditForm(ReachForm):
    """What may be corrected of a cluster that AWS keeps."""

    name = text_field(gettext_lazy("Name"), 60, gettext_lazy("Lower-case letters, digits and dashes."))
    responds_to_findings = forms.BooleanField(
        label=gettext_lazy("Drain a node with a fatal GPU finding and restart its jobs without asking"), required=False
    )

    def values(self) -> dict[str, Any]:
        """What ``cluster_update`` takes."""
        return {
            **self.reach(),
            "name": self.cleaned_data["name"],
            "responds_to_findings": self.cleaned_data["responds_to_findings"],
        }


def show_at(refusal: Refusal, form: ManagedForm, group_form: GroupForm | None, first: int) -> None:
    """A refusal's problems at their fields; ``first`` is the index of the typed group among those that were sent."""
    for problem in refusal.problems:
        place = problem.pointer.strip("/").split("/")
        if place[0] == "groups" and len(place) == 3:
            name = "controller_type" if place[2] == "instance_type" and int(place[1]) < first else place[2]
            if group_form is not None and int(place[1]) == first and place[2] in group_form.fields:
                group_form.add_error(place[2], problem.detail)
                continue
            form.add_error(name if name in form.fields else None, problem.detail)
        else:
            name = form.field_of.get(problem.pointer, place[0])
            form.add_error(name if name in form.fields else None, problem.detail)
    if not refusal.problems:
        form.add_error(None, refusal.detail)
