"""Reserved capacity of the fake account: ODCRs and Capacity Blocks with their whole lives, kept in a file.

Everything here ends and begins by the calendar. When the world's clock jumps ahead, all instants kept here move
nearer by as much, so that whoever reads them by an ordinary clock sees what the jump brought.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandbox.aws import blocks
from sandbox.aws.errors import AwsError
from sandbox.aws.service import hex_id
from sandbox.world import World

if TYPE_CHECKING:
    from sandbox.aws.state import Cloud

RESERVATIONS_FILE = "aws-reservations.json"
BLOCK: Final = "capacity-block"
#: How long before a block's end EC2 begins to take its machines back: UltraServers are slower to clean.
RECLAIM_S: Final = {"": 1800, "ultraserver": 3600}
#: What a jump of the clock moves; when an extension was bought stays, as the buyer's own note of it does.
_INSTANTS: Final = ("start", "end", "created", "pay_at", "cancelled_at", "good_until", "from", "to")

Row = dict[str, Any]


class Book:
    """All reservations, what is on offer and what extensions were bought. Use it under the cloud's lock."""

    def __init__(self, cloud: Cloud, state_dir: Path) -> None:
        self.cloud = cloud
        self._path = state_dir / RESERVATIONS_FILE
        self._world: World | None = None
        self._ahead_s = 0.0
        try:
            self.shelf: dict[str, Any] = json.loads(self._path.read_text())
        except FileNotFoundError:
            self.shelf = {}

    def follow(self, world: World) -> None:
        """Take faults and the calendar's clock from this world."""
        self._world = world

    def rows(self, kind: str) -> dict[str, Row]:
        """What is kept of one kind by id: "reservations", "offers", "extensions", "machines", "tokens"."""
        found: dict[str, Row] = self.shelf.setdefault(kind, {})
        return found

    def save(self) -> None:
        """Write everything; a kill at any moment leaves the old or the new file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".tmp")
        beside.write_text(json.dumps(self.shelf))
        beside.replace(self._path)

    def fault(self, kind: str, **match: object) -> bool:
        """Whether a fault is in force, spent once."""
        return self._world is not None and self._world.fault_use(kind, **match) is not None

    # --- time

    def settle(self) -> None:
        """Let time act: jumps of the clock, payments, extensions, and machines of blocks that end."""
        now = time.time()
        changed = self._jump(now)
        for row in self.rows("reservations").values():
            if row["pay_at"] is not None and now >= row["pay_at"]:
                row["pay_at"] = None
                row["unpaid"] = self.fault("payment-failed")
                changed = True
        for extension in self.rows("extensions").values():
            if extension["status"] == "payment-pending" and now >= extension["pay_at"]:
                changed = True
                if self.fault("payment-failed"):
                    extension["status"] = "payment-failed"
                    continue
                extension["status"] = "payment-succeeded"
                row = self.rows("reservations")[extension["reservation_id"]]
                row["end"] += extension["hours"] * 3600
        changed |= self._reclaim(now)
        if changed:
            self.save()

    def _jump(self, now: float) -> bool:
        if self._world is None:
            return False
        ahead_s = self._world.now() - now
        jump_s = ahead_s - self._ahead_s
        if abs(jump_s) < 1:
            return False
        self._ahead_s = ahead_s
        for kind in ("reservations", "offers", "extensions"):
            for row in self.rows(kind).values():
                for name in _INSTANTS:
                    if row.get(name) is not None:
                        row[name] -= jump_s
        return True

    def _reclaim(self, now: float) -> bool:
        changed = False
        for reservation_id, row in self.rows("reservations").items():
            if row["type"] != BLOCK or row["end"] is None or now < row["end"] - self._lead_s(row):
                continue
            for machine_id in self._held_by(reservation_id):
                machine = self.cloud.machines.get(machine_id)
                if machine is not None and machine.terminated_at is None:
                    machine.terminated_at = now
                    self.rows("machines")[machine_id]["reclaimed"] = True
                    changed = True
        if changed:
            self.cloud.save()
        return changed

    @staticmethod
    def _lead_s(row: Row) -> int:
        return RECLAIM_S["ultraserver" if row["ultraserver_type"] else ""]

    def state_of(self, row: Row) -> str:
        """The state as AWS names it."""
        now = time.time()
        if row["cancelled_at"] is not None:
            return "cancelled"
        if row["unpaid"]:
            return "payment-failed"
        if row["end"] is not None and now >= row["end"]:
            return "expired"
        if row["pay_at"] is not None:
            return "payment-pending"
        return "active" if now >= row["start"] else "scheduled"

    # --- counting

    def _held_by(self, reservation_id: str) -> list[str]:
        return [m for m, held in self.rows("machines").items() if held["reservation_id"] == reservation_id]

    def used(self, reservation_id: str, row: Row) -> int:
        """Machines in it. A block's slot is cleaned for some minutes after its machine ended."""
        now, count = time.time(), 0
        clean_s = self.cloud.options.block_clean_s if row["type"] == BLOCK else 0.0
        for machine_id in self._held_by(reservation_id):
            machine = self.cloud.machines.get(machine_id)
            if machine is None:
                continue
            gone_at = None if machine.terminated_at is None else machine.terminated_at + self.cloud.options.shutdown_s
            if gone_at is None or now < gone_at + clean_s:
                count += 1
        return count

    def available(self, reservation_id: str, row: Row) -> int:
        """Machines that can be launched into it now."""
        if self.state_of(row) != "active":
            return 0
        if row["end"] is not None and row["type"] == BLOCK and time.time() >= row["end"] - self._lead_s(row):
            return 0
        return max(0, int(row["total"]) - self.used(reservation_id, row))

    def kept_back(self, instance_type: str) -> int:
        """Machines of a type that active ODCRs keep free, and that nobody else can therefore launch."""
        return sum(
            self.available(reservation_id, row)
            for reservation_id, row in self.rows("reservations").items()
            if row["type"] != BLOCK and row["instance_type"] == instance_type
        )

    # --- launching: what RunInstances asks

    def admit(self, data: Mapping[str, Any], instance_type: str, zone: str, count: int) -> list[str]:
        """The reservation of each of ``count`` machines ("" for none) that a launch with these parameters uses.

        ``data`` is template and request merged. Raises as EC2 does when the target, the market or the placement
        group do not go together, or the reservation has not enough left. Takes nothing: see ``take``.
        """
        market = (data.get("InstanceMarketOptions") or {}).get("MarketType")
        wanted = data.get("CapacityReservationSpecification") or {}
        target = (wanted.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
        preference = wanted.get("CapacityReservationPreference")
        group = str((data.get("Placement") or {}).get("GroupName") or "")
        if market == BLOCK and not target:
            raise AwsError(
                "InvalidParameterCombination", "A capacity-block launch requires a Capacity Reservation target."
            )
        if target:
            self._admit_target(str(target), market, group, instance_type, zone, count)
            return [str(target)] * count
        if preference == "none" or market == "spot":
            return [""] * count
        found = self._open(instance_type, zone, count)
        if preference == "capacity-reservations-only" and len(found) < count:
            raise AwsError("ReservationCapacityExceeded", "There are not enough matching open Capacity Reservations.")
        return found + [""] * (count - len(found))

    def _open(self, instance_type: str, zone: str, count: int) -> list[str]:
        found: list[str] = []
        for reservation_id, row in self.rows("reservations").items():
            fits = (row["match"], row["instance_type"], row["zone"]) == ("open", instance_type, zone)
            if fits and row["platform"] == "Linux/UNIX" and row["tenancy"] == "default":
                found += [reservation_id] * min(count - len(found), self.available(reservation_id, row))
        return found

    def _admit_target(
        self, target: str, market: str | None, group: str, instance_type: str, zone: str, count: int
    ) -> None:
        row = self.found(target)
        if (row["type"] == BLOCK) != (market == BLOCK):
            text = (
                f"The Capacity Reservation {target} is a Capacity Block; specify the market type capacity-block."
                if row["type"] == BLOCK
                else f"The Capacity Reservation {target} is not a Capacity Block; omit the market type capacity-block."
            )
            raise AwsError("InvalidParameterCombination", text)
        for name, mine, theirs in (
            ("instance type", instance_type, row["instance_type"]),
            ("Availability Zone", zone, row["zone"]),
        ):
            if mine != theirs:
                raise AwsError(
                    "InvalidParameterCombination",
                    f"The {name} {mine} does not match that of the Capacity Reservation {target}, which is {theirs}.",
                )
        if row["type"] == BLOCK and group:
            raise AwsError("InvalidParameterCombination", "A placement group can't be specified with a Capacity Block.")
        if row["placement_group_arn"] and group and not row["placement_group_arn"].endswith(f"/{group}"):
            raise AwsError(
                "InvalidParameterCombination",
                f"The Capacity Reservation {target} was created in another placement group than {group}.",
            )
        state = self.state_of(row)
        if state != "active":
            raise AwsError(
                "InvalidCapacityReservationState",
                f"The Capacity Reservation {target} is in the state {state}, and must be active.",
            )
        left = self.available(target, row)
        if row["type"] != BLOCK and group and not row["placement_group_arn"]:
            # Made without a group, it lies in several places, of which a group holds only a part.
            left = left * 11 // 16
        if left < count:
            raise AwsError(
                "ReservationCapacityExceeded",
                f"The requested number of instances ({count}) exceeds the available capacity ({left}) of the "
                f"Capacity Reservation {target}.",
            )

    def take(self, reservations: Mapping[str, str]) -> None:
        """Note which machine (by id) runs in which reservation; "" for none. Freed when the machine is terminated."""
        for machine_id, reservation_id in reservations.items():
            if reservation_id:
                self.rows("machines")[machine_id] = {"reservation_id": reservation_id, "reclaimed": False}
        self.save()

    def reservation_of(self, machine_id: str) -> str:
        """The reservation a machine runs in, "" for none."""
        return str(self.rows("machines").get(machine_id, {}).get("reservation_id", ""))

    def is_block(self, reservation_id: str) -> bool:
        """Whether it is a Capacity Block."""
        row = self.rows("reservations").get(reservation_id)
        return row is not None and row["type"] == BLOCK

    def was_reclaimed(self, machine_id: str) -> bool:
        """Whether EC2 took the machine back because its block ended."""
        return bool(self.rows("machines").get(machine_id, {}).get("reclaimed"))

    # --- making

    def found(self, reservation_id: str) -> Row:
        """The reservation of this id. Raises ``AwsError``."""
        row = self.rows("reservations").get(reservation_id)
        if row is None:
            raise AwsError(
                "InvalidCapacityReservationId.NotFound",
                f"The Capacity Reservation ID '{reservation_id}' does not exist.",
            )
        return row

    def once(self, token: str, wanted: str, make: Callable[[], str]) -> str:
        """The id that this token made, made now for a new one. Raises ``AwsError`` for other parameters."""
        tokens = self.rows("tokens")
        known = tokens.get(token) if token else None
        if known is not None:
            if known["wanted"] != wanted:
                raise AwsError(
                    "IdempotentParameterMismatch",
                    "The client token you have provided is associated with a resource that was requested with other "
                    "parameters.",
                )
            return str(known["made"])
        made = make()
        if token:
            tokens[token] = {"wanted": wanted, "made": made}
        return made

    def add(self, **columns: Any) -> str:
        """A new reservation; its id."""
        reservation_id = hex_id("cr")
        row: Row = {
            "type": "default",
            "platform": "Linux/UNIX",
            "tenancy": "default",
            "match": "open",
            "start": time.time(),
            "end": None,
            "created": time.time(),
            "tags": {},
            "placement_group_arn": "",
            "block_id": "",
            "ultraserver_type": "",
            "fee": "",
            "pay_at": None,
            "unpaid": False,
            "cancelled_at": None,
            **columns,
        }
        self.rows("reservations")[reservation_id] = row
        return reservation_id

    def block_vcpus(self, vcpus: Callable[[str], int]) -> int:
        """vCPUs of blocks that are active or will be."""
        return sum(
            int(row["total"]) * vcpus(row["instance_type"])
            for row in self.rows("reservations").values()
            if row["type"] == BLOCK and self.state_of(row) in ("payment-pending", "scheduled", "active")
        )

    def tagged(self) -> Iterable[tuple[str, tuple[str, dict[str, str]]]]:
        """Reservations with their tags, as CreateTags and DescribeTags see them."""
        for reservation_id, row in self.rows("reservations").items():
            yield reservation_id, ("capacity-reservation", row["tags"])

    def census(self) -> dict[str, int]:
        """How many reservations exist that cost money."""
        live = [r for r in self.rows("reservations").values() if self.state_of(r) in ("active", "scheduled")]
        return {"capacity_reservations": len(live)}


def ultraserver_machines(kind: str, count: int) -> int:
    """Machines in that many UltraServers. Raises ``AwsError`` for an unknown kind."""
    if kind not in blocks.ULTRASERVERS:
        raise AwsError("InvalidParameterValue", f"The UltraServer type '{kind}' is not valid.")
    return blocks.ULTRASERVERS[kind] * count
