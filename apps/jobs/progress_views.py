"""The size of a job's model, said by hand where the program does not report it."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.core.errors import InvalidInput
from apps.core.pages import Page
from apps.jobs.progress_rules import PRECISIONS
from apps.jobs.progress_services import job_model_set
from apps.jobs.selectors import job_for


class ModelForm(forms.Form):
    """What the formula of the utilisation needs."""

    billions = forms.FloatField(
        label=gettext_lazy("Parameters, billions"),
        min_value=0.000001,
        help_text=gettext_lazy("without embeddings; of a mixture of experts the active ones"),
    )
    layers = forms.FloatField(label=gettext_lazy("Layers"), required=False, min_value=1)
    hidden = forms.FloatField(label=gettext_lazy("Hidden size"), required=False, min_value=1)
    sequence = forms.FloatField(label=gettext_lazy("Sequence length"), required=False, min_value=1)
    precision = forms.ChoiceField(label=gettext_lazy("Precision"), choices=[(p, p.upper()) for p in PRECISIONS])


def model_form(facts: dict[str, float | str]) -> ModelForm:
    """The form filled with what is known."""
    parameters = facts.get("parameters")
    billions = parameters / 1e9 if isinstance(parameters, float) else None
    return ModelForm(initial={**facts, "billions": billions})


class JobModel(Page):
    """Saying how large the model is."""

    right = "jobs.cancel"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Store it and go back to the metrics."""
        job = job_for(actor=self.actor, may="jobs.cancel", uid=uid)
        form = ModelForm(request.POST)
        if form.is_valid():
            told = {k: v for k, v in form.cleaned_data.items() if v not in (None, "")}
            told["parameters"] = told.pop("billions") * 1e9
            try:
                job_model_set(actor=self.actor, job=job, told=told)
                self.say(_("The utilisation is computed for this model from now on."))
            except InvalidInput as refusal:
                messages.error(request, refusal.detail)
        else:
            for name, errors in form.errors.items():
                label = form.fields[name].label if name in form.fields else ""
                messages.error(request, f"{label}: {' '.join(str(error) for error in errors)}")
        return HttpResponseRedirect(reverse("job-metrics", args=[job.uid]))
