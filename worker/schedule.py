"""The whole beat table on one screen; every entry only rings, what is due is decided from the database."""

from __future__ import annotations

from typing import Any


def beat_schedule() -> dict[str, dict[str, Any]]:
    """Names, tasks and periods in seconds; a message nobody took by the next beat expires."""

    def every(seconds: float, task: str, **kwargs: Any) -> dict[str, Any]:
        return {
            "task": f"worker.tasks.{task}",
            "schedule": seconds,
            "kwargs": kwargs,
            "options": {"expires": max(5.0, seconds)},
        }

    return {
        # The collectors are intents too: due again after their period, leased so that none runs twice at once.
        "drain": every(1.0, "drain"),
        "housekeeping": every(10.0, "housekeeping"),
    }
