"""API of a job array's tasks."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint
from apps.core.errors import BadQuery
from apps.jobs.array_selectors import tasks_of
from apps.jobs.selectors import job_for

MOST = 1000


class TaskSerializer(serializers.Serializer[Any]):
    """One task as the scheduler last showed it in its newest attempt."""

    number = serializers.IntegerField()
    attempt = serializers.IntegerField()
    state = serializers.CharField(help_text="Slurm's word; empty while it is not in the scheduler.")
    reason = serializers.CharField()
    nodes = serializers.ListField(child=serializers.CharField())
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    signal = serializers.IntegerField(allow_null=True)
    scheduler_id = serializers.CharField()


class JobTasks(Endpoint):
    """The tasks of a job array."""

    rights = {"GET": "jobs.view"}
    serializer_class = TaskSerializer
    query_parameters = frozenset({"after", "limit", "state"})

    def get(self, request: Request, uid: str) -> Response:
        """In order, those above ``after``, at most ``limit`` (1000); ``state`` takes one state of Slurm."""
        job = job_for(actor=self.actor, may="jobs.view", uid=uid)
        after, limit = (request.query_params.get(n, d) for n, d in (("after", "-1"), ("limit", "100")))
        if not limit.isdecimal() or len(limit) > 18 or not 1 <= int(limit) <= MOST:
            raise BadQuery(f"limit: must be from 1 to {MOST}")
        if not after.removeprefix("-").isdecimal() or len(after) > 18:
            raise BadQuery("after: must be a whole number")
        state = request.query_params.get("state", "").upper()
        tasks = [t for t in tasks_of(job) if t.number > int(after) and (not state or t.state == state)]
        page, rest = tasks[: int(limit)], tasks[int(limit) :]
        link = f"{request.path}?after={page[-1].number}&limit={limit}{f'&state={state}' if state else ''}"
        body: dict[str, Any] = {"results": TaskSerializer(page, many=True).data}
        return Response({**body, "next": link if rest else None, "previous": None})
