"""The form of a new API token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from apps.teams.models import ServiceAccount
from apps.teams.services import MAX_TOKEN_DAYS


class TokenForm(forms.Form):
    """What the token is for, how long it lives, what it may do; ``scopes`` are those the person holds."""

    label = forms.CharField(label=_("What for"), max_length=80, help_text=_("Such as “nightly eval from CI”."))
    days = forms.IntegerField(
        label=_("Days"),
        min_value=1,
        max_value=MAX_TOKEN_DAYS,
        initial=30,
        help_text=_("It ends by itself after so many days, at most a year."),
    )
    service_account = forms.ChoiceField(label=_("Acts as"), required=False)
    scopes = forms.MultipleChoiceField(
        label=_("May"),
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": _("Choose at least one right.")},
    )

    def __init__(
        self, *args: Any, scopes: Iterable[str], accounts: Sequence[ServiceAccount], name: str, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.accounts = {a.uid: a for a in accounts}
        chooser = self.fields["service_account"]
        assert isinstance(chooser, forms.ChoiceField)
        chooser.choices = [("", name), *((a.uid, str(a)) for a in accounts)]
        ticks = self.fields["scopes"]
        assert isinstance(ticks, forms.MultipleChoiceField)
        ticks.choices = [(s, s) for s in sorted(scopes)]
        for bound in self:
            described = [f"{bound.auto_id}_helptext"] if bound.help_text else []
            bound.field.widget.attrs.setdefault("aria-describedby", " ".join([*described, f"{bound.name}-problem"]))

    @property
    def account(self) -> ServiceAccount | None:
        """The service account the token acts as; None for the person."""
        return self.accounts.get(self.cleaned_data["service_account"])
