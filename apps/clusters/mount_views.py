"""The mounts of a cluster: the form that adds one, and taking one out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.clusters.models import Cluster
from apps.clusters.mount_services import mount_add, mount_remove
from apps.clusters.selectors import cluster_for, mount_for
from apps.clusters.states import MountKind, MountPurpose
from apps.core.errors import Refusal
from apps.core.forms import PortalForm
from apps.core.pages import Page
from apps.storage.models import FileSystem
from apps.storage.selectors import file_systems_visible_to
from apps.storage.states import FileSystemPhase

_PLAIN = {"spellcheck": "false", "autocomplete": "off"}


class MountForm(PortalForm):
    """Where nodes find some data. ``file_systems`` are what can be mounted."""

    kind = forms.ChoiceField(label=gettext_lazy("Kind"), choices=MountKind.choices)
    purpose = forms.ChoiceField(label=gettext_lazy("For"), choices=MountPurpose.choices)
    path = forms.CharField(
        label=gettext_lazy("Folder on the nodes"),
        max_length=200,
        widget=forms.TextInput(attrs={**_PLAIN, "placeholder": "/fsx"}),
    )
    file_system = forms.ChoiceField(
        label=gettext_lazy("File system"), required=False, help_text=gettext_lazy("For Lustre and EFS.")
    )
    source = forms.CharField(
        label=gettext_lazy("S3 address"),
        max_length=300,
        required=False,
        widget=forms.TextInput(attrs={**_PLAIN, "placeholder": "s3://"}),
        help_text=gettext_lazy("For Mountpoint."),
    )

    def __init__(self, *args: Any, file_systems: Sequence[FileSystem], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.file_systems = {f.uid: f for f in file_systems}
        field = self.fields["file_system"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", "–"), *((f.uid, f"{f.name} ({f.get_kind_display()})") for f in file_systems)]

    def values(self) -> dict[str, Any]:
        """What ``mount_add`` takes."""
        data = dict(self.cleaned_data)
        return data | {"file_system": self.file_systems.get(data["file_system"])}


class MountNew(Page):
    """Add a mount to a cluster."""

    right = "clusters.operate"

    def _form(self, cluster: Cluster, *args: Any, **kwargs: Any) -> MountForm:
        rows = file_systems_visible_to(self.actor).exclude(phase=FileSystemPhase.DELETED)
        if cluster.account_id is not None:
            rows = rows.filter(account_id=cluster.account_id)
        return MountForm(*args, file_systems=list(rows), **kwargs)

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """An empty form."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        return render(request, "clusters/mount_new.html", {"cluster": cluster, "form": self._form(cluster)})

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Add it; a refusal shows at its fields."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        form = self._form(cluster, request.POST)
        if form.is_valid():
            try:
                mount_add(actor=self.actor, cluster=cluster, **form.values())
                return HttpResponseRedirect(reverse("cluster", args=[cluster.uid]))
            except Refusal as refusal:
                form.show(refusal)
        return render(request, "clusters/mount_new.html", {"cluster": cluster, "form": form}, status=422)


class MountRemove(Page):
    """Take a mount out of the record."""

    right = "clusters.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Do it and go back to the cluster."""
        mount = mount_for(actor=self.actor, may="clusters.operate", uid=uid)
        cluster = mount.cluster
        mount_remove(actor=self.actor, mount=mount)
        self.say(_("%(path)s is no longer listed.") % {"path": mount.path})
        return HttpResponseRedirect(reverse("cluster", args=[cluster.uid]))
