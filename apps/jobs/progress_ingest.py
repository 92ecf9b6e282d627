"""What a job says of its progress: the runner's progress events, and status posts in Kubeflow Trainer's shape."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from apps.core import clock
from apps.core.errors import FieldProblem, InvalidInput
from apps.jobs.models import Attempt, Job, ProgressPoint
from apps.jobs.progress_rules import model_facts_of, pace_of

#: How many points the pace is taken from.
PACE_POINTS: Final = 200
MOST_METRICS: Final = 20
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,39}")
_OWN: Final = frozenset({"step", "total_steps", "loss", "tokens_per_s", "tokens_per_gpu_s", "learning_rate", "eta_s"})
#: Names of other tools for what has a column of its own.
_ALIASES: Final[Mapping[str, str]] = {
    "global_step": "step",
    "current_step": "step",
    "iteration": "step",
    "max_steps": "total_steps",
    "num_steps": "total_steps",
    "train_loss": "loss",
    "lr": "learning_rate",
    "tokens_per_second": "tokens_per_s",
    "train_tokens_per_second": "tokens_per_s",
}


def _number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _step(value: Any) -> int | None:
    """A step; None where there is none. Raises ValueError for what cannot be one."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise ValueError("step")
    return value


def _metrics(data: Mapping[str, Any]) -> dict[str, float]:
    """Further series, by name."""
    named = ((name, _number(value)) for name, value in data.items() if name not in _OWN and _NAME.fullmatch(name))
    found = {name: value for name, value in named if value is not None}
    return dict(sorted(found.items())[:MOST_METRICS])


def progress_take(attempt: Attempt, data: Mapping[str, Any], at: datetime, task: int = -1) -> None:
    """Store one report; a step that is reported twice keeps the later figures. Raises ValueError for a bad step.

    What a ``task`` of an array tells is that task's alone: the job's own figures stay as they are.

    ``tokens_per_gpu_s`` is what programs print that speak of one GPU; it counts for all of the job's.
    """
    step = _step(data.get("step"))
    figures = {name: _number(data.get(name)) for name in ("loss", "tokens_per_s", "learning_rate", "eta_s")}
    each = _number(data.get("tokens_per_gpu_s"))
    if figures["tokens_per_s"] is None and each is not None:
        figures["tokens_per_s"] = each * (attempt.job.gpus if task < 0 else attempt.job.gpus_per_task)
    columns: dict[str, Any] = {"progress_at": at}
    model = data.get("model")
    if isinstance(model, Mapping) and (facts := model_facts_of(model)):
        columns["model_facts"] = facts
    for name in ("loss", "tokens_per_s"):
        if figures[name] is not None:
            columns[name] = figures[name]
    if step is None and task >= 0:
        return
    if step is None:
        # Some programs print a loss per epoch only: the newest figures still go on the job's page.
        if len(columns) > 1:
            Job.objects.filter(pk=attempt.job_id).update(**columns)
        return
    total = _number(data.get("total_steps"))
    point = ProgressPoint(
        attempt=attempt,
        task=task,
        step=step,
        total_steps=int(total) if total is not None and 0 <= total < 2**62 else None,
        metrics=_metrics(data),
        at=at,
        **figures,
    )
    ProgressPoint.objects.bulk_create(
        [point],
        update_conflicts=True,
        unique_fields=["attempt", "task", "step"],
        update_fields=["total_steps", "loss", "tokens_per_s", "learning_rate", "eta_s", "metrics", "at"],
    )
    if task >= 0:
        Job.objects.filter(pk=attempt.job_id).update(progress_at=at)
        return
    columns["step"] = step
    if point.total_steps is not None:
        columns["total_steps"] = point.total_steps
    columns["eta_s"] = point.eta_s if point.eta_s is not None else _eta(attempt, point)
    Job.objects.filter(pk=attempt.job_id).update(**columns)


def _eta(attempt: Attempt, point: ProgressPoint) -> float | None:
    """Seconds left at the pace of this attempt's last points; None until there are two steps to compare."""
    if point.total_steps is None:
        return None
    rows = (
        ProgressPoint.objects.filter(attempt=attempt, task=-1).order_by("-step").values_list("step", "at")[:PACE_POINTS]
    )
    pace = pace_of([(step, at.timestamp()) for step, at in sorted(rows)])
    return None if pace is None else pace.left_s(point.total_steps - point.step)


def _problem(pointer: str, detail: str) -> InvalidInput:
    found = FieldProblem(pointer, "invalid", detail)
    return InvalidInput(f"{pointer}: {detail}", problems=(found,))


def status_take(attempt: Attempt, body: Any) -> Mapping[str, Any]:
    """Take a status post: ``{"trainerStatus": {progressPercentage, estimatedRemainingSeconds, metrics, …}}``.

    The shape is that of Kubeflow Trainer's runtime status (KEP-2779): ``metrics`` is a list of name and value, values
    as text. Returns what was told. Raises InvalidInput naming the member that cannot be read; nothing is stored then.
    """
    told = body.get("trainerStatus") if isinstance(body, Mapping) else None
    if not isinstance(told, Mapping):
        raise _problem("/trainerStatus", "must be an object")
    percent, left = told.get("progressPercentage"), told.get("estimatedRemainingSeconds")
    if percent is not None and (not isinstance(percent, int) or isinstance(percent, bool) or not 0 <= percent <= 100):
        raise _problem("/trainerStatus/progressPercentage", "must be a whole number from 0 to 100")
    if left is not None and (not isinstance(left, int) or isinstance(left, bool) or not 0 <= left < 2**40):
        raise _problem("/trainerStatus/estimatedRemainingSeconds", "must be a whole number from 0")
    data = _told_metrics(told.get("metrics"))
    now = clock.now()
    at = min(_instant(told.get("lastUpdatedTime")) or now, now)
    columns: dict[str, Any] = {"progress_at": at}
    if percent is not None:
        columns["percent"] = percent
    if left is not None:
        columns["eta_s"] = data["eta_s"] = float(left)
    with transaction.atomic():
        Job.objects.filter(pk=attempt.job_id).update(**columns)
        progress_take(attempt, data, at)
    return told


def _told_metrics(listed: Any) -> dict[str, Any]:
    if listed is None:
        return {}
    if not isinstance(listed, list) or len(listed) > 256:
        raise _problem("/trainerStatus/metrics", "must be a list of at most 256")
    data: dict[str, Any] = {}
    for index, one in enumerate(listed):
        name = one.get("name") if isinstance(one, Mapping) else None
        if not isinstance(name, str):
            raise _problem(f"/trainerStatus/metrics/{index}/name", "must be text")
        try:
            value = float(one.get("value"))
        except (TypeError, ValueError):
            # A metric may be any text, such as a phase: it has no place on a curve.
            continue
        if not math.isfinite(value):
            continue
        name = _ALIASES.get(name, name)
        is_count = name in ("step", "total_steps")
        if is_count and not (0 <= value < 2**62 and value == int(value)):
            # A step that is none has no place on a curve either.
            continue
        data[name] = int(value) if is_count else value
    return data


def _instant(text: Any) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None
