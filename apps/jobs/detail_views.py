"""The page of one job: its tabs, their data for the page's own scripts, and cancelling or starting again."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from apps.checkpoints.models import Checkpoint
from apps.checkpoints.selectors import newest_complete
from apps.clusters.models import Node
from apps.core.pages import Page
from apps.costs.states import Unit
from apps.health.models import Finding
from apps.health.selectors import live_findings
from apps.health.states import FATAL
from apps.jobs.action_selectors import actions_of, verbs_for
from apps.jobs.action_words import verb_words
from apps.jobs.dependency_selectors import graph_of
from apps.jobs.evidence import slow_reasons, step_times
from apps.jobs.history import SPAN_COLOURS, curve_of, ledger_of, moments_of, spans_of, time_use, with_happenings
from apps.jobs.kube_selectors import happenings_for
from apps.jobs.manifests import sent_lines, text_for
from apps.jobs.models import Attempt, Job
from apps.jobs.part_forms import parts_text
from apps.jobs.part_selectors import has_parts
from apps.jobs.permissions import can_cancel_job
from apps.jobs.progress_selectors import series_of, task_asked
from apps.jobs.retry_rules import OWN
from apps.jobs.selectors import attempts_of, job_events, job_for, job_sums, nodes_heard, nodes_of, progress_of
from apps.jobs.sentences import job_sentence
from apps.jobs.services import job_stop
from apps.jobs.spec_api import spec_of
from apps.jobs.start_views import start_context
from apps.jobs.states import JobOrigin, JobPhase


def page_address(name: str, uid: str) -> str:
    """The address of an object's page, or empty while there is no such page."""
    try:
        return reverse(name, args=[uid])
    except NoReverseMatch:
        return ""


def node_marks(attempt: Attempt | None, rows: list[Node], findings: dict[int, list[Finding]]) -> list[dict[str, Any]]:
    """The nodes an attempt runs or ran on: the colour of each one's health, the words behind it, when it was heard."""
    heard = nodes_heard(attempt)
    marks: list[dict[str, Any]] = []
    for row in rows:
        found = findings.get(row.pk, [])
        is_fatal = any(f.severity in FATAL for f in found)
        colour = "bad" if is_fatal else "warn" if found else ""
        titles = ", ".join(str(f.title) for f in found)
        marks.append({"node": row, "name": row.name, "colour": colour, "titles": titles})
    known = {row.name for row in rows}
    marks += [
        {"name": name, "colour": "off", "titles": ""}
        for name in (attempt.nodes if attempt else [])
        if name not in known
    ]
    return [{**mark, "heard_at": heard.get(mark["name"])} for mark in marks]


class JobPage(Page):
    """One job, fetched with the right to see it; subclasses name their tab."""

    right = "jobs.view"
    abstract = True
    tab = ""

    def job(self, uid: str) -> Job:
        """The job. Raises NotFound."""
        return job_for(actor=self.actor, may="jobs.view", uid=uid)

    def frame(self, job: Job) -> dict[str, Any]:
        """What every tab shows: head, tabs, rail."""
        attempts = attempts_of(job)
        attempt = attempts[-1] if attempts else None
        sums = job_sums(job)
        rows = nodes_of(job, attempt)
        findings = live_findings([row.pk for row in rows])
        return {
            "job": job,
            "attempts": attempts,
            "attempt": attempt,
            "sentence": job_sentence(job, attempt, sums),
            "may_stop": can_cancel_job(self.actor, job) and not job.has_ended,
            "is_cancelling": job.stop_kind == "cancel",
            "verbs": verbs_for(job, attempt),
            "may_requeue": job.phase == JobPhase.RUNNING and job.origin != JobOrigin.OUTSIDE and not job.manifest,
            "asked": [(a, verb_words(a.kind, a.parameters)) for a in actions_of(job)[:5]],
            "sums": sums,
            "net_held": sums.held - sums.released,
            "nodes": node_marks(attempt, rows, findings),
            "node_rows": rows,
            "findings": findings,
            "tab": self.tab,
            "tabs": [
                ("overview", "job", _("Overview")),
                *([("tasks", "job-tasks", _("Tasks"))] if job.array else []),
                *([("parts", "job-parts", _("Job parts"))] if has_parts(job) else []),
                *([("pods", "job-pods", _("Pods"))] if job.cluster.is_kubernetes else []),
                ("logs", "job-logs", _("Logs")),
                ("metrics", "job-metrics", _("Metrics")),
                ("checkpoints", "job-checkpoints", _("Checkpoints")),
                ("timeline", "job-timeline", _("Timeline")),
                ("events", "job-events", _("Events")),
                ("config", "job-config", _("Config")),
                ("cost", "job-cost", _("Cost")),
            ],
            "may_submit": self.actor.holds("jobs.submit"),
            "may_template": self.actor.holds("templates.manage"),
            "cluster_url": page_address("cluster", job.cluster.uid),
            "polls": not job.has_ended,
            "queue_read_at": None if job.has_ended else job.cluster.queue_read_at,
        }

    def answer(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        """The page, or with htmx only its live part."""
        return render(request, f"{template}#live" if getattr(request, "htmx", False) else template, context)


class JobOverview(JobPage):
    """State, curves, where the time went."""

    tab = "overview"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page or its live part."""
        job = self.job(uid)
        context = self.frame(job)
        points = progress_of(job)
        spans = spans_of(job, context["attempts"], points)
        whole = sum((s.length.total_seconds() for s in spans), 0.0)
        context |= {
            "points": points[-1:],
            "has_curve": len(points) > 1,
            "table": thinned(points, 24),
            "uses": time_use(spans),
            "bars": _bars(spans, whole),
            "graph": graph_of(self.actor, job, context["attempt"]),
            "start": start_context(job, context["attempt"]),
            "slow": slow_reasons(job, context["attempt"], points, context["node_rows"], context["findings"]),
        }
        return self.answer(request, "jobs/job_overview.html", context)


def thinned(points: list[Any], most: int) -> list[Any]:
    """At most ``most`` of them, evenly, the last always kept."""
    if len(points) <= most:
        return points
    stride = len(points) / most
    return [points[int(i * stride)] for i in range(most - 1)] + points[-1:]


def _bars(spans: list[Any], whole: float) -> list[dict[str, Any]]:
    """The spans as rectangles on a line of 1000."""
    x = 0.0
    bars = []
    for span in spans:
        width = span.length.total_seconds() * 1000 / whole if whole else 0.0
        bars.append({"span": span, "x": f"{x:.2f}", "width": f"{width:.2f}", "colour": SPAN_COLOURS[span.kind]})
        x += width
    return bars


class JobCurve(JobPage):
    """The curves as the page's chart script reads them."""

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """JSON, attempts joined."""
        job = self.job(uid)
        points = progress_of(job, task=task_asked(job, request.GET.get("task", "")))
        curve, took = curve_of(points), step_times(points)
        return JsonResponse(
            {
                "steps": curve.steps,
                "loss": curve.loss,
                "lost_loss": curve.lost_loss,
                "tokens_per_s": curve.tokens_per_s,
                "step_s": [took.get(step) for step in curve.steps],
                "series": series_of(points, curve.steps),
                "joins": curve.joins,
                "is_open": not job.has_ended,
            }
        )


class JobCheckpoints(JobPage):
    """What the job wrote."""

    tab = "checkpoints"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page or its live part."""
        job = self.job(uid)
        rows = list(Checkpoint.objects.filter(series_id=job.series_id).order_by("-step", "-id")[:200])
        numbers = dict(Attempt.objects.filter(job=job).values_list("uid", "number"))
        newest = newest_complete(job.series)
        context = self.frame(job)
        context["rows"] = [(row, numbers.get(row.attempt_uid), _short(row.path)) for row in rows]
        context["resume_uid"] = newest.uid if newest else ""
        return self.answer(request, "jobs/job_checkpoints.html", context)


def _short(path: str) -> str:
    """The end of a long path: what tells two checkpoints of one job apart."""
    parts = path.rstrip("/").split("/")
    return path if len(parts) <= 3 else "…/" + "/".join(parts[-2:])


class JobTimeline(JobPage):
    """What happened, newest first."""

    tab = "timeline"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page or its live part."""
        job = self.job(uid)
        context = self.frame(job)
        moments = moments_of(job_events(job))
        if job.cluster.is_kubernetes:
            moments = with_happenings(moments, happenings_for(job))
        context["moments"] = moments[::-1]
        return self.answer(request, "jobs/job_timeline.html", context)


class JobConfig(JobPage):
    """What was asked for."""

    tab = "config"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page."""
        job = self.job(uid)
        context = self.frame(job)
        context["body"] = json.dumps(spec_of(job, self.actor), indent=2, ensure_ascii=False)
        own = [{"rule": rule, "source": OWN, "name": ""} for rule in job.retry_rules]
        context["further_parts"] = parts_text(job.parts).splitlines()
        context["retry_chain"] = [*own, *job.retry_defaults]
        context["manifest_lines"] = sent_lines(job, context["attempt"]) if job.manifest and context["attempt"] else []
        context["manifest"] = text_for(self.actor, job)
        context["submit_url"] = request.build_absolute_uri("/api/v1/jobs")
        return self.answer(request, "jobs/job_config.html", context)


class JobCost(JobPage):
    """Hold, charges and release, both legs of each."""

    tab = "cost"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page or its live part."""
        job = self.job(uid)
        context = self.frame(job)
        ledgers = [ledger_of(job, unit, context["attempts"]) for unit in (Unit.USD, Unit.GPU_HOURS, Unit.GPUS)]
        context["ledgers"] = [ledger for ledger in ledgers if ledger.lines]
        return self.answer(request, "jobs/job_cost.html", context)


class StopJob(Page):
    """Cancel or start again one job."""

    right = "jobs.cancel"
    kind = "cancel"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it and go back to the job."""
        job = job_for(actor=self.actor, may="jobs.cancel", uid=uid)
        job_stop(actor=self.actor, job=job, kind=self.kind)
        self.say(
            _("%(name)s is being cancelled.") % {"name": job.name}
            if self.kind == "cancel"
            else _("%(name)s starts again from its newest complete checkpoint.") % {"name": job.name}
        )
        return HttpResponseRedirect(reverse("job", args=[job.uid]))
