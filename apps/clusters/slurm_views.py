"""The page of a cluster's Slurm: who is who there, whose an account is, and how people act."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.clusters import slurm_services as services
from apps.clusters.models import Cluster
from apps.clusters.selectors import cluster_for
from apps.clusters.slurm_selectors import (
    slurm_account_for,
    slurm_accounts_of,
    slurm_user_for,
    slurm_users_of,
)
from apps.clusters.states import LimitsMode, TokenStyle
from apps.core.errors import Refusal
from apps.core.forms import PortalForm, posted_version
from apps.core.pages import Page
from apps.teams.models import ServiceAccount, Team, User

_PLAIN = {"spellcheck": "false", "autocomplete": "off"}
SHOWN = 500


def _teams() -> list[tuple[str, str]]:
    return [("", "–"), *((t.slug, f"{t.name} ({t.slug})") for t in Team.objects.all())]


def _choices(form: forms.Form, **choices: list[tuple[str, str]]) -> None:
    for name, known in choices.items():
        field = form.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = known


class SettingsForm(PortalForm):
    """How people act in a cluster's Slurm."""

    same_names = forms.BooleanField(
        label=gettext_lazy("People without a row have the same name in Slurm as here"), required=False
    )
    token_style = forms.ChoiceField(label=gettext_lazy("What tokens tell"), choices=TokenStyle.choices)
    token_lifetime_s = forms.IntegerField(
        label=gettext_lazy("Life of a token (s)"), help_text=gettext_lazy("Made anew well before it ends.")
    )
    outside_team = forms.ChoiceField(
        label=gettext_lazy("Team of jobs that nobody owns"),
        required=False,
        help_text=gettext_lazy("For jobs from ssh whose user and account belong to no team."),
    )
    limits_mode = forms.ChoiceField(
        label=gettext_lazy("Teams' limits in Slurm"),
        choices=LimitsMode.choices,
        help_text=gettext_lazy("GPU quota and budget as GrpTRES and GrpTRESMins of the teams' accounts."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _choices(self, outside_team=_teams())

    def values(self) -> dict[str, Any]:
        """What ``slurm_settings_update`` takes."""
        data = dict(self.cleaned_data)
        return data | {"outside_team": Team.objects.filter(slug=data["outside_team"]).first()}


class SlurmUserForm(PortalForm):
    """Who a user of Slurm is."""

    user_name = forms.CharField(
        label=gettext_lazy("User in Slurm"), max_length=60, widget=forms.TextInput(attrs=_PLAIN)
    )
    person = forms.ChoiceField(label=gettext_lazy("Who that is"), required=False)
    uid_number = forms.IntegerField(label="uid", required=False)
    gid_number = forms.IntegerField(label="gid", required=False)
    gids = forms.CharField(
        label=gettext_lazy("Further groups"),
        max_length=2000,
        required=False,
        help_text=gettext_lazy("Ids with spaces."),
        widget=forms.TextInput(attrs=_PLAIN),
    )
    user_team = forms.ChoiceField(label=gettext_lazy("Team of jobs from ssh"), required=False)
    field_of = {"/team": "user_team"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        people = User.objects.filter(is_active=True).order_by("username")
        robots = ServiceAccount.objects.select_related("team").order_by("team__slug", "name")
        known = [("", "–"), *((f"user:{u.pk}", u.username) for u in people)]
        known += [(f"robot:{r.pk}", str(r)) for r in robots]
        _choices(self, person=known, user_team=_teams())

    def clean_gids(self) -> list[int]:
        """The ids one by one."""
        words = str(self.cleaned_data["gids"]).split()
        if not all(word.isdecimal() for word in words):
            raise forms.ValidationError(_("group ids, at most 500"))
        return [int(word) for word in words]

    def values(self) -> dict[str, Any]:
        """What ``slurm_user_put`` takes."""
        data = dict(self.cleaned_data)
        kind, _sep, pk = str(data.pop("person")).partition(":")
        return {
            **{k: v for k, v in data.items() if k != "user_team"},
            "user": User.objects.filter(pk=pk).first() if kind == "user" else None,
            "service_account": ServiceAccount.objects.filter(pk=pk).first() if kind == "robot" else None,
            "team": Team.objects.filter(slug=data["user_team"]).first(),
        }


class SlurmAccountForm(PortalForm):
    """Whose an account of Slurm is."""

    account = forms.CharField(
        label=gettext_lazy("Account in Slurm"), max_length=60, widget=forms.TextInput(attrs=_PLAIN)
    )
    team = forms.ChoiceField(label=gettext_lazy("Team"))
    is_default = forms.BooleanField(label=gettext_lazy("Its jobs go with this account"), required=False, initial=True)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _choices(self, team=_teams()[1:])

    def values(self) -> dict[str, Any]:
        """What ``slurm_account_put`` takes."""
        data = dict(self.cleaned_data)
        return data | {"team": Team.objects.get(slug=data["team"])}


class ImportForm(PortalForm):
    """Users from CSV."""

    text = forms.CharField(
        label="CSV",
        max_length=1_000_000,
        widget=forms.Textarea(attrs={"rows": 6, "placeholder": ",".join(services.CSV_COLUMNS), **_PLAIN}),
    )


class SlurmPage(Page):
    """Everything about people and teams in one cluster's Slurm."""

    right = "clusters.operate"

    def show(self, request: HttpRequest, cluster: Cluster, status: int = 200, **forms_of: Any) -> HttpResponse:
        """The page, with forms that were refused in place of the empty ones."""
        initial = {name: getattr(cluster, name) for name in services.SETTINGS}
        initial["outside_team"] = cluster.outside_team.slug if cluster.outside_team else ""
        users = list(slurm_users_of(cluster)[: SHOWN + 1])
        context: dict[str, Any] = {
            "cluster": cluster,
            "settings_form": SettingsForm(initial=initial),
            "user_form": SlurmUserForm(),
            "account_form": SlurmAccountForm(),
            "import_form": ImportForm(),
            "users": users[:SHOWN],
            "more_users": len(users) > SHOWN,
            "accounts": list(slurm_accounts_of(cluster)),
            "columns": services.CSV_COLUMNS,
        }
        return render(request, "clusters/slurm.html", context | forms_of, status=status)

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page."""
        return self.show(request, cluster_for(actor=self.actor, may="clusters.operate", uid=uid))

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """One of its forms, by the button that was pressed; a refusal shows at its fields."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        match request.POST.get("what"):
            case "user":
                form: Any = SlurmUserForm(request.POST)
                name = "user_form"
            case "account":
                form, name = SlurmAccountForm(request.POST), "account_form"
            case "import":
                return self._import(request, cluster)
            case _:
                form, name = SettingsForm(request.POST), "settings_form"
        if form.is_valid():
            try:
                said = self._do(request, cluster, name, form.values())
            except Refusal as refusal:
                form.show(refusal)
            else:
                self.say(said)
                return HttpResponseRedirect(reverse("cluster-slurm", args=[cluster.uid]))
        cluster.refresh_from_db()
        return self.show(request, cluster, 422, **{name: form})

    def _do(self, request: HttpRequest, cluster: Cluster, name: str, values: dict[str, Any]) -> str:
        if name == "user_form":
            row = services.slurm_user_put(actor=self.actor, cluster=cluster, **values)
            return _("%(name)s is known now.") % {"name": row.user_name}
        if name == "account_form":
            account = services.slurm_account_put(actor=self.actor, cluster=cluster, **values)
            return _("%(name)s is known now.") % {"name": account.account}
        version = posted_version(request)
        services.slurm_settings_update(actor=self.actor, cluster=cluster, expected_version=version, **values)
        return _("The settings were changed.")

    def _import(self, request: HttpRequest, cluster: Cluster) -> HttpResponse:
        form = ImportForm(request.POST)
        lines: list[services.ImportLine] = []
        dry_run = request.POST.get("dry_run") != "no"
        if form.is_valid():
            try:
                lines = services.slurm_users_import(
                    actor=self.actor, cluster=cluster, text=form.cleaned_data["text"], dry_run=dry_run
                )
            except Refusal as refusal:
                form.show(refusal)
        refused = sum(1 for line in lines if line.problem)
        if lines and not dry_run and not refused:
            self.say(_("%(n)s rows were taken.") % {"n": len(lines)})
            return HttpResponseRedirect(reverse("cluster-slurm", args=[cluster.uid]))
        told = {"import_form": form, "lines": lines, "refused": refused}
        return self.show(request, cluster, 200 if form.is_valid() and not (refused and not dry_run) else 422, **told)


class SlurmUserRemove(Page):
    """Forget who a user of Slurm is."""

    right = "clusters.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Do it and go back to the page."""
        row = slurm_user_for(actor=self.actor, may="clusters.operate", uid=uid)
        services.slurm_user_remove(actor=self.actor, row=row)
        self.say(_("%(name)s is no longer known.") % {"name": row.user_name})
        return HttpResponseRedirect(reverse("cluster-slurm", args=[row.cluster.uid]))


class SlurmAccountRemove(Page):
    """Forget whose an account of Slurm is."""

    right = "clusters.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Do it and go back to the page."""
        row = slurm_account_for(actor=self.actor, may="clusters.operate", uid=uid)
        services.slurm_account_remove(actor=self.actor, row=row)
        self.say(_("%(name)s is no longer known.") % {"name": row.account})
        return HttpResponseRedirect(reverse("cluster-slurm", args=[row.cluster.uid]))
