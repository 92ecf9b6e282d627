"""A job beside the ends of the blocks its nodes belong to: what fits, where it must not start, until when it may."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Q
from django.utils.translation import gettext_noop as _

from apps.capacity.rules import minutes_left
from apps.capacity.states import BLOCKS
from apps.clusters.models import Node
from apps.core import clock
from apps.core.said import Said, said
from apps.jobs.models import Attempt, Job
from apps.jobs.part_rules import Part, parts_of
from apps.jobs.rules import checkpoint_signal
from apps.jobs.selectors import usable_nodes

#: A job that saves when it is asked may start where at least this much is left before the nodes are drained: it is
#: asked half an hour before that, so that half an hour of it was not in vain.
LEAST_RUN_MIN = 60
#: What a trimmed time limit leaves for the submit and the start, in minutes; a tenth where that is less.
SLACK_MIN = 5


@dataclass(frozen=True)
class Room:
    """What the blocks of a cluster leave to one job from now.

    ``late`` are nodes whose block ends before a full run would: it is submitted without them. ``forbidden`` are those
    on which it must not start at all; a job that saves when asked has fewer of them. ``most_min`` is the longest time
    limit that enough nodes hold (None: any), ``start_within_min`` how long its own still fits (None: for ever).
    ``block`` and ``ends_at`` name the first block to end, empty and None where none matters.
    """

    late: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    fitting: int = 0
    needed: int = 0
    most_min: int | None = None
    start_within_min: int | None = None
    block: str = ""
    ends_at: datetime | None = None
    is_bound: bool = False

    @property
    def must_wait(self) -> bool:
        """Too few nodes would let it end: the portal keeps it until there are more, or until a block is extended."""
        return self.is_bound and self.fitting < self.needed


def minutes_left_on(node: Node) -> int | None:
    """How long a job that starts now may run on a node: until its block is given back; None where nothing ends it."""
    reservation = node.reserved_in
    if reservation is None:
        return None
    return minutes_left(reservation.kind, reservation.end_at, clock.now())


def longest_limit(nodes: Sequence[Node], count: int) -> int | None:
    """The longest time limit that ``count`` of these nodes can hold before their blocks end; None: any."""
    left = sorted((float("inf") if (m := minutes_left_on(n)) is None else m for n in nodes), reverse=True)
    if not 1 <= count <= len(left) or left[count - 1] == float("inf"):
        return None
    return int(left[count - 1])


def trimmed_limit(most_min: int) -> int:
    """The time limit to ask for where ``most_min`` fit now: a little less, so that it fits at its start."""
    return max(0, most_min - min(SLACK_MIN, max(1, most_min // 10)))


def room_for(job: Job, excluded: Collection[str] = ()) -> Room:
    """What is left to a job on the nodes it could use, those ``excluded`` left out. One query where no block is."""
    in_block = Q(fleet__reservation__kind__in=BLOCKS) | Q(group__reservation__kind__in=BLOCKS)
    if not Node.objects.filter(in_block, cluster_id=job.cluster_id).exists():
        return Room()
    rooms = [_room(job, part, excluded) for part in parts_of(job)]
    if len(rooms) == 1:
        return rooms[0]
    # All parts start together: what keeps one of them keeps the job.
    tightest = min(rooms, key=lambda room: room.fitting - room.needed)
    late = frozenset(name for room in rooms for name in room.late)
    return replace(tightest, late=late, forbidden=frozenset(name for room in rooms for name in room.forbidden))


def _room(job: Job, part: Part, excluded: Collection[str]) -> Room:
    """What is left to one part of a job, which most jobs have one of."""
    nodes = usable_nodes(job.cluster, part.gpu_type, part.gpus_per_node, part.partition)
    nodes = [n for n in nodes if n.name not in excluded]
    left = {n.name: minutes for n in nodes if (minutes := minutes_left_on(n)) is not None}
    full = frozenset(name for name, minutes in left.items() if minutes < part.time_limit_min)
    least = min(part.time_limit_min, LEAST_RUN_MIN) if checkpoint_signal(job.environment) else part.time_limit_min
    forbidden = frozenset(name for name, minutes in left.items() if minutes < least)
    late = full if len(nodes) - len(full) >= part.nodes else forbidden
    most = longest_limit(nodes, part.nodes)
    ending = [n.reserved_in for n in nodes if n.name in left and n.reserved_in is not None]
    first = min(ending, key=lambda r: (r.end_at is None, r.end_at, r.pk), default=None)
    return Room(
        late=late,
        forbidden=forbidden,
        fitting=len(nodes) - len(late),
        needed=part.nodes,
        most_min=most,
        start_within_min=None if most is None else max(0, most - least),
        block=str(first) if first is not None else "",
        ends_at=first.end_at if first is not None else None,
        is_bound=True,
    )


def outgrown(attempt: Attempt, room: Room) -> bool:
    """Whether a waiting attempt could now start on a node that it must not: it was not kept from it when submitted."""
    return bool(room.forbidden - set(attempt.avoided_nodes))


def held_words(job: Job, room: Room) -> Said:
    """Why a job is kept by the portal, and what would let it go."""
    facts: dict[str, str | int] = {
        "have": room.fitting,
        "need": room.needed,
        "limit": job.time_limit_min,
        "most": room.most_min or 0,
    }
    facts |= {"block": room.block, "end": f"{room.ends_at:%Y-%m-%d %H:%M} UTC" if room.ends_at else ""}
    if not room.block or room.most_min is None:
        return said(_("held back until %(need)s nodes are there that it fits on; there are %(have)s"), **facts)
    if room.most_min < 1:
        return said(
            _("held back: %(block)s ends at %(end)s; it starts when the block is extended or other nodes come"), **facts
        )
    return said(
        _(
            "held back: %(block)s ends at %(end)s, before a run of %(limit)s min could; at most %(most)s min fit from "
            "now. It starts when the block is extended or other nodes come; submitted again with less it starts sooner"
        ),
        **facts,
    )


def leaves_words(room: Room) -> Said:
    """Why a waiting attempt is taken out of the queue."""
    facts = {"block": room.block, "end": f"{room.ends_at:%Y-%m-%d %H:%M} UTC" if room.ends_at else ""}
    return said(_("taken out of the queue: %(block)s ends at %(end)s, before it could"), **facts)
