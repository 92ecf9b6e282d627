"""Doors that open to fakes, and a worker that makes visits until nothing is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.fakes import FakeExporter, FakeScheduler


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
    """The scheduler behind every cluster."""
    from worker import doors

    fake = FakeScheduler()
    monkeypatch.setattr(doors, "scheduler_for", lambda cluster, as_user="": fake.acting(as_user))
    return fake


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> FakeExporter:
    """The exporter on every node."""
    from worker import doors

    fake = FakeExporter()
    monkeypatch.setattr(doors, "exporter", lambda: fake)
    return fake


@pytest.fixture
def block(cluster: Any, team: Any) -> Any:
    """A block of two p5 machines for one day, in which the cluster's nodes run."""
    from tests.blocks import make_block

    return make_block(cluster, team)


@pytest.fixture
def work() -> Callable[..., int]:
    """Make due visits (of these kinds) until none is due; the number made."""

    def run(*kinds: str, most: int = 50) -> int:
        from worker import engine
        from worker.reconcilers import RECONCILERS

        chosen = {k: r for k, r in RECONCILERS.items() if not kinds or k in kinds}
        return engine.drain(chosen, most=most)

    return run


@pytest.fixture
def tick(work: Any) -> Callable[[Any], None]:
    """One collector round over a cluster's queue, then the visits it asked for."""

    def run(cluster: Any) -> None:
        from apps.clusters.models import Cluster
        from worker.collectors import slurm

        slurm.queue(Cluster.objects.get(pk=cluster.pk).uid)
        work("job.reconcile")

    return run
