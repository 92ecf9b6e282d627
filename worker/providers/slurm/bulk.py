"""Reading the whole queue without harming the controller.

What a read costs (26.05, 10,000 jobs): all details 84 MB and 5 s of slurmrestd, and ``update_time``
gives all of them back when a single job changed; the states alone 0.8 MB and 0.13 s. So:

* v0.0.38 and v0.0.39 have no list of states: ask with ``update_time``; unchanged costs nothing.
* Later versions with few jobs: the same, because all details of few jobs are cheap.
* Later versions with many: read the states, then the details of new and changed jobs one by one,
  at most ``DETAILS_A_READ`` of them; what is left comes in the next read. All details of 20,000 jobs in one answer
  take longer than a call may, and gigabytes of slurmrestd's memory: so the first read of a big queue goes the same
  way, in rounds of ``CATCH_UP_S``. Pending jobs change their reason and
  expected start without changing state, so a few of them are read afresh each time: watched ones first, the others
  in turn.

A state list names each task of an array ("21_9": job 21, task 9) and each part of a heterogeneous job ("4+1"); tasks
that have not begun bear the number of the record they share. When one of them begins, the rest is known from the list
and the record is not read again: reading an array's first number brings the records of all its tasks.

The reader remembers the last queue, so keep one for a cluster and let one thread at a time use it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import decode
from worker.providers.slurm import errors as se
from worker.providers.slurm.rest import Answer, Hook, Rest
from worker.providers.slurm.server_clock import ServerClock
from worker.providers.slurm.versions import WITHOUT_STATES

#: Up to here all details in one call are cheaper than states and then details.
SMALL_QUEUE = 300
SMALL_ANSWER_BYTES = 1_000_000
#: Single-job reads in one bulk read: 3 ms and 9 KB each, so that a read of 20,000 jobs stays below 2 MB.
DETAILS_A_READ = 40
SIDE_BY_SIDE = 4
#: Waiting jobs read afresh in one bulk read although their state is the same, and how old their details may get.
REFRESHED_A_READ = 10
REFRESH_AFTER_S = 15.0
REFRESH_WATCHED_S = 4.0
#: With more unknown jobs than this the reader catches up: each read goes on for so long.
CATCH_UP_ABOVE = 300
CATCH_UP_S = 1.5
#: Slurm's clock has whole seconds, and a change may come in the second of the read.
_OVERLAP_S = 2
_CHUNK = 50
#: In a search for new jobs, so many older ones in a row end it.
OLDER_IN_A_ROW = 10
#: Slurm's numbers start again from 1 above 67 million.
_NUMBERS_MAY_START_AGAIN = 60_000_000
_NUMBER = re.compile(r"(\d+)(?:_(\d+)|\+\d+)?")


class _States:
    """The list of states: what each record is in, and the tasks that wait in it.

    Taken from the answer while that is read: as tens of thousands of objects that live for a moment the list would set
    off a full round of the garbage collector in every read, which takes as long as all the rest of it.
    """

    def __init__(self) -> None:
        self.by_key: dict[str, str] = {}
        self.tasks: dict[str, list[int]] = {}
        # A queue has thousands of jobs and a handful of states: each combination of words is read once.
        self._known: dict[tuple[str, ...], str] = {}

    def hook(self, record: dict[str, Any]) -> Any:
        """Take one object of the answer, where it is a job, out of it."""
        if "job_id" not in record:
            return record
        try:
            number, mark, task = record["job_id"].partition("_")
            words = tuple(record["state"])
            state = self._known[words]
        except (KeyError, TypeError, AttributeError):
            number, mark, task, words, state = decode.guarded(_state_of, record, "job state")
            self._known[words] = state
        if not number.isdecimal():
            number, mark, task, words, state = decode.guarded(_state_of, record, "job state")
        self.by_key.setdefault(number, state)
        if mark and state == "PENDING":
            self.tasks.setdefault(number, []).append(int(task))
        return None


class BulkReader:
    """Reads the queue of one cluster and remembers it."""

    def __init__(self, rest: Rest, server_clock: ServerClock) -> None:
        self._rest = rest
        self._clock = server_clock
        self._jobs: dict[str, v.SchedulerJob] = {}
        self._read_at: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._known = False
        self._lacks_states = False
        self._listed = 0
        self._bytes_a_job = 9000.0
        self._calls = 0
        self._changed_at: datetime | None = None
        self._handed_at = datetime.min.replace(tzinfo=UTC)

    def remember(self, jobs: Iterable[v.SchedulerJob], as_of: datetime | None) -> None:
        """Take over what another reader of this cluster found as of an instant."""
        self._jobs = {job.scheduler_id: job for job in jobs}
        self._read_at = {}
        self._waiting = {}
        self._known = as_of is not None
        self._changed_at = as_of

    def read(self, since: datetime | None, *, complete: bool = False, watch: Collection[str] = ()) -> v.QueueRead:
        """The queue, or that nothing changed since ``since``. ``complete`` leaves no job's details for later.

        ``watch`` are jobs whose details are wanted first, and afresh while they wait.
        """
        began = time.monotonic()
        self._calls = 0
        left_over = 0
        if since is not None:
            # Another process may have handed it out.
            self._handed_at = max(self._handed_at, since)
        if self._has_states() and (self._is_big() or not (self._known or complete)):
            size, as_of, left_over = self._by_states(complete=complete, watch=watch)
        else:
            size, as_of = self._by_update_time(since if self._covers(since) else None)
        unchanged = self._covers(since)
        self._handed_at = max(as_of, self._handed_at)
        return v.QueueRead(
            as_of=self._handed_at,
            jobs=None if unchanged else tuple(self._jobs.values()),
            read_s=time.monotonic() - began,
            size_bytes=size,
            calls=self._calls,
            left_over=left_over,
        )

    def _has_states(self) -> bool:
        return not self._lacks_states and self._rest.version not in WITHOUT_STATES

    def _is_big(self) -> bool:
        """Whether all details in one answer are likely to be more than is cheap."""
        count = max(len(self._jobs), self._listed)
        return count > SMALL_QUEUE or self._bytes_a_job * count > SMALL_ANSWER_BYTES

    def _covers(self, since: datetime | None) -> bool:
        """Whether the caller, who has seen the queue as of ``since``, has seen all that this reader knows."""
        return since is not None and self._changed_at is not None and since >= self._changed_at

    def _mark_changed(self, as_of: datetime) -> datetime:
        """Remember the change under an instant later than any handed out, though Slurm's clock has whole seconds.

        Else a change in the second of an earlier, quiet read would count as seen.
        """
        self._changed_at = max(as_of, self._handed_at + timedelta(microseconds=1))
        return self._changed_at

    def _call(self, path: str, about: str, params: Mapping[str, str] | None = None, hook: Hook | None = None) -> Answer:
        self._calls += 1
        return self._rest.call("GET", path, about=about, params=params, hook=hook)

    # --- all details -----------------------------------------------------------------------------

    def _by_update_time(self, since: datetime | None) -> tuple[int, datetime]:
        as_of = self._now()
        params = {} if since is None else {"update_time": self._rest.instant(since.timestamp())}
        answer = self._call("/slurm/{v}/jobs", "queue", params)
        if since is not None and _nothing_changed(answer):
            return answer.size_bytes, as_of
        fresh = {job.scheduler_id: job for job in self._jobs_of(answer)}
        same = {key: known for key, job in fresh.items() if (known := self._jobs.get(key)) == job and known is not None}
        if len(same) != len(fresh) or len(fresh) != len(self._jobs) or not self._known:
            as_of = self._mark_changed(as_of)
        # What is equal stays the same object, so that whoever compares need not look into it.
        self._jobs = {**fresh, **same}
        self._known = True
        self._bytes_a_job = answer.size_bytes / max(1, len(fresh))
        self._listed = len(fresh)
        now = time.monotonic()
        self._read_at = dict.fromkeys(fresh, now)
        self._waiting = {}
        return answer.size_bytes, as_of

    def _now(self) -> datetime:
        """The controller's time, a little earlier: what ``update_time`` is compared with."""
        self._clock.check(lambda: self._call("/slurm/{v}/diag", "queue"))
        return self._clock.now() - timedelta(seconds=_OVERLAP_S)

    # --- states, then some details -----------------------------------------------------------------

    def _by_states(self, *, complete: bool, watch: Collection[str]) -> tuple[int, datetime, int]:
        as_of = self._now()
        try:
            listed, listed_size = self._states()
        except se.NoSuchPath:
            self._lacks_states = True
            size, as_of = self._by_update_time(None)
            return size, as_of, 0
        states = listed.by_key
        if not self._known and len(states) <= SMALL_QUEUE:
            size, as_of = self._by_update_time(None)
            return listed_size + size, as_of, 0
        self._listed = len(states)
        is_first, self._known = not self._known, True
        changed = [key for key, now in states.items() if key not in self._jobs or self._jobs[key].state != now]
        different = self._forget([key for key in self._jobs if key not in states]) or is_first
        different |= self._tasks_began(listed)
        watched = set(watch)
        changed.sort(key=lambda key: key not in watched)
        until = time.monotonic() + CATCH_UP_S if not complete and len(changed) > CATCH_UP_ABOVE else None
        wanted = list(changed) if complete or until is not None else changed[:DETAILS_A_READ]
        if len(wanted) < REFRESHED_A_READ:
            wanted += self._worth_refreshing(states, set(changed), watched)
        size = listed_size
        done: set[str] = set()
        for key, (records, one_size) in self._details(wanted, until):
            done.add(key)
            size += one_size
            if not any(job.scheduler_id == key for job in records):
                different |= self._forget([key])
            for job in records:
                done.add(job.scheduler_id)
                different |= self._keep(job)
        left_over = sum(1 for key in changed if key not in done)
        return size, self._mark_changed(as_of) if different else as_of, left_over

    def _states(self) -> tuple[_States, int]:
        """The list of states, and how many bytes it took."""
        states = _States()
        answer = self._call("/slurm/{v}/jobs/state", "queue", hook=states.hook)
        _records(answer.body, "jobs")
        return states, answer.size_bytes

    def submitted_since(self, since: datetime) -> list[v.SchedulerJob]:
        """Jobs of the queue that were submitted after an instant of our clock, without reading all the others.

        Numbers rise with the time of submit, so the newest are looked at first, until several in a row are older
        (a requeue gives an old job a new time).
        """
        self._clock.check(lambda: self._call("/slurm/{v}/diag", "queue"))
        keys: list[str] = []
        if self._has_states():
            try:
                keys = sorted(self._states()[0].by_key, key=int, reverse=True)
            except se.NoSuchPath:
                self._lacks_states = True
        if len(keys) <= SMALL_QUEUE or int(keys[0]) > _NUMBERS_MAY_START_AGAIN:
            return list(self.read(None, complete=True).jobs or ())
        found: dict[str, v.SchedulerJob] = {}
        older = 0
        for key in keys:
            new = [job for job in self._one(key)[0] if job.submitted_at is None or job.submitted_at >= since]
            found |= {job.scheduler_id: job for job in new}
            older = 0 if new else older + 1
            if older > OLDER_IN_A_ROW:
                break
        return list(found.values())

    def _keep(self, job: v.SchedulerJob) -> bool:
        key = job.scheduler_id
        self._read_at[key] = time.monotonic()
        self._waiting.pop(key, None)
        if self._jobs.get(key) == job:
            return False
        self._jobs[key] = job
        return True

    def _forget(self, keys: Iterable[str]) -> bool:
        gone = [key for key in keys if key in self._jobs]
        for key in gone:
            del self._jobs[key]
            self._read_at.pop(key, None)
            self._waiting.pop(key, None)
        return bool(gone)

    def _tasks_began(self, states: _States) -> bool:
        """Rewrite which tasks of an array still wait, where some of them began or went."""
        different = False
        for key, tasks in states.tasks.items():
            job = self._jobs.get(key)
            if job is None or states.by_key[key] != "PENDING" or not job.array_pending:
                continue
            known = self._waiting.get(key)
            self._waiting[key] = len(tasks)
            if known is not None and known != len(tasks):
                _tasks, limited, limit = job.array_pending.partition("%")
                text = _spans(tasks) + (limited + limit)
                if text != job.array_pending:
                    self._jobs[key] = replace(job, array_pending=text)
                    different = True
        return different

    def _worth_refreshing(
        self, states: Mapping[str, str], skip: Collection[str], watched: Collection[str]
    ) -> list[str]:
        """Waiting jobs whose details are old; those of arrays only by the number of a record of their own."""
        now = time.monotonic()
        old = [
            (key not in watched, self._read_at.get(key, 0.0), key)
            for key, state in states.items()
            if state == "PENDING"
            and key not in skip
            and key in self._jobs
            and self._jobs[key].array_id != key
            and now - self._read_at.get(key, 0.0) > (REFRESH_WATCHED_S if key in watched else REFRESH_AFTER_S)
        ]
        return [key for _watched, _at, key in sorted(old)[:REFRESHED_A_READ]]

    def _details(
        self, keys: Sequence[str], until: float | None
    ) -> Iterator[tuple[str, tuple[list[v.SchedulerJob], int]]]:
        """The records of these jobs, a few asked for side by side: slurmrestd has threads."""
        if len(keys) < 2 * SIDE_BY_SIDE:
            yield from ((key, self._one(key)) for key in keys)
            return
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            for start in range(0, len(keys), _CHUNK):
                some = keys[start : start + _CHUNK]
                yield from zip(some, pool.map(self._one, some), strict=True)
                if until is not None and time.monotonic() > until:
                    return

    def _one(self, key: str) -> tuple[list[v.SchedulerJob], int]:
        """The records that a job's number brings: one, or all of the array or heterogeneous job that begins with it."""
        try:
            answer = self._call(f"/slurm/{{v}}/job/{key}", "job")
        except e.NotFound:
            return [], 0
        return self._jobs_of(answer), answer.size_bytes

    def _jobs_of(self, answer: Answer) -> list[v.SchedulerJob]:
        """The jobs of an answer, their instants by our clock."""
        return [
            self._clock.ours(decode.guarded(decode.queue_job, record, "job"))
            for record in _records(answer.body, "jobs")
        ]


def _nothing_changed(answer: Answer) -> bool:
    return not answer.changed or (not answer.body.get("jobs") and se.unchanged(se.entries_of(answer.body, "warnings")))


def _records(body: Mapping[str, Any], key: str) -> list[Any]:
    records = body.get(key)
    if not isinstance(records, list):
        raise e.Unavailable(f"the answer has no list {key!r}", source=se.SOURCE, code="shape")
    return records


def _state_of(record: Mapping[str, Any]) -> tuple[str, str, str, tuple[str, ...], str]:
    told = record["job_id"]
    match = _NUMBER.fullmatch(told if isinstance(told, str) else str(decode.number(told)))
    if match is None:
        raise ValueError(f"{told!r} is no number of a job")
    state = record["state"]
    words = (state,) if isinstance(state, str) else tuple(state)
    return match.group(1), "_" if match.group(2) else "", match.group(2) or "", words, decode.job_state(state)


def _spans(numbers: Sequence[int]) -> str:
    """Numbers as Slurm writes them: "0-3,7"."""
    spans: list[list[int]] = []
    for one in sorted(numbers):
        if spans and one == spans[-1][1] + 1:
            spans[-1][1] = one
        else:
            spans.append([one, one])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
