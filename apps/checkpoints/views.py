"""Pages of checkpoints: by job, all of them, and one with its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django_filters import FilterSet

from apps.audit.selectors import events_of
from apps.audit.timeline import Words, lines_of
from apps.checkpoints.api import CheckpointFilter, known_teams
from apps.checkpoints.models import Checkpoint, CheckpointSeries
from apps.checkpoints.selectors import (
    checkpoint_for,
    checkpoint_sentence,
    checkpoints_visible_to,
    newest_complete,
    series_visible_to,
)
from apps.checkpoints.states import COLOURS, CheckpointState
from apps.core import units
from apps.core.filters import KnownFilter, TextFilter
from apps.core.forms import is_htmx
from apps.core.lists import listing
from apps.core.pages import Page
from apps.teams.selectors import teams_visible_to

#: Checkpoints of one job that its strip shows, newest last.
STRIP = 40
#: Files of one checkpoint that its page lists.
MAX_FILES = 2000

WORDS: Words = {
    "CheckpointComplete": lambda e: (
        "good",
        _("Complete, %(size)s") % {"size": units.binary_bytes(e.data.get("bytes"))},
    ),
    "CheckpointTorn": lambda e: ("bad", _("Torn: %(reason)s") % {"reason": e.data.get("reason", e.text)}),
    "CheckpointGone": lambda e: ("off", _("The folder was deleted")),
}


class SeriesFilter(FilterSet):  # type: ignore[misc]
    """By team and text."""

    team = KnownFilter("team__slug", known=known_teams, column="slug")
    q = TextFilter("name", "job_uid")

    class Meta:
        model = CheckpointSeries
        fields: list[str] = []


@dataclass(frozen=True)
class SeriesRow:
    """One job's checkpoints: its strip, oldest first, and what a next attempt would resume from."""

    series: CheckpointSeries
    strip: list[Checkpoint]
    count: int
    total_bytes: int
    resumes_from: Checkpoint | None
    changed_at: datetime


def series_rows(found: Sequence[CheckpointSeries]) -> list[SeriesRow]:
    """Rows of these series; one query for all their checkpoints."""
    by_series: dict[int, list[Checkpoint]] = {s.pk: [] for s in found}
    columns = ("uid", "series_id", "step", "state", "total_bytes", "changed_at", "reason")
    for row in Checkpoint.objects.filter(series__in=found).only(*columns).order_by("step", "id"):
        by_series[row.series_id].append(row)
    rows = []
    for series in found:
        own = by_series[series.pk]
        complete = [c for c in own if c.state == CheckpointState.COMPLETE and c.step is not None]
        there = [c for c in own if c.state != CheckpointState.GONE]
        rows.append(
            SeriesRow(
                series,
                own[-STRIP:],
                len(own),
                sum(c.total_bytes for c in there),
                complete[-1] if complete else None,
                max((c.changed_at for c in own), default=series.created_at),
            )
        )
    return rows


class CheckpointsByJob(Page):
    """One row a job."""

    right = "checkpoints.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page, or with htmx its rows. Raises BadQuery."""
        rows = series_visible_to(self.actor).annotate(newest_at=Max("checkpoints__changed_at"))
        found = listing(
            request,
            rows,
            SeriesFilter,
            sorts={"-changed": "-newest_at", "changed": "newest_at", "name": "name", "-name": "-name"},
            labels={"team": gettext_lazy("Team"), "q": gettext_lazy("Text")},
            limit=30,
            columns={
                "team": (2, gettext_lazy("Team")),
                "steps": (3, gettext_lazy("Steps, oldest first")),
                "resume": (4, gettext_lazy("Would resume from")),
                "count": (5, gettext_lazy("Checkpoints")),
                "size": (6, gettext_lazy("Size")),
                "changed": (7, gettext_lazy("Changed")),
            },
        )
        shown = series_rows(found.rows)
        context = {
            "list": found,
            "rows": shown,
            "teams": list(teams_visible_to(self.actor, "checkpoints.view")[:200]),
            "is_writing": any(c.state == CheckpointState.IN_PROGRESS for r in shown for c in r.strip),
            "states": [(value, label, COLOURS[value]) for value, label in CheckpointState.choices],
        }
        template = "checkpoints/by_job.html"
        return render(request, f"{template}#rows" if is_htmx(request) else template, context)


class CheckpointList(Page):
    """Every checkpoint."""

    right = "checkpoints.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page, or with htmx its rows. Raises BadQuery."""
        found = listing(
            request,
            checkpoints_visible_to(self.actor),
            CheckpointFilter,
            sorts={
                "-changed_at": "-changed_at",
                "changed_at": "changed_at",
                "-size": "-total_bytes",
                "size": "total_bytes",
                "state": "state",
                "-state": "-state",
            },
            labels={
                "state": gettext_lazy("State"),
                "team": gettext_lazy("Team"),
                "job": gettext_lazy("Job"),
                "q": gettext_lazy("Text"),
            },
            words={"state": lambda v: str(CheckpointState(v).label)},
            columns={
                "job": (2, gettext_lazy("Job")),
                "state": (3, gettext_lazy("State")),
                "why": (4, gettext_lazy("Why")),
                "layout": (5, gettext_lazy("Layout")),
                "size": (6, gettext_lazy("Size")),
                "files": (7, gettext_lazy("Files")),
                "changed": (8, gettext_lazy("Changed")),
            },
        )
        context = {
            "list": found,
            "states": CheckpointState.choices,
            "teams": list(teams_visible_to(self.actor, "checkpoints.view")[:200]),
            "is_writing": any(c.state == CheckpointState.IN_PROGRESS for c in found.rows),
        }
        template = "checkpoints/checkpoints.html"
        return render(request, f"{template}#rows" if is_htmx(request) else template, context)


class CheckpointPage(Page):
    """One checkpoint: whether to trust it, and its files."""

    right = "checkpoints.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page, or with htmx its live part."""
        row = checkpoint_for(actor=self.actor, may="checkpoints.view", uid=uid)
        files = sorted(row.listing.get("files", {}).items())
        newest = newest_complete(row.series)
        mine = [e for e in events_of([row.series.job_uid], 500) if e.data.get("checkpoint") == row.uid]
        facts: dict[str, Any] = row.listing.get("facts", {})
        context = {
            "row": row,
            "sentence": checkpoint_sentence(row),
            "files": files[:MAX_FILES],
            "more_files": max(0, len(files) - MAX_FILES),
            "facts": sorted((k, str(v)) for k, v in facts.items()),
            "resumes_here": newest is not None and newest.pk == row.pk,
            "newest": newest,
            "lines": lines_of(mine, WORDS),
            "is_writing": row.state == CheckpointState.IN_PROGRESS,
        }
        template = "checkpoints/checkpoint.html"
        return render(request, f"{template}#live" if is_htmx(request) else template, context)
