"""Abstract columns that every object has, and the two tables of the API's own bookkeeping."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import F

from apps.core import clock, ids
from apps.core.errors import StaleVersion
from apps.core.said import SaidField


class Recorded(models.Model):
    """An object with an outside identifier and a version for If-Match.

    ``uid_prefix`` starts the uid; ``version`` counts changes of the spec and is the ETag.
    """

    uid_prefix: ClassVar[str] = ""

    uid = models.CharField(max_length=40, unique=True, editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False, db_index=True)
    version = models.PositiveIntegerField(default=1, editable=False)

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Give a new row its uid."""
        if not self.uid:
            self.uid = ids.new_uid(self.uid_prefix)
        super().save(*args, **kwargs)

    def spec_update(self, expected_version: int | None = None, **columns: Any) -> None:
        """Write spec columns and raise the version in one UPDATE.

        Raises StaleVersion when ``expected_version`` (or the one this instance was read with) is not the stored one.
        """
        seen = self.version if expected_version is None else expected_version
        model = type(self)
        changed = model._default_manager.filter(pk=self.pk, version=seen).update(version=F("version") + 1, **columns)
        if changed != 1:
            raise StaleVersion(f"{model._meta.verbose_name} {self.uid} was changed by someone else; read it again")
        self.version = seen + 1
        for name, value in columns.items():
            setattr(self, name, value)


class Reconciled(Recorded):
    """An object whose spec a person writes and whose status the worker writes.

    ``generation`` counts spec changes; ``observed_generation`` is the last one the worker acted on.
    ``message`` is the worker's newest sentence about it.
    """

    generation = models.PositiveIntegerField(default=1, editable=False)
    observed_generation = models.PositiveIntegerField(default=0, editable=False)
    phase_since = models.DateTimeField(default=clock.now, editable=False)
    observed_at = models.DateTimeField(null=True, blank=True, editable=False)
    message = SaidField(blank=True, default="", editable=False)

    class Meta:
        abstract = True


class IdempotencyRecord(models.Model):
    """The answer to one POST with an Idempotency-Key, kept 24 h; written in the effect's own transaction."""

    actor = models.CharField(max_length=80)
    method = models.CharField(max_length=8)
    path = models.CharField(max_length=300)
    key = models.CharField(max_length=200)
    body_digest = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(default=0)
    body = models.JSONField(default=dict)
    location = models.CharField(max_length=300, blank=True, default="")
    created_at = models.DateTimeField(default=clock.now, db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["actor", "method", "path", "key"], name="core_one_answer_per_key")
        ]
        verbose_name = "idempotency record"

    def __str__(self) -> str:
        """The key and its request line."""
        return f"{self.method} {self.path} {self.key}"


class Heartbeat(models.Model):
    """When a named loop of the worker last finished, and how long it took: the age of everything it feeds."""

    name = models.CharField(max_length=120, unique=True)
    beat_at = models.DateTimeField()
    took_s = models.FloatField(default=0)
    error = models.CharField(max_length=500, blank=True, default="")

    def __str__(self) -> str:
        """Name and instant."""
        return f"{self.name} {self.beat_at:%H:%M:%S}"
