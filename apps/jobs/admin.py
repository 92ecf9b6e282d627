"""Job templates in the admin console, for reading: they are edited, with their versions, on their own pages."""

from __future__ import annotations

from django.contrib import admin

from apps.core.staff import ReadOnlyAdmin
from apps.jobs.models import JobTemplate


@admin.register(JobTemplate)
class JobTemplateAdmin(ReadOnlyAdmin):
    """A script with typed parameters."""

    right = "teams.manage"
    list_display = ("title", "name", "number", "is_enabled", "created_at")
    list_filter = ("is_enabled",)
    search_fields = ("name", "title", "description")
