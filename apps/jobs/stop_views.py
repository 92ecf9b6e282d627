"""Stopping several jobs from the list: a preview of what happens to each, then the result of each."""

from __future__ import annotations

from decimal import Decimal

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.core.errors import BadQuery
from apps.core.forms import is_htmx
from apps.core.lists import filtered_rows
from apps.core.pages import Page
from apps.jobs.filters import JobFilter
from apps.jobs.models import Job
from apps.jobs.selectors import STOP_KINDS, jobs_picked, jobs_visible_to, jobs_worth_stopping, stop_lines
from apps.jobs.services import jobs_stop
from apps.jobs.views import LABELS


def _kind(data: QueryDict) -> str:
    kind = str(data.get("kind", "cancel"))
    if kind not in STOP_KINDS:
        raise BadQuery(_("%(name)s: must be one of %(known)s") % {"name": "kind", "known": ", ".join(STOP_KINDS)})
    return kind


class BulkStop(Page):
    """Cancel or start again several jobs: a preview first, then one by one.

    What is confirmed is what is done: the preview names each job, and only those named are stopped,
    whatever has come to match the filters meanwhile.
    """

    right = "jobs.cancel"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The preview that the dialog shows: of the picked jobs, or with ``all=1`` of all that match the filters."""
        kind = _kind(request.GET)
        matching, _values = filtered_rows(
            request, jobs_visible_to(self.actor), JobFilter, ("uid", "kind", "all"), LABELS
        )
        jobs: list[Job]
        ended = 0
        if request.GET.get("all") == "1":
            jobs = jobs_worth_stopping(matching)
            ended = matching.count() - len(jobs)
        else:
            jobs = jobs_picked(self.actor, request.GET.getlist("uid"))
        lines = stop_lines(self.actor, jobs, kind)
        going = [line for line in lines if not line.problem]
        context = {
            "going": going,
            "skipped": [line for line in lines if line.problem],
            "ended": ended,
            "kind": kind,
            "gpus": sum(line.job.gpus for line in going),
            "usd_open": sum((line.usd_open for line in going), Decimal(0)),
        }
        return render(request, "jobs/stop_many.html#preview", context)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Stop them and say what became of each, in the dialog or, without script, on the list."""
        kind = _kind(request.POST)
        lines = jobs_stop(actor=self.actor, jobs=jobs_picked(self.actor, request.POST.getlist("uid")), kind=kind)
        done = sum(1 for line in lines if not line.problem)
        text = (
            ngettext("%(count)s job is being cancelled.", "%(count)s jobs are being cancelled.", done)
            if kind == "cancel"
            else ngettext("%(count)s job starts again.", "%(count)s jobs start again.", done)
        ) % {"count": done}
        if is_htmx(request):
            return render(request, "jobs/stop_many.html#result", {"lines": lines, "text": text})
        if done:
            self.say(text)
        left = "; ".join(f"{line.job.name} {line.problem}" for line in lines if line.problem)
        if left:
            messages.warning(request, _("Left alone: %(what)s") % {"what": left})
        return HttpResponseRedirect(reverse("jobs"))
