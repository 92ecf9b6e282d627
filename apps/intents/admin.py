"""The admin console's view of the worker's to-do list: for reading only."""

from __future__ import annotations

from django.contrib import admin

from apps.core.staff import ReadOnlyAdmin
from apps.intents.models import Intent


@admin.register(Intent)
class IntentAdmin(ReadOnlyAdmin):
    """What the worker is asked to look at, and why it failed last."""

    right = "audit.view"
    list_display = ("kind", "key", "due_at", "attempts", "leased_until", "asked_at", "last_error")
    search_fields = ("kind", "key")
    list_filter = ("kind",)
