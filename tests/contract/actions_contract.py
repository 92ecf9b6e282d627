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
                # 22.05 knows a waiting task that an update has split off by its array alone.
                scheduler.cancel(job.array_id or job.scheduler_id)
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

    # --- arrays -----------------------------------------------------------------------------------

    def tasks(self, scheduler: SlurmScheduler, array_id: str) -> dict[int, v.SchedulerJob]:
        jobs = scheduler.queue().jobs or ()
        return {j.array_task: j for j in jobs if j.array_id == array_id and j.array_task is not None}

    def test_an_array_runs_its_tasks_a_few_at_once(self, site: Site, scheduler: SlurmScheduler) -> None:
        script = 'echo "$SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID" > "task-$SLURM_ARRAY_TASK_ID.txt"; sleep 2'
        array_id = self.submit(site, scheduler, script, array="1-5:2,8%2", stdout_path=f"{site.work_dir}/out_%a")
        until("the first two", lambda: len(self.tasks(scheduler, array_id)) >= 2)
        running = [j for j in self.tasks(scheduler, array_id).values() if j.state == "RUNNING"]
        assert len(running) <= 2

        def all_ended() -> bool:
            found = self.tasks(scheduler, array_id)
            return len(found) == 4 and all(j.state == "COMPLETED" for j in found.values())

        until("the end of all", all_ended, 60)
        found = self.tasks(scheduler, array_id)
        assert sorted(found) == [1, 3, 5, 8]
        assert {j.gpus for j in found.values()} == {8}
        assert (site.work_dir / "task-3.txt").read_text() == f"{array_id} 3\n"
        assert (site.work_dir / "out_8").exists()

    def test_one_task_is_cancelled_and_the_others_go_on(self, site: Site, scheduler: SlurmScheduler) -> None:
        array_id = self.submit(site, scheduler, array="0-5%2")
        until("the first two", lambda: len(self.tasks(scheduler, array_id)) >= 2)
        for task in (1, 4):
            scheduler.cancel(f"{array_id}_{task}")
        until("task 1 to end", lambda: self.tasks(scheduler, array_id)[1].state == "CANCELLED")
        until("another to start", lambda: 2 in self.tasks(scheduler, array_id))
        assert self.tasks(scheduler, array_id)[0].state == "RUNNING"
        with pytest.raises(e.NotFound):
            scheduler.cancel(f"{array_id}_77")
        scheduler.cancel(array_id)

        def none_live() -> bool:
            mine = [j for j in scheduler.queue().jobs or () if j.array_id == array_id]
            return bool(mine) and all(j.state == "CANCELLED" for j in mine)

        until("the end of all", none_live)

    def test_an_array_is_held_and_its_limit_changed_as_one(self, site: Site, scheduler: SlurmScheduler) -> None:
        array_id = self.submit(site, scheduler, array="0-5%1", nodes=4)
        until("the first", lambda: 0 in self.tasks(scheduler, array_id))

        def pending() -> v.SchedulerJob:
            return next(j for j in scheduler.queue().jobs or () if j.array_id == array_id and j.state == "PENDING")

        scheduler.hold(array_id)
        until("the hold", lambda: pending().reason == "JobHeldUser")
        scheduler.release(array_id)
        until("no hold", lambda: pending().reason != "JobHeldUser")
        scheduler.update(array_id, v.JobChange(time_limit_min=5))
        assert pending().time_limit_min == 5

    @pytest.mark.parametrize("text", ["5-1", "abc", "0-9999", "1-10:0"])
    def test_an_array_that_the_site_does_not_take(self, site: Site, scheduler: SlurmScheduler, text: str) -> None:
        with pytest.raises(e.InvalidRequest, match="array specification"):
            self.submit(site, scheduler, "true", array=text)
