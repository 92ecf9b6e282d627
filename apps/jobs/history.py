"""How a job went: its curve with attempts joined, where its time went, its ledger, its timeline in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from django.db.models import Count, Max, Min, Sum
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.audit.models import Event
from apps.core import clock, units
from apps.costs.models import Posting
from apps.costs.states import AccountKind, PostingKind, Unit
from apps.jobs.action_words import EVENT_COLOURS, event_words
from apps.jobs.action_words import EVENTS as ACTION_EVENTS
from apps.jobs.models import Attempt, Job, JobHappening, ProgressPoint
from apps.jobs.states import ATTEMPT_COLOURS, JOB_COLOURS, AttemptPhase, JobPhase

# --- the curve -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Loss and throughput by step, one entry per step in each list (None where there is nothing).

    ``loss`` and ``tokens_per_s`` join the attempts: where two report a step the later one counts.
    ``lost_loss`` holds what an earlier attempt had reached beyond the checkpoint the next one
    resumed from, drawn through at the steps that only the later one reported. ``joins`` is
    (first step, attempt number) of every attempt after the first.
    """

    steps: list[int]
    loss: list[float | None]
    lost_loss: list[float | None]
    tokens_per_s: list[float | None]
    joins: list[tuple[int, int]]


def curve_of(points: Sequence[ProgressPoint]) -> Curve:
    """Join the attempts' points, which come in the order they were reported."""
    first_step: dict[int, int] = {}
    for point in points:
        number = point.attempt.number
        first_step[number] = min(point.step, first_step.get(number, point.step))
    kept: dict[int, ProgressPoint] = {}
    lost: dict[int, dict[int, float]] = {}
    for point in points:
        later = [step for number, step in first_step.items() if number > point.attempt.number]
        if later and point.step >= min(later):
            if point.loss is not None:
                lost.setdefault(point.attempt.number, {})[point.step] = point.loss
        else:
            kept[point.step] = point
    steps = sorted({*kept, *(step for reached in lost.values() for step in reached)})
    drawn: dict[int, float] = {}
    for reached in lost.values():
        drawn.update(_drawn_through(reached, steps))
    return Curve(
        steps=steps,
        loss=[kept[s].loss if s in kept else None for s in steps],
        lost_loss=[drawn.get(s) for s in steps],
        tokens_per_s=[kept[s].tokens_per_s if s in kept else None for s in steps],
        joins=sorted((step, number) for number, step in first_step.items() if number > min(first_step)),
    )


def _drawn_through(reached: dict[int, float], steps: Sequence[int]) -> dict[int, float]:
    """The straight lines between an attempt's points, at every one of ``steps`` they cross."""
    known = sorted(reached)
    found: dict[int, float] = {}
    at = 0
    for step in steps:
        if not known[0] <= step <= known[-1]:
            continue
        while known[at + 1 : at + 2] and known[at + 1] <= step:
            at += 1
        left = known[at]
        right = known[min(at + 1, len(known) - 1)]
        part = (step - left) / (right - left) if right > left else 0.0
        found[step] = reached[left] + (reached[right] - reached[left]) * part
    return found


# --- where the time went -------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """A stretch of a job's life: waiting, starting (no step yet), training, or training that was lost."""

    kind: str
    attempt: int
    started_at: datetime
    ended_at: datetime

    @property
    def length(self) -> timedelta:
        """How long."""
        return self.ended_at - self.started_at


SPAN_COLOURS = {"waiting": "wait", "starting": "held", "training": "used", "lost": "bad"}


def spans_of(job: Job, attempts: Sequence[Attempt], points: Sequence[ProgressPoint]) -> list[Span]:
    """The spans of all attempts, oldest first; time of zero length is left out."""
    now = clock.now()
    first_point: dict[int, datetime] = {}
    for point in points:
        first_point.setdefault(point.attempt.number, point.at)
    spans: list[Span] = []
    for index, attempt in enumerate(attempts):
        end = attempt.ended_at or now
        started = attempt.started_at or end
        spans.append(Span("waiting", attempt.number, attempt.created_at, started))
        training = min(first_point.get(attempt.number, end), end)
        spans.append(Span("starting", attempt.number, started, training))
        following = attempts[index + 1] if index + 1 < len(attempts) else None
        lost_from = end
        if following is not None and attempt.started_at is not None:
            lost_from = min(end, max(training, _reached_at(attempt, following.resume_step, points) or training))
        spans.append(Span("training", attempt.number, training, lost_from))
        spans.append(Span("lost", attempt.number, lost_from, end))
    return [s for s in spans if s.length > timedelta(0)]


def _reached_at(attempt: Attempt, step: int | None, points: Sequence[ProgressPoint]) -> datetime | None:
    """When the attempt reached a step, as far as the points tell."""
    if step is None:
        return None
    return max((p.at for p in points if p.attempt.number == attempt.number and p.step <= step), default=None)


@dataclass(frozen=True)
class TimeUse:
    """How much of a job's life one kind of span took; ``colour`` is a segment's class."""

    kind: str
    label: str
    colour: str
    length: timedelta


def time_use(spans: Iterable[Span]) -> list[TimeUse]:
    """Sums by kind, kinds without time left out."""
    labels = {
        "waiting": _("Waiting"),
        "starting": _("Starting"),
        "training": _("Training"),
        "lost": _("Lost to a failure"),
    }
    totals: dict[str, timedelta] = {}
    for span in spans:
        totals[span.kind] = totals.get(span.kind, timedelta(0)) + span.length
    return [TimeUse(k, label, SPAN_COLOURS[k], totals[k]) for k, label in labels.items() if k in totals]


# --- ledger --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LedgerLine:
    """Postings of one attempt and kind as one line: what each account gained or lost; the legs sum to zero."""

    kind: str
    label: str
    attempt: int | None
    postings: int
    first_at: datetime
    last_at: datetime
    legs: dict[str, Decimal]

    @property
    def sum(self) -> Decimal:
        """Always zero: each posting takes from one account what it gives to another."""
        return sum(self.legs.values(), Decimal(0))


@dataclass(frozen=True)
class JobLedger:
    """A job's lines in one unit with the totals of each account; ``accounts`` is (kind, label) in order of flow."""

    unit: str
    label: str
    accounts: list[tuple[str, str]]
    lines: list[LedgerLine]
    totals: dict[str, Decimal]

    @property
    def sum(self) -> Decimal:
        """Zero when the books balance."""
        return sum(self.totals.values(), Decimal(0))


def ledger_of(job: Job, unit: str, attempts: Sequence[Attempt]) -> JobLedger:
    """The job's postings in one unit, charges of one attempt added up; one query."""
    numbers = {a.uid: a.number for a in attempts}
    rows = (
        Posting.objects.filter(subject_uid=job.uid, unit=unit)
        .values("detail_uid", "kind", "source__kind", "target__kind")
        .annotate(amount=Sum("amount"), first=Min("at"), last=Max("at"), n=Count("id"), first_id=Min("id"))
        .order_by("first_id")
    )
    lines = []
    totals: dict[str, Decimal] = {}
    for row in rows:
        legs = {row["source__kind"]: -row["amount"], row["target__kind"]: row["amount"]}
        for kind, amount in legs.items():
            totals[kind] = totals.get(kind, Decimal(0)) + amount
        lines.append(
            LedgerLine(
                kind=row["kind"],
                label=str(PostingKind(row["kind"]).label),
                attempt=numbers.get(row["detail_uid"]),
                postings=row["n"],
                first_at=row["first"],
                last_at=row["last"],
                legs=legs,
            )
        )
    order = [AccountKind.ISSUER, AccountKind.FREE, AccountKind.HELD, AccountKind.SPENT]
    accounts = [(str(kind), str(kind.label)) for kind in order if kind in totals]
    return JobLedger(unit, str(Unit(unit).label), accounts, lines, totals)


# --- timeline ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """One entry of the timeline: a colour word, the sentence, and when."""

    colour: str
    text: str
    at: datetime
    kind: str


def moments_of(events: Iterable[Event]) -> list[Moment]:
    """Events as sentences in the language in force; a kind without words shows its English text."""
    return [Moment(_colour_of(e), _words_of(e), e.at, e.kind) for e in events]


def with_happenings(moments: Iterable[Moment], happenings: Iterable[JobHappening]) -> list[Moment]:
    """The timeline with what the cluster said of the job's attempts at its place, oldest first."""
    said = [Moment("bad" if row.is_bad else "wait", str(row.text), row.at, row.code) for row in happenings]
    return sorted([*moments, *said], key=lambda moment: moment.at)


def _colour_of(event: Event) -> str:
    if event.kind in ACTION_EVENTS:
        return EVENT_COLOURS[event.kind]
    phase = str(event.data.get("phase", ""))
    match event.kind:
        case "AttemptEnded":
            return ATTEMPT_COLOURS.get(phase, "off")
        case "BudgetOverdrawn":
            return "bad"
        case "JobEnded":
            return JOB_COLOURS.get(phase, "off")
        case "AttemptRunning":
            return "busy"
        case "NodeFailed" | "TaskNodeFailed" | "CheckpointTorn" | "StopDenied":
            return "bad"
        case "CheckpointComplete":
            return "good"
        case "RetryDecided":
            return "warn" if event.data.get("verb") == "retry" else "bad"
        case "Recovering" | "CancelRequested" | "RequeueRequested" | "AttemptRequeued" | "HeldBack":
            return "warn"
        case "Withdrawn" | "AttemptInterrupted":
            return "warn"
        case _:
            return "wait"


def _words_of(event: Event) -> str:
    data = event.data
    if event.kind in ACTION_EVENTS:
        return event_words(event.kind, data)
    facts = {
        "attempt": data.get("attempt"),
        "by": data.get("by"),
        "node": data.get("node"),
        "title": data.get("title"),
        "step": units.count(data.get("step")),
        "reason": data.get("reason"),
    }
    match event.kind:
        case "JobAccepted" if "gpus" in data:
            return _("Accepted: %(gpus)s GPUs for at most %(limit)s, %(usd)s held") % {
                "gpus": data["gpus"],
                "limit": units.duration(data.get("time_limit_min", 0) * 60),
                "usd": units.usd(Decimal(str(data.get("usd_held", "0")))),
            }
        case "AttemptSubmitted" if "scheduler_id" in data:
            _head, _mark, warning = event.text.partition("; it warns: ")
            # Kubernetes' ids name namespace, kind and object.
            is_object = "/" in str(data["scheduler_id"])
            text = (
                _("Attempt %(attempt)s is %(id)s in Kubernetes")
                if is_object
                else _("Attempt %(attempt)s is job %(id)s in Slurm")
            )
            text %= {**facts, "id": data["scheduler_id"]}
            return f"{text} ({warning})" if warning else text
        case "AttemptRunning" if data.get("nodes"):
            count = len(data["nodes"])
            return ngettext(
                "Attempt %(attempt)s runs on %(count)s node: %(nodes)s",
                "Attempt %(attempt)s runs on %(count)s nodes: %(nodes)s",
                count,
            ) % {**facts, "count": count, "nodes": ", ".join(data["nodes"])}
        case "AttemptRequeued":
            return _("The scheduler put attempt %(attempt)s back into its queue") % facts
        case "AttemptInterrupted":
            return _("Attempt %(attempt)s is ended and starts again from its newest checkpoint: %(why)s") % {
                **facts,
                "why": event.text,
            }
        case "NodeFailed" if data.get("node"):
            return _("%(title)s on %(node)s: attempt %(attempt)s is ended and starts again elsewhere") % facts
        case "TaskNodeFailed" if data.get("node"):
            return _("%(title)s on %(node)s: task %(task)s is ended and runs again elsewhere") % {
                **facts,
                "task": data.get("task"),
            }
        case "AttemptEnded" if data.get("phase") in AttemptPhase.values:
            return _("Attempt %(attempt)s ended: %(phase)s") % {**facts, "phase": _end_of(data)}
        case "JobEnded" if data.get("phase") in JobPhase.values:
            return _("Job ended: %(phase)s") % {"phase": JobPhase(data["phase"]).label}
        case "Recovering":
            return _recovering(data)
        case "RetryDecided":
            facts |= {"why": event.text, "rule": data.get("rule")}
            if data.get("verb") == "retry":
                return _("Another attempt: %(why)s (rule %(rule)s)") % facts
            return _("No further attempt: %(why)s (rule %(rule)s)") % facts
        case "CancelRequested" if data.get("by"):
            return _("%(by)s asked to cancel it") % facts
        case "RequeueRequested" if data.get("by"):
            return _("%(by)s asked to start it again") % facts
        case "CheckpointComplete":
            size = units.binary_bytes(data.get("bytes"))
            return _("Checkpoint at step %(step)s is complete, %(size)s") % {**facts, "size": size}
        case "CheckpointTorn":
            return _("Checkpoint at step %(step)s is torn: %(reason)s") % facts
        case "CheckpointGone":
            return _("Checkpoint at step %(step)s was deleted") % facts
        case _:
            return str(event.text or event.kind)


def _end_of(data: dict[str, object]) -> str:
    label = str(AttemptPhase(str(data["phase"])).label)
    code = data.get("exit_code")
    if data["phase"] == AttemptPhase.FAILED and code is not None:
        return _("%(phase)s, exit code %(code)s") % {"phase": label, "code": code}
    return label


def _recovering(data: dict[str, object]) -> str:
    step = data.get("resume_step")
    excluded = data.get("excluded")
    facts = {
        "attempt": data.get("attempt"),
        "step": units.count(step) if isinstance(step, int) else "",
        "nodes": ", ".join(map(str, excluded)) if isinstance(excluded, list) else "",
    }
    if step is not None and facts["nodes"]:
        return _("Attempt %(attempt)s starts from step %(step)s without %(nodes)s") % facts
    if step is not None:
        return _("Attempt %(attempt)s starts from step %(step)s") % facts
    if facts["nodes"]:
        return _("Attempt %(attempt)s starts from the beginning without %(nodes)s") % facts
    return _("Attempt %(attempt)s starts from the beginning") % facts
