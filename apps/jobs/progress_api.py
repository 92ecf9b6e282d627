"""API of a job's pace, and of its model's size and utilisation."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint
from apps.jobs.models import Job
from apps.jobs.progress_rules import PRECISIONS, flops_per_token
from apps.jobs.progress_selectors import job_pace, job_utilisation
from apps.jobs.progress_services import job_model_set
from apps.jobs.selectors import job_for, progress_of


class ModelSerializer(serializers.Serializer[Any]):
    """What a model is described by; ``parameters`` are the active ones, without embeddings."""

    parameters = serializers.FloatField()
    layers = serializers.FloatField(required=False)
    hidden = serializers.FloatField(required=False)
    sequence = serializers.FloatField(required=False)
    precision = serializers.ChoiceField(choices=PRECISIONS, required=False)


class SpeedSerializer(serializers.Serializer[Any]):
    """How fast a job goes; null where a figure for it is missing.

    ``mfu`` and ``of_best_measured`` are shares, 0 to 1; above 1 a figure they are made of is wrong.
    """

    model = serializers.DictField(help_text="parameters, layers, hidden, sequence, precision: what is known.")
    flops_per_token = serializers.FloatField(allow_null=True)
    step_s = serializers.FloatField(allow_null=True)
    pause_share = serializers.FloatField(allow_null=True)
    mfu = serializers.FloatField(allow_null=True)
    of_best_measured = serializers.FloatField(allow_null=True)
    peak_tflops = serializers.FloatField(allow_null=True)


class JobModel(Endpoint):
    """A job's pace, its model's size, and the utilisation they make."""

    rights = {"GET": "jobs.view", "PUT": "jobs.cancel"}
    serializer_class = SpeedSerializer

    def get_serializer_class(self) -> type[serializers.Serializer[Any]]:
        """What goes in is the model only."""
        return ModelSerializer if self.request and self.request.method == "PUT" else SpeedSerializer

    def get(self, request: Request, uid: str) -> Response:
        """As of the last report."""
        return self._answer(job_for(actor=self.actor, may="jobs.view", uid=uid))

    def put(self, request: Request, uid: str) -> Response:
        """Say how large the model is."""
        job = job_for(actor=self.actor, may="jobs.cancel", uid=uid)
        asked = ModelSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        job_model_set(actor=self.actor, job=job, told=asked.validated_data)
        return self._answer(job)

    def _answer(self, job: Job) -> Response:
        pace, use = job_pace(progress_of(job)), job_utilisation(job)
        body = {
            "model": job.model_facts,
            "flops_per_token": flops_per_token(job.model_facts),
            "step_s": pace.step_s if pace else None,
            "pause_share": pace.pause_share if pace else None,
            "mfu": use.mfu if use else None,
            "of_best_measured": use.of_best if use else None,
            "peak_tflops": use.peak_tflops if use else None,
        }
        return Response(SpeedSerializer(body).data)
