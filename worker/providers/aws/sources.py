"""What a capacity source means in a launch: market, reservation target and placement group."""

from __future__ import annotations

from typing import Any, Final

from worker.providers.errors import InvalidRequest
from worker.providers.values import LaunchSource

KINDS: Final = ("on-demand", "spot", "odcr-targeted", "odcr-open", "capacity-block", "ultraserver-block")

#: How the reservation types of DescribeCapacityReservations are launched into.
RESERVATION_TYPES: Final = {
    "default": ("odcr-targeted", "odcr-open"),
    "capacity-block": ("capacity-block", "ultraserver-block"),
}


def _known(source: LaunchSource) -> None:
    if source.kind not in KINDS:
        raise InvalidRequest(f"no capacity source is named {source.kind!r}; known: {', '.join(KINDS)}", source="aws")
    if source.kind not in ("on-demand", "spot", "odcr-open") and not source.reservation_id:
        raise InvalidRequest(f"a launch from {source.kind} needs the id of its reservation", source="aws")


def market_options(source: LaunchSource) -> dict[str, Any]:
    """InstanceMarketOptions: blocks have a market of their own, and only they; empty for what is bought on demand."""
    _known(source)
    if source.is_block:
        return {"MarketType": "capacity-block"}
    if source.kind == "spot":
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        return {"MarketType": "spot", "SpotOptions": options}
    return {}


def reservation_specification(source: LaunchSource) -> dict[str, Any]:
    """CapacityReservationSpecification; empty for spot, which never runs in a reservation.

    On demand says "none": a launch that was not meant for it must not take what someone keeps for others. An open
    ODCR is matched by AWS, and "only" keeps a machine that does not match from starting at twice the price.
    """
    _known(source)
    match source.kind:
        case "on-demand":
            return {"CapacityReservationPreference": "none"}
        case "odcr-open":
            return {"CapacityReservationPreference": "capacity-reservations-only"}
        case "spot":
            return {}
        case _:
            return {"CapacityReservationTarget": {"CapacityReservationId": source.reservation_id}}


def launch_data(source: LaunchSource) -> dict[str, Any]:
    """What of a launch template the source decides."""
    found = {
        "InstanceMarketOptions": market_options(source),
        "CapacityReservationSpecification": reservation_specification(source),
    }
    return {key: value for key, value in found.items() if value}


def placement_group_of(arn: str) -> str:
    """The name of a placement group in its ARN; empty for none."""
    return arn.rpartition("/")[2] if arn else ""
