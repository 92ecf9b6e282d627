"""XidCode, Gpu, HealthEvent, Finding."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from simple_history.models import HistoricalRecords

from apps.clusters.models import Node
from apps.core import clock
from apps.core.models import Recorded
from apps.core.said import SaidField
from apps.health.states import LIVE, FindingPhase, Severity


class XidCode(models.Model):
    """One XID code: NVIDIA's own name and advice, and what this site does about it. Editable, with history."""

    code = models.PositiveIntegerField(unique=True)
    mnemonic = models.CharField(max_length=80)
    meaning = models.CharField(max_length=200)
    architectures = models.CharField(max_length=80, blank=True, default="")
    fault_class = models.CharField(max_length=80, blank=True, default="")
    nvidia_immediate_action = models.CharField(max_length=120, blank=True, default="")
    nvidia_if_it_recurs = models.CharField(max_length=160, blank=True, default="")
    severity = models.CharField(max_length=8, choices=Severity.choices, default=Severity.WATCH)
    suggested_action = models.CharField(max_length=200, blank=True, default="")
    source = models.CharField(max_length=200)
    updated_at = models.DateTimeField(auto_now=True)
    history = HistoricalRecords()

    class Meta:
        ordering = ["code"]
        verbose_name = "XID code"
        constraints = [
            models.CheckConstraint(condition=Q(severity__in=[c.value for c in Severity]), name="health_known_severity")
        ]

    def __str__(self) -> str:
        """Code and NVIDIA's name."""
        return f"XID {self.code} {self.mnemonic}"


class Gpu(models.Model):
    """One GPU of a node as its exporter last described it; ``None`` means the exporter did not say."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpu_rows")
    index = models.PositiveSmallIntegerField()
    uuid = models.CharField(max_length=60, db_index=True)
    model = models.CharField(max_length=60, blank=True, default="")
    pci_bus_id = models.CharField(max_length=30, blank=True, default="")
    is_on_bus = models.BooleanField(default=True)
    temperature_c = models.FloatField(null=True, blank=True)
    power_w = models.FloatField(null=True, blank=True)
    sm_active = models.FloatField(null=True, blank=True)
    tensor_active = models.FloatField(null=True, blank=True)
    memory_used_mib = models.FloatField(null=True, blank=True)
    xid_last = models.PositiveIntegerField(null=True, blank=True)
    row_remap_pending = models.PositiveSmallIntegerField(null=True, blank=True)
    row_remap_failure = models.PositiveSmallIntegerField(null=True, blank=True)
    ecc_dbe_volatile = models.BigIntegerField(null=True, blank=True)
    observed_at = models.DateTimeField(default=clock.now)

    class Meta:
        ordering = ["node_id", "index"]
        constraints = [models.UniqueConstraint(fields=["node", "index"], name="health_one_gpu_per_slot")]

    def __str__(self) -> str:
        """Node and slot."""
        return f"{self.node.name} GPU {self.index}"


class HealthEvent(models.Model):
    """One observation of a fault: source, code and the evidence as it was read."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="health_events")
    gpu_index = models.PositiveSmallIntegerField(null=True, blank=True)
    gpu_uuid = models.CharField(max_length=60, blank=True, default="")
    source = models.CharField(max_length=20)
    code = models.CharField(max_length=40)
    text = SaidField(blank=True, default="")
    evidence = models.JSONField(default=dict)
    at = models.DateTimeField(default=clock.now)

    class Meta:
        indexes = [models.Index(fields=["node", "-at"], name="health_event_by_node")]

    def __str__(self) -> str:
        """Code and place."""
        return f"{self.source} {self.code}"


class Finding(Recorded):
    """A fault that wants an answer: one live row per node, GPU and code, with its evidence."""

    uid_prefix = "fnd"

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="findings")
    gpu_index = models.PositiveSmallIntegerField(null=True, blank=True)
    gpu_uuid = models.CharField(max_length=60, blank=True, default="")
    source = models.CharField(max_length=20)
    code = models.CharField(max_length=40)
    title = SaidField()
    severity = models.CharField(max_length=8, choices=Severity.choices)
    suggested_action = SaidField(blank=True, default="")
    evidence = models.JSONField(default=dict)
    count = models.PositiveIntegerField(default=1)
    first_seen_at = models.DateTimeField(default=clock.now)
    last_seen_at = models.DateTimeField(default=clock.now)
    phase = models.CharField(max_length=14, choices=FindingPhase.choices, default=FindingPhase.OPEN)
    phase_since = models.DateTimeField(default=clock.now)
    response = SaidField(blank=True, default="")
    responded_at = models.DateTimeField(null=True, blank=True)
    resolved_by = models.CharField(max_length=150, blank=True, default="")

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["node", "source", "code", "gpu_uuid"],
                condition=Q(phase__in=sorted(LIVE)),
                name="health_one_live_finding",
            ),
            models.CheckConstraint(
                condition=Q(phase__in=[c.value for c in FindingPhase]), name="health_finding_known_phase"
            ),
        ]

    def __str__(self) -> str:
        """Title and place."""
        return f"{self.title} on {self.node.name}"
