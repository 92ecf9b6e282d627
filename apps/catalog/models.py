"""InstanceType: one row of catalog/data/instance_types.json, read once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent / "data" / "instance_types.json"


@dataclass(frozen=True, slots=True)
class InstanceType:
    """Facts of one EC2 instance type; ``None`` means unknown or does not apply.

    Memory in MiB as the EC2 API gives it; bandwidths in GB/s or Gbps as named; FLOPS are dense
    TFLOPS per GPU; ``usd_per_hour`` is on-demand Linux in ``price_region`` with its date and source; where the type is
    offered in the regions of ``price_same_in`` it costs the same there.
    ``efa_cards_start`` is the first network card that takes EFA. ``sources`` names where each group
    of figures comes from.
    """

    name: str
    family: str
    gpu: str
    gpu_type: str
    gpus: int
    gpu_memory_mib: int | None
    gpu_memory_label: str
    gpu_memory_tb_s: Decimal | None
    bf16_tflops: int | None
    fp8_tflops: int | None
    nvlink_gb_s: int | None
    vcpus: int
    memory_gib: int
    nvme_count: int
    nvme_gb: int
    ebs_gbps: Decimal
    architecture: str
    efa_generation: int | None
    network_cards: int
    efa_interfaces: int
    efa_cards_start: int
    efa_gbps: int
    has_gpudirect_rdma: bool
    usd_per_hour: Decimal | None
    price_date: str
    price_source: str
    price_region: str
    price_same_in: tuple[str, ...]
    note: str
    sources: str

    @property
    def usd_per_gpu_hour(self) -> Decimal | None:
        """On-demand price of one GPU for one hour."""
        if self.usd_per_hour is None or not self.gpus:
            return None
        return (self.usd_per_hour / self.gpus).quantize(Decimal("0.000001"))


_DECIMALS = frozenset({"gpu_memory_tb_s", "ebs_gbps", "usd_per_hour"})


@lru_cache(maxsize=1)
def _load() -> Mapping[str, InstanceType]:
    rows = json.loads(_DATA.read_text())
    found: dict[str, InstanceType] = {}
    for row in rows["types"]:
        values: dict[str, Any] = {k: Decimal(str(v)) if k in _DECIMALS and v is not None else v for k, v in row.items()}
        values["price_same_in"] = tuple(values["price_same_in"])
        found[row["name"]] = InstanceType(**values)
    return found


def all_types() -> tuple[InstanceType, ...]:
    """Every type, in the order of the file: newest and largest families last."""
    return tuple(_load().values())


def type_by_name(name: str) -> InstanceType | None:
    """The type of this name, or None."""
    return _load().get(name)
