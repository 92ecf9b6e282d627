"""API of sbatch scripts: what their #SBATCH lines say, as a submit takes it."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint
from apps.jobs.rules import check_script
from apps.jobs.sbatch import SbatchReading, read_sbatch
from apps.jobs.sbatch_shape import completed


class ScriptSerializer(serializers.Serializer[Any]):
    """A script as sbatch would get it."""

    script = serializers.CharField(trim_whitespace=False, allow_blank=True)


class ReadingSerializer(serializers.Serializer[Any]):
    """What the lines say: ``members`` and ``slurm_options`` go into a submit; ``problems`` name what is refused."""

    script = serializers.CharField(help_text="As text with plain line ends.")
    members = serializers.DictField(help_text="Members of a submit.")
    slurm_options = serializers.ListField(child=serializers.CharField())
    remarks = serializers.ListField(child=serializers.CharField())
    problems = serializers.ListField(child=serializers.DictField(child=serializers.CharField()))


class SbatchImport(Endpoint):
    """Read the #SBATCH lines of a script; nothing is submitted or kept."""

    rights = {"POST": "jobs.submit"}
    serializer_class = ScriptSerializer

    @extend_schema(responses=ReadingSerializer)
    def post(self, request: Request) -> Response:
        """The reading (200), also of a script with problems."""
        body = ScriptSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        text, problems = check_script(body.validated_data["script"])
        reading = SbatchReading() if problems else read_sbatch(text)
        if not problems and not reading.problems:
            reading = completed(reading)
        answer = {
            "script": text,
            "members": reading.fields,
            "slurm_options": reading.options,
            "remarks": reading.remarks,
            "problems": [
                {"pointer": p.pointer, "code": p.code, "detail": p.detail} for p in [*problems, *reading.problems]
            ],
        }
        return Response(ReadingSerializer(answer).data)
