"""A fake account in which clusters of every kind can be made, what is asked for there, and helpers to wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import boto3

from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import (
    ACCESS_KEY_ID,
    ACCOUNT_ID,
    IMAGE_ID,
    SECOND_SUBNET_ID,
    SECRET_ACCESS_KEY,
    SECURITY_GROUP_ID,
    SUBNET_ID,
)
from worker.providers import cluster_values as kv
from worker.providers import errors
from worker.providers import values as v

OPTIONS = AwsOptions(
    cluster_create_s=0.4,
    cluster_delete_s=0.2,
    node_reboot_s=0.3,
    boot_s=0.1,
    shutdown_s=0.1,
    block_payment_s=0.1,
    block_clean_s=0.1,
)
PROFILE = f"arn:aws:iam::{ACCOUNT_ID}:instance-profile/AWSPCS-nodes"
ROLE = f"arn:aws:iam::{ACCOUNT_ID}:role/quarterdeck/nodes"
TYPE = "p5en.48xlarge"
PCS = kv.ClusterSpec(
    kind="pcs",
    name="lab",
    settings={
        "version": "25.05",
        "size": "SMALL",
        "subnet_ids": [SUBNET_ID],
        "security_group_ids": [SECURITY_GROUP_ID],
        "idle_s": 300,
    },
    tags={v.TAG_UID: "clu_1"},
)
EKS = kv.ClusterSpec(
    kind="eks",
    name="lab",
    settings={
        "version": "1.34",
        "role_arn": ROLE,
        "subnet_ids": [SUBNET_ID, SECOND_SUBNET_ID],
        "security_group_ids": [SECURITY_GROUP_ID],
    },
    tags={v.TAG_UID: "clu_1"},
)
GROUP = kv.GroupSpec(
    uid="grp_1",
    name="p5en",
    instance_type=TYPE,
    nodes=4,
    min_nodes=0,
    source="on-demand",
    subnet_ids=(SUBNET_ID,),
    security_group_ids=(SECURITY_GROUP_ID,),
    role_arn=PROFILE,
    tags={v.TAG_UID: "grp_1"},
    image_id=IMAGE_ID,
    queue="train",
)
LIFECYCLE = {"lifecycle_s3": "s3://sagemaker-lab/scripts/", "on_create": "on_create.sh"}
POD_GROUP = replace(GROUP, role_arn=ROLE, nodes=2, image_id="", settings={**LIFECYCLE, "node_type": "Compute"})
HEAD = replace(
    POD_GROUP,
    uid="grp_0",
    name="head",
    instance_type="m5.2xlarge",
    nodes=1,
    queue="",
    settings={**LIFECYCLE, "node_type": "Controller"},
)
POD = kv.ClusterSpec(
    kind="hyperpod-slurm",
    name="lab",
    settings={"subnet_ids": [SUBNET_ID], "security_group_ids": [SECURITY_GROUP_ID], "recovers": True},
    tags={v.TAG_UID: "clu_1"},
    groups=(HEAD, POD_GROUP),
)
EKS_ARN = f"arn:aws:eks:us-east-2:{ACCOUNT_ID}:cluster/lab"
KUBE_GROUP = replace(POD_GROUP, settings=LIFECYCLE, queue="")
KUBE_POD = replace(
    POD, kind="hyperpod-eks", settings={**POD.settings, "eks_cluster_arn": EKS_ARN}, groups=(KUBE_GROUP,)
)


def access_of(server: AwsServer) -> v.CloudAccess:
    """How the sandbox is reached."""
    return v.CloudAccess(server.options.region, v.Credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY), server.url)


def aws(server: AwsServer, service: str) -> Any:
    return boto3.client(
        service,  # type: ignore[call-overload]
        region_name=server.options.region,
        endpoint_url=server.url,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
    )


def eventually(read: Callable[[], Any], within_s: float = 30.0) -> Any:
    ends_at = time.monotonic() + within_s
    while not (found := read()):
        assert time.monotonic() < ends_at, "it never came"
        time.sleep(0.04)
    return found


def active(service: Any, spec: kv.ClusterSpec, token: str = "token-of-cluster") -> kv.SeenCluster:
    service.cluster_ensure(spec, token)

    def read() -> kv.SeenCluster | None:
        seen: kv.SeenCluster = service.cluster(spec.name)
        return seen if seen.state == kv.ACTIVE else None

    found: kv.SeenCluster = eventually(read)
    return found


def group(service: Any, cluster: kv.SeenCluster, name: str = "p5en") -> kv.SeenGroup:
    found: kv.SeenGroup = next(g for g in service.groups(cluster) if g.name == name)
    return found


def in_state(service: Any, cluster: kv.SeenCluster, state: str, name: str = "p5en") -> kv.SeenGroup:
    return eventually(lambda: g if (g := group(service, cluster, name)).state == state else None)


def gone(service: Any, name: str = "lab") -> bool:
    try:
        service.cluster(name)
    except errors.NotFound:
        return True
    return False


def nothing_left(server: AwsServer) -> bool:
    return not any(n for k, n in server.census().items() if k not in ("capacity_reservations", "secrets"))


def block(server: AwsServer, count: int = 4, *, hours_until: float = 0.0) -> str:
    """A block that is bought and paid; active unless it begins later."""
    client = aws(server, "ec2")
    offer = client.describe_capacity_block_offerings(InstanceType=TYPE, InstanceCount=count, CapacityDurationHours=24)[
        "CapacityBlockOfferings"
    ][0]
    bought = client.purchase_capacity_block(
        CapacityBlockOfferingId=offer["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )
    made: str = bought["CapacityReservation"]["CapacityReservationId"]

    def state() -> str:
        found = client.describe_capacity_reservations(CapacityReservationIds=[made])["CapacityReservations"][0]
        return str(found["State"])

    eventually(lambda: state() == "scheduled")
    if not hours_until:
        begin(server)
        assert state() == "active"
    return made


def begin(server: AwsServer) -> None:
    """Let the first block begin."""
    start = min(r["start"] for r in server.cloud.book.rows("reservations").values())
    server.world.advance(start - time.time() + 2)
    server.census()


def with_template(service: Any, cluster: kv.SeenCluster, spec: kv.GroupSpec) -> kv.GroupSpec:
    made = service.template_ensure(cluster, spec, "token-of-template")
    assert service.template_ensure(cluster, spec, "token-of-template") == made
    return replace(spec, launch_template_id=made)


def raises_not_found(call: Callable[[], Any]) -> bool:
    try:
        call()
    except errors.NotFound:
        return True
    return False


def plan(server: AwsServer, count: int) -> str:
    """A training plan of so many machines, which begins later."""
    client = aws(server, "sagemaker")
    offer = client.search_training_plan_offerings(
        InstanceType=f"ml.{TYPE}", InstanceCount=count, DurationHours=24, TargetResources=["hyperpod-cluster"]
    )["TrainingPlanOfferings"][0]
    arn: str = client.create_training_plan(
        TrainingPlanName="plan", TrainingPlanOfferingId=offer["TrainingPlanOfferingId"]
    )["TrainingPlanArn"]
    return arn


def odcr(server: AwsServer) -> str:
    """An ODCR of three machines."""
    made = aws(server, "ec2").create_capacity_reservation(
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=server.options.zone,
        InstanceCount=3,
        InstanceMatchCriteria="targeted",
    )
    return str(made["CapacityReservation"]["CapacityReservationId"])
