"""What runners on further nodes owe a job: news of every node, and nothing taken from the job or left after it."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandbox.processes import marked
from tests.contract.scheduler_site import Site, until
from tests.runner.conftest import Recorder
from worker.jobscript import batch_script
from worker.providers import values as v
from worker.providers.slurm import SlurmScheduler

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class BeaconContract:
    """Run by a subclass with a ``site`` fixture."""

    @pytest.fixture
    def scheduler(self, site: Site) -> Iterator[SlurmScheduler]:
        scheduler = site.scheduler()
        yield scheduler
        scheduler.close()

    @pytest.fixture
    def portal(self) -> Iterator[Recorder]:
        recorder = Recorder()
        yield recorder
        recorder.close()

    def submit(
        self, site: Site, scheduler: SlurmScheduler, portal: Recorder, script: str, *, is_plain: bool = False
    ) -> tuple[str, str]:
        """Two whole nodes, as the portal submits them or just the script; the job's id and its attempt's uid."""
        attempt = SimpleNamespace(uid=f"att_{uuid.uuid4().hex}", number=1, array="")
        cluster = SimpleNamespace(working_root=str(site.work_dir))
        told = {"uid": attempt.uid, "team": SimpleNamespace(slug="nlp"), "slurm_user": "", "slurm_account": ""}
        told["slurm_options"] = []
        job = SimpleNamespace(name="beacons", script=f"#!/bin/bash\n{script}\n", nodes=2, cluster=cluster, **told)
        folder = site.work_dir / attempt.uid
        request = v.SubmitRequest(
            script=job.script if is_plain else batch_script(job, attempt),  # type: ignore[arg-type]
            name="beacons",
            comment=attempt.uid,
            partition="gpu",
            nodes=2,
            gpus_per_node=8,
            gpu_type="h100",
            tasks_per_node=2,
            cpus_per_task=2,
            memory_per_node_mib=1000,
            time_limit_min=10,
            working_directory=str(site.work_dir),
            stdout_path=str(site.work_dir / f".{attempt.uid}.out"),
            environment={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "QD_ATTEMPT": attempt.uid,
                "QD_WORKING_DIRECTORY": str(folder),
                "QD_CHECKPOINT_DIR": str(folder / "checkpoints"),
                "QD_INGEST_URL": portal.url,
                "QD_INGEST_TOKEN": "token",
                "QD_HEARTBEAT_S": "0.3",
                "QD_POST_INTERVAL_S": "0.1",
                "QD_FLUSH_S": "2",
            },
        )
        return scheduler.submit(request).scheduler_id, attempt.uid

    def ended(self, scheduler: SlurmScheduler, job_id: str) -> v.SchedulerJob:
        def look() -> v.SchedulerJob | None:
            job = scheduler.job(job_id)
            return job if job.state in ENDED else None

        return until(f"the end of job {job_id}", look)

    def beats(self, portal: Recorder) -> set[tuple[str, str]]:
        """(role, node) of the runners that have sent a heartbeat."""
        with portal.lock:
            return {
                (post["runner"]["role"], post["runner"]["node"])
                for post in portal.posts
                if any(event["kind"] == "heartbeat" for event in post["events"])
            }

    def processes_of(self, attempt_uid: str) -> list[int]:
        return marked("QD_ATTEMPT", attempt_uid)

    def test_every_node_is_heard_and_the_jobs_own_steps_lack_nothing(
        self, site: Site, scheduler: SlurmScheduler, portal: Recorder
    ) -> None:
        script = (
            "sleep 1.5\n"
            "srun bash -c 'echo task $SLURM_PROCID $SLURMD_NODENAME gpus ${CUDA_VISIBLE_DEVICES:-} ${SLURM_STEP_GPUS:-}"
            " cpus $(nproc) ${SLURM_CPUS_ON_NODE:-}; sleep 2.5'\n"
            "echo step $?\nexit 7"
        )
        plain_id, plain = self.submit(site, scheduler, portal, script, is_plain=True)
        self.ended(scheduler, plain_id)
        job_id, attempt = self.submit(site, scheduler, portal, script)
        done = self.ended(scheduler, job_id)
        first, second = done.nodes
        output = (site.work_dir / attempt / "attempt-1.out").read_text()
        notes = (site.work_dir / attempt / ".quarterdeck" / attempt / "nodes.log").read_text()
        assert self.beats(portal) == {("batch", first), ("node", second)}, (output, notes)
        alone = (site.work_dir / f".{plain}.out").read_text()
        assert len(output.splitlines()) == 5
        assert sorted(output.splitlines()) == sorted(alone.splitlines())
        assert (done.state, done.exit_code) == ("FAILED", 7)
        until("an empty job", lambda: not self.processes_of(attempt), 5)

    def test_beacons_end_with_the_job_even_where_nothing_answers(
        self, site: Site, scheduler: SlurmScheduler, portal: Recorder
    ) -> None:
        portal.mode = "500"
        job_id, attempt = self.submit(site, scheduler, portal, "sleep 1")
        done = self.ended(scheduler, job_id)
        assert (done.state, done.exit_code) == ("COMPLETED", 0)
        until("an empty job", lambda: not self.processes_of(attempt), 5)

    def test_a_beacon_stays_through_the_jobs_own_signals_and_goes_with_a_cancel(
        self, site: Site, scheduler: SlurmScheduler, portal: Recorder
    ) -> None:
        job_id, attempt = self.submit(site, scheduler, portal, "trap : USR1; while :; do sleep 0.2; done")
        until("two nodes heard", lambda: len(self.beats(portal)) == 2)
        self.signal_steps(attempt)
        with portal.lock:
            before = len(portal.events)
        until("more news", lambda: len(portal.events) > before + 6)
        assert not portal.kind("exit")
        scheduler.cancel(job_id)
        assert self.ended(scheduler, job_id).state == "CANCELLED"
        until("an empty job", lambda: not self.processes_of(attempt), 10)

    def signal_steps(self, attempt: str) -> None:
        """Send USR1 to what runs on further nodes, as a job's own warning before its time limit does."""
        for pid in self.processes_of(attempt):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"--role\x00node" in words and b"srun" not in words:
                os.kill(pid, signal.SIGUSR1)
