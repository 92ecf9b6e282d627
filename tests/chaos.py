"""Kills a worker at one point of its work: before a changing call, after it, or before what it learnt is saved.

A test wraps the real provider of a sandbox in ``Crashing``, drives the reconciler through ``Crash``es, counts what
exists and tells ``point`` how it ended. Where QD_CHAOS_TABLE names a file, each point is added to it as one line of
JSON, which ``make verify-aws`` prints as a table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import connection

from apps.core import clock
from apps.intents.models import Intent

WHEN = ("before the call", "after the call", "before the save")


class Crash(BaseException):
    """Stands for kill -9: nothing in the worker may catch it."""


@dataclass
class Plan:
    """Where one worker dies. ``seen`` lists the changing calls in order, ``done`` whether it has died."""

    call: str = ""
    when: str = ""
    done: bool = False
    seen: list[str] = field(default_factory=list)
    armed: bool = False

    def die(self) -> None:
        """The end of one worker."""
        self.done = True
        self.armed = False
        raise Crash


class Crashing:
    """The real provider, whose worker dies once at the planned point of a changing call."""

    def __init__(self, inner: Any, plan: Plan, changing: Sequence[str]) -> None:
        self._inner = inner
        self._plan = plan
        self._changing = frozenset(changing)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name not in self._changing:
            return call

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            plan = self._plan
            plan.seen.append(name)
            mine = plan.call == name and not plan.done
            if mine and plan.when == "before the call":
                plan.die()
            result = call(*args, **kwargs)
            if mine and plan.when == "after the call":
                plan.die()
            if mine and plan.when == "before the save":
                plan.armed = True
            return result

        return wrapped


@contextmanager
def mortal(plan: Plan) -> Iterator[None]:
    """While this lasts, the first write after the planned call kills the worker instead of being made."""

    def guard(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if plan.armed and sql.lstrip().upper().startswith(("UPDATE", "INSERT", "DELETE")):
            plan.die()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(guard):
        yield


def visit(work: Callable[..., Any], kind: str, plan: Plan, most: int = 3) -> None:
    """One round of visits; a worker that dies leaves its lease, which runs out at once here."""
    try:
        with mortal(plan):
            work(kind, most=most)
    except Crash:
        Intent.objects.update(leased_until=None, lease="")
    Intent.objects.update(due_at=clock.now())


def point(noun: str, call: str, when: str, outcome: str) -> None:
    """Write down how one point ended."""
    path = os.environ.get("QD_CHAOS_TABLE")
    if path:
        with Path(path).open("a") as table:
            table.write(json.dumps({"noun": noun, "call": call, "when": when, "outcome": outcome}) + "\n")
