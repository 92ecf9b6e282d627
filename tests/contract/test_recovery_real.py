"""A real Slurm that breaks under running jobs: nothing is lost or doubled, and two looks later all is right."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from apps.clusters.models import Cluster
from apps.core import clock
from apps.costs.selectors import ledger_check
from apps.intents.models import Intent
from apps.intents.services import intent_ask
from apps.jobs.models import Attempt, Job
from apps.jobs.services import JobSpec, job_submit
from tests.conftest import actor_of
from tests.contract.broken_rest import BrokenRest
from tests.contract.test_sbatch_scripts_real import cluster_of
from tests.contract.test_scheduler_real import needs
from tests.labs import RealSlurm, real_slurm_lab
from worker import doors, engine
from worker.providers.slurm import SlurmScheduler
from worker.providers.values import SchedulerAccess
from worker.reconcilers import RECONCILERS

pytestmark = [pytest.mark.contract, pytest.mark.real_slurm, pytest.mark.django_db, pytest.mark.any_database]

#: How long a daemon stays away: seconds here, the ten minutes of the promise where a proof asks for them.
DOWN_S = float(os.environ.get("QD_DOWN_S", "6"))
KINDS = ("cluster.queue", "cluster.nodes", "cluster.connect", "job.reconcile")
ENDED = ("SUCCEEDED", "FAILED", "LOST", "CANCELLED", "TIMED_OUT", "NODE_FAILED", "REFUSED", "REQUEUED")


class Site:
    """A lab behind a proxy, a portal's rows, and a worker that makes a visit when it is told to."""

    def __init__(self, lab: RealSlurm, proxy: BrokenRest, owner: Any, team: Any) -> None:
        self.lab, self.proxy, self.owner, self.team = lab, proxy, owner, team
        self.cluster = cluster_of(lab)
        Cluster.objects.filter(pk=self.cluster.pk).update(api_url=proxy.url)
        self.cluster.refresh_from_db()
        self.scheduler = self.fresh()

    def fresh(self) -> SlurmScheduler:
        told = self.lab.access
        access = SchedulerAccess(endpoint_url=self.proxy.url, user_name=told.user_name, token=told.token, timeout_s=5.0)
        return SlurmScheduler(access, scontrol=self.lab.scontrol)

    def submit(self, name: str, seconds: int, nodes: int = 1) -> Job:
        """A job of this length; its runner has no portal to post to and does not wait for one."""
        spec = JobSpec(
            name=name, script=f"#!/bin/bash\nsleep {seconds}\n", nodes=nodes, gpus_per_node=8, time_limit_min=60
        )
        job = job_submit(actor=actor_of(self.owner), team=self.team, cluster=self.cluster, spec=spec)
        Job.objects.filter(pk=job.pk).update(environment={"QD_FLUSH_S": "0.2"})
        return job

    def look(self) -> None:
        """One tick: the queue is read and every job that changed is visited."""
        for kind in KINDS[:2]:
            intent_ask(kind, self.cluster.uid)
        Cluster.objects.filter(pk=self.cluster.pk).update(queue_read_at=clock.now() - timedelta(seconds=60))
        Intent.objects.filter(kind__in=KINDS).update(due_at=clock.now(), leased_until=None, lease="")
        engine.drain({kind: RECONCILERS[kind] for kind in KINDS}, most=60)

    def until(self, what: str, fits: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not fits():
            assert time.monotonic() < deadline, f"{what}: {self.shown()}; Slurm: {self.truth()}"
            self.look()
            time.sleep(0.3)

    def shown(self) -> list[tuple[str, str, str, str]]:
        rows = Attempt.objects.filter(job__cluster=self.cluster).order_by("id")
        return list(rows.values_list("job__name", "phase", "observed_state", "scheduler_id"))

    def phases(self) -> dict[str, str]:
        return dict(Attempt.objects.filter(job__cluster=self.cluster).values_list("job__name", "phase"))

    def truth(self) -> dict[str, str]:
        """What Slurm itself says of each attempt, by the name of its job."""
        told = subprocess.run(
            [*self.lab.scontrol, "-o", "show", "jobs"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
        found: dict[str, str] = {}
        for line in told.splitlines():
            words = dict(word.partition("=")[::2] for word in line.split())
            if "JobName" in words:
                found[words["JobName"]] = words["JobState"]
        return found

    def is_right(self) -> bool:
        """Every attempt stands where Slurm says it does."""
        wanted = {"PENDING": ("QUEUED",), "RUNNING": ("RUNNING",), "COMPLETED": ("SUCCEEDED",)}
        phases = self.phases()
        return all(phases[name] in wanted[state] for name, state in self.truth().items() if state in wanted)

    def count_twins(self) -> None:
        """Each attempt is one job of Slurm's, whatever was sent twice or answered by nobody."""
        jobs = self.fresh().jobs_by_comment
        for attempt in Attempt.objects.filter(job__cluster=self.cluster).exclude(phase__in=["PENDING", "SUBMITTING"]):
            found = jobs(attempt.uid)
            assert len(found) == 1, (attempt.uid, found)
        assert all(count == 1 for count in Counter(a for a, *_ in self.shown()).values()), self.shown()


@pytest.fixture(scope="module")
def lab() -> Iterator[RealSlurm]:
    with real_slurm_lab(nodes=4, accounting=True) as lab:
        yield lab


@pytest.fixture
def site(lab: RealSlurm, owner: Any, team: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    proxy = BrokenRest(str(lab.description["slurmrestd_url"]))
    site = Site(lab, proxy, owner, team)
    monkeypatch.setattr(doors, "scheduler_for", lambda cluster, as_user="": site.scheduler)
    yield site
    proxy.close()
    clean = lab.scheduler()
    for job in clean.queue().jobs or ():
        clean.cancel(job.scheduler_id)


def started(site: Site) -> None:
    """A long job, one that will end while nobody looks, and one that waits for both."""
    site.submit("long", 900)
    site.submit("short", 14, nodes=2)
    site.submit("waiting", 900, nodes=4)
    site.until(
        "the jobs to start",
        lambda: site.phases() == {"long": "RUNNING", "short": "RUNNING", "waiting": "QUEUED"},
    )
    # A controller that is killed before it has saved what it started runs it again: Slurm's own affair.
    time.sleep(6)


def away(site: Site, seconds: float) -> None:
    """The portal goes on looking at what does not answer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        site.look()
        assert not {p for n, p in site.phases().items() if n != "short" and p in ENDED}, site.shown()
        time.sleep(min(2.0, max(0.1, deadline - time.monotonic())))


def right_within_two_looks(site: Site, print_as: str) -> None:
    looks = 0
    while not site.is_right():
        assert looks < 2, (site.shown(), site.truth())
        site.look()
        looks += 1
    print(f"\n{print_as}: right after {looks} looks")
    site.until("the short job to end", lambda: site.phases()["short"] == "SUCCEEDED")
    site.count_twins()
    assert ledger_check().is_balanced


def answers(site: Site) -> None:
    """Until Slurm itself is there again: what a portal makes of it is counted from then on."""
    deadline = time.monotonic() + 60
    while True:
        done = subprocess.run([*site.lab.scontrol, "ping"], capture_output=True, text=True, timeout=30, check=False)
        if "UP" in done.stdout:
            return
        assert time.monotonic() < deadline, done.stdout
        time.sleep(0.3)


@needs("22.05")
def test_slurmctld_is_killed_and_started_again(site: Site) -> None:
    started(site)
    site.lab.kill("slurmctld")
    site.lab.start_again("slurmctld")
    answers(site)
    right_within_two_looks(site, "slurmctld restarted")


@needs("22.05")
@pytest.mark.timeout(DOWN_S + 240)
def test_slurmctld_is_away(site: Site) -> None:
    started(site)
    site.lab.kill("slurmctld")
    late = site.submit("late", 900)
    try:
        away(site, DOWN_S)
        assert Cluster.objects.get(pk=site.cluster.pk).phase == "UNREACHABLE"
        assert site.phases()["late"] in ("PENDING", "SUBMITTING")
    finally:
        site.lab.start_again("slurmctld")
    answers(site)
    right_within_two_looks(site, f"slurmctld away for {DOWN_S:.0f} s")
    # What was submitted meanwhile goes out when its doubt is over, once.
    site.until("the late job to be queued", lambda: site.phases()["late"] in ("QUEUED", "RUNNING"), 90)
    site.count_twins()
    assert late.attempts.count() == 1


@needs("22.05")
def test_slurmdbd_is_away(site: Site) -> None:
    started(site)
    site.lab.kill("slurmdbd")
    try:
        away(site, max(5.0, min(DOWN_S, 60)))
        # The queue says how it ended; accounting is not needed for that.
        site.until("the short job to end", lambda: site.phases()["short"] == "SUCCEEDED")
    finally:
        site.lab.start_again("slurmdbd")
    time.sleep(2)
    right_within_two_looks(site, "slurmdbd away")


@needs("22.05")
def test_slurmrestd_answers_garbage(site: Site) -> None:
    started(site)
    site.proxy.mode = "garbage"
    site.submit("unanswered", 900)
    away(site, 8)
    # The submit reached Slurm, and its answer was garbage: the portal does not know.
    assert site.truth().get("unanswered") == "PENDING"
    assert site.phases()["unanswered"] == "SUBMITTING"
    site.proxy.mode = "pass"
    right_within_two_looks(site, "slurmrestd answered garbage")
    site.until("the unanswered submit to be found", lambda: site.phases()["unanswered"] == "QUEUED")
    site.count_twins()


@needs("22.05")
@pytest.mark.parametrize("skew_s", [-900, 900])
def test_clocks_differ(site: Site, skew_s: int) -> None:
    """Slurm's clock is a quarter of an hour off: states are right all the same, and only real time is paid for."""
    site.proxy.skew_s = skew_s
    began_at = clock.now()
    started(site)
    away(site, 5)
    # Slurm tells whole seconds, and less than five of them are taken for no difference of the clocks.
    near = timedelta(seconds=7)
    for attempt in Attempt.objects.filter(job__cluster=site.cluster, started_at__isnull=False):
        assert began_at - near < attempt.started_at < clock.now() + near
    right_within_two_looks(site, f"clock off by {skew_s} s")
    charged = Attempt.objects.filter(job__cluster=site.cluster, charged_until_at__isnull=False)
    assert charged.exists()
    for attempt in charged:
        assert attempt.started_at is not None
        assert attempt.charged_until_at is not None
        assert attempt.charged_until_at - attempt.started_at <= clock.now() - began_at + near


@needs("22.05")
@pytest.mark.parametrize("skew_s", [0, -900, 900])
def test_a_worker_that_dies_around_a_submit_submits_once(site: Site, skew_s: int) -> None:
    """kill -9 before the call, after it, and between its answer and the save; whatever time Slurm thinks it is."""
    site.proxy.skew_s = skew_s
    site.scheduler = site.fresh()
    from tests.chaos import WHEN, Crash, Crashing, Plan, mortal

    real = site.scheduler
    for when in WHEN:
        plan = Plan("submit", when)
        site.scheduler = Crashing(real, plan, ["submit"])  # type: ignore[assignment]
        name = when.replace(" ", "-")
        site.submit(name, 900)
        try:
            with mortal(plan):
                site.look()
        except Crash:
            Intent.objects.update(leased_until=None, lease="")
        assert plan.done
        site.scheduler = real
    names = [when.replace(" ", "-") for when in WHEN]
    site.until("all to be queued", lambda: all(site.phases()[n] in ("QUEUED", "RUNNING") for n in names), 90)
    site.count_twins()
