"""The PyTorch example with torchrun: two pretend nodes with two ranks each on loopback; killed, resumed, refused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_ddp" / "train.py"
PYTHON = os.environ.get("QD_TORCH_PYTHON", "")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not PYTHON, reason="QD_TORCH_PYTHON names no Python that has PyTorch"),
]


@pytest.fixture
def launch(tmp_path):
    started = []

    def start(*arguments, **env):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "QD_"))}
        environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", **env}
        command = [PYTHON, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d"]
        command += [f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={port}", "--local-addr=127.0.0.1"]
        nodes = [
            subprocess.Popen(
                [*command, str(EXAMPLE), *arguments],
                env=environment,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for _ in range(2)
        ]
        started.extend(nodes)
        return nodes

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finish(nodes):
    outputs = [process.communicate(timeout=150)[0] for process in nodes]
    return [process.returncode for process in nodes], "\n".join(outputs)


def losses(output):
    progress = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {line["step"]: line["loss"] for line in progress}


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_it_learns_is_killed_and_resumes_on_the_same_curve(launch, tmp_path):
    codes, output = finish(launch("--steps", "24", "--save-every", "8", "--checkpoint-dir", "whole"))
    assert codes == [0, 0], output
    expected = losses(output)
    assert list(expected) == list(range(1, 25))
    assert expected[24] < expected[1] - 1
    names = sorted(path.name for path in (tmp_path / "whole" / "step-24").iterdir())
    assert names == [".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp"]

    slow = ("--steps", "24", "--save-every", "8", "--step-seconds", "0.2")
    nodes = launch(*slow)
    deadline = time.monotonic() + 90
    while not (tmp_path / "checkpoints" / "step-8" / ".metadata").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(children(nodes[1].pid)[0], signal.SIGKILL)
    codes, output = finish(nodes)
    assert 0 not in codes
    assert max(losses(output)) < 24

    newest = tmp_path / "checkpoints" / "step-8"
    codes, output = finish(launch("--steps", "24", "--save-every", "8", QD_RESUME_FROM=str(newest)))
    assert codes == [0, 0], output
    assert f"resumed from {newest} at step 8" in output
    resumed = losses(output)
    assert list(resumed) == list(range(9, 25))
    assert resumed == pytest.approx({step: expected[step] for step in resumed}, abs=2e-3)

    (newest / ".metadata").unlink()
    codes, output = finish(launch("--steps", "24", QD_RESUME_FROM=str(newest)))
    assert 0 not in codes
    assert f"{newest} is torn or no checkpoint" in output


def test_without_torchrun_it_says_so(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "LOCAL_RANK"}
    done = subprocess.run(
        [PYTHON, str(EXAMPLE)], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "start it with torchrun" in done.stderr
