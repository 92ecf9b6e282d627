"""What home and the palette show: reads of every app, each with the asker's rights."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from django.db.models import Q
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from apps.audit.models import Event
from apps.capacity.orphan_selectors import orphan_sentence, orphans_visible_to
from apps.capacity.orphan_states import ORPHAN_COLOURS, OrphanPhase
from apps.capacity.selectors import (
    blocks_ending,
    purchase_sentence,
    purchases_waiting_for,
    reservation_sentence,
)
from apps.capacity.states import PURCHASE_COLOURS
from apps.clusters.managed_selectors import groups_visible_to
from apps.clusters.managed_words import group_sentence
from apps.clusters.models import Fleet
from apps.clusters.selectors import (
    Capacity,
    capacities,
    cluster_sentence,
    clusters_visible_to,
    fleet_sentence,
    fleets_visible_to,
    nodes_visible_to,
)
from apps.clusters.states import (
    FLEET_COLOURS,
    FLEET_LIVE,
    FLEET_WORKING,
    GROUP_COLOURS,
    NODE_COLOURS,
    ClusterPhase,
    FleetPhase,
    GroupPhase,
)
from apps.core import clock, units
from apps.costs.selectors import Standing, charged_by_day, standings_of
from apps.costs.states import Unit
from apps.health.models import Finding
from apps.health.selectors import finding_sentence, findings_visible_to
from apps.health.states import FATAL, SEVERITY_COLOURS, FindingPhase
from apps.jobs.models import Job
from apps.jobs.selectors import jobs_visible_to
from apps.jobs.sentences import job_sentence
from apps.jobs.states import JOB_COLOURS, JOB_LIVE, JobPhase
from apps.teams.permissions import Actor
from apps.teams.selectors import teams_visible_to


def page_address(name: str, *args: str) -> str:
    """The address of an object's page, or empty while there is no such page."""
    try:
        return reverse(name, args=args)
    except NoReverseMatch:
        return ""


# --- palette -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hit:
    """One place the palette leads to."""

    label: str
    hint: str
    url: str
    icon: str


def jobs_matching(actor: Actor, text: str, most: int = 8) -> list[Hit]:
    """Visible jobs whose name or uid contains the text; without a text, the newest live ones."""
    rows = jobs_visible_to(actor)
    rows = rows.filter(Q(name__icontains=text) | Q(uid__icontains=text)) if text else rows.filter(phase__in=JOB_LIVE)
    return [
        Hit(job.name, f"{job.team.slug} · {job.get_phase_display()}", page_address("job", job.uid), "layers")
        for job in rows.order_by("-created_at", "-id")[:most]
    ]


def nodes_matching(actor: Actor, text: str, most: int = 8) -> list[Hit]:
    """Nodes whose name or instance contains the text; none without a text."""
    if not text:
        return []
    rows = nodes_visible_to(actor).filter(Q(name__icontains=text) | Q(provider_id__icontains=text))
    hits = []
    for node in rows.order_by("name")[:most]:
        url = page_address("node", node.uid) or page_address("cluster", node.cluster.uid)
        if url:
            hits.append(Hit(node.name, f"{node.cluster.name} · {node.get_phase_display()}", url, "cpu"))
    return hits


# --- home ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """One thing that waits for this person: its state, its sentence, where to act, since when."""

    colour: str
    title: str
    text: str
    url: str
    at: datetime


def needs_of(actor: Actor, most: int = 8) -> list[Need]:
    """Failed jobs of one's own in the last two days, jobs out of budget, open findings, fleets that failed."""
    since = clock.now() - timedelta(days=2)
    mine = jobs_visible_to(actor).filter(
        Q(phase=JobPhase.WAITING_BUDGET) | Q(phase__in=[JobPhase.FAILED, JobPhase.TIMED_OUT], ended_at__gte=since)
    )
    if not actor.everywhere("jobs.view"):
        mine = mine.filter(owner_id=actor.user_id)
    needs = [
        Need(JOB_COLOURS[job.phase], job.name, job_sentence(job), page_address("job", job.uid), job.phase_since)
        for job in mine.order_by("-phase_since", "-id")[:most]
    ]
    needs += _overdrawn(actor)
    needs += [_finding_need(row) for row in _open_findings(actor)[:most]]
    needs += _capacity_needs(actor)
    if actor.everywhere("clusters.operate"):
        broken = fleets_visible_to(actor).filter(phase__in=[FleetPhase.FAILED, FleetPhase.DEGRADED])
        needs += [
            Need(FLEET_COLOURS[f.phase], str(f), fleet_sentence(f), _fleet_address(f), f.phase_since)
            for f in broken[:most]
        ]
        needs += _kept_needs(actor, most)
    needs += [
        Need(ORPHAN_COLOURS[o.phase], o.provider_id, orphan_sentence(o), page_address("orphans"), o.first_seen_at)
        for o in orphans_visible_to(actor).filter(phase=OrphanPhase.FOUND)[:most]
    ]
    return sorted(needs, key=lambda n: (n.colour != "bad", -n.at.timestamp()))[:most]


def _overdrawn(actor: Actor) -> list[Need]:
    """Teams whose jobs spent more this month than their budget holds, for whoever sees their money."""
    month = clock.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    told = Event.objects.filter(kind="BudgetOverdrawn", object_type="team", at__gte=month)
    latest = {event.object_uid: event for event in told.order_by("at", "id")}
    if not latest:
        return []
    teams = [team for team in teams_visible_to(actor, "costs.view") if team.uid in latest]
    needs = []
    for standing in standings_of(teams, Unit.USD):
        if standing.free < 0:
            text = _("Jobs from outside took it %(usd)s over its budget for this month; no job of it is accepted now.")
            url = page_address("team-costs", standing.team.slug)
            facts = {"usd": units.usd(-standing.free)}
            needs.append(Need("bad", standing.team.name, text % facts, url, latest[standing.team.uid].at))
    return needs


def _kept_needs(actor: Actor, most: int) -> list[Need]:
    """Clusters that AWS could not make, and node groups in trouble, of those that are not being deleted."""
    failed = clusters_visible_to(actor).filter(phase=ClusterPhase.FAILED, delete_requested_at__isnull=True)
    groups = groups_visible_to(actor).filter(
        phase__in=[GroupPhase.FAILED, GroupPhase.DEGRADED],
        delete_requested_at__isnull=True,
        cluster__delete_requested_at__isnull=True,
    )
    return [
        *(
            Need("bad", c.name, cluster_sentence(c, capacities([c])[0]), page_address("cluster", c.uid), c.phase_since)
            for c in failed[:most]
        ),
        *(
            Need(
                GROUP_COLOURS[g.phase],
                f"{g.cluster.name}/{g.name}",
                group_sentence(g),
                page_address("group", g.uid),
                g.phase_since,
            )
            for g in groups.order_by("-phase_since", "-id")[:most]
        ),
    ]


def _capacity_needs(actor: Actor) -> list[Need]:
    """Purchases that wait for this person, and blocks of theirs that end within a day."""
    needs = [
        Need(PURCHASE_COLOURS[p.phase], p.name, purchase_sentence(p), page_address("purchase", p.uid), p.phase_since)
        for p in purchases_waiting_for(actor)[:8]
    ]
    if actor.holds("capacity.view"):
        mine = actor.team_ids("jobs.view")
        for row in blocks_ending():
            if actor.everywhere("capacity.operate") or row.team_id in mine:
                url = page_address("reservation", row.uid)
                needs.append(Need("warn", str(row), reservation_sentence(row), url, row.phase_since))
    return needs


def _open_findings(actor: Actor) -> list[Finding]:
    """Open findings: all fatal ones for operators, for others only those on nodes their own jobs run on."""
    rows = findings_visible_to(actor).filter(phase=FindingPhase.OPEN, severity__in=sorted(FATAL))
    found = list(rows.order_by("-last_seen_at")[:50])
    if actor.everywhere("health.operate") or not found:
        return found
    mine: set[tuple[int, str]] = set()
    live = jobs_visible_to(actor).filter(owner_id=actor.user_id, phase__in=JOB_LIVE).prefetch_related("attempts")
    for job in live[:50]:
        for attempt in job.attempts.all():
            mine.update((job.cluster_id, name) for name in attempt.nodes)
    return [row for row in found if (row.node.cluster_id, row.node.name) in mine]


def _finding_need(row: Finding) -> Need:
    url = page_address("finding", row.uid) or page_address("findings")
    return Need(SEVERITY_COLOURS[row.severity], row.title, finding_sentence(row), url, row.last_seen_at)


def _fleet_address(fleet: Fleet) -> str:
    return page_address("fleet", fleet.uid) or page_address("cluster", fleet.cluster.uid)


@dataclass(frozen=True)
class TeamUse:
    """A team's GPUs and money now."""

    gpus: Standing
    usd: Standing
    forecast_usd: Decimal


@dataclass(frozen=True)
class Spend:
    """This month: what was charged in all and by day, oldest first, days without charges as zero."""

    usd: Decimal
    days: list[Decimal] = field(default_factory=list)


@dataclass(frozen=True)
class Home:
    """Everything home shows."""

    needs: list[Need]
    jobs: list[Job]
    uses: list[TeamUse]
    capacities: list[Capacity]
    spend: Spend | None
    fleets: list[tuple[Fleet, str]]
    is_operator: bool


def spend_of(actor: Actor) -> Spend:
    """What the teams one may see spent since the first of the month."""
    now = clock.now()
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    teams = None if actor.everywhere("costs.view") else actor.team_ids("costs.view")
    by_day = dict(charged_by_day(teams, first))
    days = [by_day.get((first + timedelta(days=i)).date().isoformat(), Decimal(0)) for i in range(now.day)]
    return Spend(sum(days, Decimal(0)), days)


def team_uses(actor: Actor, most: int = 6) -> list[TeamUse]:
    """Bars of the teams one may see: GPUs held now, money spent and held this month, and where the month would end."""
    teams = list(teams_visible_to(actor, "quotas.view")[:most])
    now = clock.now()
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    next_month = (first + timedelta(days=32)).replace(day=1)
    part = Decimal(str((now - first) / (next_month - first)))
    money = {s.team.pk: s for s in standings_of(teams, Unit.USD)}
    uses = []
    for gpus in standings_of(teams, Unit.GPUS):
        usd = money[gpus.team.pk]
        forecast = usd.spent / part if part > 0 else usd.spent
        uses.append(TeamUse(gpus, usd, forecast))
    return uses


def home_for(actor: Actor) -> Home:
    """Home of a person: what waits for them first, then their jobs (operators: fleets), quotas, capacity, spend."""
    is_operator = actor.everywhere("clusters.operate")
    jobs = jobs_visible_to(actor)
    if not is_operator:
        jobs = jobs.filter(owner_id=actor.user_id)
    jobs = jobs.order_by("-created_at", "-id")
    live = list(jobs.filter(phase__in=JOB_LIVE)[:8])
    recent = list(jobs.exclude(phase__in=JOB_LIVE)[: max(0, 8 - len(live))])
    fleets = (
        fleets_visible_to(actor).filter(phase__in=FLEET_LIVE & (FLEET_WORKING | {FleetPhase.DEGRADED}))
        if is_operator
        else Fleet.objects.none()
    )
    return Home(
        needs=needs_of(actor),
        jobs=live + recent,
        uses=team_uses(actor),
        capacities=capacities(list(clusters_visible_to(actor)[:12])),
        spend=spend_of(actor) if actor.holds("costs.view") else None,
        fleets=[(f, fleet_sentence(f)) for f in fleets[:6]],
        is_operator=is_operator,
    )


def capacity_segments(capacity: Capacity) -> list[tuple[str, int, str]]:
    """Used, free and down as parts of a bar."""
    return [
        ("used", capacity.used, _("%(n)s used") % {"n": capacity.used}),
        ("free", capacity.free, _("%(n)s free") % {"n": capacity.free}),
        ("down", capacity.down, _("%(n)s down") % {"n": capacity.down}),
    ]


__all__ = ["NODE_COLOURS", "Hit", "Home", "Need", "capacity_segments", "home_for", "jobs_matching", "nodes_matching"]
