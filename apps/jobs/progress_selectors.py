"""Named reads of a job's progress: its pace, its utilisation, and every series it reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.db.models import Max
from django.utils.translation import gettext as _

from apps.core.errors import BadQuery
from apps.jobs.models import Attempt, Job, ProgressPoint
from apps.jobs.progress_rules import Pace, Utilisation, pace_of, utilisation
from apps.jobs.selectors import current_attempt, nodes_of

#: Further series that get a chart of their own; the table of the API has all.
MOST_SERIES: Final = 8


def tasks_reporting(job: Job) -> list[int]:
    """Tasks of an array that reported a step, in order."""
    rows = ProgressPoint.objects.filter(attempt__job=job, task__gte=0).order_by("task")
    return list(rows.values_list("task", flat=True).distinct())


def last_of_tasks(job: Job, tasks: Sequence[int]) -> dict[int, ProgressPoint]:
    """The newest report of each of these tasks, where there is one. Two queries."""
    rows = ProgressPoint.objects.filter(attempt__job=job, task__in=tasks)
    newest = rows.order_by().values("task").annotate(newest=Max("id")).values_list("newest", flat=True)
    return {point.task: point for point in ProgressPoint.objects.filter(pk__in=list(newest))}


def task_asked(job: Job, text: str) -> int:
    """The task whose curves are wanted: the one named, else the first that reported; -1 for what is no array.

    Raises BadQuery.
    """
    if not job.array:
        return -1
    if text:
        if not text.isdecimal() or len(text) > 7:
            raise BadQuery(_("%(name)s: must be a whole number") % {"name": "task"})
        return int(text)
    rows = ProgressPoint.objects.filter(attempt__job=job, task__gte=0).order_by("task")
    first = rows.values_list("task", flat=True).first()
    return 0 if first is None else first


def gpu_type_of(job: Job, attempt: Attempt | None) -> str:
    """The GPU type a job asked for, else that of the nodes it runs on where they agree; empty where nobody knows."""
    if job.gpu_type:
        return job.gpu_type
    found = {node.gpu_type for node in nodes_of(job, attempt) if node.gpu_type}
    return found.pop() if len(found) == 1 else ""


def job_pace(points: Sequence[ProgressPoint]) -> Pace | None:
    """The pace of the newest attempt among these points, which come in the order they were reported."""
    if not points:
        return None
    newest = points[-1].attempt_id
    return pace_of([(p.step, p.at.timestamp()) for p in points if p.attempt_id == newest])


def job_utilisation(job: Job) -> Utilisation | None:
    """MFU at the throughput the job last reported; None while the model's size is not known."""
    return utilisation(job.tokens_per_s, job.gpus, gpu_type_of(job, current_attempt(job)), job.model_facts)


def series_names(points: Sequence[ProgressPoint]) -> list[str]:
    """Names of further series, those that most points have first."""
    counts: dict[str, int] = {}
    for point in points:
        if point.learning_rate is not None:
            counts["learning_rate"] = counts.get("learning_rate", 0) + 1
        for name in point.metrics:
            counts[name] = counts.get(name, 0) + 1
    several = {name: count for name, count in counts.items() if count > 1}
    return sorted(several, key=lambda name: (-several[name], name))[:MOST_SERIES]


def series_of(points: Sequence[ProgressPoint], steps: Sequence[int]) -> dict[str, list[float | None]]:
    """Each further series at these steps; where two attempts report a step the later one counts."""
    by_step = {point.step: point for point in points}
    found: dict[str, list[float | None]] = {}
    for name in series_names(points):
        found[name] = [_value(by_step.get(step), name) for step in steps]
    return found


def _value(point: ProgressPoint | None, name: str) -> float | None:
    if point is None:
        return None
    if name == "learning_rate":
        return point.learning_rate
    value = point.metrics.get(name)
    return float(value) if isinstance(value, int | float) else None
