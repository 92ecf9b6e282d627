"""The port ``FileStorage`` on FSx for Lustre and EFS, with CloudWatch for queue age and fullness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from worker.providers import storage_values as sv
from worker.providers import values as v
from worker.providers.aws import convert
from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import creating_client, reading_client
from worker.providers.errors import Conflict, NotFound, Unknown

LUSTRE: Final = "fsx-lustre"
EFS: Final = "efs"
#: How far back a metric may lie; FSx publishes every minute.
_METRICS_BACK: Final = timedelta(minutes=15)
_PERIOD_S: Final = 60


class AwsFileStorage:
    """Implements ``worker.providers.ports.FileStorage``; see there for the contract."""

    def __init__(self, access: v.CloudAccess) -> None:
        self._access = access

    # --- clients, opened when first used: an account may allow only some of these services

    @property
    def _fsx(self) -> Any:
        return reading_client(self._access, "fsx")

    @property
    def _efs(self) -> Any:
        return reading_client(self._access, "efs")

    # --- file systems

    def file_system_ensure(self, spec: sv.FileSystemSpec, client_token: str) -> sv.SeenFileSystem:
        """Create, or return what this token made."""
        return self._efs_ensure(spec, client_token) if spec.kind == EFS else self._lustre_ensure(spec, client_token)

    def _lustre_ensure(self, spec: sv.FileSystemSpec, client_token: str) -> sv.SeenFileSystem:
        metadata: dict[str, Any] = {"Mode": "AUTOMATIC"}
        if spec.metadata_iops:
            metadata = {"Mode": "USER_PROVISIONED", "Iops": spec.metadata_iops}
        with aws_call("CreateFileSystem"):
            answer = creating_client(self._access, "fsx").create_file_system(
                ClientRequestToken=client_token,
                FileSystemType="LUSTRE",
                FileSystemTypeVersion="2.15",
                StorageType="SSD",
                StorageCapacity=spec.capacity_gib,
                SubnetIds=[spec.subnet_id],
                SecurityGroupIds=list(spec.security_group_ids),
                Tags=_tags({**spec.tags, "Name": spec.name}),
                LustreConfiguration={
                    "DeploymentType": "PERSISTENT_2",
                    "PerUnitStorageThroughput": spec.throughput_mb_s_tib,
                    "EfaEnabled": spec.has_efa,
                    "DataCompressionType": "LZ4" if spec.is_compressed else "NONE",
                    "MetadataConfiguration": metadata,
                },
            )
        return _lustre(convert.part(answer, "FileSystem", "CreateFileSystem"))

    def _efs_ensure(self, spec: sv.FileSystemSpec, client_token: str) -> sv.SeenFileSystem:
        try:
            with aws_call("CreateFileSystem"):
                answer = creating_client(self._access, "efs").create_file_system(
                    CreationToken=client_token,
                    Encrypted=True,
                    ThroughputMode="elastic",
                    Tags=_tags({**spec.tags, "Name": spec.name}),
                )
            return _efs(answer, self._access.region)
        except Conflict as exc:
            if exc.code != "FileSystemAlreadyExists":
                raise
            with aws_call("DescribeFileSystems"):
                found = self._efs.describe_file_systems(CreationToken=client_token)["FileSystems"]
            if not found:
                raise
            return _efs(found[0], self._access.region)

    def file_systems(self, kind: str) -> tuple[sv.SeenFileSystem, ...]:
        """All of one kind in the account."""
        if kind == EFS:
            return tuple(
                _efs(raw, self._access.region)
                for raw in self._pages(self._efs.describe_file_systems, "FileSystems", "Marker", "NextMarker")
            )
        return tuple(
            _lustre(raw)
            for raw in self._pages(self._fsx.describe_file_systems, "FileSystems")
            if raw.get("FileSystemType") == "LUSTRE"
        )

    def _pages(
        self, call: Any, key: str, asks: str = "NextToken", gives: str = "NextToken", **asked: Any
    ) -> Iterator[Mapping[str, Any]]:
        token = ""
        while True:
            with aws_call(key):
                answer = call(**asked, **({asks: token} if token else {}))
            yield from convert.part(answer, key, key)
            token = str(answer.get(gives) or "")
            if not token:
                return

    def file_system_grow(self, provider_id: str, capacity_gib: int, client_token: str) -> None:
        """Ask for a larger capacity."""
        with aws_call("UpdateFileSystem"):
            creating_client(self._access, "fsx").update_file_system(
                FileSystemId=provider_id, StorageCapacity=capacity_gib, ClientRequestToken=client_token
            )

    def file_system_delete(self, kind: str, provider_id: str) -> None:
        """Ask for deletion; ``NotFound`` when gone."""
        with aws_call("DeleteFileSystem"):
            if kind == EFS:
                self._efs.delete_file_system(FileSystemId=provider_id)
            else:
                self._fsx.delete_file_system(FileSystemId=provider_id)

    # --- EFS mount targets

    def mount_target_ensure(self, provider_id: str, subnet_id: str, security_group_ids: Sequence[str]) -> str:
        """A mount target in the subnet's zone; its state."""
        for target in self._mount_targets(provider_id):
            if target.get("SubnetId") == subnet_id:
                return str(target.get("LifeCycleState", "")).upper()
        groups: Any = {"SecurityGroups": list(security_group_ids)} if security_group_ids else {}
        with aws_call("CreateMountTarget"):
            made = creating_client(self._access, "efs").create_mount_target(
                FileSystemId=provider_id, SubnetId=subnet_id, **groups
            )
        return str(made.get("LifeCycleState", "")).upper()

    def mount_targets_delete(self, provider_id: str) -> int:
        """Ask for the deletion of every mount target; how many still exist."""
        targets = list(self._mount_targets(provider_id))
        for target in targets:
            if str(target.get("LifeCycleState")) in ("available", "creating", "error"):
                try:
                    with aws_call("DeleteMountTarget"):
                        self._efs.delete_mount_target(MountTargetId=target["MountTargetId"])
                except NotFound:
                    continue
        return len(targets)

    def _mount_targets(self, provider_id: str) -> Iterator[Mapping[str, Any]]:
        return self._pages(
            self._efs.describe_mount_targets, "MountTargets", "Marker", "NextMarker", FileSystemId=provider_id
        )

    # --- data repository associations

    def association_ensure(self, spec: sv.AssociationSpec, client_token: str) -> sv.SeenAssociation:
        """Tie a folder to S3, or return what this token tied."""
        policies: dict[str, Any] = {}
        if spec.imports:
            policies["AutoImportPolicy"] = {"Events": list(spec.imports)}
        if spec.exports:
            policies["AutoExportPolicy"] = {"Events": list(spec.exports)}
        with aws_call("CreateDataRepositoryAssociation"):
            answer = creating_client(self._access, "fsx").create_data_repository_association(
                ClientRequestToken=client_token,
                FileSystemId=spec.file_system_id,
                FileSystemPath=spec.path,
                DataRepositoryPath=spec.repository,
                BatchImportMetaDataOnCreate=spec.is_imported_at_start,
                Tags=_tags(spec.tags),
                **({"S3": policies} if policies else {}),
            )
        return _association(convert.part(answer, "Association", "CreateDataRepositoryAssociation"))

    def associations(self, provider_id: str) -> tuple[sv.SeenAssociation, ...]:
        """All associations of a file system."""
        return tuple(
            _association(raw)
            for raw in self._pages(
                self._fsx.describe_data_repository_associations,
                "Associations",
                Filters=[{"Name": "file-system-id", "Values": [provider_id]}],
            )
        )

    def association_delete(self, association_id: str) -> None:
        """Untie; ``NotFound`` when gone."""
        with aws_call("DeleteDataRepositoryAssociation"):
            self._fsx.delete_data_repository_association(AssociationId=association_id, DeleteDataInFileSystem=False)

    # --- exports

    def export_begin(self, provider_id: str, paths: Sequence[str], client_token: str) -> str:
        """Export everything that changed below ``paths``; the task's id."""
        with aws_call("CreateDataRepositoryTask"):
            answer = creating_client(self._access, "fsx").create_data_repository_task(
                ClientRequestToken=client_token,
                FileSystemId=provider_id,
                Type="EXPORT_TO_REPOSITORY",
                Paths=list(paths),
                Report={"Enabled": False},
            )
        return str(convert.part(answer, "DataRepositoryTask", "CreateDataRepositoryTask")["TaskId"])

    def export_state(self, task_id: str) -> str:
        """The task's life cycle word."""
        with aws_call("DescribeDataRepositoryTasks"):
            answer = self._fsx.describe_data_repository_tasks(TaskIds=[task_id])
        tasks = convert.part(answer, "DataRepositoryTasks", "DescribeDataRepositoryTasks")
        if not tasks:
            raise NotFound(f"no repository task {task_id}", source="aws")
        return str(tasks[0].get("Lifecycle", ""))

    # --- metrics

    def readings(self, provider_ids: Sequence[str]) -> tuple[sv.StorageReading, ...]:
        """The newest metrics of these Lustre file systems, in one call (at most 100 of them)."""
        queries: list[dict[str, Any]] = []
        for index, fs_id in enumerate(provider_ids[:100]):
            queries.append(_query(f"a{index}", "AgeOfOldestQueuedMessage", fs_id, "Maximum", is_export=True))
            queries += [
                _query(f"{letter}{index}", "FreeDataStorageCapacity", fs_id, statistic)
                for letter, statistic in (("f", "Sum"), ("m", "Minimum"), ("n", "SampleCount"))
            ]
        if not queries:
            return ()
        now = datetime.now(UTC)
        with aws_call("GetMetricData"):
            answer = reading_client(self._access, "cloudwatch").get_metric_data(
                StartTime=now - _METRICS_BACK,
                EndTime=now + timedelta(seconds=_PERIOD_S),
                ScanBy="TimestampDescending",
                MetricDataQueries=queries,
            )
        newest = {r["Id"]: r["Values"][0] for r in answer.get("MetricDataResults", []) if r.get("Values")}
        return tuple(
            sv.StorageReading(
                provider_id=fs_id,
                export_queue_age_s=newest.get(f"a{index}"),
                free_bytes=_whole(newest.get(f"f{index}")),
                fullest_free_bytes=_whole(newest.get(f"m{index}")),
                targets=_whole(newest.get(f"n{index}")),
            )
            for index, fs_id in enumerate(provider_ids[:100])
        )


def _query(name: str, metric: str, fs_id: str, statistic: str, *, is_export: bool = False) -> dict[str, Any]:
    dimensions = [{"Name": "FileSystemId", "Value": fs_id}]
    if is_export:
        dimensions.append({"Name": "Publisher", "Value": "AutoExport"})
    return {
        "Id": name,
        "MetricStat": {
            "Metric": {"Namespace": "AWS/FSx", "MetricName": metric, "Dimensions": dimensions},
            "Period": _PERIOD_S,
            "Stat": statistic,
        },
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _plain_tags(raw: Mapping[str, Any]) -> dict[str, str]:
    return {str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in raw.get("Tags") or []}


def _lustre(raw: Mapping[str, Any]) -> sv.SeenFileSystem:
    provider_id = raw.get("FileSystemId")
    if not provider_id:
        raise Unknown("DescribeFileSystems: a file system without an id", source="aws", code="NoId")
    lustre = raw.get("LustreConfiguration") or {}
    updates = [
        action.get("ProgressPercent")
        for action in raw.get("AdministrativeActions") or []
        if action.get("AdministrativeActionType") == "FILE_SYSTEM_UPDATE" and action.get("Status") == "IN_PROGRESS"
    ]
    return sv.SeenFileSystem(
        kind=LUSTRE,
        provider_id=str(provider_id),
        state=str(raw.get("Lifecycle", "")),
        failure=str((raw.get("FailureDetails") or {}).get("Message", "")),
        capacity_gib=int(raw.get("StorageCapacity") or 0),
        throughput_mb_s_tib=int(lustre.get("PerUnitStorageThroughput") or 0),
        has_efa=bool(lustre.get("EfaEnabled")),
        dns_name=str(raw.get("DNSName", "")),
        mount_name=str(lustre.get("MountName", "")),
        update_percent=int(updates[0] or 0) if updates else None,
        tags=_plain_tags(raw),
        created_at=raw.get("CreationTime"),
    )


def _efs(raw: Mapping[str, Any], region: str) -> sv.SeenFileSystem:
    provider_id = str(raw["FileSystemId"])
    return sv.SeenFileSystem(
        kind=EFS,
        provider_id=provider_id,
        state=str(raw.get("LifeCycleState", "")).upper(),
        failure="",
        capacity_gib=int((raw.get("SizeInBytes") or {}).get("Value") or 0) // 2**30,
        throughput_mb_s_tib=0,
        has_efa=False,
        dns_name=f"{provider_id}.efs.{region}.amazonaws.com",
        mount_name="/",
        update_percent=None,
        tags=_plain_tags(raw),
        created_at=raw.get("CreationTime"),
    )


def _association(raw: Mapping[str, Any]) -> sv.SeenAssociation:
    s3 = raw.get("S3") or {}
    return sv.SeenAssociation(
        provider_id=str(raw.get("AssociationId", "")),
        file_system_id=str(raw.get("FileSystemId", "")),
        path=str(raw.get("FileSystemPath", "")),
        repository=str(raw.get("DataRepositoryPath", "")),
        state=str(raw.get("Lifecycle", "")),
        failure=str((raw.get("FailureDetails") or {}).get("Message", "")),
        imports=tuple((s3.get("AutoImportPolicy") or {}).get("Events") or ()),
        exports=tuple((s3.get("AutoExportPolicy") or {}).get("Events") or ()),
        tags=_plain_tags(raw),
    )
