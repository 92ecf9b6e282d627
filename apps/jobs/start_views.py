"""When a waiting job starts, and "what if it asked for less": the fragment that answers as one types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.core.pages import Page
from apps.jobs.kube_words import said_words
from apps.jobs.models import Attempt, Job
from apps.jobs.rules import parse_time
from apps.jobs.selectors import current_attempt, job_for
from apps.jobs.start_models import StartPrediction
from apps.jobs.start_selectors import accuracy_of, asked_of, prediction_of, waits_for_start, what_if
from apps.jobs.start_words import accuracy_words, needs_words, what_if_words
from apps.jobs.states import JobPhase
from apps.jobs.template_fields import minutes_text


class WhatIfForm(forms.Form):
    """What of a waiting job may be thought otherwise."""

    nodes = forms.IntegerField(label=gettext_lazy("Nodes"), min_value=1, max_value=10_000)
    time_limit = forms.CharField(label=gettext_lazy("Time limit"), max_length=20)
    partition = forms.ChoiceField(label=gettext_lazy("Partition"), required=False)

    prefix = "what-if"

    def __init__(self, *args: Any, job: Job, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = [str(one.get("name")) for one in job.cluster.observed_partitions]
        field = self.fields["partition"]
        if isinstance(field, forms.ChoiceField):
            field.choices = [("", _("Default")), *((name, name) for name in names)]

    def clean_time_limit(self) -> int:
        """In minutes."""
        try:
            minutes = parse_time(self.cleaned_data["time_limit"])
        except ValueError as error:
            raise ValidationError(str(error)) from None
        if not 1 <= minutes <= 366 * 1440:
            raise ValidationError(_("between a minute and a year"))
        return minutes


def start_context(job: Job, attempt: Attempt | None) -> dict[str, Any]:
    """What the panel of a waiting job shows; empty for any other."""
    if job.phase != JobPhase.QUEUED or not waits_for_start(attempt):
        return {}
    prediction = prediction_of(attempt)
    initial = {
        "nodes": job.nodes,
        "time_limit": minutes_text(job.time_limit_min),
        "partition": job.partition,
    }
    return {
        "prediction": prediction,
        "needs": _needs(attempt, prediction),
        "accuracy": accuracy_words(accuracy_of(job.cluster_id)),
        "what_if": WhatIfForm(job=job, initial=initial),
    }


def _needs(attempt: Attempt | None, prediction: StartPrediction | None) -> list[str]:
    """What it waits for: in the cluster's own sentences where it gives them."""
    if told := said_words(attempt):
        return [told]
    return needs_words(prediction.why, prediction.made_at) if prediction is not None else []


class JobWhatIf(Page):
    """The answer for another size, limit or partition, from what is stored."""

    right = "jobs.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A fragment: one sentence, or what is wrong with what was typed."""
        job = job_for(actor=self.actor, may="jobs.view", uid=uid)
        attempt = current_attempt(job)
        form = WhatIfForm(request.GET, job=job)
        if not waits_for_start(attempt):
            return render(request, "jobs/job_start.html#answer", {"answer": _("It does not wait any more.")})
        if not form.is_valid():
            problems = [f"{form.fields[name].label}: {' '.join(map(str, told))}" for name, told in form.errors.items()]
            return render(request, "jobs/job_start.html#answer", {"problems": problems})
        asked = asked_of(job, attempt)
        partition = form.cleaned_data["partition"] or job.cluster.partition or asked.partition
        asked = replace(
            asked, nodes=form.cleaned_data["nodes"], limit_min=form.cleaned_data["time_limit"], partition=partition
        )
        answer = what_if(job.cluster, asked, key=attempt.scheduler_id if attempt else "")
        return render(request, "jobs/job_start.html#answer", {"answer": what_if_words(answer, partition)})
