"""The row of the quota matrix in edit mode: both limits of one team, each with the version it was read with."""

from __future__ import annotations

from decimal import Decimal

from django import forms
from django.utils.translation import gettext_lazy

from apps.core.forms import PortalForm


class LimitsForm(PortalForm):
    """An empty limit means that none is set and none shall be; a version of 0 means that there was none."""

    gpus = forms.IntegerField(label=gettext_lazy("GPUs at once"), min_value=0, max_value=1_000_000, required=False)
    usd_per_month = forms.DecimalField(
        label=gettext_lazy("USD a month"), min_value=Decimal(0), max_digits=14, decimal_places=2, required=False
    )
    gpus_version = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    usd_version = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
