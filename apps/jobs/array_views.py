"""The tasks of a job array: a table with states, pages and a file."""

from __future__ import annotations

import csv
from collections import Counter
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from apps.core import clock
from apps.core.errors import BadQuery
from apps.core.lists import guarded
from apps.jobs.array_selectors import Task, tasks_of
from apps.jobs.detail_views import JobPage
from apps.jobs.log_selectors import task_runners
from apps.jobs.permissions import can_cancel_job
from apps.jobs.progress_selectors import last_of_tasks

PAGE = 50
#: Slurm's states by the colour words of the portal.
COLOURS = {
    "": "off",
    "PENDING": "wait",
    "RUNNING": "busy",
    "COMPLETING": "busy",
    "SUSPENDED": "warn",
    "COMPLETED": "good",
    "CANCELLED": "off",
    "PREEMPTED": "warn",
}


def colour_of(state: str) -> str:
    """The colour word of a state; what is not listed is a failure."""
    return COLOURS.get(state, "bad")


class JobTasks(JobPage):
    """The tab of an array's tasks."""

    tab = "tasks"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """One page of tasks, of one state or of all."""
        job = self.job(uid)
        tasks = tasks_of(job) if job.array else []
        counts = Counter(task.state for task in tasks)
        state = request.GET.get("state", "")
        if state and state not in counts:
            counts[state] = 0
        chosen = [task for task in tasks if not state or task.state == state]
        pages = max(1, -(-len(chosen) // PAGE))
        number = request.GET.get("page", "1")
        if not number.isdecimal() or len(number) > 6:
            raise BadQuery(_("%(name)s: must be a whole number") % {"name": "page"})
        page = min(max(1, int(number)), pages)
        shown = chosen[(page - 1) * PAGE : page * PAGE]
        runners = task_runners(job, [task.number for task in shown])
        last = last_of_tasks(job, [task.number for task in shown])
        context: dict[str, Any] = self.frame(job)
        context |= {
            "rows": [
                (t, colour_of(t.state), runners.get((t.attempt, t.number), ""), last.get(t.number)) for t in shown
            ],
            "counts": [(s, colour_of(s), n) for s, n in sorted(counts.items())],
            "state": state,
            "total": len(chosen),
            "page": page,
            "pages": pages,
            "may_act": can_cancel_job(self.actor, job) and not job.has_ended,
        }
        return self.answer(request, "jobs/job_tasks.html", context)


class JobTasksCsv(JobPage):
    """All tasks as a file."""

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """CSV, a line a task."""
        job = self.job(uid)
        response = HttpResponse(content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="{job.uid}-tasks.csv"'
        writer = csv.writer(response)
        writer.writerow(
            ["task", "attempt", "slurm_id", "state", "reason", "nodes", "started_at", "ended_at", "exit_code", "signal"]
        )
        for task in tasks_of(job) if job.array else []:
            writer.writerow([guarded(str(cell)) for cell in _cells(task)])
        return response


def _cells(task: Task) -> list[Any]:
    return [
        task.number,
        task.attempt,
        task.scheduler_id,
        task.state,
        task.reason,
        " ".join(task.nodes),
        clock.iso(task.started_at) if task.started_at else "",
        clock.iso(task.ended_at) if task.ended_at else "",
        "" if task.exit_code is None else task.exit_code,
        "" if task.signal is None else task.signal,
    ]
