"""API of jobs: preview, submit, read, progress, checkpoints, ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.audit.models import Event
from apps.checkpoints.api import CheckpointSerializer
from apps.checkpoints.models import Checkpoint
from apps.clusters.selectors import cluster_for
from apps.core.api import Endpoint, ListEndpoint, etag, idempotent
from apps.core.errors import FieldProblem, InvalidInput, NotFound
from apps.core.said import told
from apps.costs.api import PostingSerializer
from apps.costs.selectors import postings_of
from apps.jobs.evidence import slow_reasons_of
from apps.jobs.filters import JobFilter
from apps.jobs.kube_api import kubernetes_members
from apps.jobs.manifests import is_manifest, shown_text
from apps.jobs.models import Attempt, Job, ProgressPoint, RunnerStream
from apps.jobs.option_forms import option_members, with_members
from apps.jobs.part_forms import part_members
from apps.jobs.progress_selectors import task_asked
from apps.jobs.selectors import (
    attempts_of,
    job_events,
    job_for,
    job_sums,
    jobs_visible_to,
    progress_of,
)
from apps.jobs.sentences import job_sentence
from apps.jobs.services import JobSpec, job_submit
from apps.jobs.start_api import ExpectedStartField
from apps.jobs.template_rules import with_defaults
from apps.jobs.template_selectors import templates_visible_to
from apps.teams.selectors import team_for


class RunnerSerializer(serializers.ModelSerializer[RunnerStream]):
    """One runner: ``batch`` wraps the script, ``rank`` one rank, ``node`` says of a further node that it lives."""

    class Meta:
        model = RunnerStream
        fields = ["runner_id", "node", "role", "rank", "heartbeat_at"]


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    """One submission of a job."""

    runners = RunnerSerializer(source="streams", many=True, read_only=True)

    class Meta:
        model = Attempt
        fields = [
            "uid",
            "number",
            "array",
            "tasks",
            "phase",
            "phase_since",
            "scheduler_id",
            "resume_from",
            "resume_step",
            "excluded_nodes",
            "avoided_nodes",
            "nodes",
            "observed_state",
            "observed_reason",
            "observed_words",
            "expected_start_at",
            "started_at",
            "ended_at",
            "exit_code",
            "signal",
            "stop_reason",
            "stop_node",
            "reason",
            "message",
            "heartbeat_at",
            "runners",
            "created_at",
        ]


class JobSerializer(serializers.ModelSerializer[Job]):
    """A job as lists show it."""

    team: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="slug", read_only=True)
    cluster: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="name", read_only=True)
    template: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="name", read_only=True)
    usd_per_gpu_hour = serializers.DecimalField(max_digits=12, decimal_places=6, read_only=True)
    usd_per_node_hour = serializers.DecimalField(max_digits=12, decimal_places=6, read_only=True)
    expected_start = ExpectedStartField()

    class Meta:
        model = Job
        fields = [
            "uid",
            "name",
            "team",
            "owner_name",
            "cluster",
            "origin",
            "slurm_user",
            "slurm_account",
            "template",
            "template_version",
            "template_parameters",
            "nodes",
            "gpus_per_node",
            "gpus",
            "gpu_type",
            "time_limit_min",
            "partition",
            "phase",
            "phase_since",
            "reason",
            "message",
            "recoveries",
            "slurm_options",
            "array",
            "tasks",
            "tasks_at_once",
            "parts",
            "image",
            "workload_kind",
            "priority_class",
            "max_recoveries",
            "retry_rules",
            "retry_defaults",
            "excluded_nodes",
            "usd_per_gpu_hour",
            "usd_per_node_hour",
            "price_source",
            "step",
            "total_steps",
            "loss",
            "tokens_per_s",
            "eta_s",
            "progress_at",
            "expected_start",
            "created_at",
            "started_at",
            "ended_at",
            "exit_code",
            "version",
        ]


class MoneySerializer(serializers.Serializer[Any]):
    """What a job moved in the ledger, in USD."""

    held = serializers.DecimalField(max_digits=20, decimal_places=6)
    charged = serializers.DecimalField(max_digits=20, decimal_places=6)
    released = serializers.DecimalField(max_digits=20, decimal_places=6)


class JobDetailSerializer(JobSerializer):
    """A job with its sentence, attempts and money."""

    sentence = serializers.SerializerMethodField()
    attempts = AttemptSerializer(many=True, read_only=True)
    usd = serializers.SerializerMethodField()
    slow = serializers.SerializerMethodField()
    script = serializers.CharField(read_only=True)
    manifest = serializers.SerializerMethodField(help_text="What its Secrets hold is hidden.")

    class Meta(JobSerializer.Meta):
        fields = [*JobSerializer.Meta.fields, "sentence", "slow", "attempts", "usd", "script", "manifest"]

    def get_sentence(self, job: Job) -> str:
        """What is going on."""
        return job_sentence(job)

    def get_manifest(self, job: Job) -> str:
        """What a person brought, "" where the portal wrote the job."""
        return shown_text(job.manifest)

    def get_slow(self, job: Job) -> list[dict[str, str]]:
        """Why a running job may be slow: code and sentence of each reason; empty when there is nothing to say."""
        return [{"code": reason.code, "text": reason.text} for reason in slow_reasons_of(job)]

    def get_usd(self, job: Job) -> dict[str, Any]:
        """Held, charged, released."""
        sums = job_sums(job)
        return dict(MoneySerializer({"held": sums.held, "charged": sums.charged, "released": sums.released}).data)


class JobSubmitSerializer(serializers.Serializer[Any]):
    """What to run. With a template, what it has a default for may be left out."""

    #: Needed where no template says them.
    NEEDED: tuple[str, ...] = ("cluster", "name", "nodes", "gpus_per_node", "time_limit_min")

    team = serializers.CharField(help_text="Slug.")
    cluster = serializers.CharField(required=False, help_text="uid or name.")
    name = serializers.CharField(required=False, max_length=120, help_text="A template's name where it is left out.")
    nodes = serializers.IntegerField(required=False)
    gpus_per_node = serializers.IntegerField(required=False)
    time_limit_min = serializers.IntegerField(required=False)
    script = serializers.CharField(required=False, default="", allow_blank=True, trim_whitespace=False)
    template = serializers.CharField(required=False, help_text="Name of a template, instead of a script.")
    template_parameters = serializers.DictField(required=False, default=dict)
    gpu_type = serializers.CharField(max_length=40, required=False, default="", allow_blank=True)
    tasks_per_node = serializers.IntegerField(default=1)
    cpus_per_task = serializers.IntegerField(default=1)
    memory_per_node_mib = serializers.IntegerField(default=0)
    partition = serializers.CharField(max_length=60, required=False, default="", allow_blank=True)
    environment = serializers.DictField(child=serializers.CharField(allow_blank=True), required=False, default=dict)
    slurm_options = serializers.ListField(
        child=serializers.CharField(max_length=2000),
        required=False,
        default=list,
        max_length=100,
        help_text="Further options as sbatch takes them, such as --switches=1; #SBATCH lines are read by import.",
    )
    array = serializers.CharField(
        max_length=4000,
        required=False,
        default="",
        allow_blank=True,
        help_text="Tasks of a job array as Slurm writes them, such as 0-9 or 0-99%10.",
    )
    dependency = serializers.CharField(
        max_length=2000,
        required=False,
        default="",
        allow_blank=True,
        help_text="Conditions joined by commas: afterok:JOB with a uid, a name or a Slurm id; after, afterany, "
        "afternotok; singleton.",
    )
    max_recoveries = serializers.IntegerField(default=3)
    retry_rules = serializers.ListField(
        child=serializers.CharField(max_length=300),
        required=False,
        default=list,
        max_length=20,
        help_text="When it fails: retry or stop, then exit, signal or log: retry exit 75,137; stop log *assert*. The "
        "first that matches decides.",
    )
    trim = serializers.BooleanField(
        default=False, help_text="Cut a time limit that outlives the block of the nodes to the longest that fits."
    )

    def get_fields(self) -> dict[str, Any]:
        """With the members that are another way to write an option, and those for Kubernetes."""
        return {**super().get_fields(), **option_members(), **part_members(), **kubernetes_members()}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Remember what was said, so that a template's defaults fill the rest."""
        given = set(self.initial_data) if isinstance(self.initial_data, Mapping) else set()
        return {**attrs, "given": given}


class ProgressSerializer(serializers.ModelSerializer[ProgressPoint]):
    """One reported step."""

    attempt = serializers.IntegerField(source="attempt.number", read_only=True)

    class Meta:
        model = ProgressPoint
        fields = ["attempt", "step", "total_steps", "loss", "tokens_per_s", "learning_rate", "eta_s", "at"]


class EventSerializer(serializers.ModelSerializer[Event]):
    """One thing that happened."""

    class Meta:
        model = Event
        fields = ["at", "kind", "text", "data", "request_id"]

    def to_representation(self, instance: Event) -> dict[str, Any]:
        """Every sentence in the request's language."""
        return dict(told(super().to_representation(instance)))


def read_spec(
    actor: Any, body: dict[str, Any], needed: Sequence[str] = JobSubmitSerializer.NEEDED
) -> tuple[Any, Any, JobSpec]:
    """(team, cluster, spec) of a submit body. Raises NotFound for a team, cluster or template one may not use.

    The cluster is None where none is ``needed`` and none was named.
    """
    given = body.pop("given", set(body))
    team = team_for(actor=actor, may="jobs.submit", slug=body.pop("team"))
    template = None
    if name := body.pop("template", ""):
        template = templates_visible_to(actor).filter(name=name).first()
        if template is None:
            raise NotFound(f"no template {name}")
        said = {key: value for key, value in body.items() if key in given}
        body = {**body, **with_defaults(said, template.defaults, name=template.name)}
    if body.get("manifest") or is_manifest(template):
        # Its size is counted from it.
        body = {"nodes": 1, "gpus_per_node": 0, "time_limit_min": 0, **body}
    missing = [key for key in needed if key not in body]
    if missing:
        raise InvalidInput(
            f"needed: {', '.join(missing)}",
            problems=[FieldProblem(f"/{key}", "required", "This field is required.") for key in missing],
        )
    named = body.pop("cluster", "")
    cluster = cluster_for(actor=actor, may="clusters.view", uid=named) if named or "cluster" in needed else None
    return team, cluster, JobSpec(template=template, **with_members(body))


class Jobs(ListEndpoint):
    """Jobs."""

    rights = {"GET": "jobs.view", "POST": "jobs.submit"}
    serializer_class = JobSerializer
    filterset_class = JobFilter
    sorts = {"-created_at": "-created_at", "created_at": "created_at", "name": "name"}

    def get_rows(self) -> Any:
        """Visible jobs."""
        return jobs_visible_to(self.actor)

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return JobSubmitSerializer if self.request.method == "POST" else JobSerializer

    def post(self, request: Request) -> Response:
        """Submit a job (202). It holds money: Idempotency-Key required."""
        team, cluster, spec = read_spec(self.actor, self.read_body(JobSubmitSerializer))

        def effect() -> tuple[int, dict[str, Any], str]:
            job = job_submit(actor=self.actor, team=team, cluster=cluster, spec=spec)
            return 202, dict(JobDetailSerializer(job).data), f"/api/v1/jobs/{job.uid}"

        return idempotent(request, effect, required=True)


class JobDetail(Endpoint):
    """One job."""

    rights = {"GET": "jobs.view"}
    serializer_class = JobDetailSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        job = job_for(actor=self.actor, may="jobs.view", uid=uid)
        return Response(JobDetailSerializer(job).data, headers={"ETag": etag(job)})


class OfJob(Endpoint):
    """Something that belongs to one job."""

    rights = {"GET": "jobs.view"}

    def job(self, uid: str) -> Job:
        """The job, with the right to see it."""
        return job_for(actor=self.actor, may="jobs.view", uid=uid)


class JobProgress(OfJob):
    """A job's reported steps, attempts joined, thinned to at most 600 points."""

    serializer_class = ProgressSerializer
    query_parameters = frozenset({"task"})

    def get(self, request: Request, uid: str) -> Response:
        """Oldest first; of an array those of the ``task`` named, else of the first that reported."""
        job = self.job(uid)
        points = progress_of(job, task=task_asked(job, request.query_params.get("task", "")))
        return Response({"results": ProgressSerializer(points, many=True).data, "next": None, "previous": None})


class JobAttempts(OfJob):
    """A job's attempts."""

    serializer_class = AttemptSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Oldest first."""
        rows = attempts_of(self.job(uid))
        return Response({"results": AttemptSerializer(rows, many=True).data, "next": None, "previous": None})


class JobCheckpoints(OfJob):
    """A job's checkpoints."""

    serializer_class = CheckpointSerializer

    def get(self, request: Request, uid: str) -> Response:
        """By step, newest first, at most 200."""
        job = self.job(uid)
        rows = Checkpoint.objects.filter(series=job.series).select_related("series__team").order_by("-step", "-id")
        return Response({"results": CheckpointSerializer(rows[:200], many=True).data, "next": None, "previous": None})


class JobEvents(OfJob):
    """A job's timeline."""

    serializer_class = EventSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Oldest first."""
        rows = job_events(self.job(uid))
        return Response({"results": EventSerializer(rows, many=True).data, "next": None, "previous": None})


class JobLedger(OfJob):
    """A job's postings."""

    serializer_class = PostingSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Oldest first."""
        rows = postings_of(self.job(uid).uid).select_related("source__team", "target__team")
        return Response({"results": PostingSerializer(rows, many=True).data, "next": None, "previous": None})
