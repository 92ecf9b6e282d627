"""API of a job's output: a window of it, a search through all of it, where the first error stands."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.errors import BadQuery
from apps.jobs.api import OfJob
from apps.jobs.log_levels import NAMES
from apps.jobs.log_selectors import LEAST_TEXT, LogWindow, first_error, log_page, log_search
from apps.jobs.log_services import segments_want

#: What a client should wait before it asks again for output that comes back from the object store.
FETCH_S = 2


class LogChunkSerializer(serializers.Serializer[Any]):
    """A piece of output; ``level`` is its worst line: 0 plain, 1 warning, 2 error."""

    id = serializers.IntegerField()
    attempt = serializers.IntegerField(source="attempt.number")
    runner = serializers.CharField(source="runner_id")
    stream = serializers.CharField()
    offset = serializers.IntegerField()
    text = serializers.CharField()
    level = serializers.IntegerField()
    at = serializers.DateTimeField()


class LogPageSerializer(serializers.Serializer[Any]):
    """A window of output; pass ``next_after`` as ``after`` to go on.

    ``is_fetching``: the window is on its way back from the object store, ask again in Retry-After seconds;
    ``problem`` says why it does not come.
    """

    chunks = LogChunkSerializer(many=True)
    next_after = serializers.IntegerField()
    is_open = serializers.BooleanField()
    is_fetching = serializers.BooleanField()
    problem = serializers.CharField(allow_blank=True)


class LogHitSerializer(serializers.Serializer[Any]):
    """One line; ``chunk_id`` - 1 as ``after`` opens the output there."""

    chunk_id = serializers.IntegerField()
    attempt = serializers.IntegerField()
    runner = serializers.CharField()
    at = serializers.DateTimeField()
    level = serializers.IntegerField()
    line = serializers.CharField()


class LogSearchSerializer(serializers.Serializer[Any]):
    """Lines found, oldest first; ``bytes_not_searched`` lie in the object store."""

    hits = LogHitSerializer(many=True)
    next_after = serializers.IntegerField(allow_null=True)
    bytes_not_searched = serializers.IntegerField()


class FirstErrorSerializer(serializers.Serializer[Any]):
    """The chunk with the first error, null where there is none."""

    chunk_id = serializers.IntegerField(allow_null=True)


def whole(request: Request, name: str, default: int) -> int:
    """A whole number of the query. Raises BadQuery."""
    text = request.query_params.get(name, str(default))
    if not text.isdecimal() or len(text) > 18:
        raise BadQuery(f"{name}: must be a whole number")
    return int(text)


def window_of(request: Request) -> LogWindow:
    """Which part of the output a query asks for. Raises BadQuery."""
    level = request.query_params.get("level", "any")
    if level not in NAMES:
        raise BadQuery(f"level: one of {', '.join(NAMES)}")
    return LogWindow(whole(request, "attempt", 0) or None, request.query_params.get("runner", "")[:64], NAMES[level])


class JobLogs(OfJob):
    """A job's output."""

    serializer_class = LogPageSerializer
    query_parameters = frozenset({"after", "limit", "tail", "attempt", "runner", "level"})

    def get(self, request: Request, uid: str) -> Response:
        """Chunks after ``after``, or the last ``limit`` with ``tail=1``."""
        job = self.job(uid)
        tail = request.query_params.get("tail", "0")
        if tail not in ("0", "1"):
            raise BadQuery("tail: must be 0 or 1")
        page = log_page(
            job,
            after_id=whole(request, "after", 0),
            limit=whole(request, "limit", 200),
            tail=tail == "1",
            window=window_of(request),
        )
        segments_want(page.away)
        is_fetching = bool(page.away) and not page.problem
        body = {
            "chunks": page.chunks,
            "next_after": page.next_id,
            "is_open": page.is_open,
            "is_fetching": is_fetching,
            "problem": page.problem,
        }
        response = Response(LogPageSerializer(body).data)
        if is_fetching:
            response["Retry-After"] = str(FETCH_S)
        return response


class JobLogSearch(OfJob):
    """A search through a job's output."""

    serializer_class = LogSearchSerializer
    query_parameters = frozenset({"q", "after", "attempt", "runner", "level", "fetch"})

    def get(self, request: Request, uid: str) -> Response:
        """Lines with ``q`` in them, or of ``level``; ``fetch=1`` brings back what lies in the object store."""
        job = self.job(uid)
        window, text = window_of(request), request.query_params.get("q", "")[:200]
        if 0 < len(text) < LEAST_TEXT:
            raise BadQuery(f"q: at least {LEAST_TEXT} characters")
        found = log_search(job, text, after_id=whole(request, "after", 0), window=window)
        if request.query_params.get("fetch") == "1":
            segments_want(found.away)
        body = {"hits": found.hits, "next_after": found.next_after, "bytes_not_searched": found.away_bytes}
        return Response(LogSearchSerializer(body).data)


class JobLogFirstError(OfJob):
    """Where the first error of a job's output stands."""

    serializer_class = FirstErrorSerializer
    query_parameters = frozenset({"attempt", "runner"})

    def get(self, request: Request, uid: str) -> Response:
        """The chunk's id."""
        return Response({"chunk_id": first_error(self.job(uid), window_of(request))})
