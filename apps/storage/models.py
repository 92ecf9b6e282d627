"""FileSystem, RepositoryAssociation, Export."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.connections.models import CloudAccount
from apps.core.models import Reconciled
from apps.storage.states import AssociationPhase, ExportPhase, FileSystemKind, FileSystemPhase
from apps.teams.models import Team


def _known(choices: type[models.TextChoices], name: str, field: str = "phase") -> models.CheckConstraint:
    return models.CheckConstraint(condition=Q(**{f"{field}__in": [c.value for c in choices]}), name=name)


class FileSystem(Reconciled):
    """A shared file system in an account: made here, or found there and adopted.

    ``client_token`` is written before AWS is asked: the same token asks for the same file system, however often
    the worker dies. ``capacity_gib`` is the wish, ``observed_capacity_gib`` what AWS says. An adopted one is watched
    and may be grown, but never deleted from here. ``loses_unexported`` is a person's word that what has not reached
    S3 may be lost with it.
    """

    uid_prefix = "fs"

    account = models.ForeignKey(CloudAccount, on_delete=models.PROTECT, related_name="file_systems")
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.PROTECT, related_name="file_systems")
    name = models.SlugField(max_length=60)
    kind = models.CharField(max_length=12, choices=FileSystemKind.choices, default=FileSystemKind.LUSTRE)
    subnet_id = models.CharField(max_length=40, blank=True, default="")
    security_group_ids = models.JSONField(default=list)
    capacity_gib = models.PositiveIntegerField(default=0)
    throughput_mb_s_tib = models.PositiveIntegerField(default=0)
    has_efa = models.BooleanField(default=False)
    is_compressed = models.BooleanField(default=True)
    metadata_iops = models.PositiveIntegerField(default=0)
    usd_per_month = models.DecimalField(max_digits=14, decimal_places=2, null=True, blank=True)
    price_source = models.CharField(max_length=200, blank=True, default="")
    is_adopted = models.BooleanField(default=False)
    loses_unexported = models.BooleanField(default=False)
    delete_requested_at = models.DateTimeField(null=True, blank=True)

    phase = models.CharField(max_length=12, choices=FileSystemPhase.choices, default=FileSystemPhase.PENDING)
    provider_id = models.CharField(max_length=40, blank=True, default="")
    create_attempt = models.PositiveIntegerField(default=0)
    client_token = models.CharField(max_length=63, blank=True, default="")
    dns_name = models.CharField(max_length=275, blank=True, default="")
    mount_name = models.CharField(max_length=20, blank=True, default="")
    observed_capacity_gib = models.PositiveIntegerField(default=0)
    update_percent = models.PositiveSmallIntegerField(null=True, blank=True)
    export_queue_age_s = models.FloatField(null=True, blank=True)
    free_bytes = models.BigIntegerField(null=True, blank=True)
    fullest_free_bytes = models.BigIntegerField(null=True, blank=True)
    targets = models.PositiveIntegerField(null=True, blank=True)
    metrics_read_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            _known(FileSystemPhase, "storage_fs_known_phase"),
            _known(FileSystemKind, "storage_fs_known_kind", "kind"),
            models.UniqueConstraint(
                fields=["account", "name"],
                condition=~Q(phase=FileSystemPhase.DELETED),
                name="storage_one_live_fs_per_name",
            ),
            models.UniqueConstraint(
                fields=["account", "provider_id"],
                condition=~Q(phase=FileSystemPhase.DELETED) & ~Q(provider_id=""),
                name="storage_one_live_fs_per_provider_id",
            ),
        ]

    def __str__(self) -> str:
        """The name."""
        return self.name


class RepositoryAssociation(Reconciled):
    """A folder of a Lustre file system tied to an S3 prefix: what travels which way by itself."""

    uid_prefix = "dra"

    file_system = models.ForeignKey(FileSystem, on_delete=models.CASCADE, related_name="associations")
    path = models.CharField(max_length=1024)
    repository = models.CharField(max_length=1024)
    imports = models.JSONField(default=list)
    exports = models.JSONField(default=list)
    is_imported_at_start = models.BooleanField(default=True)
    delete_requested_at = models.DateTimeField(null=True, blank=True)

    phase = models.CharField(max_length=14, choices=AssociationPhase.choices, default=AssociationPhase.PENDING)
    provider_id = models.CharField(max_length=40, blank=True, default="")
    client_token = models.CharField(max_length=63, blank=True, default="")

    class Meta:
        ordering = ["path"]
        constraints = [
            _known(AssociationPhase, "storage_dra_known_phase"),
            models.UniqueConstraint(
                fields=["file_system", "path"],
                condition=~Q(phase=AssociationPhase.DELETED),
                name="storage_one_live_dra_per_path",
            ),
        ]

    def __str__(self) -> str:
        """Folder and prefix."""
        return f"{self.path} ↔ {self.repository}"


class Export(Reconciled):
    """One explicit export of everything that changed below some folders to S3."""

    uid_prefix = "exp"

    file_system = models.ForeignKey(FileSystem, on_delete=models.CASCADE, related_name="exports_asked")
    paths = models.JSONField(default=list)
    asked_by = models.CharField(max_length=150)

    phase = models.CharField(max_length=10, choices=ExportPhase.choices, default=ExportPhase.PENDING)
    provider_id = models.CharField(max_length=40, blank=True, default="")
    client_token = models.CharField(max_length=63, blank=True, default="")
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [_known(ExportPhase, "storage_export_known_phase")]

    def __str__(self) -> str:
        """What is exported."""
        return ", ".join(self.paths) or "/"
