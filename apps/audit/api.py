"""API of the audit trail."""

from __future__ import annotations

from typing import Any

from django_filters import CharFilter, DateFilter, FilterSet
from rest_framework import serializers

from apps.audit.models import Entry
from apps.audit.selectors import entries_visible_to
from apps.core.api import ListEndpoint
from apps.core.filters import TextFilter


class EntryFilter(FilterSet):  # type: ignore[misc]
    """By actor, verb, object, text; since and until are UTC days, both included."""

    who = CharFilter(field_name="actor_name")
    since = DateFilter(field_name="created_at", lookup_expr="date__gte")
    until = DateFilter(field_name="created_at", lookup_expr="date__lte")
    q = TextFilter("actor_name", "verb", "object_uid", "object_type", "address")

    class Meta:
        model = Entry
        fields = ["actor", "verb", "object_type", "object_uid", "request_id"]


class EntrySerializer(serializers.ModelSerializer[Entry]):
    """One entry."""

    class Meta:
        model = Entry
        fields = [
            "uid",
            "created_at",
            "actor",
            "actor_name",
            "address",
            "request_id",
            "verb",
            "object_type",
            "object_uid",
            "before",
            "after",
            "sequence",
            "digest",
        ]


class Entries(ListEndpoint):
    """Who asked for what, newest first."""

    rights = {"GET": "audit.view"}
    serializer_class = EntrySerializer
    filterset_class = EntryFilter

    def get_rows(self) -> Any:
        """All for administrators."""
        return entries_visible_to(self.actor)
