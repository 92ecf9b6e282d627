"""A reason that a cluster gives, as a code, a sentence with its facts, and whom it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worker.providers.values import Text


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something waits or ended. ``code`` is CamelCase and ours, ``text`` a sentence with its facts.

    ``is_final``: nothing will change by waiting. ``raw`` is what the cluster said, for those who want to read it.
    """

    code: str
    text: Text
    is_final: bool = False
    raw: str = ""

    def __str__(self) -> str:
        """The sentence in English."""
        return str(self.text)


@dataclass(frozen=True, slots=True)
class Rival:
    """A job that was let in before another, or in its place."""

    name: str
    team: str
    priority: str


#: Who stands behind the uid of a Workload and that of its job, each "" where it was not said; None: nobody we know.
Who = Callable[[str, str], Rival | None]


def text(template: str, /, **facts: object) -> Text:
    """A sentence."""
    return Text(template, facts)
