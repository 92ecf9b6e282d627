"""The sandbox's GPU exporters, read by the portal's own exporter client and followed by a running job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from sandbox.dcgm import DcgmServer
from sandbox.world import World
from tests.labs import join
from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.prometheus import DcgmExporter

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "dcgm_sample.prom"


class Desk:
    """A world of one node whose job the test decides."""

    def __init__(self) -> None:
        self.world = World()
        self.job = ""
        self.server = DcgmServer(self.world, "127.0.0.1", 0, lambda _: self.job)
        self.exporter = DcgmExporter()

    def url(self, node: str = "p5-1") -> str:
        return f"{self.server.url}/nodes/{node}/metrics"

    def read(self, node: str = "p5-1") -> v.ExporterPage:
        return self.exporter.read(self.url(node), node)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    desk.server.start()
    join(desk.world, "p5-1")
    yield desk
    desk.server.stop()


def metrics_of(text: str) -> set[str]:
    return {line.split("{")[0] for line in text.splitlines() if line and not line.startswith("#")}


def test_a_page_has_the_samples_metrics_and_labels(desk: Desk) -> None:
    text = httpx2.get(desk.url(), trust_env=False).text
    # The sample's node throttles; ours does not.
    assert metrics_of(SAMPLE.read_text()) - metrics_of(text) == {"DCGM_EXP_CLOCK_EVENTS_COUNT"}
    assert metrics_of(text) <= metrics_of(SAMPLE.read_text())
    page = desk.read()
    assert page.missing == ()
    assert [gpu.index for gpu in page.gpus] == list(range(8))
    node = desk.world.nodes["p5-1"]
    assert [(gpu.uuid, gpu.pci_bus_id) for gpu in page.gpus] == [(gpu.uuid, gpu.pci_bus_id) for gpu in node.gpus]
    assert {gpu.node for gpu in page.gpus} == {"p5-1"}


def test_figures_follow_the_load(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    idle = desk.read().gpus[0]
    assert (idle.utilization_percent, idle.job_id) == (0.0, "")
    assert idle.power_w is not None
    assert idle.power_w < 100
    desk.job = "17"
    desk.read()
    now += 60
    busy = desk.read().gpus
    for gpu in busy:
        assert gpu.job_id == "17"
        assert gpu.power_w is not None
        assert gpu.temperature_c is not None
        assert gpu.power_w > 500
        assert 45 < gpu.temperature_c < 80
        assert (gpu.utilization_percent or 0) > 90
        assert 0.7 < (gpu.sm_active or 0) <= 1
        assert (gpu.memory_used_mib or 0) + (gpu.memory_free_mib or 0) == 81_079
    now += 5
    later = desk.read().gpus
    assert [gpu.power_w for gpu in later] != [gpu.power_w for gpu in busy]
    desk.job = ""
    now += 60
    desk.read()
    now += 60
    assert desk.read().gpus[0].utilization_percent == 0.0


def test_xids_are_counted_in_a_window_and_the_last_one_sticks(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    desk.world.xid("p5-1", 94, gpu=3)
    desk.world.xid("p5-1", 63, gpu=3)
    desk.world.xid("p5-1", 94, gpu=3)
    sick, well = desk.read().gpus[3], desk.read().gpus[0]
    assert dict(sick.xid_counts) == {63: 1, 94: 2}
    assert (sick.xid_last, sick.row_remap_pending, sick.uncorrectable_remapped_rows) == (94, 1, 1)
    assert (dict(well.xid_counts), well.xid_last, well.row_remap_pending) == ({}, 0, 0)
    now += 301
    sick = desk.read().gpus[3]
    assert dict(sick.xid_counts) == {}
    assert sick.xid_last == 94


def test_a_gpu_off_the_bus_keeps_only_its_xids(desk: Desk) -> None:
    desk.world.xid("p5-1", 79, gpu=5)
    page = desk.read()
    gone = page.gpus[5]
    assert (gone.xid_last, dict(gone.xid_counts)) == (79, {79: 1})
    assert (gone.temperature_c, gone.power_w, gone.memory_used_mib, gone.row_remap_pending) == (None, None, None, None)
    assert page.missing == ()
    assert all(gpu.temperature_c is not None for gpu in page.gpus if gpu.index != 5)


def test_row_remap_failure_and_double_bit_errors(desk: Desk) -> None:
    desk.world.xid("p5-1", 64, gpu=1)
    desk.world.xid("p5-1", 48, gpu=2)
    gpus = desk.read().gpus
    assert gpus[1].row_remap_failure == 1
    assert gpus[2].ecc_dbe_volatile == 1


def test_a_lost_node_and_an_unknown_one_do_not_answer(desk: Desk) -> None:
    with pytest.raises(e.Unavailable, match="404"):
        desk.read("nowhere")
    desk.world.node_lose("p5-1")
    with pytest.raises(e.Unavailable, match="504"):
        desk.read()
