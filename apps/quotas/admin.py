"""Quotas in the admin console: saved through the service, so that the ledger and the audit trail follow."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from apps.core.staff import HistoryAdmin, VersionedForm
from apps.quotas.models import Quota
from apps.quotas.services import quota_set


class QuotaForm(VersionedForm):
    """Team and limit."""

    class Meta:
        model = Quota
        fields = ("team", "gpus")


@admin.register(Quota)
class QuotaAdmin(HistoryAdmin):
    """GPUs at once, with history."""

    right = "quotas.manage"
    form = QuotaForm
    list_display = ("team", "gpus", "updated_at")
    search_fields = ("team__slug", "team__name")
    history_list_display = ("gpus",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """A limit stays with its team."""
        return ("team",) if obj else ()

    def save_model(self, request: HttpRequest, obj: Quota, form: Any, change: bool) -> None:
        """Set the limit as the page of quotas does. Raises Forbidden, StaleVersion, told above the form."""
        seen = form.cleaned_data.get("seen_version") if change else None
        stored = quota_set(actor=request.actor, team=obj.team, gpus=obj.gpus, expected_version=seen)  # type: ignore[attr-defined]
        obj.pk, obj.uid, obj.version = stored.pk, stored.uid, stored.version
