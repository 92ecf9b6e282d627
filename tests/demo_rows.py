"""A small site in the database: people, teams, machines, jobs in many phases, checkpoints, money, findings.

The rows come from the portal's own services with the clock set back, so that ledger, audit and events
are those a real site would have. Needs an empty, migrated database.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from apps.core.said import said
from tests.demo_site import PASSWORD, DemoRows, Site

__all__ = ["PASSWORD", "DemoRows", "demo_rows"]
SCRIPT = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --gpus-per-node=h100:8
#SBATCH --ntasks-per-node=8
#SBATCH --time=12:00:00

export NCCL_DEBUG=WARN
srun python -u train.py --config configs/{name}.yaml --steps 50000
"""


class _Seed(Site):
    """The jobs: submitted, started, trained, failed and settled with the portal's own verbs."""

    def submit(
        self, name: str, ago: float, nodes: int, *, team: str = "nlp", who: str = "owner", hours: float = 12
    ) -> Any:
        from apps.jobs.services import JobSpec, job_submit

        with self.ago(ago):
            job = job_submit(
                actor=self.actor(who),
                team=self.rows.teams[team],
                cluster=self.rows.clusters["ada"],
                spec=JobSpec(
                    name=name,
                    nodes=nodes,
                    gpus_per_node=8,
                    gpu_type="h100",
                    tasks_per_node=8,
                    cpus_per_task=12,
                    time_limit_min=int(hours * 60),
                    script=SCRIPT.format(name=name, nodes=nodes),
                    environment={"WANDB_MODE": "offline"},
                ),
            )
        self.rows.jobs[name] = job
        return job

    def attempt(self, job: Any) -> Any:
        from apps.jobs.selectors import current_attempt

        found = current_attempt(job)
        assert found is not None
        found.job = job
        return found

    def queue(self, job: Any, ago: float, reason: str = "Resources", start_in: float | None = None) -> Any:
        from apps.jobs.observations import Seen, attempt_observe, attempt_submitted, attempt_submitting

        attempt = self.attempt(job)
        self.scheduler_id += self.random.randint(1, 9)
        with self.ago(ago) as at:
            attempt_submitting(attempt)
            attempt_submitted(attempt, str(self.scheduler_id))
            expected = self.now + timedelta(minutes=start_in) if start_in else None
            attempt_observe(attempt, Seen("PENDING", reason, (), None, None, expected, None, None))
        assert at is not None
        return attempt

    def start(self, job: Any, ago: float, nodes: list[str]) -> Any:
        from apps.jobs.models import Attempt
        from apps.jobs.observations import Seen, attempt_observe, attempt_running

        attempt = self.queue(job, ago + 1.5)
        with self.ago(ago) as at:
            attempt_observe(attempt, Seen("RUNNING", "None", tuple(nodes), at, None, None, None, None))
            attempt_running(attempt)
            Attempt.objects.filter(pk=attempt.pk).update(heartbeat_at=self.now - timedelta(seconds=7))
        return attempt

    def train(self, attempt: Any, began: float, until: float, first: int, last: int, total: int) -> None:
        """Progress points, log and charges from ``began + 2`` to ``until`` minutes ago."""
        from apps.jobs.charges import attempt_charge
        from apps.jobs.models import Job, ProgressPoint

        count = 160
        points = []
        for i in range(count):
            part = i / (count - 1)
            step = round(first + (last - first) * part)
            at = self.now - timedelta(minutes=(began - 2) - (began - 2 - until) * part)
            loss = 2.1 + 8.2 * math.exp(-step / 6000) + self.random.gauss(0, 0.035)
            points.append(
                ProgressPoint(
                    attempt=attempt,
                    step=step,
                    total_steps=total,
                    loss=round(loss, 4),
                    tokens_per_s=round(412_000 + self.random.gauss(0, 5200) - (60_000 if 0.55 < part < 0.6 else 0)),
                    learning_rate=3e-4,
                    at=at,
                )
            )
        ProgressPoint.objects.bulk_create(points, ignore_conflicts=True)
        end = points[-1]
        pace = (began - 2 - until) * 60 / max(1, last - first)
        Job.objects.filter(pk=attempt.job_id).update(
            step=end.step,
            total_steps=total,
            loss=end.loss,
            tokens_per_s=end.tokens_per_s,
            eta_s=(total - end.step) * pace,
            progress_at=end.at,
        )
        for minutes in range(int(began) - 3, int(until), -max(3, int(began - until) // 12)):
            with self.ago(minutes) as at:
                attempt_charge(attempt, at)
        self.log(attempt, points)

    def log(self, attempt: Any, points: list[Any]) -> None:
        from apps.jobs.log_levels import level_of
        from apps.jobs.models import LogChunk, RunnerStream

        node = (attempt.nodes or ["batch"])[0]
        runner = f"{attempt.uid}-0"
        RunnerStream.objects.create(attempt=attempt, runner_id=runner, node=node, heartbeat_at=self.now)
        for index, other in enumerate((attempt.nodes or [])[1:], start=1):
            RunnerStream.objects.create(
                attempt=attempt, runner_id=f"{attempt.uid}-{index}", role="node", node=other, heartbeat_at=self.now
            )
        lines = [
            f"\x1b[32m[rank0]\x1b[0m world size {attempt.job.gpus}, {attempt.job.nodes} nodes, NCCL 2.21.5",
            f"[rank0] resuming from {attempt.resume_from}" if attempt.resume_from else "[rank0] starting from scratch",
            "loading shards:  12%|█▏        | 5/40\rloading shards: 100%|██████████| 40/40",
        ]
        lines += [
            f"step {p.step:>6} | loss {p.loss:.4f} | lr 3.00e-04 | tokens/s {p.tokens_per_s:,.0f}" for p in points
        ]
        lines.insert(60, "<script>alert('not markup')</script> & <b>not bold</b>")
        offset = 0
        for i in range(0, len(lines), 8):
            text = "\n".join(lines[i : i + 8]) + "\n"
            at = points[min(i, len(points) - 1)].at
            LogChunk.objects.create(
                attempt=attempt,
                runner_id=runner,
                stream="stdout",
                offset=offset,
                size=len(text),
                text=text,
                at=at,
                level=level_of(text),
            )
            offset += len(text)

    def save(
        self, attempt: Any, step: int, ago: float, *, shards: int = 16, whole: bool = True, alive: bool = True
    ) -> None:
        from apps.checkpoints.services import checkpoint_report

        files = [{"name": f"__{i}_0.distcp", "size": 5_812_000_000 + i} for i in range(shards)]
        if whole:
            files.append({"name": ".metadata", "size": 412_000})
        with self.ago(ago) as at:
            checkpoint_report(
                attempt.job.series,
                attempt_uid=attempt.uid,
                path=f"/fsx/jobs/{attempt.job.uid}/checkpoints/step-{step:06d}",
                step=step,
                files=files,
                facts={},
                changed_at=at,
                writer_is_alive=alive,
            )

    def end(
        self, job: Any, attempt: Any, ago: float, state: str, code: int, phase: str, reason: str, job_phase: str
    ) -> None:
        from apps.jobs.models import Attempt, Job
        from apps.jobs.observations import Seen, attempt_end, attempt_observe, job_end

        with self.ago(ago) as at:
            fresh = Attempt.objects.get(pk=attempt.pk)
            fresh.job = job = Job.objects.select_related("team", "cluster", "series").get(pk=job.pk)
            attempt_observe(fresh, Seen(state, "", tuple(fresh.nodes), fresh.started_at, at, None, code, None))
            attempt_end(fresh, phase, reason)
            if job_phase:
                job_end(job, job_phase, reason=reason, exit_code=code)

    def jobs(self) -> None:
        self.finished_jobs()
        self.recovered_job()
        job = self.submit("moe-8x7b-ablation", 95, 2, hours=6)
        attempt = self.start(job, 92, ["p5-main-5", "p5-main-6"])
        self.train(attempt, 92, 0.1, 0, 11_200, 40_000)
        self.save(attempt, 5000, 48)
        self.save(attempt, 10_000, 9)
        self.queue(self.submit("long-context-64k", 26, 4, hours=4), 25, "Resources", start_in=95)
        self.queue(self.submit("speech-encoder-large", 14, 2, team="speech", who="lead", hours=3), 13, "Priority")
        self.submit("tokenizer-sweep", 0.4, 1, hours=1)
        self.budget_job()
        self.recovering_job()
        self.busy()

    def finished_jobs(self) -> None:
        job = self.submit("baseline-1b", 60 * 26, 2, hours=5)
        attempt = self.start(job, 60 * 26 - 4, ["p5-main-1", "p5-main-2"])
        self.train(attempt, 60 * 26 - 4, 60 * 22, 0, 20_000, 20_000)
        for step in (5000, 10_000, 15_000, 20_000):
            self.save(attempt, step, 60 * 26 - step / 84)
        self.end(job, attempt, 60 * 22 - 1, "COMPLETED", 0, "SUCCEEDED", "", "SUCCEEDED")
        job = self.submit("sft-instruct-v3", 60 * 9, 1, hours=4)
        attempt = self.start(job, 60 * 9 - 3, ["p5-main-3"])
        self.train(attempt, 60 * 9 - 3, 60 * 8, 0, 1900, 6000)
        self.save(attempt, 1500, 60 * 8 + 12)
        self.save(attempt, 1800, 60 * 8 + 1, shards=5, whole=False)
        self.end(job, attempt, 60 * 8, "FAILED", 1, "FAILED", "ExitCode", "FAILED")
        job = self.submit("eval-harness", 60 * 20, 1, hours=1)
        attempt = self.start(job, 60 * 20 - 2, ["p5-main-4"])
        self.end(job, attempt, 60 * 19 - 2, "TIMEOUT", 0, "TIMED_OUT", "TimeLimit", "TIMED_OUT")
        job = self.submit("reward-model", 60 * 5, 1, team="speech", who="lead", hours=2)
        attempt = self.start(job, 60 * 5 - 2, ["p5-main-7"])
        self.train(attempt, 60 * 5 - 2, 60 * 4.5, 0, 800, 4000)
        with self.ago(60 * 4.4):
            from apps.jobs.observations import job_cancelling
            from apps.jobs.services import job_stop

            job.refresh_from_db()
            job_stop(actor=self.actor("lead"), job=job, kind="cancel")
            job.refresh_from_db()
            job_cancelling(job)
        self.end(job, attempt, 60 * 4.3, "CANCELLED", 0, "CANCELLED", "Cancelled", "CANCELLED")

    def recovered_job(self) -> None:
        """Two attempts: a GPU fell off the bus under the first, the second resumed without that node."""
        from apps.health.rules import Fault
        from apps.health.services import faults_report, finding_responded
        from apps.jobs.models import Attempt, Job
        from apps.jobs.observations import attempt_end, attempts_evict
        from apps.jobs.recoveries import job_recover

        job = self.submit("llama-70b-pretrain", 400, 4, hours=12)
        attempt = self.start(job, 396, [f"p5-main-{i}" for i in (1, 2, 3, 8)])
        self.train(attempt, 396, 150, 0, 12_400, 50_000)
        for step, ago in ((3000, 334), (6000, 274), (9000, 214), (12_000, 157)):
            self.save(attempt, step, ago)
        self.save(attempt, 12_300, 150.5, shards=9, whole=False)
        node = self.rows.nodes["p5-main-8"]
        with self.ago(150):
            fault = Fault(
                source="xid",
                code="79",
                gpu_index=3,
                gpu_uuid=f"GPU-{node.pk:04d}-3",
                text="DCGM_FI_DEV_XID_ERRORS is 79",
                evidence={"metric": "DCGM_FI_DEV_XID_ERRORS", "value": 79, "exporter": "http://p5-main-8:9400/metrics"},
            )
            (finding,) = faults_report(node, [fault])
            finding.node = node
            attempts_evict(node, finding)
            finding_responded(
                finding, said("drained %(node)s, restarting %(jobs)s", node="p5-main-8", jobs="llama-70b-pretrain")
            )
            type(node).objects.filter(pk=node.pk).update(
                phase="DRAINED",
                phase_since=self.now - timedelta(minutes=149),
                drain_requested_at=self.now - timedelta(minutes=150),
                drain_reason="XID 79: GPU has fallen off the bus",
                observed_state="IDLE+DRAIN",
            )
        self.rows.findings["xid79"] = finding
        with self.ago(149):
            fresh = Attempt.objects.get(pk=attempt.pk)
            fresh.job = job = Job.objects.select_related("team", "cluster", "series").get(pk=job.pk)
            fresh.ended_at = self.now - timedelta(minutes=149)
            attempt_end(fresh, "NODE_FAILED", "NodeFailure")
            job_recover(job, fresh)
        job = Job.objects.select_related("team", "cluster", "series").get(pk=job.pk)
        attempt = self.start(job, 146, [f"p5-main-{i}" for i in (1, 2, 3, 4)])
        self.train(attempt, 146, 0.1, 12_000, 19_300, 50_000)
        self.save(attempt, 15_000, 84)
        self.save(attempt, 18_000, 24)
        self.save(attempt, 19_200, 0.4, shards=6, whole=False)
        self.rows.jobs["llama-70b-pretrain"] = Job.objects.get(pk=job.pk)
        watch = self.rows.nodes["p5-main-6"]
        with self.ago(33):
            fault = Fault(
                source="xid",
                code="63",
                gpu_index=1,
                gpu_uuid=f"GPU-{watch.pk:04d}-1",
                text="DCGM_FI_DEV_XID_ERRORS is 63",
                evidence={"metric": "DCGM_FI_DEV_XID_ERRORS", "value": 63},
            )
            (self.rows.findings["xid63"],) = faults_report(watch, [fault])

    def budget_job(self) -> None:
        """A job whose next attempt the budget does not cover."""
        from apps.jobs.models import Job

        job = self.submit("diffusion-xl", 60 * 3, 1, hours=2)
        Job.objects.filter(pk=job.pk).update(
            phase="WAITING_BUDGET",
            phase_since=self.now - timedelta(minutes=18),
            message=said(
                "team %(team)s has %(left)s left of this month's budget and this needs %(usd)s held;"
                " shorten the time limit, use fewer GPUs, or ask an administrator for more",
                team="nlp",
                left="$12.40",
                usd="$629.15",
            ),
        )

    def recovering_job(self) -> None:
        """A job between two attempts: the first lost its node a minute ago."""
        from apps.jobs.models import Attempt, Job
        from apps.jobs.observations import attempt_end
        from apps.jobs.recoveries import job_recover

        job = self.submit("video-vae", 210, 1, hours=6)
        attempt = self.start(job, 207, ["p5-main-7"])
        self.train(attempt, 207, 2, 0, 8200, 30_000)
        self.save(attempt, 8000, 6)
        with self.ago(1):
            fresh = Attempt.objects.get(pk=attempt.pk)
            fresh.job = job = Job.objects.select_related("team", "cluster", "series").get(pk=job.pk)
            fresh.ended_at, fresh.stop_node = self.now - timedelta(minutes=1), "p5-main-7"
            attempt_end(fresh, "NODE_FAILED", "NodeFailure")
            job_recover(job, fresh)

    def busy(self) -> None:
        """GPUs in use as the scheduler would show them."""
        from apps.clusters.models import Node

        for name in ("p5-main-1", "p5-main-2", "p5-main-3", "p5-main-4", "p5-main-5", "p5-main-6"):
            Node.objects.filter(name=name).update(gpus_used=8, observed_state="ALLOCATED")


def demo_rows() -> DemoRows:
    """Fill the database and return what was made."""
    seed = _Seed()
    seed.people()
    seed.capacity()
    seed.jobs()
    from apps.jobs.models import Job

    for name, job in seed.rows.jobs.items():
        seed.rows.jobs[name] = Job.objects.get(pk=job.pk)
    return seed.rows
