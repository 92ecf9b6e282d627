"""What the worker writes about jobs: every status column, each by one conditional UPDATE."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.audit.services import event
from apps.checkpoints.services import series_rejudge
from apps.clusters.models import Node
from apps.clusters.states import NodePhase
from apps.core import clock
from apps.core.said import Said, brief, said
from apps.core.states import move
from apps.costs import services as ledger
from apps.costs.states import Unit
from apps.health.models import Finding
from apps.health.states import FATAL, LIVE
from apps.intents.services import intent_ask
from apps.jobs.array_rules import state_of
from apps.jobs.array_selectors import tally_of
from apps.jobs.charges import attempt_charge
from apps.jobs.log_services import ROLL_INTENT
from apps.jobs.models import Attempt, Job
from apps.jobs.rules import RECOVERABLE, is_final_state
from apps.jobs.selectors import alive_attempt_uids, attempts_on_nodes
from apps.jobs.services import INTENT
from apps.jobs.states import ATTEMPT_TRANSITIONS, JOB_TRANSITIONS, AttemptPhase, JobOrigin, JobPhase
from apps.jobs.task_evictions import tasks_evict, tasks_on
from apps.quotas.services import gpus_return

#: Reason of a waiting job that the portal has not given to the scheduler.
HELD_BACK = "HeldBack"


@dataclass(frozen=True)
class Seen:
    """One attempt as the scheduler shows it now."""

    state: str
    reason: str
    nodes: tuple[str, ...]
    started_at: datetime | None
    ended_at: datetime | None
    expected_start_at: datetime | None
    exit_code: int | None
    signal: int | None
    time_limit_min: int | None = None
    why: str = ""
    failed_node: str = ""


def attempt_observe(attempt: Attempt, seen: Seen) -> bool:
    """Store what the scheduler shows, if it differs, and ask for the job to be looked at; True when it differed."""
    new = {
        "observed_state": seen.state,
        "observed_reason": seen.reason[:80],
        "observed_words": seen.why,
        "nodes": list(seen.nodes) or attempt.nodes,
        "started_at": seen.started_at or attempt.started_at,
        "ended_at": seen.ended_at or attempt.ended_at,
        "expected_start_at": seen.expected_start_at,
        "exit_code": seen.exit_code if seen.exit_code is not None else attempt.exit_code,
        "signal": seen.signal if seen.signal is not None else attempt.signal,
        "observed_limit_min": seen.time_limit_min or attempt.observed_limit_min,
    }
    if seen.failed_node and not attempt.stop_node:
        new["stop_node"] = seen.failed_node[:120]
    if all(getattr(attempt, name) == value for name, value in new.items()):
        return False
    with transaction.atomic():
        Attempt.objects.filter(pk=attempt.pk).update(**new, observed_at=clock.now())
        intent_ask(INTENT, attempt.job.uid)
    for name, value in new.items():
        setattr(attempt, name, value)
    return True


def array_observe(attempt: Attempt) -> bool:
    """Store what all tasks of an array come to, from their entries; True when it differed."""
    tally = tally_of(attempt)
    state = state_of(tally.states, attempt.tasks, has_started=tally.started_at is not None)
    if not state:
        return False
    ended = is_final_state(state)
    seen = Seen(
        state=state,
        reason=tally.reason,
        nodes=tuple(tally.nodes),
        started_at=tally.started_at,
        ended_at=tally.ended_at if ended else None,
        expected_start_at=tally.expected_start_at,
        exit_code=tally.exit_code if ended else None,
        signal=tally.signal if ended else None,
        time_limit_min=tally.time_limit_min,
    )
    return attempt_observe(attempt, seen)


def attempt_unseen(attempt: Attempt) -> None:
    """It left the queue and accounting does not know it (yet): the reconciler asks for it by its id."""
    if not attempt.observed_state:
        return
    with transaction.atomic():
        Attempt.objects.filter(pk=attempt.pk).update(observed_state="", observed_at=clock.now())
        intent_ask(INTENT, attempt.job.uid)
    attempt.observed_state = ""


def attempt_submitting(attempt: Attempt, avoided: Collection[str] = ()) -> None:
    """About to call the scheduler: written before the call, so that a crash leaves a trace to search by."""
    move(
        attempt,
        ATTEMPT_TRANSITIONS,
        AttemptPhase.SUBMITTING,
        submit_started_at=clock.now(),
        avoided_nodes=sorted(avoided),
        slurm_user=attempt.job.slurm_user,
        slurm_account=attempt.job.slurm_account,
    )


def attempt_submit_again(attempt: Attempt, avoided: Collection[str] | None = None) -> bool:
    """The doubt about a submit counts from now: a call failed, or the next one starts. False when another was first."""
    columns: dict[str, Any] = {"submit_started_at": clock.now()}
    if avoided is not None:
        columns["avoided_nodes"] = sorted(avoided)
    changed = Attempt.objects.filter(
        pk=attempt.pk, phase=AttemptPhase.SUBMITTING, submit_started_at=attempt.submit_started_at
    ).update(**columns)
    if changed:
        for name, value in columns.items():
            setattr(attempt, name, value)
    return bool(changed)


def job_held_back(job: Job, attempt: Attempt, why: Said) -> None:
    """The portal keeps it for now: it waits, with the reason; told once a reason."""
    with transaction.atomic():
        if job.phase in (JobPhase.PENDING, JobPhase.RECOVERING):
            move(job, JOB_TRANSITIONS, JobPhase.QUEUED, observed_generation=job.generation, reason=HELD_BACK)
        elif not Job.objects.filter(pk=job.pk, phase=job.phase).exclude(reason=HELD_BACK).update(reason=HELD_BACK):
            return
        job.reason = HELD_BACK
        job_event(job, "HeldBack", why, attempt)


def attempt_withdraw(attempt: Attempt, why: Said) -> None:
    """Take a waiting attempt out of the queue before it starts where it could not end."""
    with transaction.atomic():
        if attempt_stop(attempt, "BlockEnds"):
            job_event(attempt.job, "Withdrawn", why, attempt)


def attempt_interrupt(attempt: Attempt, reason: str) -> None:
    """End an attempt that was taken apart, so that the next one resumes from its newest checkpoint."""
    words = attempt.observed_words or said(_("its cluster put it back"))
    with transaction.atomic():
        if attempt_stop(attempt, reason, attempt.stop_node):
            job_event(attempt.job, "AttemptInterrupted", words, attempt, node=attempt.stop_node)


def attempt_submitted(attempt: Attempt, scheduler_id: str, warnings: Sequence[str] = ()) -> None:
    """The scheduler has it under this id."""
    job = attempt.job
    with transaction.atomic():
        move(attempt, ATTEMPT_TRANSITIONS, AttemptPhase.QUEUED, scheduler_id=scheduler_id)
        if job.phase in (JobPhase.PENDING, JobPhase.RECOVERING):
            move(job, JOB_TRANSITIONS, JobPhase.QUEUED, observed_generation=job.generation, message="")
        elif Job.objects.filter(pk=job.pk, reason=HELD_BACK).update(reason="", message=""):
            job.reason, job.message = "", ""
        text = f"attempt {attempt.number} is job {scheduler_id} in the scheduler"
        if warnings:
            text += "; it warns: " + "; ".join(warnings)
        # Someone waits to see what becomes of it: not at the collector's next round, but now.
        intent_ask("cluster.queue", job.cluster.uid)
        job_event(job, "AttemptSubmitted", text, attempt, scheduler_id=scheduler_id)


def attempt_running(attempt: Attempt) -> None:
    """It runs."""
    job = attempt.job
    with transaction.atomic():
        move(attempt, ATTEMPT_TRANSITIONS, AttemptPhase.RUNNING)
        if job.phase in (JobPhase.QUEUED, JobPhase.PENDING, JobPhase.RECOVERING):
            columns: dict[str, Any] = {"started_at": attempt.started_at} if job.started_at is None else {}
            move(job, JOB_TRANSITIONS, JobPhase.RUNNING, message="", **columns)
        # The grid of nodes should show it at once, not at the collector's next round.
        intent_ask("cluster.nodes", job.cluster.uid)
        where = ", ".join(attempt.nodes)
        job_event(job, "AttemptRunning", f"attempt {attempt.number} runs on {where}", attempt, nodes=attempt.nodes)


def attempt_requeued_by_scheduler(attempt: Attempt) -> None:
    """The scheduler put a running job back into its queue: same id, same attempt, waiting again."""
    job = attempt.job
    with transaction.atomic():
        # The run is charged to where it was last seen; the wait that follows is not.
        attempt_charge(attempt, attempt.observed_at or clock.now())
        move(attempt, ATTEMPT_TRANSITIONS, AttemptPhase.QUEUED, started_at=None)
        if job.phase == JobPhase.RUNNING:
            move(job, JOB_TRANSITIONS, JobPhase.QUEUED)
        job_event(job, "AttemptRequeued", "the scheduler put it back into its queue", attempt)


def attempt_stop(attempt: Attempt, reason: str, node: str = "") -> bool:
    """End an attempt (NodeFailure, Requeued, Cancelled, TimeLimit); the first reason stays. True if it was."""
    with transaction.atomic():
        changed = Attempt.objects.filter(
            pk=attempt.pk,
            stop_reason="",
            phase__in=[AttemptPhase.QUEUED, AttemptPhase.RUNNING, AttemptPhase.SUBMITTING],
        ).update(stop_reason=reason, stop_node=node, stop_decided_at=clock.now())
        if not changed:
            return False
        attempt.stop_reason, attempt.stop_node = reason, node
        intent_ask(INTENT, attempt.job.uid)
    return True


def attempts_evict(node: Node, finding: Finding) -> list[Attempt]:
    """Decide to end every attempt on a node with a fatal finding."""
    evicted = []
    for attempt in attempts_on_nodes(node.cluster, [node.name]):
        if attempt.job.origin == JobOrigin.OUTSIDE:
            # Whoever is not started again from here is not ended from here either: the drain waits for it.
            continue
        with transaction.atomic():
            tasks = tasks_on(attempt, node.name) if attempt.array and not attempt.stop_reason else ()
            if tasks and len(tasks) < attempt.tasks:
                # The others run elsewhere, or wait: only these are lost.
                for task in tasks_evict(attempt, node.name, tasks):
                    words = f"{finding.title} on {node.name}: task {task} is ended and runs again elsewhere"
                    told = {"node": node.name, "finding": finding.uid, "title": finding.title, "task": task}
                    job_event(attempt.job, "TaskNodeFailed", words, attempt, **told)
                    evicted.append(attempt)
            elif attempt_stop(attempt, "NodeFailure", node.name):
                job_event(
                    attempt.job,
                    "NodeFailed",
                    f"{finding.title} on {node.name}: attempt {attempt.number} is ended and starts again elsewhere",
                    attempt,
                    node=node.name,
                    finding=finding.uid,
                    title=finding.title,
                )
                evicted.append(attempt)
    return evicted


def attempt_stop_sent(attempt: Attempt) -> None:
    """The scheduler was told to end it (again)."""
    intent_ask("cluster.queue", attempt.job.cluster.uid)
    if attempt.phase == AttemptPhase.STOPPING:
        now = clock.now()
        Attempt.objects.filter(pk=attempt.pk).update(stop_sent_at=now)
        attempt.stop_sent_at = now
        return
    move(attempt, ATTEMPT_TRANSITIONS, AttemptPhase.STOPPING, stop_sent_at=clock.now())


def has_fatal_finding(attempt: Attempt) -> str:
    """The first of the attempt's nodes with a live fatal finding, or empty."""
    row = (
        Finding.objects.filter(
            node__cluster=attempt.job.cluster,
            node__name__in=attempt.nodes or [""],
            severity__in=sorted(FATAL),
            phase__in=sorted(LIVE),
        )
        .select_related("node")
        .first()
    )
    return row.node.name if row is not None else ""


def unheard_nodes(attempt: Attempt, since: datetime) -> list[str]:
    """Nodes of an attempt whose exporter answers but was not read since an instant, by name."""
    rows = Node.objects.filter(
        cluster=attempt.job.cluster, name__in=attempt.nodes or [""], exporter_error="", exporter_read_at__isnull=False
    ).exclude(phase=NodePhase.GONE)
    return sorted(rows.exclude(exporter_read_at__gte=since).values_list("name", flat=True))


def attempt_end(attempt: Attempt, phase: str, reason: str, message: str = "") -> None:
    """Settle an attempt: the last charge, the release of the rest, its final phase; one commit."""
    job = attempt.job
    ended_at = attempt.ended_at or clock.now()
    with transaction.atomic():
        if attempt.started_at is not None:
            attempt_charge(attempt, max(ended_at, attempt.started_at))
        for unit in (Unit.USD, Unit.GPU_HOURS):
            ledger.release(
                job.team,
                unit,
                key=f"release:{attempt.uid}:{unit}",
                subject=job.uid,
                detail=attempt.uid,
                memo=f"{job.name}, attempt {attempt.number} ended",
            )
        move(attempt, ATTEMPT_TRANSITIONS, phase, ended_at=ended_at, reason=reason, message=brief(message, 500))
        series_rejudge(job.series, alive_attempts=alive_attempt_uids(job))
        intent_ask("cluster.nodes", job.cluster.uid)
        # Its output goes to the object store after a while.
        intent_ask(ROLL_INTENT, attempt.uid, delay_s=settings.CONFIG.log_roll_after_s)
        label = AttemptPhase(phase).label
        text = f"attempt {attempt.number}: {label}" + (f" ({reason})" if reason else "")
        job_event(job, "AttemptEnded", text, attempt, phase=phase, reason=reason, exit_code=attempt.exit_code)


def job_end(job: Job, phase: str, *, reason: str = "", message: str = "", exit_code: int | None = None) -> None:
    """The job's end: its GPUs go back to the team."""
    with transaction.atomic():
        gpus_return(job.team, subject=job.uid)
        move(
            job,
            JOB_TRANSITIONS,
            phase,
            ended_at=clock.now(),
            reason=reason,
            message=brief(message, 500),
            exit_code=exit_code,
            eta_s=None,
            observed_generation=job.generation,
        )
        event(
            "job",
            job.uid,
            "JobEnded",
            str(JobPhase(phase).label),
            team_id=job.team_id,
            data={"phase": phase, "reason": reason},
        )


def job_cancelling(job: Job) -> None:
    """A cancel is under way."""
    if job.phase != JobPhase.CANCELLING:
        move(job, JOB_TRANSITIONS, JobPhase.CANCELLING, observed_generation=job.generation)


def requeue_taken_up(job: Job) -> None:
    """A person's requeue was turned into a stop of the attempt; the wish is spent."""
    Job.objects.filter(pk=job.pk, stop_kind="requeue").update(
        stop_requested_at=None, stop_kind="", observed_generation=job.generation
    )
    job.stop_requested_at, job.stop_kind = None, ""


def needs_recovery(phase: str) -> bool:
    """Whether an attempt that ended like this is followed by another."""
    return phase in RECOVERABLE


def job_event(job: Job, kind: str, text: str, attempt: Attempt, **data: object) -> None:
    """Something that happened to a job in one of its attempts."""
    event(
        "job",
        job.uid,
        kind,
        text,
        team_id=job.team_id,
        data={"attempt": attempt.number, **data},
    )


def attempt_blame(attempt: Attempt, node: str) -> None:
    """The node whose fault ended the attempt; the next one leaves it out."""
    Attempt.objects.filter(pk=attempt.pk, stop_node="").update(stop_node=node)
    attempt.stop_node = node
