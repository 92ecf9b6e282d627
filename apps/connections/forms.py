"""The form that connects a cloud account or corrects a connected one."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

from apps.core.forms import PortalForm

_PLAIN = {"spellcheck": "false", "autocomplete": "off"}


class AccountForm(PortalForm):
    """How the worker reaches an account; secrets by reference only."""

    key = forms.CharField(max_length=64, widget=forms.HiddenInput)
    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=60, help_text=gettext_lazy("Lower-case letters, digits and dashes.")
    )
    region = forms.CharField(
        label=gettext_lazy("Region"), max_length=30, help_text=gettext_lazy("Such as us-east-1."), initial="us-east-1"
    )
    credentials_ref = forms.CharField(
        label=gettext_lazy("Credentials by reference"),
        max_length=200,
        required=False,
        widget=forms.TextInput(attrs={**_PLAIN, "placeholder": "file:sandbox-aws"}),
        help_text=gettext_lazy("env:NAME or file:NAME, never the secret itself. Empty: the worker's own role."),
    )
    role_arn = forms.CharField(
        label=gettext_lazy("Role to assume"),
        max_length=200,
        required=False,
        widget=forms.TextInput(attrs=_PLAIN),
        help_text=gettext_lazy("arn:aws:iam::…:role/…"),
    )
    external_id = forms.CharField(
        label=gettext_lazy("External id"),
        max_length=200,
        required=False,
        widget=forms.TextInput(attrs=_PLAIN),
        help_text=gettext_lazy("What the role's owner asks for when it is assumed; empty: nothing."),
    )
    endpoint_url = forms.CharField(
        label=gettext_lazy("Address instead of AWS's"),
        max_length=200,
        required=False,
        widget=forms.TextInput(attrs={**_PLAIN, "inputmode": "url"}),
        help_text=gettext_lazy("For VPC endpoints or the sandbox, such as http://127.0.0.1:5601."),
    )

    def values(self) -> dict[str, Any]:
        """What ``account_connect`` and ``account_update`` take."""
        return {k: v for k, v in self.cleaned_data.items() if k != "key"}
