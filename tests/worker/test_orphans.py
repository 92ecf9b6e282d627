"""Orphans: seen within one sweep with what they cost, removed only after grace or by a person, both ways."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import boto3
import pytest
from django.test import override_settings

from apps.audit.models import Event
from apps.capacity.orphan_models import Orphan
from apps.capacity.orphan_selectors import orphan_sentence, orphans_usd_per_hour
from apps.capacity.orphan_services import orphan_keep, orphan_release, orphan_remove
from apps.clusters.models import Cluster, Fleet
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.core.errors import Forbidden, InvalidInput
from apps.storage.models import FileSystem
from portal.settings import CONFIG
from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import ACCESS_KEY_ID, IMAGE_ID, SECRET_ACCESS_KEY, SECURITY_GROUP_ID, SUBNET_ID
from sandbox.world import World
from tests.conftest import actor_of
from worker import doors
from worker.collectors import ec2
from worker.providers import values as v

pytestmark = pytest.mark.django_db
TYPE = "p5.48xlarge"


@pytest.fixture
def server(tmp_path: Any) -> Iterator[AwsServer]:
    options = AwsOptions(boot_s=0.1, join_s=0.1, shutdown_s=0.2, storage_create_s=0.1, storage_delete_s=0.1)
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, options)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def account(server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> CloudAccount:
    keys = f'{{"access_key_id": "{ACCESS_KEY_ID}", "secret_access_key": "{SECRET_ACCESS_KEY}"}}'
    monkeypatch.setenv("TEST_AWS", keys)
    return CloudAccount.objects.create(
        name="sandbox",
        region=server.options.region,
        endpoint_url=server.url,
        credentials_ref="env:TEST_AWS",
        phase="CONNECTED",
    )


def launch(server: AwsServer, uid: str, count: int = 1) -> list[str]:
    """Machines that someone launched with our tag, past the portal."""
    client = boto3.client(
        "ec2",
        region_name=server.options.region,
        endpoint_url=server.url,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
    )
    answer = client.run_instances(
        ImageId=IMAGE_ID,
        InstanceType=TYPE,
        MinCount=count,
        MaxCount=count,
        NetworkInterfaces=[{"DeviceIndex": 0, "SubnetId": SUBNET_ID, "Groups": [SECURITY_GROUP_ID]}],
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [{"Key": v.TAG_UID, "Value": uid}, {"Key": v.TAG_ATTEMPT, "Value": "1"}],
            }
        ],
    )
    return [i["InstanceId"] for i in answer["Instances"]]


def running(server: AwsServer) -> int:
    return server.census()["instances"]


def sweeps_until(server: AwsServer, account: CloudAccount, machines: int) -> None:
    deadline = time.monotonic() + 10
    while running(server) != machines and time.monotonic() < deadline:
        ec2.sweep(account.uid)
        time.sleep(0.1)
    assert running(server) == machines
    ec2.sweep(account.uid)


def no_grace() -> Any:
    return override_settings(CONFIG=CONFIG.model_copy(update={"sweep_grace_s": 0}))


def test_a_tagged_machine_nobody_knows_is_on_the_page_after_one_sweep_with_its_price(
    server: AwsServer, account: CloudAccount, operator: Any, client: Any
) -> None:
    launch(server, "flt_of_another_life")
    with no_grace():
        ec2.sweep(account.uid)
        ec2.sweep(account.uid)
    orphan = Orphan.objects.get(kind="instance")
    assert (orphan.phase, orphan.has_row, orphan.usd_per_hour) == ("FOUND", False, Decimal("55.04"))
    assert orphans_usd_per_hour(actor_of(operator)) == Decimal("55.04")
    assert "only a person removes it" in orphan_sentence(orphan)
    client.force_login(operator)
    page = client.get("/orphans").content.decode()
    assert orphan.provider_id in page
    assert "$55.04/h" in page
    # However often the sweep comes by, and with no grace at all: it stays until a person says so.
    assert running(server) == 1
    assert Event.objects.filter(kind="OrphanFound").count() == Orphan.objects.count()


def test_a_person_removes_it_and_gone_is_said_only_when_aws_says_so(
    server: AwsServer, account: CloudAccount, operator: Any
) -> None:
    launch(server, "flt_of_another_life")
    ec2.sweep(account.uid)
    orphan = Orphan.objects.get(kind="instance")
    orphan_remove(actor=actor_of(operator), orphan=orphan)
    ec2.sweep(account.uid)
    orphan.refresh_from_db()
    # Asked for, and shutting down: AWS still lists it.
    assert orphan.phase == "REMOVAL_ASKED"
    sweeps_until(server, account, 0)
    orphan.refresh_from_db()
    assert orphan.phase == "GONE"
    assert Event.objects.filter(kind="OrphanRemoved").exists()


def fleet_of(account: CloudAccount, phase: str) -> Fleet:
    cluster = Cluster.objects.create(
        name="lab", account=account, api_url="http://127.0.0.1:9", user_name="qd", token_ref="env:X", working_root="/t"
    )
    return Fleet.objects.create(
        cluster=cluster,
        name="old",
        instance_type=TYPE,
        nodes=1,
        subnet_id=SUBNET_ID,
        image_id=IMAGE_ID,
        phase=phase,
        ended_at=clock.now() - timedelta(hours=2),
    )


def test_what_a_deleted_fleet_left_goes_after_the_grace_period(server: AwsServer, account: CloudAccount) -> None:
    launch(server, fleet_of(account, "DELETED").uid)
    ec2.sweep(account.uid)
    assert Orphan.objects.get(kind="instance").has_row
    ec2.sweep(account.uid)
    assert running(server) == 1  # inside the grace period
    with no_grace():
        sweeps_until(server, account, 0)
    assert Orphan.objects.get(kind="instance").phase == "GONE"


def test_the_machines_of_a_live_fleet_are_no_orphans(server: AwsServer, account: CloudAccount) -> None:
    fleet = fleet_of(account, "READY")
    launch(server, fleet.uid)
    with no_grace():
        ec2.sweep(account.uid)
    assert not Orphan.objects.exists()
    Fleet.objects.filter(pk=fleet.pk).update(phase="DELETED")
    ec2.sweep(account.uid)
    Fleet.objects.filter(pk=fleet.pk).update(phase="READY")
    ec2.sweep(account.uid)
    # It found its owner again.
    assert set(Orphan.objects.values_list("phase", flat=True)) == {"GONE"}
    assert running(server) == 1


def test_too_many_at_once_look_like_a_wrong_database(server: AwsServer, account: CloudAccount) -> None:
    launch(server, fleet_of(account, "DELETED").uid, ec2.BRAKE + 1)
    with no_grace():
        ec2.sweep(account.uid)
        ec2.sweep(account.uid)
    assert running(server) == ec2.BRAKE + 1
    assert Event.objects.filter(kind="SweepStopped").exists()


def test_a_kept_one_is_left_alone_until_it_is_released(server: AwsServer, account: CloudAccount, operator: Any) -> None:
    launch(server, fleet_of(account, "DELETED").uid)
    ec2.sweep(account.uid)
    orphan = Orphan.objects.get(kind="instance")
    with pytest.raises(InvalidInput):
        orphan_keep(actor=actor_of(operator), orphan=orphan, reason=" ")
    orphan_keep(actor=actor_of(operator), orphan=orphan, reason="a colleague debugs on it")
    with no_grace():
        ec2.sweep(account.uid)
    assert running(server) == 1
    orphan.refresh_from_db()
    assert "a colleague debugs on it" in orphan_sentence(orphan)
    orphan_release(actor=actor_of(operator), orphan=orphan)
    with no_grace():
        sweeps_until(server, account, 0)


def test_a_file_system_of_ours_goes_only_by_a_persons_word(
    server: AwsServer, account: CloudAccount, operator: Any
) -> None:
    from worker.providers import storage_values as sv

    spec = sv.FileSystemSpec(
        kind="fsx-lustre",
        name="lost",
        subnet_id=SUBNET_ID,
        security_group_ids=(SECURITY_GROUP_ID,),
        tags={v.TAG_UID: "fs_of_another_life"},
        capacity_gib=2400,
        throughput_mb_s_tib=125,
    )
    doors.storage_for(account).file_system_ensure(spec, "lost")
    time.sleep(0.3)
    with no_grace():
        ec2.sweep(account.uid)
        ec2.sweep(account.uid)
    orphan = Orphan.objects.get()
    assert (orphan.kind, orphan.usd_per_hour) == ("file-system", Decimal("0.476712"))
    assert server.census()["lustre_file_systems"] == 1
    orphan_remove(actor=actor_of(operator), orphan=orphan)
    deadline = time.monotonic() + 5
    while server.census()["lustre_file_systems"] and time.monotonic() < deadline:
        ec2.sweep(account.uid)
        time.sleep(0.1)
    ec2.sweep(account.uid)
    orphan.refresh_from_db()
    assert orphan.phase == "GONE"


def test_a_paused_account_is_not_looked_at_and_nothing_is_removed(
    server: AwsServer, account: CloudAccount, operator: Any
) -> None:
    launch(server, "flt_of_another_life")
    ec2.sweep(account.uid)
    orphan = Orphan.objects.get(kind="instance")
    CloudAccount.objects.update(is_paused=True)
    launch(server, "flt_of_yet_another_life")
    orphan_remove(actor=actor_of(operator), orphan=orphan)
    ec2.sweep(account.uid)
    assert running(server) == 2
    assert Orphan.objects.filter(kind="instance").count() == 1


def test_who_may_decide(account: CloudAccount, owner: Any) -> None:
    orphan = Orphan.objects.create(account=account, kind="instance", provider_id="i-1", tagged_uid="flt_x")
    for call in (
        lambda: orphan_remove(actor=actor_of(owner), orphan=orphan),
        lambda: orphan_keep(actor=actor_of(owner), orphan=orphan, reason="mine"),
        lambda: orphan_release(actor=actor_of(owner), orphan=orphan),
    ):
        with pytest.raises(Forbidden):
            call()


def lost_file_system(account: CloudAccount) -> str:
    from worker.providers import storage_values as sv

    spec = sv.FileSystemSpec(
        kind="fsx-lustre",
        name="lost",
        subnet_id=SUBNET_ID,
        security_group_ids=(SECURITY_GROUP_ID,),
        tags={v.TAG_UID: "fs_of_another_life"},
        capacity_gib=2400,
        throughput_mb_s_tib=125,
    )
    made = doors.storage_for(account).file_system_ensure(spec, "lost")
    time.sleep(0.3)
    return made.provider_id


def test_an_adopted_file_system_is_no_orphan_whatever_its_tag_says(
    server: AwsServer, account: CloudAccount, operator: Any
) -> None:
    provider_id = lost_file_system(account)
    ec2.sweep(account.uid)
    orphan = Orphan.objects.get()
    FileSystem.objects.create(account=account, name="ours", phase="AVAILABLE", provider_id=provider_id, is_adopted=True)
    # Removal was asked before it was adopted: the sweep looks again and leaves it.
    orphan_remove(actor=actor_of(operator), orphan=orphan)
    ec2.sweep(account.uid)
    ec2.sweep(account.uid)
    assert server.census()["lustre_file_systems"] == 1
    orphan.refresh_from_db()
    assert orphan.phase == "GONE"


def test_one_that_aws_does_not_let_go_keeps_no_other_and_can_be_kept(
    server: AwsServer, account: CloudAccount, operator: Any
) -> None:
    provider_id = lost_file_system(account)
    launch(server, "flt_of_another_life")
    ec2.sweep(account.uid)
    for orphan in Orphan.objects.all():
        orphan_remove(actor=actor_of(operator), orphan=orphan)
    server.world.fault_add("access-denied", service="aws", operation="DeleteFileSystem")
    sweeps_until(server, account, 0)
    stuck = Orphan.objects.get(provider_id=provider_id)
    assert (stuck.phase, "not authorized" in stuck.message) == ("REMOVAL_ASKED", True)
    orphan_keep(actor=actor_of(operator), orphan=stuck, reason="AWS does not let it go")
    assert server.census()["lustre_file_systems"] == 1


def test_the_api_wants_the_id_of_what_it_removes(account: CloudAccount, operator: Any) -> None:
    from apps.teams.services import token_create
    from tests.api.conftest import ApiClient

    orphan = Orphan.objects.create(account=account, kind="file-system", provider_id="fs-1", tagged_uid="fs_x")
    _token, bearer = token_create(
        actor=actor_of(operator), label="t", scopes=["capacity.operate", "storage.operate"], days=1
    )
    path = f"orphans/{orphan.uid}/remove"
    assert ApiClient(bearer).send("POST", path, {}).status_code == 422
    _token, narrow = token_create(actor=actor_of(operator), label="n", scopes=["capacity.operate"], days=1)
    assert ApiClient(narrow).send("POST", path, {"provider_id": "fs-1"}).status_code == 403
    orphan.refresh_from_db()
    assert orphan.phase == "FOUND"
    assert ApiClient(bearer).send("POST", path, {"provider_id": "fs-1"}).status_code == 202
