"""``python -m sandbox serve`` as a process: starting, saying where it is, stopping, and refusing to start."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.contract.compute_contract import Fleet, wait_for
from tests.stack import ROOT, SandboxFailed, sandbox_command, sandbox_stack, stop
from worker.providers import values as v
from worker.providers.aws import Ec2Compute
from worker.providers.slurm import SlurmScheduler


def get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return str(answer.read().decode())


def state(found: dict[str, Any]) -> Any:
    return json.loads(get(f"{found['control']['url']}/api/state"))


def compute_of(found: dict[str, Any]) -> Ec2Compute:
    aws = found["aws"]
    keys = v.Credentials(aws["access_key_id"], aws["secret_access_key"])
    return Ec2Compute(v.CloudAccess(aws["region"], keys, aws["endpoint_url"]))


def fleet_of(found: dict[str, Any]) -> Fleet:
    aws = found["aws"]
    return Fleet(aws["subnet_id"], aws["security_group_id"], aws["image_id"])


def children_of(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def processes_with(mark: str) -> list[int]:
    """Processes that carry a variable in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in variables:
                found.append(int(entry.name))
    return found


def sleeper(folder: Path, mark: str) -> v.SubmitRequest:
    return v.SubmitRequest(
        script="#!/bin/bash\nsleep 300\n",
        name="sleeper",
        comment=mark,
        partition="gpu",
        nodes=2,
        gpus_per_node=8,
        gpu_type="h100",
        tasks_per_node=1,
        cpus_per_task=1,
        memory_per_node_mib=1024,
        time_limit_min=10,
        working_directory=str(folder),
        environment={"PATH": os.environ["PATH"], "QD_TEST_MARK": mark},
    )


def scheduler_of(found: dict[str, Any]) -> SlurmScheduler:
    slurm = found["slurm"]
    return SlurmScheduler(v.SchedulerAccess(slurm["url"], slurm["user_name"], slurm["token"]))


def nodes_of(found: dict[str, Any]) -> list[str]:
    return sorted(node["name"] for node in state(found)["nodes"])


def test_story(tmp_path: Path) -> None:
    with sandbox_stack(tmp_path) as found:
        assert found["aws"]["subnet_id"] == "subnet-0a0000000000000a1"
        for secret in (found["aws"]["credentials_file"], found["slurm"]["token_file"], tmp_path / "sandbox.json"):
            assert stat.S_IMODE(Path(secret).stat().st_mode) == 0o600
        assert Path(found["slurm"]["token_file"]).read_text() == found["slurm"]["token"]
        compute, fleet = compute_of(found), fleet_of(found)
        assert compute.identity().account_id == found["aws"]["account_id"]
        launched = compute.launch(fleet.request(fleet.prepare(compute), count=2))
        names = sorted(i.name for i in launched)
        wait_for(lambda: nodes_of(found) == names, "both nodes joined")
        page = get(found["dcgm"]["url_template"].format(node=names[0]))
        assert "DCGM_FI_DEV_GPU_TEMP" in page
        assert sorted(node.name for node in scheduler_of(found).nodes()) == names
        assert names[0] in get(f"{found['control']['url']}/")
        fleet.tear_down(compute)
        wait_for(lambda: nodes_of(found) == [], "nodes left")
        assert scheduler_of(found).nodes() == ()
        census = json.loads(get(f"{found['control']['url']}/api/census"))
        counted = ("instances", "placement_groups", "launch_templates", "network_interfaces", "volumes")
        assert {census[key] for key in counted} == {0}


def test_stop_ends_everything_in_time(tmp_path: Path) -> None:
    with sandbox_stack(tmp_path) as found:
        compute, fleet = compute_of(found), fleet_of(found)
        compute.launch(fleet.request(fleet.prepare(compute), count=2))
        wait_for(lambda: len(nodes_of(found)) == 2, "both nodes joined")
        mark = f"QD_TEST_MARK={fleet.uid}"
        scheduler_of(found).submit(sleeper(tmp_path, fleet.uid))
        wait_for(lambda: [job["state"] for job in state(found)["jobs"]] == ["RUNNING"], "the job runs")
        wait_for(lambda: processes_with(mark) != [], "the job has processes")
        assert "sleeper" in get(f"{found['control']['url']}/fragment")
        stopped_at = time.monotonic()
    assert time.monotonic() - stopped_at < 5
    assert children_of(found["pid"]) == []
    assert processes_with(mark) == []
    assert not (tmp_path / "sandbox.json").exists()
    assert "sandbox: stopped" in (tmp_path / "sandbox.log").read_text()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the past may still linger
        again.bind(("127.0.0.1", int(found["aws"]["endpoint_url"].rpartition(":")[2])))


def test_without_slurm(tmp_path: Path) -> None:
    with sandbox_stack(tmp_path, without_slurm=True, pool=["p5.48xlarge=1", "p4d.24xlarge=2"]) as found:
        assert found["slurm"] is None
        assert state(found)["jobs"] == []


def test_kill_9_loses_no_instance(tmp_path: Path) -> None:
    with sandbox_stack(tmp_path, without_slurm=True) as found:
        compute, fleet = compute_of(found), fleet_of(found)
        made = compute.launch(fleet.request(fleet.prepare(compute), count=2))
        os.kill(found["pid"], signal.SIGKILL)
    with sandbox_stack(tmp_path, without_slurm=True) as again:
        assert again["aws"]["subnet_id"] == found["aws"]["subnet_id"]
        kept = compute_of(again).instances({v.TAG_UID: fleet.uid})
        assert {i.provider_id for i in kept} == {i.provider_id for i in made}
        wait_for(lambda: len(state(again)["nodes"]) == 2, "nodes joined again")


@pytest.mark.parametrize("name", ["control", "aws", "slurm", "dcgm"])
def test_busy_port_is_one_line(tmp_path: Path, name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = sandbox_command(tmp_path, **{f"{name}_port": port})
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr == f"sandbox: port {port} on 127.0.0.1 ({name}) is already in use\n"


def test_two_in_one_folder(tmp_path: Path) -> None:
    with sandbox_stack(tmp_path, without_slurm=True) as found:
        done = subprocess.run(
            sandbox_command(tmp_path), cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 2
        assert done.stderr == f"sandbox: another sandbox (pid {found['pid']}) already uses {tmp_path}\n"
        assert (tmp_path / "sandbox.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"zone": "us-east-2z"}, "us-east-2z"),
        ({"region": "mars-1"}, "mars-1"),
        ({"host": "203.0.113.1"}, "203.0.113.1"),
    ],
)
def test_nonsense_is_one_line(tmp_path: Path, options: dict[str, str], words: str) -> None:
    done = subprocess.run(
        sandbox_command(tmp_path, aws_port=5999, **options),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = sandbox_command(tmp_path / "file")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr == f"sandbox: cannot use {tmp_path / 'file'}: File exists\n"


def test_a_failed_start_says_why(tmp_path: Path) -> None:
    refused = pytest.raises(SandboxFailed, match=r"exit status 2: sandbox: zone 'nowhere'")
    with refused, sandbox_stack(tmp_path, zone="nowhere"):
        pytest.fail("started")


def test_stop_reports_an_unclean_end(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    assert stop(process) == -signal.SIGTERM
