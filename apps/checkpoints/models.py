"""CheckpointSeries: all checkpoints of one job; Checkpoint: one folder."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.checkpoints.states import CheckpointState, Layout
from apps.core import clock
from apps.core.models import Recorded
from apps.core.said import SaidField
from apps.teams.models import Team


class CheckpointSeries(Recorded):
    """The checkpoints of one job over all its attempts."""

    uid_prefix = "ser"

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="checkpoint_series")
    name = models.CharField(max_length=120)
    job_uid = models.CharField(max_length=40, db_index=True)

    class Meta:
        verbose_name_plural = "checkpoint series"

    def __str__(self) -> str:
        """The job's name."""
        return self.name


class Checkpoint(Recorded):
    """One checkpoint folder as the job's runner last listed it. The portal never opens its files.

    ``reason`` is the sentence behind ``state``; ``changed_at`` the newest file's time on our clock.
    """

    uid_prefix = "ckp"

    series = models.ForeignKey(CheckpointSeries, on_delete=models.CASCADE, related_name="checkpoints")
    attempt_uid = models.CharField(max_length=40, db_index=True)
    path = models.CharField(max_length=700)
    step = models.BigIntegerField(null=True, blank=True)
    layout = models.CharField(max_length=12, choices=Layout.choices, default=Layout.UNKNOWN)
    state = models.CharField(max_length=12, choices=CheckpointState.choices, default=CheckpointState.IN_PROGRESS)
    reason = SaidField(blank=True, default="")
    total_bytes = models.BigIntegerField(default=0)
    file_count = models.PositiveIntegerField(default=0)
    listing = models.JSONField(default=dict)
    first_seen_at = models.DateTimeField(default=clock.now)
    changed_at = models.DateTimeField(default=clock.now)
    reported_at = models.DateTimeField(default=clock.now)
    completed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["series", "path"], name="checkpoints_one_row_per_path"),
            models.CheckConstraint(
                condition=Q(state__in=[c.value for c in CheckpointState]), name="checkpoints_known_state"
            ),
        ]
        indexes = [models.Index(fields=["series", "-step"], name="checkpoints_by_step")]

    def __str__(self) -> str:
        """Step and state."""
        return f"step {self.step} {self.state}"
