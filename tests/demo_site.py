"""People, teams, money and machines of the demo site: what its jobs stand on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import time_machine
from django.db import transaction

from apps.core.said import said

PASSWORD = "correct horse battery"


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


class Site:
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
        self.fleet("ada", "p5-burst", 4, "BOOTING", 3, message=said("%(n)s of %(all)s machines run", n=3, all=4))
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
