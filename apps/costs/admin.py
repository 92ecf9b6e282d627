"""Budgets in the admin console, saved through the service; the ledger's postings for reading only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from apps.core.staff import HistoryAdmin, ReadOnlyAdmin, VersionedForm
from apps.costs.models import Account, Budget, Posting
from apps.costs.services import budget_set


class BudgetForm(VersionedForm):
    """Team and amount."""

    class Meta:
        model = Budget
        fields = ("team", "usd_per_month")


@admin.register(Budget)
class BudgetAdmin(HistoryAdmin):
    """USD a month, with history."""

    right = "quotas.manage"
    form = BudgetForm
    list_display = ("team", "usd_per_month", "updated_at")
    search_fields = ("team__slug", "team__name")
    history_list_display = ("usd_per_month",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """A budget stays with its team."""
        return ("team",) if obj else ()

    def save_model(self, request: HttpRequest, obj: Budget, form: Any, change: bool) -> None:
        """Set the amount as the page of quotas does. Raises Forbidden, StaleVersion, told above the form."""
        seen = form.cleaned_data.get("seen_version") if change else None
        stored = budget_set(
            actor=request.actor,  # type: ignore[attr-defined]
            team=obj.team,
            usd_per_month=obj.usd_per_month,
            expected_version=seen,
        )
        obj.pk, obj.uid, obj.version = stored.pk, stored.uid, stored.version


@admin.register(Posting)
class PostingAdmin(ReadOnlyAdmin):
    """What moved: never changed, by anyone."""

    right = "quotas.manage"
    list_display = ("at", "kind", "unit", "amount", "source", "target", "subject_uid", "memo")
    list_filter = ("kind", "unit")
    search_fields = ("subject_uid", "memo", "key")
    list_select_related = ("source__team", "target__team")
    ordering = ("-id",)
    show_full_result_count = False


@admin.register(Account)
class AccountAdmin(ReadOnlyAdmin):
    """Pots and their balances, which the database keeps."""

    right = "quotas.manage"
    list_display = ("team", "kind", "unit", "period", "balance")
    list_filter = ("kind", "unit", "period")
    search_fields = ("team__slug",)
    list_select_related = ("team",)
