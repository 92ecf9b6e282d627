"""What Slurm's clock shows compared with ours, so that instants that it tells can be read by our clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import decode
from worker.providers.slurm import errors as se
from worker.providers.slurm.rest import Answer, Rest

#: How often Slurm is asked what time it is.
CHECK_S = 600.0
#: Slurm tells whole seconds and an answer takes a moment: less than this is no difference.
TOLERANCE_S = 5
#: A difference is taken anew only where it moved by more, so that the same job does not look different at each check.
_STEADY_S = 3
#: Every field of a job that is an instant.
_INSTANTS = ("submitted_at", "eligible_at", "started_at", "ended_at", "expected_start_at")


class ServerClock:
    """The clock of one controller; asked when it is first needed and then every ten minutes."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._offset_s = 0
        self._measured_s = 0.0
        self._checked = float("-inf")

    def check(self, call: Callable[[], Answer] | None = None) -> None:
        """Ask for the time where that was not done lately; ``call`` makes the request (default: our own).

        Raises ``Unavailable`` when there is no answer. A server that does not tell us is taken to agree with us.
        """
        if time.monotonic() - self._checked < CHECK_S:
            return
        try:
            answer = call() if call is not None else self._rest.call("GET", "/slurm/{v}/diag", about="queue")
            statistics = answer.body.get("statistics")
        except (e.NotFound, e.AccessDenied, e.Unsupported, se.NoSuchPath):
            statistics = None
        told = decode.number(statistics.get("req_time")) if isinstance(statistics, Mapping) else None
        self._measured_s = 0.0 if told is None else told - time.time()
        if abs(self._measured_s - self._offset_s) > _STEADY_S:
            self._offset_s = round(self._measured_s) if abs(self._measured_s) > TOLERANCE_S else 0
        self._checked = time.monotonic()

    def now(self) -> datetime:
        """The present by Slurm's clock, as exactly as it was told."""
        return datetime.fromtimestamp(int(time.time() + self._measured_s), tz=UTC)

    @property
    def ahead_s(self) -> int:
        """By how many seconds Slurm's clock is ahead of ours, below zero behind; 0 where that is hardly anything."""
        return self._offset_s

    def theirs(self, instant: datetime) -> datetime:
        """An instant of our clock by Slurm's."""
        return instant + timedelta(seconds=self._offset_s)

    def ours(self, job: v.SchedulerJob) -> v.SchedulerJob:
        """A job with the instants that Slurm told, by our clock."""
        if not self._offset_s:
            return job
        by = timedelta(seconds=self._offset_s)
        told = {name: getattr(job, name) for name in _INSTANTS}
        return replace(job, **{name: one - by for name, one in told.items() if one is not None})
