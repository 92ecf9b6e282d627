"""How soon to read again: quickly while something happens, slowly while nothing does, never more than its share."""

from __future__ import annotations

from datetime import datetime

#: A quiet source is asked again after this part of the time for which it has been quiet.
QUIET_PART = 4.0


def next_period(
    *, base_s: float, most_s: float, share: float, quiet_s: float, read_s: float, nearest_s: float | None = None
) -> float:
    """Seconds until the next read.

    ``base_s`` while something changes; after ``quiet_s`` without a change a quarter of that, up to ``most_s``;
    ``nearest_s`` caps it where something is about to happen. Whatever these say, reading takes no more than ``share``
    of the time: a read that took 5 s is not repeated within 45 s where the share is 0.1.
    """
    period = min(most_s, max(base_s, quiet_s / QUIET_PART))
    if nearest_s is not None:
        period = max(base_s, min(period, nearest_s))
    return max(period, rest_s(read_s, share))


def rest_s(read_s: float, share: float) -> float:
    """How long to leave a source alone after a read that took so long."""
    return read_s * (1.0 - share) / share


def too_early_s(read_at: datetime | None, read_s: float, share: float, now: datetime) -> float:
    """For how long a read that someone asks for must still wait; 0 when it may be made."""
    if read_at is None:
        return 0.0
    return max(0.0, rest_s(read_s, share) - (now - read_at).total_seconds())
