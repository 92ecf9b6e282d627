"""LogSegment: a run of a job's output that lies in the object store instead of the database."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q


class LogSegment(models.Model):
    """Consecutive log chunks of one attempt, kept in the object store under ``key``.

    The row is written, and its chunks are tied to it, before the store is called; once ``stored_at`` is set the
    chunks are deleted. Whoever wants to read them sets ``wanted_at``: the worker brings them back under their old
    ids (``restored_at``) and takes them away again when nobody has looked for a while.

        named ▶ stored ▶ wanted ▶ restored ▶ stored
    """

    attempt = models.ForeignKey("jobs.Attempt", on_delete=models.CASCADE, related_name="log_segments")
    key = models.CharField(max_length=300, unique=True)
    first_id = models.BigIntegerField()
    last_id = models.BigIntegerField()
    chunk_count = models.PositiveIntegerField()
    raw_bytes = models.PositiveBigIntegerField()
    stored_bytes = models.PositiveBigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True, default="")
    level = models.PositiveSmallIntegerField(default=0)
    stored_at = models.DateTimeField(null=True, blank=True)
    wanted_at = models.DateTimeField(null=True, blank=True)
    restored_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True, default="")

    class Meta:
        ordering = ["first_id"]
        constraints = [
            models.CheckConstraint(condition=Q(last_id__gte=F("first_id")), name="jobs_segment_has_span"),
            models.CheckConstraint(
                condition=Q(restored_at__isnull=True) | Q(stored_at__isnull=False), name="jobs_restored_was_stored"
            ),
        ]
        indexes = [models.Index(fields=["attempt", "first_id"], name="jobs_segments_in_order")]

    def __str__(self) -> str:
        """Where it lies."""
        return self.key

    @property
    def is_away(self) -> bool:
        """Its chunks are in the store only."""
        return self.stored_at is not None and self.restored_at is None
