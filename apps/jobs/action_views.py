"""Asking something of one job or of several: a dialog that says what happens to each, then the result of each."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.core.errors import BadQuery, InvalidInput
from apps.core.forms import is_htmx
from apps.core.lists import filtered_rows
from apps.core.pages import Page
from apps.jobs.action_rules import Wish, wish_of
from apps.jobs.action_selectors import action_lines
from apps.jobs.action_services import jobs_act
from apps.jobs.action_states import SIGNALS, ActionKind
from apps.jobs.filters import JobFilter
from apps.jobs.models import Job
from apps.jobs.rules import checkpoint_signal, parse_time
from apps.jobs.selectors import jobs_picked, jobs_visible_to, jobs_worth_stopping
from apps.jobs.template_fields import minutes_text
from apps.jobs.views import LABELS

_MEMBERS = {
    ActionKind.SIGNAL: "signal",
    ActionKind.PRIORITY: "nice",
    ActionKind.PARTITION: "partition",
    ActionKind.TIME_LIMIT: "time_limit_min",
    ActionKind.CANCEL_TASK: "task",
    ActionKind.REQUEUE_TASK: "task",
}


def _kind(data: QueryDict) -> str:
    kind = str(data.get("kind", ""))
    if kind not in ActionKind.values:
        known = ", ".join(ActionKind.values)
        raise BadQuery(_("%(name)s: must be one of %(known)s") % {"name": "kind", "known": known})
    return kind


def _wish(kind: str, value: str) -> Wish:
    """The wish of what was typed. Raises InvalidInput."""
    member = _MEMBERS.get(ActionKind(kind))
    given: Any = value
    if kind == ActionKind.TIME_LIMIT:
        try:
            given = parse_time(value)
        except ValueError as error:
            raise InvalidInput(str(error)) from None
    return wish_of(kind, {member: given} if member else {})


class JobsAct(Page):
    """Hold, release, signal or change jobs: a preview first, then one by one; only what was named is asked."""

    right = "jobs.cancel"

    def get(self, request: HttpRequest) -> HttpResponse:
        """What the dialog shows: of the jobs named, or with ``all=1`` of all that match the filters."""
        kind = _kind(request.GET)
        own = ("uid", "kind", "all", "value")
        matching, _values = filtered_rows(request, jobs_visible_to(self.actor), JobFilter, own, LABELS)
        jobs: list[Job]
        if request.GET.get("all") == "1":
            jobs = jobs_worth_stopping(matching)
        else:
            jobs = jobs_picked(self.actor, request.GET.getlist("uid"))
        value = str(request.GET.get("value", "")) or _usual(kind, jobs)
        context: dict[str, Any] = {"kind": kind, "label": ActionKind(kind).label, "jobs": jobs, "value": value}
        context |= {"signals": SIGNALS, "partitions": _partitions(jobs), "is_one": len(jobs) == 1}
        try:
            lines = action_lines(self.actor, jobs, _wish(kind, value))
        except InvalidInput as refusal:
            context |= {"problem": refusal.problems[0].detail if refusal.problems else refusal.detail}
            lines = []
        context["going"] = [line for line in lines if not line.problem]
        context["skipped"] = [line for line in lines if line.problem]
        context["usd"] = sum((line.usd for line in lines if not line.problem), Decimal(0))
        is_typed = request.GET.get("value") is not None and kind not in (
            ActionKind.CANCEL_TASK,
            ActionKind.REQUEUE_TASK,
        )
        part = "#plan" if is_typed and is_htmx(request) else "#preview"
        return render(request, f"jobs/act.html{part}", context)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Ask it and say what became of each, in the dialog or, without script, on the job or the list."""
        kind = _kind(request.POST)
        wish = _wish(kind, str(request.POST.get("value", "")))
        jobs = jobs_picked(self.actor, request.POST.getlist("uid"))
        lines = jobs_act(actor=self.actor, jobs=jobs, wish=wish)
        done = sum(1 for line in lines if not line.problem)
        text = ngettext("Asked for %(count)s job: %(what)s", "Asked for %(count)s jobs: %(what)s", done) % {
            "count": done,
            "what": ActionKind(kind).label,
        }
        if is_htmx(request):
            return render(request, "jobs/act.html#result", {"lines": lines, "text": text, "is_one": len(lines) == 1})
        if done:
            self.say(text)
        left = "; ".join(f"{line.job.name} {line.problem}" for line in lines if line.problem)
        if left:
            messages.warning(request, _("Left alone: %(what)s") % {"what": left})
        return HttpResponseRedirect(reverse("job", args=[jobs[0].uid]) if len(jobs) == 1 else reverse("jobs"))


def _usual(kind: str, jobs: list[Job]) -> str:
    """What the dialog's field begins with."""
    first = jobs[0] if jobs else None
    match kind:
        case ActionKind.SIGNAL:
            return (checkpoint_signal(first.environment) if first else "") or SIGNALS[0]
        case ActionKind.PRIORITY:
            return "100"
        case ActionKind.PARTITION:
            names = _partitions(jobs)
            return next((n for n in names if first is None or n != first.partition), names[0] if names else "")
        case ActionKind.TIME_LIMIT:
            return minutes_text(first.time_limit_min if first else 60)
        case _:
            return ""


def _partitions(jobs: list[Job]) -> list[str]:
    """Partitions that the clusters of all these jobs have."""
    found: list[str] = []
    for cluster in {job.cluster.pk: job.cluster for job in jobs}.values():
        names = [str(p.get("name")) for p in cluster.observed_partitions]
        found = [n for n in found if n in names] if found else names
    return found
