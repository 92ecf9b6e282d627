"""A small site in the database: people, teams, machines, jobs in many phases, checkpoints, money, findings.

The rows come from the portal's own services with the clock set back, so that ledger, audit and events
are those a real site would have. Needs an empty, migrated database.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import time_machine
from django.db import transaction

PASSWORD = "correct horse battery"
SCRIPT = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --gpus-per-node=h100:8
#SBATCH --ntasks-per-node=8
#SBATCH --time=12:00:00

export NCCL_DEBUG=WARN
srun python -u train.py --config configs/{name}.yaml --steps 50000
"""


@dataclass
class DemoRows:
    """What was made, by name."""

    users: dict[str, Any] = field(default_factory=dict)
    teams: dict[str, Any] = field(default_factory=dict)
    clusters: dict[str, Any] = field(default_factory=dict)
    fleets: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, Any] = field(default_factory=dict)
    findings: dict[str, Any] = field(default_factory=dict)


class _Seed:
    """Builds the rows; times are minutes before now."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self.rows = DemoRows()
        self.random = random.Random(7)
        self.scheduler_id = 4100

    @contextmanager
    def ago(self, minutes: float) -> Iterator[datetime]:
        """Work with the clock set back."""
        instant = self.now - timedelta(minutes=minutes)
        with time_machine.travel(instant, tick=False), transaction.atomic():
            yield instant

    # --- people and money -------------------------------------------------------------------------

    def people(self) -> None:
        from apps.costs.services import budget_set
        from apps.quotas.services import quota_set
        from apps.teams.models import Membership, ServiceAccount, Team, User
        from apps.teams.permissions import actor_for_user
        from apps.teams.services import token_create

        with self.ago(60 * 30):
            for slug, name in (("nlp", "Language models"), ("speech", "Speech"), ("vision", "Vision")):
                self.rows.teams[slug] = Team.objects.create(slug=slug, name=name)
            people: tuple[tuple[str, str, dict[str, str]], ...] = (
                ("owner", "", {"nlp": "researcher"}),
                ("lead", "", {"nlp": "lead", "speech": "lead"}),
                ("member", "", {"nlp": "viewer"}),
                ("outsider", "", {"vision": "researcher"}),
                ("operator", "operator", {}),
                ("admin", "admin", {}),
            )
            for name, platform, roles in people:
                user = User(username=name, platform_role=platform, is_staff=platform == "admin")
                user.is_superuser = platform == "admin"
                user.set_password(PASSWORD)
                user.save()
                for slug, role in roles.items():
                    Membership.objects.create(user=user, team=self.rows.teams[slug], role=role)
                self.rows.users[name] = user
            admin = self.actor("admin")
            for slug, gpus, usd in (("nlp", 136, 60_000), ("speech", 32, 15_000), ("vision", 64, 20_000)):
                quota_set(actor=admin, team=self.rows.teams[slug], gpus=gpus)
                budget_set(actor=admin, team=self.rows.teams[slug], usd_per_month=Decimal(usd))
            ServiceAccount.objects.create(team=self.rows.teams["nlp"], name="nightly-eval")
            owner = actor_for_user(self.rows.users["owner"])
            token_create(actor=owner, label="notebook on my laptop", scopes=["jobs.view", "jobs.submit"], days=60)
            token_create(actor=owner, label="dashboard export", scopes=["costs.view", "jobs.view"], days=7)

    def actor(self, name: str) -> Any:
        from apps.teams.permissions import actor_for_user

        return actor_for_user(self.rows.users[name])

    # --- machines ---------------------------------------------------------------------------------

    def capacity(self) -> None:
        from apps.clusters.models import Cluster
        from apps.clusters.states import ClusterPhase
        from apps.connections.models import CloudAccount

        with self.ago(60 * 29):
            account = CloudAccount.objects.create(
                name="research",
                region="us-east-1",
                credentials_ref="file:aws-research",
                phase="CONNECTED",
                observed_account_id="123456789012",
                observed_arn="arn:aws:sts::123456789012:assumed-role/quarterdeck/portal",
                observed_at=self.now,
            )
            for name, phase, message, read in (
                ("ada", ClusterPhase.READY, "", 0.05),
                ("hopper", ClusterPhase.UNREACHABLE, "slurmrestd does not answer: connection refused", 22),
            ):
                read_at = self.now - timedelta(minutes=read)
                self.rows.clusters[name] = Cluster.objects.create(
                    name=name,
                    account=account,
                    api_url=f"http://{name}.slurm.internal:6820",
                    user_name="portal",
                    token_ref=f"file:slurm-{name}",
                    partition="train",
                    exporter_url="http://{node}:9400/metrics",
                    working_root="/fsx/jobs",
                    phase=phase,
                    phase_since=self.now - timedelta(minutes=read if message else 60 * 28),
                    message=message,
                    observed_version="22.05.8" if name == "ada" else "24.11.1",
                    observed_api_version="v0.0.38" if name == "ada" else "v0.0.42",
                    observed_max_time_min=7 * 1440,
                    observed_partitions=[{"name": "train"}, {"name": "debug"}],
                    queue_as_of=read_at,
                    queue_read_at=read_at,
                    nodes_read_at=read_at,
                    exporters_read_at=read_at,
                    observed_at=read_at,
                )
        self.fleet("ada", "p5-main", 8, "READY", 60 * 28)
        self.fleet("ada", "p5-burst", 4, "BOOTING", 3, message="3 of 4 machines passed their status checks")
        self.fleet(
            "ada", "b200-try", 2, "WAITING_CAPACITY", 12, kind="p6-b200.48xlarge", message="no capacity in use1-az4"
        )
        self.fleet("hopper", "p4d", 4, "READY", 60 * 27, kind="p4d.24xlarge")

    def fleet(
        self,
        cluster: str,
        name: str,
        count: int,
        phase: str,
        since: float,
        kind: str = "p5.48xlarge",
        message: str = "",
    ) -> None:
        from apps.catalog.selectors import type_by_name
        from apps.clusters.models import Fleet, FleetStep, Node
        from apps.clusters.states import FLEET_STEPS, FleetPhase, StepState

        row = self.rows.clusters[cluster]
        facts = type_by_name(kind)
        assert facts is not None
        with self.ago(since + 6) as made:
            fleet = Fleet.objects.create(
                cluster=row,
                team=self.rows.teams["nlp"] if cluster == "ada" else self.rows.teams["vision"],
                name=name,
                instance_type=kind,
                nodes=count,
                subnet_id="subnet-0a1b2c3d",
                security_group_ids=["sg-0a1b2c3d"],
                image_id="ami-0a1b2c3d",
                partition="train",
                usd_per_hour=facts.usd_per_hour,
                price_source=f"{kind} on demand, us-east-1",
                phase=phase,
                phase_since=self.now - timedelta(minutes=since),
                message=message,
                launched_at=made,
                observed_nodes=count if phase in ("READY", "BOOTING") else 0,
                launch_attempt=1,
                capacity_refusals=3 if phase == "WAITING_CAPACITY" else 0,
                next_try_at=self.now + timedelta(minutes=4) if phase == "WAITING_CAPACITY" else None,
            )
        names = [step for step, _expected in FLEET_STEPS]
        at = names.index("LAUNCHING" if phase == "WAITING_CAPACITY" else phase)
        for ordinal, (step, expected) in enumerate(FLEET_STEPS):
            done, running = ordinal < at or phase == "READY", ordinal == at and phase != "READY"
            began = made + timedelta(seconds=20 * ordinal)
            FleetStep.objects.create(
                fleet=fleet,
                ordinal=ordinal,
                name=FleetPhase(step),
                state=StepState.DONE if done else StepState.RUNNING if running else StepState.WAITING,
                started_at=began if done or running else None,
                ended_at=began + timedelta(seconds=18) if done else None,
                expected_s=expected,
                message=message if running else "",
            )
        self.rows.fleets[name] = fleet
        for index in range(count if phase in ("READY", "BOOTING") else 0):
            node = Node.objects.create(
                cluster=row,
                fleet=fleet,
                name=f"{name}-{index + 1}",
                provider_id=f"i-0{self.random.getrandbits(64):016x}",
                instance_type=kind,
                phase="READY" if phase == "READY" else "BOOTING",
                phase_since=self.now - timedelta(minutes=since - 0.5),
                gpu_type=facts.gpu_type,
                gpus=facts.gpus if phase == "READY" else 0,
                cpus=facts.vcpus,
                memory_mib=facts.memory_gib * 1024,
                private_ip=f"10.0.{len(self.rows.fleets)}.{index + 10}",
                zone_id="use1-az4",
                partitions=["train"],
                observed_state="IDLE",
                observed_at=self.now,
                exporter_read_at=self.now - timedelta(seconds=4),
            )
            self.rows.nodes[node.name] = node
            if phase == "READY":
                self.gpus(node, facts.gpu_memory_label.split()[0] if facts.gpu_memory_label else "GPU")

    def gpus(self, node: Any, model: str) -> None:
        from apps.health.services import gpus_observe

        gpus_observe(
            node,
            [
                {
                    "index": slot,
                    "uuid": f"GPU-{node.pk:04d}-{slot}",
                    "model": f"NVIDIA {node.gpu_type.upper()}",
                    "pci_bus_id": f"00000000:{0x10 + slot * 16:02X}:00.0",
                    "temperature_c": 34 + self.random.random() * 30,
                    "power_w": 90 + self.random.random() * 560,
                    "sm_active": self.random.random(),
                    "tensor_active": self.random.random() * 0.6,
                    "memory_used_mib": 60_000 * self.random.random(),
                }
                for slot in range(node.gpus)
            ],
        )

    # --- jobs -------------------------------------------------------------------------------------

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
        from apps.jobs.models import Job, ProgressPoint
        from apps.jobs.observations import attempt_charge

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
        from apps.jobs.models import LogChunk, RunnerStream

        node = (attempt.nodes or ["batch"])[0]
        runner = f"{attempt.uid}-0"
        RunnerStream.objects.create(attempt=attempt, runner_id=runner, node=node, heartbeat_at=self.now)
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
                attempt=attempt, runner_id=runner, stream="stdout", offset=offset, size=len(text), text=text, at=at
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
        from apps.jobs.observations import attempt_end, attempts_evict, job_recover

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
            finding_responded(finding, "p5-main-8 drained, 1 job starts again elsewhere")
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
            message="team nlp has $12.40 left of this month's budget and this needs $629.15 held",
        )

    def recovering_job(self) -> None:
        """A job between two attempts: the first lost its node a minute ago."""
        from apps.jobs.models import Attempt, Job
        from apps.jobs.observations import attempt_end, job_recover

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
