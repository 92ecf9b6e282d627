"""JobTemplate, Job, Attempt, RunnerStream, LogChunk, ProgressPoint."""

from __future__ import annotations

from decimal import Decimal

from django.db import models
from django.db.models import Q

from apps.checkpoints.models import CheckpointSeries
from apps.clusters.kube_states import WorkloadKind
from apps.clusters.models import Cluster
from apps.core import clock
from apps.core.models import Reconciled, Recorded
from apps.core.said import SaidField
from apps.jobs.log_models import LogSegment
from apps.jobs.part_rules import further_parts
from apps.jobs.queue_models import QueueEntry as QueueEntry
from apps.jobs.start_models import StartHistory as StartHistory
from apps.jobs.start_models import StartPrediction as StartPrediction
from apps.jobs.states import AttemptPhase, JobOrigin, JobPhase
from apps.teams.models import Team, User


class JobTemplate(Recorded):
    """A script with typed parameters, ``{{ name }}`` where each goes; its content is that of its newest version.

    ``parameters`` is a list of {name, label, type: text|integer|number|choice|switch|path, default, minimum, maximum,
    choices, on, off, help, required, locked}; a locked one always has its default. ``defaults`` are values of a job's
    fields by the names of template_rules.LABELS, those in ``locked`` cannot be others. ``teams`` may use it; none
    named: all. ``number`` is that of the newest JobTemplateVersion. One that is not enabled is retired: kept for its
    jobs, offered to nobody.
    """

    uid_prefix = "tpl"

    name = models.SlugField(max_length=60, unique=True)
    title = models.CharField(max_length=80)
    description = models.CharField(max_length=300, blank=True, default="")
    script = models.TextField()
    parameters = models.JSONField(default=list, blank=True)
    defaults = models.JSONField(default=dict, blank=True)
    locked = models.JSONField(default=list, blank=True)
    number = models.PositiveIntegerField(default=0)
    is_enabled = models.BooleanField(default=True)
    teams = models.ManyToManyField(Team, blank=True, related_name="job_templates")

    class Meta:
        ordering = ["title"]

    def __str__(self) -> str:
        """The title."""
        return self.title


class Job(Reconciled):
    """What someone wants run; each try at it is an Attempt.

    One of ``origin`` "outside" was submitted past the portal: its script is unknown, it is never started again here.
    ``stop_requested_at`` with ``stop_kind`` ("cancel" or "requeue") is a person's wish, sent as Slurm's user
    ``stop_as`` ("": the cluster's own). All attempts are submitted as ``slurm_user`` with ``slurm_account``.
    The price is a snapshot from the moment of submit; ``usd_per_node_hour`` is what a job without GPUs pays for its
    share of each node. ``excluded_nodes`` grows with node failures. ``slurm_options`` are handed to Slurm as they are,
    each ``--name=value``. ``retry_rules`` are lines of retry_rules.parse_rules;
    ``retry_defaults`` those of its template and team at the submit, {rule, source, name} each. ``template_version`` is
    the number of the version it was made from, 0 where none is known. ``array`` ("0-9%2", "" for none) has ``tasks``
    of this size, of which ``tasks_at_once`` can run at the same time. ``parts`` are the further parts of a
    heterogeneous job (rows of part_rules.Part), whose first part its own columns are. On Kubernetes a job has an
    ``image`` and is written as ``workload_kind`` ("": the cluster's choice); ``manifest`` is the YAML of a person who
    brought objects of their own, which then stands for script and image. ``priority_class`` is Kueue's.
    """

    uid_prefix = "job"

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="jobs")
    owner = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="jobs")
    owner_name = models.CharField(max_length=150)
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="jobs")
    template = models.ForeignKey(JobTemplate, null=True, blank=True, on_delete=models.SET_NULL, related_name="jobs")
    template_parameters = models.JSONField(default=dict)
    template_version = models.PositiveIntegerField(default=0)
    origin = models.CharField(max_length=8, choices=JobOrigin.choices, default=JobOrigin.PORTAL)
    name = models.CharField(max_length=120)
    script = models.TextField()
    nodes = models.PositiveIntegerField()
    gpus_per_node = models.PositiveSmallIntegerField()
    gpu_type = models.CharField(max_length=40, blank=True, default="")
    tasks_per_node = models.PositiveSmallIntegerField(default=1)
    cpus_per_task = models.PositiveSmallIntegerField(default=1)
    memory_per_node_mib = models.PositiveIntegerField(default=0)
    time_limit_min = models.PositiveIntegerField()
    partition = models.CharField(max_length=60, blank=True, default="")
    environment = models.JSONField(default=dict)
    slurm_options = models.JSONField(default=list)
    array = models.TextField(blank=True, default="")
    tasks = models.PositiveIntegerField(default=1)
    tasks_at_once = models.PositiveIntegerField(default=1)
    parts = models.JSONField(default=list)
    image = models.CharField(max_length=500, blank=True, default="")
    workload_kind = models.CharField(max_length=12, choices=WorkloadKind.choices, blank=True, default="")
    manifest = models.TextField(blank=True, default="")
    priority_class = models.CharField(max_length=63, blank=True, default="")
    max_recoveries = models.PositiveSmallIntegerField(default=3)
    retry_rules = models.JSONField(default=list)
    retry_defaults = models.JSONField(default=list)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    stop_kind = models.CharField(max_length=8, blank=True, default="")
    stop_by = models.CharField(max_length=150, blank=True, default="")
    stop_as = models.CharField(max_length=60, blank=True, default="")
    slurm_user = models.CharField(max_length=60, blank=True, default="")
    slurm_account = models.CharField(max_length=60, blank=True, default="")
    usd_per_gpu_hour = models.DecimalField(max_digits=12, decimal_places=6)
    usd_per_node_hour = models.DecimalField(max_digits=12, decimal_places=6, default=Decimal(0))
    price_source = SaidField()
    series = models.OneToOneField(CheckpointSeries, on_delete=models.PROTECT, related_name="job")

    phase = models.CharField(max_length=16, choices=JobPhase.choices, default=JobPhase.PENDING)
    reason = models.CharField(max_length=60, blank=True, default="")
    excluded_nodes = models.JSONField(default=list)
    recoveries = models.PositiveSmallIntegerField(default=0)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    step = models.BigIntegerField(null=True, blank=True)
    total_steps = models.BigIntegerField(null=True, blank=True)
    loss = models.FloatField(null=True, blank=True)
    tokens_per_s = models.FloatField(null=True, blank=True)
    eta_s = models.FloatField(null=True, blank=True)
    percent = models.PositiveSmallIntegerField(null=True, blank=True)
    model_facts = models.JSONField(default=dict, blank=True)
    progress_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(condition=Q(phase__in=[c.value for c in JobPhase]), name="jobs_job_known_phase"),
            models.CheckConstraint(condition=Q(origin__in=[c.value for c in JobOrigin]), name="jobs_job_known_origin"),
            models.CheckConstraint(condition=Q(nodes__gte=1, time_limit_min__gte=1), name="jobs_job_has_size"),
        ]
        indexes = [
            models.Index(fields=["team", "-created_at"], name="jobs_by_team"),
            models.Index(fields=["phase", "-created_at"], name="jobs_by_phase"),
        ]

    def __str__(self) -> str:
        """The name."""
        return self.name

    @property
    def gpus(self) -> int:
        """GPUs that it can have at the same time."""
        return self.gpus_per_task * self.tasks_at_once

    @property
    def gpus_per_task(self) -> int:
        """GPUs of the job with all its parts, or of each task of an array."""
        return self.nodes * self.gpus_per_node + sum(part.gpus for part in further_parts(self.parts))

    @property
    def nodes_in_all(self) -> int:
        """Nodes of the job with all its parts, or of each task of an array."""
        return self.nodes + sum(part.nodes for part in further_parts(self.parts))

    @property
    def has_ended(self) -> bool:
        """Nothing more will happen to it."""
        return self.phase in {JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.TIMED_OUT, JobPhase.CANCELLED}


class Attempt(models.Model):
    """One submission of a job to its scheduler; its uid is the scheduler's ``comment``.

    ``observed_*`` columns are what the collector last read; the reconciler alone moves ``phase``. ``observed_words``
    is the scheduler's reason as a sentence, where it gives more than a code.
    ``slurm_user`` and ``slurm_account`` are what it was submitted with. ``array`` are the tasks of a job array that it
    runs, ``tasks`` how many. ``avoided_nodes`` are those it was submitted without because their block ends before it
    would. ``stop_reason`` (NodeFailure, Requeued, BlockEnds, Preempted, Cancelled, TimeLimit) with ``stop_node`` and
    ``stop_decided_at`` says why we ended it ourselves. ``charged_until_at`` is how far the ledger has been charged.
    """

    uid = models.CharField(max_length=40, unique=True, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    created_at = models.DateTimeField(default=clock.now)
    array = models.TextField(blank=True, default="")
    tasks = models.PositiveIntegerField(default=1)
    slurm_user = models.CharField(max_length=60, blank=True, default="")
    slurm_account = models.CharField(max_length=60, blank=True, default="")
    resume_from = models.CharField(max_length=700, blank=True, default="")
    resume_step = models.BigIntegerField(null=True, blank=True)
    excluded_nodes = models.JSONField(default=list)
    avoided_nodes = models.JSONField(default=list)

    phase = models.CharField(max_length=12, choices=AttemptPhase.choices, default=AttemptPhase.PENDING)
    phase_since = models.DateTimeField(default=clock.now)
    submit_started_at = models.DateTimeField(null=True, blank=True)
    scheduler_id = models.CharField(max_length=340, blank=True, default="", db_index=True)
    stop_reason = models.CharField(max_length=20, blank=True, default="")
    stop_node = models.CharField(max_length=120, blank=True, default="")
    stop_decided_at = models.DateTimeField(null=True, blank=True)
    stop_sent_at = models.DateTimeField(null=True, blank=True)
    observed_state = models.CharField(max_length=40, blank=True, default="")
    observed_reason = models.CharField(max_length=80, blank=True, default="")
    observed_words = SaidField(blank=True, default="")
    observed_limit_min = models.PositiveIntegerField(null=True, blank=True)
    observed_at = models.DateTimeField(null=True, blank=True)
    expected_start_at = models.DateTimeField(null=True, blank=True)
    nodes = models.JSONField(default=list)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    signal = models.IntegerField(null=True, blank=True)
    reason = models.CharField(max_length=60, blank=True, default="")
    message = SaidField(blank=True, default="")
    charged_until_at = models.DateTimeField(null=True, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    runner_exit_code = models.IntegerField(null=True, blank=True)
    runner_exit_signal = models.IntegerField(null=True, blank=True)
    ingest_closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["number"]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="jobs_one_attempt_per_number"),
            models.CheckConstraint(
                condition=Q(phase__in=[c.value for c in AttemptPhase]), name="jobs_attempt_known_phase"
            ),
        ]
        indexes = [models.Index(fields=["phase"], name="jobs_attempt_by_phase")]

    def __str__(self) -> str:
        """Job and number."""
        return f"{self.job_id}/{self.number}"


class RunnerStream(models.Model):
    """One runner process and how far its events have arrived.

    ``rank`` is set where a runner stands for one rank of a distributed job; ``log_bytes`` is all output it reported.
    The role "pod" is a container whose output is read from its cluster: ``cursor`` is the timestamp of the last line
    and, behind "#", how many lines of that instant were taken; ``exit_code`` is set once all of it was read.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="streams")
    runner_id = models.CharField(max_length=64)
    role = models.CharField(max_length=8, default="batch")
    node = models.CharField(max_length=120, blank=True, default="")
    task = models.PositiveIntegerField(null=True, blank=True)
    rank = models.PositiveIntegerField(null=True, blank=True)
    log_bytes = models.PositiveBigIntegerField(default=0)
    acknowledged_seq = models.PositiveBigIntegerField(default=0)
    skew_s = models.FloatField(default=0)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    lost_events = models.PositiveIntegerField(default=0)
    cursor = models.CharField(max_length=60, blank=True, default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "runner_id"], name="jobs_one_stream_per_runner")]

    def __str__(self) -> str:
        """Role and node."""
        return f"{self.role} {self.node}"


class JobHappening(models.Model):
    """Something that the cluster said about an attempt, once: an event of its pods, its workload or their nodes.

    ``key`` is the cluster's own id of the event with its count, so that none is told twice. ``is_bad``: it hinders.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="happenings")
    key = models.CharField(max_length=200)
    code = models.CharField(max_length=60)
    text = SaidField()
    is_bad = models.BooleanField(default=False)
    at = models.DateTimeField()

    class Meta:
        ordering = ["at", "id"]
        constraints = [models.UniqueConstraint(fields=["attempt", "key"], name="jobs_one_happening_per_key")]

    def __str__(self) -> str:
        """What happened."""
        return str(self.text)


class LogChunk(models.Model):
    """A piece of a job's output as the runner sent it, by byte offset; text only, never interpreted.

    ``level`` is the worst line in it (see apps/jobs/log_levels.py). ``segment`` names the object in the store that
    holds it too, or is about to.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="log_chunks")
    runner_id = models.CharField(max_length=64)
    stream = models.CharField(max_length=6)
    offset = models.BigIntegerField()
    size = models.PositiveIntegerField()
    text = models.TextField()
    at = models.DateTimeField()
    level = models.PositiveSmallIntegerField(default=0)
    segment = models.ForeignKey(LogSegment, null=True, blank=True, on_delete=models.CASCADE, related_name="chunks")

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "runner_id", "stream", "offset"], name="jobs_one_chunk_per_offset"
            )
        ]
        indexes = [models.Index(fields=["attempt", "level"], name="jobs_chunks_by_level")]

    def __str__(self) -> str:
        """Where it lies."""
        return f"{self.stream}@{self.offset}"


class ProgressPoint(models.Model):
    """One step as the job reported it; curves join the attempts by step.

    ``metrics`` are further series by name, such as grad_norm: finite numbers, at most 20 of them. ``task`` is that of
    an array, -1 for any other job.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="progress_points")
    task = models.IntegerField(default=-1)
    step = models.BigIntegerField()
    total_steps = models.BigIntegerField(null=True, blank=True)
    loss = models.FloatField(null=True, blank=True)
    tokens_per_s = models.FloatField(null=True, blank=True)
    learning_rate = models.FloatField(null=True, blank=True)
    eta_s = models.FloatField(null=True, blank=True)
    metrics = models.JSONField(default=dict, blank=True)
    at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["attempt", "task", "step"], name="jobs_one_point_per_step")]

    def __str__(self) -> str:
        """Step and loss."""
        return f"step {self.step}"


# Registered with the app's other models; last, because they hang on the ones above.
from apps.jobs import action_models as action_models  # noqa: E402
from apps.jobs import dependency_models as dependency_models  # noqa: E402
from apps.jobs import template_models as template_models  # noqa: E402
