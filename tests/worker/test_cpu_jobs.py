"""Jobs without GPUs pay the larger of their CPU and memory share of the nodes, held, charged and from outside alike."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine

from apps.clusters.models import Cluster, Node
from apps.core import clock
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.states import Unit
from apps.jobs.models import Job
from apps.jobs.part_selectors import parts_shown
from apps.jobs.pricing import asked_of_a_node
from apps.jobs.queue_models import QueueEntry
from apps.jobs.selectors import job_sums
from apps.jobs.services import job_preview, job_submit
from tests.conftest import actor_of
from tests.worker.fakes import FakeScheduler
from tests.worker.test_arrays import last, look
from tests.worker.test_outside_jobs import place, row, run, spent
from worker.collectors import outside

pytestmark = pytest.mark.django_db
__all__ = ["place"]


@pytest.fixture
def bare(spec: Any) -> Any:
    """48 of a node's 192 CPUs on two nodes, no GPU, for an hour."""
    return replace(spec, gpus_per_node=0, gpu_type="", tasks_per_node=12, cpus_per_task=4)


def usd_of_a_node(team: Any, owner: Any, cluster: Any, spec: Any) -> Decimal:
    whole = replace(spec, gpus_per_node=8, gpu_type="h100")
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=whole)
    return preview.usd / 2


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({}, Decimal("0.25")),
        ({"memory_per_node_mib": 1_000_000}, Decimal("0.5")),
        ({"slurm_options": ("--ntasks=96",)}, Decimal(1)),
        ({"slurm_options": ("--mem-per-cpu=20000",)}, Decimal("0.48")),
        ({"slurm_options": ("--mincpus=144",)}, Decimal("0.75")),
        ({"slurm_options": ("--tres-per-task=cpu:12",)}, Decimal("0.75")),
        ({"slurm_options": ("--tres-per-task=license/matlab=1,CPU=8",)}, Decimal("0.5")),
        ({"tasks_per_node": 500}, Decimal(1)),
        ({"array": "0-9%2"}, Decimal("2.5")),
    ],
)
def test_the_larger_share_is_held(
    team: Any, owner: Any, cluster: Any, bare: Any, changes: dict[str, Any], share: Decimal
) -> None:
    each = usd_of_a_node(team, owner, cluster, bare)
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=replace(bare, **changes))
    assert preview.problems == ()
    assert (preview.gpus, preview.gpu_hours) == (0, 0)
    assert preview.usd == pytest.approx(2 * each * share, rel=Decimal("0.0001"))
    assert preview.usd_per_node_hour > 0


def test_whole_nodes_without_gpus_pay_all_of_them(team: Any, owner: Any, cluster: Any, bare: Any) -> None:
    each = usd_of_a_node(team, owner, cluster, bare)
    given = replace(bare, slurm_options=("--exclusive",))
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert preview.usd == pytest.approx(2 * each, rel=Decimal("0.0001"))
    # A machine without GPUs has its own price; on one that nobody knows a price of nothing is held.
    Node.objects.update(gpus=0, gpu_type="")
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert preview.usd == pytest.approx(2 * each, rel=Decimal("0.0001"))
    Node.objects.update(instance_type="")
    assert job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given).usd == 0


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize("option", ["--exclusive=TOPO", "--exclusive=Topo"])
def test_whole_nodes_are_held_whole_in_whatever_case_they_are_asked_for(
    team: Any, owner: Any, cluster: Any, bare: Any, option: str, gpus: int
) -> None:
    each = usd_of_a_node(team, owner, cluster, bare)
    given = replace(bare, gpus_per_node=gpus, slurm_options=(option,))
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert preview.problems == ()
    assert preview.usd == pytest.approx(2 * each, rel=Decimal("0.0001"))
    assert preview.gpus == 16
    # The job itself says it in the one way that Slurm's words are compared in.
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert job.slurm_options == ["--exclusive=topo"]


def test_whole_nodes_without_gpus_stay_without_where_machines_have_none(
    team: Any, owner: Any, cluster: Any, bare: Any
) -> None:
    each = usd_of_a_node(team, owner, cluster, bare)
    given = replace(bare, slurm_options=("--exclusive",))
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert preview.gpus == 16
    assert "--exclusive takes whole nodes: all 8 GPUs of each are held" in preview.warnings
    Node.objects.exclude(name="p5-1").update(gpus=0, gpu_type="")
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert (preview.problems, preview.gpus) == ((), 0)
    # It may still land on the one with GPUs: all of the dearest is held.
    assert preview.usd == pytest.approx(2 * each, rel=Decimal("0.0001"))
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert (job.gpus_per_node, job.gpus) == (0, 0)


def test_it_is_charged_as_it_runs_and_the_rest_comes_back(
    team: Any, owner: Any, cluster: Any, bare: Any, work: Any, tick: Any, scheduler: FakeScheduler
) -> None:
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=bare)
    held = job_sums(job).held
    assert held > 0
    with time_machine.travel(clock.now(), tick=False) as clockwork:
        work("job.reconcile")
        scheduler.run(last(job).scheduler_id, ["p5-1", "p5-2"])
        look(job, tick)
        clockwork.shift(timedelta(minutes=15))
        scheduler.end(last(job).scheduler_id, "COMPLETED", 0)
        look(job, tick)
        look(job, tick)
    assert Job.objects.get(pk=job.pk).phase == "SUCCEEDED"
    assert job_sums(job).charged == pytest.approx(held / 4, rel=Decimal("0.01"))
    assert standing_of(team, Unit.USD).held == 0
    assert standing_of(team, Unit.GPU_HOURS).spent == 0
    assert ledger_check().is_balanced


def test_one_from_outside_pays_the_same(place: Cluster, team: Any, owner: Any, bare: Any) -> None:
    each = usd_of_a_node(team, owner, place, bare)
    entry = row(place, 7, gpus=0, cpus=96, memory_mib=0)
    outside.follow(place.uid)
    run(place, entry, hours=2)
    outside.follow(place.uid)
    assert spent(team) == pytest.approx(2 * 2 * each * Decimal("0.25"), rel=Decimal("0.01"))
    row(place, 8, gpus=0, cpus=2, memory_mib=4_000_000)
    outside.follow(place.uid)
    whole = Job.objects.get(name="ssh-8")
    assert whole.usd_per_node_hour == pytest.approx(each, rel=Decimal("0.0001"))


@pytest.mark.parametrize("is_seen_waiting", [False, True])
def test_one_from_outside_pays_what_it_holds_and_not_what_it_waited_for(
    place: Cluster, team: Any, owner: Any, bare: Any, is_seen_waiting: bool
) -> None:
    """Slurm tells one CPU of a waiting job with --exclusive and all of the node's once it runs."""
    each = usd_of_a_node(team, owner, place, bare)
    entry = row(place, 7, gpus=0, node_count=1, cpus=1, memory_mib=0)
    if is_seen_waiting:
        outside.follow(place.uid)
        assert Job.objects.get(name="ssh-7").usd_per_node_hour < each / 100
    run(place, entry, hours=2, cpus=192, nodes=["p5-1"])
    outside.follow(place.uid)
    assert spent(team) == pytest.approx(2 * each, rel=Decimal("0.001"))
    job = Job.objects.get(name="ssh-7")
    assert job.usd_per_node_hour == pytest.approx(each, rel=Decimal("0.0001"))
    # What is told of it later counts from then on.
    QueueEntry.objects.filter(pk=entry.pk).update(cpus=96, ended_at=clock.now() + timedelta(hours=1), state="COMPLETED")
    outside.follow(place.uid)
    assert spent(team) == pytest.approx(each * Decimal("2.5"), rel=Decimal("0.001"))


@pytest.mark.parametrize("cpus", [(1, 192), (192, 1), (0, 192)])
def test_each_part_from_outside_pays_its_own_share(
    place: Cluster, team: Any, owner: Any, bare: Any, cpus: tuple[int, int]
) -> None:
    each = usd_of_a_node(team, owner, place, bare)
    for offset, count in enumerate(cpus):
        kept = {"het_id": "100", "het_offset": offset, "node_count": 1}
        # A part with GPUs beside one without pays by its GPUs.
        entry = row(place, 100 + offset, gpus=0 if count else 8, cpus=count or 192, memory_mib=0, **kept)
        run(place, entry, hours=2, nodes=[f"p5-{offset + 1}"])
    outside.follow(place.uid)
    shares = [Decimal(count or 192) / 192 for count in cpus]
    assert spent(team) == pytest.approx(2 * each * sum(shares), rel=Decimal("0.001"))
    shown = parts_shown(Job.objects.get(name="ssh-100"))
    assert [part.usd for part in shown] == [pytest.approx(2 * each * share, rel=Decimal("0.001")) for share in shares]
    assert ledger_check().is_balanced


def test_one_from_outside_on_nodes_of_no_known_price_costs_nothing(place: Cluster, team: Any) -> None:
    Node.objects.update(gpus=0, gpu_type="", instance_type="")
    entry = row(place, 7, gpus=0, cpus=96, memory_mib=0)
    run(place, entry, hours=2)
    outside.follow(place.uid)
    assert spent(team) == 0
    entry.refresh_from_db()
    assert entry.charged_until_at is not None


def test_options_count_for_what_is_asked_of_a_node() -> None:
    told = {"nodes": 2, "tasks_per_node": 1, "cpus_per_task": 2, "memory_per_node_mib": 0}
    assert asked_of_a_node(**told, options=["--ntasks=9"]) == (10, 0, False)
    assert asked_of_a_node(**told, options=["--exclusive=user"]) == (2, 0, False)
    assert asked_of_a_node(**told, options=["--core-spec=2"]) == (2, 0, True)
    assert asked_of_a_node(**told, options=["--mem-per-cpu=2G"]) == (2, 4096, False)
    assert asked_of_a_node(**told, options=["--tres-per-task=cpu:7"]) == (7, 0, False)
    assert asked_of_a_node(**told, options=["--tres-per-task=license/a:7"]) == (2, 0, False)
