"""Pretend DCGM exporters, one page a node at /nodes/NAME/metrics, with figures that follow the node's load."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sandbox.serving import ThreadedServer
from sandbox.world import Gpu, Node, World

DRIVER = "570.172.08"
#: How long an XID is counted, as the exporter's own default.
WINDOW_S = 300.0
#: From the start of a job to full load.
_WARM_UP_S = 8.0
_PATH = re.compile(r"/nodes/([A-Za-z0-9._-]+)/metrics")
_MODELS = {
    "h100": ("NVIDIA H100 80GB HBM3", 81_079, 700.0),
    "h200": ("NVIDIA H200", 143_771, 700.0),
    "b200": ("NVIDIA B200", 183_359, 1000.0),
    "b300": ("NVIDIA B300 SXM6 AC", 275_040, 1100.0),
    "a100": ("NVIDIA A100-SXM4-80GB", 81_920, 400.0),
}
#: NVIDIA's sentences for the codes shown in ``err_msg``.
_XID_TEXTS = {
    0: "No Error",
    13: "Graphics Engine Exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "Preemptive cleanup, due to previous errors",
    48: "Double Bit ECC Error",
    62: "Internal micro-controller halt",
    63: "GPU memory remapping event",
    64: "GPU memory remapping failure",
    74: "NVLink Error",
    79: "GPU has fallen off the bus",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
    119: "GSP RPC Timeout",
}
_UNHEALTHY = {48, 62, 64, 74, 79, 95, 119}


@dataclass
class _Load:
    """What a node has been doing: busy or idle since when, and what its counters had then."""

    job: str
    since: float
    energy_mj: float
    counted_at: float


class DcgmServer:
    """All nodes' exporters on one port; ``job_of_node`` names the job on a node, empty when idle."""

    def __init__(self, world: World, host: str, port: int, job_of_node: Callable[[str], str]) -> None:
        self._world = world
        self._job_of_node = job_of_node
        self._loads: dict[str, _Load] = {}
        self._http = ThreadedServer("dcgm", host, port, self._answer)

    @property
    def url(self) -> str:
        """The base address; a node's page is at ``/nodes/NAME/metrics`` below it."""
        return self._http.url

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._http.port

    def start(self) -> None:
        """Begin to answer."""
        self._http.start()

    def stop(self) -> None:
        """Stop answering."""
        self._http.stop()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        match = _PATH.fullmatch(environ.get("PATH_INFO", ""))
        node = self._world.nodes.get(match.group(1)) if match else None
        if node is None:
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"no such node\n"]
        if not node.up:
            # A lost machine: what stands between gives up.
            start("504 Gateway Timeout", [("Content-Type", "text/plain")])
            return [b"upstream did not answer\n"]
        page = "".join(self._page(node, time.time())).encode()
        headers = [("Content-Type", "text/plain; version=0.0.4; charset=utf-8"), ("Content-Length", str(len(page)))]
        start("200 OK", headers)
        return [page]

    def _load(self, node: Node, now: float) -> tuple[_Load, float]:
        """The node's load record, and how busy it is from 0 to 1."""
        job = self._job_of_node(node.name)
        watts = _MODELS.get(node.gpu_type, _MODELS["h100"])[2]
        with self._world.lock:
            load = self._loads.get(node.name)
            if load is None or load.job != job:
                earlier = 0.0 if load is None else load.energy_mj
                load = self._loads[node.name] = _Load(job, now, earlier + 1.0e9, now)
            share = min(1.0, (now - load.since) / _WARM_UP_S)
            busy = share if job else max(0.0, 1.0 - share) * (0.3 if load.energy_mj > 1.5e9 else 0.0)
            load.energy_mj += (now - load.counted_at) * (80.0 + busy * (watts - 120.0)) * 1000.0
            load.counted_at = now
        return load, busy

    def _page(self, node: Node, now: float) -> Iterator[str]:
        load, busy = self._load(node, now)
        model, memory_mib, watts = _MODELS.get(node.gpu_type, _MODELS["h100"])
        with self._world.lock:
            gpus = list(node.gpus)
            events = {gpu.index: list(gpu.xids) for gpu in gpus}
        labels = {gpu.index: _labels(node, gpu, model, load.job) for gpu in gpus}
        on_bus = [gpu for gpu in gpus if gpu.on_bus]
        figures = {gpu.index: _figures(gpu, busy, now, memory_mib, watts, load) for gpu in on_bus}
        for name, kind, text in _METRICS:
            yield from _head(name, kind, text)
            for gpu in on_bus:
                yield f"{name}{{{labels[gpu.index]}}} {_number(figures[gpu.index][name])}\n"
        yield from _head("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.")
        for gpu in gpus:
            last = events[gpu.index][-1][1] if events[gpu.index] else 0
            sentence = _XID_TEXTS.get(last, "Unknown Error")
            yield f'DCGM_FI_DEV_XID_ERRORS{{{labels[gpu.index]},err_code="{last}",err_msg="{sentence}"}} {last}\n'
        yield from _head("DCGM_EXP_XID_ERRORS_COUNT", "counter", "reported XIDs during last window")
        window = f'window_size_in_ms="{int(WINDOW_S * 1000)}"'
        for gpu in gpus:
            recent = Counter(code for at, code in events[gpu.index] if at > now - WINDOW_S)
            if not recent and gpu.on_bus:
                yield f"DCGM_EXP_XID_ERRORS_COUNT{{{labels[gpu.index]},{window}}} 0\n"
            for code, count in sorted(recent.items()):
                yield f'DCGM_EXP_XID_ERRORS_COUNT{{{labels[gpu.index]},{window},xid="{code}"}} {count}\n'
        yield from _head("DCGM_EXP_GPU_HEALTH_STATUS", "counter", "DCGM reported health status")
        for gpu in on_bus:
            verdict, status = _health(gpu, [xid for at, xid in events[gpu.index] if at > now - WINDOW_S])
            more = f'health_error_code="{verdict}",health_watch="MEM"'
            yield f"DCGM_EXP_GPU_HEALTH_STATUS{{{labels[gpu.index]},{more}}} {status}\n"


_METRICS = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)."),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W)."),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ)."),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries."),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %)."),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB)."),
    ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB)."),
    ("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", "Throttling duration due to thermal constraints (in ns)."),
    ("DCGM_FI_DEV_POWER_VIOLATION", "counter", "Throttling duration due to power constraints (in ns)."),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Total number of single-bit volatile ECC errors."),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Total number of double-bit volatile ECC errors."),
    ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "counter", "Total number of double-bit persistent ECC errors."),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors"),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors"),
    ("DCGM_FI_DEV_ROW_REMAP_PENDING", "gauge", "Whether a row remap is pending (needs GPU reset)"),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed"),
    ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink flow-control CRC errors."),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink retries."),
    ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink recovery errors."),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "Total number of NVLink bandwidth counters for all lanes."),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active."),
    ("DCGM_FI_PROF_SM_ACTIVE", "gauge", "The ratio of cycles an SM has at least 1 warp assigned."),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active."),
    (
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "gauge",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
    ),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "The rate of data transmitted over the PCIe bus in bytes per second."),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "The rate of data received over the PCIe bus in bytes per second."),
)


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}\n", f"# TYPE {name} {kind}\n"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.3f}".rstrip("0").rstrip(".")


def _labels(node: Node, gpu: Gpu, model: str, job: str) -> str:
    text = (
        f'gpu="{gpu.index}",UUID="{gpu.uuid}",pci_bus_id="{gpu.pci_bus_id}",device="nvidia{gpu.index}",'
        f'modelName="{model}",Hostname="{node.name}",DCGM_FI_DRIVER_VERSION="{DRIVER}"'
    )
    return f'{text},hpc_job="{job}"' if job else text


def _wobble(gpu: Gpu, now: float, period_s: float) -> float:
    """A smooth figure between -1 and 1, of its own for each GPU: the same page twice differs, but not wildly."""
    phase = (int(gpu.uuid[-6:], 16) if re.fullmatch(r"[0-9a-f]{6}", gpu.uuid[-6:]) else gpu.index) % 997
    return math.sin(now / period_s + phase) * 0.7 + math.sin(now / (period_s * 0.37) + phase * 1.7) * 0.3


def _figures(gpu: Gpu, busy: float, now: float, memory_mib: int, watts: float, load: _Load) -> dict[str, float]:
    slow, quick = _wobble(gpu, now, 23.0), _wobble(gpu, now, 3.1)
    temperature = 31 + busy * 30 + slow * (1 + busy * 2) + gpu.index % 4
    used = 4 if busy <= 0 else int(busy * memory_mib * 0.88 + quick * 40)
    flow = max(0.0, busy * (1 + quick * 0.05))
    row_failed = 1.0 if gpu.row_remap_failure else 0.0
    return {
        "DCGM_FI_DEV_SM_CLOCK": 345 if busy <= 0.02 else 1755 - (15 if quick > 0.3 else 0),
        "DCGM_FI_DEV_GPU_TEMP": round(temperature),
        "DCGM_FI_DEV_MEMORY_TEMP": round(temperature + 4 + busy * 7),
        "DCGM_FI_DEV_POWER_USAGE": round(71 + gpu.index % 3 + busy * (watts * 0.94 - 72) + quick * busy * 9, 1),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": int(load.energy_mj + gpu.index * 1.0e7),
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0,
        "DCGM_FI_DEV_GPU_UTIL": 0 if busy <= 0.02 else min(100, round(busy * 98.5 + quick)),
        "DCGM_FI_DEV_FB_USED": used,
        "DCGM_FI_DEV_FB_FREE": memory_mib - used,
        "DCGM_FI_DEV_THERMAL_VIOLATION": 0,
        "DCGM_FI_DEV_POWER_VIOLATION": int(max(0.0, now - load.since) * 1.2e7) if load.job else 0,
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 0,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": gpu.ecc_dbe_volatile,
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": gpu.ecc_dbe_volatile,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": sum(1 for _, code in gpu.xids if code == 63),
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 0,
        "DCGM_FI_DEV_ROW_REMAP_PENDING": 1 if gpu.row_remap_pending else 0,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": row_failed,
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 0,
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 0,
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": sum(1 for _, code in gpu.xids if code == 74),
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": int(flow * 141_000),
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": round(min(1.0, busy * 0.985), 3),
        "DCGM_FI_PROF_SM_ACTIVE": round(min(1.0, flow * 0.86), 3),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": round(min(1.0, flow * 0.41), 3),
        "DCGM_FI_PROF_DRAM_ACTIVE": round(min(1.0, flow * 0.34), 3),
        "DCGM_FI_PROF_PCIE_TX_BYTES": int(2.0e5 + flow * 5.1e9),
        "DCGM_FI_PROF_PCIE_RX_BYTES": int(3.0e5 + flow * 6.2e9),
    }


def _health(gpu: Gpu, recent: list[int]) -> tuple[str, int]:
    """DCGM's own verdict: (error code, 0 pass, 10 warn, 20 fail)."""
    if gpu.row_remap_failure:
        return "DCGM_FR_ROW_REMAP_FAILURE", 20
    if any(code in _UNHEALTHY for code in recent):
        return "DCGM_FR_XID_ERROR", 20
    if gpu.row_remap_pending:
        return "DCGM_FR_PENDING_ROW_REMAP", 10
    return "", 0
