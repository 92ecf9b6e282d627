"""Who is who in Slurm in the admin console; the cluster's own page does the same with CSV."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest

from apps.audit.staff import RecordedAdmin
from apps.clusters.slurm_models import SlurmAccount, SlurmUser
from apps.clusters.slurm_services import account_problems, user_problems


class SlurmUserForm(forms.ModelForm):  # type: ignore[type-arg]
    """A row with the same checks as everywhere else."""

    class Meta:
        model = SlurmUser
        fields = ("cluster", "user_name", "user", "service_account", "uid_number", "gid_number", "gids", "team")

    def clean(self) -> dict[str, Any]:
        """What is wrong, at its field."""
        data = super().clean() or {}
        given = {name: data.get(name) for name in self.Meta.fields if name != "cluster"}
        given |= {"user_name": data.get("user_name") or self.instance.user_name, "gids": data.get("gids") or []}
        for problem in user_problems(given):
            name = problem.pointer.strip("/")
            self.add_error(name if name in self.fields else None, problem.detail)
        data["gids"] = given["gids"]
        return data


class SlurmAccountForm(forms.ModelForm):  # type: ignore[type-arg]
    """A row with the same checks as everywhere else."""

    class Meta:
        model = SlurmAccount
        fields = ("cluster", "account", "team", "is_default")

    def clean_account(self) -> str:
        """What can be an account."""
        name = str(self.cleaned_data["account"]).strip()
        for problem in account_problems(name):
            raise forms.ValidationError(problem.detail)
        return name


class _Fixed(RecordedAdmin):
    """Cluster and name of a row stay: another name is another row."""

    right = "clusters.operate"
    may_delete = True
    fixed: tuple[str, ...] = ()

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Of a row that is there."""
        return self.fixed if obj is not None else ()


@admin.register(SlurmUser)
class SlurmUserAdmin(_Fixed):
    """A user of a cluster's Slurm and who that is."""

    form = SlurmUserForm
    kind = "slurm-user"
    fixed = ("cluster", "user_name")
    recorded = ("cluster", "user_name", "user", "service_account", "uid_number", "gid_number", "gids", "team")
    list_display = ("user_name", "cluster", "user", "service_account", "uid_number", "team")
    list_filter = ("cluster",)
    search_fields = ("user_name", "user__username")


@admin.register(SlurmAccount)
class SlurmAccountAdmin(_Fixed):
    """An account of a cluster's Slurm and whose it is."""

    form = SlurmAccountForm
    kind = "slurm-account"
    fixed = ("cluster", "account")
    recorded = ("cluster", "account", "team", "is_default")
    list_display = ("account", "cluster", "team", "is_default")
    list_filter = ("cluster", "team")
    search_fields = ("account",)
