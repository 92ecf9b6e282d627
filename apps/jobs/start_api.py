"""API of expected starts: a member of jobs, and "what if" for one that waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint
from apps.core.errors import BadQuery
from apps.jobs.models import Job
from apps.jobs.selectors import current_attempt, job_for
from apps.jobs.start_models import StartPrediction
from apps.jobs.start_rules import Accuracy
from apps.jobs.start_selectors import accuracy_of, asked_of, prediction_of, predictions_for, what_if
from apps.jobs.start_words import needs_words, what_if_words


class ExpectedStartSerializer(serializers.Serializer[Any]):
    """When a waiting job is expected to start: one time in two before ``p50_at``, nine in ten before ``p90_at``.

    ``starts`` attempts of the cluster have started in the last 90 days, ``inside`` of them within the range first told.
    """

    low_at = serializers.DateTimeField(allow_null=True)
    p50_at = serializers.DateTimeField(allow_null=True)
    p90_at = serializers.DateTimeField(allow_null=True)
    made_at = serializers.DateTimeField()
    waits_for = serializers.ListField(child=serializers.CharField())
    starts = serializers.IntegerField()
    inside = serializers.IntegerField()


@extend_schema_field(ExpectedStartSerializer(allow_null=True))
class ExpectedStartField(serializers.Field[Any, Any, Any, Any]):
    """A job's expected start; null for one that does not wait. A list costs one query, and one a cluster in it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(source="*", read_only=True, **kwargs)

    def to_representation(self, value: Job) -> dict[str, Any] | None:
        """The newest expectation with how good such ones were."""
        known: dict[int, StartPrediction] | None = getattr(self.root, "_expected", None)
        if known is None:
            rows = self.root.instance
            known = predictions_for([rows] if isinstance(rows, Job) else list(rows or []))
            self.root._expected = known  # type: ignore[attr-defined]
            self.root._accuracies = {}  # type: ignore[attr-defined]
        found = known.get(value.pk)
        if found is None:
            return None
        accuracies: dict[int, Accuracy] = self.root._accuracies  # type: ignore[attr-defined]
        if found.cluster_id not in accuracies:
            accuracies[found.cluster_id] = accuracy_of(found.cluster_id)
        accuracy = accuracies[found.cluster_id]
        body = {
            "low_at": found.low_at,
            "p50_at": found.p50_at,
            "p90_at": found.p90_at,
            "made_at": found.made_at,
            "waits_for": needs_words(found.why, found.made_at),
            "starts": accuracy.starts,
            "inside": accuracy.inside,
        }
        return dict(ExpectedStartSerializer(body).data)


class WhatIfSerializer(serializers.Serializer[Any]):
    """When a waiting job would start if it asked for something else."""

    low_at = serializers.DateTimeField(allow_null=True)
    p50_at = serializers.DateTimeField(allow_null=True)
    p90_at = serializers.DateTimeField(allow_null=True)
    made_at = serializers.DateTimeField()
    sentence = serializers.CharField()


class JobWhatIf(Endpoint):
    """What a change of nodes, time limit or partition would do to a waiting job's start; nothing is changed."""

    rights = {"GET": "jobs.view"}
    serializer_class = WhatIfSerializer
    query_parameters = frozenset({"nodes", "time_limit_min", "partition"})

    @extend_schema(
        parameters=[
            OpenApiParameter("nodes", int),
            OpenApiParameter("time_limit_min", int),
            OpenApiParameter("partition", str),
        ]
    )
    def get(self, request: Request, uid: str) -> Response:
        """The answer from what is stored; a member that is left out stays as it is."""
        job = job_for(actor=self.actor, may="jobs.view", uid=uid)
        attempt = current_attempt(job)
        if attempt is None or prediction_of(attempt) is None:
            nothing = {"low_at": None, "p50_at": None, "p90_at": None, "made_at": timezone.now()}
            return Response(WhatIfSerializer({**nothing, "sentence": _("It does not wait any more.")}).data)
        asked = asked_of(job, attempt)
        partition = request.query_params.get("partition", asked.partition)
        names = [str(one.get("name")) for one in job.cluster.observed_partitions]
        if partition not in ("", asked.partition, *names):
            raise BadQuery(f"partition: one of {', '.join(names)}")
        asked = replace(
            asked,
            nodes=_whole(request, "nodes", asked.nodes, 10_000),
            limit_min=_whole(request, "time_limit_min", asked.limit_min, 366 * 1440),
            partition=partition,
        )
        answer = what_if(job.cluster, asked, key=attempt.scheduler_id)
        body = {
            "low_at": answer.low_at,
            "p50_at": answer.p50_at,
            "p90_at": answer.p90_at,
            "made_at": timezone.now(),
            "sentence": what_if_words(answer, partition),
        }
        return Response(WhatIfSerializer(body).data)


def _whole(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= most:
        raise BadQuery(f"{name}: a whole number from 1 to {most}")
    return int(text)
