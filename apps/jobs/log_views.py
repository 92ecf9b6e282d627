"""The log viewer of a job: its page, its lines, a search through all of them, the first error, and the download."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.core import clock, units
from apps.core.errors import BadQuery
from apps.jobs.detail_views import JobPage
from apps.jobs.log_levels import NAMES
from apps.jobs.log_selectors import (
    LEAST_TEXT,
    LogHit,
    LogPage,
    LogWindow,
    chunks_of,
    first_error,
    log_bytes,
    log_page,
    log_search,
    segments_of,
)
from apps.jobs.log_services import segments_want
from apps.jobs.models import Attempt, Job, LogChunk, RunnerStream
from apps.jobs.states import JobOrigin

_DOWNLOAD_STEP = 200


def number_in(request: HttpRequest, name: str) -> int | None:
    """A whole number of the query, None where it is not given. Raises BadQuery."""
    text = request.GET.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise BadQuery(_("%(name)s: must be a whole number") % {"name": name})
    return int(text)


def window_of(request: HttpRequest) -> LogWindow:
    """Which part of the output a query asks for. Raises BadQuery."""
    level = request.GET.get("level", "any") or "any"
    if level not in NAMES:
        raise BadQuery(_("level: one of %(names)s") % {"names": ", ".join(NAMES)})
    return LogWindow(number_in(request, "attempt"), request.GET.get("runner", "")[:64], NAMES[level])


def runner_names(job: Job) -> dict[str, str]:
    """The runners that reported output, by id: the job's script, then ranks in order."""
    rows = RunnerStream.objects.filter(attempt__job=job).exclude(role="node").select_related("attempt")
    several = Attempt.objects.filter(job=job).count() > 1
    found: dict[str, str] = {}
    for row in sorted(rows, key=lambda r: (r.attempt.number, -1 if r.rank is None else r.rank, r.pk)):
        name = _("rank %(rank)s") % {"rank": row.rank} if row.rank is not None else row.node or row.role
        if row.task is not None:
            name = _("task %(task)s") % {"task": row.task} + f" · {name}"
        if row.rank is not None and row.node:
            name += f" · {row.node}"
        if several:
            name += " · " + _("attempt %(number)s") % {"number": row.attempt.number}
        found[row.runner_id] = name
    return found


def why_empty(job: Job) -> str:
    """Why a job has no output here; empty while there may be some."""
    if job.origin == JobOrigin.OUTSIDE:
        return _("The job was submitted past the portal: its output lies where its own script puts it.")
    attempts = list(Attempt.objects.filter(job=job))
    if any(a.started_at is not None for a in attempts):
        if RunnerStream.objects.filter(attempt__job=job).exists():
            return _("The job has printed nothing so far.") if not job.has_ended else _("The job printed nothing.")
        return _(
            "No runner has reported from this job: the nodes cannot reach the portal, or have no Python. "
            "Its output lies in the job's folder on the cluster."
        )
    if job.has_ended:
        return _("The job never started: there is no output.")
    return _("Output appears here when the job starts.")


class JobLogs(JobPage):
    """The log viewer."""

    tab = "logs"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page; its lines come by script."""
        job = self.job(uid)
        streams = RunnerStream.objects.filter(attempt__job=job)
        here, there = log_bytes(job)
        context = self.frame(job)
        context["runners"] = runner_names(job)
        context["lost_events"] = sum(streams.values_list("lost_events", flat=True))
        context["bytes_here"], context["bytes_there"] = units.binary_bytes(here), units.binary_bytes(there)
        context["has_archive"] = there > 0
        context["why_empty"] = why_empty(job)
        return self.answer(request, "jobs/job_logs.html", context)


def _chunk(chunk: LogChunk) -> dict[str, Any]:
    return {
        "id": chunk.pk,
        "attempt": chunk.attempt.number,
        "runner": chunk.runner_id,
        "stream": chunk.stream,
        "at": clock.iso(chunk.at),
        "text": chunk.text,
    }


def away_words(page: LogPage) -> str:
    """What the viewer says while a part of the output comes back from the object store."""
    if page.problem:
        return _("This part of the output cannot be read back: %(why)s") % {"why": page.problem}
    if page.away:
        return _("Fetching this part of the output from the object store (%(size)s) …") % {
            "size": units.binary_bytes(page.away_bytes)
        }
    return ""


class JobLogData(JobPage):
    """Log chunks for the viewer."""

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """JSON: the last chunks, those after ``after`` or those before ``before``."""
        job = self.job(uid)
        after, before = number_in(request, "after"), number_in(request, "before")
        page = log_page(
            job,
            after_id=after or 0,
            before_id=before,
            limit=200,
            tail=after is None and before is None,
            window=window_of(request),
        )
        segments_want(page.away)
        return JsonResponse(
            {
                "chunks": [_chunk(c) for c in page.chunks],
                "next_after": page.next_id,
                "first_id": page.first_id,
                "is_open": page.is_open,
                "has_earlier": page.has_earlier,
                "away": away_words(page),
                "is_fetching": bool(page.away) and not page.problem,
            }
        )


def _hit(hit: LogHit) -> dict[str, Any]:
    return {"id": hit.chunk_id, "attempt": hit.attempt, "at": clock.iso(hit.at), "level": hit.level, "line": hit.line}


class JobLogSearch(JobPage):
    """A search through the whole output."""

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """JSON: lines with ``q`` in them, or of ``level``; ``fetch=1`` brings back what lies in the object store."""
        job = self.job(uid)
        window, text = window_of(request), request.GET.get("q", "")[:200]
        if 0 < len(text) < LEAST_TEXT:
            raise BadQuery(_("q: at least %(least)s characters") % {"least": LEAST_TEXT})
        found = log_search(job, text, after_id=number_in(request, "after") or 0, window=window)
        if request.GET.get("fetch") == "1":
            segments_want(found.away)
        words = ngettext("%(count)s line", "%(count)s lines", len(found.hits)) % {"count": units.count(len(found.hits))}
        if found.next_after is not None:
            words += " " + _("so far")
        if found.away:
            words += "; " + _("%(size)s in the object store not searched") % {
                "size": units.binary_bytes(found.away_bytes)
            }
        return JsonResponse(
            {
                "hits": [_hit(h) for h in found.hits],
                "next_after": found.next_after,
                "words": words,
                "has_away": bool(found.away),
            }
        )


class JobLogFirstError(JobPage):
    """Where the first error stands."""

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """JSON: the id of its chunk, null where there is none."""
        return JsonResponse({"id": first_error(self.job(uid), window_of(request))})


class JobLogText(JobPage):
    """The whole output as a file."""

    def get(self, request: HttpRequest, uid: str) -> HttpResponseBase:
        """Plain text, sent piece by piece; while a part is in the object store, back to the page, which fetches it."""
        job = self.job(uid)
        window = window_of(request)
        away = [s for s in segments_of(job, window) if s.is_away]
        if away:
            segments_want(away)
            return redirect(reverse("job-logs", args=[job.uid]) + "?fetching=1")
        response = StreamingHttpResponse(_texts(job, window), content_type="text/plain; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="{job.uid}.log"'
        response["X-Content-Type-Options"] = "nosniff"
        return response


async def _texts(job: Job, window: LogWindow) -> AsyncIterator[str]:
    """All text in order, a few chunks at a time, so that memory does not grow with the log.

    Asynchronous because the ASGI server would gather all of a plain iterator before it sends any.
    """
    last = 0

    def step() -> list[tuple[int, str]]:
        rows = chunks_of(job, window).filter(id__gt=last).order_by("id")
        return list(rows.values_list("id", "text")[:_DOWNLOAD_STEP])

    while part := await sync_to_async(step)():
        yield "".join(text for _id, text in part)
        last = part[-1][0]
