"""A sandbox's AWS in this process with an account, a cluster and reservations: what the tests of fleets share."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3

from apps.capacity.models import Reservation
from apps.clusters.fleet_services import fleet_create
from apps.clusters.models import Cluster, Fleet, Node
from apps.clusters.observations import SeenNode, cluster_nodes_observe
from apps.connections.models import CloudAccount
from apps.core import clock
from sandbox.aws import AwsServer
from sandbox.aws.options import ACCESS_KEY_ID, IMAGE_ID, SECRET_ACCESS_KEY, SECURITY_GROUP_ID, SUBNET_ID
from tests.chaos import Plan, visit
from tests.conftest import actor_of

KIND = "fleet.reconcile"
KEYS = f'{{"access_key_id": "{ACCESS_KEY_ID}", "secret_access_key": "{SECRET_ACCESS_KEY}"}}'
#: Every call of the compute port that a launch or a deletion makes and that changes something.
CREATING = ("placement_group_ensure", "launch_template_ensure", "launch")
DELETING = ("terminate", "launch_template_delete", "placement_group_delete")
EMPTY = {"instances": 0, "placement_groups": 0, "launch_templates": 0, "network_interfaces": 0}


def client(server: AwsServer) -> Any:
    """An EC2 client of the sandbox."""
    return boto3.client(
        "ec2",
        region_name=server.options.region,
        endpoint_url=server.url,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
    )


def site(server: AwsServer) -> Cluster:
    """A ready cluster with a connected account in the sandbox."""
    account = CloudAccount.objects.create(
        name="sandbox",
        region=server.options.region,
        endpoint_url=server.url,
        credentials_ref="env:TEST_AWS",
        phase="CONNECTED",
    )
    return Cluster.objects.create(
        name="lab",
        account=account,
        api_url="http://127.0.0.1:9",
        user_name="qd",
        token_ref="env:TEST_TOKEN",
        working_root="/tmp/qd",
        phase="READY",
    )


def odcr(server: AwsServer, cluster: Cluster, instance_type: str, count: int, **asked: Any) -> Reservation:
    """An ODCR in the sandbox and its row."""
    made = client(server).create_capacity_reservation(
        InstanceType=instance_type,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=server.options.zone,
        InstanceCount=count,
        InstanceMatchCriteria=asked.pop("match", "targeted"),
        **asked,
    )["CapacityReservation"]
    return _row(cluster, made, "odcr")


def block(server: AwsServer, cluster: Cluster, instance_type: str, count: int, ultraserver: str = "") -> Reservation:
    """A Capacity Block in the sandbox that is active now, and its row. One for UltraServers is put there by hand."""
    book = server.cloud.book
    with server.cloud.lock:
        zone = server.options.zone
        found = client_zone(server, zone)
        made = book.add(
            type="capacity-block",
            instance_type=instance_type,
            zone=zone,
            zone_id=found,
            total=count,
            match="targeted",
            end=time.time() + 7 * 86_400,
            block_id="cb-0123456789abcdef0",
            ultraserver_type=ultraserver,
        )
        book.save()
    row = client(server).describe_capacity_reservations(CapacityReservationIds=[made])["CapacityReservations"][0]
    return _row(cluster, row, "ultraserver-block" if ultraserver else "capacity-block")


def client_zone(server: AwsServer, zone: str) -> str:
    from sandbox.aws.seed import zone_named

    return str(zone_named(server.options.region, zone).zone_id)


def _row(cluster: Cluster, raw: dict[str, Any], kind: str) -> Reservation:
    assert cluster.account is not None
    return Reservation.objects.create(
        account=cluster.account,
        kind=kind,
        provider_id=raw["CapacityReservationId"],
        instance_type=raw["InstanceType"],
        instances=raw["TotalInstanceCount"],
        zone_id=raw["AvailabilityZoneId"],
        match_criteria=raw["InstanceMatchCriteria"],
        placement_group_arn=raw.get("PlacementGroupArn", ""),
        end_at=raw.get("EndDate"),
        start_at=datetime.now(UTC) - timedelta(hours=1),
        phase="ACTIVE",
        observed_state="active",
    )


def make(operator: Any, cluster: Cluster, **changes: Any) -> Fleet:
    """A fleet of four p5 on demand, or what ``changes`` say."""
    asked: dict[str, Any] = {
        "name": "train",
        "instance_type": "p5.48xlarge",
        "nodes": 4,
        "subnet_id": SUBNET_ID,
        "security_group_ids": [SECURITY_GROUP_ID],
        "image_id": IMAGE_ID,
    }
    return fleet_create(actor=actor_of(operator), cluster=cluster, **{**asked, **changes})


def join(fleet: Fleet) -> None:
    """What the Slurm collector would see."""
    cluster_nodes_observe(
        fleet.cluster,
        [
            SeenNode(n.name, "IDLE", (), "h100", 8, 0, 192, 2_000_000, "", ("gpu",))
            for n in Node.objects.filter(cluster=fleet.cluster).exclude(phase="GONE")
        ],
    )


def drive(fleet: Fleet, work: Any, plan: Plan, *until: str, seconds: float = 60.0, pause_s: float = 0.03) -> str:
    """Visits until the fleet is in one of these phases; waits for capacity end at once."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        visit(work, KIND, plan)
        fleet.refresh_from_db()
        if fleet.phase in until:
            return fleet.phase
        if fleet.phase == "JOINING":
            join(fleet)
        if fleet.phase == "WAITING_CAPACITY":
            Fleet.objects.filter(pk=fleet.pk).update(next_try_at=clock.now())
        time.sleep(pause_s)
    raise AssertionError(f"still {fleet.phase}: {fleet.message}")


def counts(server: AwsServer) -> dict[str, int]:
    """What the sandbox holds of what fleets make."""
    return {k: n for k, n in server.census().items() if k in EMPTY}
