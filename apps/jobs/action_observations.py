"""What the worker writes about job actions, and about changes of a job that were made outside the portal."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.audit.services import event
from apps.core import clock, units
from apps.core.said import brief, said
from apps.core.states import move
from apps.costs import services as ledger
from apps.costs.states import Unit
from apps.intents.services import intent_ask
from apps.jobs.action_models import JobAction
from apps.jobs.action_states import ACTION_OPEN, ACTION_TRANSITIONS, ActionKind, ActionPhase
from apps.jobs.models import Attempt, Job
from apps.jobs.rules import hold_for

ZERO = Decimal(0)


def action_sending(action: JobAction) -> None:
    """About to call the scheduler: written before the call, so that a crash leaves a trace."""
    move(action, ACTION_TRANSITIONS, ActionPhase.SENT, sent_at=clock.now())


def action_unsent(action: JobAction, why: str) -> None:
    """The scheduler did not get it, or it may be asked again without harm: it is sent again."""
    move(action, ACTION_TRANSITIONS, ActionPhase.ASKED, answer=brief(why, 500))


def action_done(action: JobAction) -> None:
    """The scheduler took it: the job's own columns follow, and what a shorter one held too much goes back."""
    job = action.job
    with transaction.atomic():
        move(action, ACTION_TRANSITIONS, ActionPhase.DONE, settled_at=clock.now(), answer="")
        columns = _columns(action)
        if columns:
            Job.objects.filter(pk=job.pk).update(**columns)
            for name, value in columns.items():
                setattr(job, name, value)
        if action.kind == ActionKind.TIME_LIMIT and action.attempt is not None:
            limit = int(action.parameters["time_limit_min"])
            Attempt.objects.filter(pk=action.attempt.pk).update(observed_limit_min=limit)
        _give_back(action, -action.usd, -action.gpu_hours)
        _tell(action, "ActionDone")
        intent_ask("cluster.queue", job.cluster.uid)


def _columns(action: JobAction) -> dict[str, Any]:
    given = action.parameters
    match action.kind:
        case ActionKind.TIME_LIMIT:
            return {"time_limit_min": int(given["time_limit_min"])}
        case ActionKind.PARTITION:
            return {
                "partition": given["partition"],
                "usd_per_gpu_hour": Decimal(given["usd_per_gpu_hour"]),
                "usd_per_node_hour": Decimal(given.get("usd_per_node_hour", "0")),
                "price_source": given["price_source"],
            }
        case ActionKind.PRIORITY:
            # The next attempt keeps it.
            others = [o for o in action.job.slurm_options if not o.startswith("--nice")]
            return {"slurm_options": [*others, *([f"--nice={given['nice']}"] if given["nice"] else [])]}
        case _:
            return {}


def action_refused(action: JobAction, why: str) -> None:
    """It will not happen: what was held for it goes back."""
    with transaction.atomic():
        move(action, ACTION_TRANSITIONS, ActionPhase.REFUSED, settled_at=clock.now(), answer=brief(why, 500))
        _give_back(action, action.usd, action.gpu_hours)
        _tell(action, "ActionRefused")


def action_unknown(action: JobAction, why: str) -> None:
    """Nobody knows whether the scheduler took it, and asking again could do harm."""
    with transaction.atomic():
        move(action, ACTION_TRANSITIONS, ActionPhase.UNKNOWN, settled_at=clock.now(), answer=brief(why, 500))
        _tell(action, "ActionUnknown")


def _give_back(action: JobAction, usd: Decimal, hours: Decimal) -> None:
    job = action.job
    if action.attempt is None:
        return
    for unit, amount in ((Unit.USD, usd), (Unit.GPU_HOURS, hours)):
        if amount > 0:
            ledger.release_part(
                job.team,
                unit,
                amount,
                key=f"release:{action.uid}:{unit}",
                subject=job.uid,
                detail=action.attempt.uid,
                memo=f"{job.name}: {action.kind.lower().replace('_', ' ')}",
            )


def _tell(action: JobAction, kind: str) -> None:
    job = action.job
    data = {"by": action.asked_by, "kind": action.kind, "action": action.uid, **action.parameters}
    if action.answer:
        data["answer"] = str(action.answer)
    event("job", job.uid, kind, f"{action.kind} {action.phase}", team_id=job.team_id, data=data)


def limit_follow(job: Job, attempt: Attempt, new: int | None) -> bool:
    """Take over a time limit that was changed in the scheduler by hand; True when it was.

    A longer one holds the difference where the budget has it; else the job is told to run beyond what is held, and what
    it uses there is charged all the same. A shorter one gives the difference back.
    """
    old = job.time_limit_min
    if not new or new == old:
        return False
    with transaction.atomic():
        if JobAction.objects.filter(
            job=job, kind=ActionKind.TIME_LIMIT, phase__in=ACTION_OPEN
        ).exists() or not Job.objects.filter(pk=job.pk, time_limit_min=old).update(time_limit_min=new):
            return False
        job.time_limit_min = new
        hours, usd = (
            (a - b) * attempt.tasks
            for a, b in zip(
                hold_for(job.nodes, job.gpus_per_node, new, job.usd_per_gpu_hour, job.usd_per_node_hour),
                hold_for(job.nodes, job.gpus_per_node, old, job.usd_per_gpu_hour, job.usd_per_node_hour),
                strict=True,
            )
        )
        key = f"limit:{attempt.uid}:{old}:{new}:{clock.now().timestamp():.0f}"
        memo = f"{job.name}: time limit changed outside the portal"
        facts = {"new": units.duration(new * 60), "old": units.duration(old * 60), "usd": units.usd(abs(usd))}
        if usd >= 0:
            try:
                ledger.hold_more(job.team, usd, hours, key=key, subject=job.uid, detail=attempt.uid, memo=memo)
                text = said(
                    _("time limit changed from %(old)s to %(new)s outside the portal; %(usd)s more is held"), **facts
                )
            except ledger.BudgetExhausted:
                text = said(
                    _(
                        "time limit changed from %(old)s to %(new)s outside the portal; the budget does not cover the "
                        "%(usd)s more: what it uses is charged all the same"
                    ),
                    **facts,
                )
        else:
            for unit, amount in ((Unit.USD, -usd), (Unit.GPU_HOURS, -hours)):
                ledger.release_part(
                    job.team, unit, amount, key=f"{key}:{unit}", subject=job.uid, detail=attempt.uid, memo=memo
                )
            text = said(
                _("time limit changed from %(old)s to %(new)s outside the portal; %(usd)s of the hold comes back"),
                **facts,
            )
        data = {"attempt": attempt.number, "old_min": old, "new_min": new}
        event("job", job.uid, "LimitChanged", text, team_id=job.team_id, data=data)
    return True
