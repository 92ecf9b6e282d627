"""The list of jobs: filters, order, pages, CSV and live rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext_lazy

from apps.clusters.selectors import clusters_visible_to
from apps.clusters.states import ClusterKind
from apps.core import clock, units
from apps.core.lists import MAX_CSV_ROWS, csv_answer, filtered_rows, listing
from apps.core.pages import Page
from apps.costs.selectors import sums_of
from apps.jobs.action_states import BULK_KINDS
from apps.jobs.filters import JobFilter
from apps.jobs.models import Job
from apps.jobs.permissions import can_cancel_job
from apps.jobs.selectors import job_costs, jobs_visible_to
from apps.jobs.start_models import StartPrediction
from apps.jobs.start_selectors import predictions_for
from apps.jobs.start_words import expected_words
from apps.jobs.states import JOB_LIVE, JobOrigin, JobPhase
from apps.teams.permissions import Actor
from apps.teams.selectors import teams_visible_to

SORTS = {
    "-created_at": "-created_at",
    "created_at": "created_at",
    "name": "name",
    "-name": "-name",
    "nodes": "nodes",
    "-nodes": "-nodes",
    "phase": "phase",
    "-phase": "-phase",
    "owner": "owner_name",
    "-owner": "-owner_name",
}
LABELS = {
    "phase": gettext_lazy("State"),
    "team": gettext_lazy("Team"),
    "cluster": gettext_lazy("Cluster"),
    "cluster_kind": gettext_lazy("Kind of cluster"),
    "owner": gettext_lazy("Owner"),
    "origin": gettext_lazy("Submitted at"),
    "q": gettext_lazy("Text"),
}


#: Columns that may be hidden and their places in the table.
COLUMNS = {
    "phase": (3, gettext_lazy("State")),
    "team": (4, gettext_lazy("Team")),
    "person": (5, gettext_lazy("Owner")),
    "cluster": (6, gettext_lazy("Cluster")),
    "gpus": (7, gettext_lazy("GPUs")),
    "waited": (8, gettext_lazy("Waited")),
    "ran": (9, gettext_lazy("Ran")),
    "progress": (10, gettext_lazy("Progress")),
    "cost": (11, gettext_lazy("Cost")),
    "submitted": (12, gettext_lazy("Submitted")),
}


@dataclass(frozen=True)
class JobRow:
    """One row of the list: the job, what it cost, when its waiting ended, and whether one may stop it."""

    job: Job
    usd: Decimal
    waited_until: datetime | None
    may_stop: bool
    expected: StartPrediction | None = None

    @property
    def starts_in(self) -> str:
        """How long a waiting job is expected to wait on; empty where no start is in sight."""
        at = self.expected.p50_at if self.expected is not None else None
        return units.duration(max(timedelta(0), at - clock.now())) if at is not None else ""

    @property
    def starts_words(self) -> str:
        """The expected start with its range."""
        return expected_words(self.expected) if self.expected is not None else ""


def rows_of(actor: Actor, jobs: list[Job]) -> list[JobRow]:
    """Rows of these jobs; one query for all their costs, one for what is expected of those that wait."""
    costs, expected = job_costs(jobs), predictions_for(jobs)
    return [
        JobRow(j, costs[j.uid], j.started_at or j.ended_at, can_cancel_job(actor, j), expected.get(j.pk)) for j in jobs
    ]


def poll_query(request: HttpRequest, rows: Iterable[JobRow], newest: str) -> str:
    """The address of the next look at the rows that may still change; empty when there is nothing to look for."""
    live = [row.job.uid for row in rows if not row.job.has_ended]
    if not live and not newest:
        return ""
    query: list[tuple[str, str]] = [(n, v) for n, vs in request.GET.lists() for v in vs if n in JobFilter.base_filters]
    query += [("uid", uid) for uid in live]
    if newest:
        query.append(("newest", newest))
    return f"{reverse('jobs-rows')}?{urlencode(query)}"


class JobList(Page):
    """All jobs one may see."""

    right = "jobs.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page. Raises BadQuery for what it does not know."""
        found = listing(
            request,
            jobs_visible_to(self.actor),
            JobFilter,
            sorts=SORTS,
            labels=LABELS,
            words={
                "phase": lambda value: str(JobPhase(value).label),
                "origin": lambda value: str(JobOrigin(value).label),
                "cluster_kind": lambda value: str(ClusterKind(value).label),
            },
            columns=COLUMNS,
        )
        rows = rows_of(self.actor, found.rows)
        # New rows are told of only where they would appear: at the head of the newest-first list.
        watch = found.is_first and found.sort == "-created_at"
        newest = (rows[0].job.uid if rows else "none") if watch else ""
        clusters = list(clusters_visible_to(self.actor)[:200])
        kinds = {cluster.kind for cluster in clusters}
        context = {
            "list": found,
            "rows": rows,
            "poll": poll_query(request, rows, newest),
            "has_live": any(not row.job.has_ended for row in rows),
            "newer": 0,
            "phases": JobPhase.choices,
            "origins": JobOrigin.choices,
            "live_phases": ",".join(sorted(JOB_LIVE)),
            "teams": list(teams_visible_to(self.actor, "jobs.view")[:200]),
            "clusters": clusters,
            "kinds": [(value, label) for value, label in ClusterKind.choices if value in kinds],
            "may_submit": self.actor.holds("jobs.submit"),
            "any_stoppable": any(row.may_stop for row in rows),
            "verbs": [(str(kind), str(kind.label)) for kind in BULK_KINDS],
        }
        return render(request, "jobs/jobs.html", context)


class JobRows(Page):
    """The live rows of a list that is open in a browser, and how many newer ones there are."""

    right = "jobs.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """A fragment: fresh copies of the rows named by ``uid``, and the next poll."""
        matching, _values = filtered_rows(request, jobs_visible_to(self.actor), JobFilter, ("uid", "newest"), LABELS)
        uids = request.GET.getlist("uid")[:500]
        rows = rows_of(self.actor, list(jobs_visible_to(self.actor).filter(uid__in=uids))) if uids else []
        newest = request.GET.get("newest", "")
        newer = 0
        if newest:
            # uids are sortable by time, so "newer than" needs no instant in the address.
            newer = (matching.filter(uid__gt=newest) if newest != "none" else matching).count()
        context = {
            "rows": rows,
            "poll": poll_query(request, rows, newest),
            "has_live": any(not row.job.has_ended for row in rows),
            "newer": newer,
            "list_query": urlencode(
                [(n, v) for n, vs in request.GET.lists() for v in vs if n in JobFilter.base_filters]
            ),
        }
        return render(request, "jobs/jobs.html#poll_answer", context)


class JobCsv(Page):
    """The filtered set as CSV."""

    right = "jobs.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The matching jobs, newest first; where more match than fit, its last line and the list say so."""
        matching, _values = filtered_rows(request, jobs_visible_to(self.actor), JobFilter, ("sort", "cursor"), LABELS)
        jobs = list(matching.order_by("-created_at", "-id")[: MAX_CSV_ROWS + 1])
        sums = {}
        for start in range(0, len(jobs), 500):
            sums.update(sums_of(job.uid for job in jobs[start : start + 500]))
        header = [
            "uid",
            "name",
            "phase",
            "team",
            "owner",
            "cluster",
            "nodes",
            "gpus",
            "created_at",
            "started_at",
            "ended_at",
            "step",
            "total_steps",
            "usd_held",
            "usd_charged",
            "usd_released",
            "cluster_kind",
            "workload_kind",
        ]
        return csv_answer("jobs", header, (_csv_row(job, sums.get(job.uid)) for job in jobs))


def _csv_row(job: Job, sums: Any) -> list[Any]:
    return [
        job.uid,
        job.name,
        str(job.phase),
        job.team.slug,
        job.owner_name,
        job.cluster.name,
        job.nodes_in_all,
        job.gpus,
        clock.iso(job.created_at),
        clock.iso(job.started_at),
        clock.iso(job.ended_at),
        job.step,
        job.total_steps,
        sums.held if sums else 0,
        sums.charged if sums else 0,
        sums.released if sums else 0,
        job.cluster.kind,
        job.workload_kind,
    ]
