"""The port ``Capacity`` on EC2's reservations and blocks and on SageMaker's training plans."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from worker.providers import capacity_values as cv
from worker.providers import values as v
from worker.providers.aws import convert
from worker.providers.aws.calls import aws_call
from worker.providers.aws.clients import creating_client, reading_client
from worker.providers.errors import Unavailable

PLATFORM: Final = "Linux/UNIX"
#: SageMaker puts this before EC2's names.
_ML: Final = "ml."


class AwsCapacity:
    """Implements ``worker.providers.ports.Capacity``; see there for the contract."""

    def __init__(self, access: v.CloudAccess) -> None:
        self._access = access

    @property
    def _ec2(self) -> Any:
        return reading_client(self._access, "ec2")

    @property
    def _sagemaker(self) -> Any:
        return reading_client(self._access, "sagemaker")

    # --- what there is

    def reservations(self) -> tuple[cv.SeenReservation, ...]:
        """All ODCRs and blocks; which blocks are UltraServers takes a second call, made only where there is one."""
        found: list[dict[str, Any]] = []
        with aws_call("DescribeCapacityReservations"):
            for page in self._ec2.get_paginator("describe_capacity_reservations").paginate(
                PaginationConfig={"PageSize": 1000}
            ):
                found += page["CapacityReservations"]
        blocks: dict[str, str] = {}
        if any(r.get("CapacityBlockId") for r in found):
            with aws_call("DescribeCapacityBlocks"):
                for page in self._ec2.get_paginator("describe_capacity_blocks").paginate():
                    blocks |= {b["CapacityBlockId"]: b.get("UltraserverType", "") for b in page["CapacityBlocks"]}
        return tuple(_reservation(r, blocks) for r in found)

    def training_plans(self) -> tuple[cv.SeenReservation, ...]:
        """All training plans."""
        found: list[dict[str, Any]] = []
        with aws_call("ListTrainingPlans"):
            token: dict[str, str] = {}
            while True:
                page = self._sagemaker.list_training_plans(MaxResults=100, **token)
                found += page["TrainingPlanSummaries"]
                if not page.get("NextToken"):
                    break
                token = {"NextToken": page["NextToken"]}
        return tuple(_plan(p) for p in found)

    # --- what can be had

    def block_offerings(self, query: cv.OfferingQuery) -> tuple[cv.Offering, ...]:
        """Every zone of the region, all pages."""
        asked: dict[str, Any] = {"CapacityDurationHours": query.hours}
        if query.ultraserver:
            asked |= {"UltraserverType": query.ultraserver, "UltraserverCount": query.instances}
        else:
            asked |= {"InstanceType": query.instance_type, "InstanceCount": query.instances}
        if query.start_at is not None:
            asked["StartDateRange"] = query.start_at
        if query.end_at is not None:
            asked["EndDateRange"] = query.end_at
        found: list[cv.Offering] = []
        with aws_call("DescribeCapacityBlockOfferings"):
            pages = self._ec2.get_paginator("describe_capacity_block_offerings")
            for page in pages.paginate(**asked, PaginationConfig={"PageSize": 100}):
                found += [_block_offering(o) for o in page["CapacityBlockOfferings"]]
        return tuple(found)

    def extension_offerings(self, provider_id: str, hours: int) -> tuple[cv.Offering, ...]:
        """All offers for one block."""
        with aws_call("DescribeCapacityBlockExtensionOfferings"):
            answer = self._ec2.describe_capacity_block_extension_offerings(
                CapacityReservationId=provider_id, CapacityBlockExtensionDurationHours=hours
            )
        return tuple(
            cv.Offering(
                offering_id=o["CapacityBlockExtensionOfferingId"],
                instance_type=o["InstanceType"],
                instances=o["InstanceCount"],
                zone_name=o.get("AvailabilityZone", ""),
                zone_id=o.get("AvailabilityZoneId", ""),
                start_at=_utc(o["CapacityBlockExtensionStartDate"]),
                end_at=_utc(o["CapacityBlockExtensionEndDate"]),
                hours=o["CapacityBlockExtensionDurationHours"],
                usd_upfront=_money(o["UpfrontFee"]),
                currency=o.get("CurrencyCode", "USD"),
            )
            for o in answer["CapacityBlockExtensionOfferings"]
        )

    def plan_offerings(self, query: cv.OfferingQuery) -> tuple[cv.Offering, ...]:
        """For HyperPod clusters."""
        asked: dict[str, Any] = {"DurationHours": query.hours, "TargetResources": ["hyperpod-cluster"]}
        if query.ultraserver:
            asked |= {"UltraServerType": _ML + query.ultraserver, "UltraServerCount": query.instances}
        else:
            asked |= {"InstanceType": _ML + query.instance_type, "InstanceCount": query.instances}
        if query.start_at is not None:
            asked["StartTimeAfter"] = query.start_at
        if query.end_at is not None:
            asked["EndTimeBefore"] = query.end_at
        with aws_call("SearchTrainingPlanOfferings"):
            answer = self._sagemaker.search_training_plan_offerings(**asked)
        return tuple(_plan_offering(o) for o in answer["TrainingPlanOfferings"])

    # --- what is bought: one HTTP attempt each

    def block_purchase(self, offering_id: str, tags: Mapping[str, str]) -> tuple[str, ...]:
        """The ids of all its reservations, in the order of their time."""
        with aws_call("PurchaseCapacityBlock"):
            answer = creating_client(self._access, "ec2").purchase_capacity_block(
                CapacityBlockOfferingId=offering_id,
                InstancePlatform=PLATFORM,
                TagSpecifications=convert.tag_specifications(tags, ["capacity-reservation"]),
            )
        rows = answer.get("CapacityReservations") or [
            convert.part(answer, "CapacityReservation", "PurchaseCapacityBlock")
        ]
        return tuple(r["CapacityReservationId"] for r in sorted(rows, key=lambda r: r["StartDate"]))

    def extension_purchase(self, offering_id: str, provider_id: str) -> None:
        """The end moves once it is paid."""
        with aws_call("PurchaseCapacityBlockExtension"):
            creating_client(self._access, "ec2").purchase_capacity_block_extension(
                CapacityBlockExtensionOfferingId=offering_id, CapacityReservationId=provider_id
            )

    def extensions(self, provider_id: str) -> tuple[cv.SeenExtension, ...]:
        """Paid or not."""
        with aws_call("DescribeCapacityBlockExtensionHistory"):
            answer = self._ec2.describe_capacity_block_extension_history(CapacityReservationIds=[provider_id])
        return tuple(
            cv.SeenExtension(
                provider_id=e["CapacityReservationId"],
                offering_id=e["CapacityBlockExtensionOfferingId"],
                state=e["CapacityBlockExtensionStatus"],
                end_at=_utc(e["CapacityBlockExtensionEndDate"]),
                usd_upfront=_money(e["UpfrontFee"]),
                bought_at=_maybe(e.get("CapacityBlockExtensionPurchaseDate")),
            )
            for e in answer["CapacityBlockExtensions"]
        )

    def plan_purchase(self, offering_id: str, name: str, tags: Mapping[str, str]) -> str:
        """A name is used once an account."""
        with aws_call("CreateTrainingPlan"):
            answer = creating_client(self._access, "sagemaker").create_training_plan(
                TrainingPlanName=name, TrainingPlanOfferingId=offering_id, Tags=convert.tag_list(tags)
            )
        return str(answer["TrainingPlanArn"])

    def odcr_create(self, spec: cv.OdcrSpec, client_token: str) -> cv.SeenReservation:
        """botocore fills in no token here; ours was saved before."""
        asked: dict[str, Any] = {"EndDateType": "unlimited"}
        if spec.end_at is not None:
            asked = {"EndDateType": "limited", "EndDate": spec.end_at}
        with aws_call("CreateCapacityReservation"):
            answer = creating_client(self._access, "ec2").create_capacity_reservation(
                ClientToken=client_token,
                InstanceType=spec.instance_type,
                InstancePlatform=PLATFORM,
                AvailabilityZone=spec.zone_name,
                InstanceCount=spec.instances,
                InstanceMatchCriteria=spec.match_criteria,
                TagSpecifications=convert.tag_specifications(spec.tags, ["capacity-reservation"]),
                **asked,
            )
        return _reservation(convert.part(answer, "CapacityReservation", "CreateCapacityReservation"), {})

    def odcr_cancel(self, provider_id: str) -> None:
        """May be repeated."""
        with aws_call("CancelCapacityReservation"):
            self._ec2.cancel_capacity_reservation(CapacityReservationId=provider_id)


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def _maybe(at: datetime | None) -> datetime | None:
    return None if at is None else _utc(at)


def _money(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise Unavailable(f"the price {text!r} is not a number", source="aws", code="BadPrice") from None


def _reservation(raw: Mapping[str, Any], blocks: Mapping[str, str]) -> cv.SeenReservation:
    is_block = raw.get("ReservationType") == "capacity-block"
    kind = "odcr"
    if is_block:
        ultraserver = blocks.get(raw.get("CapacityBlockId", ""), "")
        kind = "ultraserver-block" if ultraserver or raw["InstanceType"].startswith("p6e-") else "capacity-block"
    tags = convert.tag_map(raw.get("Tags"))
    return cv.SeenReservation(
        provider_id=raw["CapacityReservationId"],
        kind=kind,
        state=raw["State"],
        instance_type=raw["InstanceType"],
        instances=raw["TotalInstanceCount"],
        available=raw.get("AvailableInstanceCount"),
        name=tags.get("Name", ""),
        zone_name=raw.get("AvailabilityZone", ""),
        zone_id=raw.get("AvailabilityZoneId", ""),
        match_criteria=raw.get("InstanceMatchCriteria", ""),
        platform=raw.get("InstancePlatform", ""),
        tenancy=raw.get("Tenancy", ""),
        placement_group_arn=raw.get("PlacementGroupArn", ""),
        start_at=_maybe(raw.get("StartDate")),
        end_at=_maybe(raw.get("EndDate")),
        created_at=_maybe(raw.get("CreateDate")),
        tags=tags,
    )


def _plan(raw: Mapping[str, Any]) -> cv.SeenReservation:
    parts = raw.get("ReservedCapacitySummaries") or [{}]
    fee = raw.get("UpfrontFee")
    return cv.SeenReservation(
        provider_id=raw["TrainingPlanArn"],
        kind="training-plan",
        state=raw["Status"],
        instance_type=str(parts[0].get("InstanceType", "")).removeprefix(_ML),
        instances=raw.get("TotalInstanceCount", 0),
        available=raw.get("AvailableInstanceCount"),
        name=raw["TrainingPlanName"],
        zone_name=parts[0].get("AvailabilityZone", ""),
        zone_id=parts[0].get("AvailabilityZoneId", ""),
        match_criteria="targeted",
        start_at=_maybe(raw.get("StartTime")),
        end_at=_maybe(raw.get("EndTime")),
        usd_upfront=_money(fee) if fee else None,
    )


def _block_offering(raw: Mapping[str, Any]) -> cv.Offering:
    segments = raw.get("CapacityBlockOfferingSegments") or [{}]
    return cv.Offering(
        offering_id=raw["CapacityBlockOfferingId"],
        instance_type=raw["InstanceType"],
        instances=raw["InstanceCount"],
        zone_name=raw.get("AvailabilityZone", ""),
        zone_id=segments[0].get("AvailabilityZoneId", ""),
        start_at=_utc(raw["StartDate"]),
        end_at=_utc(raw["EndDate"]),
        hours=raw["CapacityBlockDurationHours"],
        usd_upfront=_money(raw["UpfrontFee"]),
        currency=raw.get("CurrencyCode", "USD"),
        ultraserver=raw.get("UltraserverType", ""),
        parts=len(segments),
    )


def _plan_offering(raw: Mapping[str, Any]) -> cv.Offering:
    parts = raw.get("ReservedCapacityOfferings") or [{}]
    return cv.Offering(
        offering_id=raw["TrainingPlanOfferingId"],
        instance_type=str(parts[0].get("InstanceType", "")).removeprefix(_ML),
        instances=sum(p.get("InstanceCount", 0) for p in parts),
        zone_name=parts[0].get("AvailabilityZone", ""),
        start_at=_utc(min(p["StartTime"] for p in parts)),
        end_at=_utc(max(p["EndTime"] for p in parts)),
        hours=raw.get("DurationHours", 0),
        usd_upfront=_money(raw.get("UpfrontFee") or "0"),
        currency=raw.get("CurrencyCode", "USD"),
        ultraserver=str(parts[0].get("UltraServerType", "")).removeprefix(_ML),
        parts=len(parts),
    )
