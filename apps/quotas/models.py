"""Quota: how many GPUs a team may hold at once; the use itself is in the ledger (unit GPU)."""

from __future__ import annotations

from django.db import models
from simple_history.models import HistoricalRecords

from apps.core.models import Recorded
from apps.teams.models import Team


class Quota(Recorded):
    """A team's limit of concurrent GPUs, counted from submit to the job's end."""

    uid_prefix = "quo"

    team = models.OneToOneField(Team, on_delete=models.CASCADE, related_name="quota")
    gpus = models.PositiveIntegerField(help_text="GPUs at once, over all clusters.")
    updated_at = models.DateTimeField(auto_now=True)
    history = HistoricalRecords()

    def __str__(self) -> str:
        """Team and limit."""
        return f"{self.team.slug}: {self.gpus} GPUs"
