"""Wishes of people about jobs in the scheduler, sent one after the other.

Each is marked as being sent, and that committed, before it is. Holding, releasing and changing come to the same
however often they are asked, so after a doubt they are asked again. A signal does not: whoever finds one that was
being sent says that nobody knows.
"""

from __future__ import annotations

from contextlib import suppress

from django.utils.translation import gettext_noop as _

from apps.clusters.observations import operator_missing, operator_works
from apps.core.said import Said, said
from apps.jobs import action_observations as obs
from apps.jobs.action_models import JobAction
from apps.jobs.action_selectors import open_actions
from apps.jobs.action_states import REPEATABLE, ActionKind, ActionPhase
from apps.jobs.array_rules import array_of
from apps.jobs.denied_observations import denied_words
from apps.jobs.models import Attempt
from apps.jobs.part_rules import part_numbers
from apps.jobs.selectors import job_by_uid
from apps.jobs.states import ATTEMPT_ENDED, ATTEMPT_PLACED
from apps.jobs.task_evictions import HEALTH
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.providers import values as v
from worker.providers.errors import AccessDenied, Conflict, NotFound, ProviderError, Throttled, Unavailable
from worker.providers.ports import Scheduler
from worker.reconcilers.jobs import DENIED

#: How often a wish about an attempt that is not in the scheduler yet is looked at again.
WAIT_S = 5.0
#: Codes of failures in which nothing can have reached the scheduler.
_UNSENT = frozenset({"connect", "token"})


def act(uid: str) -> Outcome:
    """Send or settle the oldest open wish of a job."""
    job = job_by_uid(uid)
    actions = open_actions(job) if job is not None else []
    if job is None or not actions:
        return DONE
    # What Slurm refused a fault's answer so far is asked again after all else, and keeps nobody waiting.
    action = min(actions, key=_was_refused)
    action.job = job
    attempt = action.attempt
    if action.phase == ActionPhase.SENT:
        return _resolve(action)
    is_over = attempt is not None and attempt.phase in ATTEMPT_ENDED
    if action.kind == ActionKind.REQUEUE_TASK and attempt is not None and is_over and not job.has_ended:
        return _taken_over(action, attempt)
    if job.has_ended or attempt is None or attempt.phase in ATTEMPT_ENDED:
        obs.action_refused(action, said(_("the attempt ended before it could be asked")))
        return again(0)
    if attempt.phase not in ATTEMPT_PLACED or not attempt.scheduler_id:
        return again(WAIT_S)
    scheduler = doors.scheduler_for(job.cluster, action.act_as)
    obs.action_sending(action)
    try:
        _send(scheduler, attempt.scheduler_id, action)
    except ProviderError as error:
        return _failed(action, error)
    if not action.act_as and job.slurm_user not in ("", job.cluster.user_name):
        operator_works(job.cluster)
    obs.action_done(action)
    return again(0)


def _was_refused(action: JobAction) -> bool:
    return action.asked_by == HEALTH and action.phase == ActionPhase.ASKED and bool(action.answer)


def _taken_over(action: JobAction, attempt: Attempt) -> Outcome:
    """The attempt ended by itself first: whether the next one has the task, once there is one."""
    following = Attempt.objects.filter(job=action.job, number__gt=attempt.number).order_by("number").first()
    if following is None:
        # Made without this wish a moment ago or with it in a moment: only its tasks tell.
        return again(WAIT_S)
    if int(action.parameters["task"]) in array_of(following.array).tasks:
        obs.action_sending(action)
        obs.action_done(action)
    else:
        obs.action_refused(action, said(_("too late: the next attempt was made without this task")))
    return again(0)


def _send(scheduler: Scheduler, scheduler_id: str, action: JobAction) -> None:
    given = action.parameters
    match action.kind:
        case ActionKind.HOLD:
            # Slurm takes a hold of a running job, and keeps it waiting only when it is put back one day.
            if not action.job.array and scheduler.job(scheduler_id).state != "PENDING":
                raise Conflict("it has started meanwhile", source="slurm", code="started")
            scheduler.hold(scheduler_id)
        case ActionKind.RELEASE:
            # Slurm releases each part of a heterogeneous job by itself.
            for part in part_numbers(scheduler_id, action.job):
                scheduler.release(part, as_operator=action.as_operator)
        case ActionKind.SIGNAL:
            scheduler.signal(scheduler_id, given["signal"])
        case ActionKind.PRIORITY:
            scheduler.update(scheduler_id, v.JobChange(nice=given["nice"]), as_operator=action.as_operator)
        case ActionKind.PARTITION:
            scheduler.update(scheduler_id, v.JobChange(partition=given["partition"]), as_operator=action.as_operator)
        case ActionKind.CANCEL_TASK | ActionKind.REQUEUE_TASK:
            # What has ended already needs no end; that a task runs again is read from the wish when all have ended.
            with suppress(NotFound):
                scheduler.cancel(f"{scheduler_id}_{given['task']}")
        case ActionKind.TIME_LIMIT:
            change = v.JobChange(time_limit_min=given["time_limit_min"])
            scheduler.update(scheduler_id, change, as_operator=action.as_operator)


def _resolve(action: JobAction) -> Outcome:
    """A call whose end nobody saw."""
    if action.kind in REPEATABLE:
        obs.action_unsent(action, said(_("the call was lost; asked again")))
    else:
        obs.action_unknown(action, said(_("the call was lost and nobody knows whether Slurm took it: look, then ask")))
    return again(0)


def _failed(action: JobAction, error: ProviderError) -> Outcome:
    # A refused token or a brake is no answer about the job; what has ended is.
    waits = isinstance(error, Throttled) or error.code in _UNSENT
    if waits or (isinstance(error, Unavailable) and action.kind in REPEATABLE):
        obs.action_unsent(action, str(error))
        raise error
    is_refused = error.code in DENIED or (action.job.cluster.is_kubernetes and error.code == "Forbidden")
    if isinstance(error, AccessDenied) and (action.asked_by == HEALTH or not is_refused):
        # Whatever a fault asks for is asked until it is taken, as the stop of a whole attempt is.
        obs.action_unsent(action, _words(action, error))
        raise error
    if isinstance(error, Unavailable):
        obs.action_unknown(action, str(error))
    else:
        obs.action_refused(action, _words(action, error))
    return again(0)


def _words(action: JobAction, error: ProviderError) -> str | Said:
    if isinstance(error, AccessDenied) and error.code in DENIED:
        if not action.act_as and action.job.slurm_user not in ("", action.job.cluster.user_name):
            operator_missing(action.job.cluster)
            return denied_words(action.job, "", str(error))
        if action.kind == ActionKind.TIME_LIMIT:
            return said(
                _("Slurm lets operators alone give a running job more time, or any job more than its partition")
            )
        return said(_("Slurm does not let this user do it: %(error)s"), error=str(error))
    if isinstance(error, NotFound | Conflict):
        return said(_("too late: %(error)s"), error=str(error))
    return str(error)
