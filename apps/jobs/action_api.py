"""API of job actions: one job's, or one verb for many jobs with a dry run."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint, idempotent
from apps.core.said import told
from apps.jobs.action_models import JobAction
from apps.jobs.action_rules import wish_of
from apps.jobs.action_selectors import ActionLine, action_lines, actions_of
from apps.jobs.action_services import job_act, jobs_act
from apps.jobs.action_states import SIGNALS, ActionKind
from apps.jobs.selectors import MAX_BULK, job_for
from apps.jobs.stop_api import jobs_named


class ActionSerializer(serializers.ModelSerializer[JobAction]):
    """A wish and what became of it."""

    attempt: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="number", read_only=True)
    usd = serializers.DecimalField(max_digits=20, decimal_places=6, read_only=True)
    gpu_hours = serializers.DecimalField(max_digits=20, decimal_places=6, read_only=True)

    class Meta:
        model = JobAction
        fields = [
            "uid",
            "kind",
            "parameters",
            "attempt",
            "asked_by",
            "asked_at",
            "phase",
            "answer",
            "sent_at",
            "settled_at",
            "usd",
            "gpu_hours",
        ]

    def to_representation(self, instance: JobAction) -> dict[str, Any]:
        """Every sentence in the request's language."""
        return dict(told(super().to_representation(instance)))


class WishSerializer(serializers.Serializer[Any]):
    """What to do; each kind takes the member of its name and no other."""

    kind = serializers.ChoiceField(choices=ActionKind.choices)
    signal = serializers.ChoiceField(choices=[(s, s) for s in SIGNALS], required=False, help_text="With SIGNAL.")
    nice = serializers.IntegerField(
        required=False, help_text="With PRIORITY: the higher, the later; below zero only for operators."
    )
    partition = serializers.CharField(max_length=60, required=False, help_text="With PARTITION.")
    task = serializers.IntegerField(
        required=False, help_text="With CANCEL_TASK and REQUEUE_TASK: its number in the array."
    )
    time_limit_min = serializers.IntegerField(
        required=False, help_text="With TIME_LIMIT: the whole limit from the start; what it costs more is held first."
    )


class JobActions(Endpoint):
    """What was asked of one job in the scheduler."""

    rights = {"GET": "jobs.view", "POST": "jobs.cancel"}
    serializer_class = ActionSerializer

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a GET shows."""
        return WishSerializer if self.request.method == "POST" else ActionSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Newest first, at most 100."""
        job = job_for(actor=self.actor, may="jobs.view", uid=uid)
        rows = ActionSerializer(actions_of(job), many=True).data
        return Response({"results": rows, "next": None, "previous": None})

    def post(self, request: Request, uid: str) -> Response:
        """Ask for one (202); a longer time limit or a dearer partition holds the difference: Idempotency-Key."""
        job = job_for(actor=self.actor, may="jobs.cancel", uid=uid)
        body = self.read_body(WishSerializer)
        wish = wish_of(body["kind"], body)

        def effect() -> tuple[int, dict[str, Any], str]:
            action = job_act(actor=self.actor, job=job, wish=wish)
            return 202, dict(ActionSerializer(action).data), f"/api/v1/jobs/{job.uid}/actions"

        return idempotent(request, effect, required=True)


class JobsActSerializer(WishSerializer):
    """One verb for several jobs: either ``uids`` or ``filter``."""

    uids = serializers.ListField(child=serializers.CharField(max_length=40), required=False, max_length=MAX_BULK)
    filter = serializers.DictField(
        child=serializers.CharField(),
        required=False,
        help_text='The filters of the list of jobs, such as {"phase": "QUEUED"}; ended jobs are left out.',
    )
    dry_run = serializers.BooleanField(default=False, help_text="Say what would happen and do nothing.")


class ActionLineSerializer(serializers.Serializer[ActionLine]):
    """What happens to one job; ``problem`` says why it is left alone, empty when it is asked."""

    uid = serializers.CharField(source="job.uid")
    name = serializers.CharField(source="job.name")
    is_asked = serializers.SerializerMethodField()
    outcome = serializers.CharField()
    problem = serializers.CharField()
    usd = serializers.DecimalField(max_digits=20, decimal_places=6)

    def get_is_asked(self, line: ActionLine) -> bool:
        """Whether it was asked for (or would be)."""
        return not line.problem


class ActionAnswerSerializer(serializers.Serializer[Any]):
    """The result of each job, in order."""

    dry_run = serializers.BooleanField()
    results = ActionLineSerializer(many=True)


class JobsAct(Endpoint):
    """Hold, release, signal or change up to 500 jobs at once."""

    rights = {"POST": "jobs.cancel"}
    serializer_class = JobsActSerializer

    def post(self, request: Request) -> Response:
        """One by one; a job that cannot be asked does not keep the others."""
        body = self.read_body(JobsActSerializer)
        wish = wish_of(body["kind"], body)
        jobs = jobs_named(self.actor, body, request)

        def effect() -> tuple[int, dict[str, Any], str]:
            if body["dry_run"]:
                lines = action_lines(self.actor, jobs, wish)
            else:
                lines = jobs_act(actor=self.actor, jobs=jobs, wish=wish)
            return 200, dict(ActionAnswerSerializer({"dry_run": body["dry_run"], "results": lines}).data), ""

        return idempotent(request, effect)
