"""The templates that a demo site starts from run in the sandbox as they are, by their defaults."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.jobs.template_rules import check_content, fill_template
from apps.jobs.template_starters import STARTERS
from sandbox.slurm import Settings
from tests.contract.scheduler_site import until
from tests.labs import SandboxSlurm, sandbox_slurm
from tests.sandbox.test_slurm_faults import request

CHARLM = Path(__file__).resolve().parents[2] / "examples" / "charlm"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxSlurm]:
    with sandbox_slurm(tmp_path_factory.mktemp("starters"), settings=Settings(kill_wait_s=1.0)) as running:
        yield running


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one checkpoint of two steps."""
    folder = tmp_path_factory.mktemp("trained")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "QD_"))}
    call = [sys.executable, str(CHARLM / "train.py"), "--steps", "2", "--save-every", "2", "--checkpoint-dir", "."]
    subprocess.run(call, cwd=folder, env=clean, check=True, capture_output=True)
    return folder


def run(slurm: SandboxSlurm, folder: Path, name: str, **values: Any) -> tuple[str, str]:
    """(state, output) of a job by the template's defaults."""
    content = STARTERS[name]
    script, problems = fill_template(content.script, content.parameters, values, name)
    assert problems == []
    folder.mkdir(exist_ok=True)
    asked = replace(
        request(folder, ""),
        script=script,
        name=name,
        comment=f"starter-{name}",
        nodes=content.defaults["nodes"],
        gpus_per_node=content.defaults["gpus_per_node"],
        environment={"PATH": "/usr/bin:/bin", **content.defaults.get("environment", {})},
        working_directory=str(folder),
    )
    scheduler = slurm.scheduler(timeout_s=10.0)
    number = scheduler.submit(asked).scheduler_id
    final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
    job = until("ended", lambda: (job := scheduler.job(number)).state in final and job, timeout_s=60.0)
    return job.state, (folder / f"slurm-{number}.out").read_text()


def test_all_of_them_are_well_formed() -> None:
    for name, content in STARTERS.items():
        assert check_content(content) == [], name


def test_torchrun(slurm: SandboxSlurm, tmp_path: Path) -> None:
    state, output = run(slurm, tmp_path / "w", "torchrun-multinode", steps=4, save_every=2)
    assert state == "COMPLETED", output
    assert '"step": 4' in output
    assert (tmp_path / "w" / "checkpoints" / "step-4" / ".metadata").is_file()


def test_nccl(slurm: SandboxSlurm, tmp_path: Path) -> None:
    state, output = run(slurm, tmp_path / "w", "nccl-test", iterations=1)
    assert state == "COMPLETED", output
    assert "2 ranks over TCP" in output
    assert [line.split()[-1] for line in output.splitlines() if line.strip()[:1].isdigit()] == ["0"] * 6


def test_evaluation(slurm: SandboxSlurm, trained: Path, tmp_path: Path) -> None:
    for checkpoint, step in (("", 0), (str(trained), 2), (str(trained / "step-2"), 2)):
        state, output = run(slurm, tmp_path / "w", "eval-array", checkpoint=checkpoint, every=400)
        assert state == "COMPLETED", output
        told = json.loads(output.splitlines()[-1])
        assert (told["shard"], told["shards"], told["step"]) == (0, 4, step)
        assert told["bits_per_character"] > 1
    state, output = run(slurm, tmp_path / "w", "eval-array", checkpoint="/nowhere")
    assert state == "FAILED"
    assert "/nowhere holds no whole checkpoint" in output


def test_conversion(slurm: SandboxSlurm, trained: Path, tmp_path: Path) -> None:
    sizes = {}
    for dtype in ("bf16", "f32", "f64"):
        state, output = run(
            slurm, tmp_path / "w", "checkpoint-convert", checkpoint=str(trained), output=f"{dtype}.st", dtype=dtype
        )
        assert state == "COMPLETED", output
        data = (tmp_path / "w" / f"{dtype}.st").read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        assert header["__metadata__"]["step"] == "2"
        assert header["hidden.weight"]["dtype"] == dtype.upper()
        assert header["hidden.weight"]["shape"] == [24, 48]
        assert header["output.bias"]["data_offsets"][1] == len(data) - 8 - length
        sizes[dtype] = len(data) - 8 - length
    assert sizes["f64"] == 2 * sizes["f32"] == 4 * sizes["bf16"]
