"""Named reads of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import Max, QuerySet
from django.utils.translation import gettext as _

from apps.audit.models import Event
from apps.checkpoints.models import Checkpoint
from apps.checkpoints.states import CheckpointState
from apps.clusters.models import Cluster, Node
from apps.clusters.states import NodePhase
from apps.core import units
from apps.core.errors import BadQuery, NotFound
from apps.costs.selectors import Sums, sums_of
from apps.costs.states import Unit
from apps.jobs.models import Attempt, Job, ProgressPoint
from apps.jobs.permissions import can_cancel_job
from apps.jobs.states import ATTEMPT_LIVE, ATTEMPT_PLACED, JOB_LIVE, AttemptPhase, JobOrigin, JobPhase
from apps.teams.permissions import Actor


def jobs_visible_to(actor: Actor) -> QuerySet[Job]:
    """Jobs of teams the actor sees."""
    rows = Job.objects.select_related("team", "cluster", "owner", "template")
    if actor.everywhere("jobs.view"):
        return rows
    return rows.filter(team__in=actor.team_ids("jobs.view"))


def job_for(*, actor: Actor, may: str, uid: str) -> Job:
    """The job of this uid in which the actor holds the right. Raises NotFound."""
    job = jobs_visible_to(actor).filter(uid=uid).first()
    allowed = job is not None and (can_cancel_job(actor, job) if may == "jobs.cancel" else actor.may(may, job.team_id))
    if job is None or not allowed:
        raise NotFound(_("no job %(uid)s in which you may do this") % {"uid": uid})
    return job


#: How many jobs one request may stop, and the ways to stop them.
MAX_BULK = 500
STOP_KINDS = ("cancel", "requeue")


@dataclass(frozen=True)
class StopLine:
    """One of several jobs to stop: what happens to it, or why it is left alone (``problem``, empty when stopped).

    ``usd_open`` is what is still held for it.
    """

    job: Job
    outcome: str
    problem: str
    usd_open: Decimal


def jobs_picked(actor: Actor, uids: Iterable[str]) -> list[Job]:
    """These jobs in the order given; unknown ones are left out, they are not the actor's. Raises BadQuery."""
    wanted = list(dict.fromkeys(uids))
    if len(wanted) > MAX_BULK:
        raise BadQuery(_("at most %(most)s jobs at once") % {"most": MAX_BULK})
    found = {job.uid: job for job in jobs_visible_to(actor).filter(uid__in=wanted)}
    return [found[uid] for uid in wanted if uid in found]


def jobs_worth_stopping(matching: QuerySet[Job]) -> list[Job]:
    """Those of a filter's jobs that have not ended, newest first. Raises BadQuery where they are too many."""
    found = list(matching.filter(phase__in=JOB_LIVE).order_by("-created_at", "-id")[: MAX_BULK + 1])
    if len(found) > MAX_BULK:
        raise BadQuery(_("more than %(most)s jobs match: narrow the filters") % {"most": MAX_BULK})
    return found


def stop_lines(actor: Actor, jobs: Sequence[Job], kind: str) -> list[StopLine]:
    """What stopping these jobs would do to each, in their order; two queries."""
    sums = sums_of((job.uid for job in jobs), Unit.USD)
    complete = Checkpoint.objects.filter(
        series_id__in=[job.series_id for job in jobs], state=CheckpointState.COMPLETE, step__isnull=False
    )
    steps: dict[int, int] = dict(complete.values_list("series_id").annotate(newest=Max("step")))
    lines = []
    for job in jobs:
        problem = _stop_problem(actor, job, kind)
        usd = sums[job.uid].open_hold if job.uid in sums else Decimal(0)
        outcome = "" if problem else _stop_outcome(job, kind, steps.get(job.series_id), usd)
        lines.append(StopLine(job, outcome, problem, usd))
    return lines


def _stop_problem(actor: Actor, job: Job, kind: str) -> str:
    if job.has_ended:
        return _("has already ended")
    if job.stop_kind == "cancel" or (job.stop_kind and kind == "requeue"):
        return _("is already being stopped")
    if not can_cancel_job(actor, job):
        return _("is not yours to stop")
    if kind == "requeue" and job.origin == JobOrigin.OUTSIDE:
        return _("was submitted past the portal: it is not started again from here")
    if kind == "requeue" and job.manifest:
        return _("is a manifest: it is submitted again, not started again")
    if kind == "requeue" and job.phase != JobPhase.RUNNING:
        return _("does not run: there is nothing to start again")
    return ""


def _stop_outcome(job: Job, kind: str, step: int | None, usd: Decimal) -> str:
    facts = {"step": units.count(step), "usd": units.usd(usd)}
    if kind == "requeue":
        if step is None:
            return _("starts again from the beginning: it has no complete checkpoint")
        return _("starts again from step %(step)s") % facts
    if job.phase != JobPhase.RUNNING:
        return _("leaves the queue; %(usd)s goes back to the team") % facts
    if step is None:
        return _("ends without a complete checkpoint; %(usd)s goes back to the team") % facts
    return _("ends and keeps step %(step)s; %(usd)s goes back to the team") % facts


def job_by_uid(uid: str) -> Job | None:
    """For the worker."""
    return Job.objects.select_related("team", "cluster", "cluster__account", "series").filter(uid=uid).first()


def current_attempt(job: Job) -> Attempt | None:
    """The newest attempt."""
    return Attempt.objects.filter(job=job).order_by("-number").first()


def attempts_of(job: Job) -> list[Attempt]:
    """All attempts, oldest first."""
    return list(Attempt.objects.filter(job=job).order_by("number").prefetch_related("streams"))


def attempt_by_uid(uid: str) -> Attempt | None:
    """For the worker and the ingest."""
    return Attempt.objects.select_related("job", "job__team", "job__series").filter(uid=uid).first()


def attempts_placed(cluster: Cluster) -> list[Attempt]:
    """Attempts that the scheduler of this cluster knows: what the collector compares with."""
    return list(
        Attempt.objects.select_related("job").filter(
            # Jobs from outside are followed by their rows of the queue, however many there are.
            job__cluster=cluster,
            job__origin=JobOrigin.PORTAL,
            phase__in=ATTEMPT_PLACED | {AttemptPhase.SUBMITTING},
        )
    )


def attempts_on_nodes(cluster: Cluster, names: Iterable[str]) -> list[Attempt]:
    """Attempts that run on any of these nodes. The node lists are small JSON: compared here, not in SQL."""
    wanted = set(names)
    rows = Attempt.objects.select_related("job", "job__team").filter(
        job__cluster=cluster, phase__in=[AttemptPhase.RUNNING, AttemptPhase.STOPPING, AttemptPhase.QUEUED]
    )
    return [a for a in rows if wanted & set(a.nodes)]


def alive_attempt_uids(job: Job) -> frozenset[str]:
    """Attempts of a job that may still write."""
    return frozenset(Attempt.objects.filter(job=job, phase__in=ATTEMPT_LIVE).values_list("uid", flat=True))


def nodes_of(job: Job, attempt: Attempt | None) -> list[Node]:
    """The nodes an attempt runs or ran on, as rows where the portal knows them."""
    if attempt is None or not attempt.nodes:
        return []
    rows = Node.objects.filter(cluster=job.cluster, name__in=attempt.nodes).order_by("name", "-id")
    newest: dict[str, Node] = {}
    for row in rows:
        newest.setdefault(row.name, row)
    return list(newest.values())


def nodes_heard(attempt: Attempt | None) -> dict[str, datetime]:
    """When a runner on each node of an attempt was last heard; nodes without one are left out."""
    if attempt is None:
        return {}
    found: dict[str, datetime] = {}
    for stream in attempt.streams.all():
        if stream.heartbeat_at is not None:
            found[stream.node] = max(stream.heartbeat_at, found.get(stream.node, stream.heartbeat_at))
    return found


def job_sums(job: Job) -> Sums:
    """USD held, charged and released for a job."""
    return sums_of([job.uid], Unit.USD).get(job.uid, Sums(Decimal(0), Decimal(0), Decimal(0)))


def job_costs(jobs: Iterable[Job]) -> dict[str, Decimal]:
    """USD charged so far by job uid; 0 where nothing was."""
    listed = [j.uid for j in jobs]
    found = sums_of(listed, Unit.USD)
    return {uid: found[uid].charged if uid in found else Decimal(0) for uid in listed}


def progress_of(job: Job, most: int = 600, task: int = -1) -> list[ProgressPoint]:
    """Progress of all attempts, oldest first, thinned evenly to at most ``most`` points, the last always kept.

    Of an array that of one task; without one, none.
    """
    rows = ProgressPoint.objects.filter(attempt__job=job, task=task).order_by("id")
    ids = list(rows.values_list("id", flat=True))
    if len(ids) > most:
        stride = len(ids) / most
        ids = sorted({ids[int(i * stride)] for i in range(most)} | {ids[-1]})
    return list(ProgressPoint.objects.filter(id__in=ids).select_related("attempt").order_by("id"))


def job_events(job: Job) -> list[Event]:
    """The job's timeline, oldest first."""
    return list(Event.objects.filter(object_uid=job.uid).order_by("-at", "-id")[:300])[::-1]


def queue_position(job: Job) -> int:
    """1 for the next of the team's waiting jobs on this cluster, as they were submitted."""
    return (
        Job.objects.filter(
            team=job.team,
            cluster=job.cluster,
            phase__in=[JobPhase.PENDING, JobPhase.QUEUED, JobPhase.RECOVERING],
            created_at__lt=job.created_at,
        ).count()
        + 1
    )


def usable_nodes(cluster: Cluster, gpu_type: str = "", gpus_per_node: int = 0, partition: str = "") -> list[Node]:
    """Nodes of a cluster that exist and could run such a job, in service or not.

    A partition that no node names narrows nothing: it is refused elsewhere, by its name.
    """
    rows = Node.objects.filter(cluster=cluster).exclude(phase=NodePhase.GONE)
    rows = rows.exclude(fleet__delete_requested_at__isnull=False).exclude(group__delete_requested_at__isnull=False)
    rows = rows.select_related("fleet__reservation", "group__reservation")
    if gpu_type:
        rows = rows.filter(gpu_type=gpu_type)
    found = [n for n in rows if n.gpus >= gpus_per_node]
    inside = [n for n in found if partition in n.partitions] if partition else []
    return inside or found
