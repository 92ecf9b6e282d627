"""Why a job waits and when it starts, in sentences made from stored numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.core import clock
from apps.jobs.reason_words import waiting_words
from apps.jobs.start_models import StartPrediction
from apps.jobs.start_rules import Accuracy, Why
from apps.jobs.start_selectors import WhatIf, is_open

#: So many blocking jobs are named; the others are counted.
NAMED = 3


def at_words(instant: datetime) -> str:
    """``16:40 UTC``, with the date where it is not within a day."""
    far = abs(instant - clock.now()) > timedelta(hours=20)
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC" if far else "%H:%M UTC")


def range_words(p50_at: datetime, p90_at: datetime) -> str:
    """The range of an expected start: ``16:40 to 17:20 UTC``."""
    first, last = at_words(p50_at), at_words(p90_at)
    if first == last:
        return first
    if first[:-10] == last[:-10]:
        first, last = first.removesuffix(" UTC"), last[-9:]
    return _("%(first)s to %(last)s") % {"first": first, "last": last}


def accuracy_words(accuracy: Accuracy) -> str:
    """How good such expectations were here."""
    if not accuracy.starts:
        return _("no start here has been compared with what was expected yet")
    return _("%(inside)s of the last %(starts)s starts here were inside the range first told") % {
        "inside": accuracy.inside,
        "starts": accuracy.starts,
    }


def _jobs_words(keys: Sequence[str], more: int) -> str:
    named = list(keys[:NAMED])
    more += len(keys) - len(named)
    if more:
        return _("%(jobs)s and %(more)s more") % {"jobs": ", ".join(named), "more": more}
    if len(named) > 1:
        return _("%(jobs)s and %(last)s") % {"jobs": ", ".join(named[:-1]), "last": named[-1]}
    return named[0]


def needs_words(why: Mapping[str, Any], at: datetime) -> list[str]:
    """What a waiting job waits for, each in a clause. ``why`` are the numbers of ``Why`` with reason and partition."""
    reason, partition = str(why.get("reason") or ""), str(why.get("partition") or "")
    if not is_open(reason):
        return [waiting_words(reason)]
    if why.get("eligible_at"):
        begins = datetime.fromisoformat(str(why["eligible_at"]).replace("Z", "+00:00"))
        if begins > clock.now():
            return [_("it may not start before %(at)s") % {"at": at_words(begins)}]
    if why.get("missing") is None:
        return [waiting_words(reason)]
    parts: list[str] = []
    ahead, missing = int(why["ahead"]), int(why["missing"])
    if ahead:
        facts = {"count": ahead, "partition": partition}
        parts.append(
            ngettext("%(count)s job is ahead in %(partition)s", "%(count)s jobs are ahead in %(partition)s", ahead)
            % facts
            if partition
            else ngettext("%(count)s job is ahead", "%(count)s jobs are ahead", ahead) % facts
        )
    if missing:
        facts = {"count": missing, "partition": partition}
        parts.append(
            ngettext(
                "waits for %(count)s more node in %(partition)s",
                "waits for %(count)s more nodes in %(partition)s",
                missing,
            )
            % facts
            if partition
            else ngettext("waits for %(count)s more node", "waits for %(count)s more nodes", missing) % facts
        )
        parts += _blocker_words(why, at)
    elif not ahead:
        parts.append(
            waiting_words(reason)
            if reason not in ("", "None", "Resources")
            else _("the scheduler is about to start it")
        )
    if missing and int(why["unusable"]):
        count = int(why["unusable"])
        parts.append(
            ngettext(
                "%(count)s node is drained, down or reserved", "%(count)s nodes are drained, down or reserved", count
            )
            % {"count": count}
        )
    if nodes := int(why["could_start_with"]):
        parts.append(
            ngettext("would start now with %(count)s node", "would start now with %(count)s nodes", nodes)
            % {"count": nodes}
        )
    return parts


def _blocker_words(why: Mapping[str, Any], at: datetime) -> list[str]:
    keys = [str(key) for key in why.get("blockers") or ()]
    if not keys:
        return []
    more = int(why.get("blockers_more") or 0)
    if why.get("freed_in_s") is None:
        return [_("the jobs that run now would not free enough nodes")]
    ends_at = at + timedelta(seconds=float(why["freed_in_s"]))
    return [
        ngettext("job %(jobs)s ends about %(at)s", "jobs %(jobs)s end about %(at)s", len(keys) + more)
        % {"jobs": _jobs_words(keys, more), "at": at_words(max(ends_at, clock.now()))}
    ]


def expected_words(prediction: StartPrediction, accuracy: Accuracy | None = None) -> str:
    """The expected start with its range; with ``accuracy``, how good such ranges were. Empty where none is in sight."""
    if prediction.p50_at is None or prediction.p90_at is None or prediction.p90_at < clock.now():
        return ""
    told = _("Expected start: %(range)s") % {
        "range": range_words(max(prediction.p50_at, clock.now()), prediction.p90_at)
    }
    return told if accuracy is None else f"{told} ({accuracy_words(accuracy)})"


def what_if_words(answer: WhatIf, partition: str) -> str:
    """The answer to "what if", in one sentence."""
    if answer.is_now:
        return _("It would start now.")
    if answer.p50_at is None or answer.p90_at is None:
        if answer.why is not None and answer.why.fitting - answer.why.unusable < 1:
            return _("It would not start: no node that fits is in service.")
        return _("No start is in sight: the nodes that fit and are in service are too few.")
    parts = needs_words(_facts(answer.why, partition), clock.now()) if answer.why is not None else []
    told = _("It would start about %(range)s") % {"range": range_words(answer.p50_at, answer.p90_at)}
    return "; ".join([told, *parts]) + "."


def _facts(why: Why, partition: str) -> dict[str, Any]:
    return {
        "partition": partition,
        "reason": "Resources",
        "ahead": why.ahead,
        "missing": why.missing,
        "unusable": why.unusable,
        "blockers": why.blockers,
        "freed_in_s": why.freed_in_s,
        "could_start_with": 0,
    }
