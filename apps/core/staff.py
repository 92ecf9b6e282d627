"""Bases of the admin console: rights come from the actor, refusals become messages, some tables are to read only."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from simple_history.admin import SimpleHistoryAdmin

from apps.core.actors import actor_of
from apps.core.errors import Refusal


class StaffAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """An admin page for who holds ``right`` everywhere; Django's own permission table plays no part.

    A refusal of the domain becomes a message instead of an error page.
    """

    right: ClassVar[str] = "teams.manage"
    may_add: ClassVar[bool] = True
    may_delete: ClassVar[bool] = False

    def _holds(self, request: HttpRequest) -> bool:
        return actor_of(request).everywhere(self.right)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Shown in the index."""
        return self._holds(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Read."""
        return self._holds(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Make."""
        return self.may_add and self._holds(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Change."""
        return self._holds(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Delete: rarely, because history hangs on it."""
        return self.may_delete and self._holds(request)

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The form; what the domain refuses is told above it and nothing is written."""
        try:
            with transaction.atomic():
                return super().changeform_view(request, object_id, form_url, extra_context)
        except Refusal as refusal:
            messages.error(request, refusal.detail)
            return HttpResponseRedirect(request.get_full_path())


class ReadOnlyAdmin(StaffAdmin):
    """A table to look at: rows are written by the portal alone."""

    may_add = False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False


class HistoryAdmin(StaffAdmin, SimpleHistoryAdmin):  # type: ignore[misc]
    """An admin page whose object keeps its history: who changed what and when."""

    object_history_list_template = "admin/history_list.html"


class VersionedForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form that remembers the version it was drawn with, so that a stale save is told instead of winning."""

    seen_version = forms.IntegerField(widget=forms.HiddenInput, required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk:
            self.fields["seen_version"].initial = self.instance.version

    def clean_seen_version(self) -> int | None:
        """The version seen. Raises ValidationError when the row is newer by now."""
        seen: int | None = self.cleaned_data.get("seen_version")
        if self.instance.pk and seen != self.instance.version:
            raise ValidationError(_("Someone else changed this meanwhile. Reload the page and look again."))
        return seen
