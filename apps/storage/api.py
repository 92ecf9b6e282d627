"""API of shared storage."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.connections.selectors import account_for
from apps.core.api import Endpoint, ListEndpoint, etag, expected_version, idempotent
from apps.core.errors import BadQuery, field_refusal
from apps.storage.models import Export, FileSystem, RepositoryAssociation
from apps.storage.selectors import (
    association_for,
    associations_of,
    exports_of,
    file_system_for,
    file_system_sentence,
    file_systems_visible_to,
    mount_command,
)
from apps.storage.services import (
    association_create,
    association_delete,
    export_begin,
    file_system_adopt,
    file_system_create,
    file_system_delete,
    file_system_grow,
)
from apps.storage.states import FileSystemKind, RepositoryEvent
from apps.storage.views import FileSystemFilter
from apps.teams.selectors import teams_visible_to


class AssociationSerializer(serializers.ModelSerializer[RepositoryAssociation]):
    """A folder tied to S3."""

    message = serializers.CharField(read_only=True)

    class Meta:
        model = RepositoryAssociation
        fields = [
            "uid",
            "path",
            "repository",
            "imports",
            "exports",
            "is_imported_at_start",
            "phase",
            "message",
            "provider_id",
            "created_at",
            "version",
        ]


class ExportSerializer(serializers.ModelSerializer[Export]):
    """An explicit export."""

    message = serializers.CharField(read_only=True)

    class Meta:
        model = Export
        fields = ["uid", "paths", "asked_by", "phase", "message", "provider_id", "created_at", "ended_at"]


class FileSystemSerializer(serializers.ModelSerializer[FileSystem]):
    """A file system with its sentence."""

    account = serializers.CharField(source="account.name", read_only=True)
    team = serializers.CharField(source="team.slug", read_only=True, default=None)
    message = serializers.CharField(read_only=True)
    sentence = serializers.SerializerMethodField()
    mount_command = serializers.SerializerMethodField()

    class Meta:
        model = FileSystem
        fields = [
            "uid",
            "name",
            "kind",
            "account",
            "team",
            "phase",
            "phase_since",
            "sentence",
            "message",
            "provider_id",
            "subnet_id",
            "security_group_ids",
            "capacity_gib",
            "observed_capacity_gib",
            "throughput_mb_s_tib",
            "has_efa",
            "is_compressed",
            "metadata_iops",
            "is_adopted",
            "usd_per_month",
            "price_source",
            "dns_name",
            "mount_name",
            "mount_command",
            "update_percent",
            "export_queue_age_s",
            "free_bytes",
            "fullest_free_bytes",
            "targets",
            "metrics_read_at",
            "created_at",
            "version",
        ]

    def get_sentence(self, fs: FileSystem) -> str:
        """The state sentence."""
        return file_system_sentence(fs)

    def get_mount_command(self, fs: FileSystem) -> str:
        """What a node runs to mount it."""
        return mount_command(fs)


class FileSystemCreateSerializer(serializers.Serializer[Any]):
    """A file system to make, or with ``provider_id`` one to adopt."""

    account = serializers.CharField(max_length=60)
    name = serializers.CharField(max_length=60)
    kind = serializers.ChoiceField(choices=FileSystemKind.choices, default=FileSystemKind.LUSTRE)
    team = serializers.CharField(max_length=60, required=False, default="", allow_blank=True)
    provider_id = serializers.CharField(max_length=40, required=False, default="", allow_blank=True)
    subnet_id = serializers.CharField(max_length=40, required=False, default="", allow_blank=True)
    security_group_ids = serializers.ListField(
        child=serializers.CharField(max_length=40), required=False, default=list, max_length=10
    )
    capacity_gib = serializers.IntegerField(min_value=0, max_value=2_000_000, required=False, default=0)
    throughput_mb_s_tib = serializers.IntegerField(min_value=0, max_value=1000, required=False, default=0)
    has_efa = serializers.BooleanField(required=False, default=False)
    is_compressed = serializers.BooleanField(required=False, default=True)
    metadata_iops = serializers.IntegerField(min_value=0, max_value=192_000, required=False, default=0)


class FileSystemPatchSerializer(serializers.Serializer[Any]):
    """What may be changed: the capacity, upwards."""

    capacity_gib = serializers.IntegerField(min_value=1200, max_value=2_000_000)


class AssociationCreateSerializer(serializers.Serializer[Any]):
    """A folder to tie to S3."""

    path = serializers.CharField(max_length=1024)
    repository = serializers.CharField(max_length=1024)
    imports = serializers.ListField(
        child=serializers.ChoiceField(choices=RepositoryEvent.choices), required=False, default=["NEW", "CHANGED"]
    )
    exports = serializers.ListField(
        child=serializers.ChoiceField(choices=RepositoryEvent.choices), required=False, default=["NEW", "CHANGED"]
    )
    is_imported_at_start = serializers.BooleanField(required=False, default=True)


class ExportCreateSerializer(serializers.Serializer[Any]):
    """Folders to export; none: all that is tied to S3."""

    paths = serializers.ListField(
        child=serializers.CharField(max_length=1024), required=False, default=list, max_length=100
    )


class FileSystems(ListEndpoint):
    """Shared file systems."""

    rights = {"GET": "storage.view", "POST": "storage.operate"}
    serializer_class = FileSystemSerializer
    filterset_class = FileSystemFilter

    def get_rows(self) -> Any:
        """Visible file systems."""
        return file_systems_visible_to(self.actor)

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return FileSystemCreateSerializer if self.request.method == "POST" else FileSystemSerializer

    def post(self, request: Request) -> Response:
        """Make or adopt one; the worker does it (202)."""
        actor = self.actor
        body = self.read_body(FileSystemCreateSerializer)
        account = account_for(actor=actor, may="storage.operate", uid=body.pop("account"))
        slug = body.pop("team")
        team = teams_visible_to(actor).filter(slug=slug).first() if slug else None
        if slug and team is None:
            raise field_refusal("/team", f"no team {slug}")

        def effect() -> tuple[int, dict[str, Any], str]:
            if body["provider_id"]:
                wanted = {k: body[k] for k in ("name", "kind", "provider_id")}
                made = file_system_adopt(actor=actor, account=account, team=team, **wanted)
            else:
                wanted = {k: v for k, v in body.items() if k != "provider_id"}
                made = file_system_create(actor=actor, account=account, team=team, **wanted)
            return 202, dict(FileSystemSerializer(made).data), f"/api/v1/file-systems/{made.uid}"

        return idempotent(request, effect)


class FileSystemDetail(Endpoint):
    """One file system."""

    rights = {"GET": "storage.view", "PATCH": "storage.operate", "DELETE": "storage.operate"}
    serializer_class = FileSystemSerializer
    query_parameters = frozenset({"loses_unexported"})

    def get_serializer_class(self) -> Any:
        """The body of a PATCH differs from the object."""
        return FileSystemPatchSerializer if self.request.method == "PATCH" else FileSystemSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        fs = file_system_for(actor=self.actor, may="storage.view", uid=uid)
        return Response(FileSystemSerializer(fs).data, headers={"ETag": etag(fs)})

    def patch(self, request: Request, uid: str) -> Response:
        """Grow; If-Match required (202)."""
        actor = self.actor
        fs = file_system_for(actor=actor, may="storage.operate", uid=uid)
        body = self.read_body(FileSystemPatchSerializer)
        file_system_grow(
            actor=actor,
            file_system=fs,
            capacity_gib=body["capacity_gib"],
            expected_version=expected_version(request),
        )
        return Response(FileSystemSerializer(fs).data, status=202, headers={"ETag": etag(fs)})

    def delete(self, request: Request, uid: str) -> Response:
        """Delete; If-Match required (202).

        Refused while files may not have reached S3, unless ``loses_unexported=true`` says that they may be lost.
        """
        actor = self.actor
        fs = file_system_for(actor=actor, may="storage.operate", uid=uid)
        said = request.query_params.get("loses_unexported", "false")
        if said not in ("true", "false"):
            raise BadQuery("loses_unexported: true or false")
        file_system_delete(
            actor=actor,
            file_system=fs,
            expected_version=expected_version(request),
            loses_unexported=said == "true",
        )
        return Response(FileSystemSerializer(fs).data, status=202, headers={"ETag": etag(fs)})


class Associations(ListEndpoint):
    """The ties of one file system to S3."""

    rights = {"GET": "storage.view", "POST": "storage.operate"}
    serializer_class = AssociationSerializer

    def get_rows(self) -> Any:
        """Those that exist."""
        fs = file_system_for(actor=self.actor, may="storage.view", uid=self.kwargs["uid"])
        return associations_of(fs)

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return AssociationCreateSerializer if self.request.method == "POST" else AssociationSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Tie a folder (202)."""
        fs = file_system_for(actor=self.actor, may="storage.operate", uid=uid)
        body = self.read_body(AssociationCreateSerializer)

        def effect() -> tuple[int, dict[str, Any], str]:
            made = association_create(actor=self.actor, file_system=fs, **body)
            return 202, dict(AssociationSerializer(made).data), f"/api/v1/associations/{made.uid}"

        return idempotent(request, effect)


class AssociationDetail(Endpoint):
    """One tie to S3."""

    rights = {"GET": "storage.view", "DELETE": "storage.operate"}
    serializer_class = AssociationSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        association = association_for(actor=self.actor, may="storage.view", uid=uid)
        return Response(AssociationSerializer(association).data, headers={"ETag": etag(association)})

    def delete(self, request: Request, uid: str) -> Response:
        """Untie; If-Match required (202). The files on both sides stay."""
        association = association_for(actor=self.actor, may="storage.operate", uid=uid)
        association_delete(actor=self.actor, association=association, expected_version=expected_version(request))
        return Response(AssociationSerializer(association).data, status=202, headers={"ETag": etag(association)})


class Exports(ListEndpoint):
    """Explicit exports of one file system."""

    rights = {"GET": "storage.view", "POST": "storage.operate"}
    serializer_class = ExportSerializer

    def get_rows(self) -> Any:
        """Newest first."""
        fs = file_system_for(actor=self.actor, may="storage.view", uid=self.kwargs["uid"])
        return exports_of(fs)

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return ExportCreateSerializer if self.request.method == "POST" else ExportSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Export now (202)."""
        fs = file_system_for(actor=self.actor, may="storage.operate", uid=uid)
        body = self.read_body(ExportCreateSerializer)

        def effect() -> tuple[int, dict[str, Any], str]:
            made = export_begin(actor=self.actor, file_system=fs, paths=body["paths"])
            return 202, dict(ExportSerializer(made).data), f"/api/v1/file-systems/{fs.uid}/exports"

        return idempotent(request, effect)
