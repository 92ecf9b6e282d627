"""The audit trail: who asked for what, from where, what it was and became, and whether the chain is whole."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext_lazy

from apps.audit.api import EntryFilter
from apps.audit.models import Entry
from apps.audit.selectors import chain_standing, entries_visible_to
from apps.core import clock
from apps.core.lists import csv_answer, filtered_rows, listing
from apps.core.pages import Page

LABELS = {
    "actor": gettext_lazy("Actor"),
    "who": gettext_lazy("Who"),
    "verb": gettext_lazy("What"),
    "object_type": gettext_lazy("Kind of object"),
    "object_uid": gettext_lazy("Object"),
    "request_id": gettext_lazy("Request"),
    "since": gettext_lazy("Since"),
    "until": gettext_lazy("Until"),
    "q": gettext_lazy("Text"),
}


@dataclass(frozen=True)
class Diff:
    """One changed value; None where there was or is none."""

    name: str
    before: str | None
    after: str | None


def _plain(value: Any) -> str | None:
    if value is None:
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def diffs_of(entry: Entry) -> list[Diff]:
    """Before → after, by name; what stayed the same is left out."""
    names = [*entry.before, *(n for n in entry.after if n not in entry.before)]
    found = [Diff(n, _plain(entry.before.get(n)), _plain(entry.after.get(n))) for n in names]
    return [d for d in found if (d.before or None) != (d.after or None)]


class AuditPage(Page):
    """The trail, newest first."""

    right = "audit.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page. Raises BadQuery."""
        rows = entries_visible_to(self.actor)
        found = listing(
            request,
            rows,
            EntryFilter,
            sorts={
                "-created_at": "-created_at",
                "created_at": "created_at",
                "who": "actor_name",
                "-who": "-actor_name",
                "verb": "verb",
                "-verb": "-verb",
            },
            labels=LABELS,
            columns={
                "who": (2, gettext_lazy("Who")),
                "object": (4, gettext_lazy("Object")),
                "change": (5, gettext_lazy("Before → after")),
                "address": (6, gettext_lazy("From where")),
            },
        )
        context = {
            "list": found,
            "rows": [(e, diffs_of(e)) for e in found.rows],
            "verbs": list(rows.order_by("verb").values_list("verb", flat=True).distinct()[:200]),
            "kinds": list(rows.order_by("object_type").values_list("object_type", flat=True).distinct()[:100]),
        }
        return render(request, "audit/audit.html", context)


class ChainPage(Page):
    """What the walks along the chain last found: a fragment that renews itself."""

    right = "audit.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """Whole, or the first entry that does not fit."""
        unsealed = entries_visible_to(self.actor).filter(sequence__isnull=True).count()
        return render(request, "audit/chain.html", {"chain": chain_standing(), "unsealed": unsealed})


class AuditCsv(Page):
    """The filtered entries as CSV."""

    right = "audit.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """Newest first."""
        rows, _values = filtered_rows(request, entries_visible_to(self.actor), EntryFilter, ("sort", "cursor"))
        header = ["at", "who", "actor", "token", "address", "request_id", "verb", "object_type", "object_uid"]
        header += ["before", "after", "sequence", "digest", "uid"]
        return csv_answer("audit", header, (_csv_row(e) for e in rows.order_by("-created_at", "-id")[:20_001]))


def _csv_row(entry: Entry) -> list[Any]:
    return [
        clock.iso(entry.created_at),
        entry.actor_name,
        entry.actor,
        entry.token_id,
        entry.address,
        entry.request_id,
        entry.verb,
        entry.object_type,
        entry.object_uid,
        json.dumps(entry.before, ensure_ascii=False, sort_keys=True),
        json.dumps(entry.after, ensure_ascii=False, sort_keys=True),
        entry.sequence,
        entry.digest,
        entry.uid,
    ]
