"""Named reads of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from apps.audit.models import Event
from apps.clusters.models import Cluster, Node
from apps.clusters.states import NodePhase
from apps.core.errors import NotFound
from apps.costs.selectors import Sums, sums_of
from apps.costs.states import Unit
from apps.jobs.models import Attempt, Job, JobTemplate, LogChunk, ProgressPoint
from apps.jobs.permissions import can_cancel_job
from apps.jobs.states import ATTEMPT_LIVE, ATTEMPT_PLACED, AttemptPhase, JobPhase
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
            job__cluster=cluster, phase__in=ATTEMPT_PLACED | {AttemptPhase.SUBMITTING}
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


def templates_visible_to(actor: Actor) -> QuerySet[JobTemplate]:
    """Templates one may submit with."""
    if not actor.holds("templates.view"):
        return JobTemplate.objects.none()
    return JobTemplate.objects.filter(is_enabled=True)


def job_sums(job: Job) -> Sums:
    """USD held, charged and released for a job."""
    return sums_of([job.uid], Unit.USD).get(job.uid, Sums(Decimal(0), Decimal(0), Decimal(0)))


def job_costs(jobs: Iterable[Job]) -> dict[str, Decimal]:
    """USD charged so far by job uid; 0 where nothing was."""
    listed = [j.uid for j in jobs]
    found = sums_of(listed, Unit.USD)
    return {uid: found[uid].charged if uid in found else Decimal(0) for uid in listed}


@dataclass(frozen=True)
class LogPage:
    """A window of a job's output; ``next_id`` continues it, ``is_open`` says whether more may come."""

    chunks: list[LogChunk]
    next_id: int
    first_id: int
    is_open: bool


def log_page(
    job: Job,
    *,
    after_id: int = 0,
    limit: int = 200,
    tail: bool = False,
    attempt: int | None = None,
    before_id: int | None = None,
) -> LogPage:
    """Chunks after an id, the last ones before ``before_id``, or the last ones at all with ``tail``.

    At most ``limit`` (≤ 500) of at most 32 KiB each, oldest first.
    """
    rows = LogChunk.objects.filter(attempt__job=job).select_related("attempt")
    if attempt is not None:
        rows = rows.filter(attempt__number=attempt)
    limit = max(1, min(limit, 500))
    if before_id is not None:
        rows = rows.filter(id__lt=before_id)
    if tail or before_id is not None:
        chunks = list(rows.order_by("-id")[:limit])[::-1]
    else:
        chunks = list(rows.filter(id__gt=after_id).order_by("id")[:limit])
    last = chunks[-1].pk if chunks else after_id
    return LogPage(chunks, last, chunks[0].pk if chunks else after_id, not job.has_ended)


def progress_of(job: Job, most: int = 600) -> list[ProgressPoint]:
    """Progress of all attempts, oldest first, thinned evenly to at most ``most`` points, the last always kept."""
    ids = list(ProgressPoint.objects.filter(attempt__job=job).order_by("id").values_list("id", flat=True))
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
    rows = rows.exclude(fleet__delete_requested_at__isnull=False)
    if gpu_type:
        rows = rows.filter(gpu_type=gpu_type)
    found = [n for n in rows if n.gpus >= gpus_per_node]
    inside = [n for n in found if partition in n.partitions] if partition else []
    return inside or found
