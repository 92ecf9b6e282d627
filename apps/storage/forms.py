"""The forms of a new file system, of a tie to S3, of growth and of an export."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.connections.models import CloudAccount
from apps.core.forms import PortalForm
from apps.storage.rules import THROUGHPUTS
from apps.storage.states import FileSystemKind, RepositoryEvent
from apps.teams.models import Team

_PLAIN = {"spellcheck": "false", "autocomplete": "off"}


def _choose(form: forms.Form, name: str, choices: Sequence[tuple[str, Any]]) -> None:
    field = form.fields[name]
    assert isinstance(field, forms.ChoiceField)
    field.choices = list(choices)


class FileSystemForm(PortalForm):
    """A file system to make, or one that exists and is to be watched (``provider_id``)."""

    key = forms.CharField(max_length=64, widget=forms.HiddenInput)
    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=60, help_text=gettext_lazy("Lower-case letters, digits and dashes.")
    )
    account = forms.ChoiceField(label=gettext_lazy("Cloud account"))
    kind = forms.ChoiceField(label=gettext_lazy("Kind"), choices=FileSystemKind.choices)
    provider_id = forms.CharField(
        label=gettext_lazy("Adopt an existing one"),
        max_length=40,
        required=False,
        widget=forms.TextInput(attrs={**_PLAIN, "placeholder": "fs-…"}),
        help_text=gettext_lazy("Its id; then the rest is read from AWS, and it is never deleted from here."),
    )
    subnet_id = forms.CharField(
        label=gettext_lazy("Subnet"),
        max_length=40,
        required=False,
        widget=forms.TextInput(attrs=_PLAIN),
        help_text=gettext_lazy("subnet-…, in the zone of the nodes that read and write most."),
    )
    security_group_ids = forms.CharField(
        label=gettext_lazy("Security groups"),
        max_length=400,
        required=False,
        widget=forms.TextInput(attrs=_PLAIN),
        help_text=gettext_lazy("sg-…, more than one with commas; one must let its own members reach each other."),
    )
    capacity_gib = forms.IntegerField(
        label=gettext_lazy("Capacity"),
        min_value=0,
        max_value=2_000_000,
        required=False,
        help_text=gettext_lazy("1200 or a multiple of 2400; larger steps with EFA. It can grow, never shrink."),
    )
    throughput_mb_s_tib = forms.TypedChoiceField(
        label=gettext_lazy("Throughput"),
        coerce=int,
        choices=[(t, f"{t} MB/s/TiB") for t in THROUGHPUTS],
        required=False,
    )
    metadata_iops = forms.IntegerField(
        label=gettext_lazy("Metadata IOPS"),
        min_value=0,
        max_value=192_000,
        required=False,
        help_text=gettext_lazy("0 or empty: automatic, with the capacity."),
    )
    has_efa = forms.BooleanField(label=gettext_lazy("EFA and GPUDirect Storage"), required=False)
    is_compressed = forms.BooleanField(label=gettext_lazy("Compress with LZ4"), required=False, initial=True)
    team = forms.ChoiceField(label=gettext_lazy("Team"), required=False)

    def __init__(self, *args: Any, accounts: Sequence[CloudAccount], teams: Sequence[Team], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Needed unless an existing one is adopted, so neither optional nor always required; a tick is never missing.
        for name in (
            "subnet_id",
            "security_group_ids",
            "capacity_gib",
            "throughput_mb_s_tib",
            "has_efa",
            "is_compressed",
        ):
            setattr(self.fields[name], "is_unmarked", True)  # noqa: B010
        self.accounts = {a.uid: a for a in accounts}
        self.teams = {t.slug: t for t in teams}
        _choose(self, "account", [(a.uid, f"{a.name} ({a.region})") for a in accounts])
        _choose(self, "team", [("", _("Shared by all teams")), *((t.slug, f"{t.name} ({t.slug})") for t in teams)])

    def clean_security_group_ids(self) -> list[str]:
        """The groups one by one."""
        return [s for s in re.split(r"[\s,]+", self.cleaned_data["security_group_ids"]) if s]

    @property
    def is_adoption(self) -> bool:
        """Whether an id was given."""
        return bool(self.cleaned_data.get("provider_id"))

    def values(self) -> dict[str, Any]:
        """What ``file_system_create`` or, with an id, ``file_system_adopt`` takes."""
        data = self.cleaned_data
        common = {
            "account": self.accounts[data["account"]],
            "team": self.teams.get(data["team"]),
            "name": data["name"],
            "kind": data["kind"],
        }
        if self.is_adoption:
            return common | {"provider_id": data["provider_id"]}
        return common | {
            "subnet_id": data["subnet_id"],
            "security_group_ids": data["security_group_ids"],
            "capacity_gib": data["capacity_gib"] or 0,
            "throughput_mb_s_tib": data["throughput_mb_s_tib"] or 0,
            "metadata_iops": data["metadata_iops"] or 0,
            "has_efa": data["has_efa"],
            "is_compressed": data["is_compressed"],
        }


class AssociationForm(PortalForm):
    """A folder to tie to an S3 prefix."""

    path = forms.CharField(
        label=gettext_lazy("Folder"),
        max_length=1024,
        initial="/ckpt",
        widget=forms.TextInput(attrs=_PLAIN),
        help_text=gettext_lazy("Inside the file system."),
    )
    repository = forms.CharField(
        label=gettext_lazy("S3 prefix"),
        max_length=1024,
        widget=forms.TextInput(attrs={**_PLAIN, "placeholder": "s3://"}),
    )
    imports = forms.MultipleChoiceField(
        label=gettext_lazy("From S3 by itself"),
        choices=RepositoryEvent.choices,
        required=False,
        initial=[RepositoryEvent.NEW, RepositoryEvent.CHANGED],
        widget=forms.CheckboxSelectMultiple,
    )
    exports = forms.MultipleChoiceField(
        label=gettext_lazy("To S3 by itself"),
        choices=RepositoryEvent.choices,
        required=False,
        initial=[RepositoryEvent.NEW, RepositoryEvent.CHANGED],
        widget=forms.CheckboxSelectMultiple,
        help_text=gettext_lazy("With deleted files, an rm on Lustre also removes the copy in S3."),
    )
    is_imported_at_start = forms.BooleanField(
        label=gettext_lazy("List what S3 holds already"), required=False, initial=True
    )


class GrowForm(PortalForm):
    """A larger capacity."""

    capacity_gib = forms.IntegerField(label=gettext_lazy("New capacity"), min_value=1200, max_value=2_000_000)


class ExportForm(PortalForm):
    """Folders to export now."""

    paths = forms.CharField(
        label=gettext_lazy("Folders"),
        required=False,
        max_length=4000,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
        help_text=gettext_lazy("One a line, such as ckpt/run-12; empty: everything that is tied to S3."),
    )
