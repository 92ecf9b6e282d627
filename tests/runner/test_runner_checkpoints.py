"""What the runner tells of checkpoint folders: in progress, at rest, torn, gone; from names, JSON and headers only."""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
import time
from pathlib import Path

import pytest


def write_safetensors(path, tensors=1, cut=0, header=None):
    entries, end = {"__metadata__": {"format": "pt"}}, 0
    for position in range(tensors):
        entries[f"w{position}"] = {"dtype": "F32", "shape": [4], "data_offsets": [end, end + 16]}
        end += 16
    encoded = json.dumps(entries).encode() if header is None else header
    body = struct.pack("<Q", len(encoded)) + encoded + b"\0" * end
    path.write_bytes(body[: len(body) - cut])


@pytest.fixture
def told():
    return []


@pytest.fixture
def watcher(module, tmp_path, told):
    root = tmp_path / "checkpoints"
    root.mkdir()
    watcher = module.Watcher([str(root)], lambda kind, data: told.append((kind, data)))
    watcher.scan()
    watcher.root = root
    return watcher


def settle(watcher):
    """As if the quiet time had passed since the last change."""
    for known in watcher.known.values():
        known.changed_at -= 10
        known.told_at -= 100
    watcher.scan()


def test_a_folder_is_told_on_change_and_again_when_quiet(watcher, told):
    step = watcher.root / "step-20"
    step.mkdir()
    (step / "__0_0.distcp").write_bytes(b"x" * 100)
    watcher.scan()
    assert len(told) == 1
    kind, data = told[0]
    assert kind == "checkpoint"
    assert data["path"] == str(step)
    assert data["step"] == 20
    assert data["total_bytes"] == 100
    assert data["truncated"] is False
    assert data["files"][0]["name"] == "__0_0.distcp"
    assert data["files"][0]["size"] == 100
    assert data["files"][0]["mtime"].endswith("Z")
    assert data["facts"] == {"dcp_metadata_ok": False, "dcp_shards": 1, "settled": False, "file_count": 1}
    watcher.scan()
    assert len(told) == 1, "no change, no word"
    (step / ".metadata").write_bytes(b"m")
    settle(watcher)
    assert told[-1][1]["facts"] == {"dcp_metadata_ok": True, "dcp_shards": 1, "settled": False, "file_count": 2}
    settle(watcher)
    assert told[-1][1]["facts"]["settled"] is True
    assert [file["name"] for file in told[-1][1]["files"]] == [".metadata", "__0_0.distcp"], "markers come first"
    count = len(told)
    settle(watcher)
    assert len(told) == count


def test_a_growing_file_is_a_change_though_its_folder_is_not(watcher, told):
    step = watcher.root / "step_3"
    step.mkdir()
    (step / "__0_0.distcp").write_bytes(b"x")
    watcher.scan()
    with (step / "__0_0.distcp").open("ab") as file:
        file.write(b"y" * 50)
    for known in watcher.known.values():
        known.told_at -= 100
    watcher.scan()
    assert told[-1][1]["total_bytes"] == 51


def test_a_long_save_is_not_told_every_second(watcher, told):
    step = watcher.root / "step-1"
    step.mkdir()
    for second in range(60):
        (step / f"__{second}_0.distcp").write_bytes(b"x")
        for known in watcher.known.values():
            known.told_at -= 1
            known.changed_at -= 1
        watcher.scan()
    assert 4 <= len(told) <= 12
    settle(watcher)
    settle(watcher)
    assert told[-1][1]["facts"]["settled"] is True
    assert told[-1][1]["facts"]["dcp_shards"] == 60


@pytest.mark.parametrize(
    ("leftover", "content", "complete"),
    [(".metadata", b"m", True), (".metadata", b"", False), (".metadata.tmp", b"half", False), (None, b"", False)],
)
def test_a_torn_dcp_folder_is_not_called_complete(watcher, told, leftover, content, complete):
    step = watcher.root / "step-5"
    step.mkdir()
    (step / "__0_0.distcp").write_bytes(b"x")
    if leftover:
        (step / leftover).write_bytes(content)
    watcher.scan()
    assert told[-1][1]["facts"]["dcp_metadata_ok"] is complete


def test_an_older_metadata_beside_a_newer_half_written_one_is_torn(watcher, told):
    step = watcher.root / "step-5"
    step.mkdir()
    for name in ("__0_0.distcp", ".metadata", ".metadata.tmp"):
        (step / name).write_bytes(b"x")
    watcher.scan()
    assert told[-1][1]["facts"]["dcp_metadata_ok"] is False


@pytest.mark.parametrize("name", ["step-7", "step_7", "checkpoint-7", "global_step7", "iter_0000007"])
def test_the_usual_names_are_found_also_one_folder_deeper(watcher, told, name):
    (watcher.root / "run-a" / name).mkdir(parents=True)
    (watcher.root / "notes").mkdir()
    (watcher.root / f"tmp-{name}").mkdir()
    watcher.scan()
    assert [(data["path"], data["step"]) for _, data in told] == [(str(watcher.root / "run-a" / name), 7)]


def test_any_folder_with_metadata_is_one(watcher, told):
    (watcher.root / "final").mkdir()
    (watcher.root / "final" / ".metadata").write_bytes(b"m")
    watcher.scan()
    assert told[0][1]["step"] is None
    assert told[0][1]["facts"]["dcp_metadata_ok"] is True


def test_a_removed_folder_is_told(watcher, told):
    step = watcher.root / "step-1"
    step.mkdir()
    (step / ".metadata").write_bytes(b"m")
    watcher.scan()
    (step / ".metadata").unlink()
    step.rmdir()
    watcher.scan()
    assert told[-1] == ("checkpoint_gone", {"path": str(step)})
    watcher.scan()
    assert len(told) == 2


def test_trainer_layout(watcher, told):
    step = watcher.root / "checkpoint-30"
    step.mkdir()
    write_safetensors(step / "model-00001-of-00002.safetensors", tensors=2)
    (step / "optimizer.pt").write_bytes(b"o")
    (step / "trainer_state.json").write_text('{"global_step": 30, "log_history": []}')
    weights = {"w0": "model-00001-of-00002.safetensors", "w1": "model-00002-of-00002.safetensors"}
    (step / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    watcher.scan()
    facts = told[-1][1]["facts"]
    assert facts["trainer_state_ok"] is True
    assert facts["trainer_state_step"] == 30
    assert facts["safetensors_ok"] is False
    assert "model-00002-of-00002.safetensors" in facts["safetensors_reason"]
    write_safetensors(step / "model-00002-of-00002.safetensors")
    settle(watcher)
    assert told[-1][1]["facts"]["safetensors_ok"] is True
    write_safetensors(step / "model-00002-of-00002.safetensors", cut=3)
    settle(watcher)
    assert told[-1][1]["facts"]["safetensors_ok"] is False
    assert "wrong length" in told[-1][1]["facts"]["safetensors_reason"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"global_step": "x"}', "\x00"])
def test_a_broken_trainer_state_is_a_fact_not_an_error(watcher, told, content):
    step = watcher.root / "checkpoint-1"
    step.mkdir()
    (step / "trainer_state.json").write_text(content)
    watcher.scan()
    assert told[-1][1]["facts"]["trainer_state_ok"] is False


@pytest.mark.parametrize("header", [b"{", b"[]", b'{"w": 3}', b'{"w": {"data_offsets": []}}'])
def test_a_broken_safetensors_header_is_a_fact_not_an_error(watcher, told, header):
    step = watcher.root / "checkpoint-1"
    step.mkdir()
    write_safetensors(step / "model.safetensors", header=header)
    watcher.scan()
    assert told[-1][1]["facts"]["safetensors_ok"] is False


def test_trackers_of_megatron_and_deepspeed_are_told_when_they_reach_the_folder(watcher, told):
    step = watcher.root / "iter_0000500"
    step.mkdir()
    (step / "common.pt").write_bytes(b"c")
    watcher.scan()
    settle(watcher)
    count = len(told)
    (watcher.root / "latest_checkpointed_iteration.txt").write_text("500\n")
    settle(watcher)
    assert len(told) == count + 1
    assert told[-1][1]["facts"]["tracker_latest_checkpointed_iteration"] == "500"


def test_nothing_is_unpickled(watcher, told, tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    step = watcher.root / "step-1"
    step.mkdir()
    (step / ".metadata").write_bytes(pickle.dumps(Trap()))
    (step / "optimizer.pt").write_bytes(pickle.dumps(Trap()))
    watcher.scan()
    settle(watcher)
    assert told
    assert not (tmp_path / "sprung").exists()


def test_a_listing_is_bounded_and_says_so(module, watcher, told):
    step = watcher.root / "step-1"
    step.mkdir()
    for rank in range(5200):
        (step / f"__{rank}_0.distcp").touch()
    (step / ".metadata").write_bytes(b"m")
    watcher.scan()
    data = told[-1][1]
    assert data["truncated"] is True
    assert data["facts"]["file_count"] == 5201
    assert data["files"][0]["name"] == ".metadata"
    assert 1000 < len(data["files"]) <= 5000
    assert len(module.encode(1, "x", "checkpoint", data).raw) < 250 * 1024, "it fits one post"


def test_a_link_that_loops_and_odd_names_do_no_harm(watcher, told):
    step = watcher.root / "step-1"
    step.mkdir()
    (step / "loop").symlink_to(step, target_is_directory=True)
    (step / "dangling").symlink_to(step / "nowhere")
    Path(os.fsdecode(os.fsencode(step) + b"/odd-\xff\n")).touch()
    watcher.scan()
    assert len(told[-1][1]["files"]) == 1


SAVING = """
import os, time
os.makedirs("checkpoints/step-10")
open("checkpoints/step-10/__0_0.distcp", "w").write("weights")
time.sleep(1.6)
open("checkpoints/step-10/.metadata", "w").write("m")
os.makedirs("checkpoints/step-20")
open("checkpoints/step-20/__0_0.distcp", "w").write("torn")
"""


def test_saves_reach_the_portal_with_the_last_state_before_the_exit(bench, recorder):
    (bench.folder / "checkpoints" / "step-1").mkdir(parents=True)
    (bench.folder / "checkpoints" / "step-1" / ".metadata").write_text("old")
    code, _, _ = bench.python(SAVING)
    assert code == 0
    last = {data["step"]: data for data in recorder.kind("checkpoint")}
    first = next(data for data in recorder.kind("checkpoint") if data["step"] == 10)
    assert first["facts"]["dcp_metadata_ok"] is False
    assert last[10]["facts"]["dcp_metadata_ok"] is True
    assert last[10]["facts"]["settled"] is True
    assert last[20]["facts"]["dcp_metadata_ok"] is False
    assert last[10]["path"] == str(bench.folder / "checkpoints" / "step-10")
    assert any(data["facts"].get("found_at_start") for data in recorder.kind("checkpoint") if data["step"] == 1)
    assert recorder.events[-1]["kind"] == "exit"


def test_several_roots(bench, recorder):
    (bench.folder / "a" / "step-1").mkdir(parents=True)
    (bench.folder / "b" / "iter_0000002").mkdir(parents=True)
    bench.run(sys.executable, "-c", "", env={"QD_CHECKPOINT_DIR": f"a:{bench.folder}/b:/nowhere"})
    assert {data["step"] for data in recorder.kind("checkpoint")} == {1, 2}


def test_polling_many_resting_checkpoints_is_cheap(watcher, told):
    for number in range(30):
        step = watcher.root / f"step-{number}"
        step.mkdir()
        for rank in range(100):
            (step / f"__{rank}_0.distcp").touch()
    watcher.scan()
    settle(watcher)
    began = time.process_time()
    for _ in range(10):
        watcher.scan()
    assert (time.process_time() - began) / 10 < 0.05
