"""Tabs of a job that bring evidence: its metrics, and all events around it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from apps.core.errors import BadQuery
from apps.jobs.detail_views import JobPage, thinned
from apps.jobs.evidence import SOURCES, happenings_of, node_readings, source_label, step_times
from apps.jobs.permissions import can_cancel_job
from apps.jobs.progress_selectors import job_pace, job_utilisation, series_names, task_asked, tasks_reporting
from apps.jobs.progress_views import model_form
from apps.jobs.selectors import nodes_of, progress_of


class JobMetrics(JobPage):
    """Loss, throughput and step time over the whole job, and what the GPUs of its nodes say now."""

    tab = "metrics"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page or its live part."""
        job = self.job(uid)
        context = self.frame(job)
        task = task_asked(job, request.GET.get("task", ""))
        points = progress_of(job, task=task)
        took = step_times(points)
        attempt = context["attempt"]
        runs = attempt is not None and attempt.started_at is not None and attempt.ended_at is None
        context |= {
            "has_curve": len(points) > 1,
            "may_edit_model": can_cancel_job(self.actor, job),
            "pace": job_pace(points),
            "use": job_utilisation(job),
            "series": series_names(points),
            "model_form": model_form(job.model_facts),
            "table": [(p, took.get(p.step)) for p in thinned(points, 60)],
            "readings": node_readings(nodes_of(job, attempt)) if runs else [],
            "runs": runs,
            "task": task,
            "tasks": tasks_reporting(job) if job.array else [],
        }
        return self.answer(request, "jobs/job_metrics.html", context)


class JobEvents(JobPage):
    """What happened to the job, its cluster and its nodes while it lived."""

    tab = "events"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page or its live part. Raises BadQuery."""
        unknown = sorted(set(request.GET) - {"source"})
        if unknown:
            raise BadQuery(
                _("unknown query parameter %(unknown)s; known here: %(known)s")
                % {"unknown": ", ".join(unknown), "known": "source"}
            )
        source = request.GET.get("source", "")
        if source and source not in SOURCES:
            raise BadQuery(
                _("%(value)s is not known here; choose from: %(known)s")
                % {"value": repr(source), "known": ", ".join(source_label(s) for s in SOURCES)}
            )
        job = self.job(uid)
        context = self.frame(job)
        found = happenings_of(job, context["attempts"], [source] if source else SOURCES)
        context |= {
            "happenings": [(h, source_label(h.source)) for h in found],
            "sources": [(s, source_label(s)) for s in SOURCES],
            "source": source,
        }
        return self.answer(request, "jobs/job_events.html", context)
