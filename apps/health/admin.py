"""The XID catalogue in the admin console: what this site does about each code, with history."""

from __future__ import annotations

from django.contrib import admin

from apps.audit.staff import RecordedAdmin
from apps.core.staff import HistoryAdmin
from apps.health.models import XidCode


@admin.register(XidCode)
class XidCodeAdmin(RecordedAdmin, HistoryAdmin):
    """One code; NVIDIA's own words beside the site's answer."""

    right = "quotas.manage"
    kind = "xid-code"
    recorded = ("code", "mnemonic", "severity", "suggested_action", "nvidia_immediate_action", "source")
    may_delete = True
    list_display = ("code", "mnemonic", "meaning", "nvidia_immediate_action", "severity", "suggested_action")
    list_filter = ("severity",)
    search_fields = ("code", "mnemonic", "meaning")
    history_list_display = ("severity", "suggested_action")
