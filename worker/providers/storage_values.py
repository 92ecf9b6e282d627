"""What goes into and comes out of providers of shared storage: file systems, S3 associations, exports, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class FileSystemSpec:
    """A file system to make. ``kind`` is "fsx-lustre" or "efs"; the Lustre members mean nothing for EFS.

    ``throughput_mb_s_tib`` is MB/s per TiB; ``metadata_iops`` 0 leaves the metadata servers automatic.
    """

    kind: str
    name: str
    subnet_id: str
    security_group_ids: tuple[str, ...]
    tags: Mapping[str, str]
    capacity_gib: int = 0
    throughput_mb_s_tib: int = 0
    has_efa: bool = False
    is_compressed: bool = True
    metadata_iops: int = 0


@dataclass(frozen=True, slots=True)
class SeenFileSystem:
    """A file system as AWS describes it; ``state`` is AWS's word in upper case."""

    kind: str
    provider_id: str
    state: str
    failure: str
    capacity_gib: int
    throughput_mb_s_tib: int
    has_efa: bool
    dns_name: str
    mount_name: str
    update_percent: int | None
    tags: Mapping[str, str]
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class AssociationSpec:
    """A folder of a Lustre file system tied to an S3 prefix; events are NEW, CHANGED, DELETED."""

    file_system_id: str
    path: str
    repository: str
    imports: tuple[str, ...]
    exports: tuple[str, ...]
    is_imported_at_start: bool
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SeenAssociation:
    """An association as AWS describes it."""

    provider_id: str
    file_system_id: str
    path: str
    repository: str
    state: str
    failure: str
    imports: tuple[str, ...]
    exports: tuple[str, ...]
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StorageReading:
    """Metrics of one file system, None where CloudWatch had no point.

    ``export_queue_age_s`` is the age of the oldest export that still waits; ``targets`` the number of object
    storage targets, ``fullest_free_bytes`` what the fullest of them has left, ``free_bytes`` the sum.
    """

    provider_id: str
    export_queue_age_s: float | None = None
    free_bytes: int | None = None
    fullest_free_bytes: int | None = None
    targets: int | None = None
