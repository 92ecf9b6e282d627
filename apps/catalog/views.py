"""The catalog: every instance type in one sortable table, and two to four of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from apps.catalog.models import InstanceType, all_types, type_by_name
from apps.catalog.words import efa_place, efa_summary
from apps.core import units
from apps.core.errors import BadQuery
from apps.core.pages import Page

_NOTHING = Decimal(-1)


def _or_low(value: Any) -> Any:
    return _NOTHING if value is None else value


#: Public sort names; an unknown figure counts as lowest.
SORTS: dict[str, Callable[[InstanceType], Any]] = {
    "name": lambda t: t.name,
    "gpus": lambda t: t.gpus,
    "gpu_memory": lambda t: _or_low(t.gpu_memory_mib),
    "bandwidth": lambda t: _or_low(t.gpu_memory_tb_s),
    "bf16": lambda t: _or_low(t.bf16_tflops),
    "fp8": lambda t: _or_low(t.fp8_tflops),
    "nvlink": lambda t: _or_low(t.nvlink_gb_s),
    "efa": lambda t: t.efa_gbps,
    "memory": lambda t: t.memory_gib,
    "nvme": lambda t: t.nvme_count * t.nvme_gb,
    "price": lambda t: _or_low(t.usd_per_hour),
    "gpu_price": lambda t: _or_low(t.usd_per_gpu_hour),
}
MAX_COMPARED = 4


@dataclass(frozen=True)
class _Order:
    """What parts/sort_head.html reads."""

    sort: str


def _known(request: HttpRequest, names: set[str]) -> None:
    unknown = sorted(set(request.GET) - names)
    if unknown:
        raise BadQuery(f"unknown query parameter {', '.join(unknown)}; known here: {', '.join(sorted(names))}")


class CatalogPage(Page):
    """All types."""

    right = "catalog.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page. Raises BadQuery."""
        _known(request, {"gpu", "q", "sort"})
        sort = request.GET.get("sort", "")
        if sort and sort.removeprefix("-") not in SORTS:
            raise BadQuery(f"sort: {sort} is not one of {', '.join(SORTS)}, each also with - before it")
        gpus = list(dict.fromkeys(t.gpu for t in all_types()))
        gpu = request.GET.get("gpu", "")
        if gpu and gpu not in gpus:
            raise BadQuery(f"gpu: {gpu} is not one of {', '.join(gpus)}")
        text = request.GET.get("q", "").strip().casefold()
        types = [
            t
            for t in all_types()
            if (not gpu or t.gpu == gpu) and (not text or text in f"{t.name} {t.gpu} {t.gpu_type}".casefold())
        ]
        if sort:
            types.sort(key=SORTS[sort.removeprefix("-")], reverse=sort.startswith("-"))
        context = {
            "types": [(t, efa_summary(t), efa_place(t)) for t in types],
            "list": _Order(sort),
            "gpus": gpus,
            "gpu": gpu,
            "q": request.GET.get("q", "").strip(),
            "sources": list(dict.fromkeys(t.sources for t in types)),
            "notes": [(n, [t.name for t in types if t.note == n]) for n in dict.fromkeys(t.note for t in types) if n],
        }
        return render(request, "catalog/catalog.html", context)


@dataclass(frozen=True)
class Fact:
    """One line of the comparison: a name and a text for each type; ``best`` holds the columns with the best value."""

    label: str
    texts: Sequence[str]
    best: frozenset[int] = frozenset()


def _fact(
    label: str,
    types: Sequence[InstanceType],
    value: Callable[[InstanceType], Any],
    text: Callable[[Any], str],
    *,
    lower_is_better: bool = False,
) -> Fact:
    values = [value(t) for t in types]
    known = [v for v in values if v is not None and v != 0]
    best = (min(known) if lower_is_better else max(known)) if known else None
    marked = frozenset(i for i, v in enumerate(values) if best is not None and v == best)
    texts = ["–" if v is None else text(v) for v in values]
    return Fact(label, texts, marked if len(set(known)) > 1 else frozenset())


def _unit(unit: str) -> Callable[[Any], str]:
    return lambda v: f"{units.count(float(v))} {unit}"


def _words(label: str, types: Sequence[InstanceType], text: Callable[[InstanceType], str]) -> Fact:
    return Fact(label, [text(t) or "–" for t in types])


def facts_of(types: Sequence[InstanceType]) -> list[Fact]:
    """All facts side by side, each with its unit."""
    return [
        _words(_("GPU"), types, lambda t: f"{t.gpus} × {t.gpu}"),
        _words(_("Word in jobs"), types, lambda t: t.gpu_type),
        _fact(_("Memory a GPU"), types, lambda t: t.gpu_memory_mib, lambda v: units.binary_bytes(v * 1024 * 1024)),
        _words(_("Memory as sold"), types, lambda t: t.gpu_memory_label),
        _fact(_("GPU memory in all"), types, _all_memory, lambda v: units.binary_bytes(v * 1024 * 1024)),
        _fact(_("Memory bandwidth a GPU"), types, lambda t: t.gpu_memory_tb_s, _unit("TB/s")),
        _fact(_("BF16, dense, a GPU"), types, lambda t: t.bf16_tflops, _unit("TFLOPS")),
        _fact(_("FP8, dense, a GPU"), types, lambda t: t.fp8_tflops, _unit("TFLOPS")),
        _fact(_("NVLink a GPU"), types, lambda t: t.nvlink_gb_s, _unit("GB/s")),
        _fact(_("EFA in all"), types, lambda t: t.efa_gbps, _unit("Gbps")),
        _words(_("EFA"), types, efa_summary),
        _words(_("GPUDirect RDMA"), types, lambda t: _("yes") if t.has_gpudirect_rdma else _("no")),
        _fact(_("EBS bandwidth"), types, lambda t: t.ebs_gbps, _unit("Gbps")),
        _words(_("NVMe"), types, lambda t: f"{t.nvme_count} × {t.nvme_gb:,} GB" if t.nvme_count else ""),
        _fact(_("vCPUs"), types, lambda t: t.vcpus, lambda v: units.count(v)),
        _fact(_("Memory"), types, lambda t: t.memory_gib, _unit("GiB")),
        _words(_("Architecture"), types, lambda t: t.architecture),
        _fact(_("On demand"), types, lambda t: t.usd_per_hour, lambda v: f"{units.usd(v)}/h", lower_is_better=True),
        _fact(
            _("On demand a GPU"),
            types,
            lambda t: t.usd_per_gpu_hour,
            lambda v: f"{units.usd(v, 4)}/GPU-h",
            lower_is_better=True,
        ),
        _fact(
            _("BF16 per dollar"),
            types,
            lambda t: t.bf16_tflops / t.usd_per_gpu_hour if t.bf16_tflops and t.usd_per_gpu_hour else None,
            lambda v: f"{v:,.0f} TFLOPS/($/h)",
        ),
        _words(
            _("Price of"),
            types,
            lambda t: f"{t.price_region}, {t.price_date} ({t.price_source})" if t.price_date else "",
        ),
        _words(_("Note"), types, lambda t: t.note),
        _words(_("Sources"), types, lambda t: t.sources),
    ]


def _all_memory(kind: InstanceType) -> int | None:
    return kind.gpu_memory_mib * kind.gpus if kind.gpu_memory_mib else None


class ComparePage(Page):
    """Two to four types side by side."""

    right = "catalog.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page. Raises BadQuery for an unknown type or another number of them."""
        _known(request, {"type"})
        names = list(dict.fromkeys(n for text in request.GET.getlist("type") for n in text.split(",") if n))
        types = []
        for name in names:
            found = type_by_name(name)
            if found is None:
                raise BadQuery(f"type: {name} is not in the catalog")
            types.append(found)
        if not 2 <= len(types) <= MAX_COMPARED:
            raise BadQuery(_("Pick two to four types to compare; you picked %(n)s.") % {"n": len(types)})
        return render(request, "catalog/compare.html", {"types": types, "facts": facts_of(types)})
