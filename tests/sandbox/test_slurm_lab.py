"""The lab of real Slurm as a program: started, found, refused and stopped without a trace."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.lab.layout import LabError, LabOptions, Ports, check_reachable, gres_conf, slurm_conf
from sandbox.processes import identity_of
from tests.labs import ROOT, why_no_real_slurm
from worker.providers.slurm import SlurmScheduler
from worker.providers.values import SchedulerAccess, SubmitRequest

needs_lab = pytest.mark.skipif(bool(why_no_real_slurm()), reason=why_no_real_slurm() or "it can run here")
COMMAND = [sys.executable, "-m", "sandbox.lab"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)


def with_marker(directory: Path) -> list[int]:
    needle = f"QUARTERDECK_LAB_DIR={directory}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lab-test-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path / "lab"
        run("stop", "--dir", str(path / "lab"))


# --- without Slurm -------------------------------------------------------------------------------


def test_configuration_names_every_node_and_gpu() -> None:
    options = LabOptions(Path("/d"), nodes=3, gpus=8)
    text = slurm_conf(options, Ports(1, 2, 3, 4, (11, 12, 13)), "host")
    for index, port in ((1, 11), (2, 12), (3, 13)):
        assert f"NodeName=p5-{index} NodeHostname=host NodeAddr=127.0.0.1 Port={port}" in text
    assert "AccountingStorageTRES=gres/gpu" in text
    assert "AccountingStorage" not in slurm_conf(
        LabOptions(Path("/d"), nodes=1, accounting=False), Ports(1, 2, 3, 4, (11,)), "host"
    )
    assert "NodeName=p5-3 Name=gpu Type=h100 File=/d/gpu/nvidia[0-7]\n" in gres_conf(options)
    assert gres_conf(LabOptions(Path("/d"), nodes=1, gpus=1)).endswith("File=/d/gpu/nvidia0\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter what others may not")
def test_a_folder_the_job_user_cannot_enter_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(LabError, match="cannot enter"):
        check_reachable(closed, "nobody")
    with pytest.raises(LabError, match="no user"):
        check_reachable(closed, "nosuchuser")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_without_root_there_is_one_line_and_exit_code_3() -> None:
    done = subprocess.run(
        ["/usr/bin/python3", "-m", "sandbox.lab", "run", "--dir", "/tmp/no-lab"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        user=65534,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 3, done
    assert done.stderr.count("\n") == 1
    assert "needs root" in done.stderr


# --- with Slurm ----------------------------------------------------------------------------------


@needs_lab
@pytest.mark.real_slurm
def test_life_of_a_lab_without_accounting(directory: Path) -> None:
    started = run("start", "--dir", str(directory), "--nodes", "2", "--gpus", "4", "--no-accounting")
    assert started.returncode == 0, started
    told = json.loads((directory / "lab.json").read_text())
    assert stat.S_IMODE((directory / "lab.json").stat().st_mode) == 0o600
    scheduler = SlurmScheduler(
        SchedulerAccess(told["slurmrestd_url"], told["user"], told["token"]), scontrol=told["scontrol"]
    )
    assert [(node.name, node.gpus, node.state) for node in scheduler.nodes()] == [
        ("p5-1", 4, "IDLE"),
        ("p5-2", 4, "IDLE"),
    ]
    job_id = scheduler.submit(
        SubmitRequest(
            script="#!/bin/bash\ntrap '' TERM\nsetsid sleep 300 &\nfor i in $(seq 300); do sleep 1; done\n",
            name="stubborn",
            comment="uid",
            partition="gpu",
            nodes=2,
            gpus_per_node=4,
            gpu_type="h100",
            tasks_per_node=1,
            cpus_per_task=1,
            memory_per_node_mib=0,
            time_limit_min=10,
            working_directory=told["work_dir"],
            environment={},
        )
    ).scheduler_id
    deadline = time.monotonic() + 20
    while scheduler.job(job_id).state != "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert scheduler.job(job_id).gpus == 8, "without accounting GPUs come from the request"
    assert scheduler.jobs_by_comment("uid")[0].scheduler_id == job_id
    again = run("start", "--dir", str(directory))
    assert again.returncode == 1
    assert "already runs" in again.stderr
    began = time.monotonic()
    stopped = run("stop", "--dir", str(directory))
    assert stopped.returncode == 0, stopped
    assert time.monotonic() - began < 10
    assert with_marker(directory) == []
    assert not (directory / "lab.json").exists()
    assert not any(identity_of(pid) for pid in told["daemons"].values())


@needs_lab
@pytest.mark.real_slurm
def test_a_killed_supervisor_leaves_no_daemon_after_stop(directory: Path) -> None:
    assert run("start", "--dir", str(directory), "--nodes", "1", "--no-accounting").returncode == 0
    told = json.loads((directory / "lab.json").read_text())
    os.kill(told["supervisor"]["pid"], signal.SIGKILL)
    assert run("stop", "--dir", str(directory)).returncode == 0
    assert with_marker(directory) == []
    # And the folder can be used again.
    assert run("start", "--dir", str(directory), "--nodes", "1", "--no-accounting").returncode == 0


@needs_lab
@pytest.mark.real_slurm
def test_a_lab_stops_with_the_process_it_was_given(directory: Path) -> None:
    owner = subprocess.Popen(["/bin/sleep", "300"])
    words = ["--dir", str(directory), "--nodes", "1", "--no-accounting", "--stop-with", str(owner.pid)]
    try:
        assert run("start", *words).returncode == 0
        assert with_marker(directory)
    finally:
        owner.kill()
        owner.wait()
    deadline = time.monotonic() + 10
    while with_marker(directory) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert with_marker(directory) == []


@needs_lab
@pytest.mark.real_slurm
@pytest.mark.parametrize("after_s", [0.3, 1.2])
def test_an_interrupt_while_starting_stops_everything(directory: Path, after_s: float) -> None:
    child = subprocess.Popen(
        [*COMMAND, "run", "--dir", str(directory), "--nodes", "1"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(after_s)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=15)
    assert child.returncode in (0, 130, -2), errors
    assert "Traceback" not in errors
    assert with_marker(directory) == []


@needs_lab
@pytest.mark.real_slurm
def test_a_foreign_folder_is_refused(directory: Path) -> None:
    directory.mkdir()
    (directory / "precious.txt").write_text("mine")
    done = run("run", "--dir", str(directory))
    assert done.returncode == 1
    assert "was not made by a lab" in done.stderr
    assert (directory / "precious.txt").read_text() == "mine"
