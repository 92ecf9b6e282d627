"""When a waiting job will start, and what it waits for: pure decisions on a picture of one queue.

The picture is the nodes of a partition, the jobs that run on them and the jobs that wait, in the order in which the
scheduler will look at them. ``simulate`` plays it forward many times. Each time every job gets a running time that jobs
like it really had (a part of its time limit, by the history) while the scheduler itself plans by time limits alone, as
Slurm's backfill does: the first job that does not fit gets the instant at which its nodes are free at the latest, and a
later one may start before only if it does not push that back. What comes out is not one instant but a range.

Nodes are equal but for their free GPUs. A node without GPUs counts as one place. Times are seconds from now.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

#: What a job does with its time limit where nothing is known of jobs like it: anything, often all of it.
UNKNOWN_USE = (0.05, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0)
#: What is not known at all is taken for as sure as if so few jobs had been seen.
UNKNOWN_SEEN = 3
SAMPLES = 40
#: A job that has not started by then has no expected start.
HORIZON_S = 21 * 86400.0
#: How many waiting jobs a round of the scheduler looks at.
DEPTH = 200
#: The scheduler looks at the queue every so often; a start is not told more exactly than that.
CYCLE_S = 30.0
#: A limit that Slurm does not tell is taken for a week.
NO_LIMIT_S = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Place:
    """A node: its GPUs (1 where it has none) and whether the scheduler may start jobs on it now; why not otherwise."""

    name: str
    gpus: int
    is_usable: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """A job that occupies ``share`` GPUs on each of its nodes; ``use`` are parts of the limit that such jobs took."""

    key: str
    nodes: tuple[str, ...]
    share: int
    elapsed_s: float
    limit_s: float
    use: tuple[float, ...] = UNKNOWN_USE


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job in the queue that may start once there is room, not before ``eligible_in_s``."""

    key: str
    nodes: int
    share: int
    limit_s: float
    use: tuple[float, ...] = UNKNOWN_USE
    eligible_in_s: float = 0.0
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Picture:
    """One pool of nodes and what wants them; ``waiting`` in the scheduler's order."""

    places: tuple[Place, ...]
    running: tuple[Running, ...]
    waiting: tuple[Waiting, ...]
    seed: int = 1

    @property
    def is_informed(self) -> bool:
        """Whether something is known of most of its jobs' kinds; else expectations are guesses in general."""
        uses = [*(job.use for job in self.running), *(job.use for job in self.waiting)]
        return 2 * sum(1 for use in uses if use != UNKNOWN_USE) >= len(uses)


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a job starts, in seconds from now: one time in ten before ``low_s``, in two before ``p50_s``, nine in ten
    before ``p90_s``. ``never`` is the share of plays in which it did not start at all.
    """

    low_s: float
    p50_s: float
    p90_s: float
    never: float = 0.0


@dataclass(frozen=True, slots=True)
class Why:
    """What a waiting job waits for, in numbers.

    ``ahead`` jobs come first. ``free`` of ``fitting`` nodes could take a share of it now, ``missing`` more are needed;
    ``unusable`` are drained, down or reserved. ``blockers`` are the running jobs whose ends bring the missing nodes,
    and ``freed_in_s`` when the last of them is expected to end. ``could_start_with`` nodes it would start at once.
    """

    ahead: int
    fitting: int
    free: int
    missing: int
    unusable: int
    blockers: tuple[str, ...] = ()
    freed_in_s: float | None = None
    could_start_with: int = 0


@dataclass(slots=True)
class _Run:
    nodes: tuple[str, ...]
    share: int
    by_limit: float


@dataclass(slots=True)
class _Pool:
    """Free GPUs of each node, and the nodes by how many they have free."""

    free: dict[str, int]
    levels: list[dict[str, None]]
    usable: frozenset[str]

    @classmethod
    def of(cls, picture: Picture) -> _Pool:
        """As the running jobs leave it."""
        free = {place.name: place.gpus for place in picture.places}
        for job in picture.running:
            for name in job.nodes:
                if name in free:
                    free[name] = max(0, free[name] - job.share)
        usable = frozenset(place.name for place in picture.places if place.is_usable)
        levels: list[dict[str, None]] = [{} for _ in range(max((p.gpus for p in picture.places), default=0) + 1)]
        for name, gpus in free.items():
            if name in usable:
                levels[gpus][name] = None
        return cls(free, levels, usable)

    def count(self, share: int, excluded: Collection[str] = ()) -> int:
        """Nodes with so many GPUs free."""
        if not excluded:
            return sum(len(level) for level in self.levels[share:])
        return sum(1 for level in self.levels[share:] for name in level if name not in excluded)

    def take(self, job: Waiting) -> tuple[str, ...]:
        """Occupy nodes for a job that fits, the fullest first."""
        taken: list[str] = []
        for level in self.levels[job.share :]:
            for name in level:
                if name not in job.excluded:
                    taken.append(name)
                    if len(taken) == job.nodes:
                        break
            if len(taken) == job.nodes:
                break
        for name in taken:
            self._move(name, -job.share)
        return tuple(taken)

    def give(self, nodes: Collection[str], share: int) -> None:
        """A job ended."""
        for name in nodes:
            if name in self.free:
                self._move(name, share)

    def _move(self, name: str, change: int) -> None:
        now = self.free[name] + change
        if name in self.usable:
            del self.levels[self.free[name]][name]
            self.levels[min(now, len(self.levels) - 1)][name] = None
        self.free[name] = min(now, len(self.levels) - 1)


def _left(job: Running, part: float | None) -> float:
    """Seconds that a running job has left, where jobs like it took ``part`` of their limit."""
    rest = max(CYCLE_S, job.limit_s - job.elapsed_s)
    return rest if part is None else max(1.0, min(rest, job.limit_s * part - job.elapsed_s))


def _parts_left(job: Running) -> list[float]:
    """Parts of the limit that a job which ran so long may still take."""
    return [part for part in job.use if part * job.limit_s > job.elapsed_s]


def simulate(
    picture: Picture, targets: Collection[str], *, samples: int = SAMPLES, budget_s: float = 0.15
) -> dict[str, Estimate]:
    """When these waiting jobs start. Plays until ``samples`` or the time is used, five times at least.

    The same picture gives the same answer as long as the time suffices. Targets that are not in the picture, and those
    that start in fewer than half of the plays, are left out.
    """
    wanted = {job.key for job in picture.waiting} & set(targets)
    if not wanted:
        return {}
    last = max(index for index, job in enumerate(picture.waiting) if job.key in wanted)
    # Whoever comes after the last target may not push it back.
    picture = replace(picture, waiting=picture.waiting[: last + 1])
    deadline = time.monotonic() + budget_s
    starts: dict[str, list[float]] = {key: [] for key in wanted}
    for number in range(samples):
        if number >= 5 and time.monotonic() > deadline:
            break
        # Chance that can be repeated is what is wanted here.
        found = play(picture, wanted, random.Random(picture.seed * 1_000_003 + number))  # noqa: S311
        for key in wanted:
            starts[key].append(found.get(key, math.inf))
    return {key: estimate for key, told in starts.items() if (estimate := _estimate(told)) is not None}


def _estimate(starts: Sequence[float]) -> Estimate | None:
    found = sorted(starts)
    p50 = found[(len(found) - 1) // 2]
    if math.isinf(p50):
        return None
    p90 = found[max(0, math.ceil(0.9 * len(found)) - 1)]
    known = [one for one in found if not math.isinf(one)]
    return Estimate(
        found[len(found) // 10], p50, p90 if not math.isinf(p90) else known[-1], 1 - len(known) / len(found)
    )


#: So many starts must have been compared before they correct what is expected, and so many of the newest do:
#: older ones tell of another queue and of a shorter history.
FEW_STARTS = 20
NEWEST_STARTS = 60


def calibrated(estimate: Estimate, ratios: Sequence[float]) -> Estimate:
    """An estimate corrected by how earlier ones of the cluster turned out.

    ``ratios`` are real waits as parts of the middle that the plays had told (``p50_s``). What no picture holds shows in
    them: jobs that come later and go first, the scheduler's own pauses. The middle moves with theirs; the ends move
    outwards only, until eight tenths of the earlier starts would have been inside.
    """
    if len(ratios) < FEW_STARTS:
        return estimate
    found = sorted(min(20.0, max(0.0, ratio)) for ratio in ratios)
    low, middle, high = (found[min(len(found) - 1, int(len(found) * part))] for part in (0.1, 0.5, 0.9))
    p50 = estimate.p50_s * middle
    return Estimate(
        low_s=min(estimate.low_s, estimate.p50_s * low, p50),
        p50_s=p50,
        p90_s=max(estimate.p90_s, estimate.p50_s * high, p50),
        never=estimate.never,
    )


class _Use:
    """What jobs take of their limits in one play.

    What is known of a kind is a sample, and another one would have looked different: each play takes one drawn from it
    (the bootstrap). Else the luck of many jobs would even out and a range be told that is too narrow for what is known.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._drawn: dict[tuple[float, ...], list[float]] = {}

    def _of(self, use: tuple[float, ...]) -> list[float]:
        drawn = self._drawn.get(use)
        if drawn is None:
            known = use or UNKNOWN_USE
            count = UNKNOWN_SEEN if known == UNKNOWN_USE else len(known)
            drawn = self._drawn[use] = sorted(self._chance.choices(known, k=count))
        return drawn

    def one_of(self, use: tuple[float, ...]) -> float:
        """The part that a job of this kind takes."""
        return self._chance.choice(self._of(use))

    def longer_than(self, job: Running) -> float | None:
        """The part that a running job takes in all; None where it has outlasted all that are known."""
        done = job.elapsed_s / job.limit_s
        drawn = self._of(job.use)
        parts = drawn[bisect.bisect_right(drawn, done) :]
        if not parts:
            # Few were drawn: of those that are known some may have lasted longer.
            parts = _parts_left(job)
        return self._chance.choice(parts) if parts else None


def play(picture: Picture, targets: Collection[str], chance: random.Random) -> dict[str, float]:
    """One play: when each target starts; those that do not within the horizon are left out."""
    pool = _Pool.of(picture)
    ends: list[tuple[float, int]] = []
    runs: dict[int, _Run] = {}
    use = _Use(chance)
    numbers = itertools.count()
    for number, run in zip(numbers, picture.running, strict=False):
        runs[number] = _Run(run.nodes, run.share, _left(run, None))
        heapq.heappush(ends, (_left(run, use.longer_than(run)), number))
    queue = list(picture.waiting)
    wakes = sorted({job.eligible_in_s for job in queue if job.eligible_in_s > 0}, reverse=True)
    starts: dict[str, float] = {}
    left = set(targets)
    now = 0.0
    while left and now <= HORIZON_S:
        for job, nodes in _round(pool, queue, runs, now):
            number = next(numbers)
            runs[number] = _Run(nodes, job.share, now + job.limit_s)
            heapq.heappush(ends, (now + max(1.0, job.limit_s * use.one_of(job.use)), number))
            if job.key in left:
                starts[job.key] = now
                left.discard(job.key)
        following = [ends[0][0]] if ends else []
        following += [wakes[-1]] if wakes else []
        if not following:
            break
        now = min(following)
        while wakes and wakes[-1] <= now:
            wakes.pop()
        while ends and ends[0][0] <= now:
            _at, number = heapq.heappop(ends)
            over = runs.pop(number)
            pool.give(over.nodes, over.share)
    return starts


def _round(
    pool: _Pool, queue: list[Waiting], runs: Mapping[int, _Run], now: float
) -> list[tuple[Waiting, tuple[str, ...]]]:
    """One look of the scheduler at its queue: what starts now; taken out of ``queue``."""
    started: list[tuple[Waiting, tuple[str, ...]]] = []
    new_runs: list[_Run] = []
    reserved_at: float | None = None
    spare = 0
    gone: list[int] = []
    for index, job in enumerate(queue[:DEPTH]):
        if job.eligible_in_s > now:
            continue
        if not any(pool.levels[1:]) and job.share > 0:
            break
        fits = pool.count(job.share, job.excluded) >= job.nodes
        if fits and reserved_at is not None and now + job.limit_s > reserved_at:
            fits = job.nodes <= spare
            spare -= job.nodes if fits else 0
        if fits:
            nodes = pool.take(job)
            started.append((job, nodes))
            new_runs.append(_Run(nodes, job.share, now + job.limit_s))
            gone.append(index)
        elif reserved_at is None:
            reserved_at, spare = _reserve(pool, job, [*runs.values(), *new_runs])
    for index in reversed(gone):
        del queue[index]
    return started


def _reserve(pool: _Pool, job: Waiting, runs: Sequence[_Run]) -> tuple[float, int]:
    """When the first job that does not fit has its nodes at the latest, and how many are to spare then."""
    free = dict(pool.free)
    usable = pool.usable - job.excluded
    have = sum(1 for name in usable if free[name] >= job.share)
    for run in sorted(runs, key=lambda one: one.by_limit):
        for name in run.nodes:
            if name in usable:
                before = free[name]
                free[name] = before + run.share
                have += before < job.share <= free[name]
        if have >= job.nodes:
            return run.by_limit, have - job.nodes
    return math.inf, 10**9


def explain(picture: Picture, key: str) -> Why | None:
    """What one waiting job of the picture waits for; None when it is not in it."""
    at = next((index for index, job in enumerate(picture.waiting) if job.key == key), None)
    if at is None:
        return None
    job = picture.waiting[at]
    pool = _Pool.of(picture)
    fitting = [place for place in picture.places if place.gpus >= job.share and place.name not in job.excluded]
    usable = [place for place in fitting if place.is_usable]
    free = pool.count(job.share, job.excluded)
    missing = max(0, job.nodes - free)
    blockers, freed = _blockers(picture, job, pool, missing) if missing else ((), None)
    return Why(
        ahead=sum(1 for other in picture.waiting[:at] if other.eligible_in_s <= 0),
        fitting=len(fitting),
        free=min(free, len(usable)),
        missing=missing,
        unusable=len(fitting) - len(usable),
        blockers=blockers,
        freed_in_s=freed,
        could_start_with=_could_start_with(picture, at, free),
    )


def _blockers(picture: Picture, job: Waiting, pool: _Pool, missing: int) -> tuple[tuple[str, ...], float | None]:
    """Running jobs, the first to end first, until their nodes are enough; and when the last is likely to end."""
    usable = pool.usable - job.excluded
    free = dict(pool.free)
    found: list[str] = []
    for end, run in sorted(((expected_left_s(run), run) for run in picture.running), key=lambda pair: pair[0]):
        helped = False
        for name in run.nodes:
            if name in usable:
                before = free[name]
                free[name] = before + run.share
                helped |= before < job.share
                missing -= before < job.share <= free[name]
        if helped:
            found.append(run.key)
        if missing <= 0:
            return tuple(found), end
    return tuple(found), None


def likely_use(ended: Sequence[float], going: Sequence[float], *, size: int) -> tuple[float, ...]:
    """``size`` parts of their limits that jobs of a kind take, equally likely each, in rising order.

    ``ended`` are the parts that jobs took, ``going`` what jobs which still run have taken so far. These count, too: of
    jobs that began at the same time the short ones end first, so whoever looks at ended jobs alone takes all of them
    for short (this is the product-limit estimate of Kaplan and Meier). What nobody knows, how much longer those take
    that have outlasted all ended ones, is taken from jobs in general.
    """
    if not ended:
        return ()
    seen = sorted([(part, False) for part in ended] + [(part, True) for part in going])
    steps: list[tuple[float, float]] = []
    lasting, at_risk = 1.0, len(seen)
    for part, still in seen:
        if not still:
            lasting *= 1 - 1 / at_risk
            steps.append((1 - lasting, part))
        at_risk -= 1
    beyond = [part for part in UNKNOWN_USE if part > steps[-1][1]] or [1.0]
    known = steps[-1][0]
    found: list[float] = []
    step = 0
    for number in range(size):
        share = (number + 0.5) / size
        while step < len(steps) and steps[step][0] < share:
            step += 1
        if step < len(steps):
            found.append(steps[step][1])
        else:
            found.append(beyond[min(len(beyond) - 1, int((share - known) / (1 - known) * len(beyond)))])
    return tuple(found)


def expected_left_s(job: Running) -> float:
    """The middle of what jobs like a running one still took from here on."""
    parts = sorted(_parts_left(job))
    return _left(job, parts[len(parts) // 2] if parts else None)


def _could_start_with(picture: Picture, at: int, free: int) -> int:
    """With how many nodes, fewer than asked for, it would start in the scheduler's next round; 0 where with none."""
    job = picture.waiting[at]
    most = min(free, job.nodes - 1)
    for nodes in dict.fromkeys((most, (most + 1) // 2, 1)):
        if nodes < 1:
            continue
        changed = replace(job, nodes=nodes, eligible_in_s=0.0)
        pool = _Pool.of(picture)
        runs = {number: _Run(run.nodes, run.share, _left(run, None)) for number, run in enumerate(picture.running)}
        queue = [*picture.waiting[:at], changed]
        if any(started.key == job.key for started, _nodes in _round(pool, queue, runs, 0.0)):
            return nodes
    return 0


def changed_to(picture: Picture, key: str, *, nodes: int, limit_s: float, share: int) -> Picture:
    """The picture in which one waiting job asks for something else."""

    def one(job: Waiting) -> Waiting:
        return replace(job, nodes=nodes, limit_s=limit_s, share=share) if job.key == key else job

    return replace(picture, waiting=tuple(one(job) for job in picture.waiting))


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How the portal's own expectations of one cluster turned out."""

    starts: int = 0
    inside: int = 0

    @property
    def share(self) -> float | None:
        """The part of starts inside the range; None before the first."""
        return self.inside / self.starts if self.starts else None
