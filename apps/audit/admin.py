"""The admin console's view of the audit trail: for reading only."""

from __future__ import annotations

from django.contrib import admin

from apps.audit.models import Entry, Event
from apps.core.staff import ReadOnlyAdmin


@admin.register(Entry)
class EntryAdmin(ReadOnlyAdmin):
    """Who asked for what."""

    right = "audit.view"
    list_display = ("created_at", "actor_name", "verb", "object_type", "object_uid", "address", "sequence")
    list_filter = ("object_type", "verb")
    search_fields = ("actor_name", "verb", "object_uid", "request_id")
    ordering = ("-created_at", "-id")
    show_full_result_count = False


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    """What happened."""

    right = "audit.view"
    list_display = ("at", "object_type", "object_uid", "kind", "text")
    list_filter = ("object_type", "kind")
    search_fields = ("object_uid", "text")
    ordering = ("-at", "-id")
    show_full_result_count = False
