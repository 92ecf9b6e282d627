"""Tasks of an array that end because of a fault of their node: each alone, while the others go on."""

from __future__ import annotations

from collections.abc import Sequence

from apps.core import ids
from apps.intents.services import intent_ask
from apps.jobs.action_models import JobAction
from apps.jobs.action_states import ActionKind, ActionPhase
from apps.jobs.models import Attempt, Job
from apps.jobs.queue_models import QueueEntry

ACT_INTENT = "job.act"
#: Who asks.
HEALTH = "health"


def tasks_on(attempt: Attempt, node: str) -> tuple[int, ...]:
    """Tasks of an attempt that run on a node, as the queue shows them; none where that is not known."""
    rows = QueueEntry.objects.filter(attempt=attempt, array_task__isnull=False, gone_at__isnull=True)
    rows = rows.filter(state__in=["RUNNING", "SUSPENDED"])
    found = [task for task, nodes in rows.values_list("array_task", "nodes") if node in nodes and task is not None]
    return tuple(sorted(found))


def tasks_evict(attempt: Attempt, node: str, tasks: Sequence[int]) -> list[int]:
    """Ask that these tasks are ended and run again elsewhere; which were not asked for before. The caller commits.

    One that a person cancelled is being ended already and stays cancelled. They go as the user the job belongs to, as
    every stop that the portal decides.
    """
    job = attempt.job
    ending = [ActionKind.REQUEUE_TASK, ActionKind.CANCEL_TASK]
    rows = JobAction.objects.filter(attempt=attempt, kind__in=ending).exclude(phase=ActionPhase.REFUSED)
    asked = {int(given["task"]) for given in rows.values_list("parameters", flat=True)}
    new = [task for task in tasks if task not in asked]
    for task in new:
        JobAction(
            uid=ids.new_uid("act"),
            job=job,
            attempt=attempt,
            kind=ActionKind.REQUEUE_TASK,
            parameters={"task": task, "node": node},
            asked_by=HEALTH,
            act_as=job.slurm_user,
        ).save(force_insert=True)
    if new:
        intent_ask(ACT_INTENT, job.uid)
    return new


def nodes_blamed(job: Job) -> set[str]:
    """Nodes whose faults ended tasks of a job: no later attempt goes there."""
    rows = JobAction.objects.filter(job=job, kind=ActionKind.REQUEUE_TASK).exclude(phase=ActionPhase.REFUSED)
    return {str(given["node"]) for given in rows.values_list("parameters", flat=True) if given.get("node")}


def attempts_evicted_from(job: Job) -> set[int]:
    """Attempts of a job, by pk, of which a node's fault took tasks."""
    rows = JobAction.objects.filter(job=job, asked_by=HEALTH, kind=ActionKind.REQUEUE_TASK, attempt__isnull=False)
    return {pk for pk in rows.exclude(phase=ActionPhase.REFUSED).values_list("attempt_id", flat=True) if pk}
