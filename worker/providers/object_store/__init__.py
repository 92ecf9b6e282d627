"""Object stores: a folder on a disk, or S3 and what speaks like it."""

from worker.providers.object_store.folder import FolderStore
from worker.providers.object_store.s3 import S3Store

__all__ = ["FolderStore", "S3Store"]
