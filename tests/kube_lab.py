"""A pretend Kubernetes that really runs jobs, connected in the portal's tables, and a worker to follow them there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.kube_services import team_share_put
from apps.clusters.models import Cluster
from apps.core import clock
from apps.intents.models import Intent
from apps.intents.services import intent_ask
from apps.jobs.models import Job
from apps.teams.permissions import system_actor
from sandbox.kubernetes import Cluster as Pretend
from sandbox.world import World
from worker import doors, kube_doors, workloads

TYPE = "p5.48xlarge"
ATTEMPT = "quarterdeck.dev/attempt"
Work = Callable[..., int]


@dataclass
class KubeLab:
    """``pretend`` is what stands for the cluster, ``cluster`` the portal's row of it."""

    pretend: Pretend
    cluster: Cluster
    work: Work

    @property
    def store(self) -> Any:
        """What the API server holds."""
        return self.pretend.api.store

    def objects(self, resource: str) -> list[dict[str, Any]]:
        """Objects of one resource that belong to an attempt and are not being deleted."""
        return [
            thing
            for thing in self.store.scan(resource)
            if ATTEMPT in (thing["metadata"].get("labels") or {}) and not thing["metadata"].get("deletionTimestamp")
        ]

    def visit(self, *kinds: str, most: int = 60) -> None:
        """One round of the worker: what is due soon is due now."""
        Intent.objects.exclude(kind="cluster.connect").update(due_at=clock.now())
        self.work(*kinds, most=most)

    def until(self, what: str, look: Callable[[], Any], timeout_s: float = 40.0) -> Any:
        """Visits until ``look`` finds something. Raises AssertionError with where the job is."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            self.visit()
            time.sleep(0.1)
        jobs = [
            (j.phase, [(a.phase, a.observed_state, a.message) for a in j.attempts.all()]) for j in Job.objects.all()
        ]
        raise AssertionError(f"not within {timeout_s:g} s: {what}; {jobs}; {self.pretend.trouble()}")

    def job_in(self, job: Job, *phases: str) -> Callable[[], bool]:
        """Whether the job is in one of these phases."""
        return lambda: Job.objects.get(pk=job.pk).phase in phases


@contextmanager
def kube_lab(
    folder: Path, work: Work, monkeypatch: pytest.MonkeyPatch, *, nodes: int = 3, team: Any = None, **settings: Any
) -> Iterator[KubeLab]:
    """Serve one with so many p5, connect it, and give ``team`` all of it."""
    world = World()
    pretend = Pretend(world, folder / "kube", name="pods", claims=("fsx",), eviction_s=1.0, restart_s=0.1)
    pretend.start()
    for number in range(1, nodes + 1):
        world.node_join(
            name=f"n{number}",
            instance_id=f"i-{number:017x}",
            instance_type=TYPE,
            cluster="pods",
            partition="p5",
            gpu_type="h100",
            gpu_count=8,
            efa=32,
            cpus=192,
            memory_mib=2_000_000,
        )
    monkeypatch.setattr(doors, "secret", lambda reference, account=None: yaml.safe_dump(pretend.api.kubeconfig()))
    # No portal listens here: the runner is not to try for half a minute after each end.
    told = workloads.environment
    monkeypatch.setattr(workloads, "environment", lambda *given: {**told(*given), "QD_FLUSH_S": "0.1"})
    cluster = Cluster.objects.create(name="pods", kind="kubernetes", limits_mode="enforce")
    values: dict[str, Any] = {"auth": "kubeconfig", "kubeconfig_ref": "file:kubeconfig", "default_image": "train:1"}
    values |= {"mounts": [{"claim": "fsx", "path": "/fsx"}], **settings}
    KubernetesSettings.objects.create(cluster=cluster, **values)
    if team is not None:
        team_share_put(actor=system_actor(), cluster=cluster, team=team, instance_type=TYPE, gpus=8 * nodes)
    lab = KubeLab(pretend, cluster, work)
    try:
        intent_ask("cluster.connect", cluster.uid)
        intent_ask("cluster.queues", cluster.uid)
        work()
        lab.until("nodes and queues are known", lambda: _is_ready(cluster, nodes))
        cluster.refresh_from_db()
        yield lab
    finally:
        kube_doors.close_all()
        pretend.stop()


def _is_ready(cluster: Cluster, nodes: int) -> bool:
    row = KubernetesSettings.objects.get(cluster=cluster)
    has_queues = row.scheduler != "kueue" or (bool(row.observed_queues) and not row.drift)
    return cluster.nodes.filter(phase="READY", gpus=8).count() == nodes and has_queues
