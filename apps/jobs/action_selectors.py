"""Named reads of job actions: what a wish would do to each job, and what was asked before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from django.db.models import prefetch_related_objects
from django.utils.translation import gettext as _

from apps.clusters.models import Node
from apps.core import clock, units
from apps.jobs.action_models import JobAction
from apps.jobs.action_rules import Wish
from apps.jobs.action_states import ACTION_OPEN, HELD_REASONS, ActionKind
from apps.jobs.array_rules import array_of
from apps.jobs.block_ends import longest_limit, minutes_left_on
from apps.jobs.models import Attempt, Job
from apps.jobs.permissions import can_cancel_job
from apps.jobs.pricing import price_on, share_price
from apps.jobs.queue_models import QueueEntry
from apps.jobs.rules import hold_for, is_final_state
from apps.jobs.selectors import nodes_of, usable_nodes
from apps.jobs.states import ATTEMPT_ENDED, AttemptPhase, JobOrigin
from apps.jobs.template_fields import field_words
from apps.jobs.template_rules import LABELS, is_locked_to
from apps.teams.permissions import Actor

ZERO = Decimal(0)
#: Kinds that move the hold; one at a time.
MONEY = frozenset({ActionKind.TIME_LIMIT, ActionKind.PARTITION})


@dataclass(frozen=True)
class ActionLine:
    """What a wish does to one job, or why not (``problem``, empty where it is asked).

    ``usd`` and ``gpu_hours`` are held in addition; below zero they come back once the scheduler has taken it.
    """

    job: Job
    outcome: str = ""
    problem: str = ""
    usd: Decimal = ZERO
    gpu_hours: Decimal = ZERO
    attempt: Attempt | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


def is_operator(actor: Actor) -> bool:
    """Whether someone's actions may use what the scheduler grants to operators alone."""
    return actor.everywhere("jobs.manage")


def actions_of(job: Job) -> list[JobAction]:
    """All wishes about a job, newest first, at most 100."""
    return list(JobAction.objects.filter(job=job).select_related("attempt").order_by("-id")[:100])


def open_actions(job: Job) -> list[JobAction]:
    """What is still to be sent or settled, the oldest first."""
    rows = JobAction.objects.filter(job=job, phase__in=ACTION_OPEN).select_related("job", "job__team", "job__cluster")
    return list(rows.select_related("attempt", "job", "job__team", "job__cluster").order_by("id"))


def is_held(attempt: Attempt | None) -> bool:
    """Whether somebody keeps a waiting attempt from starting."""
    return attempt is not None and attempt.observed_state == "PENDING" and attempt.observed_reason in HELD_REASONS


def beyond_kubernetes(job: Job, kind: str) -> str:
    """Why Kubernetes cannot do this to a job; "" where it can, and on Slurm."""
    if not job.cluster.is_kubernetes:
        return ""
    match kind:
        case ActionKind.SIGNAL:
            return _("runs on Kubernetes, which sends no signals to pods; cancelling it sends TERM first")
        case ActionKind.PRIORITY:
            return _("runs on Kubernetes, which knows no nice: Kueue orders jobs by their priority class")
        case ActionKind.PARTITION:
            return _("runs on Kubernetes, which has no partitions: its queue is that of the team")
        case ActionKind.REQUEUE_TASK:
            return _("runs on Kubernetes, which runs no single task again")
        case ActionKind.TIME_LIMIT if job.manifest:
            return _("is a manifest: what it says itself is not changed from here")
    return ""


def verbs_for(job: Job, attempt: Attempt | None) -> list[tuple[str, str]]:
    """(kind, label) of what makes sense for an attempt as it is now; who may is asked elsewhere."""
    if attempt is None or attempt.phase in ATTEMPT_ENDED or attempt.stop_reason:
        return []
    if attempt.phase == AttemptPhase.RUNNING:
        kinds = [ActionKind.SIGNAL, ActionKind.TIME_LIMIT]
    elif is_held(attempt):
        kinds = [ActionKind.RELEASE, ActionKind.TIME_LIMIT, ActionKind.PARTITION]
    else:
        kinds = [ActionKind.HOLD, ActionKind.PRIORITY, ActionKind.TIME_LIMIT, ActionKind.PARTITION]
    return [(str(kind), str(kind.label)) for kind in kinds if not beyond_kubernetes(job, kind)]


def action_lines(actor: Actor, jobs: Sequence[Job], wish: Wish) -> list[ActionLine]:
    """What the wish would do to each of these jobs, in their order."""
    newest: dict[int, Attempt] = {}
    for attempt in Attempt.objects.filter(job__in=jobs).order_by("number"):
        newest[attempt.job_id] = attempt
    moving: set[int] = set()
    if wish.kind in MONEY:
        prefetch_related_objects(jobs, "template")
        rows = JobAction.objects.filter(job__in=jobs, kind__in=MONEY, phase__in=ACTION_OPEN)
        moving = set(rows.values_list("job_id", flat=True))
    lines = []
    for job in jobs:
        current = newest.get(job.pk)
        problem = _problem(actor, job, current, wish)
        if not problem and job.pk in moving:
            problem = _("another change of it is under way")
        lines.append(ActionLine(job, problem=problem) if problem else _line(actor, job, current, wish))
    return lines


def _problem(actor: Actor, job: Job, attempt: Attempt | None, wish: Wish) -> str:
    if job.has_ended or attempt is None:
        return _("has already ended")
    if not can_cancel_job(actor, job):
        return _("is not yours to change")
    if job.stop_kind or attempt.stop_reason or attempt.phase in ATTEMPT_ENDED:
        return _("is being stopped or started again")
    if beyond := beyond_kubernetes(job, wish.kind):
        return beyond
    runs, held = attempt.phase == AttemptPhase.RUNNING, is_held(attempt)
    match wish.kind:
        case ActionKind.HOLD if runs:
            return _("runs already: only a job that waits can be held")
        case ActionKind.HOLD if held:
            return _("is held already")
        case ActionKind.RELEASE if not held:
            return _("is not held")
        case ActionKind.RELEASE if attempt.observed_reason == "JobHeldAdmin" and not is_operator(actor):
            return _("is held by an administrator: only operators release it")
        case ActionKind.SIGNAL if not runs:
            return _("does not run: there is nothing to signal")
        case ActionKind.PRIORITY if runs:
            return _("runs already: its priority changes nothing")
        case ActionKind.PRIORITY if held:
            # Slurm forgets the hold of a job whose nice changes.
            return _("is held: release it first, Slurm would forget the hold")
        case ActionKind.PRIORITY if wish.nice < 0 and not is_operator(actor):
            return _("may not pass others: only operators set a nice below zero")
        case ActionKind.CANCEL_TASK | ActionKind.REQUEUE_TASK if (
            not attempt.array or wish.task not in array_of(attempt.array).tasks
        ):
            return _("has no task %(task)s in this attempt") % {"task": wish.task}
        case ActionKind.REQUEUE_TASK if attempt.phase != AttemptPhase.RUNNING:
            return _("has not begun: nothing is to be run again")
        case ActionKind.PARTITION | ActionKind.TIME_LIMIT if job.parts:
            return _("has parts with partitions and limits of their own: cancel it and submit it anew")
        case ActionKind.PARTITION if runs:
            return _("runs already: it cannot move to another partition")
    return ""


def _line(actor: Actor, job: Job, attempt: Attempt | None, wish: Wish) -> ActionLine:
    assert attempt is not None
    match wish.kind:
        case ActionKind.TIME_LIMIT:
            return _limit_line(actor, job, attempt, wish)
        case ActionKind.PARTITION:
            return _partition_line(job, attempt, wish)
        case ActionKind.HOLD:
            outcome = _("keeps its place and its hold of money, and does not start until it is released")
        case ActionKind.RELEASE:
            outcome = _("may start again when its turn comes")
        case ActionKind.SIGNAL:
            outcome = _("gets %(signal)s; a program that does not handle it ends") % {"signal": wish.signal}
        case ActionKind.CANCEL_TASK:
            outcome = _("task %(task)s is ended; the others go on") % {"task": wish.task}
        case ActionKind.REQUEUE_TASK:
            return _again_line(job, attempt, wish)
        case _:
            outcome = _("gets nice %(nice)s; the higher, the later its turn") % {"nice": wish.nice}
    return ActionLine(job, outcome, attempt=attempt, parameters=wish.parameters)


def _again_line(job: Job, attempt: Attempt, wish: Wish) -> ActionLine:
    rows = QueueEntry.objects.filter(attempt=attempt, array_task=wish.task).order_by("pk")
    state = rows.values_list("state", flat=True).last() or "PENDING"
    facts = {"task": wish.task, "usd": units.usd(hold_for_task(job))}
    if state == "COMPLETED":
        return ActionLine(job, problem=_("has finished task %(task)s with success already") % facts)
    if state == "PENDING":
        return ActionLine(job, problem=_("has not begun task %(task)s yet") % facts)
    if is_final_state(state):
        outcome = _("task %(task)s runs again when the others of this attempt have ended; %(usd)s are held for it then")
    else:
        outcome = _(
            "task %(task)s is ended and runs again when the others of this attempt have ended; %(usd)s are held for it "
            "then"
        )
    return ActionLine(job, outcome % facts, attempt=attempt, parameters=wish.parameters)


def hold_for_task(job: Job) -> Decimal:
    """USD held for one task of an array, or for the whole of any other job."""
    return hold_for(job.nodes, job.gpus_per_node, job.time_limit_min, job.usd_per_gpu_hour, job.usd_per_node_hour)[1]


def _fixed(job: Job, name: str, new: Any) -> str:
    """Why a field of a job does not change that its template fixes; "" where it may."""
    template = job.template
    if template is None or name not in template.locked or is_locked_to(name, template.defaults.get(name), new):
        return ""
    facts = {"field": LABELS[name], "value": field_words(name, template.defaults.get(name)), "template": template.name}
    return _("is from template %(template)s, which fixes %(field)s to %(value)s") % facts


def _limit_line(actor: Actor, job: Job, attempt: Attempt, wish: Wish) -> ActionLine:
    new, old = wish.time_limit_min, job.time_limit_min
    if new == old:
        return ActionLine(job, problem=_("has this limit already"))
    if problem := _fixed(job, "time_limit_min", new):
        return ActionLine(job, problem=problem)
    most = job.cluster.observed_max_time_min
    if new > old and most is not None and new > most:
        facts = {"asked": new, "limit": most}
        return ActionLine(job, problem=_("%(asked)s min; the cluster allows %(limit)s min") % facts)
    runs = attempt.started_at is not None and attempt.phase == AttemptPhase.RUNNING
    ran_min = int((clock.now() - attempt.started_at).total_seconds() // 60) if runs and attempt.started_at else 0
    left = _left_before_block(job, attempt, runs)
    if new > old and left is not None and new - ran_min > left:
        facts = {"asked": new, "most": max(0, left + ran_min)}
        text = _("%(asked)s min; the block that its nodes belong to ends first, at most %(most)s min fit")
        return ActionLine(job, problem=text % facts)
    if job.origin == JobOrigin.OUTSIDE:
        return ActionLine(job, _outside_limit_words(new, old, ran_min, runs), "", ZERO, ZERO, attempt, wish.parameters)
    hours, usd = _held(job, attempt, new)
    old_hours, old_usd = _held(job, attempt, old)
    words = {"new": units.duration(new * 60), "old": units.duration(old * 60), "usd": units.usd(abs(usd - old_usd))}
    if new > old:
        outcome = _("ends after %(new)s at the latest instead of %(old)s; %(usd)s more is held") % words
        if runs and not is_operator(actor):
            outcome += ". " + _("Slurm may refuse it: it lets operators alone give a running job more time")
    elif runs and new <= ran_min:
        outcome = (
            _("has run longer than %(new)s already: Slurm ends it at once; %(usd)s of the hold comes back") % words
        )
    else:
        outcome = _("ends after %(new)s at the latest instead of %(old)s; %(usd)s of the hold comes back") % words
    return ActionLine(job, outcome, "", usd - old_usd, hours - old_hours, attempt, wish.parameters)


def _outside_limit_words(new: int, old: int, ran_min: int, runs: bool) -> str:
    """What a limit does to a job from outside: it is charged as it runs, so nothing is held for it."""
    words = {"new": units.duration(new * 60), "old": units.duration(old * 60)}
    if new < old and runs and new <= ran_min:
        return _("has run longer than %(new)s already: Slurm ends it at once") % words
    return _("ends after %(new)s at the latest instead of %(old)s; it is charged as it runs, nothing is held") % words


def _held(job: Job, attempt: Attempt, minutes: int, rate: Decimal | None = None) -> tuple[Decimal, Decimal]:
    """(GPU-hours, USD) held for so long, at another rate than its own where one is given."""
    gpu_rate, node_rate = (job.usd_per_gpu_hour, job.usd_per_node_hour) if rate is None else (rate, rate)
    hours, usd = hold_for(job.nodes, job.gpus_per_node, minutes, gpu_rate, node_rate)
    return hours * attempt.tasks, usd * attempt.tasks


def _left_before_block(job: Job, attempt: Attempt, runs: bool) -> int | None:
    """Minutes from now until the blocks of its nodes end; None where none does."""
    if runs:
        left = [minutes for node in nodes_of(job, attempt) if (minutes := minutes_left_on(node)) is not None]
        return min(left, default=None)
    return longest_limit(_places(job, attempt, job.partition), job.nodes)


def _places(job: Job, attempt: Attempt, partition: str) -> list[Node]:
    nodes = usable_nodes(job.cluster, job.gpu_type, job.gpus_per_node, partition)
    return [node for node in nodes if node.name not in attempt.excluded_nodes]


def _partition_line(job: Job, attempt: Attempt, wish: Wish) -> ActionLine:
    known = [str(p.get("name")) for p in job.cluster.observed_partitions]
    if wish.partition == job.partition:
        return ActionLine(job, problem=_("is in this partition already"))
    if problem := _fixed(job, "partition", wish.partition):
        return ActionLine(job, problem=problem)
    if known and wish.partition not in known:
        facts = {"name": wish.partition, "known": ", ".join(known)}
        return ActionLine(job, problem=_("no partition %(name)s; there are %(known)s") % facts)
    nodes = [node for node in _places(job, attempt, wish.partition) if wish.partition in node.partitions]
    if len(nodes) < job.nodes:
        counts: dict[str, str | int] = {"name": wish.partition, "fitting": len(nodes), "nodes": job.nodes}
        text = _("partition %(name)s has %(fitting)s nodes that fit; it needs %(nodes)s")
        return ActionLine(job, problem=text % counts)
    price = price_on(job.cluster, nodes, job.gpu_type or nodes[0].gpu_type)
    share = None
    if not job.gpus_per_node:
        share = share_price(job.cluster, job, nodes)
        price = share or price or (ZERO, "")
    if price is None:
        return ActionLine(job, problem=_("no price is known for the nodes of %(name)s") % {"name": wish.partition})
    parameters = {**wish.parameters, "usd_per_gpu_hour": str(price[0]), "price_source": price[1]}
    if share is not None:
        parameters["usd_per_node_hour"] = str(share[0])
    if job.origin == JobOrigin.OUTSIDE:
        facts = {"name": wish.partition, "rate": units.usd(price[0])}
        if job.gpus_per_node:
            outcome = _("moves to %(name)s at %(rate)s a GPU-hour; it is charged as it runs, nothing is held") % facts
        else:
            outcome = _("moves to %(name)s at %(rate)s a node-hour; it is charged as it runs, nothing is held") % facts
        return ActionLine(job, outcome, "", ZERO, ZERO, attempt, parameters)
    _hours, usd = _held(job, attempt, job.time_limit_min, price[0])
    _same, old_usd = _held(job, attempt, job.time_limit_min)
    facts = {"name": wish.partition, "rate": units.usd(price[0]), "usd": units.usd(abs(usd - old_usd))}
    if usd != old_usd and not job.gpus_per_node:
        more = _("moves to %(name)s at %(rate)s a node-hour; %(usd)s more is held")
        less = _("moves to %(name)s at %(rate)s a node-hour; %(usd)s of the hold comes back")
        outcome = (more if usd > old_usd else less) % facts
    elif usd > old_usd:
        outcome = _("moves to %(name)s at %(rate)s a GPU-hour; %(usd)s more is held") % facts
    elif usd < old_usd:
        outcome = _("moves to %(name)s at %(rate)s a GPU-hour; %(usd)s of the hold comes back") % facts
    else:
        outcome = _("moves to %(name)s at the same price") % facts
    return ActionLine(job, outcome, "", usd - old_usd, ZERO, attempt, parameters)
