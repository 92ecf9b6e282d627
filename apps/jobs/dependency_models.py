"""JobDependency: a job of the portal that another one waits for."""

from __future__ import annotations

from django.db import models

from apps.jobs.models import Job


class JobDependency(models.Model):
    """``job`` is not given to the scheduler before ``needs`` is as ``kind`` says.

    The portal keeps these itself: a job that recovers from a node failure is another job to Slurm each time.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="waits_for")
    needs = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="waited_for_by")
    kind = models.CharField(max_length=10)

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["job", "needs"], name="jobs_one_dependency_per_pair")]

    def __str__(self) -> str:
        """As Slurm would write it."""
        return f"{self.kind}:{self.needs_id}"
