"""The EC2 calls about reserved capacity, mixed into the EC2 handler."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from moto.core.responses import ActionResult

from sandbox.aws import seed
from sandbox.aws.errors import AwsError, insufficient_capacity
from sandbox.aws.filters import Filters, matches
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.reservations import BLOCK, Book, Row
from sandbox.aws.state import Cloud

#: Calls answered in this file.
CALLS: Final = frozenset(
    {
        "cancel_capacity_reservation",
        "create_capacity_reservation",
        "describe_capacity_reservation_topology",
        "describe_capacity_reservations",
        "modify_capacity_reservation",
    }
)
FOREVER: Final = 4_102_444_800.0


def instant(value: Any, default: float) -> float:
    """An instant of a request as Unix seconds. Raises ``AwsError``."""
    if value in (None, ""):
        return default
    if isinstance(value, int | float):
        return float(value)
    try:
        found = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        raise AwsError("InvalidParameterValue", f"The instant '{value}' is not valid.") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def shown_at(at: float | None) -> datetime | None:
    """Unix seconds as AWS prints them."""
    return None if at is None else datetime.fromtimestamp(int(at), UTC)


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags in AWS's shape."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


class ReservationCalls:
    """ODCRs, and what blocks have in common with them."""

    cloud: Cloud
    # From the handler this is mixed into.
    _tags: Callable[[str], dict[str, str]]
    _refuse_dry_run: Callable[[], None]
    _paged: Callable[..., Any]
    _required: Callable[[str], str]

    if TYPE_CHECKING:

        @property
        def _all(self) -> dict[str, Any]: ...

        @property
        def _filters(self) -> Filters: ...

    @property
    def book(self) -> Book:
        """What is kept, after time has acted on it."""
        return self.cloud.book

    # --- reservations

    def create_capacity_reservation(self) -> ActionResult:
        """The same token with the same parameters answers with what it made before."""
        asked = self._all
        instance_type, count = self._required("InstanceType"), int(asked["InstanceCount"])
        if seed.instance_type(instance_type) is None:
            raise AwsError("InvalidParameterValue", f"Invalid value '{instance_type}' for InstanceType.")
        zone = self.zone_named(asked.get("AvailabilityZone"), asked.get("AvailabilityZoneId"))
        if zone.name not in seed.zones_offering(instance_type, self.cloud.options.region):
            raise AwsError("Unsupported", f"{instance_type} is not supported in {zone.name}.")
        group = str(asked.get("PlacementGroupArn") or "")
        if group and group.rpartition("/")[2] not in self.cloud.groups:
            raise AwsError("InvalidPlacementGroup.Unknown", f"The Placement Group '{group}' is unknown.")
        limited = asked.get("EndDateType") == "limited"
        if limited != bool(asked.get("EndDate")):
            raise AwsError("InvalidParameterCombination", "EndDate goes with EndDateType limited, and only with it.")
        if count < 1:
            raise AwsError("InvalidParameterValue", f"Invalid value '{count}' for InstanceCount.")
        if limited and instant(asked["EndDate"], FOREVER) <= time.time():
            raise AwsError("InvalidParameterValue", "The EndDate must be in the future.")
        if asked.get("StartDate"):
            raise AwsError("InvalidParameterValue", "The sandbox knows no future-dated Capacity Reservations.")
        self._refuse_dry_run()

        def make() -> str:
            free = self.cloud.options.pool_of(instance_type) - len(self.cloud.live(instance_type))
            free -= self.book.kept_back(instance_type)
            if free < count or self.book.fault("no-capacity", instance_type=instance_type, zone=zone.name):
                raise insufficient_capacity(instance_type, zone.name, [])
            return self.book.add(
                instance_type=instance_type,
                total=count,
                zone=zone.name,
                zone_id=zone.zone_id,
                platform=asked.get("InstancePlatform") or "Linux/UNIX",
                tenancy=asked.get("Tenancy") or "default",
                match=asked.get("InstanceMatchCriteria") or "open",
                end=instant(asked.get("EndDate"), FOREVER) if limited else None,
                tags=self._tags("capacity-reservation"),
                placement_group_arn=group,
            )

        wanted = json.dumps({k: v for k, v in asked.items() if k != "ClientToken"}, sort_keys=True)
        made = self.book.once(str(asked.get("ClientToken") or ""), wanted, make)
        self.book.save()
        return ActionResult({"CapacityReservation": self.reservation(made)})

    def zone_named(self, name: Any, zone_id: Any) -> Any:
        """moto's zone by name or id. Raises ``AwsError``."""
        from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

        for zone in RegionsAndZonesBackend.zones.get(self.cloud.options.region, []):
            if zone.name == name or (not name and zone.zone_id == zone_id):
                return zone
        raise AwsError("InvalidParameterValue", f"Invalid availability zone: [{name or zone_id or ''}]")

    def reservation(self, reservation_id: str) -> dict[str, Any]:
        """One of DescribeCapacityReservations."""
        row = self.book.found(reservation_id)
        region = self.cloud.options.region
        shown = {
            "CapacityReservationId": reservation_id,
            "OwnerId": ACCOUNT_ID,
            "CapacityReservationArn": f"arn:aws:ec2:{region}:{ACCOUNT_ID}:capacity-reservation/{reservation_id}",
            "AvailabilityZone": row["zone"],
            "AvailabilityZoneId": row["zone_id"],
            "InstanceType": row["instance_type"],
            "InstancePlatform": row["platform"],
            "Tenancy": row["tenancy"],
            "TotalInstanceCount": row["total"],
            "AvailableInstanceCount": self.book.available(reservation_id, row),
            "EbsOptimized": False,
            "EphemeralStorage": False,
            "State": self.book.state_of(row),
            "StartDate": shown_at(row["start"]),
            "EndDateType": "unlimited" if row["end"] is None else "limited",
            "InstanceMatchCriteria": row["match"],
            "CreateDate": shown_at(row["created"]),
            "Tags": tag_list(row["tags"]),
            "ReservationType": row["type"],
        }
        if row["end"] is not None:
            shown["EndDate"] = shown_at(row["end"])
        if row["placement_group_arn"]:
            shown["PlacementGroupArn"] = row["placement_group_arn"]
        if row["block_id"]:
            shown["CapacityBlockId"] = row["block_id"]
        return shown

    def describe_capacity_reservations(self) -> ActionResult:
        """All, or those named; an unknown id is an error."""
        ids = self._all.get("CapacityReservationIds") or []
        for reservation_id in ids:
            self.book.found(reservation_id)

        def passes(reservation_id: str, row: Row) -> bool:
            values = {
                "instance-type": [row["instance_type"]],
                "state": [self.book.state_of(row)],
                "availability-zone": [row["zone"]],
                "availability-zone-id": [row["zone_id"]],
                "reservation-type": [row["type"]],
                "instance-match-criteria": [row["match"]],
            }
            return matches(self._filters, row["tags"], values.get)

        chosen = [i for i, row in self.book.rows("reservations").items() if (not ids or i in ids) and passes(i, row)]
        shown, following = self._paged(chosen, least=1)
        return ActionResult({"CapacityReservations": [self.reservation(i) for i in shown], "NextToken": following})

    def modify_capacity_reservation(self) -> ActionResult:
        """Count, end and matching of an ODCR; a block stays as it was bought."""
        asked = self._all
        reservation_id = self._required("CapacityReservationId")
        row = self.book.found(reservation_id)
        if row["type"] == BLOCK:
            raise AwsError("UnsupportedOperation", "A Capacity Block can't be modified.")
        if self.book.state_of(row) != "active":
            raise AwsError("InvalidCapacityReservationState", f"{reservation_id} must be active to be modified.")
        count = asked.get("InstanceCount")
        if count is not None and int(count) < self.book.used(reservation_id, row):
            raise AwsError("InvalidParameterValue", "The instance count is below the number of running instances.")
        if count is not None:
            more = int(count) - row["total"]
            free = self.cloud.options.pool_of(row["instance_type"]) - len(self.cloud.live(row["instance_type"]))
            if more > free - self.book.kept_back(row["instance_type"]):
                raise insufficient_capacity(row["instance_type"], row["zone"], [])
        self._refuse_dry_run()
        row["total"] = row["total"] if count is None else int(count)
        row["match"] = asked.get("InstanceMatchCriteria") or row["match"]
        if asked.get("EndDateType") == "unlimited":
            row["end"] = None
        elif asked.get("EndDate"):
            row["end"] = instant(asked["EndDate"], FOREVER)
        self.book.save()
        return ActionResult({"Return": True})

    def cancel_capacity_reservation(self) -> ActionResult:
        """Machines in it run on at the on-demand price. A block cannot be cancelled."""
        reservation_id = self._required("CapacityReservationId")
        row = self.book.found(reservation_id)
        if row["type"] == BLOCK:
            raise AwsError("UnsupportedOperation", "A Capacity Block can't be cancelled.")
        if self.book.state_of(row) != "active":
            raise AwsError("InvalidCapacityReservationState", f"{reservation_id} must be active to be cancelled.")
        self._refuse_dry_run()
        row["cancelled_at"] = time.time()
        self.book.save()
        return ActionResult({"Return": True})

    def describe_capacity_reservation_topology(self) -> ActionResult:
        """Where reservations lie: the layers of the network above their machines."""
        ids = self._all.get("CapacityReservationIds") or []
        if len(ids) > 10:
            raise AwsError("InvalidParameterValue", "At most 10 Capacity Reservation IDs can be specified.")
        listed = [
            {
                "CapacityReservationId": reservation_id,
                "State": self.book.state_of(row),
                "InstanceType": row["instance_type"],
                "AvailabilityZone": row["zone"],
                "AvailabilityZoneId": row["zone_id"],
                "NetworkNodes": [_network_node(row["zone"]), _network_node(f"{row['zone']}/{reservation_id}")],
                **({"CapacityBlockId": row["block_id"]} if row["block_id"] else {}),
            }
            for reservation_id, row in self.book.rows("reservations").items()
            if (not ids or reservation_id in ids) and self.book.state_of(row) == "active"
        ]
        shown, following = self._paged(listed, least=1)
        return ActionResult({"CapacityReservations": list(shown), "NextToken": following})


def _network_node(name: str) -> str:
    return f"nn-{zlib.crc32(name.encode()):08x}{zlib.crc32(name[::-1].encode()):08x}0"
