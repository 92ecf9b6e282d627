"""What an account lets us do, asked call by call with describes and dry runs only: nothing is made or bought."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from worker.providers import values as v
from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import creating_client, reading_client
from worker.providers.aws.errors import DRY_RUN_PASSED
from worker.providers.errors import AccessDenied, InvalidRequest, NotFound, ProviderError, Unsupported

#: An id of AWS's shape that nothing has: a dry run with it is refused for the permission first.
_NOBODY: Final = {
    "instance": "i-00000000000000000",
    "reservation": "cr-00000000000000000",
    "offering": "cb-00000000000000000",
}


@dataclass(frozen=True)
class Probe:
    """One call: what it is for, and whether the portal needs it always or only for a feature."""

    action: str
    purpose: str
    ask: Callable[[v.CloudAccess], Any]


@dataclass(frozen=True)
class Finding:
    """How one call ended: "works", "denied", "absent" (no such service or call there) or "unclear"."""

    action: str
    purpose: str
    verdict: str
    detail: str


def _read(service: str, method: str, **asked: Any) -> Callable[[v.CloudAccess], Any]:
    return lambda access: getattr(reading_client(access, service), method)(**asked)


def _dry(method: str, **asked: Any) -> Callable[[v.CloudAccess], Any]:
    return lambda access: getattr(creating_client(access, "ec2"), method)(DryRun=True, **asked)


def _metric(access: v.CloudAccess) -> Any:
    now = datetime.now(UTC)
    query = {
        "Id": "a",
        "MetricStat": {
            "Metric": {"Namespace": "AWS/FSx", "MetricName": "FreeDataStorageCapacity"},
            "Period": 60,
            "Stat": "Sum",
        },
    }
    return reading_client(access, "cloudwatch").get_metric_data(
        StartTime=now - timedelta(minutes=5), EndTime=now, MetricDataQueries=[query]
    )


def _cost(access: v.CloudAccess) -> Any:
    today = datetime.now(UTC).date()
    period = {"Start": (today - timedelta(days=1)).isoformat(), "End": today.isoformat()}
    return reading_client(access, "ce").get_cost_and_usage(
        TimePeriod=period, Granularity="DAILY", Metrics=["UnblendedCost"]
    )


def probes() -> tuple[Probe, ...]:
    """Every probe, reads first."""
    p5 = [{"Name": "instance-type", "Values": ["p5.48xlarge"]}]
    return (
        Probe("sts:GetCallerIdentity", "who we are", _read("sts", "get_caller_identity")),
        Probe("ec2:DescribeInstances", "nodes", _read("ec2", "describe_instances", MaxResults=5)),
        Probe("ec2:DescribeInstanceStatus", "retirements", _read("ec2", "describe_instance_status", MaxResults=5)),
        Probe("ec2:DescribeInstanceTypes", "layouts", _read("ec2", "describe_instance_types", Filters=p5)),
        Probe(
            "ec2:DescribeInstanceTypeOfferings",
            "zones",
            _read("ec2", "describe_instance_type_offerings", LocationType="availability-zone-id", Filters=p5),
        ),
        Probe("ec2:DescribeSubnets", "addresses", _read("ec2", "describe_subnets")),
        Probe("ec2:DescribeSecurityGroups", "EFA rules", _read("ec2", "describe_security_groups")),
        Probe("ec2:DescribeImages", "images", _read("ec2", "describe_images", Owners=["self"])),
        Probe("ec2:DescribeNetworkInterfaces", "sweep", _read("ec2", "describe_network_interfaces", MaxResults=5)),
        Probe("ec2:DescribePlacementGroups", "sweep", _read("ec2", "describe_placement_groups")),
        Probe("ec2:DescribeLaunchTemplates", "sweep", _read("ec2", "describe_launch_templates", MaxResults=5)),
        Probe("ec2:DescribeCapacityReservations", "calendar", _read("ec2", "describe_capacity_reservations")),
        Probe(
            "ec2:DescribeCapacityBlockOfferings",
            "searching blocks",
            _read(
                "ec2",
                "describe_capacity_block_offerings",
                InstanceType="p5.48xlarge",
                InstanceCount=1,
                CapacityDurationHours=24,
            ),
        ),
        Probe(
            "servicequotas:GetServiceQuota",
            "preflight",
            _read("service-quotas", "get_service_quota", ServiceCode="ec2", QuotaCode="L-417A185B"),
        ),
        Probe("fsx:DescribeFileSystems", "storage", _read("fsx", "describe_file_systems")),
        Probe("elasticfilesystem:DescribeFileSystems", "storage", _read("efs", "describe_file_systems")),
        Probe("cloudwatch:GetMetricData", "export queue, fullness", _metric),
        Probe("eks:ListClusters", "EKS clusters", _read("eks", "list_clusters")),
        Probe("pcs:ListClusters", "PCS clusters", _read("pcs", "list_clusters")),
        Probe("sagemaker:ListClusters", "HyperPod clusters", _read("sagemaker", "list_clusters")),
        Probe(
            "pricing:GetProducts",
            "prices",
            _read("pricing", "get_products", ServiceCode="AmazonEC2", MaxResults=1),
        ),
        Probe("ce:GetCostAndUsage", "the bill", _cost),
        Probe("ec2:CreatePlacementGroup", "launch", _dry("create_placement_group", GroupName="qd", Strategy="cluster")),
        Probe(
            "ec2:CreateLaunchTemplate",
            "launch",
            _dry(
                "create_launch_template",
                LaunchTemplateName="quarterdeck-live-check",
                LaunchTemplateData={"InstanceType": "p5.48xlarge"},
            ),
        ),
        Probe("ec2:TerminateInstances", "tear-down", _dry("terminate_instances", InstanceIds=[_NOBODY["instance"]])),
        Probe(
            "ec2:CreateCapacityReservation",
            "reserving",
            _dry(
                "create_capacity_reservation",
                InstanceType="p5.48xlarge",
                InstancePlatform="Linux/UNIX",
                AvailabilityZone="us-east-1a",
                InstanceCount=1,
            ),
        ),
        Probe(
            "ec2:PurchaseCapacityBlock",
            "buying blocks (denied unless the feature is on)",
            _dry(
                "purchase_capacity_block",
                CapacityBlockOfferingId=_NOBODY["offering"],
                InstancePlatform="Linux/UNIX",
            ),
        ),
    )


def run(access: v.CloudAccess) -> Iterator[Finding]:
    """Ask everything, one finding a call."""
    for probe in probes():
        yield _ask(probe, access)


def _ask(probe: Probe, access: v.CloudAccess) -> Finding:
    name = probe.action.partition(":")[2]
    try:
        with aws_call(name):
            probe.ask(access)
    except ProviderError as error:
        verdict, detail = _verdict(error)
        return Finding(probe.action, probe.purpose, verdict, detail)
    return Finding(probe.action, probe.purpose, "works", "")


def _verdict(error: ProviderError) -> tuple[str, str]:
    """A dry run that passed, or was refused for what it named and not for who asked, shows that we may."""
    if error.code == DRY_RUN_PASSED:
        return "works", "dry run"
    if isinstance(error, NotFound | InvalidRequest):
        return "works", f"allowed, and refused for what it named ({error.code})"
    if isinstance(error, AccessDenied):
        return "denied", error.message
    if isinstance(error, Unsupported):
        return "absent", error.message
    return "unclear", str(error)
