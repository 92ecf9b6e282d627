"""Cluster, Mount, Fleet, FleetBatch, FleetStep, Node, PreflightRun; groups and Slurm's users in ``*_models``."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import Q

from apps.capacity.models import Reservation
from apps.clusters.states import (
    KINDS_KUBERNETES,
    KINDS_MANAGED,
    BatchPhase,
    CapacitySource,
    ClusterKind,
    ClusterPhase,
    FleetPhase,
    LimitsMode,
    MountKind,
    MountPurpose,
    NodePhase,
    PreflightPhase,
    StepState,
    TokenStyle,
)
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.core.models import Reconciled, Recorded
from apps.core.said import SaidField, SaidJSONField
from apps.storage.models import FileSystem
from apps.teams.models import Team


def _known(choices: type[models.TextChoices], name: str, field: str = "phase") -> models.CheckConstraint:
    return models.CheckConstraint(condition=Q(**{f"{field}__in": [c.value for c in choices]}), name=name)


class Cluster(Reconciled):
    """A place where jobs run: a scheduler reached by its REST address, or a cluster that an AWS service keeps.

    ``settings`` is what its kind wants to know, ``provider_id`` AWS's name for it and ``provider_facts`` what AWS
    says about it (version, addresses, key). ``name_at_provider``, ``client_token`` and ``create_attempt`` are written
    before AWS is asked. An adopted one is watched and resized, never deleted from here. Address, user, token and
    folder are needed where jobs are to be submitted: without them a cluster of AWS's is watched only.

    ``token_ref`` names the secret that holds the scheduler's token. ``exporter_url`` is the
    address of a node's DCGM exporter with ``{node}`` in it; empty means none. ``working_root`` is a
    folder that all nodes share; jobs get a folder below it. ``responds_to_findings`` lets the
    worker drain a node with a fatal GPU finding and restart its jobs without asking first.

    ``jwt_key_ref`` names the secret with Slurm's signing key: with it the worker makes a token for each person who
    acts, valid for ``token_lifetime_s``; ``same_names`` takes a person's name in the portal for the one in Slurm
    where no mapping says otherwise. ``outside_team`` is charged for jobs that were submitted past the portal by
    nobody whom a mapping knows; ``limits_mode`` says whether the teams' limits are kept in Slurm, too.

    ``queue_reading`` and ``nodes_reading`` are what the last read cost and when the next is due: ``read_s``, ``bytes``,
    ``calls``, ``period_s``; the first also holds ``epoch``, which changes whenever the mirror of the queue is written.
    """

    uid_prefix = "clu"

    name = models.SlugField(max_length=60, unique=True)
    kind = models.CharField(max_length=16, choices=ClusterKind.choices, default=ClusterKind.SLURM)
    settings = models.JSONField(default=dict, blank=True)
    is_adopted = models.BooleanField(default=False)
    account = models.ForeignKey(CloudAccount, null=True, blank=True, on_delete=models.PROTECT, related_name="clusters")
    api_url = models.URLField(blank=True, default="")
    user_name = models.CharField(max_length=60, blank=True, default="")
    token_ref = models.CharField(max_length=200, blank=True, default="")
    jwt_key_ref = models.CharField(max_length=200, blank=True, default="")
    token_style = models.CharField(max_length=4, choices=TokenStyle.choices, default=TokenStyle.SUN)
    token_lifetime_s = models.PositiveIntegerField(default=600)
    same_names = models.BooleanField(default=False)
    outside_team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    limits_mode = models.CharField(max_length=8, choices=LimitsMode.choices, default=LimitsMode.OFF)
    partition = models.CharField(max_length=60, blank=True, default="")
    exporter_url = models.CharField(max_length=300, blank=True, default="")
    working_root = models.CharField(max_length=300, blank=True, default="")
    responds_to_findings = models.BooleanField(default=True)
    delete_requested_at = models.DateTimeField(null=True, blank=True)

    phase = models.CharField(max_length=16, choices=ClusterPhase.choices, default=ClusterPhase.PENDING)
    provider_id = models.CharField(max_length=260, blank=True, default="")
    provider_facts = models.JSONField(default=dict, blank=True)
    name_at_provider = models.CharField(max_length=100, blank=True, default="")
    client_token = models.CharField(max_length=64, blank=True, default="")
    create_attempt = models.PositiveIntegerField(default=0)
    observed_api_url = models.CharField(max_length=200, blank=True, default="")
    observed_version = models.CharField(max_length=40, blank=True, default="")
    observed_api_version = models.CharField(max_length=20, blank=True, default="")
    observed_max_time_min = models.PositiveIntegerField(null=True, blank=True)
    observed_partitions = models.JSONField(default=list)
    queue_as_of = models.DateTimeField(null=True, blank=True)
    queue_reading = models.JSONField(default=dict, blank=True)
    nodes_reading = models.JSONField(default=dict, blank=True)
    queue_read_at = models.DateTimeField(null=True, blank=True)
    nodes_read_at = models.DateTimeField(null=True, blank=True)
    exporters_read_at = models.DateTimeField(null=True, blank=True)
    operator_missing_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            _known(ClusterPhase, "clusters_cluster_known_phase"),
            _known(ClusterKind, "clusters_cluster_known_kind", "kind"),
            _known(TokenStyle, "clusters_cluster_known_token_style", "token_style"),
            _known(LimitsMode, "clusters_cluster_known_limits_mode", "limits_mode"),
        ]

    def __str__(self) -> str:
        """The name."""
        return self.name

    @property
    def scheduler_url(self) -> str:
        """Where slurmrestd answers: as entered, or as AWS says; empty where there is none."""
        return self.api_url or self.observed_api_url

    @property
    def takes_jobs(self) -> bool:
        """Whether the portal can submit there: Slurm needs an address, a user, a token or its key, and a folder.

        Kubernetes needs its KubernetesSettings, which readers of many clusters select with them.
        """
        if self.is_kubernetes:
            return getattr(self, "kubernetes", None) is not None
        has_token = self.token_ref or self.signing_key_ref
        return bool(self.scheduler_url and self.user_name and has_token and self.working_root)

    @property
    def signing_key_ref(self) -> str:
        """Where Slurm's signing key is: as entered, or where PCS says that it keeps it and no token is given."""
        arn = str(self.provider_facts.get("jwt_key_arn") or "") if self.kind == ClusterKind.PCS else ""
        return self.jwt_key_ref or (f"aws:{arn}" if arn and not self.token_ref else "")

    @property
    def tells_ids(self) -> bool:
        """Whether its tokens carry uid, gid and groups, and the request no user's name, as PCS wants it."""
        return self.kind == ClusterKind.PCS or self.token_style == TokenStyle.PCS

    @property
    def is_kubernetes(self) -> bool:
        """Whether Kubernetes runs its jobs."""
        return self.kind in KINDS_KUBERNETES

    @property
    def is_managed(self) -> bool:
        """Whether an AWS service keeps it."""
        return self.kind in KINDS_MANAGED

    @property
    def seen_by(self) -> str:
        """Who told of its nodes last: its scheduler, or AWS where no scheduler is asked."""
        if self.is_managed and not self.takes_jobs:
            return "aws"
        return "kubernetes" if self.is_kubernetes else "slurm"

    @property
    def seen_at(self) -> datetime | None:
        """When."""
        return self.observed_at if self.seen_by == "aws" else self.nodes_read_at

    @property
    def seen_every_s(self) -> float:
        """How often it is asked."""
        return 60 if self.seen_by == "aws" else max(10.0, float(self.nodes_reading.get("period_s") or 0))

    @property
    def queue_every_s(self) -> float:
        """How often the queue is read now: the pace follows what happens in it."""
        return max(5.0, float(self.queue_reading.get("period_s") or 0))


class Mount(Recorded):
    """Where the nodes of a cluster find some data: a file system of the portal, an S3 prefix or their own disks.

    ``source`` is what is mounted where no file system of the portal is: an S3 address, or a device. The portal
    records and shows mounts; the nodes' own start-up makes them.
    """

    uid_prefix = "mnt"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="mounts")
    kind = models.CharField(max_length=12, choices=MountKind.choices)
    file_system = models.ForeignKey(FileSystem, null=True, blank=True, on_delete=models.PROTECT, related_name="mounts")
    source = models.CharField(max_length=300, blank=True, default="")
    path = models.CharField(max_length=200)
    purpose = models.CharField(max_length=12, choices=MountPurpose.choices)

    class Meta:
        ordering = ["path"]
        constraints = [
            _known(MountKind, "clusters_mount_known_kind", "kind"),
            _known(MountPurpose, "clusters_mount_known_purpose", "purpose"),
            models.UniqueConstraint(fields=["cluster", "path"], name="clusters_one_mount_per_path"),
        ]

    def __str__(self) -> str:
        """Path and what lies there."""
        return f"{self.path} ({self.kind})"


class Fleet(Reconciled):
    """A set of equal machines, launched all or nothing and deleted whole.

    ``launch_attempt`` and the tokens of its batches are written before the launch call: the same pair
    asks for the same machines, however often the worker dies. ``other_instance_types`` and
    ``other_subnet_ids`` are further choices on demand; AWS takes one of each for all machines, and ``templates``
    holds ``{id, version}`` of the launch template of each.
    ``zones_named`` are the zones in which AWS said, when it refused, that it has capacity. ``conditions``
    are what a person should know now, each ``{kind, text, since}``. ``replace_asked_at`` asks for
    machines in the place of lost ones.
    """

    uid_prefix = "flt"

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="fleets")
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.PROTECT, related_name="fleets")
    name = models.SlugField(max_length=60)
    instance_type = models.CharField(max_length=40)
    nodes = models.PositiveIntegerField()
    subnet_id = models.CharField(max_length=40)
    security_group_ids = models.JSONField(default=list)
    image_id = models.CharField(max_length=40)
    partition = models.CharField(max_length=60, blank=True, default="")
    source = models.CharField(max_length=20, choices=CapacitySource.choices, default=CapacitySource.ON_DEMAND)
    reservation = models.ForeignKey(Reservation, null=True, blank=True, on_delete=models.PROTECT, related_name="fleets")
    other_instance_types = models.JSONField(default=list, blank=True)
    other_subnet_ids = models.JSONField(default=list, blank=True)
    usd_per_hour = models.DecimalField(max_digits=14, decimal_places=6, null=True, blank=True)
    price_source = SaidField(blank=True, default="")
    delete_requested_at = models.DateTimeField(null=True, blank=True)
    replace_asked_at = models.DateTimeField(null=True, blank=True)

    provider_id = models.CharField(max_length=200, blank=True, default="")
    phase = models.CharField(max_length=20, choices=FleetPhase.choices, default=FleetPhase.PENDING)
    placement_group = models.CharField(max_length=120, blank=True, default="")
    launch_template_id = models.CharField(max_length=40, blank=True, default="")
    launch_template_version = models.CharField(max_length=10, blank=True, default="")
    templates = models.JSONField(default=list, blank=True)
    launch_attempt = models.PositiveIntegerField(default=0)
    client_token = models.CharField(max_length=64, blank=True, default="")
    capacity_refusals = models.PositiveIntegerField(default=0)
    next_try_at = models.DateTimeField(null=True, blank=True)
    launched_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    observed_nodes = models.PositiveIntegerField(default=0)
    lost_at = models.DateTimeField(null=True, blank=True)
    zones_named = models.JSONField(default=list, blank=True)
    conditions = SaidJSONField(default=list)
    topology_read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            _known(FleetPhase, "clusters_fleet_known_phase"),
            _known(CapacitySource, "clusters_fleet_known_source", "source"),
            models.CheckConstraint(condition=Q(nodes__gte=1), name="clusters_fleet_has_nodes"),
            models.UniqueConstraint(
                fields=["cluster", "name"],
                condition=~Q(phase=FleetPhase.DELETED),
                name="clusters_one_live_fleet_per_name",
            ),
        ]

    def __str__(self) -> str:
        """Cluster and name."""
        return f"{self.cluster.name}/{self.name}"


class FleetBatch(models.Model):
    """One launch call of a fleet: at most so many machines as AWS takes in one, with its own token and attempt.

    Attempt and token are committed before the call. A batch that was refused takes the others down with it, unless
    it replaces lost machines. ``is_final``: asking again cannot help.
    """

    fleet = models.ForeignKey(Fleet, on_delete=models.CASCADE, related_name="batches")
    ordinal = models.PositiveSmallIntegerField()
    nodes = models.PositiveIntegerField()
    is_replacement = models.BooleanField(default=False)
    attempt = models.PositiveIntegerField(default=0)
    client_token = models.CharField(max_length=64, blank=True, default="")
    phase = models.CharField(max_length=10, choices=BatchPhase.choices, default=BatchPhase.WAITING)
    asked_at = models.DateTimeField(null=True, blank=True)
    message = SaidField(blank=True, default="")
    is_final = models.BooleanField(default=False)

    class Meta:
        ordering = ["ordinal"]
        constraints = [
            models.UniqueConstraint(fields=["fleet", "ordinal"], name="clusters_one_batch_per_ordinal"),
            _known(BatchPhase, "clusters_batch_known_phase"),
            models.CheckConstraint(
                condition=Q(phase=BatchPhase.WAITING) | ~Q(client_token=""), name="clusters_batch_asked_with_token"
            ),
        ]

    def __str__(self) -> str:
        """Which of how many."""
        return f"{self.ordinal}: {self.nodes}"


class FleetStep(models.Model):
    """One step of provisioning as pages show it: state, elapsed and the newest sentence."""

    fleet = models.ForeignKey(Fleet, on_delete=models.CASCADE, related_name="steps")
    ordinal = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=20, choices=FleetPhase.choices)
    state = models.CharField(max_length=8, choices=StepState.choices, default=StepState.WAITING)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    expected_s = models.PositiveIntegerField(default=0)
    message = SaidField(blank=True, default="")
    checks = SaidJSONField(default=list)

    class Meta:
        ordering = ["ordinal"]
        constraints = [
            models.UniqueConstraint(fields=["fleet", "ordinal"], name="clusters_one_step_per_ordinal"),
            _known(StepState, "clusters_step_known_state", "state"),
        ]

    def __str__(self) -> str:
        """Name and state."""
        return f"{self.name} {self.state}"


class Node(Recorded):
    """One machine of a cluster, whoever launched it.

    ``drain_requested_at`` and ``drain_reason`` are the wish; ``observed_state`` is Slurm's word. A
    node that came back under an old name is a new row once its instance differs. ``network_nodes`` are AWS's
    names of the switches above it, the top layer first; ``cloud_events`` what AWS has planned for the machine.
    ``provider_state`` is what the service that keeps a node group says of its machine (pending, running, failing,
    updating, ending); empty where no such service is. On Kubernetes ``evict_requested_at`` asks for the pods on it to
    be ended, each with ``evict_grace_s`` to save its state; ``labels`` are those that say what the node is.
    """

    uid_prefix = "node"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="nodes")
    fleet = models.ForeignKey(Fleet, null=True, blank=True, on_delete=models.SET_NULL, related_name="node_rows")
    group = models.ForeignKey(
        "clusters.NodeGroup", null=True, blank=True, on_delete=models.SET_NULL, related_name="node_rows"
    )
    name = models.CharField(max_length=120)
    provider_id = models.CharField(max_length=40, blank=True, default="")
    instance_type = models.CharField(max_length=40, blank=True, default="")
    drain_requested_at = models.DateTimeField(null=True, blank=True)
    drain_reason = models.CharField(max_length=300, blank=True, default="")
    resume_requested_at = models.DateTimeField(null=True, blank=True)
    evict_requested_at = models.DateTimeField(null=True, blank=True)
    evict_grace_s = models.PositiveIntegerField(default=120)

    phase = models.CharField(max_length=12, choices=NodePhase.choices, default=NodePhase.PENDING)
    phase_since = models.DateTimeField(default=clock.now)
    gpu_type = models.CharField(max_length=40, blank=True, default="")
    gpus = models.PositiveSmallIntegerField(default=0)
    gpus_used = models.PositiveSmallIntegerField(default=0)
    cpus = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveIntegerField(default=0)
    private_ip = models.CharField(max_length=45, blank=True, default="")
    zone_id = models.CharField(max_length=30, blank=True, default="")
    provider_state = models.CharField(max_length=10, blank=True, default="")
    partitions = models.JSONField(default=list)
    observed_state = models.CharField(max_length=120, blank=True, default="")
    observed_reason = SaidField(blank=True, default="")
    observed_at = models.DateTimeField(null=True, blank=True)
    exporter_read_at = models.DateTimeField(null=True, blank=True)
    exporter_error = models.CharField(max_length=300, blank=True, default="")
    exporter_missing = models.JSONField(default=list)
    network_nodes = models.JSONField(default=list, blank=True)
    reservation_id = models.CharField(max_length=40, blank=True, default="")
    group_name = models.CharField(max_length=120, blank=True, default="")
    cloud_events = models.JSONField(default=list, blank=True)
    labels = models.JSONField(default=dict, blank=True)
    evicted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            _known(NodePhase, "clusters_node_known_phase"),
            models.UniqueConstraint(
                fields=["cluster", "name"], condition=~Q(phase=NodePhase.GONE), name="clusters_one_live_node_per_name"
            ),
        ]

    def __str__(self) -> str:
        """The name."""
        return self.name

    @property
    def reserved_in(self) -> Reservation | None:
        """The reservation of the fleet or group that it belongs to."""
        if self.fleet is not None:
            return self.fleet.reservation
        return self.group.reservation if self.group is not None else None


class PreflightRun(Recorded):
    """A check of a fleet that is not made yet, asked for by a person; the worker makes it and writes what it found.

    ``spec`` holds the fleet's columns as they were asked about.
    """

    uid_prefix = "pfl"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="preflights")
    reservation = models.ForeignKey(
        Reservation, null=True, blank=True, on_delete=models.CASCADE, related_name="preflights"
    )
    spec = models.JSONField(default=dict)
    asked_by = models.CharField(max_length=150)

    phase = models.CharField(max_length=8, choices=PreflightPhase.choices, default=PreflightPhase.PENDING)
    checks = SaidJSONField(default=list)
    message = SaidField(blank=True, default="")
    checked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [_known(PreflightPhase, "clusters_preflight_known_phase")]

    def __str__(self) -> str:
        """What is asked about."""
        return f"{self.spec.get('nodes', '')} × {self.spec.get('instance_type', '')}"


# Registered with the app's other models; last, because they hang on the ones above.
from apps.clusters import group_models as group_models  # noqa: E402
from apps.clusters import kube_models as kube_models  # noqa: E402
from apps.clusters import slurm_models as slurm_models  # noqa: E402
