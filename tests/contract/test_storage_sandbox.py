"""The storage contract and its bad input, against the sandbox's FSx, EFS and CloudWatch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import ACCESS_KEY_ID, SECRET_ACCESS_KEY, SECURITY_GROUP_ID, SUBNET_ID
from sandbox.world import World
from worker.providers import errors
from worker.providers import storage_values as sv
from worker.providers import values as v
from worker.providers.aws.storage import AwsFileStorage

pytestmark = pytest.mark.contract

OPTIONS = AwsOptions(storage_create_s=0.4, storage_delete_s=0.3)
SPEC = sv.FileSystemSpec(
    kind="fsx-lustre",
    name="scratch",
    subnet_id=SUBNET_ID,
    security_group_ids=(SECURITY_GROUP_ID,),
    tags={v.TAG_UID: "fs_1"},
    capacity_gib=19_200,
    throughput_mb_s_tib=250,
    has_efa=True,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path_factory.mktemp("aws"), OPTIONS)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def storage(server: AwsServer) -> Iterator[AwsFileStorage]:
    keys = v.Credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY)
    yield AwsFileStorage(v.CloudAccess(server.options.region, keys, server.url))
    server.world.faults.clear()


def eventually(read: Callable[[], Any], within_s: float = 30.0) -> Any:
    ends_at = time.monotonic() + within_s
    while not (found := read()):
        assert time.monotonic() < ends_at, "it never came"
        time.sleep(0.05)
    return found


def seen(storage: AwsFileStorage, provider_id: str) -> sv.SeenFileSystem | None:
    return next((f for f in storage.file_systems("fsx-lustre") if f.provider_id == provider_id), None)


def state(storage: AwsFileStorage, provider_id: str, wanted: str) -> bool:
    found = seen(storage, provider_id)
    return found is not None and found.state == wanted


@pytest.fixture
def lustre(storage: AwsFileStorage, request: pytest.FixtureRequest) -> str:
    made = storage.file_system_ensure(SPEC, f"token-{request.node.name}"[:60])
    eventually(lambda: state(storage, made.provider_id, "AVAILABLE"))
    return made.provider_id


def test_one_token_makes_one_file_system(storage: AwsFileStorage) -> None:
    first = storage.file_system_ensure(SPEC, "same")
    again = storage.file_system_ensure(SPEC, "same")
    assert first.provider_id == again.provider_id
    assert (first.state, first.has_efa, first.tags["Name"]) == ("CREATING", True, "scratch")
    with pytest.raises(errors.Conflict):
        storage.file_system_ensure(replace(SPEC, capacity_gib=38_400), "same")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"capacity_gib": 3600, "has_efa": False}, "multiple of 2400"),
        ({"capacity_gib": 9600}, "multiple of 19200"),
        ({"throughput_mb_s_tib": 300}, "PerUnitStorageThroughput"),
        ({"subnet_id": "subnet-0123456789abcdef0"}, "does not exist"),
        ({"security_group_ids": ()}, "no security group"),
    ],
)
def test_what_aws_refuses_is_refused(storage: AwsFileStorage, change: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=words):
        storage.file_system_ensure(replace(SPEC, **change), f"bad-{words[:10].replace(' ', '-')}")


def test_grow_shows_progress_and_never_shrinks(storage: AwsFileStorage, lustre: str) -> None:
    storage.file_system_grow(lustre, 38_400, "grow-1")
    growing = seen(storage, lustre)
    assert growing is not None
    assert growing.state == "UPDATING"
    assert growing.update_percent is not None
    with pytest.raises(errors.InvalidRequest, match="in progress"):
        storage.file_system_grow(lustre, 57_600, "grow-2")
    eventually(lambda: state(storage, lustre, "AVAILABLE"))
    grown = seen(storage, lustre)
    assert grown is not None
    assert grown.capacity_gib == 38_400
    with pytest.raises(errors.InvalidRequest, match="decreased"):
        storage.file_system_grow(lustre, 19_200, "shrink")


def tie(fs_id: str, path: str = "/ckpt", repository: str = "s3://bucket/ckpt/") -> sv.AssociationSpec:
    return sv.AssociationSpec(
        file_system_id=fs_id,
        path=path,
        repository=repository,
        imports=("NEW", "CHANGED"),
        exports=("NEW", "CHANGED"),
        is_imported_at_start=True,
        tags={v.TAG_UID: "dra_1"},
    )


def test_associations_do_not_overlap(storage: AwsFileStorage, lustre: str) -> None:
    made = storage.association_ensure(tie(lustre), "tie")
    assert storage.association_ensure(tie(lustre), "tie").provider_id == made.provider_id
    with pytest.raises(errors.InvalidRequest, match="FileSystemPath /ckpt/run1 overlaps"):
        storage.association_ensure(tie(lustre, "/ckpt/run1", "s3://other/x/"), "tie-path")
    with pytest.raises(errors.InvalidRequest, match="DataRepositoryPath s3://bucket/ overlaps"):
        storage.association_ensure(tie(lustre, "/data", "s3://bucket/"), "tie-prefix")
    eventually(lambda: [a.state for a in storage.associations(lustre)] == ["AVAILABLE"])
    storage.association_delete(made.provider_id)
    eventually(lambda: not storage.associations(lustre))
    with pytest.raises(errors.NotFound):
        storage.association_delete(made.provider_id)


def test_export_lag_shows_in_the_metrics(server: AwsServer, storage: AwsFileStorage, lustre: str) -> None:
    storage.association_ensure(tie(lustre), "tie-lag")
    calm = storage.readings([lustre])[0]
    assert (calm.export_queue_age_s, calm.targets) == (0.0, 16)
    assert calm.free_bytes is not None
    assert calm.fullest_free_bytes is not None
    assert calm.fullest_free_bytes * 16 < calm.free_bytes
    server.world.fault_add("export-lag")
    time.sleep(0.2)
    assert (storage.readings([lustre])[0].export_queue_age_s or 0) >= 1
    task = storage.export_begin(lustre, ["ckpt"], "export-1")
    assert storage.export_begin(lustre, ["ckpt"], "export-1") == task
    eventually(lambda: storage.export_state(task) == "SUCCEEDED")
    server.world.faults.clear()
    assert storage.readings([lustre])[0].export_queue_age_s == 0.0
    assert storage.readings([]) == ()


def test_deleted_until_not_found(storage: AwsFileStorage, lustre: str) -> None:
    storage.file_system_delete("fsx-lustre", lustre)
    assert state(storage, lustre, "DELETING")
    eventually(lambda: seen(storage, lustre) is None)
    with pytest.raises(errors.NotFound):
        storage.file_system_delete("fsx-lustre", lustre)


def test_efs_with_its_mount_target(storage: AwsFileStorage) -> None:
    spec = replace(SPEC, kind="efs", name="home")
    made = storage.file_system_ensure(spec, "efs-1")
    assert storage.file_system_ensure(spec, "efs-1").provider_id == made.provider_id

    def available() -> bool:
        return any(f.provider_id == made.provider_id and f.state == "AVAILABLE" for f in storage.file_systems("efs"))

    eventually(available)
    storage.mount_target_ensure(made.provider_id, SUBNET_ID, [SECURITY_GROUP_ID])
    eventually(lambda: storage.mount_target_ensure(made.provider_id, SUBNET_ID, []) == "AVAILABLE")
    with pytest.raises(errors.Conflict):
        storage.file_system_delete("efs", made.provider_id)
    eventually(lambda: storage.mount_targets_delete(made.provider_id) == 0)
    storage.file_system_delete("efs", made.provider_id)
    eventually(lambda: not storage.file_systems("efs"))


def test_a_role_without_permission(server: AwsServer, storage: AwsFileStorage) -> None:
    server.world.fault_add("access-denied", service="aws", operation="CreateFileSystem")
    with pytest.raises(errors.AccessDenied, match="not authorized to perform: fsx:CreateFileSystem"):
        storage.file_system_ensure(SPEC, "denied")
