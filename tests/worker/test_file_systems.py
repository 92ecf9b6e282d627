"""File systems against the sandbox's FSx and EFS: made once, crashed at every call, deleted to nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from apps.audit.models import Event
from apps.clusters.models import Cluster
from apps.clusters.mount_services import mount_add
from apps.connections.models import CloudAccount
from apps.connections.services import AccountInUse, account_observe, account_remove, account_update
from apps.core import clock
from apps.core.errors import Forbidden, InvalidInput, StaleVersion, TransitionConflict
from apps.intents.models import Intent
from apps.storage.models import Export, FileSystem, RepositoryAssociation
from apps.storage.selectors import file_system_sentence
from apps.storage.services import (
    ExportPending,
    FileSystemInUse,
    association_create,
    association_delete,
    export_begin,
    file_system_adopt,
    file_system_create,
    file_system_delete,
    file_system_grow,
)
from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import ACCESS_KEY_ID, SECRET_ACCESS_KEY, SECURITY_GROUP_ID, SUBNET_ID
from sandbox.world import World
from tests.chaos import WHEN, Crashing, Plan, point, visit
from tests.conftest import actor_of
from worker import doors
from worker.providers import values as v

pytestmark = [pytest.mark.django_db, pytest.mark.chaos]

#: Every call that a file system's life makes and that changes something.
CHANGING = (
    "file_system_ensure",
    "association_ensure",
    "export_begin",
    "file_system_grow",
    "association_delete",
    "file_system_delete",
)
EFS_CHANGING = ("file_system_ensure", "mount_target_ensure", "mount_targets_delete", "file_system_delete")
KIND = "file_system.reconcile"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    options = AwsOptions(storage_create_s=0.2, storage_delete_s=0.15)
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path_factory.mktemp("aws"), options)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, server: AwsServer) -> Iterator[Plan]:
    plan = Plan()
    real = doors.storage_for
    changing = {*CHANGING, *EFS_CHANGING}
    monkeypatch.setattr(doors, "storage_for", lambda account: Crashing(real(account), plan, sorted(changing)))
    keys = f'{{"access_key_id": "{ACCESS_KEY_ID}", "secret_access_key": "{SECRET_ACCESS_KEY}"}}'
    monkeypatch.setenv("TEST_AWS", keys)
    yield plan
    server.world.faults.clear()


@pytest.fixture
def account(server: AwsServer, plan: Plan) -> CloudAccount:
    return CloudAccount.objects.create(
        name="sandbox",
        region=server.options.region,
        endpoint_url=server.url,
        credentials_ref="env:TEST_AWS",
        phase="CONNECTED",
    )


def make(account: CloudAccount, operator: Any, **changes: Any) -> FileSystem:
    asked = {
        "name": "scratch",
        "kind": "fsx-lustre",
        "subnet_id": SUBNET_ID,
        "security_group_ids": [SECURITY_GROUP_ID],
        "capacity_gib": 19_200,
        "throughput_mb_s_tib": 250,
        "has_efa": True,
    }
    return file_system_create(actor=actor_of(operator), account=account, **{**asked, **changes})


def drive(fs: FileSystem, work: Any, plan: Plan, done: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        visit(work, KIND, plan)
        fs.refresh_from_db()
        if done():
            return
        time.sleep(0.03)
    raise AssertionError(f"still {fs.phase}: {fs.message}")


def to_phase(fs: FileSystem, work: Any, plan: Plan, phase: str) -> None:
    drive(fs, work, plan, lambda: fs.phase == phase)


def counts(server: AwsServer) -> dict[str, int]:
    return {k: n for k, n in server.census().items() if "file_systems" in k or "associations" in k or "targets" in k}


EMPTY = {"lustre_file_systems": 0, "repository_associations": 0, "efs_file_systems": 0, "efs_mount_targets": 0}


def whole_life(fs: FileSystem, work: Any, plan: Plan, operator: Any, server: AwsServer) -> dict[str, int]:
    """Made, tied, exported, grown; what then exists; untied and deleted."""
    actor = actor_of(operator)
    to_phase(fs, work, plan, "AVAILABLE")
    tie = association_create(actor=actor, file_system=fs, path="/ckpt", repository="s3://bucket/ckpt/")
    drive(fs, work, plan, lambda: RepositoryAssociation.objects.get(pk=tie.pk).phase == "AVAILABLE")
    export = export_begin(actor=actor, file_system=fs, paths=["ckpt/run-1"])
    drive(fs, work, plan, lambda: Export.objects.get(pk=export.pk).phase == "SUCCEEDED")
    file_system_grow(actor=actor, file_system=fs, capacity_gib=38_400, expected_version=fs.version)
    drive(fs, work, plan, lambda: fs.phase == "AVAILABLE" and fs.observed_capacity_gib == 38_400)
    there = counts(server)
    tie.refresh_from_db()
    association_delete(actor=actor, association=tie, expected_version=tie.version)
    drive(fs, work, plan, lambda: RepositoryAssociation.objects.get(pk=tie.pk).phase == "DELETED")
    fs.refresh_from_db()
    file_system_delete(actor=actor, file_system=fs, expected_version=fs.version)
    to_phase(fs, work, plan, "DELETED")
    return there


ONE = {**EMPTY, "lustre_file_systems": 1, "repository_associations": 1}


def test_a_whole_life(account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any) -> None:
    fs = make(account, operator)
    assert fs.usd_per_month is not None
    assert whole_life(fs, work, plan, operator, server) == ONE
    assert counts(server) == EMPTY
    assert set(CHANGING) <= set(plan.seen)
    kinds = set(Event.objects.filter(object_uid=fs.uid).values_list("kind", flat=True))
    assert {"FileSystemAvailable", "AssociationAvailable", "ExportSucceeded", "FileSystemDeleted"} <= kinds


@pytest.mark.any_database
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", CHANGING)
def test_a_worker_killed_at_any_point_makes_one_and_leaves_none(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any, call: str, when: str
) -> None:
    plan.call, plan.when = call, when
    fs = make(account, operator)
    there = whole_life(fs, work, plan, operator, server)
    left = counts(server)
    holds = plan.done and there == ONE and left == EMPTY
    point("file system", call, when, "one, then none" if holds else f"{there}, then {left}")
    assert plan.done
    assert there == ONE
    assert left == EMPTY


@pytest.mark.any_database
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", EFS_CHANGING)
def test_efs_killed_at_any_point(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any, call: str, when: str
) -> None:
    plan.call, plan.when = call, when
    fs = make(account, operator, kind="efs", name="home")
    to_phase(fs, work, plan, "AVAILABLE")
    there = counts(server)
    file_system_delete(actor=actor_of(operator), file_system=fs, expected_version=fs.version)
    to_phase(fs, work, plan, "DELETED")
    left = counts(server)
    one = {**EMPTY, "efs_file_systems": 1, "efs_mount_targets": 1}
    point("EFS", call, when, "one, then none" if (there, left) == (one, EMPTY) else f"{there}, then {left}")
    assert plan.done
    assert there == one
    assert left == EMPTY


def test_a_lost_reply_makes_no_second(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    server.world.fault_add("server-error", left=1, service="aws", operation="CreateFileSystem", shape="lost-reply")
    fs = make(account, operator)
    visit(work, KIND, plan)
    fs.refresh_from_db()
    assert fs.phase == "PENDING"
    assert "asking again with the same token" in fs.message
    to_phase(fs, work, plan, "AVAILABLE")
    assert counts(server)["lustre_file_systems"] == 1
    file_system_delete(actor=actor_of(operator), file_system=fs, expected_version=fs.version)
    to_phase(fs, work, plan, "DELETED")


def test_what_aws_refuses_is_failed_with_its_words(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    fs = make(account, operator, subnet_id="subnet-0123456789abcdef0")
    to_phase(fs, work, plan, "FAILED")
    assert "subnet-0123456789abcdef0" in file_system_sentence(fs)
    server.world.fault_add("storage-fails", left=1, what="file-system")
    other = make(account, operator, name="other")
    to_phase(other, work, plan, "FAILED")
    assert "told to fail" in other.message
    for broken in (fs, other):
        file_system_delete(actor=actor_of(operator), file_system=broken, expected_version=broken.version)
        to_phase(broken, work, plan, "DELETED")
    assert counts(server) == EMPTY


def test_nothing_is_deleted_while_exports_wait(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    actor = actor_of(operator)
    fs = make(account, operator)
    to_phase(fs, work, plan, "AVAILABLE")
    tie = association_create(actor=actor, file_system=fs, path="/ckpt", repository="s3://bucket/ckpt/")
    drive(fs, work, plan, lambda: RepositoryAssociation.objects.get(pk=tie.pk).phase == "AVAILABLE")
    drive(fs, work, plan, lambda: fs.metrics_read_at is not None)
    # Empty when it was asked for, but not any more when the worker looks: the deletion waits.
    lag = server.world.fault_add("export-lag")
    FileSystem.objects.filter(pk=fs.pk).update(export_queue_age_s=0, metrics_read_at=clock.now())
    fs.refresh_from_db()
    file_system_delete(actor=actor, file_system=fs, expected_version=fs.version)
    drive(fs, work, plan, lambda: "waiting with the deletion" in fs.message)
    assert counts(server)["lustre_file_systems"] == 1
    server.world.fault_clear(lag.uid)
    to_phase(fs, work, plan, "DELETED")
    assert counts(server) == EMPTY


def test_deletion_is_refused_without_a_fresh_reading(account: CloudAccount, operator: Any) -> None:
    actor = actor_of(operator)
    fs = FileSystem.objects.create(
        account=account, name="old", kind="fsx-lustre", phase="AVAILABLE", provider_id="fs-0123456789abcdef0"
    )
    RepositoryAssociation.objects.create(
        file_system=fs, path="/c", repository="s3://bucket/c/", exports=["NEW"], phase="AVAILABLE"
    )
    with pytest.raises(ExportPending, match="no fresh reading"):
        file_system_delete(actor=actor, file_system=fs, expected_version=1)
    FileSystem.objects.filter(pk=fs.pk).update(export_queue_age_s=0, metrics_read_at=clock.now() - timedelta(hours=1))
    fs.refresh_from_db()
    with pytest.raises(ExportPending, match="no fresh reading"):
        file_system_delete(actor=actor, file_system=fs, expected_version=1)
    FileSystem.objects.filter(pk=fs.pk).update(export_queue_age_s=42, metrics_read_at=clock.now())
    fs.refresh_from_db()
    with pytest.raises(ExportPending, match="42 s"):
        file_system_delete(actor=actor, file_system=fs, expected_version=1)
    with pytest.raises(StaleVersion):
        file_system_delete(actor=actor, file_system=fs, expected_version=7, loses_unexported=True)
    file_system_delete(actor=actor, file_system=fs, expected_version=1, loses_unexported=True)
    assert Intent.objects.filter(kind=KIND, key=fs.uid).exists()


def test_an_adopted_one_is_read_and_never_deleted(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    actor = actor_of(operator)
    made = doors.storage_for(account).file_system_ensure(
        __import__("worker.providers.storage_values", fromlist=["x"]).FileSystemSpec(
            kind="fsx-lustre",
            name="theirs",
            subnet_id=SUBNET_ID,
            security_group_ids=(SECURITY_GROUP_ID,),
            tags={"owner": "someone"},
            capacity_gib=2400,
            throughput_mb_s_tib=125,
        ),
        "theirs-1",
    )
    time.sleep(0.4)
    fs = file_system_adopt(actor=actor, account=account, name="theirs", kind="fsx-lustre", provider_id=made.provider_id)
    to_phase(fs, work, plan, "AVAILABLE")
    assert (fs.observed_capacity_gib, fs.throughput_mb_s_tib) == (2400, 125)
    with pytest.raises(InvalidInput, match="already here"):
        file_system_adopt(actor=actor, account=account, name="twice", kind="fsx-lustre", provider_id=made.provider_id)
    file_system_delete(actor=actor, file_system=fs, expected_version=fs.version)
    to_phase(fs, work, plan, "DELETED")
    assert counts(server)["lustre_file_systems"] == 1
    doors.storage_for(account).file_system_delete("fsx-lustre", made.provider_id)
    missing = file_system_adopt(
        actor=actor, account=account, name="nowhere", kind="fsx-lustre", provider_id="fs-0123456789abcdef0"
    )
    to_phase(missing, work, plan, "FAILED")


def test_a_broken_tie_and_an_impaired_file_system_are_said(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    actor = actor_of(operator)
    fs = make(account, operator)
    to_phase(fs, work, plan, "AVAILABLE")
    server.world.fault_add("storage-fails", left=1, what="association")
    tie = association_create(actor=actor, file_system=fs, path="/ckpt", repository="s3://bucket/ckpt/")
    drive(fs, work, plan, lambda: RepositoryAssociation.objects.get(pk=tie.pk).phase == "MISCONFIGURED")
    tie.refresh_from_db()
    assert "access denied" in tie.message
    doors.storage_for(account).file_system_delete("fsx-lustre", fs.provider_id)
    to_phase(fs, work, plan, "IMPAIRED")
    fs.refresh_from_db()
    file_system_delete(actor=actor, file_system=fs, expected_version=fs.version, loses_unexported=True)
    to_phase(fs, work, plan, "DELETED")
    assert counts(server) == EMPTY


def test_a_paused_account_changes_nothing(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    fs = make(account, operator)
    CloudAccount.objects.filter(pk=account.pk).update(is_paused=True)
    visit(work, KIND, plan)
    fs.refresh_from_db()
    assert (fs.phase, plan.seen) == ("PENDING", [])
    assert "paused" in fs.message


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        ({"capacity_gib": 20_000}, "/capacity_gib", "19200 or 38400"),
        ({"capacity_gib": 3600, "has_efa": False}, "/capacity_gib", "2400 or 4800"),
        ({"throughput_mb_s_tib": 300}, "/throughput_mb_s_tib", "125, 250, 500, 1000"),
        ({"metadata_iops": 5000}, "/metadata_iops", "multiple of 12000"),
        ({"name": "Scratch!"}, "/name", "lower-case"),
        ({"kind": "nfs"}, "/kind", "efs"),
        ({"subnet_id": "vpc-1"}, "/subnet_id", "subnet-"),
        ({"security_group_ids": []}, "/security_group_ids", "sg-"),
    ],
)
def test_bad_input_is_refused_by_field(
    account: CloudAccount, operator: Any, change: dict[str, Any], pointer: str, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        make(account, operator, **change)
    assert pointer in [p.pointer for p in refused.value.problems]
    assert FileSystem.objects.count() == 0


@pytest.mark.parametrize(
    ("path", "repository", "pointer"),
    [
        ("ckpt", "s3://bucket/x/", "/path"),
        ("/ckpt", "bucket/x", "/repository"),
        ("/ckpt", "s3://B/x", "/repository"),
        ("/data/more", "s3://other/x/", "/path"),
        ("/new", "s3://bucket/data/deeper/", "/repository"),
        ("/", "s3://other/", "/path"),
    ],
)
def test_ties_that_aws_refuses(account: CloudAccount, operator: Any, path: str, repository: str, pointer: str) -> None:
    fs = FileSystem.objects.create(account=account, name="a", phase="AVAILABLE", provider_id="fs-0123456789abcdef0")
    actor = actor_of(operator)
    association_create(actor=actor, file_system=fs, path="/data", repository="s3://bucket/data/")
    with pytest.raises(InvalidInput) as refused:
        association_create(actor=actor, file_system=fs, path=path, repository=repository)
    assert pointer in [p.pointer for p in refused.value.problems]


def test_who_may(account: CloudAccount, owner: Any, operator: Any) -> None:
    with pytest.raises(Forbidden):
        make(account, owner)
    fs = FileSystem.objects.create(
        account=account,
        name="a",
        phase="AVAILABLE",
        provider_id="fs-0123456789abcdef0",
        observed_capacity_gib=2400,
        throughput_mb_s_tib=125,
    )
    with pytest.raises(Forbidden):
        file_system_grow(actor=actor_of(owner), file_system=fs, capacity_gib=4800, expected_version=1)
    with pytest.raises(InvalidInput, match="never shrinks"):
        file_system_grow(actor=actor_of(operator), file_system=fs, capacity_gib=1200, expected_version=1)
    with pytest.raises(TransitionConflict, match="tied"):
        export_begin(actor=actor_of(operator), file_system=fs, paths=[])


def test_an_account_with_a_file_system_stays(account: CloudAccount, operator: Any) -> None:
    make(account, operator)
    with pytest.raises(AccountInUse, match="file system scratch"):
        account_remove(actor=actor_of(operator), account=account, expected_version=account.version)


def test_tags_are_on_everything(account: CloudAccount, work: Any, plan: Plan, operator: Any) -> None:
    fs = make(account, operator)
    to_phase(fs, work, plan, "AVAILABLE")
    found = doors.storage_for(account).file_systems("fsx-lustre")
    assert [(f.tags[v.TAG_UID], f.tags[v.TAG_TEAM]) for f in found] == [(fs.uid, "shared")]
    file_system_delete(actor=actor_of(operator), file_system=fs, expected_version=fs.version)
    to_phase(fs, work, plan, "DELETED")


def test_nothing_is_believed_of_an_account_that_is_being_checked(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    """Whoever answers may be another account, in which none of ours is: it must not be called deleted."""
    fs = make(account, operator)
    to_phase(fs, work, plan, "AVAILABLE")
    with pytest.raises(AccountInUse, match="scratch"):
        account_update(actor=actor_of(operator), account=account, expected_version=account.version, region="us-west-2")
    account.refresh_from_db()
    account_update(
        actor=actor_of(operator), account=account, expected_version=account.version, credentials_ref="env:OTHER"
    )
    file_system_delete(actor=actor_of(operator), file_system=fs, expected_version=fs.version)
    for _round in range(3):
        visit(work, KIND, plan)
    fs.refresh_from_db()
    assert "is being checked" in fs.message
    assert fs.phase == "AVAILABLE"
    account.refresh_from_db()
    account_observe(account, account_id="123456789012", arn="arn:aws:iam::123456789012:role/qd")
    account.refresh_from_db()
    account_observe(account, account_id="999999999999", arn="arn:aws:iam::999999999999:role/qd")
    account.refresh_from_db()
    assert (account.phase, "things of ours live" in account.message) == ("FAILED", True)
    CloudAccount.objects.update(phase="CONNECTED", credentials_ref="env:TEST_AWS")
    to_phase(fs, work, plan, "DELETED")
    assert counts(server) == EMPTY


def test_a_person_says_later_that_what_waits_may_be_lost(
    account: CloudAccount, server: AwsServer, work: Any, plan: Plan, operator: Any
) -> None:
    actor = actor_of(operator)
    fs = make(account, operator)
    to_phase(fs, work, plan, "AVAILABLE")
    tie = association_create(actor=actor, file_system=fs, path="/ckpt", repository="s3://bucket/ckpt/")
    drive(fs, work, plan, lambda: RepositoryAssociation.objects.get(pk=tie.pk).phase == "AVAILABLE")
    drive(fs, work, plan, lambda: fs.metrics_read_at is not None)
    server.world.fault_add("export-lag")
    FileSystem.objects.filter(pk=fs.pk).update(export_queue_age_s=0, metrics_read_at=clock.now())
    fs.refresh_from_db()
    file_system_delete(actor=actor, file_system=fs, expected_version=fs.version)
    drive(fs, work, plan, lambda: "waiting with the deletion" in fs.message)
    file_system_delete(actor=actor, file_system=fs, expected_version=fs.version, loses_unexported=True)
    to_phase(fs, work, plan, "DELETED")
    assert counts(server) == EMPTY


def test_what_is_mounted_or_being_deleted_is_neither_deleted_nor_mounted(
    account: CloudAccount, cluster: Cluster, operator: Any
) -> None:
    actor = actor_of(operator)
    fs = FileSystem.objects.create(account=account, name="a", phase="AVAILABLE", provider_id="fs-0123456789abcdef0")
    asked = {"kind": "fsx-lustre", "path": "/fsx", "purpose": "scratch", "file_system": fs}
    mount = mount_add(actor=actor, cluster=cluster, **asked)
    with pytest.raises(FileSystemInUse, match=cluster.name):
        file_system_delete(actor=actor, file_system=fs, expected_version=fs.version)
    mount.delete()
    file_system_delete(actor=actor, file_system=fs, expected_version=fs.version)
    stale = FileSystem.objects.get(pk=fs.pk)
    stale.delete_requested_at = None
    with pytest.raises(InvalidInput, match="being deleted"):
        mount_add(actor=actor, cluster=cluster, **{**asked, "file_system": stale})
