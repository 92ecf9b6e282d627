"""What moto's tables lack: p6e-gb200.36xlarge, and the Local Zone that is the only place with it."""

from __future__ import annotations

import copy
from typing import Any, Final

from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend, Zone
from moto.ec2.models.instance_types import (
    INSTANCE_TYPE_OFFERINGS,
    INSTANCE_TYPES,
    InstanceType,
    InstanceTypeBackend,
)

NAME: Final = "p6e-gb200.36xlarge"
REGION: Final = "us-east-1"
ZONE: Final = "us-east-1-dfw-2a"
ZONE_ID: Final = "use1-dfw2-az1"
#: AWS publishes no description of it; figures of its EFA guide and its P6 page.
_CARDS: Final = 17
_MIB_A_GPU: Final = 189_471


def _card(index: int) -> dict[str, Any]:
    kinds = ["interface"] if index == 0 else ["interface", "efa", "efa-only"]
    gbps = 100.0 if index == 0 else 400.0 if index % 2 else 200.0
    return {
        "NetworkCardIndex": index,
        "NetworkPerformance": f"{gbps:.0f} Gigabit",
        "MaximumNetworkInterfaces": 2,
        "BaselineBandwidthInGbps": gbps,
        "PeakBandwidthInGbps": gbps,
        "InterfaceTypes": kinds,
    }


def _described() -> dict[str, Any]:
    raw: dict[str, Any] = copy.deepcopy(INSTANCE_TYPES["p6-b300.48xlarge"])
    raw["InstanceType"] = NAME
    raw["MemoryInfo"] = {"SizeInMiB": 960 * 1024}
    raw["VCpuInfo"] = {"DefaultCores": 144, "DefaultThreadsPerCore": 1, "DefaultVCpus": 144}
    raw["ProcessorInfo"] = {"Manufacturer": "NVIDIA", "SupportedArchitectures": ["arm64"]}
    raw["GpuInfo"]["Gpus"] = [
        {"Count": 4, "Manufacturer": "NVIDIA", "MemoryInfo": {"SizeInMiB": _MIB_A_GPU}, "Name": "GB200"}
    ]
    raw["GpuInfo"]["TotalGpuMemoryInMiB"] = 4 * _MIB_A_GPU
    raw["InstanceStorageInfo"] = {
        **raw["InstanceStorageInfo"],
        "Disks": [{"Count": 3, "SizeInGB": 7500, "Type": "ssd"}],
        "TotalSizeInGB": 22_500,
    }
    raw["SupportedUsageClasses"] = ["capacity-block"]
    raw["NetworkInfo"] = {
        **raw["NetworkInfo"],
        "NetworkPerformance": "1600 Gigabit",
        "MaximumNetworkCards": _CARDS,
        "MaximumNetworkInterfaces": 2 * _CARDS,
        "EfaInfo": {"MaximumEfaInterfaces": _CARDS - 1},
        "NetworkCards": [_card(index) for index in range(_CARDS)],
    }
    return raw


def add() -> None:
    """Put type, Local Zone and its offering into moto's tables, once a process."""
    if NAME in INSTANCE_TYPES:
        return
    INSTANCE_TYPES[NAME] = _described()
    InstanceTypeBackend.instance_types.append(InstanceType(NAME))
    RegionsAndZonesBackend.zones[REGION].append(Zone(ZONE, REGION, ZONE_ID, "local-zone"))
    offer(REGION, ZONE, ZONE_ID)


def offer(region: str, zone: str, zone_id: str) -> None:
    """Offer the type in a zone: AWS's Local Zone, or the sandbox's own, in which it sells UltraServer blocks."""
    for kind, location in (("availability-zone", zone), ("availability-zone-id", zone_id), ("region", region)):
        offerings = INSTANCE_TYPE_OFFERINGS.get(kind, {}).get(region)
        row = {"InstanceType": NAME, "LocationType": kind, "Location": location}
        if offerings is not None and row not in offerings:
            offerings.append(row)
