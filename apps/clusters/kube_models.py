"""KubernetesSettings, TeamNamespace, TeamShare: how jobs reach a cluster's Kubernetes, and each team's place there."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from apps.clusters.kube_states import KubeAuth, KubeScheduler, WorkloadKind
from apps.clusters.models import Cluster
from apps.core.models import Recorded
from apps.core.said import SaidField, SaidJSONField
from apps.teams.models import Team


class KubernetesSettings(Recorded):
    """What the portal needs to submit to a cluster's Kubernetes; without it the cluster is watched only.

    ``kubeconfig_ref`` names the secret that holds a kubeconfig, ``context`` the one of its contexts that is meant ("":
    its current one). A team without a namespace of its own gets ``namespace_prefix`` and its name. ``default_kind`` ""
    takes the first kind that the cluster serves and the job fits. ``mounts`` are what every pod gets:
    ``{claim, path, sub_path, read_only}``; checkpoints lie on the first. ``topology_level`` is the node label within
    which the nodes of one job are wished to stand together. ``allowances`` (kube_states.Allowance) and ``host_paths``
    say what manifests of people may do. ``adopted_queues``: queues of these names are somebody else's and only read.

    ``observed`` is what the server says of itself: ``version``, ``kinds`` ("apiVersion Kind"), ``kueue`` (the version
    of its API), ``may`` (verb and resource to whether we may). ``observed_queues`` are Kueue's ClusterQueues with
    quota and use; ``drift`` is what differs from what the portal wants of Kueue, ``queues_digest`` what it last wrote.
    """

    uid_prefix = "kst"

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="kubernetes")
    auth = models.CharField(max_length=12, choices=KubeAuth.choices, default=KubeAuth.EKS)
    kubeconfig_ref = models.CharField(max_length=200, blank=True, default="")
    context = models.CharField(max_length=120, blank=True, default="")
    scheduler = models.CharField(max_length=8, choices=KubeScheduler.choices, default=KubeScheduler.KUEUE)
    namespace_prefix = models.CharField(max_length=30, blank=True, default="")
    default_kind = models.CharField(max_length=12, choices=WorkloadKind.choices, blank=True, default="")
    default_image = models.CharField(max_length=500, blank=True, default="")
    mounts = models.JSONField(default=list, blank=True)
    service_account = models.CharField(max_length=63, blank=True, default="")
    pull_secrets = models.JSONField(default=list, blank=True)
    pod_priority_class = models.CharField(max_length=63, blank=True, default="")
    priority_classes = models.JSONField(default=list, blank=True)
    topology_level = models.CharField(max_length=120, blank=True, default="")
    cohort = models.CharField(max_length=63, blank=True, default="quarterdeck")
    allowances = models.JSONField(default=list, blank=True)
    host_paths = models.JSONField(default=list, blank=True)

    observed = models.JSONField(default=dict, blank=True)
    observed_queues = models.JSONField(default=list, blank=True)
    queues_read_at = models.DateTimeField(null=True, blank=True)
    queues_written_at = models.DateTimeField(null=True, blank=True)
    queues_digest = models.CharField(max_length=64, blank=True, default="")
    queues_message = SaidField(blank=True, default="")
    drift = SaidJSONField(default=list, blank=True)
    drift_since = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "Kubernetes settings"
        verbose_name_plural = "Kubernetes settings"
        constraints = [
            models.CheckConstraint(
                condition=Q(auth__in=[c.value for c in KubeAuth]), name="clusters_kubernetes_known_auth"
            ),
            models.CheckConstraint(
                condition=Q(scheduler__in=[c.value for c in KubeScheduler]), name="clusters_kubernetes_known_scheduler"
            ),
        ]

    def __str__(self) -> str:
        """Of which cluster."""
        return f"Kubernetes of {self.cluster.name}"


class TeamNamespace(Recorded):
    """Where a team's jobs run on one cluster: a namespace, the LocalQueue in it and the team's weight in fair sharing.

    ``queue`` "" is the one that the portal keeps, of the team's name; any other was made by somebody else and is only
    used. ``weight`` is Kueue's fair-share weight.
    """

    uid_prefix = "tns"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="team_namespaces")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="namespaces")
    namespace = models.CharField(max_length=63)
    queue = models.CharField(max_length=63, blank=True, default="")
    weight = models.DecimalField(max_digits=6, decimal_places=2, default=1, validators=[MinValueValidator(0)])

    class Meta:
        ordering = ["namespace"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "team"], name="clusters_one_namespace_per_team"),
            models.UniqueConstraint(fields=["cluster", "namespace"], name="clusters_one_team_per_namespace"),
        ]

    def __str__(self) -> str:
        """The namespace."""
        return self.namespace


class TeamShare(Recorded):
    """A team's GPUs of one instance type on one cluster, as Kueue is to keep them.

    ``gpus`` are its own; ``borrowing_gpus`` how many more it may take of what others leave, ``lending_gpus`` how many
    of its own others may take while it does not need them; None: all, 0: none.
    """

    uid_prefix = "shr"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="team_shares")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="shares")
    instance_type = models.CharField(max_length=40)
    gpus = models.PositiveIntegerField(default=0)
    borrowing_gpus = models.PositiveIntegerField(null=True, blank=True)
    lending_gpus = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["instance_type"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "team", "instance_type"], name="clusters_one_share_per_type"),
            models.CheckConstraint(
                condition=Q(lending_gpus__isnull=True) | Q(lending_gpus__lte=models.F("gpus")),
                name="clusters_share_lends_its_own",
            ),
        ]

    def __str__(self) -> str:
        """Of whom, how many."""
        return f"{self.team} {self.gpus} × {self.instance_type}"
