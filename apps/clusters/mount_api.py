"""API of the mounts of a cluster."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.models import Mount
from apps.clusters.mount_services import mount_add, mount_remove
from apps.clusters.selectors import cluster_for, mount_for, mounts_of
from apps.clusters.states import MountKind, MountPurpose
from apps.core.api import Endpoint, ListEndpoint, idempotent
from apps.storage.selectors import file_system_for


class MountSerializer(serializers.ModelSerializer[Mount]):
    """Where nodes find some data."""

    file_system = serializers.SerializerMethodField()

    class Meta:
        model = Mount
        fields = ["uid", "kind", "purpose", "path", "file_system", "source", "created_at", "version"]

    def get_file_system(self, mount: Mount) -> str | None:
        """Its uid, none for what the portal does not hold."""
        return mount.file_system.uid if mount.file_system else None


class MountCreateSerializer(serializers.Serializer[Any]):
    """A mount to record."""

    kind = serializers.ChoiceField(choices=MountKind.choices)
    purpose = serializers.ChoiceField(choices=MountPurpose.choices)
    path = serializers.CharField(max_length=200)
    file_system = serializers.CharField(max_length=60, required=False, default="", allow_blank=True)
    source = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)  # type: ignore[assignment]


class Mounts(ListEndpoint):
    """The mounts of one cluster."""

    rights = {"GET": "clusters.view", "POST": "clusters.operate"}
    serializer_class = MountSerializer

    def get_rows(self) -> Any:
        """By path."""
        return mounts_of(cluster_for(actor=self.actor, may="clusters.view", uid=self.kwargs["uid"]))

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return MountCreateSerializer if self.request.method == "POST" else MountSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Record a mount."""
        actor = self.actor
        cluster = cluster_for(actor=actor, may="clusters.operate", uid=uid)
        body = self.read_body(MountCreateSerializer)
        named = body.pop("file_system")
        file_system = file_system_for(actor=actor, may="storage.view", uid=named) if named else None

        def effect() -> tuple[int, dict[str, Any], str]:
            mount = mount_add(actor=actor, cluster=cluster, file_system=file_system, **body)
            return 201, dict(MountSerializer(mount).data), f"/api/v1/mounts/{mount.uid}"

        return idempotent(request, effect)


class MountDetail(Endpoint):
    """One mount."""

    rights = {"GET": "clusters.view", "DELETE": "clusters.operate"}
    serializer_class = MountSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        return Response(MountSerializer(mount_for(actor=self.actor, may="clusters.view", uid=uid)).data)

    def delete(self, request: Request, uid: str) -> Response:
        """Take it out of the record; nothing on the nodes changes."""
        mount_remove(actor=self.actor, mount=mount_for(actor=self.actor, may="clusters.operate", uid=uid))
        return Response(status=204)
