"""What bulk reads of every Slurm must tell; part of the scheduler's contract."""

from __future__ import annotations

import time

import pytest

from tests.contract.scheduler_site import Site, until
from worker.providers import values as v
from worker.providers.slurm import SlurmScheduler


class ReadsContract:
    """Tests of reading the queue, the nodes and accounting; the whole contract brings ``request`` and the like."""

    def test_queue_is_cheap_when_nothing_changed(self, site: Site, scheduler: SlurmScheduler) -> None:
        job_id = scheduler.submit(self.request(site, "sleep 60")).scheduler_id
        self.running(scheduler, job_id)
        first = scheduler.queue()
        assert any(job.scheduler_id == job_id for job in first.jobs or ())

        def quiet() -> v.QueueRead | None:
            known = scheduler.queue()
            time.sleep(2.2)
            again = scheduler.queue(known.as_of)
            # Slurm may count the second of a change itself as changed; then all comes back, equal to before.
            return again if again.jobs is None and again.size_bytes < 2000 else None

        again = until("a cheap read without change", quiet, 40)
        scheduler.cancel(job_id)
        until("the change", lambda: scheduler.queue(again.as_of).jobs is not None, 5)

    def test_queue_read_gives_every_change_to_a_caller_that_passes_as_of(
        self, site: Site, scheduler: SlurmScheduler
    ) -> None:
        since = scheduler.queue().as_of
        seen: set[str] = set()
        job_id = scheduler.submit(self.request(site, "sleep 1")).scheduler_id

        def done() -> bool:
            nonlocal since
            read = scheduler.queue(since)
            since = read.as_of
            seen.update(job.state for job in read.jobs or () if job.scheduler_id == job_id)
            return "COMPLETED" in seen

        until("the end, seen through changes only", done, 30)

    def test_ended_jobs_are_accounted_in_one_call(self, site: Site, scheduler: SlurmScheduler) -> None:
        if not site.forgets_quickly:
            pytest.skip("this Slurm may have no accounting")
        ids = [scheduler.submit(self.request(site, f"exit {code}")).scheduler_id for code in (0, 5)]
        for job_id in ids:
            self.ended(scheduler, job_id)

        def told() -> dict[str, v.SchedulerJob] | None:
            found = {job.scheduler_id: job for job in scheduler.accounted([*ids, "9999999"])}
            return found if {job.state for job in found.values()} == {"COMPLETED", "FAILED"} else None

        found = until("both ends in accounting", told, 30)
        assert list(found) == ids
        assert [found[key].state for key in ids] == ["COMPLETED", "FAILED"]
        assert {job.user_name for job in found.values()} == {site.user}
        assert scheduler.accounted([]) == ()

    def test_a_read_of_nodes_sees_every_change(self, scheduler: SlurmScheduler) -> None:
        def flags() -> tuple[str, ...]:
            return next(node.flags for node in scheduler.node_read().nodes if node.name == "p5-2")

        assert "DRAIN" not in flags()
        for _ in range(2):
            scheduler.node_drain("p5-2", "looked at")
            until("the drain", lambda: "DRAIN" in flags(), 5)
            scheduler.node_resume("p5-2")
            until("the resume", lambda: "DRAIN" not in flags(), 5)
        assert scheduler.node_read().nodes == scheduler.nodes()

    def test_the_reader_of_a_big_queue_tells_what_the_plain_read_tells(
        self, site: Site, scheduler: SlurmScheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # By v0.0.38, which has no list of states, it must go on with plain reads.
        monkeypatch.setattr("worker.providers.slurm.bulk.SMALL_QUEUE", 0)
        since = scheduler.queue().as_of
        job_id = scheduler.submit(self.request(site, "sleep 1")).scheduler_id
        states: list[str] = []

        def done() -> bool:
            nonlocal since
            read = scheduler.queue(since)
            since = read.as_of
            states.extend(job.state for job in read.jobs or () if job.scheduler_id == job_id)
            return "COMPLETED" in states

        until("the end, seen through states", done, 30)
        assert {job.scheduler_id for job in scheduler.queue().jobs or ()} == {
            job.scheduler_id for job in site.scheduler().queue().jobs or ()
        }

    def test_the_reader_of_a_big_queue_follows_an_array_task_by_task(
        self, site: Site, scheduler: SlurmScheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("worker.providers.slurm.bulk.SMALL_QUEUE", 0)
        monkeypatch.setattr("worker.providers.slurm.bulk.REFRESH_AFTER_S", 3600.0)
        since = scheduler.queue().as_of
        array_id = scheduler.submit(self.request(site, "sleep 1", array="0-5%2")).scheduler_id
        seen: dict[int, set[str]] = {}
        waiting: set[str] = set()

        def done() -> bool:
            nonlocal since
            read = scheduler.queue(since)
            since = read.as_of
            for job in read.jobs or ():
                if job.array_id == array_id and job.array_task is not None:
                    seen.setdefault(job.array_task, set()).add(job.state)
                if job.array_id == array_id and job.array_pending:
                    waiting.add(job.array_pending)
            return sum("COMPLETED" in states for states in seen.values()) == 6

        until("the ends of all tasks, seen through states", done, 60)
        assert set(seen) == set(range(6))
        assert all(text.endswith("%2") for text in waiting), waiting
        assert len(waiting) > 1, "tasks that began left the record of those that wait"
