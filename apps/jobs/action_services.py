"""What people ask of jobs in the scheduler: hold, release, signal, priority, partition, time limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from django.db import transaction

from apps.audit.services import event, record
from apps.core import ids
from apps.core.errors import Refusal, TransitionConflict
from apps.costs.services import hold_more
from apps.intents.services import intent_ask
from apps.jobs.action_models import JobAction
from apps.jobs.action_rules import Wish
from apps.jobs.action_selectors import ActionLine, action_lines, is_operator
from apps.jobs.identity import acting_user
from apps.jobs.models import Job
from apps.teams.permissions import Actor

ACT_INTENT = "job.act"


def job_act(*, actor: Actor, job: Job, wish: Wish) -> JobAction:
    """Ask for one action; what it costs more is held first, in the same commit.

    Raises TransitionConflict with the reason where it cannot be done, BudgetExhausted.
    """
    (line,) = action_lines(actor, [job], wish)
    if line.problem:
        raise TransitionConflict(f"{job.name} {line.problem}")
    return _ask(actor, line, wish)


def _ask(actor: Actor, line: ActionLine, wish: Wish) -> JobAction:
    job, attempt = line.job, line.attempt
    assert attempt is not None
    action = JobAction(
        uid=ids.new_uid("act"),
        job=job,
        attempt=attempt,
        kind=wish.kind,
        parameters=line.parameters,
        asked_by=actor.name,
        # An operator acts by the cluster's own user, even on a job of their own: theirs may have fewer rights.
        act_as="" if is_operator(actor) else acting_user(actor, job),
        as_operator=is_operator(actor),
        usd=line.usd,
        gpu_hours=line.gpu_hours,
    )
    with transaction.atomic():
        if line.usd > 0 or line.gpu_hours > 0:
            hold_more(
                job.team,
                max(line.usd, type(line.usd)(0)),
                max(line.gpu_hours, type(line.usd)(0)),
                key=f"hold:{action.uid}",
                subject=job.uid,
                detail=attempt.uid,
                memo=f"{job.name}: {wish.kind.lower().replace('_', ' ')}",
            )
        action.save(force_insert=True)
        record(actor, "job.act", "job", job.uid, team_id=job.team_id, after={"kind": wish.kind, **wish.parameters})
        data = {"by": actor.name, "kind": wish.kind, "action": action.uid, **wish.parameters}
        event("job", job.uid, "ActionAsked", f"{wish.kind} asked by {actor.name}", team_id=job.team_id, data=data)
        intent_ask(ACT_INTENT, job.uid)
    return action


def jobs_act(*, actor: Actor, jobs: Sequence[Job], wish: Wish) -> list[ActionLine]:
    """Ask it of several jobs, each in its own transaction; the lines say what became of each, in their order."""
    results = []
    for line in action_lines(actor, jobs, wish):
        if not line.problem:
            try:
                _ask(actor, line, wish)
            except Refusal as refusal:
                results.append(replace(line, problem=str(refusal.detail)))
                continue
        results.append(line)
    return results
