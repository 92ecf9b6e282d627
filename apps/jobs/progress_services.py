"""What people say of a job's progress: the size of its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from apps.audit.services import record
from apps.core.errors import FieldProblem, InvalidInput
from apps.jobs.models import Job
from apps.jobs.progress_rules import MODEL_FACTS, PRECISIONS, model_facts_of
from apps.teams.permissions import Actor


def job_model_set(*, actor: Actor, job: Job, told: Mapping[str, Any]) -> None:
    """Say how large the model is, for the utilisation; what is left out is forgotten. The caller fetched the job.

    Raises InvalidInput naming each figure that cannot be one.
    """
    facts = model_facts_of(told)
    problems = [
        FieldProblem(f"/{name}", "invalid", _("a number above 0, at most %(most)s") % {"most": f"{most:,.0f}"})
        for name, most in MODEL_FACTS.items()
        if told.get(name) is not None and name not in facts
    ]
    if told.get("precision") and "precision" not in facts:
        known = ", ".join(PRECISIONS)
        problems.append(FieldProblem("/precision", "unknown", _("one of %(known)s") % {"known": known}))
    if problems:
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=tuple(problems))
    with transaction.atomic():
        Job.objects.filter(pk=job.pk).update(model_facts=facts)
        record(actor, "job.model", "job", job.uid, team_id=job.team_id, before=job.model_facts, after=facts)
    job.model_facts = facts
