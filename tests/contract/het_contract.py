"""What every Slurm must do with a heterogeneous job: one submit, a record a part, one end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.contract.scheduler_site import Site, until
from worker.providers import values as v
from worker.providers.errors import InvalidRequest
from worker.providers.slurm import SlurmScheduler


def part(**changes: Any) -> v.SubmitPart:
    known: dict[str, Any] = {
        "name": "",
        "partition": "gpu",
        "nodes": 1,
        "gpus_per_node": 2,
        "gpu_type": "",
        "tasks_per_node": 2,
        "cpus_per_task": 1,
        "memory_per_node_mib": 1000,
        "time_limit_min": 0,
        "options": (),
    }
    return v.SubmitPart(**{**known, **changes})


class HetContract:
    """Mixed into the scheduler contract."""

    request: Any
    running: Any
    ended: Any
    output: Any

    def test_parts_start_together_and_are_found_by_their_comment(self, site: Site, scheduler: SlurmScheduler) -> None:
        since = datetime.now(tz=UTC) - timedelta(seconds=5)
        body = 'echo "$SLURM_HET_SIZE $SLURM_JOB_NODELIST_HET_GROUP_1"; sleep 60'
        request = self.request(site, body, nodes=1, gpus_per_node=8, parts=(part(time_limit_min=7),))
        receipt = scheduler.submit(request)
        leader = receipt.scheduler_id
        follower = str(int(leader) + 1)
        try:
            first = self.running(scheduler, leader)
            second = until("the second part", lambda: _running(scheduler.job(follower)))
            assert (first.scheduler_id, first.het_id, first.het_offset) == (leader, leader, 0)
            assert (second.scheduler_id, second.het_id, second.het_offset) == (follower, leader, 1)
            assert (first.gpus, second.gpus) == (8, 2)
            assert first.nodes != second.nodes
            assert (second.comment, second.time_limit_min) == (request.comment, 7)
            found = scheduler.jobs_by_comment(request.comment, since)
            assert [(job.scheduler_id, job.het_id) for job in found] == [(leader, leader), (follower, leader)]
            listed = {job.scheduler_id: job for job in scheduler.queue().jobs or ()}
            assert listed[follower].het_id == leader
        finally:
            scheduler.cancel(leader)
        assert self.ended(scheduler, leader).state == "CANCELLED"
        assert self.ended(scheduler, follower).state == "CANCELLED"

    def test_parts_end_as_the_script_does(self, site: Site, scheduler: SlurmScheduler) -> None:
        leader = scheduler.submit(self.request(site, "exit 3", nodes=1, parts=(part(), part()))).scheduler_id
        for offset in range(3):
            assert self.ended(scheduler, str(int(leader) + offset)).state == "FAILED"

    def test_a_held_one_waits_and_is_released_part_by_part(self, site: Site, scheduler: SlurmScheduler) -> None:
        request = self.request(site, "sleep 60", nodes=1, options=("--hold",), parts=(part(options=("--hold",)),))
        leader = scheduler.submit(request).scheduler_id
        try:
            assert scheduler.job(leader).reason == "JobHeldUser"
            for key in (leader, str(int(leader) + 1)):
                scheduler.release(key)
            self.running(scheduler, leader)
            scheduler.signal(leader, "USR1")
        finally:
            scheduler.cancel(leader)

    @pytest.mark.parametrize("bad", [{"nodes": 40}, {"partition": "nowhere"}])
    def test_one_part_that_cannot_be_refuses_all(
        self, site: Site, scheduler: SlurmScheduler, bad: dict[str, Any]
    ) -> None:
        request = self.request(site, "true", nodes=1, parts=(part(**bad),))
        with pytest.raises(InvalidRequest):
            scheduler.submit(request)
        # Slurm may keep records of the parts that it had made by then; none of them will run.
        left = scheduler.jobs_by_comment(request.comment, datetime.now(tz=UTC) - timedelta(minutes=5))
        assert {job.state for job in left} <= {"FAILED", "CANCELLED"}


def _running(job: v.SchedulerJob) -> v.SchedulerJob | None:
    return job if job.state == "RUNNING" else None
