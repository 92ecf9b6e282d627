"""EFS: file systems and mount targets, each creating for a while and deleting for a while."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from sandbox.aws.errors import AwsError
from sandbox.aws.network import subnet_of
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.service import Service, hex_id, tags_of


class Efs(Service):
    """A creation token names one file system for ever, as with AWS."""

    name: ClassVar[str] = "efs"
    refusal: ClassVar[str] = "BadRequest"

    def settle(self) -> None:
        """Creating and deleting end by the clock."""
        now = time.time()
        for kind in ("file_systems", "mount_targets"):
            for thing in list(self.rows(kind).values()):
                if thing["state"] == "creating" and now >= thing["since"] + self.options.storage_create_s / 2:
                    thing["state"] = "available"
                elif thing["state"] == "deleting" and now >= thing["since"] + self.options.storage_delete_s:
                    del self.rows(kind)[thing["id"]]

    def census(self) -> dict[str, int]:
        """File systems and their mount targets."""
        return {
            "efs_file_systems": len(self.rows("file_systems")),
            "efs_mount_targets": len(self.rows("mount_targets")),
        }

    def create_file_system(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Raises ``AwsError`` FileSystemAlreadyExists for a creation token that made one."""
        for fs in self.rows("file_systems").values():
            if fs["token"] == asked["CreationToken"]:
                raise AwsError(
                    "FileSystemAlreadyExists",
                    f"File system '{fs['id']}' already exists with creation token '{asked['CreationToken']}'",
                )
        fs_id = hex_id("fs")
        fs = {
            "id": fs_id,
            "token": asked["CreationToken"],
            "state": "creating",
            "since": time.time(),
            "created_at": time.time(),
            "encrypted": bool(asked.get("Encrypted")),
            "throughput_mode": asked.get("ThroughputMode", "bursting"),
            "performance_mode": asked.get("PerformanceMode", "generalPurpose"),
            "tags": tags_of(asked.get("Tags")),
        }
        self.rows("file_systems")[fs_id] = fs
        return self._view(fs)

    def describe_file_systems(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All, one by id, or one by creation token."""
        if asked.get("FileSystemId"):
            found = [self._file_system(asked["FileSystemId"])]
        else:
            token = asked.get("CreationToken")
            found = [fs for fs in self.rows("file_systems").values() if token in (None, fs["token"])]
        return {"FileSystems": [self._view(fs) for fs in found]}

    def delete_file_system(self, asked: dict[str, Any]) -> None:
        """Refused while a mount target exists."""
        fs = self._file_system(asked["FileSystemId"])
        if any(t["file_system_id"] == fs["id"] for t in self.rows("mount_targets").values()):
            raise AwsError("FileSystemInUse", f"File system '{fs['id']}' has mount targets.")
        if fs["state"] != "deleting":
            fs |= {"state": "deleting", "since": time.time()}

    def create_mount_target(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One a zone. Raises ``AwsError`` MountTargetConflict for a second in the same zone."""
        fs = self._file_system(asked["FileSystemId"])
        if fs["state"] != "available":
            raise AwsError("IncorrectFileSystemLifeCycleState", f"File system '{fs['id']}' is {fs['state']}.")
        subnet = subnet_of(self.options.region, asked["SubnetId"])
        if subnet is None:
            raise AwsError("SubnetNotFound", f"The subnet ID '{asked['SubnetId']}' does not exist")
        for other in self.rows("mount_targets").values():
            if other["file_system_id"] == fs["id"] and other["zone"] == subnet.availability_zone:
                raise AwsError("MountTargetConflict", "mount target already exists in this AZ")
        target = {
            "id": hex_id("fsmt"),
            "file_system_id": fs["id"],
            "subnet_id": subnet.id,
            "vpc_id": subnet.vpc_id,
            "zone": subnet.availability_zone,
            "state": "creating",
            "since": time.time(),
        }
        self.rows("mount_targets")[target["id"]] = target
        return _target_view(target)

    def describe_mount_targets(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Those of a file system, or one."""
        if asked.get("FileSystemId"):
            self._file_system(asked["FileSystemId"])
        found = [
            t
            for t in self.rows("mount_targets").values()
            if asked.get("FileSystemId") in (None, t["file_system_id"])
            and asked.get("MountTargetId") in (None, t["id"])
        ]
        if asked.get("MountTargetId") and not found:
            raise AwsError("MountTargetNotFound", f"Mount target '{asked['MountTargetId']}' does not exist.")
        return {"MountTargets": [_target_view(t) for t in found]}

    def delete_mount_target(self, asked: dict[str, Any]) -> None:
        """Deletion begins."""
        target = self.rows("mount_targets").get(asked["MountTargetId"])
        if target is None:
            raise AwsError("MountTargetNotFound", f"Mount target '{asked['MountTargetId']}' does not exist.")
        if target["state"] != "deleting":
            target |= {"state": "deleting", "since": time.time()}

    def _file_system(self, fs_id: str) -> dict[str, Any]:
        fs = self.rows("file_systems").get(fs_id)
        if fs is None:
            raise AwsError("FileSystemNotFound", f"File system '{fs_id}' does not exist.")
        return fs

    def _view(self, fs: Mapping[str, Any]) -> dict[str, Any]:
        targets = [t for t in self.rows("mount_targets").values() if t["file_system_id"] == fs["id"]]
        return {
            "OwnerId": ACCOUNT_ID,
            "CreationToken": fs["token"],
            "FileSystemId": fs["id"],
            "FileSystemArn": f"arn:aws:elasticfilesystem:{self.options.region}:{ACCOUNT_ID}:file-system/{fs['id']}",
            "CreationTime": fs["created_at"],
            "LifeCycleState": fs["state"],
            "Name": fs["tags"].get("Name", ""),
            "NumberOfMountTargets": len(targets),
            "SizeInBytes": {"Value": 6144},
            "PerformanceMode": fs["performance_mode"],
            "Encrypted": fs["encrypted"],
            "ThroughputMode": fs["throughput_mode"],
            "Tags": [{"Key": k, "Value": v} for k, v in fs["tags"].items()],
        }


def _target_view(target: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "OwnerId": ACCOUNT_ID,
        "MountTargetId": target["id"],
        "FileSystemId": target["file_system_id"],
        "SubnetId": target["subnet_id"],
        "LifeCycleState": target["state"],
        "AvailabilityZoneName": target["zone"],
        "VpcId": target["vpc_id"],
    }
