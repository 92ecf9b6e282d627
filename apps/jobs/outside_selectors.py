"""Jobs that were submitted past the portal: whose they are, which are still to be taken in, which changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Exists, F, Min, OuterRef, Q, QuerySet, Sum

from apps.clusters.kube_selectors import team_in
from apps.clusters.models import Cluster
from apps.clusters.slurm_models import SlurmAccount, SlurmUser
from apps.clusters.slurm_selectors import may_stand_for
from apps.clusters.states import KINDS_KUBERNETES
from apps.core import clock
from apps.jobs.models import Attempt
from apps.jobs.queue_models import QueueEntry
from apps.jobs.queue_observations import FINAL_TRIES, UNFINISHED
from apps.jobs.states import ATTEMPT_ENDED, ATTEMPT_PLACED, AttemptPhase, JobOrigin
from apps.teams.models import Team, User

#: Jobs that left the queue before anyone took them in are still charged so long afterwards.
LATE = timedelta(days=1)
_WAITS = "PENDING"
Pair = tuple[str, str]


@dataclass(frozen=True)
class Owner:
    """Whose a job from outside is."""

    team: Team
    user: User | None
    user_name: str


@dataclass(frozen=True)
class Waste:
    """What nobody owns: jobs of one user with one account."""

    user_name: str
    account: str
    jobs: int
    gpus: int
    since: datetime | None


def _strangers(cluster: Cluster) -> QuerySet[QueueEntry]:
    """Rows that belong to no attempt, in the queue or gone lately after they ran."""
    recent = Q(gone_at__isnull=True) | Q(gone_at__gt=clock.now() - LATE, started_at__isnull=False)
    return QueueEntry.objects.filter(recent, cluster=cluster, attempt__isnull=True)


def owners_of(cluster: Cluster, pairs: Collection[Pair]) -> dict[Pair, Owner]:
    """Who owns the jobs of these (user, account) pairs; those that nobody owns are left out."""
    if cluster.is_kubernetes:
        return _by_namespace(cluster, pairs)
    names = {user for user, _account in pairs}
    accounts = {a.account: a.team for a in SlurmAccount.objects.filter(cluster=cluster).select_related("team")}
    rows = SlurmUser.objects.filter(cluster=cluster, user_name__in=names).select_related("user", "team")
    known = {row.user_name: row for row in rows}
    people: dict[str, User] = {}
    if cluster.same_names:
        same = {name for name in names - set(known) if may_stand_for(cluster, name)}
        people = {u.username: u for u in User.objects.filter(username__in=same, is_active=True)}
    people |= {name: row.user for name, row in known.items() if row.user is not None}
    only = _only_teams([user.pk for user in people.values()])
    found: dict[Pair, Owner] = {}
    for name, account in pairs:
        row, person = known.get(name), people.get(name)
        team = accounts.get(account) or (row.team if row is not None else None)
        if team is None and person is not None:
            team = only.get(person.pk)
        team = team or cluster.outside_team
        if team is not None:
            found[name, account] = Owner(team, person, person.username if person is not None else name)
    return found


def _by_namespace(cluster: Cluster, pairs: Collection[Pair]) -> dict[Pair, Owner]:
    """Kubernetes does not say whose an object is: its namespace is a team's, and that is all that is known."""
    found: dict[Pair, Owner] = {}
    for name, namespace in pairs:
        team = team_in(cluster, namespace) or cluster.outside_team
        if team is not None:
            found[name, namespace] = Owner(team, None, name or namespace)
    return found


def _only_teams(user_ids: Sequence[int]) -> dict[int, Team]:
    """The team of each person who is in just one."""
    found: dict[int, Team] = {}
    counted = User.objects.filter(pk__in=user_ids).annotate(n=Count("memberships")).filter(n=1)
    for user in counted.prefetch_related("memberships__team"):
        found[user.pk] = next(iter(user.memberships.all())).team
    return found


def owned_strangers(cluster: Cluster, limit: int) -> list[tuple[QueueEntry, Owner]]:
    """Rows to take in, the oldest first, at most so many; jobs of ours whose submit nobody saw the end of are not."""
    pairs = set(_strangers(cluster).values_list("user_name", "account").distinct())
    owners = owners_of(cluster, pairs)
    if not owners:
        return []
    wanted = Q()
    for user, account in owners:
        wanted |= Q(user_name=user, account=account)
    rows = list(_strangers(cluster).filter(wanted).exclude(_open_doubts(cluster)).order_by("pk")[:limit])
    return [(row, owners[row.user_name, row.account]) for row in rows]


def _open_doubts(cluster: Cluster) -> Q:
    """Rows whose comment is an attempt of the same user that has no number yet, or theirs: they are ours.

    They are linked once their number is known. Anybody can read a comment from the queue and write it on another job.
    """
    live = Attempt.objects.filter(job__origin=JobOrigin.PORTAL)
    if cluster.is_kubernetes:
        # Another row may stand for the same server, and what its attempts made is read here as well.
        live = live.filter(job__cluster__kind__in=KINDS_KUBERNETES)
    else:
        live = live.filter(job__cluster=cluster)
    recent = live.filter(created_at__gt=clock.now() - timedelta(days=31), uid=OuterRef("comment"))
    own = Q(slurm_user="", job__cluster__user_name=OuterRef("user_name")) | Q(job__cluster__kind__in=KINDS_KUBERNETES)
    mine = recent.filter(own | Q(slurm_user=OuterRef("user_name")))
    unknown = Q(scheduler_id="", phase=AttemptPhase.SUBMITTING)
    same = Q(scheduler_id=OuterRef("scheduler_id"))
    same |= Q(scheduler_id=OuterRef("array_id")) | Q(scheduler_id=OuterRef("het_id"))
    return Q(Exists(mine.filter(unknown | (same & ~Q(scheduler_id="")))))


def outsiders_by_number(cluster: Cluster, keys: Iterable[str]) -> dict[str, Attempt]:
    """Live attempts from outside by their number in the scheduler."""
    rows = Attempt.objects.filter(
        job__cluster=cluster, job__origin=JobOrigin.OUTSIDE, scheduler_id__in=set(keys), phase__in=ATTEMPT_PLACED
    )
    return {row.scheduler_id: row for row in rows}


def _outsiders(cluster: Cluster) -> QuerySet[Attempt]:
    rows = Attempt.objects.filter(job__cluster=cluster, job__origin=JobOrigin.OUTSIDE, phase__in=ATTEMPT_PLACED)
    return rows.select_related("job__team", "job__cluster", "job__series")


def _live() -> QuerySet[QueueEntry]:
    return QueueEntry.objects.filter(attempt=OuterRef("pk"), gone_at__isnull=True)


def outsiders_started(cluster: Cluster, limit: int) -> list[Attempt]:
    """Those that wait here and run there."""
    runs = _live().exclude(state=_WAITS).filter(state__in=UNFINISHED)
    return list(_outsiders(cluster).filter(Exists(runs), phase=AttemptPhase.QUEUED)[:limit])


def outsiders_requeued(cluster: Cluster, limit: int) -> list[Attempt]:
    """Those that run here and wait there: the scheduler put them back."""
    rows = _outsiders(cluster).filter(Exists(_live().filter(state=_WAITS)), phase=AttemptPhase.RUNNING)
    # Of an array, tasks that wait beside tasks that ended are nothing new.
    others = QueueEntry.objects.filter(attempt=OuterRef("pk")).exclude(state=_WAITS)
    return list(rows.filter(~Exists(others))[:limit])


def outsiders_ended(cluster: Cluster, limit: int) -> list[Attempt]:
    """Those of which nothing is left: every row ended, or left the queue and accounting was asked often enough."""
    awaited = Q(gone_at__isnull=True) | Q(final_tries__lt=FINAL_TRIES)
    left = QueueEntry.objects.filter(awaited, attempt=OuterRef("pk"), state__in=UNFINISHED)
    any_row = QueueEntry.objects.filter(attempt=OuterRef("pk"))
    return list(_outsiders(cluster).filter(~Exists(left), Exists(any_row))[:limit])


def rows_waiting_otherwise(cluster: Cluster, limit: int) -> list[QueueEntry]:
    """Rows of waiting jobs from outside whose reason or expected start differs from what their attempt says."""
    rows = QueueEntry.objects.filter(
        cluster=cluster,
        gone_at__isnull=True,
        state=_WAITS,
        attempt__phase=AttemptPhase.QUEUED,
        attempt__job__origin=JobOrigin.OUTSIDE,
    )
    other_start = ~Q(expected_start_at=F("attempt__expected_start_at")) | Q(
        attempt__expected_start_at__isnull=True, expected_start_at__isnull=False
    )
    other_start |= Q(attempt__expected_start_at__isnull=False, expected_start_at__isnull=True)
    found = rows.filter(~Q(reason=F("attempt__observed_reason")) | other_start).exclude(
        Q(reason=F("attempt__observed_reason")),
        Q(expected_start_at__isnull=True),
        Q(attempt__expected_start_at__isnull=True),
    )
    return list(found.select_related("attempt").order_by("pk")[:limit])


def rows_to_charge(cluster: Cluster, until: datetime, every_s: float, limit: int) -> list[QueueEntry]:
    """Rows of jobs from outside that ran longer than was charged: running ones once a period, ended ones at once."""
    due = until - timedelta(seconds=every_s)
    running = Q(gone_at__isnull=True, state__in=[s for s in UNFINISHED if s != _WAITS])
    running &= Q(charged_until_at__isnull=True, started_at__lte=due) | Q(charged_until_at__lte=due)
    over = ~Q(state__in=UNFINISHED) | Q(gone_at__isnull=False, final_tries__gte=FINAL_TRIES)
    end_differs = Q(charged_until_at__isnull=True) | Q(charged_until_at__lt=F("ended_at"))
    end_differs |= Q(ended_at__isnull=True, charged_until_at__lt=F("gone_at"))
    rows = QueueEntry.objects.filter(
        running | (over & end_differs),
        Q(gpus__gt=0) | Q(cpus__gt=0) | Q(attempt__job__usd_per_node_hour__gt=0),
        cluster=cluster,
        started_at__isnull=False,
        attempt__job__origin=JobOrigin.OUTSIDE,
    )
    return list(
        rows.select_related("attempt__job__team", "attempt__job__cluster__account", "cluster").order_by("pk")[:limit]
    )


def rows_of_ended(cluster: Cluster) -> QuerySet[QueueEntry]:
    """Rows that live on although their attempt from outside has ended here: they begin another life."""
    return QueueEntry.objects.filter(
        cluster=cluster,
        gone_at__isnull=True,
        state__in=UNFINISHED,
        attempt__job__origin=JobOrigin.OUTSIDE,
        attempt__phase__in=ATTEMPT_ENDED,
    )


def waste_of(cluster: Cluster, most: int = 50) -> list[Waste]:
    """Jobs of the queue that nobody owns, by user and account, those with most GPUs first."""
    rows = QueueEntry.objects.filter(cluster=cluster, attempt__isnull=True, gone_at__isnull=True, state__in=UNFINISHED)
    rows = rows.exclude(_open_doubts(cluster))
    pairs = set(rows.values_list("user_name", "account").distinct())
    owned = owners_of(cluster, pairs)
    runs = ~Q(state=_WAITS)
    grouped = rows.values("user_name", "account").annotate(
        jobs=Count("pk"), used=Sum("gpus", filter=runs), since=Min("started_at")
    )
    found = [
        Waste(g["user_name"], g["account"], g["jobs"], int(g["used"] or 0), g["since"])
        for g in grouped
        if (g["user_name"], g["account"]) not in owned
    ]
    return sorted(found, key=lambda w: (-w.gpus, -w.jobs, w.user_name))[:most]
