"""PyTorch DDP with DCP checkpoints on a real Slurm, 2 nodes of 2 ranks, from the template that people pick."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.flows.test_real_slurm import Api, connect, running, submit_body  # noqa: F401 - running is a fixture
from tests.labs import why_no_real_slurm
from tests.portal_stack import Portal


def why_no_torch() -> str:
    """One sentence why the job's user cannot run PyTorch here, or an empty string."""
    python = os.environ.get("QD_TORCH_PYTHON", "")
    if not python:
        return "QD_TORCH_PYTHON names no python that has PyTorch"
    try:
        done = subprocess.run(
            ["runuser", "-u", "nobody", "--", python, "-c", "import torch"], capture_output=True, timeout=120, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{python}: {error}"
    return "" if done.returncode == 0 else f"the job's user cannot import torch with {python}"


pytestmark = [
    pytest.mark.real_slurm,
    pytest.mark.torch,
    pytest.mark.timeout(500),
    pytest.mark.skipif(bool(why_no_real_slurm()), reason=why_no_real_slurm() or "there"),
]


@pytest.mark.skipif(bool(why_no_torch()), reason=why_no_torch() or "there")
def test_ddp_trains_fails_over_and_resumes(running: tuple[Portal, Path]) -> None:  # noqa: F811
    stack, folder = running
    operator, researcher = Api(stack, "operator"), Api(stack, "researcher")
    connect(operator, stack)
    torchrun = str(Path(os.environ["QD_TORCH_PYTHON"]).parent / "torchrun")
    body = submit_body(
        folder,
        name="ddp",
        template="pytorch-ddp",
        template_parameters={
            "program": str(folder / "examples" / "torch_ddp" / "train.py"),
            "torchrun": torchrun,
            "processes_per_node": 2,
            "steps": 400,
            "save_every": 20,
        },
        environment={"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "QD_EXAMPLES": str(folder / "examples")},
        tasks_per_node=1,
    )
    job = researcher("POST", "jobs", body, key="ddp")
    path = f"jobs/{job['uid']}"
    researcher.wait(f"{path}/checkpoints", lambda c: any(r["state"] == "COMPLETE" for r in c["results"]), 180)
    node = researcher("GET", path)["attempts"][0]["nodes"][1]
    stack.manage("sandbox", "fault", "xid", "--node", node, "--code", "79", "--control-url", stack.control_url)
    done = researcher.wait(path, lambda j: j["phase"] in ("SUCCEEDED", "FAILED"), 240)
    assert done["phase"] == "SUCCEEDED", done
    first, second = done["attempts"][0], done["attempts"][-1]
    assert len(done["attempts"]) == 2
    assert (first["phase"], first["stop_node"]) == ("NODE_FAILED", node)
    assert second["resume_step"] >= 20
    assert node not in second["nodes"]
    points = researcher("GET", f"{path}/progress")["results"]
    assert points[-1]["step"] == 400
    assert points[-1]["loss"] < points[0]["loss"]
    kept = researcher("GET", f"{path}/checkpoints")["results"]
    assert {c["layout"] for c in kept} == {"dcp"}
    assert kept[0]["step"] == 400
    assert kept[0]["state"] == "COMPLETE"
