"""NodeGroup, ClusterStep, ClusterEvent, NodeAction: what clusters that AWS keeps are made of and asked for."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.capacity.models import Reservation
from apps.clusters.models import Cluster, Node
from apps.clusters.states import (
    NODE_ACTION_OPEN,
    ClusterStepName,
    GroupPhase,
    GroupSource,
    NodeActionPhase,
    NodeVerb,
    StepState,
)
from apps.core.models import Reconciled, Recorded
from apps.core.said import SaidField, SaidJSONField
from apps.teams.models import Team


def _known(choices: type[models.TextChoices], name: str, field: str = "phase") -> models.CheckConstraint:
    return models.CheckConstraint(condition=Q(**{f"{field}__in": [c.value for c in choices]}), name=name)


#: On a health issue: the group was taken away from here because of it, to be made anew.
REMOVED = "removed"


class NodeGroup(Reconciled):
    """Equal machines of a cluster that AWS keeps: a PCS compute node group, an EKS node group, a HyperPod group.

    ``nodes`` is the wish (PCS scales between ``min_nodes`` and it), ``observed_nodes`` and ``target_nodes`` what AWS
    says. ``team`` owns it. ``role_arn`` is the group's role, PCS's instance profile. ``queue`` is the Slurm queue in
    front of it.
    ``health`` are AWS's issues, each ``{code, message, advice}``, with ``REMOVED`` where the group was taken away for
    them. ``client_token`` is written before AWS is asked.
    """

    uid_prefix = "grp"

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="groups")
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.PROTECT, related_name="groups")
    name = models.CharField(max_length=63)
    instance_type = models.CharField(max_length=40)
    nodes = models.PositiveIntegerField(default=0)
    min_nodes = models.PositiveIntegerField(default=0)
    source = models.CharField(max_length=16, choices=GroupSource.choices, default=GroupSource.ON_DEMAND)
    reservation = models.ForeignKey(Reservation, null=True, blank=True, on_delete=models.PROTECT, related_name="groups")
    subnet_ids = models.JSONField(default=list, blank=True)
    security_group_ids = models.JSONField(default=list, blank=True)
    image_id = models.CharField(max_length=40, blank=True, default="")
    role_arn = models.CharField(max_length=300, blank=True, default="")
    queue = models.CharField(max_length=40, blank=True, default="")
    settings = models.JSONField(default=dict, blank=True)
    usd_per_hour = models.DecimalField(max_digits=14, decimal_places=6, null=True, blank=True)
    is_adopted = models.BooleanField(default=False)
    delete_requested_at = models.DateTimeField(null=True, blank=True)

    phase = models.CharField(max_length=10, choices=GroupPhase.choices, default=GroupPhase.PENDING)
    provider_id = models.CharField(max_length=200, blank=True, default="")
    queue_provider_id = models.CharField(max_length=60, blank=True, default="")
    launch_template_id = models.CharField(max_length=40, blank=True, default="")
    create_attempt = models.PositiveIntegerField(default=0)
    client_token = models.CharField(max_length=64, blank=True, default="")
    observed_state = models.CharField(max_length=40, blank=True, default="")
    observed_nodes = models.PositiveIntegerField(default=0)
    target_nodes = models.PositiveIntegerField(null=True, blank=True)
    health = SaidJSONField(default=list, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            _known(GroupPhase, "clusters_group_known_phase"),
            _known(GroupSource, "clusters_group_known_source", "source"),
            models.UniqueConstraint(
                fields=["cluster", "name"],
                condition=~Q(phase=GroupPhase.DELETED),
                name="clusters_one_live_group_per_name",
            ),
        ]

    def __str__(self) -> str:
        """The name."""
        return self.name


class ClusterStep(models.Model):
    """One step of making or adopting a cluster as its page shows it."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="steps")
    ordinal = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=20, choices=ClusterStepName.choices)
    state = models.CharField(max_length=8, choices=StepState.choices, default=StepState.WAITING)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    expected_s = models.PositiveIntegerField(default=0)
    message = SaidField(blank=True, default="")

    class Meta:
        ordering = ["ordinal"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "ordinal"], name="clusters_one_cluster_step_per_ordinal"),
            _known(StepState, "clusters_cluster_step_known_state", "state"),
        ]

    def __str__(self) -> str:
        """Name and state."""
        return f"{self.name} {self.state}"


class ClusterEvent(models.Model):
    """One event that the service keeps about a cluster: once, however often and in whatever pairs it is told.

    ``reason`` is AWS's failure message; many events have none.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="events")
    provider_id = models.CharField(max_length=64)
    at = models.DateTimeField()
    level = models.CharField(max_length=10, blank=True, default="")
    resource = models.CharField(max_length=40, blank=True, default="")
    text = models.CharField(max_length=600)
    reason = models.CharField(max_length=600, blank=True, default="")
    group_name = models.CharField(max_length=63, blank=True, default="")
    node_id = models.CharField(max_length=40, blank=True, default="")

    class Meta:
        ordering = ["-at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "provider_id"], name="clusters_one_row_per_event"),
        ]

    def __str__(self) -> str:
        """What happened."""
        return self.text


class NodeAction(Recorded):
    """A person's request that HyperPod replace or reboot one node, and what became of it."""

    uid_prefix = "act"

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="actions")
    provider_id = models.CharField(max_length=40)
    verb = models.CharField(max_length=8, choices=NodeVerb.choices)
    reason = models.CharField(max_length=300)
    asked_by = models.CharField(max_length=150)

    phase = models.CharField(max_length=8, choices=NodeActionPhase.choices, default=NodeActionPhase.ASKED)
    message = SaidField(blank=True, default="")
    attempted_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            _known(NodeActionPhase, "clusters_action_known_phase"),
            _known(NodeVerb, "clusters_action_known_verb", "verb"),
            models.UniqueConstraint(
                fields=["node"],
                condition=Q(phase__in=sorted(p.value for p in NODE_ACTION_OPEN)),
                name="clusters_one_open_action_per_node",
            ),
        ]

    def __str__(self) -> str:
        """Verb and node."""
        return f"{self.verb} {self.provider_id}"
