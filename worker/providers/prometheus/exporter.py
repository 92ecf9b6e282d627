"""The ``GpuExporter`` port: one DCGM-exporter page read and understood, across the exporter's renamings."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from worker.providers import errors as e
from worker.providers import values as v

SOURCE = "dcgm"
TIMEOUT_S = 5.0
#: Eight GPUs take 70 KB; a page beyond this is none of DCGM's.
MAX_PAGE_BYTES = 32 * 1024 * 1024
#: DCGM's "blank" values (no reading, no permission, not supported) lie above this.
SENTINEL = 9.2e18
XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"
#: Our field, by the names DCGM gave it (4.5 and before, then 4.6).
FIELDS: Mapping[str, tuple[str, ...]] = {
    "temperature_c": ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
    "power_w": ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
    "utilization_percent": ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
    "sm_active": ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"),
    "tensor_active": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
    "memory_used_mib": ("DCGM_FI_DEV_FB_USED",),
    "memory_free_mib": ("DCGM_FI_DEV_FB_FREE",),
    "ecc_dbe_volatile": ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",),
    "row_remap_pending": ("DCGM_FI_DEV_ROW_REMAP_PENDING",),
    "row_remap_failure": ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"),
    "uncorrectable_remapped_rows": (
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
    ),
    "xid_last": ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"),
}
_FIELD_OF = {name: ours for ours, names in FIELDS.items() for name in names}
_WHOLE = frozenset(
    {"ecc_dbe_volatile", "row_remap_pending", "row_remap_failure", "uncorrectable_remapped_rows", "xid_last"}
)


@dataclass
class _Gpu:
    """One GPU while its series are collected."""

    index: int
    uuid: str
    model: str = ""
    pci_bus_id: str = ""
    node: str = ""
    job_id: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    xids: dict[int, int] = field(default_factory=dict)


class DcgmExporter:
    """Reads exporter pages. Not for use by several threads at once."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S, transport: httpx2.BaseTransport | None = None) -> None:
        self._timeout_s = timeout_s
        self._client = httpx2.Client(
            timeout=httpx2.Timeout(timeout_s, connect=min(2.0, timeout_s)), transport=transport, trust_env=False
        )

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def read(self, url: str, node: str) -> v.ExporterPage:
        """Fetch and parse one page; ``Unavailable`` when it does not answer or is not a DCGM exposition."""
        return parse(self._fetch(url), node, datetime.now(tz=UTC))

    def _fetch(self, url: str) -> str:
        began = time.monotonic()
        try:
            with self._client.stream("GET", url) as response:
                parts = []
                size = 0
                for part in response.iter_bytes():
                    parts.append(part)
                    size += len(part)
                    if time.monotonic() - began > self._timeout_s:
                        raise httpx2.ReadTimeout("the page takes too long")
                    if size > MAX_PAGE_BYTES:
                        raise _unavailable(f"{url} answered more than {MAX_PAGE_BYTES} bytes", "size")
                status, kind = response.status_code, response.headers.get("content-type", "")
        except httpx2.TimeoutException:
            raise _unavailable(f"no page from {url} within {self._timeout_s:g} s", "timeout") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _unavailable(f"no page from {url}: {error or type(error).__name__}", "connection") from None
        if status != 200:
            raise _unavailable(f"{url} answered HTTP {status}", str(status))
        text = b"".join(parts).decode("utf-8", errors="replace")
        if "html" in kind or text.lstrip()[:1] == "<":
            raise _unavailable(f"{url} answered a web page instead of metrics", "html")
        return text


def _unavailable(message: str, code: str) -> e.Unavailable:
    return e.Unavailable(message, source=SOURCE, code=code)


def parse(text: str, node: str, read_at: datetime) -> v.ExporterPage:
    """Understand a page of the node's exporter. Raises ``Unavailable`` for what is no whole DCGM page.

    Values DCGM left blank are dropped. ``missing`` names, in DCGM's words, the health inputs no GPU has.
    """
    if not text.endswith("\n"):
        # The format ends every line; a page that does not was cut.
        raise _unavailable(f"the page of {node} breaks off", "truncated")
    gpus: dict[str, _Gpu] = {}
    seen: set[str] = set()
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                # The parser gives counters OpenMetrics' suffix, which is not on the page.
                name = sample.name.removesuffix("_total")
                if name.startswith("DCGM_"):
                    seen.add(name)
                    _take(gpus, name, sample.labels, float(sample.value), node)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _unavailable(f"the page of {node} is no metrics page: {error}", "syntax") from None
    if not seen:
        raise _unavailable(f"the page of {node} holds no DCGM metric", "empty")
    missing = [names[0] for names in FIELDS.values() if seen.isdisjoint(names)]
    if XID_COUNT not in seen:
        missing.append(XID_COUNT)
    ordered = sorted(gpus.values(), key=lambda gpu: (gpu.index, gpu.uuid))
    return v.ExporterPage(node=node, read_at=read_at, gpus=tuple(map(_sample, ordered)), missing=tuple(missing))


def _take(gpus: dict[str, _Gpu], name: str, labels: Mapping[str, str], value: float, node: str) -> None:
    uuid = labels.get("UUID", "")
    index = labels.get("gpu", "")
    # NVLink and switch series carry other labels; slices of a GPU (MIG) have figures of their own.
    if not uuid or not index.isdigit() or labels.get("GPU_I_ID"):
        return
    gpu = gpus.setdefault(uuid, _Gpu(index=int(index), uuid=uuid))
    gpu.model = gpu.model or labels.get("modelName", "")
    gpu.pci_bus_id = gpu.pci_bus_id or labels.get("pci_bus_id", "")
    # The label was renamed after 4.8; a page without either is the one we asked the node for.
    gpu.node = gpu.node or labels.get("Hostname", "") or labels.get("hostname", "") or node
    # Several jobs on one GPU repeat its series; the label is a hint, Slurm's own record is the truth.
    gpu.job_id = gpu.job_id or labels.get("hpc_job", "")
    if math.isnan(value) or math.isinf(value) or value >= SENTINEL:
        return
    if name == XID_COUNT:
        code = labels.get("xid", "")
        if code.isdigit() and value > 0:
            gpu.xids[int(code)] = max(int(value), gpu.xids.get(int(code), 0))
    elif (ours := _FIELD_OF.get(name)) is not None:
        if name.endswith("_UTIL_RATIO") and ours == "utilization_percent" and value <= 1.0:
            value *= 100.0
        gpu.figures[ours] = value


def _whole(figures: Mapping[str, float], keys: Iterable[str]) -> dict[str, int]:
    return {key: int(figures[key]) for key in keys if key in figures}


def _sample(gpu: _Gpu) -> v.GpuSample:
    figures = {key: value for key, value in gpu.figures.items() if key not in _WHOLE}
    whole = _whole(gpu.figures, _WHOLE)
    return v.GpuSample(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        pci_bus_id=gpu.pci_bus_id,
        node=gpu.node,
        job_id=gpu.job_id,
        temperature_c=figures.get("temperature_c"),
        power_w=figures.get("power_w"),
        utilization_percent=figures.get("utilization_percent"),
        sm_active=figures.get("sm_active"),
        tensor_active=figures.get("tensor_active"),
        memory_used_mib=figures.get("memory_used_mib"),
        memory_free_mib=figures.get("memory_free_mib"),
        ecc_dbe_volatile=whole.get("ecc_dbe_volatile"),
        row_remap_pending=whole.get("row_remap_pending"),
        row_remap_failure=whole.get("row_remap_failure"),
        uncorrectable_remapped_rows=whole.get("uncorrectable_remapped_rows"),
        xid_last=whole.get("xid_last"),
        xid_counts=dict(sorted(gpu.xids.items())),
    )
