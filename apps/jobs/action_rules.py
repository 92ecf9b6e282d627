"""What a person asks of a job in the scheduler, read and checked without a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from apps.core.errors import FieldProblem, InvalidInput
from apps.jobs.action_states import SIGNALS, ActionKind

#: Slurm's own bounds of nice.
MAX_NICE = 2_147_483_645


@dataclass(frozen=True)
class Wish:
    """One verb with what it needs; what the kind does not need is empty."""

    kind: str
    signal: str = ""
    nice: int = 0
    partition: str = ""
    time_limit_min: int = 0
    task: int = 0

    @property
    def parameters(self) -> dict[str, Any]:
        """What is stored with it."""
        match self.kind:
            case ActionKind.SIGNAL:
                return {"signal": self.signal}
            case ActionKind.PRIORITY:
                return {"nice": self.nice}
            case ActionKind.PARTITION:
                return {"partition": self.partition}
            case ActionKind.TIME_LIMIT:
                return {"time_limit_min": self.time_limit_min}
            case ActionKind.CANCEL_TASK | ActionKind.REQUEUE_TASK:
                return {"task": self.task}
            case _:
                return {}


def wish_of(kind: str, given: Mapping[str, Any]) -> Wish:
    """The wish of a request. Raises InvalidInput naming the member that is missing or wrong."""
    if kind not in ActionKind.values:
        known = ", ".join(ActionKind.values)
        raise _wrong("/kind", _("%(kind)s is not one of %(known)s") % {"kind": kind[:40], "known": known})
    match kind:
        case ActionKind.SIGNAL:
            name = str(given.get("signal") or "").upper().removeprefix("SIG")
            if name not in SIGNALS:
                raise _wrong("/signal", _("must be one of %(choices)s") % {"choices": ", ".join(SIGNALS)})
            return Wish(kind, signal=name)
        case ActionKind.PRIORITY:
            return Wish(kind, nice=_whole("/nice", given.get("nice"), -MAX_NICE, MAX_NICE))
        case ActionKind.PARTITION:
            if not (partition := str(given.get("partition") or "").strip()):
                raise _wrong("/partition", _("a value is needed"))
            return Wish(kind, partition=partition[:60])
        case ActionKind.CANCEL_TASK | ActionKind.REQUEUE_TASK:
            return Wish(kind, task=_whole("/task", given.get("task"), 0, 4_000_000))
        case ActionKind.TIME_LIMIT:
            return Wish(kind, time_limit_min=_whole("/time_limit_min", given.get("time_limit_min"), 1, 60 * 24 * 90))
    return Wish(kind)


def _whole(pointer: str, value: Any, low: int, high: int) -> int:
    text = str(value).strip() if value is not None and not isinstance(value, bool) else ""
    try:
        number = int(text)
    except ValueError:
        raise _wrong(pointer, _("must be a whole number")) from None
    if not low <= number <= high:
        raise _wrong(pointer, _("must be from %(low)s to %(high)s") % {"low": f"{low:,}", "high": f"{high:,}"})
    return number


def _wrong(pointer: str, text: str) -> InvalidInput:
    return InvalidInput(f"{pointer}: {text}", problems=(FieldProblem(pointer, "invalid", text),))
