"""Named reads of checkpoints, and the sentence each opens with."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from apps.checkpoints.models import Checkpoint, CheckpointSeries
from apps.checkpoints.states import CheckpointState
from apps.core import clock, units
from apps.core.errors import NotFound
from apps.teams.permissions import Actor


def checkpoints_visible_to(actor: Actor) -> QuerySet[Checkpoint]:
    """Checkpoints of teams the actor sees."""
    rows = Checkpoint.objects.select_related("series", "series__team")
    if actor.everywhere("checkpoints.view"):
        return rows
    return rows.filter(series__team__in=actor.team_ids("checkpoints.view"))


def checkpoint_for(*, actor: Actor, may: str, uid: str) -> Checkpoint:
    """The checkpoint of this uid. Raises NotFound."""
    row = checkpoints_visible_to(actor).filter(uid=uid).first()
    if row is None or not actor.may(may, row.series.team_id):
        raise NotFound(f"no checkpoint {uid} that you may see")
    return row


def series_visible_to(actor: Actor) -> QuerySet[CheckpointSeries]:
    """Series of teams the actor sees, only those that have a checkpoint."""
    rows = CheckpointSeries.objects.select_related("team").filter(checkpoints__isnull=False).distinct()
    if actor.everywhere("checkpoints.view"):
        return rows
    return rows.filter(team__in=actor.team_ids("checkpoints.view"))


def newest_complete(series: CheckpointSeries) -> Checkpoint | None:
    """What a next attempt resumes from: the highest step that is complete."""
    return (
        Checkpoint.objects.filter(series=series, state=CheckpointState.COMPLETE, step__isnull=False)
        .order_by("-step", "-id")
        .first()
    )


def checkpoint_sentence(checkpoint: Checkpoint) -> str:
    """What is going on with a checkpoint, and whether to trust it."""
    age = units.duration(clock.now() - checkpoint.changed_at)
    facts = {"step": units.count(checkpoint.step), "age": age, "reason": checkpoint.reason}
    match checkpoint.state:
        case CheckpointState.COMPLETE:
            return _("Complete %(age)s ago at step %(step)s: %(reason)s. Safe to resume from.") % facts
        case CheckpointState.IN_PROGRESS:
            return _("Being written; last change %(age)s ago: %(reason)s.") % facts
        case CheckpointState.TORN:
            return _("Torn: %(reason)s. Do not resume from it.") % facts
        case CheckpointState.GONE:
            return _("Gone: the folder was deleted.")
        case _:
            return _("Unknown: %(reason)s.") % facts
