"""The next attempt of a job whose last one ended without its success, or the job's end where rules say so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.checkpoints.selectors import newest_complete
from apps.core import ids, units
from apps.core.said import brief, said
from apps.core.states import move
from apps.costs import services as ledger
from apps.jobs.array_rules import compressed
from apps.jobs.array_selectors import tasks_asked_again, tasks_to_run_again, worst_of
from apps.jobs.models import Attempt, Job
from apps.jobs.observations import has_fatal_finding, job_end, job_event
from apps.jobs.part_rules import hold_of
from apps.jobs.retry_rules import RETRY, STOP, Decision, decide, rules_of
from apps.jobs.retry_selectors import failure_of
from apps.jobs.rules import RECOVERABLE
from apps.jobs.states import JOB_TRANSITIONS, AttemptPhase, JobPhase
from apps.jobs.task_evictions import nodes_blamed


def job_recover(job: Job, ended: Attempt) -> Attempt | None:
    """Start the next attempt from the newest complete checkpoint without the failed node.

    Returns None with the job WAITING_BUDGET when the money cannot be held, or ended where the rules say that another
    attempt would be pointless or no task of an array is left to repeat.
    """
    is_failure = ended.phase != AttemptPhase.REQUEUED
    failed = ended.stop_node or (has_fatal_finding(ended) if is_failure else "")
    asked = tasks_asked_again(job, ended) if ended.phase not in RECOVERABLE else {}
    left_out: set[int] = set()
    if asked:
        decision, node = _decide_tasks(job, ended, asked)
        is_failure, failed = bool(node), failed or node
        if not node:
            left_out = {task for task, of_node in asked.items() if of_node}
    else:
        failure = failure_of(job, ended, failed)
        decision = decide(failure, rules_of(job.retry_rules, job.retry_defaults))
    if decision.rule == "infrastructure" and not failed and len(ended.nodes) == 1:
        failed = ended.nodes[0]
    array, tasks = _array_again(job, ended, failed, left_out)
    if not tasks and decision.verb != STOP:
        _end_with_its_tasks(job)
        return None
    if job.phase not in (JobPhase.RECOVERING, JobPhase.WAITING_BUDGET):
        _decided(job, ended, decision)
    if decision.verb == STOP:
        message = ended.message if decision.reason == ended.reason and ended.message else decision.words
        phase = JobPhase.TIMED_OUT if ended.phase == AttemptPhase.TIMED_OUT else JobPhase.FAILED
        job_end(job, phase, reason=decision.reason, message=message, exit_code=ended.exit_code)
        return None
    blamed = nodes_blamed(job) if job.array else set()
    excluded = sorted({*job.excluded_nodes, *blamed, *([failed] if failed else [])})
    # Each task of an array has a folder of its own and finds its own checkpoints there.
    newest = None if job.array else newest_complete(job.series)
    hours, usd = (held * tasks for held in hold_of(job))
    number = ended.number + 1
    attempt = Attempt(
        uid=ids.new_uid("att"),
        job=job,
        number=number,
        array=array,
        tasks=tasks,
        resume_from=newest.path if newest else "",
        resume_step=newest.step if newest else None,
        excluded_nodes=excluded,
    )
    why = said(_("%(node)s failed"), node=failed) if failed else decision.words
    if ended.reason == "BlockEnds":
        why = said(_("a block ends before it could"))
    try:
        with transaction.atomic():
            ledger.hold_money(
                job.team, usd, hours, subject=job.uid, detail=attempt.uid, memo=f"{job.name}, attempt {number}"
            )
            attempt.save()
            columns: dict[str, Any] = {
                "excluded_nodes": excluded,
                "recoveries": job.recoveries + (1 if is_failure else 0),
                "message": why,
            }
            if job.phase == JobPhase.RECOVERING:
                Job.objects.filter(pk=job.pk).update(**columns)
            else:
                move(job, JOB_TRANSITIONS, JobPhase.RECOVERING, **columns)
            start = f"from step {units.count(newest.step)}" if newest else "from the beginning"
            job_event(
                job,
                "Recovering",
                f"attempt {number} starts {start}" + (f" without {failed}" if failed else ""),
                attempt,
                resume_from=attempt.resume_from,
                resume_step=attempt.resume_step,
                excluded=excluded,
            )
    except ledger.BudgetExhausted as refusal:
        if job.phase != JobPhase.WAITING_BUDGET:
            if job.phase != JobPhase.RECOVERING:
                move(job, JOB_TRANSITIONS, JobPhase.RECOVERING, message=why)
            move(job, JOB_TRANSITIONS, JobPhase.WAITING_BUDGET, message=brief(refusal.detail, 500))
        return None
    return attempt


def job_short_of_tasks(job: Job) -> bool:
    """End an array job by its lowest task that did not succeed; False, and nothing done, where all succeeded."""
    task = worst_of(job)
    if task is None:
        return False
    # Of a task that was cancelled before it began the scheduler may have shown nothing at all.
    text = said(_("task %(task)s: %(state)s"), task=task.number, state=task.state or "CANCELLED")
    job_end(job, JobPhase.FAILED, reason="ArrayTasks", message=text, exit_code=task.exit_code)
    return True


def _end_with_its_tasks(job: Job) -> None:
    """The end of an array of which no task is left to repeat."""
    if job_short_of_tasks(job):
        return
    if job.phase == JobPhase.WAITING_BUDGET:
        move(job, JOB_TRANSITIONS, JobPhase.RECOVERING)
    job_end(job, JobPhase.SUCCEEDED)


def _decide_tasks(job: Job, ended: Attempt, asked: Mapping[int, str]) -> tuple[Decision, str]:
    """What follows where nothing of the whole failed but some tasks are to run again, and the node at fault.

    The node is "" where only a person's wish counts: nobody asked for a fault's tasks, or they may not start again.
    """
    wanted = Decision(RETRY, "person", said(_("someone asked for tasks to run again")))
    nodes = [node for node in asked.values() if node]
    if not nodes:
        return wanted, ""
    failure = replace(failure_of(job, ended, nodes[0]), phase=AttemptPhase.NODE_FAILED)
    decision = decide(failure, rules_of(job.retry_rules, job.retry_defaults))
    if decision.verb == STOP and len(nodes) < len(asked):
        return wanted, ""
    return decision, nodes[0]


def _decided(job: Job, ended: Attempt, decision: Decision) -> None:
    """Every decision is told with the rule that made it."""
    job_event(
        job,
        "RetryDecided",
        decision.words,
        ended,
        verb=decision.verb,
        rule=decision.rule,
        reason=decision.reason,
    )


def _array_again(job: Job, ended: Attempt, failed_node: str, left_out: Collection[int]) -> tuple[str, int]:
    """The tasks of the next attempt and how many: none where nothing is left to repeat."""
    if not job.array:
        return "", 1
    again = tasks_to_run_again(job, ended, failed_node, left_out=left_out)
    if not again:
        return "", 0
    _numbers, percent, limit = job.array.partition("%")
    return compressed(again) + percent + limit, len(again)
