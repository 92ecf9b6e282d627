"""One job asked of every cluster that a person may use: what it costs and when it starts on each, and which to take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from django.db.models import Count, Q
from django.utils.translation import gettext as _

from apps.clusters.kube_states import WorkloadKind
from apps.clusters.models import Cluster, Node
from apps.clusters.states import ClusterPhase, NodePhase
from apps.core import clock, units
from apps.jobs.kube_forms import default_image
from apps.jobs.services import JobSpec, Preview, job_preview
from apps.jobs.spec_fit import fitted
from apps.jobs.start_models import StartHistory
from apps.jobs.start_selectors import Asked, WhatIf, what_if
from apps.jobs.start_words import range_words, what_if_words
from apps.teams.models import Team
from apps.teams.permissions import Actor

#: So many clusters are asked in full, those first that have most room: the work stays the same however many there are.
MOST = 8
#: A cheaper cluster is taken where it starts at most this much later.
NEAR = timedelta(minutes=15)
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Candidate:
    """One cluster's answer; ``problem`` is the first thing against it, "" where a submit would be accepted.

    ``left_out`` is what its scheduler does not know of the spec. ``start`` is None where its queue was never read;
    ``doubt`` says why else it is None. ``has_history``: jobs have ended there, so that the start is more than a sum of
    time limits.
    """

    cluster: Cluster
    spec: JobSpec
    preview: Preview
    problem: str
    asked_at: datetime
    left_out: tuple[str, ...] = ()
    start: WhatIf | None = None
    doubt: str = ""
    has_history: bool = False
    is_chosen: bool = False

    @property
    def is_valid(self) -> bool:
        """A submit now would be accepted."""
        return not self.problem

    @property
    def kind_label(self) -> str:
        """What it is written as on Kubernetes."""
        kind = self.preview.workload_kind
        return f"{self.cluster.get_kind_display()} · {WorkloadKind(kind).label}" if kind in WorkloadKind.values else ""

    @property
    def starts_at(self) -> datetime | None:
        """When half of such jobs would have started; None where no start is in sight."""
        if self.start is None:
            return None
        return self.asked_at if self.start.is_now else self.start.p50_at

    @property
    def start_words(self) -> str:
        """When, in few words, with what is not known said."""
        if self.start is None:
            return self.doubt or _("not known: its queue has not been read yet")
        if self.start.is_now:
            return _("now")
        if self.start.p50_at is None or self.start.p90_at is None:
            return _("no start is in sight")
        told = range_words(self.start.p50_at, self.start.p90_at)
        return (
            told
            if self.has_history
            else _("%(range)s, by time limits alone: no job has ended here yet") % {"range": told}
        )

    @property
    def start_sentence(self) -> str:
        """When and why, in a sentence."""
        if self.start is None:
            return self.start_words
        return what_if_words(self.start, "" if self.cluster.is_kubernetes else _partition(self.spec, self.cluster))


@dataclass(frozen=True)
class Candidates:
    """All that were asked, the best first; ``more`` clusters were not. ``best`` is the one to take and ``why``."""

    rows: tuple[Candidate, ...] = ()
    more: int = 0
    best: Candidate | None = None
    why: str = ""


def candidates_for(
    *, actor: Actor, team: Team, clusters: Sequence[Cluster], spec: JobSpec, chosen: str = ""
) -> Candidates:
    """Ask each of these clusters, or the likeliest of them; ``chosen`` is the uid of one that is always asked."""
    likely = _likely(clusters, spec, chosen)
    known = set(StartHistory.objects.filter(cluster__in=likely).exclude(use={}).values_list("cluster_id", flat=True))
    images = {image for cluster in clusters if (image := default_image(cluster))}
    now = clock.now()
    rows = []
    for cluster in likely:
        row = _ask(actor, team, cluster, _for(spec, cluster, chosen, images), now)
        rows.append(replace(row, has_history=cluster.pk in known, is_chosen=cluster.uid == chosen))
    best, why = recommended(rows)
    rows.sort(key=lambda row: (row is not best, bool(row.problem), row.starts_at or _NEVER, row.preview.usd))
    return Candidates(tuple(rows), len(clusters) - len(likely), best, why)


def _likely(clusters: Sequence[Cluster], spec: JobSpec, chosen: str) -> list[Cluster]:
    """Those to ask, by one look at all their nodes."""
    if len(clusters) <= MOST:
        return list(clusters)
    fits = Q(gpus__gte=spec.gpus_per_node)
    if spec.gpu_type:
        fits &= Q(gpu_type=spec.gpu_type)
    counted = (
        Node.objects.filter(cluster__in=clusters)
        .exclude(phase=NodePhase.GONE)
        .values("cluster_id")
        .annotate(fitting=Count("pk", filter=fits), ready=Count("pk", filter=fits & Q(phase=NodePhase.READY)))
    )
    room = {row["cluster_id"]: (row["fitting"] >= spec.nodes, row["ready"], row["fitting"]) for row in counted}

    def order(cluster: Cluster) -> tuple[bool, bool, tuple[bool, int, int]]:
        return cluster.uid == chosen, cluster.phase == ClusterPhase.READY, room.get(cluster.pk, (False, 0, 0))

    return sorted(clusters, key=order, reverse=True)[:MOST]


def _for(spec: JobSpec, cluster: Cluster, chosen: str, images: Collection[str]) -> tuple[JobSpec, tuple[str, ...]]:
    """The spec as this cluster is asked for it, and what was left out."""
    asked, left = fitted(spec, cluster)
    if cluster.uid == chosen:
        return asked, left
    if asked.image in images and (own := default_image(cluster)):
        asked = replace(asked, image=own)
    names = [str(row.get("name")) for row in cluster.observed_partitions]
    if asked.partition and asked.partition not in names:
        # A partition is one cluster's own word.
        left = (*left, _("Partition %(name)s") % {"name": asked.partition})
        asked = replace(asked, partition="")
    return asked, left


def _partition(spec: JobSpec, cluster: Cluster) -> str:
    return spec.partition or cluster.partition


def asked_by(spec: JobSpec, preview: Preview, cluster: Cluster) -> Asked:
    """What a new job asks for, as far as its start depends on it."""
    return Asked(
        nodes=spec.nodes + sum(part.nodes for part in preview.parts),
        gpus_per_node=spec.gpus_per_node,
        limit_min=preview.time_limit_min,
        partition=_partition(spec, cluster),
        gpu_type=spec.gpu_type,
        user_name=preview.slurm_user or cluster.user_name,
        name=spec.name,
    )


def _ask(
    actor: Actor, team: Team, cluster: Cluster, asked: tuple[JobSpec, tuple[str, ...]], now: datetime
) -> Candidate:
    spec, left = asked
    preview = job_preview(actor=actor, team=team, cluster=cluster, spec=spec)
    problem = preview.problems[0].detail if preview.problems else _money_problem(preview)
    start = None
    if not preview.problems and cluster.queue_read_at is not None:
        start = what_if(cluster, asked_by(spec, preview, cluster))
    doubt = ""
    if start is not None and start.is_now and preview.free_nodes < spec.nodes:
        # What was read of the queue says that it is empty and the nodes say that they are not: neither is believed.
        start, doubt = None, _("not known: fewer nodes are free than it needs, and nothing that waits explains it")
    return Candidate(cluster, spec, preview, problem, now, left, start, doubt)


def _money_problem(preview: Preview) -> str:
    if preview.usd_left < 0:
        facts = {"need": units.usd(preview.usd), "free": units.usd(preview.budget.free)}
        return _("the team's budget has %(free)s left, this needs %(need)s") % facts
    if preview.gpus_left < 0:
        facts = {"need": str(preview.gpus), "free": f"{preview.quota.free:.0f}"}
        return _("the team may hold %(free)s more GPUs now, this needs %(need)s") % facts
    return ""


def recommended(rows: Sequence[Candidate]) -> tuple[Candidate | None, str]:
    """The one to take and why, in a sentence; None and "" where none takes it.

    The earliest start counts, but not for a few minutes: what starts within NEAR of it and costs least is taken.
    """
    valid = [row for row in rows if row.is_valid]
    if not valid:
        return None, ""
    if len(valid) == 1:
        return valid[0], _("%(name)s: the only one that takes it.") % {"name": valid[0].cluster.name}
    timed = sorted((row for row in valid if row.starts_at is not None), key=lambda row: row.starts_at or _NEVER)
    if not timed:
        best = max(valid, key=lambda row: (row.preview.free_nodes, -row.preview.usd))
        return best, _("%(name)s: no start is in sight anywhere; it has the most free nodes.") % {
            "name": best.cluster.name
        }
    first = timed[0]
    near = [row for row in timed if (row.starts_at or _NEVER) - (first.starts_at or _NEVER) <= NEAR]
    best = min(near, key=lambda row: (row.preview.usd, row.starts_at or _NEVER, not row.is_chosen))
    dearer = [row for row in near if row.preview.usd > best.preview.usd]
    other = next((row for row in dearer if row.is_chosen), dearer[0] if dearer else best)
    facts = {
        "name": best.cluster.name,
        "usd": units.usd(other.preview.usd - best.preview.usd),
        "minutes": int(NEAR.total_seconds() // 60),
        "other": other.cluster.name,
        "start": best.start_words,
    }
    if dearer:
        if best.starts_at == first.starts_at:
            text = _("%(name)s: it starts as early as any other and holds %(usd)s less than %(other)s.")
        else:
            text = _("%(name)s: it holds %(usd)s less than %(other)s and starts at most %(minutes)s min later.")
        return best, text % facts
    if best.start is not None and best.start.is_now:
        return best, _("%(name)s: it would start there now.") % facts
    return best, _("%(name)s: it starts there first, about %(start)s.") % facts
