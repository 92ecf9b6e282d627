"""DCGM-exporter pages: the sample of a sick node, renamed metrics, blanks, and pages that are none."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest

from worker.providers import errors as e
from worker.providers.prometheus import DcgmExporter
from worker.providers.prometheus.exporter import parse

SAMPLE = (Path(__file__).resolve().parents[1] / "data" / "dcgm_sample.prom").read_text()
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
LABELS = 'gpu="0",UUID="GPU-a",pci_bus_id="00000000:53:00.0",device="nvidia0",modelName="H100"'


def page(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def test_the_sample_of_a_sick_node() -> None:
    found = parse(SAMPLE, "asked-for", NOW)
    assert (found.node, found.read_at, found.missing) == ("asked-for", NOW, ())
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    healthy, sick, hot = found.gpus[0], found.gpus[3], found.gpus[5]
    assert healthy.node == "ip-10-1-52-200"
    assert healthy.job_id == "4217"
    assert healthy.model == "NVIDIA H100 80GB HBM3"
    assert healthy.pci_bus_id == "00000000:53:00.0"
    assert (healthy.temperature_c, healthy.power_w, healthy.utilization_percent) == (58.0, 662.1, 99.0)
    assert (healthy.sm_active, healthy.tensor_active) == (0.862, 0.412)
    assert (healthy.memory_used_mib, healthy.memory_free_mib) == (71234.0, 9845.0)
    assert (healthy.xid_last, dict(healthy.xid_counts)) == (0, {})
    assert (healthy.ecc_dbe_volatile, healthy.uncorrectable_remapped_rows) == (0, 0)
    assert (sick.xid_last, dict(sick.xid_counts)) == (94, {63: 1, 94: 1})
    assert (sick.row_remap_pending, sick.row_remap_failure, sick.ecc_dbe_volatile) == (1, 0, 1)
    assert hot.temperature_c == 86.0


def test_the_newer_host_label_and_none_at_all() -> None:
    for label, node in (('hostname="new"', "new"), ('Hostname="old"', "old"), ("", "asked-for")):
        labels = f"{LABELS},{label}" if label else LABELS
        found = parse(page(f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 40"), "asked-for", NOW)
        assert found.gpus[0].node == node


def test_blanks_are_not_zero() -> None:
    text = page(
        f"DCGM_FI_DEV_GPU_TEMP{{{LABELS}}} 9223372036854775794",
        f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{LABELS}}} 9223372036854775792",
        f"DCGM_FI_DEV_POWER_USAGE{{{LABELS}}} NaN",
        f"DCGM_FI_DEV_ROW_REMAP_PENDING{{{LABELS}}} 0",
    )
    (gpu,) = parse(text, "n", NOW).gpus
    assert (gpu.temperature_c, gpu.ecc_dbe_volatile, gpu.power_w, gpu.row_remap_pending) == (None, None, None, 0)


def test_what_the_default_csv_leaves_out_is_named() -> None:
    found = parse(page(f"DCGM_FI_DEV_GPU_TEMP{{{LABELS}}} 40", f"DCGM_FI_DEV_XID_ERRORS{{{LABELS}}} 79"), "n", NOW)
    assert found.missing == (
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_FB_FREE",
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "DCGM_EXP_XID_ERRORS_COUNT",
    )


def test_names_of_dcgm_4_6() -> None:
    text = page(
        f"DCGM_FI_DEV_GPU_TEMP_CELSIUS{{{LABELS}}} 50",
        f"DCGM_FI_DEV_BOARD_POWER_WATTS{{{LABELS}}} 600",
        f"DCGM_FI_DEV_GPU_UTIL_RATIO{{{LABELS}}} 0.97",
        f"DCGM_FI_PROF_SM_UTIL_RATIO{{{LABELS}}} 0.8",
        f"DCGM_FI_PROF_TENSOR_UTIL_RATIO{{{LABELS}}} 0.4",
        f"DCGM_FI_DEV_ROW_REMAP_FAILED{{{LABELS}}} 1",
        f"DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL{{{LABELS}}} 3",
        f"DCGM_FI_DEV_XID_ERROR{{{LABELS}}} 48",
    )
    (gpu,) = parse(text, "n", NOW).gpus
    assert (gpu.temperature_c, gpu.power_w, gpu.utilization_percent) == (50.0, 600.0, 97.0)
    assert (gpu.sm_active, gpu.tensor_active) == (0.8, 0.4)
    assert (gpu.row_remap_failure, gpu.uncorrectable_remapped_rows, gpu.xid_last) == (1, 3, 48)


def test_slices_and_links_are_no_gpus() -> None:
    text = page(
        f"DCGM_FI_DEV_GPU_TEMP{{{LABELS}}} 40",
        f'DCGM_FI_PROF_SM_ACTIVE{{{LABELS},GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"}} 0.5',
        'DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{nvlink="0",gpu_uuid="GPU-a",hostname="n"} 1',
    )
    (gpu,) = parse(text, "n", NOW).gpus
    assert gpu.sm_active is None


def test_a_gpu_shared_by_jobs_is_counted_once() -> None:
    text = page(*(f'DCGM_FI_DEV_GPU_TEMP{{{LABELS},hpc_job="{job}"}} 40' for job in ("7", "8")))
    (gpu,) = parse(text, "n", NOW).gpus
    assert gpu.job_id == "7"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "truncated"),
        (SAMPLE[:20_000].rsplit("\n", 1)[0] + "\nDCGM_FI_DEV_GPU", "truncated"),
        ("go_goroutines 7\n", "empty"),
        ("# HELP x y\n", "empty"),
        ("this is { no page\n", "syntax"),
        ('DCGM_FI_DEV_GPU_TEMP{gpu="0} 1\n', "syntax"),
    ],
)
def test_what_is_no_page_is_unavailable(text: str, code: str) -> None:
    with pytest.raises(e.Unavailable) as caught:
        parse(text, "n", NOW)
    assert caught.value.code == code
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (httpx2.Response(200, html="<html>Sign in</html>"), "web page"),
        (httpx2.Response(200, text="<!DOCTYPE html>"), "web page"),
        (httpx2.Response(504, text="no upstream"), "504"),
        (httpx2.Response(404, text="no such node"), "404"),
    ],
)
def test_answers_that_are_no_page(answer: httpx2.Response, word: str) -> None:
    exporter = DcgmExporter(transport=httpx2.MockTransport(lambda _: answer))
    with pytest.raises(e.Unavailable, match=word):
        exporter.read("http://n:9400/metrics", "n")


def test_a_page_over_http() -> None:
    exporter = DcgmExporter(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, text=SAMPLE)))
    found = exporter.read("http://n:9400/metrics", "n")
    assert len(found.gpus) == 8
    assert (datetime.now(tz=UTC) - found.read_at).total_seconds() < 5


def test_a_connection_that_breaks() -> None:
    def fail(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.RemoteProtocolError("peer closed connection without sending complete message body")

    with pytest.raises(e.Unavailable, match="no page"):
        DcgmExporter(transport=httpx2.MockTransport(fail)).read("http://n:9400/metrics", "n")
