"""What every Slurm must do for us: run on the real one (a failure is a wrong belief) and the sandbox's (a liar)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.contract.het_contract import HetContract
from tests.contract.reads_contract import ReadsContract
from tests.contract.scheduler_site import Site, until
from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import SlurmScheduler, mint_jwt

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}


class SchedulerContract(ReadsContract, HetContract):
    """The suite; a subclass gives the fixture ``site`` (class-wide)."""

    @pytest.fixture
    def scheduler(self, site: Site) -> Iterator[SlurmScheduler]:
        scheduler = site.scheduler()
        yield scheduler
        for job in scheduler.queue().jobs or ():
            if job.state not in ENDED:
                scheduler.cancel(job.scheduler_id)
        until("an empty cluster", lambda: all(job.state in ENDED for job in scheduler.queue().jobs or ()))
        for node in scheduler.nodes():
            if "DRAIN" in node.flags:
                scheduler.node_resume(node.name)
        scheduler.close()

    def request(self, site: Site, script: str, **changes: Any) -> v.SubmitRequest:
        default = v.SubmitRequest(
            script=f"#!/bin/bash\n{script}\n",
            name="contract",
            comment=f"attempt-{uuid.uuid4()}",
            partition="gpu",
            nodes=1,
            gpus_per_node=8,
            gpu_type="h100",
            tasks_per_node=1,
            cpus_per_task=2,
            memory_per_node_mib=1000,
            time_limit_min=10,
            working_directory=str(site.work_dir),
            environment={"PATH": "/usr/bin:/bin"},
        )
        return replace(default, **changes)

    def ended(self, scheduler: SlurmScheduler, scheduler_id: str) -> v.SchedulerJob:
        def look() -> v.SchedulerJob | None:
            job = scheduler.job(scheduler_id)
            return job if job.state in ENDED else None

        return until(f"the end of job {scheduler_id}", look)

    def running(self, scheduler: SlurmScheduler, scheduler_id: str) -> v.SchedulerJob:
        def look() -> v.SchedulerJob | None:
            job = scheduler.job(scheduler_id)
            assert job.state in ("PENDING", "RUNNING"), job
            return job if job.state == "RUNNING" else None

        return until(f"the start of job {scheduler_id}", look)

    def output(self, site: Site, name: str) -> str:
        path = site.work_dir / name
        return until(f"{name}", lambda: path.read_text() if path.exists() and path.stat().st_size else "")

    # --- what there is ------------------------------------------------------------------------------

    def test_info_names_release_and_version(self, site: Site, scheduler: SlurmScheduler) -> None:
        info = scheduler.info()
        assert info.api_version == site.api_version
        assert info.version == site.release
        assert info.cluster_name

    def test_partition_has_its_nodes_and_limit(self, scheduler: SlurmScheduler) -> None:
        (partition,) = scheduler.partitions()
        assert partition.name == "gpu"
        assert partition.nodes == ("p5-1", "p5-2", "p5-3", "p5-4")
        assert partition.max_time_min == 7 * 24 * 60
        assert partition.is_default
        assert partition.state == "UP"

    def test_nodes_have_eight_gpus(self, scheduler: SlurmScheduler) -> None:
        nodes = scheduler.nodes()
        assert [node.name for node in nodes] == ["p5-1", "p5-2", "p5-3", "p5-4"]
        for node in nodes:
            assert (node.gpu_type, node.gpus, node.gpus_used) == ("h100", 8, 0)
            assert (node.cpus, node.memory_mib) == (192, 2_000_000)
            assert node.state == "IDLE"
            assert "DRAIN" not in node.flags
            assert node.partitions == ("gpu",)

    # --- a job's life ---------------------------------------------------------------------------------

    def test_job_runs_and_completes_with_its_comment(self, site: Site, scheduler: SlurmScheduler) -> None:
        began_at = datetime.now(tz=UTC) - timedelta(seconds=2)
        request = self.request(site, "sleep 2", nodes=2)
        receipt = scheduler.submit(request)
        assert receipt.warnings == ()
        job = self.running(scheduler, receipt.scheduler_id)
        assert job.comment == request.comment
        assert job.user_name == site.user
        assert (job.name, job.partition, job.time_limit_min) == ("contract", "gpu", 10)
        assert len(job.nodes) == job.node_count == 2
        assert job.gpus == 16
        assert job.started_at is not None
        assert job.submitted_at is not None
        assert began_at <= job.submitted_at <= job.started_at <= datetime.now(tz=UTC) + timedelta(seconds=2)
        assert job.ended_at is None
        assert job.exit_code is None
        busy = {node.name: node.gpus_used for node in scheduler.nodes()}
        assert all(busy[name] == 8 for name in job.nodes)
        done = self.ended(scheduler, receipt.scheduler_id)
        assert done.state == "COMPLETED"
        assert (done.exit_code, done.signal) == (0, None)
        assert done.ended_at is not None
        assert done.ended_at >= done.started_at
        assert done.nodes == job.nodes
        assert done.gpus == 16

    def test_environment_and_working_directory(self, site: Site, scheduler: SlurmScheduler) -> None:
        request = self.request(
            site,
            'pwd > here.txt; printf "%s|%s|%s\\n" "$GREETING" "$SLURM_JOB_ID" "$SLURM_JOB_NAME" > env.txt',
            environment={"PATH": "/usr/bin:/bin", "GREETING": "two words = ok, ünï"},
        )
        job_id = scheduler.submit(request).scheduler_id
        self.ended(scheduler, job_id)
        assert self.output(site, "here.txt") == f"{site.work_dir}\n"
        assert self.output(site, "env.txt") == f"two words = ok, ünï|{job_id}|contract\n"

    def test_output_goes_to_slurms_usual_file(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = scheduler.submit(self.request(site, "echo out; echo err >&2")).scheduler_id
        self.ended(scheduler, job_id)
        assert sorted(self.output(site, f"slurm-{job_id}.out").splitlines()) == ["err", "out"]

    def test_output_goes_where_it_was_asked_to(self, site: Site, scheduler: SlurmScheduler) -> None:
        request = self.request(site, "echo out", stdout_path=f"{site.work_dir}/named-%j-%x.txt")
        job_id = scheduler.submit(request).scheduler_id
        self.ended(scheduler, job_id)
        assert self.output(site, f"named-{job_id}-contract.txt") == "out\n"

    @pytest.mark.parametrize("name", ["", "sub-%j-%x.txt", "plain.txt"])
    def test_output_is_found_where_slurm_says(self, site: Site, scheduler: SlurmScheduler, name: str) -> None:
        path = f"{site.work_dir}/{name}" if name else ""
        job_id = scheduler.submit(self.request(site, "echo here", stdout_path=path)).scheduler_id
        found = scheduler.output_of(job_id)
        self.ended(scheduler, job_id)
        until("the output", lambda: Path(found.path).exists() and Path(found.path).read_text() == "here\n")
        assert Path(found.path).stat().st_uid == found.user_id
        Path(found.path).unlink()
        with pytest.raises(e.NotFound):
            scheduler.output_of("9999999")

    def test_batch_environment_has_what_launchers_read(self, site: Site, scheduler: SlurmScheduler) -> None:
        names = [
            "SLURM_JOB_NODELIST",
            "SLURM_NNODES",
            "SLURM_JOB_NUM_NODES",
            "SLURM_NTASKS",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_NODEID",
            "SLURM_PROCID",
            "SLURM_LOCALID",
            "SLURMD_NODENAME",
            "SLURM_GPUS_ON_NODE",
            "SLURM_TASKS_PER_NODE",
            "SLURM_CPUS_PER_TASK",
            "SLURM_SUBMIT_DIR",
        ]
        script = "\n".join(f'echo "{name}=${name}"' for name in names) + "\necho restarts=${SLURM_RESTART_COUNT:-unset}"
        request = self.request(site, script, nodes=2, tasks_per_node=2)
        job_id = scheduler.submit(request).scheduler_id
        done = self.ended(scheduler, job_id)
        told = dict(line.partition("=")[::2] for line in self.output(site, f"slurm-{job_id}.out").splitlines())
        first, second = done.nodes
        assert told.pop("SLURM_JOB_NODELIST") == f"p5-[{first.removeprefix('p5-')}-{second.removeprefix('p5-')}]"
        assert told == {
            "SLURM_NNODES": "2",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_NTASKS": "4",
            "SLURM_NTASKS_PER_NODE": "2",
            "SLURM_NODEID": "0",
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "SLURMD_NODENAME": first,
            "SLURM_GPUS_ON_NODE": "8",
            "SLURM_TASKS_PER_NODE": "2(x2)",
            "SLURM_CPUS_PER_TASK": "2",
            "SLURM_SUBMIT_DIR": str(site.work_dir),
            "restarts": "unset",
        }

    def test_srun_starts_tasks_on_every_node(self, site: Site, scheduler: SlurmScheduler) -> None:
        script = (
            "srun bash -c 'echo task $SLURM_PROCID $SLURM_NODEID $SLURM_LOCALID $SLURMD_NODENAME $SLURM_NTASKS'\n"
            "srun --ntasks=2 --ntasks-per-node=1 bash -c 'echo spread $SLURM_PROCID $SLURM_NODEID $SLURMD_NODENAME'\n"
            "srun -N1 -n1 -w $(scontrol show hostnames $SLURM_JOB_NODELIST | tail -1) --overlap "
            "bash -c 'echo last $SLURM_PROCID $SLURMD_NODENAME'\n"
            "srun -l -n 1 echo labelled\n"
            "srun --export=ALL,EXTRA=more -n 1 -N 1 bash -c 'echo extra $EXTRA'\n"
        )
        job_id = scheduler.submit(self.request(site, script, nodes=2, tasks_per_node=2)).scheduler_id
        done = self.ended(scheduler, job_id)
        lines = self.output(site, f"slurm-{job_id}.out").splitlines()
        first, second = done.nodes
        assert sorted(line for line in lines if line.startswith("task")) == [
            f"task 0 0 0 {first} 4",
            f"task 1 0 1 {first} 4",
            f"task 2 1 0 {second} 4",
            f"task 3 1 1 {second} 4",
        ], lines
        assert sorted(line for line in lines if line.startswith("spread")) == [
            f"spread 0 0 {first}",
            f"spread 1 1 {second}",
        ], lines
        assert f"last 0 {second}" in lines
        assert "0: labelled" in lines
        assert "extra more" in lines
        assert done.state == "COMPLETED"

    def test_srun_fails_when_a_task_fails(self, site: Site, scheduler: SlurmScheduler) -> None:
        script = "srun --kill-on-bad-exit=1 bash -c 'test $SLURM_PROCID = 1 && exit 7; sleep 60'\necho code $?"
        job_id = scheduler.submit(self.request(site, script, tasks_per_node=2)).scheduler_id
        self.ended(scheduler, job_id)
        lines = self.output(site, f"slurm-{job_id}.out").splitlines()
        # The tasks that were ended because of it may make the step's own code worse.
        code = next(int(line.removeprefix("code ")) for line in lines if line.startswith("code "))
        assert code in (7, 137, 143), lines

    def test_exit_code_is_told(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = scheduler.submit(self.request(site, "exit 3")).scheduler_id
        job = self.ended(scheduler, job_id)
        assert job.state == "FAILED"
        assert (job.exit_code, job.signal) == (3, None)
        assert job.reason == "NonZeroExitCode"

    def test_signal_is_told(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = scheduler.submit(self.request(site, "kill -9 $$")).scheduler_id
        job = self.ended(scheduler, job_id)
        assert job.state == "FAILED"
        assert (job.exit_code, job.signal) == (None, 9)

    # --- cancelling -------------------------------------------------------------------------------------

    def test_cancel_ends_a_running_job_and_its_processes(self, site: Site, scheduler: SlurmScheduler) -> None:
        script = "trap 'echo told > told.txt; exit 0' TERM\nsleep 600 & echo $! > sleeper.txt\nwait"
        job_id = scheduler.submit(self.request(site, script)).scheduler_id
        self.running(scheduler, job_id)
        sleeper = int(self.output(site, "sleeper.txt"))
        scheduler.cancel(job_id)
        job = self.ended(scheduler, job_id)
        assert job.state == "CANCELLED"
        assert job.ended_at is not None
        until("the end of its child", lambda: not Path(f"/proc/{sleeper}").exists(), 15)
        (site.work_dir / "sleeper.txt").unlink()

    def test_signal_reaches_the_script_and_does_not_end_it(self, site: Site, scheduler: SlurmScheduler) -> None:
        script = "trap 'echo saved > saved.txt' USR1\ntouch ready.txt\nfor i in $(seq 60); do sleep 1; done"
        job_id = scheduler.submit(self.request(site, script)).scheduler_id
        self.running(scheduler, job_id)
        until("the trap", lambda: (site.work_dir / "ready.txt").exists(), 15)
        scheduler.signal(job_id, "USR1")
        until("the answer to the signal", lambda: (site.work_dir / "saved.txt").exists(), 15)
        assert scheduler.job(job_id).state == "RUNNING"
        scheduler.cancel(job_id)
        self.ended(scheduler, job_id)
        for name in ("ready.txt", "saved.txt"):
            (site.work_dir / name).unlink()
        with pytest.raises(e.NotFound):
            scheduler.signal("9999999", "USR1")

    def test_job_that_ignores_the_signal_is_killed(self, site: Site, scheduler: SlurmScheduler) -> None:
        script = "trap '' TERM\nfor i in $(seq 60); do sleep 1; done"
        job_id = scheduler.submit(self.request(site, script)).scheduler_id
        self.running(scheduler, job_id)
        time.sleep(0.5)
        scheduler.cancel(job_id)
        time.sleep(0.5)
        assert scheduler.job(job_id).state == "COMPLETING"
        job = self.ended(scheduler, job_id)
        assert job.state == "CANCELLED"
        assert job.signal == 9

    def test_cancel_ends_a_waiting_job(self, site: Site, scheduler: SlurmScheduler) -> None:
        scheduler.submit(self.request(site, "sleep 60", nodes=4))
        waiting = scheduler.submit(self.request(site, "sleep 60", nodes=4)).scheduler_id
        scheduler.cancel(waiting)
        job = self.ended(scheduler, waiting)
        assert job.state == "CANCELLED"
        assert job.nodes == ()
        assert job.started_at is None
        assert (job.exit_code, job.signal) == (None, None)

    def test_cancel_of_an_ended_job_is_no_error(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = scheduler.submit(self.request(site, "true")).scheduler_id
        self.ended(scheduler, job_id)
        scheduler.cancel(job_id)

    def test_unknown_jobs_are_not_found(self, scheduler: SlurmScheduler) -> None:
        for unknown in ("9999999", "abc", "1;2", "-1", ""):
            with pytest.raises(e.NotFound):
                scheduler.job(unknown)
            with pytest.raises(e.NotFound):
                scheduler.cancel(unknown)

    # --- refusals -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            pytest.param({"time_limit_min": 7 * 24 * 60 + 1}, "2051", id="time limit beyond the partition's"),
            pytest.param({"nodes": 9}, "2006", id="more nodes than there are"),
            pytest.param({"partition": "nowhere"}, "2000", id="unknown partition"),
            pytest.param({"gpu_type": "a100"}, "2014", id="GPU type the cluster has not"),
            pytest.param({"gpus_per_node": 9}, "2014", id="more GPUs than a node has"),
            pytest.param({"memory_per_node_mib": 99_000_000}, "2014", id="more memory than a node has"),
            pytest.param({"excluded_nodes": ("p5-99",)}, "2018", id="unknown excluded node"),
            pytest.param({"excluded_nodes": ("p5-1",), "nodes": 4}, "2014", id="too few nodes left"),
        ],
    )
    def test_refusals(self, site: Site, scheduler: SlurmScheduler, change: dict[str, Any], code: str) -> None:
        request = self.request(site, "true", **change)
        with pytest.raises(e.InvalidRequest) as refusal:
            scheduler.submit(request)
        assert refusal.value.code == code
        assert not refusal.value.retryable
        assert all(job.state == "FAILED" for job in scheduler.jobs_by_comment(request.comment))

    def test_script_without_interpreter_is_refused(self, site: Site, scheduler: SlurmScheduler) -> None:
        with pytest.raises(e.InvalidRequest, match="first line"):
            scheduler.submit(replace(self.request(site, ""), script="echo hello\n"))

    # --- places -------------------------------------------------------------------------------------------

    def test_excluded_nodes_are_not_used(self, site: Site, scheduler: SlurmScheduler) -> None:
        request = self.request(site, "sleep 1", nodes=2, excluded_nodes=("p5-1", "p5-3"))
        job_id = scheduler.submit(request).scheduler_id
        assert self.running(scheduler, job_id).nodes == ("p5-2", "p5-4")

    def test_drained_node_takes_no_job_until_resumed(self, site: Site, scheduler: SlurmScheduler) -> None:
        scheduler.node_drain("p5-2", "gpu 3: XID 79")
        node = next(one for one in scheduler.nodes() if one.name == "p5-2")
        assert "DRAIN" in node.flags
        assert node.reason == "gpu 3: XID 79"
        scheduler.node_drain("p5-2", "another reason")
        receipt = scheduler.submit(self.request(site, "true", nodes=4))
        assert any("not available" in warning for warning in receipt.warnings), receipt
        job = until("a reason", lambda: (found := scheduler.job(receipt.scheduler_id)).reason and found)
        assert (job.state, job.reason) == ("PENDING", "ReqNodeNotAvail")
        three = scheduler.submit(self.request(site, "true", nodes=3)).scheduler_id
        assert self.ended(scheduler, three).nodes == ("p5-1", "p5-3", "p5-4")
        scheduler.node_resume("p5-2")
        node = next(one for one in scheduler.nodes() if one.name == "p5-2")
        assert "DRAIN" not in node.flags
        scheduler.node_resume("p5-2")
        assert self.ended(scheduler, receipt.scheduler_id).state == "COMPLETED"

    def test_drain_of_an_unknown_node_is_not_found(self, scheduler: SlurmScheduler) -> None:
        with pytest.raises(e.NotFound):
            scheduler.node_drain("p5-99", "reason")
        with pytest.raises(e.InvalidRequest):
            scheduler.node_drain("p5-1 state=DOWN", "reason")
        with pytest.raises(e.InvalidRequest):
            scheduler.node_drain("p5-1", "  ")

    def test_waiting_jobs_say_why(self, site: Site, scheduler: SlurmScheduler) -> None:
        scheduler.submit(self.request(site, "sleep 60", nodes=4))
        first = scheduler.submit(self.request(site, "sleep 60", nodes=4)).scheduler_id
        second = scheduler.submit(self.request(site, "sleep 60", nodes=4)).scheduler_id

        def told() -> v.SchedulerJob | None:
            job = scheduler.job(first)
            both = job.reason == "Resources" and scheduler.job(second).reason == "Priority"
            return job if both and job.expected_start_at else None

        job = until("reasons and an expected start", told, 40)
        assert job.state == "PENDING"
        assert job.started_at is None
        assert job.expected_start_at > datetime.now(tz=UTC) + timedelta(minutes=5)
        assert job.gpus == 32

    def test_requeue_starts_the_job_again(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = scheduler.submit(self.request(site, "sleep 60", requeue=True)).scheduler_id
        self.running(scheduler, job_id)
        scheduler.requeue(job_id)
        until("waiting again", lambda: scheduler.job(job_id).state == "PENDING")
        # 22.05 and later make it wait two minutes before it may start again.
        until("the reason", lambda: scheduler.job(job_id).reason == "BeginTime")

    def test_job_that_may_not_be_requeued(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = scheduler.submit(self.request(site, "sleep 60")).scheduler_id
        self.running(scheduler, job_id)
        with pytest.raises(e.Conflict):
            scheduler.requeue(job_id)
        with pytest.raises(e.NotFound):
            scheduler.requeue("9999999")

    # --- after a doubt --------------------------------------------------------------------------------------

    def test_jobs_are_found_by_comment_in_queue_and_after(self, site: Site, scheduler: SlurmScheduler) -> None:
        since = datetime.now(tz=UTC)
        request = self.request(site, "sleep 1; exit 5")
        assert scheduler.jobs_by_comment(request.comment, since) == ()
        first = scheduler.submit(request).scheduler_id
        assert [job.scheduler_id for job in scheduler.jobs_by_comment(request.comment, since)] == [first]
        second = scheduler.submit(request).scheduler_id
        for job_id in (first, second):
            self.ended(scheduler, job_id)
        found = scheduler.jobs_by_comment(request.comment)
        assert [job.scheduler_id for job in found] == [first, second]
        assert {job.state for job in found} == {"FAILED"}
        assert scheduler.jobs_by_comment("somebody else's") == ()

    def test_job_is_known_after_the_queue_forgot_it(self, site: Site, scheduler: SlurmScheduler) -> None:
        if not site.forgets_quickly:
            pytest.skip("this Slurm's queue keeps finished jobs longer than a test waits")
        since = datetime.now(tz=UTC)
        request = self.request(site, "exit 5", nodes=2)
        job_id = scheduler.submit(request).scheduler_id
        self.ended(scheduler, job_id)

        def forgotten() -> bool:
            return all(job.scheduler_id != job_id for job in scheduler.queue().jobs or ())

        until("the queue to forget", forgotten, 120)
        job = scheduler.job(job_id)
        assert job.state == "FAILED"
        assert job.comment == request.comment
        assert len(job.nodes) == 2
        assert job.gpus == 16
        assert job.user_name == site.user
        assert job.started_at is not None
        assert job.ended_at is not None
        assert job.exit_code == (5 if site.accounting_tells_exit_codes else None)
        assert [one.scheduler_id for one in scheduler.jobs_by_comment(request.comment, since)] == [job_id]
        with pytest.raises(e.NotFound):
            scheduler.cancel(job_id)

    # --- tokens -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", ["nonsense", "expired", "other key", "other user"])
    def test_refused_tokens(self, site: Site, kind: str) -> None:
        token = {
            "nonsense": "nonsense",
            "expired": mint_jwt(site.jwt_key, site.user, 1),
            "other key": mint_jwt(b"x" * 32, site.user, 60),
            "other user": mint_jwt(site.jwt_key, "daemon", 60),
        }[kind]
        if kind == "expired":
            time.sleep(2.1)
        scheduler = site.scheduler(token=token)
        calls: list[Callable[[], Any]] = [
            scheduler.info,
            scheduler.nodes,
            scheduler.partitions,
            scheduler.queue,
            lambda: scheduler.job("1"),
            lambda: scheduler.cancel("1"),
            lambda: scheduler.submit(self.request(site, "true")),
        ]
        for call in calls:
            with pytest.raises(e.AccessDenied) as refusal:
                call()
            assert not refusal.value.retryable
            assert "token" in str(refusal.value)
        if kind == "expired":
            assert "expired at" in str(refusal.value)
