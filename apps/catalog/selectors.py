"""Named reads of the catalog."""

from __future__ import annotations

from decimal import Decimal

from django.utils.translation import gettext_noop as _

from apps.catalog.models import InstanceType, all_types, type_by_name
from apps.core.said import said

__all__ = ["all_types", "gpu_price", "gpu_types", "price_words", "type_by_name", "type_for_gpu"]


def gpu_types() -> tuple[str, ...]:
    """The Slurm/Kubernetes GPU type words the catalog knows, e.g. ``h100``."""
    return tuple(sorted({t.gpu_type for t in all_types()}))


def type_for_gpu(gpu_type: str) -> InstanceType | None:
    """The largest priced instance type with this GPU: what a GPU of unknown machine is priced by."""
    found = [t for t in all_types() if t.gpu_type == gpu_type and t.usd_per_hour is not None]
    return max(found, key=lambda t: (t.gpus, t.usd_per_gpu_hour or Decimal(0)), default=None)


def price_words(kind: InstanceType, region: str) -> str:
    """Whose price it is and how sure: of the machine's own region, or an estimate by another's. Empty: unknown."""
    facts = {
        "type": kind.name,
        "region": region or kind.price_region,
        "known": kind.price_region,
        "date": kind.price_date,
        "source": kind.price_source,
    }
    if region in ("", kind.price_region, *kind.price_same_in):
        return said(_("%(type)s on demand, %(region)s, %(date)s (%(source)s)"), **facts)
    text = _("estimate for %(region)s by the price of %(known)s: %(type)s on demand, %(date)s (%(source)s)")
    return said(text, **facts)


def gpu_price(instance_type: str, gpu_type: str, region: str = "") -> tuple[Decimal, str] | None:
    """USD per GPU-hour and its source, by machine where known, else by GPU; None when nobody publishes one."""
    kind = type_by_name(instance_type) if instance_type else None
    if kind is None or kind.usd_per_gpu_hour is None:
        kind = type_for_gpu(gpu_type)
    if kind is None or kind.usd_per_gpu_hour is None:
        return None
    return kind.usd_per_gpu_hour, price_words(kind, region)
