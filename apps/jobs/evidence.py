"""What tells how a job runs: why it may be slow, its step times, its nodes' GPUs, and all that happened around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _

from apps.audit.models import Entry, Event
from apps.audit.timeline import lines_of
from apps.checkpoints.models import Checkpoint
from apps.checkpoints.states import CheckpointState
from apps.clusters.history import WORDS as CLUSTER_WORDS
from apps.clusters.models import Node
from apps.core import clock, units
from apps.health.models import Finding, Gpu, HealthEvent
from apps.health.selectors import gpus_of, live_findings
from apps.health.words import NODE_WORDS
from apps.jobs.history import moments_of
from apps.jobs.kube_selectors import happenings_for
from apps.jobs.models import Attempt, Job, ProgressPoint
from apps.jobs.selectors import attempts_of, nodes_of, progress_of
from apps.jobs.slow_rules import Cause, GpuReading, Pace, Save, causes_of
from apps.jobs.states import JobPhase

# --- why slow ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reason:
    """One reason why a job may be slow: its code and the sentence with the evidence."""

    code: str
    text: str


def slow_reasons(
    job: Job,
    attempt: Attempt | None,
    points: Sequence[ProgressPoint],
    nodes: Sequence[Node],
    findings: Mapping[int, Sequence[Finding]],
) -> list[Reason]:
    """Why a running job may be slow, in words; empty when it does not run or nothing is to say. Three queries."""
    if job.phase != JobPhase.RUNNING or attempt is None or attempt.started_at is None:
        return []
    paces = [Pace(p.at, p.step, p.tokens_per_s) for p in points if p.attempt_id == attempt.pk]
    newest = ProgressPoint.objects.filter(attempt=attempt, task=-1).order_by("-id")[:50]
    recent = [Pace(p.at, p.step, p.tokens_per_s) for p in newest][::-1]
    written = Checkpoint.objects.filter(attempt_uid=attempt.uid, state=CheckpointState.COMPLETE)
    # When its files changed last, not when that was found out: looking takes time that the job does not lose.
    saves = [Save(began, done) for began, done in written.values_list("first_seen_at", "changed_at")]
    # On a node that it shares with others an idle GPU may not be this job's.
    whole = [n for n in nodes if n.gpus == job.gpus_per_node]
    rows = gpus_of([n.pk for n in whole]) if whole else {}
    readings = [
        GpuReading(n.name, g.index, g.temperature_c, g.sm_active, g.observed_at)
        for n in whole
        for g in rows.get(n.pk, [])
    ]
    reasons = [
        Reason("Finding", _("%(title)s is open on %(node)s") % {"title": finding.title, "node": node.name})
        for node in nodes
        for finding in findings.get(node.pk, ())
    ]
    found = causes_of(clock.now(), attempt.started_at, paces, recent, saves, readings)
    return [*reasons, *(Reason(cause.code, cause_words(cause)) for cause in found)]


def slow_reasons_of(job: Job) -> list[Reason]:
    """The same from the job alone, with all the reads it takes."""
    if job.phase != JobPhase.RUNNING:
        return []
    attempts = attempts_of(job)
    attempt = attempts[-1] if attempts else None
    nodes = nodes_of(job, attempt)
    return slow_reasons(job, attempt, progress_of(job), nodes, live_findings([n.pk for n in nodes]))


def cause_words(cause: Cause) -> str:
    """A cause as a sentence in the language in force."""
    facts = cause.facts
    match cause.code:
        case "Stalled":
            return _("No step for %(silent)s, the last was %(step)s; usually one is reported every %(usual)s") % {
                "silent": units.duration(float(facts["silent_s"])),
                "step": units.count(int(facts["step"])),
                "usual": units.duration(float(facts["usual_s"])),
            }
        case "BelowMedian":
            return _("%(now)s tokens/s now, %(percent)s%% below its own median of %(usual)s") % {
                "now": units.count(round(float(facts["now"]))),
                "usual": units.count(round(float(facts["usual"]))),
                "percent": facts["percent"],
            }
        case "Saving":
            return _(
                "Checkpoints were being written for %(percent)s%% of its time: %(count)s of them, %(each)s each"
            ) % {
                "percent": facts["percent"],
                "count": facts["count"],
                "each": units.duration(float(facts["each_s"])),
            }
        case "IdleGpu":
            return _("GPU %(gpu)s of %(node)s works at %(percent)s%%, the others at %(usual)s%%") % facts
        case _:
            return _("GPU %(gpu)s of %(node)s is at %(celsius)s °C, the others at %(usual)s °C") % facts


# --- metrics -------------------------------------------------------------------------------------


def step_times(points: Sequence[ProgressPoint]) -> dict[int, float]:
    """Seconds a step took, by step: the time since the attempt's point before, spread over the steps between."""
    before: dict[int, ProgressPoint] = {}
    found: dict[int, float] = {}
    for point in points:
        last = before.get(point.attempt_id)
        if last is not None and point.step > last.step and point.at > last.at:
            found[point.step] = (point.at - last.at).total_seconds() / (point.step - last.step)
        before[point.attempt_id] = point
    return found


@dataclass(frozen=True)
class NodeReading:
    """The GPUs of one node as last read: shares from 0 to 1, °C, watts and MiB; None where nothing was read."""

    node: Node
    gpus: list[Gpu]
    sm_least: float | None
    sm_most: float | None
    hottest_c: float | None
    power_w: float | None
    memory_mib: float | None
    observed_at: datetime | None


def node_readings(nodes: Sequence[Node]) -> list[NodeReading]:
    """Latest readings by node; one query."""
    rows = gpus_of([n.pk for n in nodes])
    return [_reading(node, rows.get(node.pk, [])) for node in nodes]


def _reading(node: Node, gpus: list[Gpu]) -> NodeReading:
    work = [g.sm_active for g in gpus if g.sm_active is not None]
    power = [g.power_w for g in gpus if g.power_w is not None]
    memory = [g.memory_used_mib for g in gpus if g.memory_used_mib is not None]
    return NodeReading(
        node=node,
        gpus=gpus,
        sm_least=min(work, default=None),
        sm_most=max(work, default=None),
        hottest_c=max((g.temperature_c for g in gpus if g.temperature_c is not None), default=None),
        power_w=sum(power) if power else None,
        memory_mib=sum(memory) if memory else None,
        # The oldest: a node is only as fresh as the GPU that was heard last.
        observed_at=min((g.observed_at for g in gpus), default=None),
    )


# --- events --------------------------------------------------------------------------------------

SOURCES = ("job", "kubernetes", "cluster", "node", "health", "audit")
MAX_EVENTS = 500


@dataclass(frozen=True)
class Happening:
    """One thing that touched the job or its nodes while it lived; ``about`` names the object."""

    at: datetime
    source: str
    about: str
    colour: str
    text: str


def source_label(source: str) -> str:
    """A source in the language in force."""
    return {
        "job": _("Job"),
        "kubernetes": "Kubernetes",
        "cluster": _("Cluster"),
        "node": _("Node"),
        "health": _("Health"),
        "audit": _("Audit"),
    }[source]


def happenings_of(job: Job, attempts: Sequence[Attempt], sources: Sequence[str] = SOURCES) -> list[Happening]:
    """The job's own events, and from its submit to its end those of cluster and nodes; newest first, at most 500."""
    names = {name for attempt in attempts for name in attempt.nodes}
    nodes = {n.uid: n for n in Node.objects.filter(cluster=job.cluster, name__in=names)}
    until = job.ended_at or clock.now()
    within = {"at__gte": job.created_at, "at__lte": until}
    found: list[Happening] = []
    if "job" in sources:
        rows = Event.objects.filter(object_uid=job.uid).order_by("-at", "-id")[:MAX_EVENTS]
        found += [Happening(m.at, "job", job.name, m.colour, m.text) for m in moments_of(rows)]
    if "kubernetes" in sources and job.cluster.is_kubernetes:
        for row in happenings_for(job):
            about = _("attempt %(number)s") % {"number": row.attempt.number}
            found.append(Happening(row.at, "kubernetes", about, "bad" if row.is_bad else "wait", str(row.text)))
    for source, uids, words in (
        ("cluster", [job.cluster.uid], CLUSTER_WORDS),
        ("node", list(nodes), NODE_WORDS),
    ):
        if source in sources and uids:
            events = list(Event.objects.filter(object_uid__in=uids, **within).order_by("-at", "-id")[:MAX_EVENTS])
            for event in events:
                about = nodes[event.object_uid].name if event.object_uid in nodes else job.cluster.name
                found += [
                    Happening(line.at, source, about, line.colour, line.text) for line in lines_of([event], words)
                ]
    if "health" in sources and nodes:
        faults = HealthEvent.objects.filter(node__in=list(nodes.values()), **within).select_related("node")
        for fault in faults.order_by("-at", "-id")[:MAX_EVENTS]:
            slot = f" GPU {fault.gpu_index}" if fault.gpu_index is not None else ""
            text = f"{fault.source} {fault.code}: {fault.text}" if fault.text else f"{fault.source} {fault.code}"
            found.append(Happening(fault.at, "health", f"{fault.node.name}{slot}", "warn", text))
    if "audit" in sources:
        for entry in Entry.objects.filter(object_uid=job.uid).order_by("-created_at", "-id")[:MAX_EVENTS]:
            text = f"{entry.actor_name}: {entry.verb}"
            found.append(Happening(entry.created_at, "audit", job.name, "wait", text))
    return sorted(found, key=lambda h: h.at, reverse=True)[:MAX_EVENTS]
