"""Named reads of the catalog."""

from __future__ import annotations

from decimal import Decimal

from apps.catalog.models import InstanceType, all_types, type_by_name

__all__ = ["all_types", "gpu_price", "gpu_types", "type_by_name", "type_for_gpu"]


def gpu_types() -> tuple[str, ...]:
    """The Slurm/Kubernetes GPU type words the catalog knows, e.g. ``h100``."""
    return tuple(sorted({t.gpu_type for t in all_types()}))


def type_for_gpu(gpu_type: str) -> InstanceType | None:
    """The largest priced instance type with this GPU: what a GPU of unknown machine is priced by."""
    found = [t for t in all_types() if t.gpu_type == gpu_type and t.usd_per_hour is not None]
    return max(found, key=lambda t: (t.gpus, t.usd_per_gpu_hour or Decimal(0)), default=None)


def gpu_price(instance_type: str, gpu_type: str) -> tuple[Decimal, str] | None:
    """USD per GPU-hour and its source, by machine where known, else by GPU; None when nobody publishes one."""
    kind = type_by_name(instance_type) if instance_type else None
    if kind is None or kind.usd_per_gpu_hour is None:
        kind = type_for_gpu(gpu_type)
    if kind is None or kind.usd_per_gpu_hour is None:
        return None
    return kind.usd_per_gpu_hour, f"{kind.name} on demand, us-east-1, {kind.price_date} ({kind.price_source})"
