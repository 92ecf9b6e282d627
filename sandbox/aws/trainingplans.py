"""SageMaker training plans: on offer, bought by a name, paid, scheduled, active and over, by the calendar."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sandbox.aws import blocks, seed
from sandbox.aws.errors import AwsError
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.service import hex_id, tags_of

if TYPE_CHECKING:
    from sandbox.aws.service import Service

    _Base = Service
else:
    _Base = object

_ML: Final = "ml."
_OFFER_S: Final = 3600
_INSTANTS: Final = ("start", "end", "pay_at", "good_until")
#: SageMaker's plans cost what blocks cost here: nobody but AWS knows by how much they differ.
_TARGETS: Final = ("hyperpod-cluster", "training-job")


def _seconds(value: Any, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, int | float):
        return float(value)
    return datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()


class TrainingPlans(_Base):
    """Mixed into the SageMaker service, whose ``settle`` calls ``plans_settle`` first.

    ``plan_take`` and ``plan_free`` count the machines that a cluster's instance group uses of a plan.
    """

    def plans_settle(self) -> None:
        """Let time act: jumps of the calendar's clock, and payments."""
        now = time.time()
        ahead_s = self.world.now() - now
        jump_s = ahead_s - getattr(self, "_plans_ahead_s", 0.0)
        if abs(jump_s) >= 1:
            self._plans_ahead_s = ahead_s
            for kind in ("plans", "plan_offers"):
                for row in self.rows(kind).values():
                    for name in _INSTANTS:
                        if row.get(name) is not None:
                            row[name] -= jump_s
            self.save()
        for row in self.rows("plans").values():
            if row["pay_at"] is not None and now >= row["pay_at"]:
                row["pay_at"] = None
                row["unpaid"] = self.world.fault_use("payment-failed") is not None
                self.save()

    def plan_status(self, row: Mapping[str, Any]) -> str:
        """AWS's word for where a plan is."""
        now = time.time()
        if row["unpaid"]:
            return "Failed"
        if now >= row["end"]:
            return "Expired"
        if row["pay_at"] is not None:
            return "Pending"
        return "Active" if now >= row["start"] else "Scheduled"

    def plan_take(self, arn: str, instance_type: str, count: int) -> None:
        """Use ``count`` machines of a plan, instead of what its caller used before. Raises ``AwsError``."""
        for row in self.rows("plans").values():
            if row["arn"] == arn:
                if self.plan_status(row) != "Active":
                    raise AwsError("ValidationException", f"Training plan {arn} is {self.plan_status(row)}.")
                if _ML + row["instance_type"] != instance_type or row["used"] + count > row["instances"]:
                    raise AwsError("ResourceLimitExceeded", f"Training plan {arn} has not {count} {instance_type}.")
                row["used"] += count
                return
        raise AwsError("ResourceNotFound", f"Training plan {arn} does not exist.")

    def plan_free(self, arn: str, count: int) -> None:
        """Give machines of a plan back."""
        for row in self.rows("plans").values():
            if row["arn"] == arn:
                row["used"] = max(0, row["used"] - count)

    # --- calls

    def search_training_plan_offerings(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What is on sale; an offer can be bought for an hour."""
        hours = int(asked.get("DurationHours") or 24)
        problem = blocks.duration_problem(hours)
        if problem:
            raise AwsError("ValidationException", problem)
        ultraserver = str(asked.get("UltraServerType") or "").removeprefix(_ML)
        name = blocks.ULTRASERVER_TYPE if ultraserver else str(asked.get("InstanceType") or "").removeprefix(_ML)
        servers = int(asked.get("UltraServerCount") or 1)
        count = blocks.ULTRASERVERS.get(ultraserver, 0) * servers if ultraserver else int(asked.get("InstanceCount", 1))
        if name not in blocks.PRICES or count < 1:
            raise AwsError("ValidationException", f"There are no training plans for {name or 'no instance type'}.")
        now = time.time()
        earliest = _seconds(asked.get("StartTimeAfter"), now)
        latest = _seconds(asked.get("EndTimeBefore"), now + 366 * blocks.DAY_S)
        zones = [self.options.zone] if ultraserver else seed.zones_offering(name, self.options.region)
        found = []
        for zone in zones:
            for start in blocks.days_on_sale(now, earliest, latest, hours, f"{zone}/plan/{name}", 2):
                offer = blocks.Offer(name, zone, count, start, hours)
                offering_id = hex_id("tpo", 20)
                self.rows("plan_offers")[offering_id] = {
                    "instance_type": name,
                    "instances": count,
                    "zone": zone,
                    "start": start,
                    "hours": hours,
                    "fee": offer.fee,
                    "ultraserver": ultraserver,
                    "servers": servers,
                    "targets": list(asked.get("TargetResources") or _TARGETS),
                    "good_until": now + _OFFER_S,
                }
                found.append((offering_id, offer))
        self.save()
        return {
            "TrainingPlanOfferings": [
                {
                    "TrainingPlanOfferingId": offering_id,
                    "TargetResources": list(asked.get("TargetResources") or _TARGETS),
                    "DurationHours": hours,
                    "UpfrontFee": offer.fee,
                    "CurrencyCode": "USD",
                    "ReservedCapacityOfferings": [
                        {
                            "InstanceType": _ML + offer.instance_type,
                            "InstanceCount": offer.instances,
                            "AvailabilityZone": offer.zone,
                            "DurationHours": hours,
                            "StartTime": int(offer.start),
                            "EndTime": int(offer.end),
                            **(
                                {
                                    "ReservedCapacityType": "UltraServer",
                                    "UltraServerType": _ML + ultraserver,
                                    "UltraServerCount": servers,
                                }
                                if ultraserver
                                else {"ReservedCapacityType": "Instance"}
                            ),
                        }
                    ],
                }
                for offering_id, offer in found
            ]
        }

    def create_training_plan(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A name is used once; there is no token."""
        name = asked["TrainingPlanName"]
        if name in self.rows("plans"):
            raise AwsError("ResourceInUse", f"Training plan {name} already exists.")
        offer = self.rows("plan_offers").get(asked["TrainingPlanOfferingId"])
        if offer is None or time.time() > offer["good_until"]:
            raise AwsError("ResourceNotFound", "The training plan offering does not exist or is no longer available.")
        arn = f"arn:aws:sagemaker:{self.options.region}:{ACCOUNT_ID}:training-plan/{name}"
        self.rows("plans")[name] = {
            **{k: offer[k] for k in ("instance_type", "instances", "zone", "start", "hours", "fee", "ultraserver")},
            "servers": offer["servers"],
            "targets": offer["targets"],
            "end": offer["start"] + offer["hours"] * 3600,
            "arn": arn,
            "tags": tags_of(asked.get("Tags")),
            "pay_at": time.time() + self.options.block_payment_s,
            "unpaid": False,
            "used": 0,
        }
        return {"TrainingPlanArn": arn}

    def _plan(self, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
        status = self.plan_status(row)
        part: dict[str, Any] = {
            "ReservedCapacityArn": row["arn"].replace("training-plan/", "reserved-capacity/"),
            "InstanceType": _ML + row["instance_type"],
            "TotalInstanceCount": row["instances"],
            "Status": status,
            "AvailabilityZone": row["zone"],
            "AvailabilityZoneId": seed.zone_named(self.options.region, row["zone"]).zone_id,
            "DurationHours": row["hours"],
            "StartTime": int(row["start"]),
            "EndTime": int(row["end"]),
        }
        if row["ultraserver"]:
            part |= {
                "ReservedCapacityType": "UltraServer",
                "UltraServerType": _ML + row["ultraserver"],
                "UltraServerCount": row["servers"],
            }
        return {
            "TrainingPlanArn": row["arn"],
            "TrainingPlanName": name,
            "Status": status,
            "DurationHours": row["hours"],
            "StartTime": int(row["start"]),
            "EndTime": int(row["end"]),
            "UpfrontFee": row["fee"],
            "CurrencyCode": "USD",
            "TotalInstanceCount": row["instances"],
            "AvailableInstanceCount": row["instances"] - row["used"] if status == "Active" else 0,
            "InUseInstanceCount": row["used"],
            "TargetResources": row["targets"],
            "ReservedCapacitySummaries": [part],
        }

    def describe_training_plan(self, asked: dict[str, Any]) -> dict[str, Any]:
        """By name or ARN. Raises ``AwsError`` ResourceNotFound."""
        name = asked["TrainingPlanName"].rpartition("/")[2]
        row = self.rows("plans").get(name)
        if row is None:
            raise AwsError("ResourceNotFound", f"Training plan {name} does not exist.")
        return self._plan(name, row)

    def list_training_plans(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All, in pages, by status where asked."""
        wanted = {f["Value"] for f in asked.get("Filters", []) if f["Name"] == "Status"}
        found = [self._plan(name, row) for name, row in self.rows("plans").items()]
        rows, following = self.page([p for p in found if not wanted or p["Status"] in wanted], asked)
        return {"TrainingPlanSummaries": rows, **({"NextToken": following} if following else {})}
