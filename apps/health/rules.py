"""From one exporter page to faults: pure, so that every rule is a table in a test.

A windowed XID count above zero is an event; the sticky last value is not (it may be days old). A GPU
that fell off the bus stops having gauges: absence against the inventory is the evidence. Values the
exporter does not give are unknown, not zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext_noop as _

from apps.core.said import said


@dataclass(frozen=True, slots=True)
class Reading:
    """What one GPU's lines said; the worker makes it from the provider's sample."""

    index: int
    uuid: str
    pci_bus_id: str
    has_gauges: bool
    xid_counts: Mapping[int, int]
    xid_last: int | None
    row_remap_pending: int | None
    row_remap_failure: int | None
    ecc_dbe_volatile: int | None
    uncorrectable_remapped_rows: int | None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault seen on one page. ``code`` is the XID number as text, or a name of our own in CamelCase."""

    source: str
    code: str
    gpu_index: int | None
    gpu_uuid: str
    text: str
    evidence: Mapping[str, Any]


#: Uncorrectable remapped rows from which NVIDIA's RMA policy asks for replacement.
ROW_REMAP_LIMIT = 512


def faults_on(page: Sequence[Reading], *, expected_gpus: int) -> list[Fault]:
    """Every fault this page shows, in GPU order; ``expected_gpus`` comes from the inventory (0: unknown)."""
    found: list[Fault] = []
    for gpu in page:
        base: dict[str, Any] = {"gpu": gpu.index, "uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id, **gpu.facts}
        for code, count in sorted(gpu.xid_counts.items()):
            if code <= 0 or count <= 0:
                continue
            evidence = base | {
                "metric": "DCGM_EXP_XID_ERRORS_COUNT",
                "xid": code,
                "count_in_window": count,
                "on_bus": gpu.has_gauges,
            }
            found.append(
                Fault(
                    "xid",
                    str(code),
                    gpu.index,
                    gpu.uuid,
                    said(_("XID %(code)s logged %(n)s× by GPU %(gpu)s"), code=code, n=count, gpu=gpu.index),
                    evidence,
                )
            )
        if gpu.row_remap_failure == 1:
            evidence = base | {"metric": "DCGM_FI_DEV_ROW_REMAP_FAILURE", "value": 1}
            found.append(
                Fault("dcgm", "RowRemapFailure", gpu.index, gpu.uuid, said(_("row remapping failed")), evidence)
            )
        elif gpu.uncorrectable_remapped_rows is not None and gpu.uncorrectable_remapped_rows >= ROW_REMAP_LIMIT:
            evidence = base | {
                "metric": "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
                "value": gpu.uncorrectable_remapped_rows,
            }
            found.append(
                Fault("dcgm", "RowRemapExhausted", gpu.index, gpu.uuid, said(_("remapped rows at the limit")), evidence)
            )
        if gpu.row_remap_pending == 1:
            evidence = base | {"metric": "DCGM_FI_DEV_ROW_REMAP_PENDING", "value": 1}
            found.append(
                Fault(
                    "dcgm", "RowRemapPending", gpu.index, gpu.uuid, said(_("a row remap waits for a reset")), evidence
                )
            )
        if gpu.ecc_dbe_volatile is not None and gpu.ecc_dbe_volatile > 0 and not gpu.xid_counts.get(48):
            evidence = base | {"metric": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "value": gpu.ecc_dbe_volatile}
            found.append(
                Fault("dcgm", "EccDoubleBit", gpu.index, gpu.uuid, said(_("uncorrectable memory errors")), evidence)
            )
    seen = sum(1 for gpu in page if gpu.has_gauges)
    if expected_gpus and 0 < seen < expected_gpus:
        silent = sorted(gpu.index for gpu in page if not gpu.has_gauges)
        evidence = {
            "expected": expected_gpus,
            "visible": seen,
            "with_gauges": sorted(gpu.index for gpu in page if gpu.has_gauges),
            "without_gauges": silent,
        }
        found.append(
            Fault(
                "inventory",
                "GpuMissing",
                None,
                "",
                said(_("%(n)s of %(all)s GPUs visible"), n=seen, all=expected_gpus),
                evidence,
            )
        )
    return found


#: NVIDIA's code of a GPU that fell off the bus: the reason why it then has no readings.
OFF_THE_BUS = "79"


def explains_missing(fallen: Collection[int], missing: Mapping[str, Any]) -> bool:
    """Whether the GPUs that fell off the bus are all that a GpuMissing fault misses: one fault is told once."""
    gone = {index for index in fallen if index not in missing.get("with_gauges", ())}
    return len(gone) >= int(missing["expected"]) - int(missing["visible"]) > 0


#: Our own codes: (title, severity, suggested action).
OWN_CODES: dict[str, tuple[str, str, str]] = {
    "RowRemapFailure": (_("Row remapping failed"), "replace", _("drain, then replace: NVIDIA's RMA flag is set")),
    "RowRemapExhausted": (_("Remapped rows at NVIDIA's limit"), "replace", _("drain, then replace")),
    "RowRemapPending": (_("Row remap pending"), "watch", _("reset the GPU when the node is idle")),
    "EccDoubleBit": (_("Uncorrectable ECC errors"), "reset", _("drain, then reset the GPU")),
    "GpuMissing": (
        _("GPU missing from the bus"),
        "watch",
        _("a GPU without readings: check for XID 79, reboot if it stays"),
    ),
}


def trips_breaker(*, newly_faulty: int, pool: int) -> bool:
    """Whether so many nodes failed at once that a driver push or a false positive is likelier than hardware."""
    return newly_faulty > max(2, pool // 10)
