"""The one sentence a job page opens with, made from facts and translated."""

from __future__ import annotations

from decimal import Decimal

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.checkpoints.models import Checkpoint
from apps.checkpoints.states import CheckpointState
from apps.clusters.models import Node
from apps.clusters.states import NodePhase
from apps.core import clock, units
from apps.costs.selectors import Sums
from apps.jobs.action_words import kept_words
from apps.jobs.array_selectors import tally_of
from apps.jobs.block_ends import Room, held_words, room_for
from apps.jobs.dependency_selectors import standstill_of
from apps.jobs.kube_words import ended_words, said_words, waits_for_room
from apps.jobs.limit_selectors import limit_words
from apps.jobs.models import Attempt, Job
from apps.jobs.reason_words import waiting_words
from apps.jobs.rules import is_final_state
from apps.jobs.selectors import current_attempt, job_sums, queue_position
from apps.jobs.start_selectors import accuracy_of, prediction_of
from apps.jobs.start_words import expected_words, needs_words
from apps.jobs.states import AttemptPhase, JobOrigin, JobPhase

#: How long before it is too late to start a waiting job says so.
SAY_BEFORE_MIN = 24 * 60


def ends_words(room: Room) -> str:
    """Until when a waiting job must start to end before its block does; empty while that is far off."""
    if room.start_within_min is None or room.start_within_min > SAY_BEFORE_MIN:
        return ""
    return " " + _("It must start within %(left)s: %(block)s ends.") % {
        "left": units.duration(room.start_within_min * 60),
        "block": room.block,
    }


def waiting_sentence(job: Job, attempt: Attempt | None) -> str:
    """Why it waits, its place in the team's line and what is missing."""
    if kept := kept_words(attempt):
        return kept
    if attempt is not None and attempt.phase == AttemptPhase.PENDING and (still := standstill_of(job)) is not None:
        since = units.duration(clock.now() - job.phase_since)
        return _("Waiting for %(since)s: %(why)s.") % {"since": since, "why": still.words}
    room = room_for(job, attempt.excluded_nodes if attempt else ())
    if room.must_wait and (attempt is None or attempt.phase in (AttemptPhase.PENDING, AttemptPhase.SUBMITTING)):
        since = units.duration(clock.now() - job.phase_since)
        return _("Waiting for %(since)s: %(why)s.") % {"since": since, "why": held_words(job, room)}
    if attempt is not None and (limited := limit_words(job, attempt.observed_reason)):
        since = units.duration(clock.now() - job.phase_since)
        return _("Waiting for %(since)s: %(why)s.") % {"since": since, "why": limited}
    position = queue_position(job)
    head = _("Waiting: number %(position)s of team %(team)s on %(cluster)s") % {
        "position": position,
        "team": job.team.slug,
        "cluster": job.cluster.name,
    }
    again = "; " + attempt_words(attempt) if attempt is not None and attempt.number > 1 else ""
    if attempt is not None and attempt.phase == AttemptPhase.QUEUED and (told := said_words(attempt)):
        if not waits_for_room(attempt.observed_reason):
            # It has its nodes, or never will: its place in a line would mislead.
            return _("Cannot begin on %(cluster)s: %(why)s") % {"cluster": job.cluster.name, "why": f"{told}{again}"}
        expected = prediction_of(attempt)
        start = expected_words(expected, accuracy_of(job.cluster_id)) if expected is not None else ""
        return f"{head}{again}. {told}{f' {start}.' if start else ''}{ends_words(room)}"
    prediction = prediction_of(attempt)
    if prediction is not None:
        needs = "; ".join([head, *needs_words(prediction.why, prediction.made_at)])
        start = expected_words(prediction, accuracy_of(job.cluster_id))
        return f"{needs}{again}.{f' {start}.' if start else ''}{ends_words(room)}"
    nodes = list(Node.objects.filter(cluster=job.cluster).exclude(phase=NodePhase.GONE))
    excluded = set(attempt.excluded_nodes) if attempt else set()
    fits = [
        n
        for n in nodes
        if n.phase == NodePhase.READY and n.name not in excluded and n.gpus - n.gpus_used >= job.gpus_per_node
    ]
    missing = max(0, job.nodes_in_all - len(fits))
    if missing:
        need = ngettext("it needs %(count)s more free node", "it needs %(count)s more free nodes", missing) % {
            "count": missing
        }
    elif attempt is None or attempt.phase in (AttemptPhase.PENDING, AttemptPhase.SUBMITTING):
        need = _("it is being handed to the scheduler")
    else:
        need = waiting_words(attempt.observed_reason)
    tail = ""
    if missing and attempt is not None and attempt.observed_reason not in ("", "None", "Resources"):
        tail = " (" + waiting_words(attempt.observed_reason) + ")"
    start = ""
    if attempt is not None and attempt.expected_start_at and attempt.expected_start_at > clock.now():
        start = " " + _("Slurm expects it to start in %(wait)s.") % {
            "wait": units.duration(attempt.expected_start_at - clock.now())
        }
    return f"{head}; {need}{tail}{again}.{start}{ends_words(room)}"


def attempt_words(attempt: Attempt) -> str:
    """Which attempt it is and where it took up again."""
    facts = {"number": attempt.number, "step": units.count(attempt.resume_step)}
    if attempt.resume_step is None:
        return _("attempt %(number)s, from the beginning") % facts
    return _("attempt %(number)s, resumed from step %(step)s") % facts


def tasks_sentence(attempt: Attempt, since: str) -> str:
    """How far an array has come."""
    states = tally_of(attempt).states
    facts = {
        "since": since,
        "done": units.count(states.get("COMPLETED", 0)),
        "tasks": units.count(attempt.tasks),
        "running": units.count(states.get("RUNNING", 0)),
        "failed": units.count(sum(n for s, n in states.items() if is_final_state(s) and s != "COMPLETED")),
    }
    text = _("Running for %(since)s: %(done)s of %(tasks)s tasks succeeded, %(running)s run, %(failed)s failed")
    return text % facts


def running_sentence(job: Job, attempt: Attempt | None, newest: Checkpoint | None, sums: Sums) -> str:
    """Nodes, since when, progress, finish, checkpoint, money."""
    if attempt is not None and attempt.observed_state and is_final_state(attempt.observed_state):
        return _("Its script has ended; the GPUs of its nodes are read once more before it is said why.")
    parts = []
    since = units.duration(clock.now() - attempt.started_at) if attempt and attempt.started_at else "–"
    if attempt is not None and attempt.array:
        parts.append(tasks_sentence(attempt, since))
    else:
        text = ngettext(
            "Running on %(count)s node for %(since)s", "Running on %(count)s nodes for %(since)s", job.nodes_in_all
        )
        parts.append(text % {"count": job.nodes_in_all, "since": since})
    if attempt is not None and attempt.number > 1:
        parts.append(attempt_words(attempt))
    if job.step is not None:
        facts = {"step": units.count(job.step), "total": units.count(job.total_steps)}
        parts.append(
            _("step %(step)s of %(total)s") % facts if job.total_steps is not None else _("step %(step)s") % facts
        )
    if job.eta_s is not None and job.progress_at is not None:
        left = max(0.0, job.eta_s - (clock.now() - job.progress_at).total_seconds())
        parts.append(_("finishes in about %(left)s") % {"left": units.duration(left)})
    if newest is not None:
        parts.append(_("last checkpoint %(age)s ago") % {"age": units.duration(clock.now() - newest.changed_at)})
    facts = {"charged": units.usd(sums.charged), "held": units.usd(sums.held - sums.released)}
    if job.origin == JobOrigin.OUTSIDE:
        parts.append(_("submitted past the portal, so nothing is held; %(charged)s charged") % facts)
    else:
        parts.append(_("%(charged)s charged of %(held)s held") % facts)
    told = said_words(attempt)
    return "; ".join(parts) + "." + (f" {told}" if told else "")


def _end_words(job: Job) -> str:
    words = {
        "ExitCode": _("its script ended with exit code %(code)s") % {"code": job.exit_code},
        "LaunchFailure": _(
            "the scheduler could not start it: is the cluster's working folder there and writable on the nodes?"
        ),
        "Signal": _("its script was ended by %(signal)s") % {"signal": job.message},
        "OutOfMemory": _("it ran out of memory"),
        "TimeLimit": _("it reached its time limit of %(limit)s") % {"limit": units.duration(job.time_limit_min * 60)},
        "CancelledOutside": _("someone cancelled it outside the portal"),
        "NodeFailure": _("its nodes failed too often"),
        "SameStep": str(job.message),
        "DependencyNeverSatisfied": str(job.message),
        "ArrayTasks": _("one of its tasks failed: %(message)s") % {"message": job.message},
        "Refused": _("the scheduler refused it: %(message)s") % {"message": job.message},
        "Lost": _("the scheduler forgot it"),
        "NoProgress": _("it made no progress between failures"),
    }
    return ended_words(job) or words.get(job.reason, job.reason or str(job.message) or "–")


def _with_denial(job: Job, words: str) -> str:
    """Behind the sentence, why the last cancel or requeue came to nothing and who must do what."""
    return f"{words} {job.message}" if job.reason == "StopDenied" else words


def job_sentence(job: Job, attempt: Attempt | None = None, sums: Sums | None = None) -> str:
    """What is going on with a job, since when, what next, and whether anyone must act.

    ``sums`` are the job's from the ledger where the caller has read them already.
    """
    attempt = attempt or current_attempt(job)
    newest = (
        Checkpoint.objects.filter(series_id=job.series_id, state=CheckpointState.COMPLETE)
        .order_by("-step", "-id")
        .first()
    )
    since = units.duration(clock.now() - job.phase_since)
    sums = sums or job_sums(job)
    charged: Decimal = sums.charged
    match job.phase:
        case JobPhase.PENDING | JobPhase.QUEUED:
            return _with_denial(job, waiting_sentence(job, attempt))
        case JobPhase.RUNNING:
            return _with_denial(job, running_sentence(job, attempt, newest, sums))
        case JobPhase.RECOVERING:
            where = (
                _("from step %(step)s") % {"step": units.count(attempt.resume_step)}
                if attempt is not None and attempt.resume_step is not None
                else _("from the beginning: there is no complete checkpoint")
            )
            return _("Recovering for %(since)s: %(message)s; it starts again %(where)s. You need do nothing.") % {
                "since": since,
                "message": str(job.message).rstrip("."),
                "where": where,
            }
        case JobPhase.WAITING_BUDGET:
            return _("Stopped for %(since)s: the team's budget does not cover another attempt. %(message)s") % {
                "since": since,
                "message": job.message,
            }
        case JobPhase.CANCELLING:
            return _("Being cancelled for %(since)s, asked for by %(who)s.") % {"since": since, "who": job.stop_by}
        case JobPhase.SUCCEEDED:
            ran = units.duration(job.ended_at - job.started_at) if job.ended_at and job.started_at else "–"
            return _("Succeeded %(since)s ago after %(ran)s; %(charged)s charged.") % {
                "since": since,
                "ran": ran,
                "charged": units.usd(charged),
            }
        case JobPhase.CANCELLED:
            return _("Cancelled %(since)s ago by %(who)s; %(charged)s charged.") % {
                "since": since,
                "who": job.stop_by or "–",
                "charged": units.usd(charged),
            }
        case _:
            tail = (
                " " + _("The newest complete checkpoint is at step %(step)s.") % {"step": units.count(newest.step)}
                if newest is not None
                else ""
            )
            return (
                _("%(phase)s %(since)s ago: %(why)s; %(charged)s charged.")
                % {
                    "phase": JobPhase(job.phase).label,
                    "since": since,
                    "why": _end_words(job),
                    "charged": units.usd(charged),
                }
                + tail
            )
