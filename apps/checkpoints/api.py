"""API of checkpoints."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.checkpoints.models import Checkpoint
from apps.checkpoints.selectors import checkpoint_for, checkpoint_sentence, checkpoints_visible_to
from apps.checkpoints.states import CheckpointState
from apps.core.api import Endpoint, ListEndpoint
from apps.core.filters import ChoicesFilter, KnownFilter, TextFilter
from apps.teams.models import Team
from apps.teams.selectors import teams_visible_to


class CheckpointSerializer(serializers.ModelSerializer[Checkpoint]):
    """A checkpoint."""

    job = serializers.CharField(source="series.job_uid", read_only=True)
    team = serializers.CharField(source="series.team.slug", read_only=True)
    sentence = serializers.SerializerMethodField()

    class Meta:
        model = Checkpoint
        fields = [
            "uid",
            "job",
            "team",
            "attempt_uid",
            "path",
            "step",
            "layout",
            "state",
            "reason",
            "sentence",
            "total_bytes",
            "file_count",
            "first_seen_at",
            "changed_at",
            "completed_at",
            "created_at",
        ]

    def get_sentence(self, checkpoint: Checkpoint) -> str:
        """Whether to trust it."""
        return checkpoint_sentence(checkpoint)


def known_teams(actor: Any) -> QuerySet[Team]:
    """Teams whose checkpoints an actor may look for."""
    return teams_visible_to(actor, "checkpoints.view")


class CheckpointFilter(FilterSet):  # type: ignore[misc]
    """By state, team, job, path."""

    state = ChoicesFilter("state", values=CheckpointState.choices)
    team = KnownFilter("series__team__slug", known=known_teams, column="slug")
    job = TextFilter("series__job_uid")
    q = TextFilter("path", "series__name")

    class Meta:
        model = Checkpoint
        fields: list[str] = []


class Checkpoints(ListEndpoint):
    """Checkpoints, newest first."""

    rights = {"GET": "checkpoints.view"}
    serializer_class = CheckpointSerializer
    filterset_class = CheckpointFilter

    def get_rows(self) -> Any:
        """Visible checkpoints."""
        return checkpoints_visible_to(self.actor)


class CheckpointDetail(Endpoint):
    """One checkpoint."""

    rights = {"GET": "checkpoints.view"}
    serializer_class = CheckpointSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        return Response(CheckpointSerializer(checkpoint_for(actor=self.actor, may="checkpoints.view", uid=uid)).data)
