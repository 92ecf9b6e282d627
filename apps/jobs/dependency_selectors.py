"""Named reads of what jobs wait for, and the graph of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext_noop as _

from apps.core.errors import FieldProblem
from apps.core.said import Said, said
from apps.jobs.dependency_models import JobDependency
from apps.jobs.dependency_rules import NEVER, WAITS, Wait, parse_dependency, state_of_wait
from apps.jobs.models import Attempt, Job
from apps.jobs.sbatch import check_options, value_of
from apps.jobs.selectors import jobs_visible_to
from apps.jobs.states import JOB_COLOURS
from apps.teams.permissions import Actor

#: How far and how wide the graph goes.
DEPTH, MOST = 4, 40


def resolve_dependency(actor: Actor, text: str) -> tuple[list[tuple[str, Job]], list[Wait], list[FieldProblem]]:
    """(conditions on jobs of the portal, those for Slurm, problems) of a text; a name is its newest job."""
    try:
        waits = parse_dependency(text)
    except ValueError as error:
        return [], [], [FieldProblem("/dependency", "invalid", str(error))]
    ours: list[tuple[str, Job]] = []
    problems = []
    visible = jobs_visible_to(actor).order_by("-created_at", "-id")
    for wait in waits:
        if wait.is_slurms:
            continue
        named = visible.filter(uid=wait.target).first() or visible.filter(name=wait.target).first()
        if named is None:
            text = str(said(_("no job %(name)s that you may see"), name=wait.target))
            problems.append(FieldProblem("/dependency", "unknown", text))
        elif all(known.pk != named.pk for _kind, known in ours):
            ours.append((wait.kind, named))
    return ours, [wait for wait in waits if wait.is_slurms], problems


def dependency_text(job: Job) -> str:
    """The conditions of a job on jobs of the portal, as they are typed."""
    rows = JobDependency.objects.filter(job=job).values_list("kind", "needs__uid")
    return ",".join(f"{kind}:{uid}" for kind, uid in rows)


@dataclass(frozen=True)
class Standstill:
    """Why a job is not given to the scheduler; ``is_final``: it never will be."""

    words: Said
    is_final: bool


def standstill_of(job: Job) -> Standstill | None:
    """The first condition on another job that does not hold; None where all do. One query."""
    waits: Standstill | None = None
    for row in JobDependency.objects.filter(job=job).select_related("needs"):
        state = state_of_wait(row.kind, row.needs.phase, has_started=row.needs.started_at is not None)
        facts = {"kind": row.kind, "name": row.needs.name}
        if state == NEVER:
            text = _("it waits for %(kind)s:%(name)s, which cannot come true any more")
            return Standstill(said(text, **facts), is_final=True)
        if state == WAITS and waits is None:
            waits = Standstill(said(_("it waits for %(name)s (%(kind)s)"), **facts), is_final=False)
    return waits


@dataclass(frozen=True)
class Box:
    """One job in the graph; ``uid`` is empty for one outside the portal, whose ``name`` is its Slurm id."""

    key: str
    uid: str
    name: str
    phase: str
    colour: str
    x: int
    y: int


@dataclass(frozen=True)
class Link:
    """From what must come first to what waits for it, with the middle of each end for drawing."""

    source: Box
    target: Box
    kind: str


@dataclass(frozen=True)
class Graph:
    """Boxes in columns, the first to the left; sizes in units of the drawing."""

    boxes: list[Box]
    links: list[Link]
    width: int
    height: int


WIDTH, HEIGHT, GAP_X, GAP_Y = 190, 44, 70, 14


def graph_of(actor: Actor, job: Job, attempt: Attempt | None) -> Graph | None:
    """The jobs around one by their dependencies; None where there are none. A job one may not see has no name."""
    columns: dict[int, int] = {job.pk: 0}
    edges: dict[tuple[int, int], str] = {}
    frontier = {job.pk}
    for _step in range(DEPTH):
        rows = JobDependency.objects.filter(job__in=frontier) | JobDependency.objects.filter(needs__in=frontier)
        fresh: set[int] = set()
        for job_id, needs_id, kind in rows.values_list("job_id", "needs_id", "kind")[:MOST]:
            edges[needs_id, job_id] = kind
            if job_id in columns and needs_id not in columns:
                columns[needs_id] = columns[job_id] - 1
                fresh.add(needs_id)
            elif needs_id in columns and job_id not in columns:
                columns[job_id] = columns[needs_id] + 1
                fresh.add(job_id)
        frontier = fresh
        if not fresh or len(columns) > MOST:
            break
    outside = _outside(job, attempt)
    if not edges and not outside:
        return None
    return _drawn(actor, job, columns, edges, outside)


def _outside(job: Job, attempt: Attempt | None) -> list[Wait]:
    """What Slurm itself makes the job wait for."""
    text = value_of(check_options(job.slurm_options)[0], "dependency") or ""
    try:
        return [wait for wait in parse_dependency(text) if wait.target]
    except ValueError:
        return []


def _drawn(
    actor: Actor, job: Job, columns: dict[int, int], edges: dict[tuple[int, int], str], outside: Sequence[Wait]
) -> Graph:
    rows = {row.pk: row for row in jobs_visible_to(actor).filter(pk__in=columns)}
    left = min([*columns.values(), -1 if outside else 0])
    taken: dict[int, int] = {}

    def place(column: int) -> tuple[int, int]:
        row = taken.get(column, 0)
        taken[column] = row + 1
        return (column - left) * (WIDTH + GAP_X), row * (HEIGHT + GAP_Y)

    boxes: dict[int | str, Box] = {}
    for pk, column in sorted(columns.items(), key=lambda item: (item[1], item[0])):
        x, y = place(column)
        seen = rows.get(pk)
        if seen is None:
            boxes[pk] = Box(str(pk), "", "–", "", "off", x, y)
        else:
            label = str(seen.get_phase_display())
            boxes[pk] = Box(str(pk), seen.uid, seen.name, label, JOB_COLOURS.get(seen.phase, "off"), x, y)
    links = [Link(boxes[a], boxes[b], kind) for (a, b), kind in edges.items() if a in boxes and b in boxes]
    for wait in outside:
        x, y = place(-1)
        box = Box(wait.text, "", f"Slurm {wait.target}", "", "off", x, y)
        boxes[wait.text] = box
        links.append(Link(box, boxes[job.pk], wait.kind))
    listed = list(boxes.values())
    return Graph(listed, links, max(b.x for b in listed) + WIDTH, max(b.y for b in listed) + HEIGHT)
