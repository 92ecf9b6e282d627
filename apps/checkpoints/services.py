"""What runners report about checkpoint folders becomes rows here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.audit.services import event
from apps.checkpoints.models import Checkpoint, CheckpointSeries
from apps.checkpoints.rules import judge
from apps.checkpoints.states import CheckpointState
from apps.core import clock, units
from apps.core.said import brief, said


def checkpoint_report(
    series: CheckpointSeries,
    *,
    attempt_uid: str,
    path: str,
    step: int | None,
    files: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    changed_at: datetime,
    writer_is_alive: bool,
) -> Checkpoint:
    """Store one listing and judge it. Run in the ingest's transaction; the same report twice changes nothing."""
    sizes = {str(f["name"]): int(f["size"]) for f in files}
    now = clock.now()
    row, made = Checkpoint.objects.get_or_create(
        series=series,
        path=path[:700],
        defaults={"attempt_uid": attempt_uid, "step": step, "changed_at": changed_at},
    )
    verdict = judge(sizes, facts, quiet_s=max(0.0, (now - changed_at).total_seconds()), writer_is_alive=writer_is_alive)
    state, reason = verdict.state, verdict.reason
    if row.state == CheckpointState.COMPLETE and state == CheckpointState.IN_PROGRESS:
        # A finished folder does not become unfinished by itself: something took a file away.
        state, reason = CheckpointState.TORN, said(_("it was complete and now: %(reason)s"), reason=reason)
    _store(
        row,
        state,
        reason,
        made=made,
        attempt_uid=attempt_uid,
        layout=verdict.layout,
        step=step if step is not None else row.step,
        total_bytes=sum(sizes.values()),
        file_count=len(sizes),
        listing={"files": sizes, "facts": dict(facts)},
        changed_at=changed_at,
        reported_at=now,
    )
    return row


def _store(row: Checkpoint, state: str, reason: str, *, made: bool = False, **columns: Any) -> None:
    before = "" if made else row.state
    if state == CheckpointState.COMPLETE and row.completed_at is None:
        columns["completed_at"] = columns.get("changed_at", row.changed_at)
    Checkpoint.objects.filter(pk=row.pk).update(state=state, reason=brief(reason, 300), **columns)
    row.state, row.reason = state, reason
    for name, value in columns.items():
        setattr(row, name, value)
    if before != state:
        kind = {
            CheckpointState.COMPLETE: "CheckpointComplete",
            CheckpointState.TORN: "CheckpointTorn",
            CheckpointState.GONE: "CheckpointGone",
        }.get(CheckpointState(state))
        if kind:
            event(
                "checkpoint",
                row.series.job_uid,
                kind,
                said(_("checkpoint at step %(step)s: %(reason)s"), step=units.count(row.step), reason=reason),
                team_id=row.series.team_id,
                data={"checkpoint": row.uid, "step": row.step, "reason": reason, "bytes": row.total_bytes},
            )


def checkpoint_gone(series: CheckpointSeries, path: str) -> None:
    """The folder was deleted."""
    row = Checkpoint.objects.filter(series=series, path=path[:700]).exclude(state=CheckpointState.GONE).first()
    if row is not None:
        _store(row, CheckpointState.GONE, said(_("the folder was deleted")), reported_at=clock.now())


def series_rejudge(series: CheckpointSeries, *, alive_attempts: frozenset[str]) -> int:
    """Judge again what was left in progress, e.g. when its attempt ended; the number that changed."""
    changed = 0
    with transaction.atomic():
        for row in Checkpoint.objects.filter(series=series, state=CheckpointState.IN_PROGRESS).select_related("series"):
            quiet = (clock.now() - row.changed_at).total_seconds()
            verdict = judge(
                row.listing.get("files", {}),
                row.listing.get("facts", {}),
                quiet_s=quiet,
                writer_is_alive=row.attempt_uid in alive_attempts,
            )
            if verdict.state != row.state:
                _store(row, verdict.state, verdict.reason, layout=verdict.layout)
                changed += 1
    return changed
