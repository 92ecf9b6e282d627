"""Whether a failed attempt is followed by another: rules of the person first, then those that hold for every job.

A rule is a line: ``retry exit 75,137``, ``stop signal SEGV``, ``retry log NCCL*timeout``. A pattern of the log is plain
text in which ``*`` stands for anything within a line; it is searched piece by piece, so no pattern can take longer than
the text is long.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from apps.core.said import Said, said
from apps.jobs.states import AttemptPhase

RETRY, STOP = "retry", "stop"
#: Whose a rule is, in the order in which they are asked; after them come those that hold for every job.
OWN, TEMPLATE, TEAM = "job", "template", "team"
MAX_RULES, MAX_PATTERN = 20, 200
#: Restarts within a day without a newer complete checkpoint.
MOST_A_DAY = 3
_LINE = re.compile(r"(retry|stop)\s+(exit|signal|log)\s+(\S.*)", re.IGNORECASE)
#: What a program's own mistake looks like in its last lines: the same would happen again.
USER_ERRORS = (
    "SyntaxError:",
    "IndentationError:",
    "ModuleNotFoundError:",
    "ImportError:",
    "NameError:",
    "AttributeError:",
    "TypeError:",
    "KeyError:",
    "FileNotFoundError:",
    "PermissionError:",
    "command not found",
    "unrecognized arguments",
    "CUDA out of memory",
    "OutOfMemoryError",
)
#: What a machine, a GPU or the network did.
INFRASTRUCTURE = (
    "ncclSystemError",
    "ncclRemoteError",
    "NCCL*unhandled system error",
    "NCCL WARN*connection closed",
    "uncorrectable ECC error",
    "fallen off the bus",
    "unspecified launch failure",
    "Stale file handle",
    "Transport endpoint is not connected",
    "Socket timeout",
)


@dataclass(frozen=True)
class Rule:
    """One line: what to do when an exit code, a signal or a line of the log is as given.

    ``source`` says whose it is: the job's own, its template's or its team's, of that ``name``.
    """

    verb: str
    about: str
    values: tuple[str, ...]
    source: str = OWN
    name: str = ""

    @property
    def text(self) -> str:
        """As it is written."""
        return f"{self.verb} {self.about} {','.join(self.values)}"


@dataclass(frozen=True)
class Failure:
    """How an attempt ended and what came before it.

    ``restarts`` are failures that were followed by an attempt, ``restarts_in_vain`` those of the last day since which
    no newer checkpoint is complete. ``same_step``: the attempt before it failed at the same step on other nodes.
    """

    phase: str
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    log: str = ""
    node: str = ""
    restarts: int = 0
    most_restarts: int = 3
    restarts_in_vain: int = 0
    same_step: int | None = None
    is_array: bool = False


@dataclass(frozen=True)
class Decision:
    """Whether to start again, the rule that decided and the sentence that says so."""

    verb: str
    rule: str
    words: Said
    reason: str = ""


def parse_rules(lines: Sequence[str]) -> list[Rule]:
    """Rules of lines; empty ones are left out. Raises ValueError naming the line."""
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            text = gettext("line %(number)s: write retry or stop, then exit, signal or log, then what")
            raise ValueError(text % {"number": number})
        verb, about, rest = match[1].lower(), match[2].lower(), match[3].strip()
        values = (rest,) if about == "log" else tuple(part.strip().upper() for part in rest.split(","))
        if about == "exit" and not all(v.isdigit() and 1 <= int(v) <= 255 for v in values):
            raise ValueError(gettext("line %(number)s: exit codes are numbers from 1 to 255") % {"number": number})
        if about == "signal":
            values = tuple(v.removeprefix("SIG") for v in values)
            if not all(hasattr(signals, f"SIG{v}") for v in values):
                raise ValueError(gettext("line %(number)s: signals are names such as BUS") % {"number": number})
        if about == "log" and (len(rest) > MAX_PATTERN or not rest.strip("* ")):
            text = gettext("line %(number)s: a text of at most %(most)s characters, * for anything")
            raise ValueError(text % {"number": number, "most": MAX_PATTERN})
        found.append(Rule(verb, about, values))
    if len(found) > MAX_RULES:
        raise ValueError(gettext("at most %(most)s rules") % {"most": MAX_RULES})
    return found


def found_in(pattern: str, log: str) -> bool:
    """Whether a line of the log holds the pattern's pieces in their order; case does not matter."""
    pieces = [piece for piece in pattern.lower().split("*") if piece]
    for line in log.lower().splitlines():
        at = 0
        for piece in pieces:
            at = line.find(piece, at)
            if at < 0:
                break
            at += len(piece)
        else:
            return True
    return False


def _matches(rule: Rule, failure: Failure) -> bool:
    match rule.about:
        case "exit":
            return failure.exit_code is not None and str(failure.exit_code) in rule.values
        case "signal":
            code = failure.exit_code or 0
            number = failure.signal or (code - 128 if code > 128 else None)
            return number is not None and any(getattr(signals, f"SIG{v}") == number for v in rule.values)
        case _:
            return found_in(rule.values[0], failure.log)


def decide(failure: Failure, rules: Sequence[Rule]) -> Decision:
    """What follows a failed attempt, by the first rule that speaks of it."""
    if failure.phase == AttemptPhase.REQUEUED:
        return Decision(RETRY, "asked", said(_("it was put back on purpose: it starts again")))
    wanted = _wanted(failure, rules)
    return wanted if wanted.verb == STOP else _limit(failure) or wanted


def rules_of(own: Sequence[str], defaults: Sequence[Mapping[str, str]]) -> list[Rule]:
    """A job's own rules, then those of its template and team as they were when it was submitted."""
    inherited = [
        replace(rule, source=str(row.get("source", TEAM)), name=str(row.get("name", "")))
        for row in defaults
        for rule in parse_rules([str(row.get("rule", ""))])
    ]
    return [*parse_rules(own), *inherited]


def _whose(rule: Rule) -> Said:
    if rule.source == TEMPLATE:
        return said(_("a rule of template %(name)s decides: %(rule)s"), name=rule.name, rule=rule.text)
    if rule.source == TEAM:
        return said(_("a rule of team %(name)s decides: %(rule)s"), name=rule.name, rule=rule.text)
    return said(_("its own rule decides: %(rule)s"), rule=rule.text)


def _wanted(failure: Failure, rules: Sequence[Rule]) -> Decision:
    if failure.phase in (AttemptPhase.NODE_FAILED, AttemptPhase.LOST):
        if failure.node:
            text = said(_("%(node)s failed: it starts again without it"), node=failure.node)
            return Decision(RETRY, "node", text)
        return Decision(RETRY, "node", said(_("the machines failed, not the program: it starts again")))
    for rule in rules:
        if _matches(rule, failure):
            return Decision(rule.verb, rule.text, _whose(rule), failure.reason)
    if failure.phase != AttemptPhase.FAILED or failure.is_array or failure.reason == "OutOfMemory":
        return Decision(STOP, "end", said(_("an end like this is not repeated")), failure.reason)
    for pattern in USER_ERRORS:
        if found_in(pattern, failure.log):
            told = _("its output says %(pattern)s: the program's own error would happen again")
            text = said(told, pattern=pattern)
            return Decision(STOP, "user-error", text, failure.reason)
    for pattern in INFRASTRUCTURE:
        if found_in(pattern, failure.log):
            text = said(_("its output says %(pattern)s: the machines' fault, it starts again"), pattern=pattern)
            return Decision(RETRY, "infrastructure", text)
    return Decision(STOP, "exit", said(_("it failed by itself: that is not repeated")), failure.reason)


def _limit(failure: Failure) -> Decision | None:
    """Why no further attempt is made although one would be; None while one may be."""
    if failure.restarts >= failure.most_restarts:
        text = said(_("recovered %(n)s times already"), n=failure.restarts)
        by_node = failure.phase in (AttemptPhase.NODE_FAILED, AttemptPhase.LOST)
        return Decision(STOP, "max-recoveries", text, "NodeFailure" if by_node else failure.reason)
    if failure.same_step is not None:
        text = said(_("step %(step)s failed twice, on different nodes: it is not the machines"), step=failure.same_step)
        return Decision(STOP, "same-step", text, "SameStep")
    if failure.restarts_in_vain >= MOST_A_DAY:
        text = said(_("%(n)s restarts in a day without a newer checkpoint"), n=failure.restarts_in_vain)
        return Decision(STOP, "no-progress", text, "NoProgress")
    return None
