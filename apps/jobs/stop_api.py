"""API of stopping jobs: one, or many at once by name or by filter, with a dry run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import QueryDict
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint, filtered, idempotent
from apps.core.errors import InvalidInput, field_refusal
from apps.jobs.api import JobDetailSerializer
from apps.jobs.filters import JobFilter
from apps.jobs.models import Job
from apps.jobs.selectors import (
    MAX_BULK,
    STOP_KINDS,
    StopLine,
    job_for,
    jobs_picked,
    jobs_visible_to,
    jobs_worth_stopping,
    stop_lines,
)
from apps.jobs.services import job_stop, jobs_stop


class EmptySerializer(serializers.Serializer[Any]):
    """Nothing to say."""


class JobStop(Endpoint):
    """Cancel or requeue."""

    rights = {"POST": "jobs.cancel"}
    serializer_class = EmptySerializer
    kind = ""

    def post(self, request: Request, uid: str) -> Response:
        """Ask for it (202)."""
        job = job_for(actor=self.actor, may="jobs.cancel", uid=uid)

        def effect() -> tuple[int, dict[str, Any], str]:
            job_stop(actor=self.actor, job=job, kind=self.kind)
            job.refresh_from_db()
            return 202, dict(JobDetailSerializer(job).data), f"/api/v1/jobs/{job.uid}"

        return idempotent(request, effect)


class JobsStopSerializer(serializers.Serializer[Any]):
    """Which jobs to stop and how: either ``uids`` or ``filter``."""

    kind = serializers.ChoiceField(choices=STOP_KINDS)
    uids = serializers.ListField(child=serializers.CharField(max_length=40), required=False, max_length=MAX_BULK)
    filter = serializers.DictField(
        child=serializers.CharField(),
        required=False,
        help_text='The filters of the list of jobs, such as {"phase": "QUEUED"}; ended jobs are left out.',
    )
    dry_run = serializers.BooleanField(default=False, help_text="Say what would happen and do nothing.")


class StopLineSerializer(serializers.Serializer[StopLine]):
    """What happens to one job; ``problem`` says why it is left alone, empty when it is stopped."""

    uid = serializers.CharField(source="job.uid")
    name = serializers.CharField(source="job.name")
    is_stopped = serializers.SerializerMethodField()
    outcome = serializers.CharField()
    problem = serializers.CharField()

    def get_is_stopped(self, line: StopLine) -> bool:
        """Whether the stop was asked for (or would be)."""
        return not line.problem


class StopAnswerSerializer(serializers.Serializer[Any]):
    """The result of each job, in order."""

    dry_run = serializers.BooleanField()
    results = StopLineSerializer(many=True)


def jobs_named(actor: Any, body: Mapping[str, Any], request: Request) -> list[Job]:
    """The jobs that a body names by ``uids`` or by ``filter``. Raises InvalidInput, BadQuery."""
    if ("uids" in body) == ("filter" in body):
        raise InvalidInput("give either uids or filter")
    if "uids" in body:
        return jobs_picked(actor, body["uids"])
    unknown = sorted(set(body["filter"]) - set(JobFilter.base_filters))
    if unknown or not body["filter"]:
        known = ", ".join(sorted(JobFilter.base_filters))
        raise field_refusal("/filter", f"name at least one of {known}; {', '.join(unknown) or 'none'} given")
    query = QueryDict(mutable=True)
    query.update(body["filter"])
    matching, _values = filtered(JobFilter, query, jobs_visible_to(actor), request=request)
    return jobs_worth_stopping(matching)


class JobsStop(Endpoint):
    """Cancel or requeue up to 500 jobs at once."""

    rights = {"POST": "jobs.cancel"}
    serializer_class = JobsStopSerializer

    def post(self, request: Request) -> Response:
        """One by one; a job that cannot be stopped does not keep the others."""
        body = self.read_body(JobsStopSerializer)
        jobs = jobs_named(self.actor, body, request)
        kind, dry_run = body["kind"], body["dry_run"]

        def effect() -> tuple[int, dict[str, Any], str]:
            lines = stop_lines(self.actor, jobs, kind) if dry_run else jobs_stop(actor=self.actor, jobs=jobs, kind=kind)
            return 200, dict(StopAnswerSerializer({"dry_run": dry_run, "results": lines}).data), ""

        return idempotent(request, effect)
