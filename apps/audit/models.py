"""Entry: a request someone made; Event: something that happened to an object. Both are only ever appended."""

from __future__ import annotations

from django.db import models

from apps.core import clock
from apps.core.models import Recorded
from apps.core.said import SaidField, SaidJSONField


class Entry(Recorded):
    """One thing someone asked for, with before and after.

    Rows are sealed a moment after they are written: a single sealer gives them ``sequence`` and
    chains ``digest`` over the previous one, so writers never queue for the end of the chain and a
    later edit or deletion of any sealed row shows (``audit.selectors.chain_check``).
    """

    uid_prefix = "aud"

    actor = models.CharField(max_length=80, db_index=True)
    actor_name = models.CharField(max_length=150, blank=True, default="")
    token_id = models.BigIntegerField(null=True, blank=True)
    address = models.CharField(max_length=64, blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="", db_index=True)
    verb = models.CharField(max_length=60, db_index=True)
    object_type = models.CharField(max_length=40)
    object_uid = models.CharField(max_length=60, db_index=True)
    team_id = models.BigIntegerField(null=True, blank=True, db_index=True)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    sequence = models.BigIntegerField(null=True, blank=True, unique=True)
    digest = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        indexes = [models.Index(fields=["-created_at", "-id"], name="audit_entry_newest")]
        verbose_name_plural = "entries"

    def __str__(self) -> str:
        """Who did what."""
        return f"{self.actor_name or self.actor} {self.verb} {self.object_uid}"


class ChainMark(models.Model):
    """How far one of the two walks along the chain has come, so that no page walks it.

    ``newest`` follows the end of the chain and never looks back; ``whole`` starts over from the first
    entry every day and finds what was edited behind the other's back. ``sequence`` and ``digest`` are
    those of the last entry that fitted; ``broken_uid`` is the entry that did not.
    """

    NEWEST, WHOLE = "newest", "whole"

    name = models.CharField(max_length=8, unique=True)
    sequence = models.BigIntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True, default="")
    broken_uid = models.CharField(max_length=60, blank=True, default="")
    broken_sequence = models.BigIntegerField(default=0)
    checked_at = models.DateTimeField(null=True, blank=True)
    #: When the last walk from one end to the other ended, and how many entries it saw.
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_sequence = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        """Name and place."""
        return f"{self.name} up to {self.sequence}"


class Event(models.Model):
    """Something that happened: the source of every timeline.

    ``kind`` is CamelCase ("NodeDrained"); ``text`` a sentence; ``data`` the facts
    from which pages make a translated sentence.
    """

    object_type = models.CharField(max_length=40)
    object_uid = models.CharField(max_length=60)
    team_id = models.BigIntegerField(null=True, blank=True)
    kind = models.CharField(max_length=60)
    text = SaidField(blank=True, default="")
    data = SaidJSONField(default=dict)
    request_id = models.CharField(max_length=64, blank=True, default="")
    at = models.DateTimeField(default=clock.now)

    class Meta:
        indexes = [
            models.Index(fields=["object_uid", "at", "id"], name="audit_event_by_object"),
            models.Index(fields=["at"], name="audit_event_by_time"),
        ]

    def __str__(self) -> str:
        """What happened to what."""
        return f"{self.kind} {self.object_uid}"
