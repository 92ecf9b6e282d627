"""StartHistory and StartPrediction: what jobs took of their limits, and when waiting ones were expected to start."""

from __future__ import annotations

from django.db import models

from apps.clusters.models import Cluster
from apps.core import clock


class StartHistory(models.Model):
    """What jobs of a cluster took of their time limits, newest last: ``use`` maps a kind of jobs to parts from 0 to 1.

    Kinds are ``n:<user>/<name with its digits as #>``, ``u:<user>``, ``p:<partition>``. ``ratios`` are real waits as
    parts of what had been played for them.
    """

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="start_history")
    made_at = models.DateTimeField(default=clock.now)
    use = models.JSONField(default=dict)

    def __str__(self) -> str:
        """Whose."""
        return f"history of {self.cluster_id}"


class StartPrediction(models.Model):
    """When the portal expects a waiting attempt to start, and what it waits for.

    An attempt has two rows: the first expectation, by which the portal's accuracy is judged, and the newest.
    ``low_at`` is the earliest likely start; ``p50_at`` and ``p90_at`` are the range that is shown; None where no start
    is in sight. ``why`` holds the numbers of ``start_rules.Why`` and the scheduler's reason. ``was_inside``: it started
    neither before ``low_at`` nor after ``p90_at``.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="start_predictions")
    attempt = models.ForeignKey("jobs.Attempt", on_delete=models.CASCADE, related_name="predictions")
    is_first = models.BooleanField(default=False)
    made_at = models.DateTimeField(default=clock.now)
    low_at = models.DateTimeField(null=True, blank=True)
    p50_at = models.DateTimeField(null=True, blank=True)
    p90_at = models.DateTimeField(null=True, blank=True)
    why = models.JSONField(default=dict)
    started_at = models.DateTimeField(null=True, blank=True)
    was_inside = models.BooleanField(null=True, blank=True)

    class Meta:
        ordering = ["attempt", "-is_first"]
        constraints = [
            models.UniqueConstraint(fields=["attempt", "is_first"], name="jobs_one_first_and_one_newest_prediction")
        ]
        indexes = [models.Index(fields=["cluster", "is_first", "started_at"], name="jobs_prediction_by_start")]

    def __str__(self) -> str:
        """Of what, for when."""
        return f"{self.attempt_id} at {self.p50_at}"
