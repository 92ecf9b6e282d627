"""Jobs: submit an attempt once, follow it, charge it, end it, and start the next one where that helps.

Submitting has no key in Slurm. So: SUBMITTING is committed before the call, the attempt's uid goes
into ``comment``, and an attempt that is found SUBMITTING at the start of a visit (a crash, a
time-out) is searched for by that comment before anything is sent again. On Kubernetes the names of
all objects are made from the attempt's uid, so there it is sent again at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from django.conf import settings
from django.utils.translation import gettext_noop as _

from apps.clusters.observations import operator_works
from apps.core import clock
from apps.core.errors import TransitionConflict
from apps.core.said import Said, said
from apps.intents.services import intent_ask
from apps.jobs import denied_observations as denied
from apps.jobs import observations as obs
from apps.jobs.action_observations import limit_follow
from apps.jobs.array_selectors import tasks_asked_again, tasks_words
from apps.jobs.block_ends import held_words, leaves_words, outgrown, room_for
from apps.jobs.charges import attempt_charge
from apps.jobs.dependency_selectors import standstill_of
from apps.jobs.kube_rules import interruption_of
from apps.jobs.models import Attempt, Job
from apps.jobs.part_rules import part_numbers
from apps.jobs.recoveries import job_recover, job_short_of_tasks
from apps.jobs.rules import end_of, is_final_state, may_be_a_fault
from apps.jobs.selectors import current_attempt, job_by_uid
from apps.jobs.states import ATTEMPT_ENDED, AttemptPhase, JobOrigin, JobPhase
from worker import doors
from worker.collectors.slurm import seen_of
from worker.engine import DONE, Outcome, again
from worker.providers.errors import AccessDenied, InvalidRequest, NotFound, ProviderError
from worker.providers.ports import Scheduler
from worker.providers.values import SchedulerJob
from worker.providers.workload_values import PART_FAILED
from worker.reconcilers.kube_leftovers import forget_half_made, rest_runs
from worker.submission import submission

POLL_S = 5.0
#: How long after a submit call began its job may still turn up; longer than the call's own time-out.
DOUBT = timedelta(seconds=25)
#: An attempt that neither queue nor accounting knows is given up after this.
LOST_AFTER = timedelta(seconds=90)
#: Left unobserved this long while placed, an attempt is asked for by its id.
UNSEEN = timedelta(seconds=30)
BUDGET_RETRY_S = 60.0
#: How often a job that is held back is compared with the blocks again.
HELD_S = 60.0
#: How often a job that waits for another one is compared with it.
DEPENDENCY_S = 10.0
RESEND_STOP = timedelta(seconds=30)
EVIDENCE_S = 1.0
#: Slurm's number for "Invalid job array specification".
BAD_ARRAY = "2081"
#: How long after its time limit a manifest's job is ended, where it has not ended itself.
LIMIT_GRACE = timedelta(minutes=1)
#: Slurm's numbers for "Access/permission denied" and "Invalid user id": who is known, and may not.
DENIED = frozenset({"2002", "2010"})
#: Slurm's number for "Invalid account or account/partition combination specified".
NO_ASSOCIATION = "2045"


def reconcile(uid: str) -> Outcome:
    """One step of one job."""
    job = job_by_uid(uid)
    if job is None or job.has_ended:
        return DONE
    attempt = current_attempt(job)
    if attempt is None:
        obs.job_end(job, JobPhase.FAILED, reason="Lost", message=said(_("the job has no attempt")))
        return DONE
    attempt.job = job
    if job.origin == JobOrigin.OUTSIDE:
        return _stop_outsider(job, attempt)
    if attempt.phase in ATTEMPT_ENDED:
        return _after_end(job, attempt)
    if job.stop_kind == "cancel":
        obs.job_cancelling(job)
        obs.attempt_stop(attempt, "Cancelled")
        attempt.refresh_from_db(fields=["stop_reason", "stop_node"])
    elif job.stop_kind == "requeue":
        obs.attempt_stop(attempt, "Requeued")
        attempt.refresh_from_db(fields=["stop_reason", "stop_node"])
        obs.requeue_taken_up(job)
    match attempt.phase:
        case AttemptPhase.PENDING:
            return _submit(job, attempt)
        case AttemptPhase.SUBMITTING:
            return _resolve_doubt(job, attempt)
        case _:
            return _follow(job, attempt)


def _stop_outsider(job: Job, attempt: Attempt) -> Outcome:
    """A job from outside is followed by the collector; here only someone's cancel is sent."""
    if job.stop_kind != "cancel" or attempt.phase in ATTEMPT_ENDED:
        return DONE
    obs.job_cancelling(job)
    obs.attempt_stop(attempt, "Cancelled")
    if attempt.stop_sent_at is None or clock.now() - attempt.stop_sent_at > RESEND_STOP:
        try:
            doors.scheduler_for(job.cluster, job.stop_as).cancel(attempt.scheduler_id)
        except NotFound:
            intent_ask("cluster.outside", job.cluster.uid)
        except AccessDenied as error:
            if error.code in DENIED and denied.stop_denied(attempt, job.stop_as, str(error)):
                return DONE
            raise
        else:
            _taken(job, job.stop_as)
        obs.attempt_stop_sent(attempt)
    return again(RESEND_STOP.total_seconds())


def _submit(job: Job, attempt: Attempt) -> Outcome:
    if job.stop_kind == "cancel":
        obs.attempt_end(attempt, AttemptPhase.CANCELLED, "Cancelled", said(_("cancelled before it was submitted")))
        return again(0)
    if attempt.number == 1 and (still := standstill_of(job)) is not None:
        if still.is_final:
            obs.attempt_end(attempt, AttemptPhase.REFUSED, "DependencyNeverSatisfied", still.words)
            return again(0)
        obs.job_held_back(job, attempt, still.words)
        return again(DEPENDENCY_S)
    room = room_for(job, attempt.excluded_nodes)
    if room.must_wait:
        obs.job_held_back(job, attempt, held_words(job, room))
        return again(HELD_S)
    # A door that does not open leaves no doubt behind: nothing was sent.
    scheduler = doors.scheduler_for(job.cluster, job.slurm_user)
    obs.attempt_submitting(attempt, room.late)
    return _send(job, attempt, scheduler)


def _send(job: Job, attempt: Attempt, scheduler: Scheduler) -> Outcome:
    if job.slurm_user not in ("", job.cluster.user_name) and not job.cluster.signing_key_ref:
        # Its files are that user's: run as anybody else it would only fail later.
        text = _("it runs as %(user)s and cluster %(cluster)s has no signing key any more to make a token for that")
        facts = {"user": job.slurm_user, "cluster": job.cluster.name}
        obs.attempt_end(attempt, AttemptPhase.REFUSED, "Refused", said(text, **facts))
        return again(0)
    try:
        receipt = scheduler.submit(submission(job, attempt))
    except InvalidRequest as error:
        obs.attempt_end(attempt, AttemptPhase.REFUSED, "Refused", _refused_words(attempt, error))
        return again(0)
    except AccessDenied as error:
        if (why := _refused_user(job, error)) is not None:
            obs.attempt_end(attempt, AttemptPhase.REFUSED, "Refused", why)
            return again(0)
        obs.attempt_submit_again(attempt)
        raise
    except ProviderError:
        # The call may have taken longer than the doubt: it counts from its end.
        obs.attempt_submit_again(attempt)
        raise
    obs.attempt_submitted(attempt, receipt.scheduler_id, receipt.warnings)
    return again(POLL_S)


def _refused_words(attempt: Attempt, error: InvalidRequest) -> str:
    """Slurm's own words, but where those do not say what is wrong: an array's numbers, a missing association."""
    if error.code == NO_ASSOCIATION:
        job = attempt.job
        text = _(
            "Slurm has no association of user %(user)s with account %(account)s on cluster %(cluster)s: ask for one "
            "(%(error)s)"
        )
        user = job.slurm_user or job.cluster.user_name
        return said(text, user=user, account=job.slurm_account or "–", cluster=job.cluster.name, error=str(error))
    if error.code != BAD_ARRAY or not attempt.array:
        return str(error)
    text = _(
        "Slurm does not take the array %(array)s: task numbers must lie below the cluster's MaxArraySize, 1,001 unless "
        "the site raised it"
    )
    return said(text, array=attempt.array)


def _refused_user(job: Job, error: AccessDenied) -> Said | None:
    """Why Slurm takes nothing from the job's user, where it takes the cluster's own; None while it refuses both."""
    if not job.slurm_user:
        return None
    try:
        doors.scheduler_for(job.cluster).info()
    except ProviderError:
        return None
    text = _("Slurm does not take %(user)s as a user of cluster %(cluster)s: %(error)s")
    return said(text, user=job.slurm_user, cluster=job.cluster.name, error=str(error))


def _resolve_doubt(job: Job, attempt: Attempt) -> Outcome:
    """A submit call whose end nobody saw: search first, send again only when it cannot turn up any more.

    The search goes as the cluster's own user: it must not hang on what a person's token needs.
    """
    since = attempt.submit_started_at or attempt.created_at
    if job.cluster.is_kubernetes and job.stop_kind != "cancel":
        # Names are the attempt's own: asked again, what is there is found and what is missing is made.
        if not obs.attempt_submit_again(attempt):
            return again(1)
        return _send(job, attempt, doors.scheduler_for(job.cluster))
    own = doors.scheduler_for(job.cluster)
    found = own.jobs_by_comment(attempt.uid, since - timedelta(minutes=5), user_name=job.slurm_user)
    if found:
        first, *others = _submits(found).items()
        # Two of one attempt must never run: the first submitted counts. Its number is written last, since nobody
        # looks for the others once it stands.
        _end_copies(job, [number for number, is_live in others if is_live])
        obs.attempt_submitted(attempt, first[0])
        return again(0)
    if clock.now() - since < DOUBT:
        return again(POLL_S)
    if job.stop_kind == "cancel":
        forget_half_made(job, attempt)
        obs.attempt_end(attempt, AttemptPhase.CANCELLED, "Cancelled", said(_("cancelled before it was submitted")))
        return again(0)
    room = room_for(job, attempt.excluded_nodes)
    if room.must_wait:
        obs.job_held_back(job, attempt, held_words(job, room))
        return again(HELD_S)
    scheduler = doors.scheduler_for(job.cluster, job.slurm_user)
    if not obs.attempt_submit_again(attempt, room.late):
        return again(1)
    return _send(job, attempt, scheduler)


def _submits(found: Iterable[SchedulerJob]) -> dict[str, bool]:
    """The submits behind these records by number, in their order, and whether anything of each has not ended.

    All tasks of an array and all parts of a heterogeneous job are of one submit.
    """
    submits: dict[str, bool] = {}
    for one in found:
        number = one.array_id or one.het_id or one.scheduler_id
        submits[number] = submits.get(number, False) or not is_final_state(one.state)
    return submits


def _end_copies(job: Job, numbers: Iterable[str]) -> None:
    """End further submits of one attempt, as the user they belong to or, where that door is shut, as the cluster's."""
    for number in numbers:
        try:
            scheduler = doors.scheduler_for(job.cluster, job.slurm_user)
        except (AccessDenied, InvalidRequest):
            scheduler = doors.scheduler_for(job.cluster)
        with suppress(NotFound):
            scheduler.cancel(number)


def _follow(job: Job, attempt: Attempt) -> Outcome:
    """Move the phases after what was observed; send a stop that was decided; charge."""
    now = clock.now()
    if attempt.array and not is_final_state(attempt.observed_state):
        obs.array_observe(attempt)
    if is_final_state(attempt.observed_state):
        return _settle(job, attempt)
    if attempt.observed_reason == PART_FAILED:
        rest_runs(job, attempt)
    if stop := _interrupted(job, attempt):
        obs.attempt_interrupt(attempt, stop)
    elif attempt.observed_state == "RUNNING" and attempt.phase == AttemptPhase.QUEUED:
        obs.attempt_running(attempt)
    elif attempt.observed_state == "PENDING" and attempt.phase == AttemptPhase.RUNNING:
        obs.attempt_requeued_by_scheduler(attempt)
    if attempt.phase == AttemptPhase.QUEUED and attempt.observed_state == "PENDING" and not attempt.stop_reason:
        room = room_for(job, attempt.excluded_nodes)
        if outgrown(attempt, room):
            obs.attempt_withdraw(attempt, leaves_words(room))
    if attempt.observed_limit_min not in (None, job.time_limit_min) and not attempt.stop_reason:
        _follow_limit(job, attempt)
    if _outruns(job, attempt):
        obs.attempt_stop(attempt, "TimeLimit")
    if attempt.stop_reason and (attempt.stop_sent_at is None or now - attempt.stop_sent_at > RESEND_STOP):
        return _stop(job, attempt)
    last_seen = attempt.observed_at or attempt.phase_since
    read_at = job.cluster.queue_read_at
    if not attempt.observed_state and now - last_seen > UNSEEN:
        return _ask_for(job, attempt)
    is_ending = attempt.phase == AttemptPhase.STOPPING and attempt.observed_state in ("RUNNING", "COMPLETING")
    if attempt.phase == AttemptPhase.RUNNING or is_ending:
        # A stop takes as long as its pods take to end. Only what was seen is charged: while the scheduler is away
        # nobody knows whether it still runs.
        until = min(now, read_at) if read_at is not None else now
        charged = attempt.charged_until_at or attempt.started_at or until
        if (until - charged).total_seconds() >= settings.CONFIG.charge_every_s:
            attempt_charge(attempt, until)
        if read_at is not None and now - read_at < UNSEEN and attempt.runner_exit_code is not None:
            return _ask_for(job, attempt)
        return again(min(POLL_S * 2, settings.CONFIG.charge_every_s))
    return again(POLL_S * 2)


def _interrupted(job: Job, attempt: Attempt) -> str:
    """The stop of an attempt on Kubernetes that its cluster took apart or put back, "" for none.

    Tasks of an array find their own checkpoints, and what a manifest does then is its author's.
    """
    if not job.cluster.is_kubernetes or job.array or job.manifest or attempt.stop_reason:
        return ""
    has_run = attempt.phase == AttemptPhase.RUNNING
    return interruption_of(attempt.observed_state, attempt.observed_reason, has_run=has_run)


def _outruns(job: Job, attempt: Attempt) -> bool:
    """Whether a manifest's pods run on after the time that is held for: its own end, or none, is its author's."""
    if not job.manifest or attempt.phase != AttemptPhase.RUNNING or attempt.started_at is None:
        return False
    return clock.now() - attempt.started_at > timedelta(minutes=job.time_limit_min) + LIMIT_GRACE


def _follow_limit(job: Job, attempt: Attempt) -> None:
    """Its time limit looks changed: read it afresh, since a bulk read may show what was before our own change."""
    try:
        found = doors.scheduler_for(job.cluster).job(attempt.scheduler_id)
    except NotFound:
        return
    if found.comment in ("", attempt.uid) and not is_final_state(found.state):
        limit_follow(job, attempt, found.time_limit_min)


def _taken(job: Job, acting: str) -> None:
    """A stop was taken, and with it what an earlier denial said."""
    denied.denial_over(job)
    if not acting and job.slurm_user not in ("", job.cluster.user_name):
        operator_works(job.cluster)


def _stop(job: Job, attempt: Attempt) -> Outcome:
    # What a person asked for goes as that person; what the portal decided, as whoever the job belongs to.
    asked_for = attempt.stop_reason in ("Cancelled", "Requeued") and job.stop_by
    acting = job.stop_as if asked_for else job.slurm_user
    try:
        doors.scheduler_for(job.cluster, acting).cancel(attempt.scheduler_id)
    except NotFound:
        return _ask_for(job, attempt)
    except AccessDenied as error:
        if asked_for and error.code in DENIED and denied.stop_denied(attempt, acting, str(error)):
            return again(POLL_S)
        raise
    _taken(job, acting)
    obs.attempt_stop_sent(attempt)
    return again(POLL_S)


def _ask_for(job: Job, attempt: Attempt) -> Outcome:
    """One attempt by its id, when the bulk read does not show it."""
    if attempt.array and obs.array_observe(attempt):
        return again(0)
    scheduler = doors.scheduler_for(job.cluster)
    try:
        found = scheduler.job(attempt.scheduler_id)
    except NotFound:
        return _lost(job, attempt)
    if found.comment not in ("", attempt.uid):
        return _lost(job, attempt)
    if attempt.array:
        # One record of many: the collector brings the others.
        return again(POLL_S)
    parts = _further_parts(scheduler, job, attempt) if is_final_state(found.state) else []
    seen = seen_of(found, parts)
    if len(parts) < len(job.parts):
        # Some record is missing: the nodes of the others stay known.
        seen = replace(seen, nodes=tuple(dict.fromkeys([*seen.nodes, *attempt.nodes])))
    obs.attempt_observe(attempt, seen)
    return again(POLL_S)


def _further_parts(scheduler: Scheduler, job: Job, attempt: Attempt) -> list[SchedulerJob]:
    """The parts behind the first of a heterogeneous job: the first alone does not say that another lost its node."""
    found = []
    for number in part_numbers(attempt.scheduler_id, job)[1:]:
        with suppress(NotFound):
            part = scheduler.job(number)
            if part.het_id == attempt.scheduler_id:
                found.append(part)
    return found


def _lost(job: Job, attempt: Attempt) -> Outcome:
    """Neither queue nor accounting knows it: the runner's word decides, else it is lost."""
    if attempt.runner_exit_code == 0:
        obs.attempt_end(
            attempt,
            AttemptPhase.SUCCEEDED,
            "",
            said(_("the runner reported success; the scheduler forgot the job")),
        )
        return again(0)
    if attempt.runner_exit_code is not None and not attempt.stop_reason:
        attempt.exit_code = attempt.runner_exit_code
        text = said(_("by the runner; the scheduler forgot the job"))
        obs.attempt_end(attempt, AttemptPhase.FAILED, "ExitCode", text)
        return again(0)
    if attempt.stop_reason:
        phase, reason = end_of("CANCELLED", attempt.stop_reason, node_has_fatal_finding=False)
        obs.attempt_end(attempt, phase, reason)
        return again(0)
    if clock.now() - attempt.phase_since > LOST_AFTER:
        obs.attempt_end(attempt, AttemptPhase.LOST, "Lost", said(_("neither queue nor accounting knows it")))
        return again(0)
    return again(POLL_S)


def _awaits_evidence(job: Job, attempt: Attempt, phase: str) -> bool:
    """Whether the GPUs of its nodes are to be read once more before a failure is called the program's.

    A fault that killed the program reaches the exporters' pages after their own interval; a node whose exporter
    stays silent is waited for no longer than two rounds more.
    """
    config = settings.CONFIG
    ended_at = attempt.ended_at or attempt.observed_at
    if not job.cluster.exporter_url or ended_at is None:
        return False
    ran_s = (ended_at - attempt.started_at).total_seconds() if attempt.started_at else None
    if not may_be_a_fault(phase, exit_code=attempt.exit_code, signal=attempt.signal, ran_s=ran_s):
        return False
    shown_at = ended_at + timedelta(seconds=config.exporter_interval_s)
    if clock.now() > shown_at + timedelta(seconds=2 * config.collect_health_s + config.exporter_interval_s):
        return False
    return bool(obs.unheard_nodes(attempt, shown_at))


def _settle(job: Job, attempt: Attempt) -> Outcome:
    if rest_runs(job, attempt):
        return again(EVIDENCE_S)
    failed_node = obs.has_fatal_finding(attempt)
    phase, reason = end_of(attempt.observed_state, attempt.stop_reason, node_has_fatal_finding=bool(failed_node))
    if _awaits_evidence(job, attempt, phase):
        return again(EVIDENCE_S)
    if phase == AttemptPhase.NODE_FAILED and not attempt.stop_node and failed_node:
        obs.attempt_blame(attempt, failed_node)
    message: str = ""
    if attempt.array and phase in (AttemptPhase.FAILED, AttemptPhase.TIMED_OUT):
        message = tasks_words(attempt)
    elif phase == AttemptPhase.FAILED and attempt.exit_code is not None:
        message = said(_("exit code %(code)s"), code=attempt.exit_code)
    elif phase == AttemptPhase.FAILED and attempt.observed_reason == "JobLaunchFailure":
        reason = "LaunchFailure"
    elif phase == AttemptPhase.FAILED and attempt.signal:
        reason, message = "Signal", said(_("signal %(number)s"), number=attempt.signal)
    if attempt.observed_words and phase != AttemptPhase.SUCCEEDED and not attempt.stop_reason and not attempt.array:
        # The scheduler has a sentence of its own: the limit that was exceeded, the node that was lost.
        message = attempt.observed_words
    obs.attempt_end(attempt, phase, reason, message)
    return again(0)


def _after_end(job: Job, attempt: Attempt) -> Outcome:
    """The attempt is settled: end the job, or start the next attempt."""
    ends = {
        AttemptPhase.SUCCEEDED: JobPhase.SUCCEEDED,
        AttemptPhase.FAILED: JobPhase.FAILED,
        AttemptPhase.TIMED_OUT: JobPhase.TIMED_OUT,
        AttemptPhase.CANCELLED: JobPhase.CANCELLED,
        AttemptPhase.REFUSED: JobPhase.FAILED,
    }
    phase = AttemptPhase(attempt.phase)
    if job.array and phase in ends and job.stop_kind != "cancel" and tasks_asked_again(job, attempt):
        return _decide(job, attempt)
    if job.array and phase == AttemptPhase.SUCCEEDED and job_short_of_tasks(job):
        # Its last tasks succeeded; one of an earlier attempt had failed by itself.
        return DONE
    if phase == AttemptPhase.FAILED and job.stop_kind != "cancel" and not job.array:
        return _decide(job, attempt)
    if phase in ends:
        obs.job_end(job, ends[phase], reason=attempt.reason, message=attempt.message, exit_code=attempt.exit_code)
        return DONE
    if job.stop_kind == "cancel":
        obs.job_cancelling(job)
        obs.job_end(job, JobPhase.CANCELLED, reason="Cancelled")
        return DONE
    return _decide(job, attempt)


def _decide(job: Job, attempt: Attempt) -> Outcome:
    """Start the next attempt, or end the job where no rule wants one."""
    try:
        following = job_recover(job, attempt)
    except TransitionConflict:
        return again(1)
    if following is not None:
        return again(0)
    return again(BUDGET_RETRY_S) if job.phase == JobPhase.WAITING_BUDGET else DONE
