"""Job templates in the admin console, with history; jobs are made and stopped on their own pages."""

from __future__ import annotations

from django.contrib import admin

from apps.audit.staff import RecordedAdmin
from apps.core.staff import HistoryAdmin
from apps.jobs.models import JobTemplate


@admin.register(JobTemplate)
class JobTemplateAdmin(RecordedAdmin, HistoryAdmin):
    """A script with typed parameters."""

    right = "teams.manage"
    kind = "template"
    recorded = ("name", "title", "is_enabled", "parameters")
    list_display = ("title", "name", "is_enabled", "created_at")
    list_filter = ("is_enabled",)
    search_fields = ("name", "title", "description")
    history_list_display = ("title", "is_enabled")
