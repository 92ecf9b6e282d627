"""Job actions in words, in the language in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from apps.core import units
from apps.jobs.action_selectors import is_held
from apps.jobs.action_states import ActionKind
from apps.jobs.models import Attempt

EVENTS = frozenset({"ActionAsked", "ActionDone", "ActionRefused", "ActionUnknown"})
EVENT_COLOURS = {"ActionAsked": "wait", "ActionDone": "good", "ActionRefused": "bad", "ActionUnknown": "warn"}


def verb_words(kind: str, given: Mapping[str, Any]) -> str:
    """What is asked for, such as "time limit 2 h"."""
    match kind:
        case ActionKind.HOLD:
            return _("hold it")
        case ActionKind.RELEASE:
            return _("release it")
        case ActionKind.SIGNAL:
            return _("send it %(signal)s") % {"signal": given.get("signal")}
        case ActionKind.PRIORITY:
            return _("set its nice to %(nice)s") % {"nice": given.get("nice")}
        case ActionKind.PARTITION:
            return _("move it to partition %(name)s") % {"name": given.get("partition")}
        case ActionKind.CANCEL_TASK:
            return _("cancel its task %(task)s") % {"task": given.get("task")}
        case ActionKind.REQUEUE_TASK:
            return _("run its task %(task)s again") % {"task": given.get("task")}
        case ActionKind.TIME_LIMIT:
            minutes = given.get("time_limit_min")
            return _("set its time limit to %(limit)s") % {
                "limit": units.duration(minutes * 60) if isinstance(minutes, int) else "–"
            }
        case _:
            return kind


def event_words(kind: str, data: Mapping[str, Any]) -> str:
    """An event of an action as a sentence."""
    facts = {"by": data.get("by"), "what": verb_words(str(data.get("kind")), data), "why": data.get("answer", "")}
    match kind:
        case "ActionAsked":
            return _("%(by)s asked: %(what)s") % facts
        case "ActionDone":
            return _("Done: %(what)s") % facts
        case "ActionRefused":
            return _("Refused: %(what)s. %(why)s") % facts
        case _:
            return _("Nobody knows: %(what)s. %(why)s") % facts


def kept_words(attempt: Attempt | None) -> str:
    """The sentence of a job that somebody keeps from starting; empty for any other."""
    if attempt is None or not is_held(attempt):
        return ""
    if attempt.observed_reason == "JobHeldAdmin":
        return _("Held by an administrator of the cluster: it does not start until an operator releases it.")
    return _("Held: it keeps its place and does not start until it is released.")
