"""The forms of a search, a request for a purchase, an ODCR, a decision, an extension and an owner."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, time
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.capacity.rules import ULTRASERVERS
from apps.capacity.states import PurchaseKind
from apps.catalog.selectors import all_types
from apps.connections.models import CloudAccount
from apps.core.forms import PortalForm
from apps.teams.models import Team

_PLAIN = {"spellcheck": "false", "autocomplete": "off"}
_DATE = forms.DateInput(attrs={"type": "date"})


def _choose(form: forms.Form, name: str, choices: Sequence[tuple[str, Any]]) -> None:
    field = form.fields[name]
    assert isinstance(field, forms.ChoiceField)
    field.choices = list(choices)


def _midnight(day: Any) -> datetime | None:
    return None if day is None else datetime.combine(day, time(), UTC)


def _p_types() -> list[tuple[str, str]]:
    return [(t.name, f"{t.name} · {t.gpus} × {t.gpu}") for t in all_types() if t.name.startswith("p")]


class _WithAccount(PortalForm):
    account = forms.ChoiceField(label=gettext_lazy("Cloud account"))

    def __init__(self, *args: Any, accounts: Sequence[CloudAccount], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accounts = {a.uid: a for a in accounts}
        _choose(self, "account", [(a.uid, f"{a.name} ({a.region})") for a in accounts])


class SearchForm(_WithAccount):
    """What to look for."""

    kind = forms.ChoiceField(
        label=gettext_lazy("Kind"),
        choices=[
            (k.value, k.label)
            for k in (PurchaseKind.CAPACITY_BLOCK, PurchaseKind.ULTRASERVER_BLOCK, PurchaseKind.TRAINING_PLAN)
        ],
    )
    instance_type = forms.ChoiceField(label=gettext_lazy("Instance type"))
    instances = forms.IntegerField(
        label=gettext_lazy("Instances"),
        min_value=1,
        max_value=256,
        initial=8,
        help_text=gettext_lazy("At most 64 a block; of UltraServers, how many of them."),
    )
    days = forms.IntegerField(
        label=gettext_lazy("Duration"),
        min_value=1,
        max_value=182,
        initial=7,
        help_text=gettext_lazy("Days to 14, then whole weeks to 182 days."),
    )
    start_date = forms.DateField(label=gettext_lazy("Not before"), required=False, widget=_DATE)
    end_date = forms.DateField(label=gettext_lazy("Over by"), required=False, widget=_DATE)
    zones = forms.CharField(
        label=gettext_lazy("Zones"),
        required=False,
        max_length=200,
        widget=forms.TextInput(attrs={**_PLAIN, "placeholder": "us-east-2a, use2-az2"}),
        help_text=gettext_lazy("Names or ids with commas; empty: every zone of the region."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _choose(self, "instance_type", [*_p_types(), *((u, f"{u} · {n} instances") for u, n in ULTRASERVERS.items())])

    def values(self) -> dict[str, Any]:
        """What ``offering_search`` takes."""
        data = self.cleaned_data
        return {
            "account": self.accounts[data["account"]],
            "kind": data["kind"],
            "instance_type": data["instance_type"],
            "instances": data["instances"],
            "days": data["days"],
            "start_at": _midnight(data["start_date"]),
            "end_at": _midnight(data["end_date"]),
            "zones": [z for z in re.split(r"[\s,]+", data["zones"]) if z],
        }


class RequestForm(PortalForm):
    """An offer to be bought: which, under what name, for whom and why."""

    key = forms.CharField(max_length=64, widget=forms.HiddenInput)
    offering_id = forms.CharField(max_length=255, required=True, widget=forms.HiddenInput)
    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=58, help_text=gettext_lazy("Lower-case letters, digits and dashes.")
    )
    team = forms.ChoiceField(label=gettext_lazy("Team that owns it"), required=False)
    reason = forms.CharField(
        label=gettext_lazy("What it is for"), max_length=500, widget=forms.Textarea(attrs={"rows": 3})
    )

    def __init__(self, *args: Any, teams: Sequence[Team], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teams = {t.slug: t for t in teams}
        _choose(self, "team", [("", _("Shared by all teams")), *((t.slug, f"{t.name} ({t.slug})") for t in teams)])

    def values(self) -> dict[str, Any]:
        """What ``purchase_request`` takes besides the search."""
        data = self.cleaned_data
        return {
            "offering_id": data["offering_id"],
            "name": data["name"],
            "team": self.teams.get(data["team"]),
            "reason": data["reason"],
            "key": data["key"],
        }


class OdcrForm(_WithAccount):
    """An ODCR to ask for."""

    key = forms.CharField(max_length=64, widget=forms.HiddenInput)
    name = forms.CharField(label=gettext_lazy("Name"), max_length=58)
    instance_type = forms.ChoiceField(label=gettext_lazy("Instance type"))
    instances = forms.IntegerField(label=gettext_lazy("Instances"), min_value=1, max_value=1000, initial=1)
    zone_name = forms.CharField(
        label=gettext_lazy("Zone"),
        max_length=40,
        widget=forms.TextInput(attrs={**_PLAIN, "placeholder": "us-east-2a"}),
    )
    is_open = forms.BooleanField(
        label=gettext_lazy("Open: any matching launch uses it"),
        required=False,
        help_text=gettext_lazy("Otherwise only launches that name it."),
    )
    end_date = forms.DateField(label=gettext_lazy("Ends"), required=False, widget=_DATE)
    team = forms.ChoiceField(label=gettext_lazy("Team that owns it"), required=False)
    reason = forms.CharField(
        label=gettext_lazy("What it is for"), max_length=500, widget=forms.Textarea(attrs={"rows": 3})
    )

    def __init__(self, *args: Any, teams: Sequence[Team], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teams = {t.slug: t for t in teams}
        _choose(self, "team", [("", _("Shared by all teams")), *((t.slug, f"{t.name} ({t.slug})") for t in teams)])
        _choose(self, "instance_type", _p_types())

    def values(self) -> dict[str, Any]:
        """What ``odcr_request`` takes."""
        data = self.cleaned_data
        names = ("key", "name", "instance_type", "instances", "zone_name", "is_open", "reason")
        return {
            **{name: data[name] for name in names},
            "account": self.accounts[data["account"]],
            "team": self.teams.get(data["team"]),
            "end_at": _midnight(data["end_date"]),
        }


class AssignForm(PortalForm):
    """Whose a reservation is."""

    team = forms.ChoiceField(label=gettext_lazy("Team that owns it"), required=False)

    def __init__(self, *args: Any, teams: Sequence[Team], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teams = {t.slug: t for t in teams}
        _choose(self, "team", [("", _("Shared by all teams")), *((t.slug, f"{t.name} ({t.slug})") for t in teams)])


class ExtendForm(PortalForm):
    """How much longer."""

    days = forms.IntegerField(label=gettext_lazy("Longer by"), min_value=1, max_value=182, initial=1)


class PriceForm(PortalForm):
    """What was paid for a block that was bought elsewhere."""

    usd_upfront = forms.DecimalField(
        label=gettext_lazy("Paid in all"),
        max_digits=14,
        decimal_places=2,
        help_text=gettext_lazy("US dollars, extensions included."),
    )
    reason = forms.CharField(
        label=gettext_lazy("How you know"),
        max_length=500,
        help_text=gettext_lazy("An invoice or a purchase order; it stays in the audit."),
    )


class DecisionForm(PortalForm):
    """Why."""

    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=500, required=False)


class ResolveForm(PortalForm):
    """What a person found in AWS."""

    provider_id = forms.CharField(max_length=200, required=False)
    reason = forms.CharField(
        label=gettext_lazy("How you know"), max_length=500, widget=forms.Textarea(attrs={"rows": 2})
    )
