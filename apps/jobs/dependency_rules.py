"""What a job waits for, in Slurm's words: ``afterok:NAME_OR_ID``, ``singleton``; what commas join must all hold."""

from __future__ import annotations

import re
from dataclasses import dataclass

from django.utils.translation import gettext as _

from apps.jobs.states import JOB_ENDED, JobPhase

#: How one of our own jobs may be waited for.
KINDS = ("after", "afterok", "afterany", "afternotok")
#: What Slurm alone knows how to wait for.
_SLURMS = frozenset({*KINDS, "aftercorr", "afterburstbuffer"})
_OURS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_THEIRS = re.compile(r"\d+(?:_(?:\d+|\*))?(?:\+\d+)?")


@dataclass(frozen=True)
class Wait:
    """One condition: a job of the portal by uid or name, or (``is_slurms``) an id that goes to Slurm as it is."""

    kind: str
    target: str = ""
    is_slurms: bool = False

    @property
    def text(self) -> str:
        """As Slurm writes it."""
        return f"{self.kind}:{self.target}" if self.target else self.kind


def parse_dependency(text: str) -> list[Wait]:
    """The conditions of a text. Raises ValueError in words."""
    found: list[Wait] = []
    if "?" in text:
        raise ValueError(_("conditions are joined by commas here: all of them must hold"))
    for part in "".join(text.split()).split(","):
        if not part:
            continue
        kind, colon, rest = part.partition(":")
        if kind == "singleton" and not colon:
            found.append(Wait("singleton", is_slurms=True))
            continue
        targets = rest.split(":") if rest else []
        if kind not in _SLURMS or not targets:
            facts = {"text": repr(part[:80]), "known": ", ".join(f"{k}:JOB" for k in KINDS)}
            raise ValueError(_("%(text)s is no condition; write %(known)s or singleton") % facts)
        for target in targets:
            is_slurms = bool(_THEIRS.fullmatch(target))
            if not is_slurms and (kind not in KINDS or not _OURS.fullmatch(target)):
                raise ValueError(_("%(text)s names no job") % {"text": repr(f"{kind}:{target}"[:80])})
            found.append(Wait(kind, target, is_slurms))
    return found


#: What a condition on a job comes to.
READY, WAITS, NEVER = "ready", "waits", "never"


def state_of_wait(kind: str, phase: str, *, has_started: bool) -> str:
    """Whether a job in this phase satisfies a condition on it."""
    ended = phase in JOB_ENDED
    match kind:
        case "after":
            return READY if has_started or ended else WAITS
        case "afterany":
            return READY if ended else WAITS
        case "afterok":
            return READY if phase == JobPhase.SUCCEEDED else NEVER if ended else WAITS
        case _:
            return NEVER if phase == JobPhase.SUCCEEDED else READY if ended else WAITS
