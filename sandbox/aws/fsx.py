"""FSx for Lustre: file systems with their life cycle, S3 associations, repository tasks and the metrics of both.

A file system is CREATING for a while, UPDATING while it grows, DELETING for a while and then gone. Exports lag
while an ``export-lag`` fault is in force; the age of the oldest queued message shows it in CloudWatch.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from sandbox.aws.errors import AwsError
from sandbox.aws.network import efa_group_problem, subnet_of
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.service import Service, hex_id, tags_of

_THROUGHPUTS: Final = (125, 250, 500, 1000)
#: GiB steps of an EFA-enabled SSD file system by MB/s per TiB.
_EFA_STEPS: Final = {125: 38_400, 250: 19_200, 500: 9_600, 1000: 4_800}
_STEP_GIB: Final = 2400
_MOST_ASSOCIATIONS: Final = 8
_OST_GIB: Final = 1200
#: Share of each storage target that pretends to be used; the first is the fullest.
_USED: Final = (0.62, 0.55, 0.58, 0.51)


class Fsx(Service):
    """Only LUSTRE PERSISTENT_2 on SSD: what training uses."""

    name: ClassVar[str] = "fsx"
    refusal: ClassVar[str] = "BadRequest"

    # --- time

    def settle(self) -> None:
        """Creating, updating and deleting end by the clock."""
        now, create_s, delete_s = time.time(), self.options.storage_create_s, self.options.storage_delete_s
        systems, associations = self.rows("file_systems"), self.rows("associations")
        for fs in list(systems.values()):
            if fs["lifecycle"] == "CREATING" and now >= fs["since"] + create_s:
                failed = self.world.fault_use("storage-fails", what="file-system")
                fs |= {"lifecycle": "FAILED", "failure": "The sandbox was told to fail it."} if failed else {}
                fs["lifecycle"] = "FAILED" if failed else "AVAILABLE"
            elif fs["lifecycle"] == "UPDATING" and now >= fs["since"] + create_s:
                fs |= {"lifecycle": "AVAILABLE", "capacity_gib": fs["target_gib"]}
            elif fs["lifecycle"] == "DELETING" and now >= fs["since"] + delete_s:
                del systems[fs["id"]]
                for gone in [a for a in associations.values() if a["file_system_id"] == fs["id"]]:
                    del associations[gone["id"]]
        for association in list(associations.values()):
            if association["lifecycle"] == "CREATING" and now >= association["since"] + create_s / 2:
                broken = self.world.fault_use("storage-fails", what="association")
                association["lifecycle"] = "MISCONFIGURED" if broken else "AVAILABLE"
                if broken:
                    association["failure"] = "Amazon FSx cannot reach the S3 bucket: access denied."
            elif association["lifecycle"] == "DELETING" and now >= association["since"] + delete_s:
                del associations[association["id"]]
        for task in self.rows("tasks").values():
            if task["lifecycle"] == "EXECUTING" and now >= task["since"] + create_s / 2:
                task |= {"lifecycle": "SUCCEEDED", "ended_at": now}
                self.rows("queues").pop(task["file_system_id"], None)

    def census(self) -> dict[str, int]:
        """Lustre file systems and their associations."""
        return {
            "lustre_file_systems": len(self.rows("file_systems")),
            "repository_associations": len(self.rows("associations")),
        }

    # --- file systems

    def create_file_system(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A new file system, or the one this token made."""
        made = self.once(asked.get("ClientRequestToken"), asked, lambda: self._create(asked))
        fs = self.rows("file_systems").get(made)
        if fs is None:
            raise AwsError("IncompatibleParameterError", "The file system of this client request token was deleted.")
        return {"FileSystem": self._view(fs)}

    def _create(self, asked: Mapping[str, Any]) -> str:
        lustre = asked.get("LustreConfiguration") or {}
        if asked["FileSystemType"] != "LUSTRE" or lustre.get("DeploymentType") != "PERSISTENT_2":
            raise AwsError("BadRequest", "The sandbox makes only LUSTRE file systems of type PERSISTENT_2.")
        if asked.get("StorageType", "SSD") != "SSD":
            raise AwsError("BadRequest", "The sandbox makes only SSD file systems.")
        if "ImportPath" in lustre or "ExportPath" in lustre:
            raise AwsError("BadRequest", "ImportPath and ExportPath are not supported with PERSISTENT_2.")
        throughput = lustre.get("PerUnitStorageThroughput")
        if throughput not in _THROUGHPUTS:
            raise AwsError(
                "InvalidPerUnitStorageThroughput", f"PerUnitStorageThroughput must be one of {_THROUGHPUTS}."
            )
        capacity = asked.get("StorageCapacity", 0)
        self._check_capacity(capacity, throughput, bool(lustre.get("EfaEnabled")))
        if len(asked["SubnetIds"]) != 1:
            raise AwsError("InvalidNetworkSettings", "A Lustre file system takes exactly one subnet.")
        subnet = subnet_of(self.options.region, asked["SubnetIds"][0])
        if subnet is None:
            raise AwsError("InvalidNetworkSettings", f"The subnet ID '{asked['SubnetIds'][0]}' does not exist")
        if lustre.get("EfaEnabled"):
            problem = efa_group_problem(self.options.region, asked.get("SecurityGroupIds") or [])
            if problem:
                raise AwsError("InvalidNetworkSettings", f"Insufficient security group permissions: {problem}")
        fs_id = hex_id("fs")
        self.rows("file_systems")[fs_id] = {
            "id": fs_id,
            "lifecycle": "CREATING",
            "since": time.time(),
            "created_at": time.time(),
            "capacity_gib": capacity,
            "target_gib": capacity,
            "throughput": throughput,
            "efa": bool(lustre.get("EfaEnabled")),
            "compression": lustre.get("DataCompressionType", "NONE"),
            "metadata": lustre.get("MetadataConfiguration"),
            "version": asked.get("FileSystemTypeVersion", "2.15"),
            "subnet_id": subnet.id,
            "vpc_id": subnet.vpc_id,
            "mount_name": secrets.token_hex(4),
            "tags": tags_of(asked.get("Tags")),
        }
        return fs_id

    def _check_capacity(self, capacity: int, throughput: int, efa: bool) -> None:
        if capacity != _OST_GIB and (capacity <= 0 or capacity % _STEP_GIB):
            raise AwsError("BadRequest", f"StorageCapacity {capacity} must be 1200, 2400 or a multiple of 2400 GiB.")
        if efa and capacity % _EFA_STEPS[throughput]:
            raise AwsError(
                "BadRequest",
                f"With EFA at {throughput} MB/s/TiB the capacity must be a multiple of {_EFA_STEPS[throughput]} GiB.",
            )

    def describe_file_systems(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All, or those named; an unknown id is an error."""
        systems = self.rows("file_systems")
        for fs_id in asked.get("FileSystemIds") or []:
            self._file_system(fs_id)
        chosen = [systems[i] for i in asked.get("FileSystemIds") or systems]
        rows, following = self.page(chosen, asked)
        return {"FileSystems": [self._view(fs) for fs in rows], **({"NextToken": following} if following else {})}

    def update_file_system(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Grow; one increase at a time, never smaller."""
        fs = self._file_system(asked["FileSystemId"])
        wanted = asked.get("StorageCapacity")
        if wanted is None:
            raise AwsError("BadRequest", "The sandbox changes only StorageCapacity.")
        if fs["lifecycle"] == "AVAILABLE" and wanted == fs["capacity_gib"]:
            return {"FileSystem": self._view(fs)}
        if fs["lifecycle"] != "AVAILABLE":
            raise AwsError("BadRequest", "Unable to perform the storage capacity update: an update is in progress.")
        if wanted < fs["capacity_gib"]:
            raise AwsError("BadRequest", "The storage capacity of a file system cannot be decreased.")
        self._check_capacity(wanted, fs["throughput"], fs["efa"])
        fs |= {"lifecycle": "UPDATING", "since": time.time(), "target_gib": wanted}
        return {"FileSystem": self._view(fs)}

    def delete_file_system(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Deletion begins; what was not exported is lost, as with AWS."""
        fs = self._file_system(asked["FileSystemId"])
        if fs["lifecycle"] in ("CREATING", "UPDATING"):
            raise AwsError("BadRequest", f"The file system is {fs['lifecycle']} and cannot be deleted now.")
        if fs["lifecycle"] != "DELETING":
            fs |= {"lifecycle": "DELETING", "since": time.time()}
        return {"FileSystemId": fs["id"], "Lifecycle": "DELETING"}

    def _file_system(self, fs_id: str) -> dict[str, Any]:
        fs = self.rows("file_systems").get(fs_id)
        if fs is None:
            raise AwsError("FileSystemNotFound", f"File system '{fs_id}' does not exist.")
        return fs

    def _arn(self, kind: str, thing_id: str) -> str:
        return f"arn:aws:fsx:{self.options.region}:{ACCOUNT_ID}:{kind}/{thing_id}"

    def _view(self, fs: Mapping[str, Any]) -> dict[str, Any]:
        lustre: dict[str, Any] = {
            "DeploymentType": "PERSISTENT_2",
            "PerUnitStorageThroughput": fs["throughput"],
            "MountName": fs["mount_name"],
            "DataCompressionType": fs["compression"],
            "EfaEnabled": fs["efa"],
        }
        if fs["metadata"]:
            lustre["MetadataConfiguration"] = {"Iops": 12_000, **fs["metadata"]}
        shown: dict[str, Any] = {
            "OwnerId": ACCOUNT_ID,
            "CreationTime": fs["created_at"],
            "FileSystemId": fs["id"],
            "FileSystemType": "LUSTRE",
            "FileSystemTypeVersion": fs["version"],
            "Lifecycle": fs["lifecycle"],
            "StorageCapacity": fs["capacity_gib"],
            "StorageType": "SSD",
            "VpcId": fs["vpc_id"],
            "SubnetIds": [fs["subnet_id"]],
            "DNSName": f"{fs['id']}.fsx.{self.options.region}.amazonaws.com",
            "ResourceARN": self._arn("file-system", fs["id"]),
            "LustreConfiguration": lustre,
        }
        if fs["tags"]:
            shown["Tags"] = [{"Key": k, "Value": v} for k, v in fs["tags"].items()]
        if fs.get("failure"):
            shown["FailureDetails"] = {"Message": fs["failure"]}
        if fs["lifecycle"] == "UPDATING":
            done = min(99, int(100 * (time.time() - fs["since"]) / max(0.001, self.options.storage_create_s)))
            shown["AdministrativeActions"] = [
                {
                    "AdministrativeActionType": "FILE_SYSTEM_UPDATE",
                    "ProgressPercent": done,
                    "RequestTime": fs["since"],
                    "Status": "IN_PROGRESS",
                    "TargetFileSystemValues": {"StorageCapacity": fs["target_gib"]},
                }
            ]
        return shown

    # --- data repository associations

    def create_data_repository_association(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Ties a folder to an S3 prefix; neither may overlap another's."""
        made = self.once(asked.get("ClientRequestToken"), asked, lambda: self._associate(asked))
        association = self.rows("associations").get(made)
        if association is None:
            raise AwsError("IncompatibleParameterError", "The association of this client request token was deleted.")
        return {"Association": self._association_view(association)}

    def _associate(self, asked: Mapping[str, Any]) -> str:
        fs = self._file_system(asked["FileSystemId"])
        if fs["lifecycle"] not in ("AVAILABLE", "UPDATING"):
            raise AwsError("BadRequest", f"The file system is {fs['lifecycle']}, not AVAILABLE.")
        mine = [a for a in self.rows("associations").values() if a["file_system_id"] == fs["id"]]
        if len(mine) >= _MOST_ASSOCIATIONS:
            raise AwsError("ServiceLimitExceeded", "A file system takes at most 8 data repository associations.")
        path, repository = asked.get("FileSystemPath", "/"), asked["DataRepositoryPath"]
        if not repository.startswith("s3://"):
            raise AwsError("BadRequest", "DataRepositoryPath must be an S3 address (s3://bucket/prefix/).")
        for other in mine:
            if _overlap(path, other["path"]):
                raise AwsError("BadRequest", f"FileSystemPath {path} overlaps {other['path']} of {other['id']}.")
            if _overlap(repository, other["repository"]):
                raise AwsError(
                    "BadRequest", f"DataRepositoryPath {repository} overlaps {other['repository']} of {other['id']}."
                )
        dra_id = hex_id("dra")
        s3 = asked.get("S3") or {}
        self.rows("associations")[dra_id] = {
            "id": dra_id,
            "file_system_id": fs["id"],
            "path": path,
            "repository": repository,
            "lifecycle": "CREATING",
            "since": time.time(),
            "created_at": time.time(),
            "batch_import": bool(asked.get("BatchImportMetaDataOnCreate")),
            "imports": (s3.get("AutoImportPolicy") or {}).get("Events", []),
            "exports": (s3.get("AutoExportPolicy") or {}).get("Events", []),
            "tags": tags_of(asked.get("Tags")),
        }
        return dra_id

    def describe_data_repository_associations(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All, those named, or those of some file systems."""
        known = self.rows("associations")
        for dra_id in asked.get("AssociationIds") or []:
            self._association(dra_id)
        wanted = _wanted(asked, "file-system-id")
        chosen = [
            known[i] for i in asked.get("AssociationIds") or known if not wanted or known[i]["file_system_id"] in wanted
        ]
        rows, following = self.page(chosen, asked, default=25)
        views = [self._association_view(a) for a in rows]
        return {"Associations": views, **({"NextToken": following} if following else {})}

    def update_data_repository_association(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Other events; an empty export list turns automatic export off."""
        association = self._association(asked["AssociationId"])
        s3 = asked.get("S3") or {}
        if "AutoImportPolicy" in s3:
            association["imports"] = s3["AutoImportPolicy"].get("Events", [])
        if "AutoExportPolicy" in s3:
            association["exports"] = s3["AutoExportPolicy"].get("Events", [])
        return {"Association": self._association_view(association)}

    def delete_data_repository_association(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The tie goes, the data on both sides stays."""
        association = self._association(asked["AssociationId"])
        if association["lifecycle"] != "DELETING":
            association |= {"lifecycle": "DELETING", "since": time.time()}
        return {"AssociationId": association["id"], "Lifecycle": "DELETING", "DeleteDataInFileSystem": False}

    def _association(self, dra_id: str) -> dict[str, Any]:
        association = self.rows("associations").get(dra_id)
        if association is None:
            raise AwsError("DataRepositoryAssociationNotFound", f"Data repository association '{dra_id}' is unknown.")
        return association

    def _association_view(self, association: Mapping[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "AssociationId": association["id"],
            "ResourceARN": self._arn(f"association/{association['file_system_id']}", association["id"]),
            "FileSystemId": association["file_system_id"],
            "Lifecycle": association["lifecycle"],
            "FileSystemPath": association["path"],
            "DataRepositoryPath": association["repository"],
            "BatchImportMetaDataOnCreate": association["batch_import"],
            "ImportedFileChunkSize": 1024,
            "S3": {
                "AutoImportPolicy": {"Events": association["imports"]},
                "AutoExportPolicy": {"Events": association["exports"]},
            },
            "CreationTime": association["created_at"],
        }
        if association["tags"]:
            shown["Tags"] = [{"Key": k, "Value": v} for k, v in association["tags"].items()]
        if association.get("failure"):
            shown["FailureDetails"] = {"Message": association["failure"]}
        return shown

    # --- repository tasks

    def create_data_repository_task(self, asked: dict[str, Any]) -> dict[str, Any]:
        """An explicit export; it ends after a while and leaves the queue empty."""
        made = self.once(asked.get("ClientRequestToken"), asked, lambda: self._begin_task(asked))
        return {"DataRepositoryTask": self._task_view(self.rows("tasks")[made])}

    def _begin_task(self, asked: Mapping[str, Any]) -> str:
        fs = self._file_system(asked["FileSystemId"])
        running = [
            t for t in self.rows("tasks").values() if t["file_system_id"] == fs["id"] and t["lifecycle"] == "EXECUTING"
        ]
        if running:
            raise AwsError("DataRepositoryTaskExecuting", "Another task is executing on the file system.")
        if not any(a["file_system_id"] == fs["id"] for a in self.rows("associations").values()):
            raise AwsError("BadRequest", "The file system is not linked to a data repository.")
        task_id = hex_id("task")
        self.rows("tasks")[task_id] = {
            "id": task_id,
            "file_system_id": fs["id"],
            "type": asked["Type"],
            "paths": asked.get("Paths") or [],
            "lifecycle": "EXECUTING",
            "since": time.time(),
            "tags": tags_of(asked.get("Tags")),
        }
        return task_id

    def describe_data_repository_tasks(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All, those named, or those of some file systems."""
        known = self.rows("tasks")
        for task_id in asked.get("TaskIds") or []:
            if task_id not in known:
                raise AwsError("DataRepositoryTaskNotFound", f"Data repository task '{task_id}' does not exist.")
        wanted = _wanted(asked, "file-system-id")
        chosen = [known[i] for i in asked.get("TaskIds") or known if not wanted or known[i]["file_system_id"] in wanted]
        rows, following = self.page(chosen, asked)
        views = [self._task_view(t) for t in rows]
        return {"DataRepositoryTasks": views, **({"NextToken": following} if following else {})}

    def _task_view(self, task: Mapping[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "TaskId": task["id"],
            "Lifecycle": task["lifecycle"],
            "Type": task["type"],
            "CreationTime": task["since"],
            "StartTime": task["since"],
            "FileSystemId": task["file_system_id"],
            "ResourceARN": self._arn("task", task["id"]),
            "Paths": task["paths"],
            "Report": {"Enabled": False},
        }
        if "ended_at" in task:
            shown["EndTime"] = task["ended_at"]
            shown["Status"] = {"TotalCount": 0, "SucceededCount": 0, "FailedCount": 0}
        return shown

    # --- metrics

    def publish(self, backend: Any) -> None:
        """Put fresh points of this minute into moto's CloudWatch, in place of the last ones."""
        with self.lock:
            self.settle()
            backend.metric_data = [d for d in backend.metric_data if d.namespace != "AWS/FSx"]
            now = time.time()
            for fs in self.rows("file_systems").values():
                lagging = self.world.fault_use("export-lag")
                queues = self.rows("queues")
                if lagging is None:
                    queues.pop(fs["id"], None)
                else:
                    queues.setdefault(fs["id"], {"since": now - 1})
                age = now - queues[fs["id"]]["since"] if fs["id"] in queues else 0.0
                oldest = _point(now, "AgeOfOldestQueuedMessage", fs["id"], age, "Seconds", export=True)
                backend.put_metric_data("AWS/FSx", [oldest])
                osts = max(1, fs["capacity_gib"] // _OST_GIB)
                free = [_OST_GIB * 2**30 * (1 - _USED[i % len(_USED)]) for i in range(osts)]
                backend.put_metric_data(
                    "AWS/FSx", [_point(now, "FreeDataStorageCapacity", fs["id"], f, "Bytes") for f in free]
                )
            self.save()


def _point(at: float, metric: str, fs_id: str, value: float, unit: str, *, export: bool = False) -> dict[str, Any]:
    dimensions = [{"Name": "FileSystemId", "Value": fs_id}]
    if export:
        dimensions.append({"Name": "Publisher", "Value": "AutoExport"})
    return {
        "MetricName": metric,
        "Dimensions": dimensions,
        # moto keeps instants of CloudWatch without a zone.
        "Timestamp": datetime.fromtimestamp(at, UTC).replace(tzinfo=None),
        "Value": value,
        "Unit": unit,
    }


def _wanted(asked: Mapping[str, Any], name: str) -> set[str]:
    filters: Sequence[Mapping[str, Any]] = asked.get("Filters") or []
    return {value for f in filters if f["Name"] == name for value in f["Values"]}


def _overlap(one: str, other: str) -> bool:
    """Whether one path is the other or lies below it."""
    a, b = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return a.startswith(b) or b.startswith(a)
