"""The EC2 calls about Capacity Blocks and their extensions, mixed into the EC2 handler."""

from __future__ import annotations

import time
from typing import Any, Final

from moto.core.responses import ActionResult

from sandbox.aws import blocks, seed
from sandbox.aws.errors import AwsError
from sandbox.aws.reservation_calls import FOREVER, ReservationCalls, instant, shown_at, tag_list
from sandbox.aws.reservations import BLOCK, Row, ultraserver_machines
from sandbox.aws.service import hex_id

#: Calls answered in this file.
CALLS: Final = frozenset(
    {
        "describe_capacity_block_extension_history",
        "describe_capacity_block_extension_offerings",
        "describe_capacity_block_offerings",
        "describe_capacity_block_status",
        "describe_capacity_blocks",
        "purchase_capacity_block",
        "purchase_capacity_block_extension",
    }
)
_OFFER_S: Final = 3600
_SPLIT_HOURS: Final = 24 * 60


class BlockCalls(ReservationCalls):
    """Offers, purchases, the state of blocks, extensions."""

    def describe_capacity_block_offerings(self) -> ActionResult:
        """What is on sale within the window; an offer can be bought for an hour."""
        asked = self._all
        hours = int(asked["CapacityDurationHours"])
        problem = blocks.duration_problem(hours)
        if problem:
            raise AwsError("InvalidParameterValue", problem)
        ultraserver = str(asked.get("UltraserverType") or "")
        instance_type = blocks.ULTRASERVER_TYPE if ultraserver else str(asked.get("InstanceType") or "")
        servers = int(asked.get("UltraserverCount") or 1)
        count = ultraserver_machines(ultraserver, servers) if ultraserver else int(asked.get("InstanceCount", 1))
        if not ultraserver and not instance_type:
            raise AwsError("MissingParameter", "The request must contain InstanceType or UltraserverType")
        if instance_type not in blocks.PRICES or (instance_type == blocks.ULTRASERVER_TYPE and not ultraserver):
            raise AwsError("InvalidParameterValue", f"Capacity Blocks are not available for '{instance_type}'.")
        if not 1 <= count <= blocks.MOST_INSTANCES:
            raise AwsError("InvalidParameterValue", f"The instance count must be 1 to {blocks.MOST_INSTANCES}.")
        now = time.time()
        earliest = instant(asked.get("StartDateRange"), now)
        latest = instant(asked.get("EndDateRange"), FOREVER)
        if earliest > now + blocks.WEEKS_AHEAD * 7 * blocks.DAY_S:
            raise AwsError("InvalidParameterValue", f"A block starts at most {blocks.WEEKS_AHEAD} weeks ahead.")
        self._refuse_dry_run()
        listed = []
        for zone in self._zones_selling(instance_type, ultraserver):
            salt, most = f"{zone}/{instance_type}", 2 if count > 32 else 4
            for start in blocks.days_on_sale(now, earliest, latest, hours, salt, most):
                offer = blocks.Offer(instance_type, zone, count, start, hours)
                listed.append(self._offering(offer, ultraserver, servers, now))
        listed.sort(key=lambda o: (o["StartDate"], o["AvailabilityZone"]))
        self.book.save()
        shown, following = self._paged(listed, least=1)
        return ActionResult({"CapacityBlockOfferings": list(shown), "NextToken": following})

    def _zones_selling(self, instance_type: str, ultraserver: str) -> list[str]:
        # AWS sells UltraServers in one Local Zone only, which moto does not have: here the sandbox's own zone does.
        if ultraserver:
            return [self.cloud.options.zone]
        return seed.zones_offering(instance_type, self.cloud.options.region)

    def _offering(self, offer: blocks.Offer, ultraserver: str, servers: int, now: float) -> dict[str, Any]:
        offering_id = hex_id("cb")
        self.book.rows("offers")[offering_id] = {
            "instance_type": offer.instance_type,
            "zone": offer.zone,
            "instances": offer.instances,
            "from": offer.start,
            "hours": offer.hours,
            "fee": offer.fee,
            "ultraserver_type": ultraserver,
            "good_until": now + _OFFER_S,
        }
        shown: dict[str, Any] = {
            "CapacityBlockOfferingId": offering_id,
            "InstanceType": offer.instance_type,
            "AvailabilityZone": offer.zone,
            "InstanceCount": offer.instances,
            "StartDate": shown_at(offer.start),
            "EndDate": shown_at(offer.end),
            "CapacityBlockDurationHours": offer.hours,
            "CapacityBlockDurationMinutes": offer.hours * 60,
            "UpfrontFee": offer.fee,
            "CurrencyCode": "USD",
            "Tenancy": "default",
            "CapacityBlockOfferingSegments": [
                {
                    "InstanceType": offer.instance_type,
                    "AvailabilityZone": offer.zone,
                    "AvailabilityZoneId": self.zone_named(offer.zone, None).zone_id,
                    "InstanceCount": offer.instances,
                    "StartDate": shown_at(part.start),
                    "EndDate": shown_at(part.end),
                    "CapacityBlockDurationHours": part.hours,
                    "UpfrontFee": part.fee,
                    "CurrencyCode": "USD",
                }
                for part in _segments(offer)
            ],
        }
        if ultraserver:
            shown |= {"UltraserverType": ultraserver, "UltraserverCount": servers}
        return shown

    def purchase_capacity_block(self) -> ActionResult:
        """Takes no token: bought twice is paid twice."""
        offer = self._on_sale(self._required("CapacityBlockOfferingId"))
        row_type, count = offer["instance_type"], int(offer["instances"])

        def vcpus(name: str) -> int:
            described = seed.instance_type(name)
            return 144 if described is None else int(described["VCpuInfo"]["DefaultVCpus"])

        limit = self.cloud.options.block_vcpu_quota
        if self.book.block_vcpus(vcpus) + count * vcpus(row_type) > limit:
            raise AwsError(
                "VcpuLimitExceeded", f"The blocks would hold more vCPUs than the limit of concurrent blocks, {limit}."
            )
        self._refuse_dry_run()
        block_id, now = hex_id("cb"), time.time()
        bought = blocks.Offer(row_type, offer["zone"], count, offer["from"], int(offer["hours"]))
        made = [
            self.book.add(
                type=BLOCK,
                instance_type=row_type,
                total=count,
                zone=offer["zone"],
                zone_id=self.zone_named(offer["zone"], None).zone_id,
                platform=self._required("InstancePlatform"),
                match="targeted",
                start=part.start,
                end=part.end,
                tags=dict(self._tags("capacity-reservation")),
                block_id=block_id,
                ultraserver_type=offer["ultraserver_type"],
                fee=part.fee,
                pay_at=now + self.cloud.options.block_payment_s,
            )
            for part in _segments(bought)
        ]
        self.book.save()
        shown = [self.reservation(i) for i in made]
        return ActionResult(
            {
                "CapacityReservation": shown[0],
                "CapacityReservations": shown,
                "CapacityBlocks": [self._block(block_id)],
            }
        )

    def _on_sale(self, offering_id: str) -> Row:
        offer = self.book.rows("offers").get(offering_id)
        if offer is None or time.time() > offer["good_until"]:
            raise AwsError(
                "InvalidCapacityBlockOfferingId.NotFound",
                f"The Capacity Block offering '{offering_id}' does not exist or is no longer available.",
            )
        return offer

    def _block(self, block_id: str) -> dict[str, Any]:
        rows = {i: r for i, r in self.book.rows("reservations").items() if r["block_id"] == block_id}
        first = next(iter(rows.values()))
        shown = {
            "CapacityBlockId": block_id,
            "AvailabilityZone": first["zone"],
            "AvailabilityZoneId": first["zone_id"],
            "CapacityReservationIds": list(rows),
            "StartDate": shown_at(min(r["start"] for r in rows.values())),
            "EndDate": shown_at(max(r["end"] for r in rows.values())),
            "CreateDate": shown_at(first["created"]),
            "State": self.book.state_of(first),
            "Tags": tag_list(first["tags"]),
        }
        return shown | ({"UltraserverType": first["ultraserver_type"]} if first["ultraserver_type"] else {})

    def _blocks(self) -> list[str]:
        ids = self._all.get("CapacityBlockIds") or []
        known = list(dict.fromkeys(r["block_id"] for r in self.book.rows("reservations").values() if r["block_id"]))
        for block_id in ids:
            if block_id not in known:
                raise AwsError("InvalidCapacityBlockId.NotFound", f"The Capacity Block '{block_id}' does not exist.")
        return [i for i in known if not ids or i in ids]

    def describe_capacity_blocks(self) -> ActionResult:
        """Blocks with the reservations they consist of."""
        shown, following = self._paged([self._block(i) for i in self._blocks()], least=1)
        return ActionResult({"CapacityBlocks": list(shown), "NextToken": following})

    def describe_capacity_block_status(self) -> ActionResult:
        """Health of blocks: everything available, the interconnect ok."""
        listed = []
        for block_id in self._blocks():
            rows = [r for r in self.book.rows("reservations").items() if r[1]["block_id"] == block_id]
            parts = [
                {
                    "CapacityReservationId": reservation_id,
                    "TotalCapacity": row["total"],
                    "TotalAvailableCapacity": self.book.available(reservation_id, row),
                    "TotalUnavailableCapacity": 0,
                }
                for reservation_id, row in rows
            ]
            listed.append(
                {
                    "CapacityBlockId": block_id,
                    "InterconnectStatus": "ok",
                    "TotalCapacity": sum(p["TotalCapacity"] for p in parts),
                    "TotalAvailableCapacity": sum(p["TotalAvailableCapacity"] for p in parts),
                    "TotalUnavailableCapacity": 0,
                    "CapacityReservationStatuses": parts,
                }
            )
        shown, following = self._paged(listed, least=1)
        return ActionResult({"CapacityBlockStatuses": list(shown), "NextToken": following})

    # --- extensions

    def describe_capacity_block_extension_offerings(self) -> ActionResult:
        """One offer: the same machines from the block's end on."""
        reservation_id = self._required("CapacityReservationId")
        hours = int(self._all["CapacityBlockExtensionDurationHours"])
        row = self._extendable(reservation_id)
        problem = blocks.duration_problem(hours)
        if problem:
            raise AwsError("InvalidParameterValue", problem)
        self._refuse_dry_run()
        offering_id = hex_id("cbe")
        offer = blocks.Offer(row["instance_type"], row["zone"], row["total"], row["end"], hours)
        self.book.rows("offers")[offering_id] = {
            "reservation_id": reservation_id,
            "from": row["end"],
            "hours": hours,
            "fee": offer.fee,
            "good_until": time.time() + _OFFER_S,
        }
        self.book.save()
        shown = {
            "CapacityBlockExtensionOfferingId": offering_id,
            "InstanceType": row["instance_type"],
            "InstanceCount": row["total"],
            "AvailabilityZone": row["zone"],
            "AvailabilityZoneId": row["zone_id"],
            "StartDate": shown_at(row["start"]),
            "CapacityBlockExtensionStartDate": shown_at(row["end"]),
            "CapacityBlockExtensionEndDate": shown_at(offer.end),
            "CapacityBlockExtensionDurationHours": hours,
            "UpfrontFee": offer.fee,
            "CurrencyCode": "USD",
            "Tenancy": "default",
        }
        return ActionResult({"CapacityBlockExtensionOfferings": [shown], "NextToken": None})

    def _extendable(self, reservation_id: str) -> Row:
        row = self.book.found(reservation_id)
        if row["type"] != BLOCK or self.book.state_of(row) not in ("active", "scheduled"):
            raise AwsError(
                "InvalidCapacityReservationState", f"{reservation_id} is no active or scheduled Capacity Block."
            )
        return row

    def purchase_capacity_block_extension(self) -> ActionResult:
        """Takes no token: bought twice is paid twice."""
        reservation_id = self._required("CapacityReservationId")
        self._extendable(reservation_id)
        offering_id = self._required("CapacityBlockExtensionOfferingId")
        offer = self._on_sale(offering_id)
        if offer.get("reservation_id") != reservation_id:
            raise AwsError("InvalidParameterValue", f"{offering_id} is an offer for another Capacity Block.")
        self._refuse_dry_run()
        now = time.time()
        self.book.rows("extensions")[hex_id("ext")] = {
            "reservation_id": reservation_id,
            "offering_id": offering_id,
            "hours": int(offer["hours"]),
            "from": offer["from"],
            "to": offer["from"] + int(offer["hours"]) * 3600,
            "fee": offer["fee"],
            "bought_at": now,
            "pay_at": now + self.cloud.options.block_payment_s,
            "status": "payment-pending",
        }
        self.book.save()
        mine = [e for e in self._extensions() if e["CapacityBlockExtensionOfferingId"] == offering_id]
        return ActionResult({"CapacityBlockExtensions": mine})

    def _extensions(self) -> list[dict[str, Any]]:
        listed = []
        for extension in self.book.rows("extensions").values():
            row = self.book.found(extension["reservation_id"])
            listed.append(
                {
                    "CapacityReservationId": extension["reservation_id"],
                    "InstanceType": row["instance_type"],
                    "InstanceCount": row["total"],
                    "AvailabilityZone": row["zone"],
                    "AvailabilityZoneId": row["zone_id"],
                    "CapacityBlockExtensionOfferingId": extension["offering_id"],
                    "CapacityBlockExtensionDurationHours": extension["hours"],
                    "CapacityBlockExtensionStatus": extension["status"],
                    "CapacityBlockExtensionPurchaseDate": shown_at(extension["bought_at"]),
                    "CapacityBlockExtensionStartDate": shown_at(extension["from"]),
                    "CapacityBlockExtensionEndDate": shown_at(extension["to"]),
                    "UpfrontFee": extension["fee"],
                    "CurrencyCode": "USD",
                }
            )
        return listed

    def describe_capacity_block_extension_history(self) -> ActionResult:
        """Extensions bought, paid or not."""
        ids = self._all.get("CapacityReservationIds") or []
        chosen = [e for e in self._extensions() if not ids or e["CapacityReservationId"] in ids]
        shown, following = self._paged(chosen, least=1)
        return ActionResult({"CapacityBlockExtensions": list(shown), "NextToken": following})


def _segments(offer: blocks.Offer) -> list[blocks.Offer]:
    """A long offer comes in two parts, one after the other."""
    if offer.hours <= _SPLIT_HOURS:
        return [offer]
    first = offer.hours // 24 // 2 * 24
    halves = ((offer.start, first), (offer.start + first * 3600, offer.hours - first))
    return [blocks.Offer(offer.instance_type, offer.zone, offer.instances, start, hours) for start, hours in halves]
