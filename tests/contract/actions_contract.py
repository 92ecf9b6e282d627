"""Holding, releasing and changing a job: the same on every real Slurm and on the sandbox's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.contract.scheduler_contract import ENDED, SchedulerContract
from tests.contract.scheduler_site import Site, until
from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import SlurmScheduler


class ActionsContract:
    """The suite; a subclass gives the fixture ``site`` (class-wide)."""

    @pytest.fixture
    def scheduler(self, site: Site) -> Iterator[SlurmScheduler]:
        scheduler = site.scheduler()
        yield scheduler
        for job in scheduler.queue().jobs or ():
            if job.state not in ENDED:
                scheduler.cancel(job.scheduler_id)
        until("an empty cluster", lambda: all(job.state in ENDED for job in scheduler.queue().jobs or ()))
        scheduler.close()

    def submit(self, site: Site, scheduler: SlurmScheduler, script: str = "sleep 60", **changes: Any) -> str:
        request = SchedulerContract.request(SchedulerContract(), site, script)
        return scheduler.submit(replace(request, **changes)).scheduler_id

    def waiting(self, site: Site, scheduler: SlurmScheduler) -> str:
        """A job that waits behind one that takes the whole cluster."""
        full = self.submit(site, scheduler, nodes=4)
        until("a full cluster", lambda: scheduler.job(full).state == "RUNNING")
        return self.submit(site, scheduler, nodes=4)

    def test_a_held_job_starts_only_when_released(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = self.waiting(site, scheduler)
        scheduler.hold(job_id)
        scheduler.hold(job_id)
        until("the hold", lambda: scheduler.job(job_id).reason == "JobHeldUser")
        assert scheduler.job(job_id).state == "PENDING"
        (other,) = [j.scheduler_id for j in scheduler.queue().jobs or () if j.state == "RUNNING"]
        scheduler.cancel(other)
        until("room", lambda: scheduler.job(other).state in ENDED)
        assert scheduler.job(job_id).state == "PENDING"
        scheduler.release(job_id)
        until("its start", lambda: scheduler.job(job_id).state == "RUNNING")

    def test_a_hold_of_a_running_job_does_not_stop_it(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = self.submit(site, scheduler)
        until("its start", lambda: scheduler.job(job_id).state == "RUNNING")
        scheduler.hold(job_id)
        assert scheduler.job(job_id).state == "RUNNING"

    def test_the_time_limit_of_a_waiting_job_moves_both_ways(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = self.waiting(site, scheduler)
        for minutes in (5, 20):
            scheduler.update(job_id, v.JobChange(time_limit_min=minutes))
            assert scheduler.job(job_id).time_limit_min == minutes
        # Asked twice it is changed once.
        scheduler.update(job_id, v.JobChange(time_limit_min=20))
        with pytest.raises(e.AccessDenied):
            scheduler.update(job_id, v.JobChange(time_limit_min=8 * 24 * 60))
        assert scheduler.job(job_id).time_limit_min == 20

    def test_only_operators_give_a_running_job_more_time(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = self.submit(site, scheduler)
        until("its start", lambda: scheduler.job(job_id).state == "RUNNING")
        scheduler.update(job_id, v.JobChange(time_limit_min=5))
        assert scheduler.job(job_id).time_limit_min == 5
        with pytest.raises(e.AccessDenied) as refusal:
            scheduler.update(job_id, v.JobChange(time_limit_min=50))
        assert not refusal.value.retryable
        assert scheduler.job(job_id).time_limit_min == 5
        scheduler.update(job_id, v.JobChange(time_limit_min=50), as_operator=True)
        assert scheduler.job(job_id).time_limit_min == 50

    def test_nice_lowers_the_priority(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = self.waiting(site, scheduler)
        before = scheduler.job(job_id).priority
        assert before is not None
        scheduler.update(job_id, v.JobChange(nice=100))
        assert (scheduler.job(job_id).priority or 0) <= before - 100
        scheduler.update(job_id, v.JobChange(nice=0))
        with pytest.raises(e.AccessDenied):
            scheduler.update(job_id, v.JobChange(nice=-100))
        scheduler.update(job_id, v.JobChange(nice=-100), as_operator=True)

    def test_an_unknown_partition_is_refused(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = self.waiting(site, scheduler)
        scheduler.update(job_id, v.JobChange(partition="gpu"))
        with pytest.raises(e.InvalidRequest, match="artition"):
            scheduler.update(job_id, v.JobChange(partition="nosuch"))
        with pytest.raises(e.InvalidRequest):
            scheduler.update(job_id, v.JobChange(partition="gpu nice=-100"))
        with pytest.raises(e.InvalidRequest):
            scheduler.update(job_id, v.JobChange())

    def test_what_has_ended_or_never_was(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = self.submit(site, scheduler, "true")
        until("its end", lambda: scheduler.job(job_id).state in ENDED)
        for call in (
            lambda key: scheduler.hold(key),
            lambda key: scheduler.release(key),
            lambda key: scheduler.update(key, v.JobChange(time_limit_min=5)),
        ):
            with pytest.raises((e.Conflict, e.NotFound)):
                call(job_id)
            with pytest.raises(e.NotFound):
                call("9999999")

    def test_an_administrators_hold_is_released_by_operators_only(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = self.waiting(site, scheduler)
        scheduler._run_scontrol(["hold", job_id], about="job")
        until("the hold", lambda: scheduler.job(job_id).reason == "JobHeldAdmin")
        with pytest.raises(e.AccessDenied):
            scheduler.release(job_id)
        scheduler.release(job_id, as_operator=True)
        until("no hold", lambda: scheduler.job(job_id).reason != "JobHeldAdmin")

    def test_a_requeue_without_scontrol(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = self.submit(site, scheduler, requeue=True)
        until("its start", lambda: scheduler.job(job_id).state == "RUNNING")
        alone = site.scheduler(scontrol=None)
        if site.api_version != "v0.0.45":
            with pytest.raises(e.Unsupported, match=f"scontrol requeue {job_id}"):
                alone.requeue(job_id)
            return
        alone.requeue(job_id)
        until("waiting again", lambda: scheduler.job(job_id).state == "PENDING")
        fixed = self.submit(site, scheduler, requeue=False)
        until("its start", lambda: scheduler.job(fixed).state == "RUNNING")
        with pytest.raises(e.Conflict):
            alone.requeue(fixed)
        with pytest.raises(e.NotFound):
            alone.requeue("9999999")
