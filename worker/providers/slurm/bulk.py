"""Reading the whole queue without harming the controller.

What a read costs (26.05, 10,000 jobs): all details 84 MB and 5 s of slurmrestd, and ``update_time``
gives all of them back when a single job changed; the states alone 0.8 MB and 0.13 s. So:

* v0.0.38 and v0.0.39 have no list of states: ask with ``update_time``; unchanged costs nothing.
* Later versions with a small queue: the same, because all details of few jobs are cheap.
* Later versions with a big queue: read the states, then the details of new and changed jobs one by one,
  at most ``DETAILS_A_READ`` of them; what is left comes in the next read. Pending jobs change their reason and
  expected start without changing state, so spare room of the bound goes round among them.

The reader remembers the last queue, so keep one for a cluster and let one thread at a time use it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import decode
from worker.providers.slurm import errors as se
from worker.providers.slurm.rest import Answer, Rest

#: Up to here all details in one call are cheaper than states and then details.
SMALL_QUEUE = 300
#: Single-job reads in one bulk read: 3 ms each.
DETAILS_A_READ = 100
#: More unknown jobs than this, and one full read is kinder than hundreds of single ones.
FULL_READ_ABOVE = 500
#: Slurm's clock has whole seconds, and a change may come in the second of the read.
_OVERLAP_S = 2
_CLOCK_CHECK_S = 600.0
_WITHOUT_STATES = ("v0.0.38", "v0.0.39")


class BulkReader:
    """Reads the queue of one cluster and remembers it."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._jobs: dict[str, v.SchedulerJob] = {}
        self._read_at: dict[str, float] = {}
        self._states: dict[str, str] = {}
        self._known = False
        self._changed_at: datetime | None = None
        self._handed_at = datetime.min.replace(tzinfo=UTC)
        self._offset_s = 0.0
        self._offset_checked = float("-inf")

    def read(self, since: datetime | None, *, complete: bool = False) -> v.QueueRead:
        """The queue, or that nothing changed since ``since``. ``complete`` leaves no job's details for later."""
        began = time.monotonic()
        if self._rest.version not in _WITHOUT_STATES and self._known and len(self._jobs) > SMALL_QUEUE:
            size, as_of = self._by_states(complete=complete)
        else:
            size, as_of = self._by_update_time(since if self._covers(since) else None)
        unchanged = self._covers(since)
        self._handed_at = max(as_of, self._handed_at)
        return v.QueueRead(
            as_of=self._handed_at,
            jobs=None if unchanged else tuple(self._jobs.values()),
            read_s=time.monotonic() - began,
            size_bytes=size,
        )

    def _covers(self, since: datetime | None) -> bool:
        """Whether the caller, who has seen the queue as of ``since``, has seen all that this reader knows."""
        return since is not None and self._changed_at is not None and since >= self._changed_at

    def _mark_changed(self, as_of: datetime) -> datetime:
        """Remember the change under an instant later than any handed out, though Slurm's clock has whole seconds.

        Else a change in the second of an earlier, quiet read would count as seen.
        """
        self._changed_at = max(as_of, self._handed_at + timedelta(microseconds=1))
        return self._changed_at

    # --- all details -----------------------------------------------------------------------------

    def _by_update_time(self, since: datetime | None) -> tuple[int, datetime]:
        as_of = self._now()
        params = {} if since is None else {"update_time": str(int(since.timestamp()))}
        answer = self._rest.call("GET", "/slurm/{v}/jobs", about="queue", params=params)
        if since is not None and _nothing_changed(answer):
            return answer.size_bytes, as_of
        fresh = {job.scheduler_id: job for job in _jobs_of(answer.body)}
        if fresh != self._jobs or not self._known:
            as_of = self._mark_changed(as_of)
        self._jobs = fresh
        self._known = True
        now = time.monotonic()
        self._read_at = dict.fromkeys(fresh, now)
        self._states = {key: job.state for key, job in fresh.items()}
        return answer.size_bytes, as_of

    def _now(self) -> datetime:
        """The controller's time, a little earlier: what ``update_time`` is compared with."""
        if time.monotonic() - self._offset_checked > _CLOCK_CHECK_S:
            statistics = self._rest.call("GET", "/slurm/{v}/diag", about="queue").body.get("statistics")
            told = decode.number(statistics.get("req_time")) if isinstance(statistics, Mapping) else None
            self._offset_s = 0.0 if told is None else told - time.time()
            self._offset_checked = time.monotonic()
        return datetime.fromtimestamp(int(time.time() + self._offset_s) - _OVERLAP_S, tz=UTC)

    # --- states, then some details -----------------------------------------------------------------

    def _by_states(self, *, complete: bool) -> tuple[int, datetime]:
        as_of = self._now()
        answer = self._rest.call("GET", "/slurm/{v}/jobs/state", about="queue")
        states = _states_of(answer.body)
        changed = [key for key, state in states.items() if self._states.get(key) != state or key not in self._jobs]
        if len(changed) > FULL_READ_ABOVE:
            size, as_of = self._by_update_time(None)
            return answer.size_bytes + size, as_of
        gone = [key for key in self._jobs if key not in states]
        for key in gone:
            del self._jobs[key]
            self._states.pop(key, None)
            self._read_at.pop(key, None)
        different = bool(gone)
        wanted = changed if complete else changed[:DETAILS_A_READ]
        spare = DETAILS_A_READ - len(wanted)
        if spare > 0:
            skip = set(changed)
            waiting = [key for key, state in states.items() if state == "PENDING" and key not in skip]
            wanted = [*wanted, *sorted(waiting, key=lambda key: self._read_at.get(key, 0.0))[:spare]]
        size = answer.size_bytes
        for key in wanted:
            read = self._one(key)
            if read is None:
                different |= self._jobs.pop(key, None) is not None
                self._states.pop(key, None)
                continue
            job, one_size = read
            size += one_size
            different |= self._jobs.get(key) != job
            self._jobs[key] = job
            self._states[key] = job.state
            self._read_at[key] = time.monotonic()
        return size, self._mark_changed(as_of) if different else as_of

    def _one(self, key: str) -> tuple[v.SchedulerJob, int] | None:
        try:
            answer = self._rest.call("GET", f"/slurm/{{v}}/job/{key}", about="job")
        except e.NotFound:
            return None
        jobs = _jobs_of(answer.body)
        return (jobs[0], answer.size_bytes) if jobs else None


def _nothing_changed(answer: Answer) -> bool:
    return not answer.changed or (not answer.body.get("jobs") and se.unchanged(se.entries_of(answer.body, "warnings")))


def _records(body: Mapping[str, Any], key: str) -> list[Any]:
    records = body.get(key)
    if not isinstance(records, list):
        raise e.Unavailable(f"the answer has no list {key!r}", source=se.SOURCE, code="shape")
    return records


def _jobs_of(body: Mapping[str, Any]) -> list[v.SchedulerJob]:
    return [decode.guarded(decode.queue_job, record, "job") for record in _records(body, "jobs")]


def _states_of(body: Mapping[str, Any]) -> dict[str, str]:
    def one(record: Mapping[str, Any]) -> tuple[str, str]:
        return str(decode.number(record["job_id"])), decode.job_state(record["state"])

    return dict(decode.guarded(one, record, "job state") for record in _records(body, "jobs"))
