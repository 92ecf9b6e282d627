"""QueueEntry: one job as a cluster's scheduler shows it, whoever submitted it; written by the collector alone."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.clusters.models import Cluster


class QueueEntry(models.Model):
    """The mirror of the scheduler's queue.

    One row lives a job while it is in the queue; ``gone_at`` is set once it left, with its final state from
    accounting (``final_tries`` counts how often accounting was asked in vain). ``attempt`` is set where the job is one
    of ours, found by its comment and id. A task of an array has ``array_id`` (the array's scheduler id, also the
    attempt's) and ``array_task``; tasks that have not begun share one row with ``array_pending`` ("3-99%10").
    ``gpus``, ``cpus`` and ``memory_mib`` are of all its nodes.
    ``charged_until_at`` is how far the ledger has been charged for a job from outside.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="queue_entries")
    scheduler_id = models.CharField(max_length=340)
    attempt = models.ForeignKey(
        "jobs.Attempt", null=True, blank=True, on_delete=models.SET_NULL, related_name="entries"
    )
    comment = models.TextField(blank=True, default="")
    array_id = models.CharField(max_length=340, blank=True, default="")
    array_task = models.PositiveIntegerField(null=True, blank=True)
    array_pending = models.TextField(blank=True, default="")
    het_id = models.CharField(max_length=40, blank=True, default="")
    het_offset = models.PositiveIntegerField(null=True, blank=True)
    name = models.CharField(max_length=255, blank=True, default="")
    user_name = models.CharField(max_length=120, blank=True, default="")
    account = models.CharField(max_length=120, blank=True, default="")
    partition = models.CharField(max_length=500, blank=True, default="")
    qos = models.CharField(max_length=120, blank=True, default="")
    reservation = models.CharField(max_length=255, blank=True, default="")
    state = models.CharField(max_length=40)
    reason = models.CharField(max_length=120, blank=True, default="")
    priority = models.BigIntegerField(null=True, blank=True)
    nodes = models.JSONField(default=list)
    node_count = models.PositiveIntegerField(default=0)
    gpus = models.PositiveIntegerField(default=0)
    cpus = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveBigIntegerField(default=0)
    dependency = models.TextField(blank=True, default="")
    features = models.TextField(blank=True, default="")
    submitted_at = models.DateTimeField(null=True, blank=True)
    eligible_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    expected_start_at = models.DateTimeField(null=True, blank=True)
    time_limit_min = models.PositiveIntegerField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    signal = models.IntegerField(null=True, blank=True)
    charged_until_at = models.DateTimeField(null=True, blank=True)
    gone_at = models.DateTimeField(null=True, blank=True)
    final_tries = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "scheduler_id"],
                condition=Q(gone_at__isnull=True),
                name="jobs_one_live_entry_per_job",
            )
        ]
        indexes = [
            models.Index(fields=["cluster", "gone_at", "state"], name="jobs_entry_by_state"),
            models.Index(fields=["cluster", "user_name", "ended_at"], name="jobs_entry_by_user"),
            models.Index(fields=["gone_at"], name="jobs_entry_by_gone"),
        ]

    def __str__(self) -> str:
        """Number and state."""
        return f"{self.scheduler_id} {self.state}"
