"""Job arrays: Slurm's way of writing which tasks there are, and what became of all of them together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.utils.translation import gettext as _

from apps.jobs.rules import is_final_state

#: Slurm's own highest MaxArraySize; most sites allow 1,000 or 10,000 tasks.
MAX_INDEX = 4_000_000
MAX_TASKS = 100_000
_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?")


@dataclass(frozen=True)
class Array:
    """Task numbers in order and how many may run at once (0: any number)."""

    tasks: tuple[int, ...]
    limit: int = 0

    @property
    def at_once(self) -> int:
        """How many tasks can run at the same time."""
        return min(self.limit, len(self.tasks)) if self.limit else len(self.tasks)

    @property
    def text(self) -> str:
        """As Slurm reads it, "0-9%2"."""
        return compressed(self.tasks) + (f"%{self.limit}" if self.limit else "")


def parse_array(text: str) -> Array:
    """Slurm's grammar: ``0-15``, ``0,6,16-32``, ``0-15:4``, each with ``%4``. Raises ValueError in words."""
    given = "".join(text.split()).strip("[]")
    numbers, percent, limit_text = given.partition("%")
    if percent and not limit_text.isdigit():
        raise ValueError(_("%(text)s: a number must follow the %%") % {"text": repr(text[:80])})
    tasks: set[int] = set()
    listed = 0
    for part in numbers.split(","):
        match = _PART.fullmatch(part)
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else 0
        step = int(match[3] or 1) if match else 1
        if match is None or last < first or step < 1:
            raise ValueError(_("%(text)s is no array such as 0-9, 1,3,5 or 0-99%%10") % {"text": repr(text[:80])})
        if last > MAX_INDEX:
            raise ValueError(_("task %(task)s is above Slurm's highest, %(most)s") % {"task": last, "most": MAX_INDEX})
        if (last - first) // step >= MAX_TASKS:
            raise ValueError(_("at most %(most)s tasks in one array") % {"most": f"{MAX_TASKS:,}"})
        listed += (last - first) // step + 1
        if listed > MAX_TASKS:
            # Also where tasks are named again and again: a text must not keep a page busy.
            raise ValueError(_("at most %(most)s tasks in one array") % {"most": f"{MAX_TASKS:,}"})
        tasks |= set(range(first, last + 1, step))
    return Array(tuple(sorted(tasks)), int(limit_text or 0))


def array_of(text: str) -> Array:
    """A stored array; a single task where there is none."""
    return parse_array(text) if text else Array((0,), 0)


def tasks_in(pending: str) -> tuple[int, ...]:
    """Task numbers of a record that stands for several ("3-9,12%2"); none where it cannot be read."""
    try:
        return parse_array(pending).tasks if pending else ()
    except ValueError:
        return ()


def compressed(tasks: Iterable[int]) -> str:
    """Numbers as ranges, "0-3,7"."""
    parts: list[str] = []
    first = last = -2
    for task in [*sorted(tasks), None]:
        if task is not None and task == last + 1:
            last = task
            continue
        if first >= 0:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = -2 if task is None else task
    return ",".join(parts)


#: What decides the end of all, the first that any task shows.
_WORST = (
    "NODE_FAIL",
    "BOOT_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
    "FAILED",
    "TIMEOUT",
    "DEADLINE",
    "CANCELLED",
    "COMPLETED",
)
#: Ends that were not the program's: such tasks run again in the next attempt.
AGAIN = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"})


def state_of(states: Mapping[str, int], wanted: int, *, has_started: bool) -> str:
    """One state word for an attempt from how many of its tasks are in which state; "" while nothing is known.

    ``wanted`` is how many tasks there are: it ends only when all of them have.
    """
    live = {state for state, count in states.items() if count and not is_final_state(state)}
    if live & {"RUNNING", "COMPLETING", "SUSPENDED"}:
        return "RUNNING"
    ended = sum(count for state, count in states.items() if is_final_state(state))
    if live or ended < wanted:
        if not states:
            return ""
        return "RUNNING" if has_started else "PENDING"
    return next((state for state in _WORST if states.get(state)), "FAILED")
