"""JobAction: one wish of a person about a job in the scheduler, and what became of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.core import clock, ids
from apps.core.said import SaidField, SaidJSONField
from apps.jobs.action_states import ActionKind, ActionPhase
from apps.jobs.models import Attempt, Job


class JobAction(models.Model):
    """A wish; the worker sends those of a job one after the other.

    ``parameters`` holds what the kind needs: {signal}, {nice}, {time_limit_min} or {partition,
    usd_per_gpu_hour, usd_per_node_hour, price_source}. ``usd`` and ``gpu_hours`` were held for it when it was asked and
    are given back when the scheduler refuses. It is sent as Slurm's user ``act_as`` ("": the
    cluster's own); ``as_operator``: it may use rights in the scheduler that jobs' owners lack.
    """

    uid = models.CharField(max_length=40, unique=True, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="actions")
    attempt = models.ForeignKey(Attempt, null=True, blank=True, on_delete=models.SET_NULL, related_name="actions")
    kind = models.CharField(max_length=12, choices=ActionKind.choices)
    parameters = SaidJSONField(default=dict)
    asked_by = models.CharField(max_length=150)
    act_as = models.CharField(max_length=60, blank=True, default="")
    as_operator = models.BooleanField(default=False)
    usd = models.DecimalField(max_digits=20, decimal_places=6, default=0)
    gpu_hours = models.DecimalField(max_digits=20, decimal_places=6, default=0)
    asked_at = models.DateTimeField(default=clock.now)

    phase = models.CharField(max_length=8, choices=ActionPhase.choices, default=ActionPhase.ASKED)
    answer = SaidField(blank=True, default="")
    sent_at = models.DateTimeField(null=True, blank=True)
    settled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(phase__in=[c.value for c in ActionPhase]), name="jobs_action_known_phase"
            ),
            models.CheckConstraint(condition=Q(kind__in=[c.value for c in ActionKind]), name="jobs_action_known_kind"),
        ]
        indexes = [models.Index(fields=["phase"], name="jobs_action_by_phase")]

    def __str__(self) -> str:
        """Kind and job."""
        return f"{self.kind} {self.job_id}"

    def save(self, *args: object, **kwargs: object) -> None:
        """Give a new row its uid."""
        if not self.uid:
            self.uid = ids.new_uid("act")
        super().save(*args, **kwargs)  # type: ignore[arg-type]
