"""JobTemplateVersion, TeamRetry."""

from __future__ import annotations

from typing import Any

from django.db import models

from apps.core import clock
from apps.core.models import Recorded
from apps.jobs.models import JobTemplate
from apps.teams.models import Team


class JobTemplateVersion(models.Model):
    """What a template said from one edit to the next; rows are only ever added."""

    template = models.ForeignKey(JobTemplate, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    created_at = models.DateTimeField(default=clock.now)
    by = models.CharField(max_length=150, blank=True, default="")
    why = models.CharField(max_length=200, blank=True, default="")
    title = models.CharField(max_length=80)
    description = models.CharField(max_length=300, blank=True, default="")
    script = models.TextField()
    parameters = models.JSONField(default=list)
    defaults = models.JSONField(default=dict)
    locked = models.JSONField(default=list)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["template", "number"], name="jobs_one_version_per_number")]

    def __str__(self) -> str:
        """Template and number."""
        return f"{self.template_id}/{self.number}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Add it; a row that exists is never written again."""
        if self.pk is not None:
            raise TypeError("a version of a template never changes; an edit is a further version")
        super().save(*args, **kwargs)


class TeamRetry(Recorded):
    """What follows a failed attempt of a team's jobs where neither job nor template says it; lines of parse_rules."""

    uid_prefix = "rty"

    team = models.OneToOneField(Team, on_delete=models.CASCADE, related_name="retry_defaults")
    rules = models.JSONField(default=list)
    changed_at = models.DateTimeField(default=clock.now)
    changed_by = models.CharField(max_length=150, blank=True, default="")

    class Meta:
        ordering = ["team"]

    def __str__(self) -> str:
        """Whose they are."""
        return f"{self.team_id}"
