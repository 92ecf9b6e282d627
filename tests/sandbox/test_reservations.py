"""Reserved capacity of the sandbox as boto3 sees it: ODCRs, Capacity Blocks and their calendar."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import ACCESS_KEY_ID, IMAGE_ID, SECRET_ACCESS_KEY, SECURITY_GROUP_ID, SUBNET_ID
from sandbox.world import World

TYPE = "p5en.48xlarge"
ZONE = "us-east-2a"
DAY_S = 86_400
FAST = AwsOptions(
    boot_s=0.1, join_s=0.1, shutdown_s=0.1, block_payment_s=0.2, block_clean_s=0.4, block_vcpu_quota=192 * 70
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AwsServer]:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, FAST)
    server.start()
    yield server
    server.stop()


def client(server: AwsServer) -> Any:
    return boto3.client(
        "ec2",
        region_name=server.options.region,
        endpoint_url=server.url,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
        config=Config(retries={"total_max_attempts": 1}),
    )


@pytest.fixture
def ec2(server: AwsServer) -> Any:
    return client(server)


def refused(code: str, call: Any, **asked: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**asked)
    assert caught.value.response["Error"]["Code"] == code, caught.value
    return str(caught.value)


def odcr(ec2: Any, count: int = 4, **more: Any) -> dict[str, Any]:
    asked = {
        "InstanceType": TYPE,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": ZONE,
        "InstanceCount": count,
        "InstanceMatchCriteria": "targeted",
        "EndDateType": "unlimited",
    }
    found: dict[str, Any] = ec2.create_capacity_reservation(**(asked | more))["CapacityReservation"]
    return found


def offers(ec2: Any, count: int = 2, hours: int = 24, **more: Any) -> list[dict[str, Any]]:
    asked = {"InstanceType": TYPE, "InstanceCount": count, "CapacityDurationHours": hours} | more
    if "UltraserverType" in more:
        del asked["InstanceType"], asked["InstanceCount"]
    found: list[dict[str, Any]] = ec2.describe_capacity_block_offerings(**asked)["CapacityBlockOfferings"]
    return [o for o in found if o["AvailabilityZone"] == ZONE]


def buy(ec2: Any, offer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offer["CapacityBlockOfferingId"],
        InstancePlatform="Linux/UNIX",
        TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": [{"Key": "qd", "Value": "buy_1"}]}],
    )
    return found


def read(ec2: Any, reservation_id: str) -> dict[str, Any]:
    found: dict[str, Any] = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])[
        "CapacityReservations"
    ][0]
    return found


def launch(ec2: Any, count: int, **more: Any) -> list[dict[str, Any]]:
    asked = {
        "ImageId": IMAGE_ID,
        "InstanceType": TYPE,
        "MinCount": count,
        "MaxCount": count,
        "SubnetId": SUBNET_ID,
        "SecurityGroupIds": [SECURITY_GROUP_ID],
    } | more
    found: list[dict[str, Any]] = ec2.run_instances(**asked)["Instances"]
    return found


def into(reservation_id: str, **more: Any) -> dict[str, Any]:
    target = {"CapacityReservationTarget": {"CapacityReservationId": reservation_id}}
    return {"CapacityReservationSpecification": target} | more


BLOCK_MARKET = {"InstanceMarketOptions": {"MarketType": "capacity-block"}}


def ahead(server: AwsServer, until: datetime, before: timedelta = timedelta()) -> None:
    server.world.advance((until - before).timestamp() - server.world.now() + 1)


def test_a_token_makes_one_reservation_and_machines_count_against_it(ec2: Any) -> None:
    first = odcr(ec2, ClientToken="t1")
    again = odcr(ec2, ClientToken="t1")
    assert first["CapacityReservationId"] == again["CapacityReservationId"]
    refused(
        "IdempotentParameterMismatch",
        ec2.create_capacity_reservation,
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=ZONE,
        InstanceCount=5,
        ClientToken="t1",
    )
    mine = first["CapacityReservationId"]
    made = launch(ec2, 3, **into(mine))
    assert {m["CapacityReservationId"] for m in made} == {mine}
    assert read(ec2, mine)["AvailableInstanceCount"] == 1
    with pytest.raises(ClientError, match="ReservationCapacityExceeded"):
        launch(ec2, 2, **into(mine))
    with pytest.raises(ClientError, match="InvalidParameterCombination"):
        launch(ec2, 1, **into(mine), **BLOCK_MARKET)
    ec2.terminate_instances(InstanceIds=[made[0]["InstanceId"]])
    time.sleep(0.3)
    assert read(ec2, mine)["AvailableInstanceCount"] == 2
    ec2.cancel_capacity_reservation(CapacityReservationId=mine)
    assert read(ec2, mine)["State"] == "cancelled"
    with pytest.raises(ClientError, match="InvalidCapacityReservationState"):
        launch(ec2, 1, **into(mine))
    # A targeted reservation is used by nobody who does not name it.
    other = odcr(ec2, 2)["CapacityReservationId"]
    assert all("CapacityReservationId" not in m for m in launch(ec2, 1))
    assert read(ec2, other)["AvailableInstanceCount"] == 2


def test_an_open_reservation_is_used_by_whoever_fits(ec2: Any) -> None:
    mine = odcr(ec2, 2, InstanceMatchCriteria="open")["CapacityReservationId"]
    made = launch(ec2, 3)
    assert [m.get("CapacityReservationId", "") for m in made].count(mine) == 2
    none = launch(ec2, 1, CapacityReservationSpecification={"CapacityReservationPreference": "none"})
    assert "CapacityReservationId" not in none[0]


def test_a_placement_group_spans_only_a_part_of_a_reservation_made_without_one(ec2: Any) -> None:
    ec2.create_placement_group(GroupName="g", Strategy="cluster")
    loose = odcr(ec2, 16)["CapacityReservationId"]
    with pytest.raises(ClientError, match=r"ReservationCapacityExceeded.*\(11\)"):
        launch(ec2, 16, **into(loose), Placement={"GroupName": "g"})
    arn = ec2.describe_placement_groups()["PlacementGroups"][0]["GroupArn"]
    placed = odcr(ec2, 16, PlacementGroupArn=arn)["CapacityReservationId"]
    assert len(launch(ec2, 16, **into(placed), Placement={"GroupName": "g"})) == 16


def test_what_is_kept_free_for_one_cannot_be_had_by_another(server: AwsServer, ec2: Any) -> None:
    odcr(ec2, server.options.pool - 1)
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        launch(ec2, 2)
    assert len(launch(ec2, 1)) == 1


def test_offers_follow_the_rules_of_the_calendar(ec2: Any) -> None:
    found = offers(ec2, 64, 7 * 24)
    assert found
    for offer in found:
        assert (offer["StartDate"].hour, offer["StartDate"].minute) == (11, 30)
        assert offer["EndDate"] - offer["StartDate"] == timedelta(days=7)
        assert offer["UpfrontFee"] == f"{7.895 * 8 * 64 * 168:.2f}"
        assert offer["StartDate"] <= datetime.now(UTC) + timedelta(weeks=8)
    refused(
        "InvalidParameterValue",
        ec2.describe_capacity_block_offerings,
        InstanceType=TYPE,
        InstanceCount=1,
        CapacityDurationHours=15 * 24,
    )
    refused(
        "InvalidParameterValue",
        ec2.describe_capacity_block_offerings,
        InstanceType=TYPE,
        InstanceCount=65,
        CapacityDurationHours=24,
    )
    window = {"StartDateRange": datetime.now(UTC) + timedelta(days=10)}
    assert all(o["StartDate"] >= window["StartDateRange"] for o in offers(ec2, **window))
    long = offers(ec2, 1, 182 * 24)[0]
    parts = long["CapacityBlockOfferingSegments"]
    assert len(parts) == 2
    assert parts[0]["EndDate"] == parts[1]["StartDate"]


def test_bought_twice_is_paid_twice_within_the_quota(server: AwsServer, ec2: Any) -> None:
    offer = offers(ec2, 32)[0]
    first, second = buy(ec2, offer), buy(ec2, offer)
    ids = [b["CapacityReservation"]["CapacityReservationId"] for b in (first, second)]
    assert len(set(ids)) == 2
    refused(
        "VcpuLimitExceeded",
        ec2.purchase_capacity_block,
        CapacityBlockOfferingId=offer["CapacityBlockOfferingId"],
        InstancePlatform="Linux/UNIX",
    )
    assert {r["State"] for r in ec2.describe_capacity_reservations()["CapacityReservations"]} == {"payment-pending"}
    refused("UnsupportedOperation", ec2.cancel_capacity_reservation, CapacityReservationId=ids[0])


def test_a_block_lives_by_the_calendar_and_ec2_takes_its_machines_back(server: AwsServer, ec2: Any) -> None:
    bought = buy(ec2, offers(ec2)[0])["CapacityReservation"]
    mine = bought["CapacityReservationId"]
    assert (bought["State"], bought["ReservationType"]) == ("payment-pending", "capacity-block")
    time.sleep(0.3)
    assert read(ec2, mine)["State"] == "scheduled"
    with pytest.raises(ClientError, match="InvalidCapacityReservationState"):
        launch(ec2, 1, **into(mine), **BLOCK_MARKET)
    ahead(server, bought["StartDate"])
    assert read(ec2, mine)["State"] == "active"
    with pytest.raises(ClientError, match="InvalidParameterCombination"):
        launch(ec2, 1, **into(mine))
    made = launch(ec2, 2, **into(mine), **BLOCK_MARKET)
    assert {m["InstanceLifecycle"] for m in made} == {"capacity-block"}
    status = ec2.describe_capacity_block_status()["CapacityBlockStatuses"][0]
    assert (status["TotalCapacity"], status["TotalAvailableCapacity"]) == (2, 0)
    # The slot of a terminated machine is cleaned before it can be used again.
    ec2.terminate_instances(InstanceIds=[made[0]["InstanceId"]])
    time.sleep(0.2)
    with pytest.raises(ClientError, match="ReservationCapacityExceeded"):
        launch(ec2, 1, **into(mine), **BLOCK_MARKET)
    time.sleep(0.5)
    launch(ec2, 1, **into(mine), **BLOCK_MARKET)
    # The jump has moved all its instants nearer by the ordinary clock.
    end = read(ec2, mine)["EndDate"]
    assert timedelta(hours=23) < end - datetime.now(UTC) < timedelta(hours=25)
    server.world.advance((end - datetime.now(UTC)).total_seconds() - 31 * 60)
    assert live_states(ec2) == {"running"} or live_states(ec2) == {"running", "pending"}
    server.world.advance(2 * 60)
    time.sleep(0.2)
    reasons = {
        m.get("StateReason", {}).get("Code")
        for r in ec2.describe_instances()["Reservations"]
        for m in r["Instances"]
        if m["InstanceId"] != made[0]["InstanceId"]
    }
    assert reasons == {"Server.CapacityBlockEnded"}
    server.world.advance(3600)
    assert read(ec2, mine)["State"] == "expired"


def live_states(ec2: Any) -> set[str]:
    found = [m["State"]["Name"] for r in ec2.describe_instances()["Reservations"] for m in r["Instances"]]
    return {s for s in found if s in ("running", "pending")}


def test_an_ultraserver_block_is_taken_back_an_hour_before_its_end(server: AwsServer, ec2: Any) -> None:
    offer = offers(ec2, UltraserverType="u-p6e-gb200x36", UltraserverCount=1)[0]
    assert (offer["InstanceType"], offer["InstanceCount"]) == ("p6e-gb200.36xlarge", 9)
    assert offer["UpfrontFee"] == "9142.85"
    bought = buy(ec2, offer)
    assert bought["CapacityBlocks"][0]["UltraserverType"] == "u-p6e-gb200x36"
    mine = bought["CapacityReservation"]["CapacityReservationId"]
    time.sleep(0.3)
    ahead(server, bought["CapacityReservation"]["EndDate"], timedelta(minutes=59))
    assert read(ec2, mine)["AvailableInstanceCount"] == 0
    assert read(ec2, mine)["State"] == "active"


def test_an_unpaid_block_fails(server: AwsServer, ec2: Any) -> None:
    server.world.fault_add("payment-failed", left=1)
    mine = buy(ec2, offers(ec2)[0])["CapacityReservation"]["CapacityReservationId"]
    time.sleep(0.3)
    assert read(ec2, mine)["State"] == "payment-failed"


def test_an_extension_moves_the_end_once_it_is_paid(server: AwsServer, ec2: Any) -> None:
    bought = buy(ec2, offers(ec2)[0])["CapacityReservation"]
    mine, end = bought["CapacityReservationId"], bought["EndDate"]
    time.sleep(0.3)
    asked = {"CapacityReservationId": mine, "CapacityBlockExtensionDurationHours": 48}
    found = ec2.describe_capacity_block_extension_offerings(**asked)["CapacityBlockExtensionOfferings"][0]
    assert found["CapacityBlockExtensionStartDate"] == end
    made = ec2.purchase_capacity_block_extension(
        CapacityBlockExtensionOfferingId=found["CapacityBlockExtensionOfferingId"], CapacityReservationId=mine
    )["CapacityBlockExtensions"]
    assert [e["CapacityBlockExtensionStatus"] for e in made] == ["payment-pending"]
    assert read(ec2, mine)["EndDate"] == end
    time.sleep(0.3)
    assert read(ec2, mine)["EndDate"] == end + timedelta(hours=48)
    history = ec2.describe_capacity_block_extension_history(CapacityReservationIds=[mine])["CapacityBlockExtensions"]
    assert [e["CapacityBlockExtensionStatus"] for e in history] == ["payment-succeeded"]


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    first = AwsServer(World(), "127.0.0.1", 0, tmp_path, FAST)
    first.start()
    mine = odcr(client(first))["CapacityReservationId"]
    made = launch(client(first), 1, **into(mine))
    first.world.advance(DAY_S)
    at = read(client(first), mine)["StartDate"]
    first.stop()
    second = AwsServer(World(), "127.0.0.1", 0, tmp_path, FAST)
    second.start()
    try:
        found = read(client(second), mine)
        assert (found["AvailableInstanceCount"], found["StartDate"]) == (3, at)
        shown = client(second).describe_instances()["Reservations"][0]["Instances"][0]
        assert (shown["InstanceId"], shown["CapacityReservationId"]) == (made[0]["InstanceId"], mine)
        tags = {"Key": "team", "Value": "nlp"}
        client(second).create_tags(Resources=[mine], Tags=[tags])
        assert read(client(second), mine)["Tags"] == [tags]
    finally:
        second.stop()
