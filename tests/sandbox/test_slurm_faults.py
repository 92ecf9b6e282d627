"""What the sandbox's Slurm does when things go wrong: lost nodes, killed tasks, broken answers, a killed sandbox."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.processes import identity_of
from sandbox.slurm import Settings
from tests.contract.scheduler_site import until
from tests.labs import ROOT, SandboxSlurm, join, sandbox_slurm
from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import SlurmScheduler


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SandboxSlurm]:
    with sandbox_slurm(tmp_path, settings=Settings(kill_wait_s=1.0, requeue_delay_s=0.5)) as running:
        yield running


@pytest.fixture
def scheduler(slurm: SandboxSlurm) -> SlurmScheduler:
    return slurm.scheduler(timeout_s=5.0)


def request(tmp_path: Path, script: str, **changes: object) -> v.SubmitRequest:
    default = v.SubmitRequest(
        script=f"#!/bin/bash\n{script}\n",
        name="faulty",
        comment="uid",
        partition="gpu",
        nodes=2,
        gpus_per_node=8,
        gpu_type="h100",
        tasks_per_node=1,
        cpus_per_task=1,
        memory_per_node_mib=0,
        time_limit_min=10,
        working_directory=str(tmp_path / "work"),
        environment={"PATH": "/usr/bin:/bin"},
    )
    return replace(default, **changes)  # type: ignore[arg-type]


def running(scheduler: SlurmScheduler, job_id: str) -> v.SchedulerJob:
    return until("running", lambda: (job := scheduler.job(job_id)).state == "RUNNING" and job)


def ended(scheduler: SlurmScheduler, job_id: str) -> v.SchedulerJob:
    final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
    return until("ended", lambda: (job := scheduler.job(job_id)).state in final and job)


def tasks(slurm: SandboxSlurm, job_id: str, node: str, count: int) -> list[int]:
    def look() -> list[int] | None:
        pids = slurm.server.job_pids(int(job_id), node)
        return pids if len(pids) >= count else None

    return until(f"tasks on {node}", look)


# --- nodes ---------------------------------------------------------------------------------------


def test_a_lost_node_fails_its_job_and_takes_no_other(
    slurm: SandboxSlurm, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    job_id = scheduler.submit(request(tmp_path, "srun sleep 60")).scheduler_id
    running(scheduler, job_id)
    pids = tasks(slurm, job_id, "p5-2", 1) + tasks(slurm, job_id, "p5-1", 2)
    slurm.world.node_lose("p5-2")
    job = ended(scheduler, job_id)
    assert job.state == "NODE_FAIL"
    assert job.nodes == ("p5-1", "p5-2")
    until("the end of all tasks", lambda: not any(identity_of(pid) for pid in pids), 5)
    node = next(one for one in scheduler.nodes() if one.name == "p5-2")
    assert node.state == "DOWN"
    assert "NOT_RESPONDING" in node.flags
    second = scheduler.submit(request(tmp_path, "true", nodes=3)).scheduler_id
    assert ended(scheduler, second).nodes == ("p5-1", "p5-3", "p5-4")


def test_slurm_itself_starts_a_requeueable_job_again(
    slurm: SandboxSlurm, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    script = 'echo "restart ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST" >> runs.txt; sleep 60'
    job_id = scheduler.submit(request(tmp_path, script, requeue=True)).scheduler_id
    running(scheduler, job_id)
    until("the first run", lambda: (tmp_path / "work" / "runs.txt").exists())
    slurm.world.node_lose("p5-1")
    job = until("the second run", lambda: (job := scheduler.job(job_id)).state == "RUNNING" and job)
    assert job.nodes == ("p5-2", "p5-3")
    lines = until(
        "its line", lambda: len(found := (tmp_path / "work" / "runs.txt").read_text().splitlines()) == 2 and found
    )
    assert lines == ["restart 0 on p5-[1-2]", "restart 1 on p5-[2-3]"]


def test_a_node_that_leaves_is_gone_and_a_new_one_takes_jobs(
    slurm: SandboxSlurm, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    job_id = scheduler.submit(request(tmp_path, "sleep 60", nodes=4)).scheduler_id
    running(scheduler, job_id)
    slurm.world.node_leave("p5-4")
    assert ended(scheduler, job_id).state == "NODE_FAIL"
    assert [node.name for node in scheduler.nodes()] == ["p5-1", "p5-2", "p5-3"]
    with pytest.raises(e.InvalidRequest):
        scheduler.submit(request(tmp_path, "true", nodes=4))
    join(slurm.world, "ip-10-0-0-12")
    second = scheduler.submit(request(tmp_path, "true", nodes=4)).scheduler_id
    assert set(ended(scheduler, second).nodes) == {"p5-1", "p5-2", "p5-3", "ip-10-0-0-12"}


def test_killed_tasks_fail_the_job(slurm: SandboxSlurm, scheduler: SlurmScheduler, tmp_path: Path) -> None:
    job_id = scheduler.submit(request(tmp_path, "srun --kill-on-bad-exit=1 sleep 60 || exit 9")).scheduler_id
    running(scheduler, job_id)
    tasks(slurm, job_id, "p5-2", 1)
    assert slurm.server.kill_tasks("p5-2") == 1
    job = ended(scheduler, job_id)
    assert (job.state, job.exit_code) == ("FAILED", 9)
    assert "p5-2: task 1: Killed" in (tmp_path / "work" / f"slurm-{job_id}.out").read_text()
    assert slurm.server.kill_tasks("p5-2") == 0


def test_time_limit_ends_a_job(slurm: SandboxSlurm, scheduler: SlurmScheduler, tmp_path: Path) -> None:
    job_id = scheduler.submit(request(tmp_path, "trap '' TERM; while true; do sleep 0.2; done")).scheduler_id
    running(scheduler, job_id)
    time.sleep(0.3)
    with slurm.server.controller.lock:
        slurm.server.controller._jobs[int(job_id)].started_at -= 601
    job = ended(scheduler, job_id)
    assert (job.state, job.signal) == ("TIMEOUT", 9)


def test_a_job_that_leaves_processes_behind_leaves_none(
    slurm: SandboxSlurm, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    script = "setsid sleep 77 & env -i /bin/sleep 78 & echo $! > pid.txt; setsid -f sleep 79; exit 0"
    job_id = scheduler.submit(request(tmp_path, script)).scheduler_id
    ended(scheduler, job_id)
    until("an empty job", lambda: not slurm.server.job_pids(int(job_id)), 5)
    pid = int((tmp_path / "work" / "pid.txt").read_text())
    assert subprocess.run(["/usr/bin/pgrep", "-f", "sleep 7[79]"], capture_output=True).returncode == 1
    # A program that cleared its environment goes with the script's session.
    assert identity_of(pid) is None or b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_limits_that_are_not_enforced_let_a_job_wait(tmp_path: Path) -> None:
    with sandbox_slurm(tmp_path, versions=["v0.0.38"], settings=Settings(enforce_limits=False)) as slurm:
        scheduler = slurm.scheduler()
        receipt = scheduler.submit(request(tmp_path, "true", time_limit_min=20_000))
        assert receipt.warnings == ("Requested partition configuration not available now",)
        job = scheduler.job(receipt.scheduler_id)
        assert (job.state, job.reason) == ("PENDING", "PartitionTimeLimit")


def test_a_script_that_cannot_be_started(scheduler: SlurmScheduler, tmp_path: Path) -> None:
    unknown = replace(request(tmp_path, ""), script="#!/no/such/interpreter\n")
    job = ended(scheduler, scheduler.submit(unknown).scheduler_id)
    assert (job.state, job.reason) == ("FAILED", "JobLaunchFailure")
    nowhere = request(tmp_path, "true", stdout_path="/proc/nowhere/out.txt")
    assert ended(scheduler, scheduler.submit(nowhere).scheduler_id).reason == "JobLaunchFailure"


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["error", "html", "empty", "truncated", "errors-in-200"])
def test_broken_answers_are_unavailable_and_then_well_again(
    slurm: SandboxSlurm, scheduler: SlurmScheduler, shape: str
) -> None:
    scheduler.info()
    slurm.world.fault_add("server-error", left=1, service="slurm", shape=shape)
    with pytest.raises(e.Unavailable):
        scheduler.nodes()
    assert len(scheduler.nodes()) == 4


def test_a_lost_reply_leaves_one_job_that_is_found_by_its_comment(
    slurm: SandboxSlurm, scheduler: SlurmScheduler, tmp_path: Path
) -> None:
    scheduler.info()
    slurm.world.fault_add("server-error", left=1, service="slurm", operation="submit", shape="lost-reply")
    with pytest.raises(e.Unavailable):
        scheduler.submit(request(tmp_path, "sleep 5", comment="attempt-7"))
    (job,) = scheduler.jobs_by_comment("attempt-7")
    assert job.state in ("PENDING", "RUNNING")


def test_throttling_and_slowness(slurm: SandboxSlurm) -> None:
    scheduler = slurm.scheduler(timeout_s=1.0)
    scheduler.info()
    slurm.world.fault_add("throttling", left=1, service="slurm")
    with pytest.raises(e.Throttled):
        scheduler.nodes()
    slurm.world.fault_add("slow-api", left=1, service="slurm", delay=2.0)
    with pytest.raises(e.Unavailable, match="within 1 s"):
        scheduler.nodes()
    slurm.world.fault_add("throttling", left=1, service="aws")
    assert scheduler.nodes()


def test_a_fault_for_one_operation_leaves_the_others(slurm: SandboxSlurm, scheduler: SlurmScheduler) -> None:
    slurm.world.fault_add("server-error", service="slurm", operation="cancel", shape="html")
    assert scheduler.nodes()
    with pytest.raises(e.Unavailable):
        scheduler.cancel("1")


def test_rights(slurm: SandboxSlurm, scheduler: SlurmScheduler, tmp_path: Path) -> None:
    job_id = scheduler.submit(request(tmp_path, "sleep 60")).scheduler_id
    outsider = slurm.scheduler(user_name="outsider", token=slurm.server.token("outsider"))
    with pytest.raises(e.AccessDenied, match="permission"):
        outsider.cancel(job_id)
    # By REST the outsider is no operator; the scontrol it was given is one.
    by_rest = slurm.scheduler(user_name="outsider", token=slurm.server.token("outsider"), scontrol=None)
    with pytest.raises(e.AccessDenied):
        by_rest.node_drain("p5-1", "why")
    outsider.node_drain("p5-1", "why")
    assert "DRAIN" in next(node for node in scheduler.nodes() if node.name == "p5-1").flags


# --- checkpoints ---------------------------------------------------------------------------------


def test_the_newest_checkpoint_is_torn(slurm: SandboxSlurm, scheduler: SlurmScheduler, tmp_path: Path) -> None:
    script = (
        "for step in 1 2; do mkdir -p checkpoints/step-$step; echo x > checkpoints/step-$step/__0_0.distcp;"
        " echo x > checkpoints/step-$step/.metadata; sleep 0.05; done; touch ready; sleep 60"
    )
    assert slurm.server.tear_newest_checkpoint() is None
    job_id = scheduler.submit(request(tmp_path, script)).scheduler_id
    folder = tmp_path / "work" / "checkpoints"
    until("two checkpoints", lambda: (tmp_path / "work" / "ready").exists())
    assert slurm.server.tear_newest_checkpoint(int(job_id) + 1) is None
    assert slurm.server.tear_newest_checkpoint() == str(folder / "step-2")
    assert not (folder / "step-2" / ".metadata").exists()
    assert (folder / "step-1" / ".metadata").exists()
    trainer = folder / "checkpoint-9"
    trainer.mkdir()
    (trainer / "trainer_state.json").write_text('{"global_step": 9}')
    assert slurm.server.tear_newest_checkpoint(int(job_id)) == str(trainer)
    assert (trainer / "trainer_state.json").read_bytes() == b""


# --- the sandbox itself --------------------------------------------------------------------------

_SERVE = """
import sys, time, json
from pathlib import Path
from sandbox.slurm import SlurmServer
from sandbox.world import World
sys.path.insert(0, {root!r})
from tests.labs import join
world = World()
server = SlurmServer(world, "127.0.0.1", 0, Path({state!r}), b"k" * 32)
server.start()
for name in ("p5-1", "p5-2"):
    join(world, name)
Path({ready!r}).write_text(json.dumps({{"url": server.url}}))
while True:
    time.sleep(1)
"""


def serve(tmp_path: Path) -> tuple[subprocess.Popen[bytes], SlurmScheduler]:
    from worker.providers.slurm import mint_jwt

    ready = tmp_path / "ready.json"
    ready.unlink(missing_ok=True)
    code = _SERVE.format(root=str(ROOT), state=str(tmp_path / "slurm"), ready=str(ready))
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    until("the server", lambda: ready.exists() and ready.stat().st_size > 0, 20)
    url = json.loads(ready.read_text())["url"]
    access = v.SchedulerAccess(url, "member", mint_jwt(b"k" * 32, "member", 600), 5.0)
    return child, SlurmScheduler(access)


def test_a_killed_sandbox_leaves_no_process_and_forgets_no_job(tmp_path: Path) -> None:
    first, scheduler = serve(tmp_path)
    try:
        script = "setsid sleep 301 & srun bash -c 'echo $$ >> pids.txt; exec sleep 302'"
        job_id = scheduler.submit(request(tmp_path, script)).scheduler_id
        waiting = scheduler.submit(request(tmp_path, "true", comment="later")).scheduler_id
        pids_file = tmp_path / "work" / "pids.txt"
        pids = until(
            "two tasks", lambda: pids_file.exists() and len(found := pids_file.read_text().split()) == 2 and found
        )
        assert all(identity_of(int(pid)) for pid in pids)
        stranger = subprocess.Popen(["/bin/sleep", "303"], start_new_session=True)
        # A journal that names a stranger's pid with another start time must do it no harm.
        first.send_signal(signal.SIGKILL)
        first.wait()
        journal = tmp_path / "slurm" / "runs.json"
        told = json.loads(journal.read_text())
        told["runs"].append({"job": 99, "pid": stranger.pid, "started": 1})
        journal.write_text(json.dumps(told))
        assert all(identity_of(int(pid)) for pid in pids), (
            "the tasks outlive the sandbox: that is what is to be cleaned"
        )
        second, scheduler = serve(tmp_path)
        try:
            assert not any(identity_of(int(pid)) for pid in pids)
            assert stranger.poll() is None
            job = scheduler.job(job_id)
            assert (job.state, job.comment) == ("NODE_FAIL", "uid")
            assert ended(scheduler, waiting).state == "COMPLETED"
            third = scheduler.submit(request(tmp_path, "true")).scheduler_id
            assert int(third) > int(waiting)
        finally:
            second.kill()
            second.wait()
            stranger.kill()
            stranger.wait()
    finally:
        first.kill()
        first.wait()


def test_two_sandboxes_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        sandbox_slurm(tmp_path),
        pytest.raises(OSError, match="another sandbox uses"),
        sandbox_slurm(tmp_path),
    ):
        pass


def test_stopping_kills_every_process(tmp_path: Path) -> None:
    with sandbox_slurm(tmp_path) as slurm:
        scheduler = slurm.scheduler()
        job_id = scheduler.submit(request(tmp_path, "trap '' TERM; srun sleep 301")).scheduler_id
        running(scheduler, job_id)
        pids = tasks(slurm, job_id, "p5-2", 1) + tasks(slurm, job_id, "p5-1", 2)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not any(identity_of(pid) for pid in pids)


def test_state_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "jobs.json").write_text('{"jobs": [')
    with sandbox_slurm(tmp_path) as slurm:
        assert slurm.server.jobs_snapshot() == []
    assert (tmp_path / "slurm" / "jobs.unreadable").exists()


def test_snapshot_and_job_of_node(slurm: SandboxSlurm, scheduler: SlurmScheduler, tmp_path: Path) -> None:
    assert slurm.server.job_of_node("p5-1") == ""
    job_id = scheduler.submit(request(tmp_path, "sleep 60")).scheduler_id
    running(scheduler, job_id)
    (shown,) = slurm.server.jobs_snapshot()
    assert (shown["job_id"], shown["state"], shown["nodes"]) == (int(job_id), "RUNNING", ["p5-1", "p5-2"])
    assert json.dumps(shown)
    assert slurm.server.job_of_node("p5-1") == job_id
    assert slurm.server.job_of_node("p5-3") == ""


def test_no_job_reads_the_servers_environment(slurm: SandboxSlurm, scheduler: SlurmScheduler, tmp_path: Path) -> None:
    os.environ["SANDBOX_TEST_SECRET"] = "hidden"
    try:
        job_id = scheduler.submit(
            request(tmp_path, "env", environment={"PATH": "/usr/bin:/bin", "X": "1"})
        ).scheduler_id
        ended(scheduler, job_id)
        text = (tmp_path / "work" / f"slurm-{job_id}.out").read_text()
        assert "X=1" in text
        assert "SANDBOX_TEST_SECRET" not in text
    finally:
        del os.environ["SANDBOX_TEST_SECRET"]
