"""Who may see checkpoints."""

from __future__ import annotations

from apps.checkpoints.models import Checkpoint
from apps.teams.permissions import Actor


def can_view_checkpoint(actor: Actor, checkpoint: Checkpoint) -> bool:
    """Members of the team."""
    return actor.may("checkpoints.view", checkpoint.series.team_id)
